//! Swapping: blocks that wait outside L1 until there is room again.

use super::requests::{Place, Slot};
use super::{Scheduler, SchedulerOutput};
use crate::kv_blocks::BlockId;
use cenote_base::RequestId;

/// Swap space, and the cost of moving a block against the cost of recomputing its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapConfig {
    /// Blocks that the swap space holds; 0 disables swapping.
    pub num_blocks: u32,
    /// Nanoseconds to move one block one way.
    pub block_ns: u64,
    /// Nanoseconds to recompute one token.
    pub recompute_token_ns: u64,
}

impl SwapConfig {
    /// No swap space: a request that makes room restarts.
    pub const OFF: Self = Self { num_blocks: 0, block_ns: 0, recompute_token_ns: 0 };
}

/// Reason for which a request was preempted instead of swapped out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSwap {
    /// It has no computed tokens.
    Empty,
    /// The swap space has too few free blocks.
    Full,
    /// Recomputing its tokens takes less time than moving its blocks there and back.
    Quicker,
    /// Some of its blocks are spilled.
    Spilled,
}

/// A request that gave up its blocks and restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preemption {
    /// The request.
    pub id: RequestId,
    /// Number of its blocks that held KV.
    pub blocks: u32,
    /// Reason for which it was not swapped out.
    pub why: NoSwap,
}

/// Blocks of one request that move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapTransfer {
    /// The request.
    pub id: RequestId,
    /// L1 blocks, in token order.
    pub blocks: Vec<BlockId>,
    /// Blocks of the swap space, one for each L1 block.
    pub swap_blocks: Vec<BlockId>,
}

impl Scheduler {
    /// Checks that the computed tokens of `slot` fit the swap space, and that moving there and back
    /// takes no longer than recomputing. It ignores blocks that the shared region may still hold,
    /// which are unknown before a lookup.
    pub(super) fn is_worth_swapping(&self, slot: Slot) -> Result<(), NoSwap> {
        let swap = &self.config.swap;
        let tokens = self.requests[slot].num_computed_tokens;
        let blocks = self.blocks_for(tokens);
        let carrying = 2 * u128::from(blocks) * u128::from(swap.block_ns);
        match blocks {
            0 => Err(NoSwap::Empty),
            _ if self.requests[slot].num_spilled > 0 => Err(NoSwap::Spilled),
            _ if blocks > self.swap.free() => Err(NoSwap::Full),
            _ if carrying > u128::from(tokens) * u128::from(swap.recompute_token_ns) => Err(NoSwap::Quicker),
            _ => Ok(()),
        }
    }

    /// Reports that a swapped request's blocks are not in the swap space, because they did not fit
    /// or are lost. The request waits, before requests of equal priority, and restarts.
    ///
    /// # Panics
    /// The request is unknown or not swapped out.
    pub fn lose_swapped(&mut self, id: RequestId) {
        let slot = self.requests.slot(id);
        let state = &mut self.requests[slot];
        assert!(state.place == Place::Swapped, "request {id} is not swapped out");
        self.swap.release(&mut state.block_table);
        self.swapped.retain(|&other| other != slot);
        self.start_again(slot);
    }

    /// Moves a request that has left the running queue to the swapped queue.
    pub(super) fn swap_out(&mut self, slot: Slot, output: &mut SchedulerOutput) {
        let count = self.blocks_for(self.requests[slot].num_computed_tokens);
        let state = &mut self.requests[slot];
        let mut swap_blocks = Vec::new();
        assert!(self.swap.allocate(count, &mut swap_blocks), "`is_worth_swapping` checked the room");
        // Blocks beyond the computed tokens were reserved for later tokens and hold no KV.
        let blocks = state.block_table[..count as usize].to_vec();
        self.blocks.release(&mut state.block_table);
        state.block_table.clone_from(&swap_blocks);
        state.place = Place::Swapped;
        let (id, priority) = (state.id, state.priority);
        output.swapped_out.push(SwapTransfer { id, blocks, swap_blocks });
        let behind = self.swapped.partition_point(|&other| self.requests[other].priority <= priority);
        self.swapped.insert(behind, slot);
    }

    /// Swaps requests back in, in queue order, while blocks are free for their KV and their next
    /// tokens.
    pub(super) fn swap_in(&mut self, budget: &mut u32, output: &mut SchedulerOutput) {
        while *budget > 0 && self.running.len() < self.config.max_num_seqs {
            if !self.running.is_empty() && self.spills_too_much() {
                break;
            }
            let Some(&slot) = self.swapped.front() else { break };
            let num_new_tokens = self.chunk(slot, *budget);
            let Some(reserve) = self.reserve(slot, num_new_tokens) else { break };
            let state = &self.requests[slot];
            let count = self.blocks_for(state.num_computed_tokens + num_new_tokens);
            let mut blocks = Vec::new();
            if self.blocks.free() < count.saturating_add(reserve) || !self.blocks.allocate(count, &mut blocks) {
                break;
            }
            self.swapped.pop_front();
            let state = &mut self.requests[slot];
            let mut swap_blocks = std::mem::replace(&mut state.block_table, blocks);
            output.swapped_in.push(SwapTransfer {
                id: state.id,
                blocks: state.block_table[..swap_blocks.len()].to_vec(),
                swap_blocks: swap_blocks.clone(),
            });
            self.swap.release(&mut swap_blocks);
            self.enter_running(slot);
            if num_new_tokens > 0 {
                output.scheduled.push(self.scheduled(slot, num_new_tokens, 0));
                *budget -= num_new_tokens;
            }
        }
    }
}
