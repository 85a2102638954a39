//! Blocks that wait elsewhere until there is room again.

use super::requests::{Place, Slot};
use super::{Scheduler, SchedulerOutput};
use crate::kv_blocks::BlockId;
use cenote_base::RequestId;

/// Swap space, and what a block costs there against what its tokens cost here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapConfig {
    /// Blocks that can be out at once; 0: nobody is ever swapped.
    pub num_blocks: u32,
    /// Time to carry one block one way.
    pub block_ns: u64,
    /// Time to compute one token anew.
    pub recompute_token_ns: u64,
}

impl SwapConfig {
    /// No swap space: whoever makes room starts again.
    pub const OFF: Self = Self { num_blocks: 0, block_ns: 0, recompute_token_ns: 0 };
}

/// Why a request that made room was not swapped out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSwap {
    /// It had computed nothing yet.
    Empty,
    /// The swap space has fewer free blocks than it needs.
    Full,
    /// Its tokens are computed again in less time than its blocks go there and back.
    Quicker,
}

/// A request that gave its blocks up and starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preemption {
    /// Which.
    pub id: RequestId,
    /// Blocks with KV that it had.
    pub blocks: u32,
    /// Why it was not swapped out.
    pub why: NoSwap,
}

/// Blocks of one request that change places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapTransfer {
    /// Whose.
    pub id: RequestId,
    /// L1 blocks, in token order.
    pub blocks: Vec<BlockId>,
    /// Blocks of the swap space, one for each.
    pub swap_blocks: Vec<BlockId>,
}

impl Scheduler {
    /// Whether there is swap space for what `slot` has computed, and the way there and back takes no more time than computing it
    /// again. What the shared region may still hold of it is not counted: nobody knows before it is looked up.
    pub(super) fn is_worth_swapping(&self, slot: Slot) -> Result<(), NoSwap> {
        let swap = &self.config.swap;
        let tokens = self.requests[slot].num_computed_tokens;
        let blocks = self.blocks_for(tokens);
        let carrying = 2 * u128::from(blocks) * u128::from(swap.block_ns);
        match blocks {
            0 => Err(NoSwap::Empty),
            _ if blocks > self.swap.free() => Err(NoSwap::Full),
            _ if carrying > u128::from(tokens) * u128::from(swap.recompute_token_ns) => Err(NoSwap::Quicker),
            _ => Ok(()),
        }
    }

    /// Tells that the blocks of a swapped request are not in the swap space: they found no room there, or are gone. It waits, before
    /// its equals, and starts again.
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

    /// Moves a request that has left the running queue to the swapped one.
    pub(super) fn swap_out(&mut self, slot: Slot, output: &mut SchedulerOutput) {
        let count = self.blocks_for(self.requests[slot].num_computed_tokens);
        let state = &mut self.requests[slot];
        let mut swap_blocks = Vec::new();
        assert!(self.swap.allocate(count, &mut swap_blocks), "asked for before");
        // Blocks beyond the computed tokens were there for tokens to come, and hold nothing.
        let blocks = state.block_table[..count as usize].to_vec();
        self.blocks.release(&mut state.block_table);
        state.block_table.clone_from(&swap_blocks);
        state.place = Place::Swapped;
        let (id, priority) = (state.id, state.priority);
        output.swapped_out.push(SwapTransfer { id, blocks, swap_blocks });
        let behind = self.swapped.partition_point(|&other| self.requests[other].priority <= priority);
        self.swapped.insert(behind, slot);
    }

    /// Takes back who was swapped out, the first one out first, while there is room for what it has and for its next tokens.
    pub(super) fn swap_in(&mut self, budget: &mut u32, output: &mut SchedulerOutput) {
        while *budget > 0 && self.running.len() < self.config.max_num_seqs {
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
