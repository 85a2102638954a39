//! What L4 holds: blocks in extents. As in the product's cold tier, a block is appended once, and the
//! oldest extents leave as a whole ([`leaving_parts`]).

use crate::workload::BlockNumber;
use cenote_policy::temperature::{StoredPart, leaving_parts};
use std::collections::BTreeMap;

/// Extents of a full tier, as in the product.
const PARTS: u64 = 16;
/// Largest extent of the product.
const EXTENT_BYTES_MAX: u64 = 256 << 20;

/// The tier's list.
#[derive(Debug)]
pub(super) struct Extents {
    /// `None`: unlimited.
    limit: Option<u64>,
    extent_bytes: u64,
    /// Extent of each block.
    at: BTreeMap<BlockNumber, u64>,
    extents: BTreeMap<u64, Extent>,
}

#[derive(Debug, Default)]
struct Extent {
    bytes: u64,
    blocks: Vec<BlockNumber>,
}

impl Extents {
    /// For `limit` bytes of blocks of at most `block_bytes`.
    pub fn new(limit: Option<u64>, block_bytes: u64) -> Self {
        let extent_bytes = (limit.unwrap_or(u64::MAX) / PARTS).min(EXTENT_BYTES_MAX).max(block_bytes);
        Self { limit, extent_bytes, at: BTreeMap::new(), extents: BTreeMap::new() }
    }

    pub fn contains(&self, block: BlockNumber) -> bool {
        self.at.contains_key(&block)
    }

    /// Appends a block, unless it is there. The oldest extents leave for a new one; if those do not
    /// suffice, the block is not kept.
    pub fn insert(&mut self, block: BlockNumber, bytes: u64) {
        if self.contains(block) {
            return;
        }
        let has_room = |(_, open): &(&u64, &Extent)| open.bytes + bytes <= self.extent_bytes;
        let open = self.extents.last_key_value().filter(has_room).map(|(name, _)| *name);
        let Some(name) = open.or_else(|| self.begin()) else { return };
        let extent = self.extents.entry(name).or_default();
        extent.bytes += bytes;
        extent.blocks.push(block);
        self.at.insert(block, name);
    }

    /// Makes room for a new extent. Returns its name.
    fn begin(&mut self) -> Option<u64> {
        if let Some(limit) = self.limit {
            let part = |(&key, extent): (&u64, &Extent)| StoredPart { key, bytes: extent.bytes, is_open: false };
            let parts = self.extents.iter().map(part).collect();
            for name in leaving_parts(parts, limit.checked_sub(self.extent_bytes)?)? {
                for block in self.extents.remove(&name).into_iter().flat_map(|extent| extent.blocks) {
                    self.at.remove(&block);
                }
            }
        }
        Some(self.extents.last_key_value().map_or(0, |(last, _)| last + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_extents_leave_as_a_whole() {
        // Sixteen extents of two blocks.
        let mut extents = Extents::new(Some(320), 10);
        (0..32).for_each(|block| extents.insert(block, 10));
        assert!((0..32).all(|block| extents.contains(block)));
        extents.insert(0, 10);
        extents.insert(32, 10);
        let held: Vec<BlockNumber> = (0..40).filter(|block| extents.contains(*block)).collect();
        assert_eq!(held, (2..33).collect::<Vec<_>>(), "block 0 was not written again, and left with block 1");
    }

    #[test]
    fn a_tier_smaller_than_a_block_keeps_nothing() {
        let mut extents = Extents::new(Some(9), 10);
        extents.insert(1, 10);
        assert!(!extents.contains(1));
        let mut unlimited = Extents::new(None, 10);
        (0..100_000).for_each(|block| unlimited.insert(block, 10));
        assert!((0..100_000).all(|block| unlimited.contains(block)));
    }
}
