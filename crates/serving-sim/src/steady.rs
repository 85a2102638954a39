//! Rates in steady state.
//!
//! A rate over the makespan falls with the length of the longest answer, which ends alone. The middle of a
//! run has neither that drain nor the first arrivals.

use crate::kernel::Time;

/// Ends of requests in their order, each with a count that has grown until then.
#[derive(Clone, Debug, Default)]
pub struct Ends(Vec<(Time, u64)>);

impl Ends {
    /// A request ends.
    pub fn push(&mut self, now: Time, count: u64) {
        self.0.push((now, count));
    }

    /// Growth of the count per second while the middle 60 % of the requests end. `None` if that takes no
    /// time.
    #[must_use]
    pub fn per_s(&self) -> Option<f64> {
        let last = self.0.len().checked_sub(1)?;
        let [(begin, from), (end, to)] = [self.0[last / 5], self.0[last * 4 / 5]];
        (end > begin).then(|| (to - from) as f64 * 1e9 / (end - begin) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_drain_does_not_count() {
        let mut ends = Ends::default();
        assert_eq!(ends.per_s(), None);
        (1..=10).for_each(|at| ends.push(at * 500_000_000, 3 * at));
        assert_eq!(ends.per_s(), Some(6.0));
        ends.push(1_000_000_000_000, 33);
        assert_eq!(ends.per_s(), Some(6.0));
        let mut at_once = Ends::default();
        (1..=10).for_each(|count| at_once.push(7, count));
        assert_eq!(at_once.per_s(), None);
    }
}
