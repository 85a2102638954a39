//! The continuous-batching scheduler, a pure state machine (vLLM's, in vLLM's terms; CPEN 511
//! Algorithm 1).
//!
//! There is no prefill state and no decode state. A request has `num_tokens` known tokens, and
//! `num_computed_tokens` of them have KV. A step gives each scheduled request `num_new_tokens` of
//! the step's token budget. A decode is a request that lacks one token, a prefill one that lacks
//! many. A long prompt is computed in chunks, because running requests come first and prompts get
//! the rest of the budget.
//!
//! When L1 blocks run out, the request at the tail of the running queue makes room: the least
//! urgent, and of those the one admitted last. It is *swapped out* if there is swap space and
//! moving its blocks there and back takes no longer than recomputing them ([`SwapConfig`]).
//! Otherwise it is *preempted*: it frees its blocks and restarts later, from what the shared region
//! still holds. A step in which no request made room brings swapped requests back, the first one
//! out first. Only when none is swapped does it admit waiting requests. Both keep the blocks free
//! that the [watermark](crate::watermark) demands.
//!
//! With spill space, blocks of running requests leave L1 first, and their requests keep running
//! ([`SpillTransfer`]). A request makes room only when the spill space is full, too. Admission uses
//! only as much of it as steps hide ([`StreamedStep`]).
//!
//! Difference to Algorithm 1 as printed: new requests are admitted after the running and the
//! swapped ones instead of before them (as in vLLM). Otherwise a swapped request would make room
//! for its own successor.
//!
//! One step of its driver:
//! 1. `schedule`.
//! 2. Drop what lies in `take_freed_spill`. Copy `swapped_out` and `spilled`; call `lose_swapped` or
//!    `rollback` for each failure.
//! 3. Copy `swapped_in`, `promoted` and matched blocks; call `rollback` for each failure.
//! 4. Forward.
//! 5. `computed` for each scheduled request, and `streamed` if there is spill space.
//! 6. `append_token` for each request that chose a token.
//! 7. `finish` for each request that ended.

mod bound;
mod requests;
mod spill;
mod swap;

pub use bound::{SpillUse, StreamedStep};
pub use spill::SpillTransfer;
pub use swap::{NoSwap, Preemption, SwapConfig, SwapTransfer};

use crate::kv_blocks::{BlockId, KvBlocks};
use crate::watermark::{Load, Watermark, WatermarkController};
use bound::SpillBound;
use cenote_base::RequestId;
use requests::{Place, Requests, Slot};
use std::collections::VecDeque;

/// Limits of a scheduler; all counts are of tokens, requests or L1 blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Maximum number of running requests.
    pub max_num_seqs: usize,
    /// Maximum number of tokens computed in one step, over all requests.
    pub max_num_batched_tokens: u32,
    /// Maximum number of prompt tokens of one request in one step; 0: only the budget limits.
    pub long_prefill_token_threshold: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Number of L1 blocks: at least one for each of `max_num_seqs` and those of a step's tokens, if
    /// there is spill space.
    pub num_blocks: u32,
    /// Blocks of running requests that may lie outside L1; 0: none. Their ids follow those of L1.
    pub spill_blocks: u32,
    /// Which requests may use how many of them.
    pub spill_use: SpillUse,
    /// Blocks that admission leaves free, so that running requests can grow before one must make
    /// room.
    pub watermark: Watermark,
    /// Maximum number of waiting requests.
    pub max_waiting: usize,
    /// Swap space for the blocks of requests that make room.
    pub swap: SwapConfig,
}

/// A request for the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewRequest {
    /// Id, unique within the scheduler.
    pub id: RequestId,
    /// Known tokens: the prompt, and tokens that another worker generated.
    pub num_tokens: u32,
    /// Maximum number of tokens that it can reach.
    pub max_num_tokens: u32,
    /// Deadline in nanoseconds of the driver's clock.
    pub deadline_ns: u64,
    /// 0 is the most urgent. Urgent requests are admitted first and make room last.
    pub priority: u32,
}

