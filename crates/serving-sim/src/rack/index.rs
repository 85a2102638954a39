//! A region's index in the simulator: the slot of each block.

use super::NONE;
use crate::workload::BlockNumber;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Slots by block. One rack is likely to see most blocks of its load, so it has a word for each. One of
/// many sees few, and keeps those that are there.
pub(super) enum Index {
    Dense(Vec<u32>),
    Sparse(HashMap<BlockNumber, u32, BuildHasherDefault<Mixed>>),
}

impl Index {
    /// An empty index of one of `racks` racks. Blocks are numbered below `num_blocks`.
    pub fn new(num_blocks: usize, racks: usize) -> Self {
        if racks > 1 { Self::Sparse(HashMap::default()) } else { Self::Dense(vec![NONE; num_blocks]) }
    }

    /// The slot of a block, or [`NONE`].
    pub fn get(&self, block: BlockNumber) -> u32 {
        match self {
            Self::Dense(slots) => slots[block as usize],
            Self::Sparse(slots) => slots.get(&block).copied().unwrap_or(NONE),
        }
    }

    /// Sets the slot of a block, or [`NONE`].
    pub fn set(&mut self, block: BlockNumber, slot: u32) {
        match self {
            Self::Dense(slots) => slots[block as usize] = slot,
            Self::Sparse(slots) if slot == NONE => drop(slots.remove(&block)),
            Self::Sparse(slots) => drop(slots.insert(block, slot)),
        }
    }
}

/// A hash of a block's number: a product with 2^64 over the golden ratio, whose upper bits are spread.
#[derive(Default)]
pub(super) struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::prng::Prng;

    #[test]
    fn both_kinds_answer_alike() {
        let (mut one, mut many, mut prng) = (Index::new(50, 1), Index::new(50, 2), Prng::new(1));
        for _ in 0..2_000 {
            let (block, slot) = (prng.below(50) as BlockNumber, prng.below(9) as u32);
            let slot = if slot == 0 { NONE } else { slot };
            one.set(block, slot);
            many.set(block, slot);
            assert!((0..50).all(|block| one.get(block) == many.get(block)));
        }
    }
}
