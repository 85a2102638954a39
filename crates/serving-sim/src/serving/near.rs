//! An engine's own prefix cache: vLLM keeps blocks of prompts in its memory until others need the room.
//!
//! A block is in memory once, however many running requests read it. The cache therefore has all of the
//! memory but the tokens that running requests have not published: their answers, and prompts that are
//! being computed. A hit takes no time, since the block already lies where it is read.

use super::Setup;
use crate::cache::BlockCache;
use crate::workload::{BlockNumber, Workload};
use cenote_policy::Scheduler;

pub(super) struct NearCache {
    cache: BlockCache,
    /// Blocks of the workload that running requests published.
    published: u64,
    /// Engine's blocks of a block of the workload.
    engine_blocks: u64,
}

impl NearCache {
    pub(super) fn new(setup: &Setup, workload: &Workload) -> Self {
        let engine_blocks = u64::from(workload.block_tokens().div_ceil(setup.l1_block_tokens)).max(1);
        let capacity = u64::from(setup.l1_blocks) / engine_blocks;
        let cache = BlockCache::new(setup.eviction, Some(capacity as usize), workload.num_blocks());
        Self { cache, published: 0, engine_blocks }
    }

    pub(super) fn contains(&self, block: BlockNumber) -> bool {
        self.cache.contains(block)
    }

    /// Evicts what the running requests' blocks leave no room for.
    pub(super) fn fit(&mut self, scheduler: &Scheduler, instant: u64) {
        let all = u64::from(scheduler.num_blocks());
        let used = all - u64::from(scheduler.num_free_blocks());
        let others = used.saturating_sub(self.published * self.engine_blocks);
        self.cache.resize(((all - others) / self.engine_blocks) as usize, instant);
    }

    /// A request read these blocks.
    pub(super) fn touch(&mut self, blocks: &[BlockNumber], instant: u64) {
        for (depth, &block) in (0..).zip(blocks) {
            if self.cache.contains(block) {
                self.cache.touch(block, depth, instant);
            }
        }
    }

    /// A running request has these blocks.
    pub(super) fn publish(&mut self, blocks: &[BlockNumber], instant: u64) {
        self.published += blocks.len() as u64;
        for (depth, &block) in (0..).zip(blocks) {
            self.cache.touch(block, depth, instant);
        }
    }

    /// A request that published these blocks gives its memory back.
    pub(super) fn finished(&mut self, blocks: &[BlockNumber]) {
        self.published -= blocks.len() as u64;
    }
}
