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

    /// Adds so many, unless that exceeds `most`.
    fn grow(&self, by: u64, most: u64) -> bool {
        let more = |now: u64| now.checked_add(by).filter(|&then| then <= most);
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

/// Places of running requests among their tenant's. Dropping it frees them.
pub(crate) struct Places {
    tally: Arc<Tally>,
    count: u64,
}

impl Places {
    /// So many places, if no more than `most` are taken then.
    pub(crate) fn take(tally: &Arc<Tally>, count: usize, most: Option<usize>) -> Option<Self> {
        let (count, most) = (count as u64, most.map_or(u64::MAX, |most| most as u64));
        tally.running.grow(count, most).then(|| Self { tally: Arc::clone(tally), count })
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        self.tally.running.subtract(self.count);
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
        let two = Places::take(&tally, 2, Some(3)).expect("there is room");
        assert!(Places::take(&tally, 2, Some(3)).is_none());
        let more = Places::take(&tally, 5, None).expect("without a limit");
        drop((two, more));
        assert!(Places::take(&tally, 3, Some(3)).is_some());
        assert_eq!(tally.running.get(), 0);
    }
}
