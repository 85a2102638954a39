//! Where the index keeps a hash: pure functions of the hash and the layout, for every reader of the
//! index, in this region or of copies of its lines.

use crate::region::layout::{Layout, SHARDS};
use crate::region::lines::{Entry, tag_of};
use cenote_base::{BlockHash, BlockIndex};

/// Most buckets of a probe.
pub const PROBES_MAX: u64 = 64;

/// The buckets of a hash, in its shard.
#[derive(Clone, Copy)]
pub(crate) struct Probe {
    pub shard: u64,
    pub home: u64,
    pub buckets: u64,
}

impl Probe {
    #[inline]
    pub fn of(hash: BlockHash, layout: &Layout) -> Self {
        let low = hash.words()[0];
        let buckets = layout.buckets_per_shard();
        Self { shard: low % SHARDS, home: (low / SHARDS) & (buckets - 1), buckets }
    }

    /// The `step`-th bucket. It wraps within the shard, so that one lock covers the probe.
    #[inline]
    pub fn bucket(self, step: u64) -> u64 {
        // `buckets` is a power of two.
        self.shard * self.buckets + ((self.home + step) & (self.buckets - 1))
    }

    pub fn steps(self) -> u64 {
        self.buckets.min(PROBES_MAX)
    }
}

/// The block that an entry names, if it may have this hash.
#[inline]
pub(crate) fn named(entry: u64, hash: BlockHash, layout: &Layout) -> Option<BlockIndex> {
    let entry = Entry(entry);
    // Compare the tag first, because most entries are of other hashes.
    if entry.tag() != tag_of(hash) {
        return None;
    }
    entry.block().filter(|block| block.0 < layout.num_descriptors())
}
