//! What the cache answered, and why it did not.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why a query was answered with no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// The region is missing, unreadable, of another version, or was truncated.
    Region,
    /// A configured namespace is not in the region, or its text fits several rows.
    Namespace,
    /// The router's block size and a namespace's do not divide each other, or blocks of this size
    /// have no names.
    BlockSize,
    /// All lookups that may run at the same time were running.
    Busy,
    /// The deadline passed.
    Late,
    /// The lookup panicked.
    Panic,
}

impl Miss {
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; 6] = [Self::Region, Self::Namespace, Self::BlockSize, Self::Busy, Self::Late, Self::Panic];
}

/// Counters of a cache.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    queries: AtomicU64,
    blocks: AtomicU64,
    hits: AtomicU64,
    misses: [AtomicU64; Miss::ALL.len()],
}

/// A snapshot of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Queries.
    pub queries: u64,
    /// Blocks in the answered queries.
    pub blocks: u64,
    /// Blocks of these that may be there.
    pub hits: u64,
    misses: [u64; Miss::ALL.len()],
}

impl Counts {
    /// Queries that were answered with no block for this reason.
    #[must_use]
    pub const fn misses(&self, reason: Miss) -> u64 {
        self.misses[reason as usize]
    }
}

impl Counters {
    pub fn asked(&self) {
        self.queries.fetch_add(1, Relaxed);
    }

    pub fn answered(&self, blocks: u64, hits: u64) {
        self.blocks.fetch_add(blocks, Relaxed);
        self.hits.fetch_add(hits, Relaxed);
    }

    /// Counts a miss. Returns whether it is the first for its reason.
    pub fn missed(&self, reason: Miss) -> bool {
        self.misses[reason as usize].fetch_add(1, Relaxed) == 0
    }

    pub fn snapshot(&self) -> Counts {
        Counts {
            queries: self.queries.load(Relaxed),
            blocks: self.blocks.load(Relaxed),
            hits: self.hits.load(Relaxed),
            misses: std::array::from_fn(|at| self.misses[at].load(Relaxed)),
        }
    }
}