/// Reason for which a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddError {
    /// `max_waiting` requests are waiting already.
    QueueFull,
    /// The request does not fit even alone: it needs `needed` of `num_blocks` blocks.
    NeverFits {
        /// Blocks needed.
        needed: u32,
        /// Number of blocks in L1 and in the spill space.
        num_blocks: u32,
    },
}

/// Source of prefixes that other workers have computed.
pub trait PrefixSource {
    /// Number of tokens of `id`, from the first, with loadable KV: a multiple of the block size.
    /// Called before a request is admitted. The answer is a hint, see [`Scheduler::rollback`].
    fn num_matched_tokens(&mut self, id: RequestId) -> u32;
}

/// No shared pool.
impl PrefixSource for () {
    fn num_matched_tokens(&mut self, _: RequestId) -> u32 {
        0
    }
}

/// One request's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledRequest {
    /// The request.
    pub id: RequestId,
    /// Position of the first token to compute.
    pub num_computed_tokens: u32,
    /// Tokens to compute.
    pub num_new_tokens: u32,
    /// Tokens of which the KV must be loaded into the first blocks of the request's table before
    /// computing. Nonzero only in the step that admits the request.
    pub num_loaded_tokens: u32,
    /// Whether the last of the new tokens is the request's last known one, so that its logits
    /// choose the next token.
    pub samples: bool,
}

/// The decisions of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulerOutput {
    /// Work of the step, running requests first.
    pub scheduled: Vec<ScheduledRequest>,
    /// Requests that lost their blocks in this step.
    pub preempted: Vec<Preemption>,
    /// Blocks to copy out before the first write to L1: other requests own them from here on.
    pub swapped_out: Vec<SwapTransfer>,
    /// Blocks to copy back before the step computes. Their swap slots are free from here on.
    pub swapped_in: Vec<SwapTransfer>,
    /// Blocks to copy out before the first write to L1: other requests own them from here on.
    pub spilled: Vec<SpillTransfer>,
    /// Spilled blocks of scheduled requests to copy back into L1 before the step reads them.
    pub promoted: Vec<SpillTransfer>,
}

impl SchedulerOutput {
    /// Total number of tokens of the step.
    #[must_use]
    pub fn num_batched_tokens(&self) -> u32 {
        self.scheduled.iter().map(|s| s.num_new_tokens).sum()
    }

    fn clear(&mut self) {
        self.scheduled.clear();
        self.preempted.clear();
        self.swapped_out.clear();
        self.swapped_in.clear();
        self.spilled.clear();
        self.promoted.clear();
    }

    /// Whether a request had to make room.
    fn is_under_pressure(&self) -> bool {
        !(self.preempted.is_empty() && self.swapped_out.is_empty())
    }
}

/// The state machine.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    watermark: Box<dyn WatermarkController>,
    blocks: KvBlocks,
    /// Ids of the spill space, from 0.
    spill: KvBlocks,
    /// Blocks of the spill space that no table names any more.
    freed_spill: Vec<BlockId>,
    /// Whether the driver found no place for a spilled block, and none was freed since.
    is_spill_full: bool,
    spill_bound: SpillBound,
    swap: KvBlocks,
    requests: Requests,
    /// By urgency, then in order of arrival; a preempted request comes before its equals.
    waiting: VecDeque<Slot>,
    /// By urgency, then in order of admission.
    running: Vec<Slot>,
    /// By urgency, then in the order of being swapped out.
    swapped: VecDeque<Slot>,
    totals: Totals,
}

/// Sums since the start, and over running requests.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    preemptions: u64,
    lost_blocks: u64,
    finished_requests: u64,
    finished_tokens: u64,
    running_tokens: u64,
    /// Tokens of running requests, with or without KV.
    known_tokens: u64,
}

