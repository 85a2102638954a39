//! The event kernel: a queue of events in integer nanoseconds.
//!
//! Events at one instant run in the order in which they were scheduled. So a run has the same order
//! on every machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds since the simulation began.
pub type Time = u64;

/// The queue of future events.
#[derive(Debug)]
pub struct Calendar<E> {
    now: Time,
    sequence: u64,
    events: BinaryHeap<Reverse<Entry<E>>>,
}

#[derive(Debug)]
struct Entry<E> {
    at: Time,
    sequence: u64,
    event: E,
}

impl<E> Entry<E> {
    const fn key(&self) -> (Time, u64) {
        (self.at, self.sequence)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl<E> Default for Calendar<E> {
    fn default() -> Self {
        Self { now: 0, sequence: 0, events: BinaryHeap::new() }
    }
}

impl<E> Calendar<E> {
    /// The time of the last event taken.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Schedules an event.
    ///
    /// # Panics
    /// Panics if `at` is in the past.
    pub fn schedule(&mut self, at: Time, event: E) {
        assert!(at >= self.now, "an event at {at} ns was scheduled at {} ns", self.now);
        self.sequence += 1;
        self.events.push(Reverse(Entry { at, sequence: self.sequence, event }));
    }

    /// Takes the next event and advances the clock to its time.
    pub fn next_event(&mut self) -> Option<E> {
        let Reverse(entry) = self.events.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::prng::Prng;

    #[test]
    fn events_run_by_time_and_then_in_scheduling_order() {
        let mut calendar = Calendar::default();
        for (at, name) in [(5, 'a'), (3, 'b'), (5, 'c'), (3, 'd')] {
            calendar.schedule(at, name);
        }
        let order: String = std::iter::from_fn(|| calendar.next_event()).collect();
        assert_eq!((order.as_str(), calendar.now()), ("bdac", 5));
    }

    #[test]
    fn time_never_decreases() {
        let (mut calendar, mut prng) = (Calendar::default(), Prng::new(1));
        (0..100).for_each(|_| calendar.schedule(prng.below(50), ()));
        let mut before = 0;
        for _ in 0..10_000 {
            calendar.next_event().expect("each iteration adds one event");
            assert!(calendar.now() >= before);
            before = calendar.now();
            calendar.schedule(before + prng.below(50), ());
        }
    }
}
