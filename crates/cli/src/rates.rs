//! What happened between two looks at a region.

use crate::gauges::Look;
use cenote_pool::Counter;
use std::collections::BTreeMap;

/// Increases of this host's counters between two looks.
pub struct Rates {
    pub seconds: f64,
    deltas: BTreeMap<Counter, u64>,
}

impl Rates {
    /// `None`: there was no time between them, or they are of two regions.
    pub fn between(before: &Look, now: &Look, seconds: f64) -> Option<Self> {
        let is_same = before.info.uuid == now.info.uuid;
        let delta = |&counter: &Counter| {
            let (then, now) = (before.counter(counter), now.counter(counter));
            // Counters begin at 0 when the host's memory is made anew.
            (counter, if now < then { now } else { now - then })
        };
        (is_same && seconds > 0.0).then(|| Self { seconds, deltas: Counter::ALL.iter().map(delta).collect() })
    }

    pub fn delta(&self, counter: Counter) -> u64 {
        self.deltas.get(&counter).copied().unwrap_or(0)
    }

    pub fn per_second(&self, counter: Counter) -> f64 {
        self.delta(counter) as f64 / self.seconds
    }

    /// Share of the blocks looked up that were found; `None`: there were no lookups.
    pub fn hit_share(&self) -> Option<f64> {
        let lookups = self.delta(Counter::Lookups);
        (lookups > 0).then(|| self.delta(Counter::Found) as f64 / lookups as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_pool::PoolInfo;

    fn look(uuid: &str, lookups: u64, found: u64) -> Look {
        let counters = [(Counter::Lookups.name(), lookups), (Counter::Found.name(), found)].into();
        Look { info: PoolInfo { uuid: uuid.to_owned(), counters, ..PoolInfo::default() }, ..Look::default() }
    }

    #[test]
    fn rates_are_of_one_region_and_survive_a_restart_of_its_host() {
        let rates = Rates::between(&look("a", 100, 50), &look("a", 300, 200), 2.0).expect("one region");
        assert_eq!((rates.per_second(Counter::Lookups), rates.hit_share()), (100.0, Some(0.75)));
        let restarted = Rates::between(&look("a", 100, 50), &look("a", 10, 5), 1.0).expect("one region");
        assert_eq!((restarted.delta(Counter::Lookups), restarted.hit_share()), (10, Some(0.5)));
        assert_eq!(Rates::between(&look("a", 9, 9), &look("a", 9, 9), 1.0).expect("one region").hit_share(), None);
        assert!(Rates::between(&look("a", 1, 1), &look("b", 2, 2), 1.0).is_none());
        assert!(Rates::between(&look("a", 1, 1), &look("a", 2, 2), 0.0).is_none());
    }
}
