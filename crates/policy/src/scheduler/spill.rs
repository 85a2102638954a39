//! Spilling: blocks of running requests that lie outside L1. A step streams them through a staging
//! area beside L1, layer by layer (CXL-SpecKV §3.2), so the requests keep running.
//!
//! Dense attention reads every block in every step. So each spilled block costs the same, whatever
//! its place, and none is worth exchanging for another. A request's spilled blocks are the first of
//! its table. The request with the most full blocks in L1 gives the next one, and the one with the
//! most spilled blocks gets the first block that becomes free.

use super::requests::Slot;
use super::{Scheduler, SchedulerOutput, SpillUse, StreamedStep};
use crate::kv_blocks::BlockId;
use cenote_base::RequestId;
use std::cmp::Reverse;

/// A block that moves between L1 and the spill space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillTransfer {
    /// The request.
    pub id: RequestId,
    /// Index of the block in the request's table. All its tokens are computed.
    pub index: u32,
    /// Its L1 block.
    pub block: BlockId,
    /// Its block in the spill space, from [`super::SchedulerConfig::num_blocks`] on.
    pub spilled: BlockId,
}

impl Scheduler {
    /// Blocks of the spill space that no request owns any more, since the last call. The driver
    /// drops them before it copies others there.
    pub fn take_freed_spill(&mut self) -> Vec<BlockId> {
        std::mem::take(&mut self.freed_spill)
    }

    /// Number of spilled blocks of a request, the first of its table.
    ///
    /// # Panics
    /// The request is unknown.
    #[must_use]
    pub fn num_spilled_blocks(&self, id: RequestId) -> usize {
        self.requests[self.requests.slot(id)].num_spilled as usize
    }

    /// Reports that a spilled block of `id` found no place: only `num_computed_tokens` tokens have KV.
    /// Nothing is spilled until spilled blocks are freed.
    ///
    /// # Panics
    /// The request is unknown or has fewer computed tokens.
    pub fn lose_spilled(&mut self, id: RequestId, num_computed_tokens: u32) {
        self.rollback(id, num_computed_tokens);
        self.is_spill_full = true;
    }

    /// Reports what a step took, so that admission uses as much of the spill space as steps hide.
    pub fn streamed(&mut self, step: StreamedStep) {
        self.spill_bound.observe(step);
    }

    /// Free blocks of the spill space that admission may use.
    pub(super) fn admissible_spill(&self) -> u32 {
        if self.config.spill_use == SpillUse::All {
            return self.spill.free();
        }
        let used = self.spill.total() - self.spill.free();
        self.spill.free().min(self.spill_bound.blocks().saturating_sub(used))
    }

    /// Whether more is spilled than steps hide, so that no request may be admitted.
    pub(super) fn spills_too_much(&self) -> bool {
        let used = self.spill.total() - self.spill.free();
        self.config.spill_use == SpillUse::Hidden && used > self.spill_bound.blocks()
    }

    /// Whether running requests may spill `count` blocks more: within what steps hide, or as long as steps
    /// have waited no longer than it takes to compute the request again that would make room.
    pub(super) fn may_grow(&self, count: u32) -> bool {
        let used = self.spill.total() - self.spill.free();
        let again_ns = self.running.last().map_or(0, |&slot| {
            u64::from(self.requests[slot].num_computed_tokens).saturating_mul(self.config.swap.recompute_token_ns)
        });
        self.config.spill_use != SpillUse::Hidden
            || self.running.len() == 1
            || used + count <= self.spill_bound.blocks()
            || self.spill_bound.waited_ns() <= again_ns
    }

    /// Full blocks of `slot` in L1 that have content.
    fn num_spillable(&self, slot: Slot) -> u32 {
        let state = &self.requests[slot];
        if state.is_fresh { 0 } else { state.num_computed_tokens / self.config.block_size - state.num_spilled }
    }

