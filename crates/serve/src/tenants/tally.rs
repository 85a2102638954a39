//! Counts of one tenant, and its place among running requests.

use cenote_base::engine::Usage;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that many threads change.
#[derive(Default)]
pub(crate) struct Number(AtomicU64);

impl Number {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    fn subtract(&self, by: u64) {
        self.0.fetch_sub(by, Ordering::Relaxed);
    }

    /// Adds one, unless that exceeds `most`.
    fn grow(&self, most: u64) -> bool {
        let more = |now: u64| (now < most).then_some(now + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

/// Counts of a tenant, or of requests without one.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) requests: Number,
    pub(crate) refused: Number,
    pub(crate) running: Number,
    pub(crate) waiting: Number,
    pub(crate) prompt_tokens: Number,
    pub(crate) cached_tokens: Number,
    pub(crate) generated_tokens: Number,
}

impl Tally {
    /// Counts a request that ended well.
    pub(crate) fn finished(&self, usage: Usage) {
        self.prompt_tokens.add(usage.prompt_tokens.into());
        self.cached_tokens.add(usage.cached_tokens.into());
        self.generated_tokens.add(usage.completion_tokens.into());
    }
}

/// A running request's place among its tenant's. Dropping it frees the place.
pub(crate) struct Place(Arc<Tally>);

impl Place {
    /// A place, if fewer than `most` are taken.
    pub(crate) fn take(tally: &Arc<Tally>, most: Option<usize>) -> Option<Self> {
        let most = most.map_or(u64::MAX, |most| most as u64);
        tally.running.grow(most).then(|| Self(Arc::clone(tally)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.running.subtract(1);
    }
}

/// A request that waits for its first token, until this is dropped.
pub(crate) struct Waiting(Arc<Tally>);

impl Waiting {
    pub(crate) fn begin(tally: &Arc<Tally>) -> Self {
        tally.waiting.add(1);
        Self(Arc::clone(tally))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.subtract(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_limited_and_come_back() {
        let tally = Arc::<Tally>::default();
        let one = Place::take(&tally, Some(1)).expect("there is room");
        assert!(Place::take(&tally, Some(1)).is_none());
        let two = Place::take(&tally, None).expect("without a limit");
        drop((one, two));
        assert!(Place::take(&tally, Some(1)).is_some());
        assert_eq!(tally.running.get(), 0);
    }
}
