//! What a planner takes and returns.

use super::depth::DepthConfig;
use super::throttle::ThrottleConfig;
use crate::transfer::Class;
use cenote_base::RequestId;

/// Number of kinds of sources.
pub const SOURCES: usize = 4;

/// Why a page is worth fetching, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The schedule reads it in this many steps.
    NextStep(u32),
    /// It belongs to the prefix of the waiting request at this position of the queue.
    Waiting(u32),
    /// A caller announced that the conversation continues.
    Hint,
    /// A predictor ranks it at this position; 0 is the most probable.
    Speculative(u32),
}

impl Source {
    /// Index into arrays of [`SOURCES`] numbers.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::NextStep(_) => 0,
            Self::Waiting(_) => 1,
            Self::Hint => 2,
            Self::Speculative(_) => 3,
        }
    }

    /// Whether the address is a prediction.
    #[must_use]
    pub const fn is_speculative(self) -> bool {
        matches!(self, Self::Speculative(_))
    }

    /// The mover's class for it.
    #[must_use]
    pub const fn class(self) -> Class {
        if self.is_speculative() { Class::Speculative } else { Class::Exact }
    }
}

/// A page worth fetching.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer<K> {
    /// The page, or the block.
    pub key: K,
    /// The request that will read it.
    pub request: RequestId,
    /// Why.
    pub source: Source,
    /// Its bytes in the buffer.
    pub bytes: u64,
    /// Its generation in the lower tier.
    pub generation: u64,
    /// Instant of its use, in nanoseconds, after which the copy has no use.
    pub needed_at_ns: Option<u64>,
}

/// Result of [`super::Planner::offer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// It waits for its fetch.
    Queued,
    /// It is on its way, or in the buffer.
    Present,
    /// It was invalid in the buffer and is valid again, without a copy.
    Revived,
    /// A copy of it that is cancelled or stale has not ended. Offer it again later.
    Busy,
}

/// Limits of a planner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannerConfig {
    /// Bytes of the buffer of prefetched pages.
    pub buffer_bytes: u64,
    /// Budget: most bytes of speculative copies that are on their way, or in the buffer and neither
    /// used nor invalid, at *β* = 1. Revived pages are free: they cost no copy.
    pub speculative_bytes_max: u64,
    /// Eq. 7.
    pub throttle: ThrottleConfig,
    /// Eq. 9.
    pub depth: DepthConfig,
}

impl PlannerConfig {
    /// A buffer of which speculation may fill half.
    #[must_use]
    pub fn with_buffer(buffer_bytes: u64) -> Self {
        let (throttle, depth) = (ThrottleConfig::default(), DepthConfig::default());
        Self { buffer_bytes, speculative_bytes_max: buffer_bytes / 2, throttle, depth }
    }
}

/// What the caller must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefetchAction<K> {
    /// Submit a copy of the page.
    Fetch {
        /// The page.
        key: K,
        /// Class for the mover.
        class: Class,
        /// Bytes to copy into the buffer.
        bytes: u64,
        /// Generation that the copy must have.
        generation: u64,
        /// Deadline for the mover.
        deadline_ns: Option<u64>,
    },
    /// Raise the class of a copy under way.
    Promote(K, Class),
    /// Withdraw a copy under way. Report [`PrefetchEvent::Failed`] if it never started, or
    /// [`PrefetchEvent::Arrived`] when it ends: then it can revive.
    Cancel(K),
    /// Forget the page: its bytes are used again.
    Discard(K),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefetchEvent<K> {
    /// A copy arrived with this generation.
    Arrived(K, u64),
    /// A copy failed, expired or was cancelled: nothing is in the buffer.
    Failed(K),
    /// A computation read the page. If it is not in the buffer, this is a miss.
    Used(K),
    /// The step for which a predictor expected the page did not read it. Pages from exact sources
    /// stay.
    Mispredicted(K),
    /// A writer published the page in this generation.
    Written(K, u64),
    /// The request ended: its pages are not needed.
    Ended(RequestId),
}

/// Numbers of pages since the start. Arrays are indexed by [`Source::index`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefetchCounts {
    /// Fetches.
    pub fetched: [u64; SOURCES],
    /// Bytes of the fetches.
    pub bytes: [u64; SOURCES],
    /// Reads of valid pages from the buffer, one for each offer.
    pub hits: [u64; SOURCES],
    /// Pages that were read while their copy was under way.
    pub late: [u64; SOURCES],
    /// Fetched pages that left the buffer and were never read.
    pub wasted: [u64; SOURCES],
    /// Invalid pages that became valid again without a copy.
    pub revived: u64,
    /// Pages that were discarded because their generation changed.
    pub stale: u64,
    /// Reads of pages that the planner did not fetch.
    pub misses: u64,
    /// Offers that were dropped at their deadline.
    pub expired: u64,
    /// Copies that failed.
    pub failed: u64,
}
