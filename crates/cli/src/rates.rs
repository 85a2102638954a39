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

    pub fn part_per_second(&self, blocks: fn(&Self) -> u64) -> f64 {
        blocks(self) as f64 / self.seconds
    }

    /// Share of the blocks looked up; `None`: there were no lookups.
    pub fn share(&self, blocks: fn(&Self) -> u64) -> Option<f64> {
        let lookups = self.delta(Counter::Lookups);
        (lookups > 0).then(|| blocks(self) as f64 / lookups as f64)
    }

    /// Share of the blocks looked up that were found; `None`: there were no lookups.
    pub fn hit_share(&self) -> Option<f64> {
        self.share(|rates| rates.delta(Counter::Found))
    }

    fn missed(&self) -> u64 {
        self.delta(Counter::Lookups).saturating_sub(self.delta(Counter::Found))
    }
}

/// A part of the blocks that were looked up.
pub struct Part {
    /// A word for programs.
    pub name: &'static str,
    pub label: &'static str,
    pub blocks: fn(&Rates) -> u64,
}

/// What served the blocks that were found. A block that the cold tier brought in time was found by the
/// lookup that followed.
pub const TIERS: &[Part] = &[
    Part {
        name: "region",
        label: "region (L3)",
        blocks: |rates| rates.delta(Counter::Found).saturating_sub(rates.delta(Counter::ColdHits)),
    },
    Part {
        name: "cold",
        label: "cold tier (L4)",
        blocks: |rates| rates.delta(Counter::ColdHits).min(rates.delta(Counter::Found)),
    },
];

/// Why blocks were missed: most when they were looked up, those of the last two rows when they were read.
pub const MISSES: &[Part] = &[
    Part {
        name: "not_there",
        label: "in no tier",
        blocks: |rates| {
            let in_cold =
                [Counter::ColdLate, Counter::ColdReadsRefused, Counter::ColdReadsSkipped, Counter::ColdMisses];
            rates.missed().saturating_sub(in_cold.iter().map(|&reason| rates.delta(reason)).sum())
        },
    },
    Part { name: "cold_late", label: "cold tier: late", blocks: |rates| rates.delta(Counter::ColdLate) },
    Part { name: "cold_busy", label: "cold tier: busy", blocks: |rates| rates.delta(Counter::ColdReadsRefused) },
    Part {
        name: "cold_skipped",
        label: "cold tier: slower than computing",
        blocks: |rates| rates.delta(Counter::ColdReadsSkipped),
    },
    Part { name: "cold_failed", label: "cold tier: unreadable", blocks: |rates| rates.delta(Counter::ColdMisses) },
    Part { name: "stale", label: "evicted while read", blocks: |rates| rates.delta(Counter::ReadsStale) },
    Part { name: "damaged", label: "damaged", blocks: |rates| rates.delta(Counter::ReadsDamaged) },
];

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_pool::PoolInfo;

    fn look(uuid: &str, lookups: u64, found: u64) -> Look {
        let counters = [(Counter::Lookups.name(), lookups), (Counter::Found.name(), found)].into();
        Look { info: PoolInfo { uuid: uuid.to_owned(), counters, ..PoolInfo::default() }, ..Look::default() }
    }

    #[test]
    fn tiers_and_reasons_add_up_to_the_lookups() {
        let of = |counts: &[(Counter, u64)]| {
            let counters = counts.iter().map(|(counter, count)| (counter.name(), *count)).collect();
            Look { info: PoolInfo { counters, ..PoolInfo::default() }, ..Look::default() }
        };
        let counts = [
            (Counter::Lookups, 100),
            (Counter::Found, 60),
            (Counter::ColdHits, 20),
            (Counter::ColdLate, 5),
            (Counter::ColdReadsRefused, 4),
            (Counter::ColdReadsSkipped, 3),
            (Counter::ColdMisses, 2),
        ];
        let rates = Rates::between(&of(&[]), &of(&counts), 2.0).expect("one region");
        assert_eq!(TIERS.iter().map(|tier| rates.share(tier.blocks)).collect::<Vec<_>>(), [Some(0.4), Some(0.2)]);
        let missed: Vec<f64> = MISSES.iter().map(|reason| rates.part_per_second(reason.blocks)).collect();
        assert_eq!(missed, [13.0, 2.5, 2.0, 1.5, 1.0, 0.0, 0.0]);
        // Reads may be counted in a later interval than their lookup.
        let late = Rates::between(&of(&[]), &of(&[(Counter::ColdLate, 7), (Counter::ColdHits, 1)]), 1.0);
        let late = late.expect("one region");
        assert_eq!((late.share(TIERS[1].blocks), late.part_per_second(MISSES[0].blocks)), (None, 0.0));
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
