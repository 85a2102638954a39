//! Accounting of an engine's own KV blocks (L1): the free list and the requests' block tables.

/// Index of a block in the engine's KV arena.
pub type BlockId = u32;

/// A free list over `num_blocks` blocks. Freed blocks are reused last in, first out, because their
/// lines are most likely in a cache.
#[derive(Clone, Debug)]
pub struct KvBlocks {
    free: Vec<BlockId>,
    num_blocks: u32,
}

impl KvBlocks {
    /// A list with all blocks free.
    #[must_use]
    pub fn new(num_blocks: u32) -> Self {
        Self { free: (0..num_blocks).rev().collect(), num_blocks }
    }

    /// Number of all blocks.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.num_blocks
    }

    /// Number of free blocks.
    #[must_use]
    pub fn free(&self) -> u32 {
        u32::try_from(self.free.len()).expect("never more free blocks than blocks")
    }

    /// Moves `count` blocks to the end of `table`. Returns `false` and changes nothing if too few
    /// are free.
    pub fn allocate(&mut self, count: u32, table: &mut Vec<BlockId>) -> bool {
        let count = count as usize;
        if self.free.len() < count {
            return false;
        }
        table.extend(self.free.drain(self.free.len() - count..).rev());
        true
    }

    /// Frees every block of `table`. Panics if a block was freed twice.
    pub fn release(&mut self, table: &mut Vec<BlockId>) {
        self.free.extend(table.drain(..).rev());
        assert!(self.free.len() <= self.num_blocks as usize, "a block was freed twice");
    }
}