impl Scheduler {
    /// An idle scheduler.
    ///
    /// # Panics
    /// A limit is zero: such a scheduler could never make progress.
    #[must_use]
    pub fn new(config: SchedulerConfig) -> Self {
        assert!(config.max_num_seqs > 0 && config.max_num_batched_tokens > 0, "a step must have room for a token");
        assert!(config.block_size > 0 && config.num_blocks > 0, "requests need blocks");
        Self {
            watermark: config.watermark.controller(),
            blocks: KvBlocks::new(config.num_blocks),
            spill: KvBlocks::new(config.spill_blocks),
            freed_spill: Vec::new(),
            is_spill_full: false,
            spill_bound: SpillBound::new(config.spill_blocks, config.num_blocks),
            swap: KvBlocks::new(config.swap.num_blocks),
            config,
            requests: Requests::default(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            swapped: VecDeque::new(),
            totals: Totals::default(),
        }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// The request can never fit, or too many requests wait.
    ///
    /// # Panics
    /// The id is in use, or the request has no token.
    pub fn add(&mut self, new: NewRequest) -> Result<(), AddError> {
        assert!(new.num_tokens > 0 && new.num_tokens <= new.max_num_tokens, "a request starts with a token");
        // The last token is never computed, but its block may have been allocated for a chunk.
        let needed = self.blocks_for(new.max_num_tokens);
        let num_blocks = self.num_blocks();
        if needed > num_blocks {
            return Err(AddError::NeverFits { needed, num_blocks });
        }
        if self.waiting.len() >= self.config.max_waiting {
            return Err(AddError::QueueFull);
        }
        let slot = self.requests.insert(new);
        let behind = self.waiting.partition_point(|&other| self.requests[other].priority <= new.priority);
        self.waiting.insert(behind, slot);
        Ok(())
    }

    /// Decides the next step.
    pub fn schedule(&mut self, prefix: &mut impl PrefixSource) -> SchedulerOutput {
        let mut output = SchedulerOutput::default();
        self.schedule_into(prefix, &mut output);
        output
    }

    /// As [`Self::schedule`], but reuses the memory of `output`.
    pub fn schedule_into(&mut self, prefix: &mut impl PrefixSource, output: &mut SchedulerOutput) {
        output.clear();
        let mut budget = self.config.max_num_batched_tokens;
        self.schedule_running(&mut budget, output);
        let load = self.load();
        self.watermark.observe(&load);
        // A request that just made room must not return at the cost of those that stayed.
        if !output.is_under_pressure() {
            self.swap_in(&mut budget, output);
            if self.swapped.is_empty() {
                self.admit_waiting(&mut budget, output, prefix);
            }
            self.promote(output);
        }
    }

    fn schedule_running(&mut self, budget: &mut u32, output: &mut SchedulerOutput) {
        let mut next = 0;
        while next < self.running.len() && *budget > 0 {
            let slot = self.running[next];
            let num_new_tokens = self.chunk(slot, *budget);
            if num_new_tokens == 0 {
                next += 1;
                continue;
            }
            let until = self.requests[slot].num_computed_tokens + num_new_tokens;
            let mut made_room_itself = false;
            while !self.grow(slot, until, output) {
                let victim = self.make_room(output);
                if victim == slot {
                    made_room_itself = true;
                    break;
                }
            }
            if made_room_itself {
                break;
            }
            output.scheduled.push(self.scheduled(slot, num_new_tokens, 0));
            *budget -= num_new_tokens;
            next += 1;
        }
    }

    fn admit_waiting(&mut self, budget: &mut u32, output: &mut SchedulerOutput, prefix: &mut impl PrefixSource) {
        while *budget > 0 && self.running.len() < self.config.max_num_seqs {
            let Some(&slot) = self.waiting.front() else { break };
            // At least the last token is computed here: its logits choose the next one.
            let most = self.requests[slot].num_tokens - 1;
            let found = prefix.num_matched_tokens(self.requests[slot].id);
            let matched = found.min(most) / self.config.block_size * self.config.block_size;
            self.requests[slot].num_computed_tokens = matched;
            let num_new_tokens = self.chunk(slot, *budget);
            let reserve = self.reserve(slot, num_new_tokens);
            if !reserve.is_some_and(|reserve| self.allocate(slot, num_new_tokens, reserve, output)) {
                self.requests[slot].num_computed_tokens = 0;
                break;
            }
            self.waiting.pop_front();
            self.enter_running(slot);
            output.scheduled.push(self.scheduled(slot, num_new_tokens, matched));
            *budget -= num_new_tokens;
        }
    }

    /// Number of blocks that must stay free after `slot` is admitted and gets blocks for its first
    /// `num_new_tokens` tokens.
    fn reserve(&self, slot: Slot, num_new_tokens: u32) -> Option<u32> {
        // A request that runs alone may use the watermark's blocks too; otherwise it could wait for
        // ever.
        if self.running.is_empty() {
            return Some(0);
        }
        let state = &self.requests[slot];
        let next_tokens = u64::from(state.num_tokens - state.num_computed_tokens - num_new_tokens);
        self.watermark.reserve_blocks(&Load { next_tokens, ..self.load() })
    }

    /// The watermark's input. Its blocks are those of L1, and of the spill space those that steps hide.
    #[must_use]
    pub fn load(&self) -> Load {
        let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let free_blocks = self.blocks.free() + self.admissible_spill();
        let used_blocks = self.num_blocks() - self.num_free_blocks();
        Load {
            num_blocks: used_blocks + free_blocks,
            free_blocks,
            block_size: self.config.block_size,
            num_running: count(self.running.len()),
            num_waiting: count(self.waiting.len()),
            num_swapped: count(self.swapped.len()),
            running_tokens: self.totals.running_tokens,
            pending_tokens: self.totals.known_tokens - self.totals.running_tokens,
            next_tokens: 0,
            lost_blocks: self.totals.lost_blocks,
            finished_requests: self.totals.finished_requests,
            finished_tokens: self.totals.finished_tokens,
        }
    }

    /// Reports that a match or a swap-in delivered less than promised: only `num_computed_tokens`
    /// tokens have KV. The request leaves the current step and continues with the next one.
    ///
    /// # Panics
    /// The request is unknown or has fewer computed tokens.
    pub fn rollback(&mut self, id: RequestId, num_computed_tokens: u32) {
        let slot = self.requests.slot(id);
        let state = &mut self.requests[slot];
        assert!(num_computed_tokens <= state.num_computed_tokens, "a rollback goes back");
        self.totals.running_tokens -= u64::from(state.num_computed_tokens - num_computed_tokens);
        state.num_computed_tokens = num_computed_tokens;
        state.is_fresh = false;
        self.unspill_from(slot, num_computed_tokens);
    }

    /// Reports that `num_new_tokens` more tokens of `id` have KV.
    ///
    /// # Panics
    /// The request is unknown or has fewer tokens.
    pub fn computed(&mut self, id: RequestId, num_new_tokens: u32) {
        let slot = self.requests.slot(id);
        let state = &mut self.requests[slot];
        state.num_computed_tokens += num_new_tokens;
        state.is_fresh = false;
        assert!(state.num_computed_tokens <= state.num_tokens, "request {id} computed tokens it does not have");
        self.totals.running_tokens += u64::from(num_new_tokens);
    }

    /// Reports that `id` has one more token.
    ///
    /// # Panics
    /// The request is unknown.
    pub fn append_token(&mut self, id: RequestId) {
        let slot = self.requests.slot(id);
        let state = &mut self.requests[slot];
        state.num_tokens += 1;
        self.totals.known_tokens += u64::from(state.place == Place::Running);
    }

    /// Removes `id` from its queue and frees its blocks. Returns whether it was known.
    pub fn finish(&mut self, id: RequestId) -> bool {
        let Some((slot, mut state)) = self.requests.remove(id) else { return false };
        match state.place {
            Place::Running => {
                self.free(&mut state.block_table);
                self.running.retain(|&other| other != slot);
                self.totals.running_tokens -= u64::from(state.num_computed_tokens);
                self.totals.known_tokens -= u64::from(state.num_tokens);
                self.totals.finished_requests += 1;
                self.totals.finished_tokens += u64::from(state.num_tokens);
            }
            Place::Waiting => self.waiting.retain(|&other| other != slot),
            Place::Swapped => {
                self.swap.release(&mut state.block_table);
                self.swapped.retain(|&other| other != slot);
            }
        }
        true
    }

    /// Requests with a deadline at or before `now_ns`. The driver fails and
    /// [`finish`](Self::finish)es them.
    #[must_use]
    pub fn expired(&self, now_ns: u64) -> Vec<RequestId> {
        self.requests.iter().filter(|state| state.deadline_ns <= now_ns).map(|state| state.id).collect()
    }

    /// The earliest deadline, at which the driver should check for expired requests.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.requests.iter().map(|state| state.deadline_ns).min()
    }

    /// Blocks of a running request, in token order; empty for a swapped one. Ids from
    /// [`SchedulerConfig::num_blocks`] on are spilled, and come before those of L1.
    ///
    /// # Panics
    /// The request is unknown.
    #[must_use]
    pub fn block_table(&self, id: RequestId) -> &[BlockId] {
        let state = &self.requests[self.requests.slot(id)];
        if state.place == Place::Swapped { &[] } else { &state.block_table }
    }

    /// Tokens of a request that have KV.
    ///
    /// # Panics
    /// The request is unknown.
    #[must_use]
    pub fn num_computed_tokens(&self, id: RequestId) -> u32 {
        self.requests[self.requests.slot(id)].num_computed_tokens
    }

    /// Waiting requests that the next step admits if there are blocks for them, and if each running
    /// request takes one token: in their order, up to the limits of a step. The schedule reads next what
    /// they match.
    pub fn next_admissions(&self) -> impl Iterator<Item = RequestId> {
        let decodes = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
        let mut budget = self.config.max_num_batched_tokens.saturating_sub(decodes);
        let room =
            if self.swapped.is_empty() { self.config.max_num_seqs.saturating_sub(self.running.len()) } else { 0 };
        self.waiting.iter().take(room).map_while(move |&slot| {
            let id = (budget > 0).then_some(self.requests[slot].id);
            budget -= self.chunk(slot, budget);
            id
        })
    }

    /// Number of running requests.
    #[must_use]
    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    /// Number of waiting requests.
    #[must_use]
    pub fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of swapped requests.
    #[must_use]
    pub fn num_swapped(&self) -> usize {
        self.swapped.len()
    }

    /// Whether no request waits, runs or is swapped out.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// Number of free blocks in L1 and in the spill space.
    #[must_use]
    pub fn num_free_blocks(&self) -> u32 {
        self.blocks.free() + self.spill.free()
    }

    /// Number of blocks in L1 and in the spill space.
    #[must_use]
    pub const fn num_blocks(&self) -> u32 {
        self.config.num_blocks + self.config.spill_blocks
    }

    /// Number of preemptions since the start.
    #[must_use]
    pub const fn num_preemptions(&self) -> u64 {
        self.totals.preemptions
    }

    fn blocks_for(&self, num_tokens: u32) -> u32 {
        num_tokens.div_ceil(self.config.block_size)
    }

    fn chunk(&self, slot: Slot, budget: u32) -> u32 {
        let state = &self.requests[slot];
        let missing = state.num_tokens - state.num_computed_tokens;
        let limit = match self.config.long_prefill_token_threshold {
            0 => budget,
            threshold => threshold.min(budget),
        };
        missing.min(limit)
    }

    fn scheduled(&self, slot: Slot, num_new_tokens: u32, num_loaded_tokens: u32) -> ScheduledRequest {
        let state = &self.requests[slot];
        ScheduledRequest {
            id: state.id,
            num_computed_tokens: state.num_computed_tokens,
            num_new_tokens,
            num_loaded_tokens,
            samples: state.num_computed_tokens + num_new_tokens == state.num_tokens,
        }
    }

    /// Allocates L1 blocks for the first `num_tokens` tokens of a running request.
    fn grow(&mut self, slot: Slot, num_tokens: u32, output: &mut SchedulerOutput) -> bool {
        let wanted = self.blocks_for(num_tokens);
        let more = wanted.saturating_sub(self.held(slot));
        let lacking = more.saturating_sub(self.blocks.free());
        if lacking > 0 && !(self.may_grow(lacking) && self.spill(lacking, output)) {
            return false;
        }
        self.blocks.allocate(more, &mut self.requests[slot].block_table)
    }

    /// Allocates blocks for the computed and the next `num_new_tokens` tokens of a waiting request,
    /// if `reserve` blocks stay free. Matched blocks for which L1 has no room are spilled from the
    /// beginning.
    fn allocate(&mut self, slot: Slot, num_new_tokens: u32, reserve: u32, output: &mut SchedulerOutput) -> bool {
        let computed = self.requests[slot].num_computed_tokens;
        let (matched, wanted) = (computed / self.config.block_size, self.blocks_for(computed + num_new_tokens));
        let new = wanted - matched;
        let spilled = matched.saturating_sub(self.blocks.free().saturating_sub(new));
        // A request that runs alone may use all of the spill space.
        let spill_free = if self.running.is_empty() { self.spill.free() } else { self.admissible_spill() };
        let enough = self.blocks.free() + spill_free >= wanted.saturating_add(reserve) && spilled <= spill_free;
        let enough = enough && (self.running.is_empty() || !self.spills_too_much());
        if !enough && self.num_free_blocks() >= wanted.saturating_add(reserve) {
            self.spill_bound.keeps_out();
        }
        let lacking = (wanted - spilled.min(wanted)).saturating_sub(self.blocks.free());
        if !enough || lacking > 0 && !self.spill(lacking, output) {
            return false;
        }
        self.spill_matched(slot, spilled)
            && self.blocks.allocate(wanted - spilled, &mut self.requests[slot].block_table)
    }

    fn held(&self, slot: Slot) -> u32 {
        u32::try_from(self.requests[slot].block_table.len()).expect("tables are shorter than the arena")
    }

    fn enter_running(&mut self, slot: Slot) {
        let state = &mut self.requests[slot];
        state.place = Place::Running;
        state.is_fresh = true;
        self.totals.running_tokens += u64::from(state.num_computed_tokens);
        self.totals.known_tokens += u64::from(state.num_tokens);
        let priority = state.priority;
        let behind = self.running.partition_point(|&other| self.requests[other].priority <= priority);
        self.running.insert(behind, slot);
    }

    /// Takes the blocks of the request at the tail of the running queue, and returns it.
    fn make_room(&mut self, output: &mut SchedulerOutput) -> Slot {
        self.spill_bound.makes_room();
        let slot = self.running.pop().expect("a request that needs room is running");
        let state = &self.requests[slot];
        self.totals.running_tokens -= u64::from(state.num_computed_tokens);
        self.totals.known_tokens -= u64::from(state.num_tokens);
        self.totals.lost_blocks += u64::from(self.blocks_for(state.num_computed_tokens));
        match self.is_worth_swapping(slot) {
            Ok(()) => self.swap_out(slot, output),
            Err(why) => {
                let state = &mut self.requests[slot];
                let (id, tokens) = (state.id, state.num_computed_tokens);
                let mut table = std::mem::take(&mut state.block_table);
                self.free(&mut table);
                output.spilled.retain(|spilled| spilled.id != id);
                self.start_again(slot);
                output.preempted.push(Preemption { id, blocks: self.blocks_for(tokens), why });
            }
        }
        slot
    }

    /// Queues a request without blocks before waiting requests of equal priority.
    fn start_again(&mut self, slot: Slot) {
        let state = &mut self.requests[slot];
        state.num_computed_tokens = 0;
        state.num_spilled = 0;
        state.place = Place::Waiting;
        let priority = state.priority;
        let before = self.waiting.partition_point(|&other| self.requests[other].priority < priority);
        self.waiting.insert(before, slot);
        self.totals.preemptions += 1;
    }
}

#[cfg(test)]
mod tests;
