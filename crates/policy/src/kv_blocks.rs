//! Accounting of an engine's own KV blocks (L1): which are free, which request holds which.

/// Index of a block in the engine's KV arena.
pub type BlockId = u32;

/// A free list over `num_blocks` blocks. Freed blocks are handed out again last in, first out, because
/// their lines are the likeliest to be in a cache.
#[derive(Clone, Debug)]
pub struct KvBlocks {
    free: Vec<BlockId>,
    num_blocks: u32,
}

impl KvBlocks {
    /// All blocks free.
    #[must_use]
    pub fn new(num_blocks: u32) -> Self {
        Self { free: (0..num_blocks).rev().collect(), num_blocks }
    }

    /// Blocks in all.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.num_blocks
    }

    /// Blocks that nobody holds.
    #[must_use]
    pub fn free(&self) -> u32 {
        u32::try_from(self.free.len()).expect("never more free blocks than blocks")
    }

    /// Appends `count` blocks to `table`, or changes nothing and returns `false`.
    pub fn allocate(&mut self, count: u32, table: &mut Vec<BlockId>) -> bool {
        let count = count as usize;
        if self.free.len() < count {
            return false;
        }
        table.extend(self.free.drain(self.free.len() - count..).rev());
        true
    }

    /// Takes every block of `table` back.
    pub fn release(&mut self, table: &mut Vec<BlockId>) {
        self.free.extend(table.drain(..).rev());
        assert!(self.free.len() <= self.num_blocks as usize, "a block was freed twice");
    }
}