    /// Frees `count` L1 blocks by spilling, or none.
    pub(super) fn spill(&mut self, count: u32, output: &mut SchedulerOutput) -> bool {
        let spillable: u64 = self.running.iter().map(|&slot| u64::from(self.num_spillable(slot))).sum();
        if self.is_spill_full || count > self.spill.free() || u64::from(count) > spillable {
            return false;
        }
        for _ in 0..count {
            let most = self.running.iter().copied().max_by_key(|&slot| self.num_spillable(slot));
            let slot = most.expect("some request has such a block");
            let spilled = self.next_spill_block();
            let state = &mut self.requests[slot];
            let index = state.num_spilled;
            let block = std::mem::replace(&mut state.block_table[index as usize], spilled);
            state.num_spilled += 1;
            output.spilled.push(SpillTransfer { id: state.id, index, block, spilled });
            self.blocks.release(&mut vec![block]);
        }
        true
    }

    /// Names blocks of the spill space as the first `count` of a waiting request. Returns `false` if
    /// too few are free.
    pub(super) fn spill_matched(&mut self, slot: Slot, count: u32) -> bool {
        if count > self.spill.free() {
            return false;
        }
        for _ in 0..count {
            let spilled = self.next_spill_block();
            self.requests[slot].block_table.push(spilled);
        }
        self.requests[slot].num_spilled = count;
        true
    }

    fn next_spill_block(&mut self) -> BlockId {
        let mut block = Vec::with_capacity(1);
        assert!(self.spill.allocate(1, &mut block), "the caller checked the room");
        self.config.num_blocks + block[0]
    }

    /// Returns spilled blocks of scheduled requests to L1 as long as every running request can
    /// still take a block, and the next waiting one those of a step.
    pub(super) fn promote(&mut self, output: &mut SchedulerOutput) {
        if self.spill.free() == self.spill.total() || !output.spilled.is_empty() {
            return;
        }
        let next = if self.waiting.is_empty() { 0 } else { self.blocks_for(self.config.max_num_batched_tokens) };
        let kept = u32::try_from(self.running.len()).unwrap_or(u32::MAX).saturating_add(next);
        let mut slots: Vec<Slot> = output.scheduled.iter().map(|part| self.requests.slot(part.id)).collect();
        // Blocks that were matched in this step are not there yet.
        slots.retain(|&slot| !self.requests[slot].is_fresh);
        while self.blocks.free() > kept {
            slots.sort_by_key(|&slot| Reverse(self.requests[slot].num_spilled));
            let Some(&slot) = slots.first().filter(|&&slot| self.requests[slot].num_spilled > 0) else { return };
            let mut block = Vec::with_capacity(1);
            assert!(self.blocks.allocate(1, &mut block), "more than `kept` are free");
            let state = &mut self.requests[slot];
            state.num_spilled -= 1;
            let index = state.num_spilled;
            let spilled = std::mem::replace(&mut state.block_table[index as usize], block[0]);
            output.promoted.push(SpillTransfer { id: state.id, index, block: block[0], spilled });
            self.spill.release(&mut vec![spilled - self.config.num_blocks]);
        }
    }

    /// Frees the spilled blocks of `slot` that hold tokens from `num_computed_tokens` on, and all
    /// blocks behind them: KV is written to L1 only.
    pub(super) fn unspill_from(&mut self, slot: Slot, num_computed_tokens: u32) {
        let state = &mut self.requests[slot];
        let whole = num_computed_tokens / self.config.block_size;
        if whole < state.num_spilled {
            state.num_spilled = whole;
            let mut rest = state.block_table.split_off(whole as usize);
            self.free(&mut rest);
        }
    }

    /// Frees blocks of L1 and of the spill space.
    pub(super) fn free(&mut self, table: &mut Vec<BlockId>) {
        let num_blocks = self.config.num_blocks;
        let mut spilled: Vec<BlockId> = table.extract_if(.., |block| *block >= num_blocks).collect();
        self.freed_spill.extend(&spilled);
        self.is_spill_full &= spilled.is_empty();
        spilled.iter_mut().for_each(|block| *block -= num_blocks);
        self.spill.release(&mut spilled);
        self.blocks.release(table);
    }
}

#[cfg(test)]
mod tests;
