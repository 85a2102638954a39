//! The continuous-batching scheduler, a pure state machine (vLLM's, in vLLM's words; CPEN 511 Algorithm 1).
//!
//! There is no prefill state and no decode state. A request has `num_tokens` known tokens and
//! `num_computed_tokens` whose KV exists; a step gives each scheduled request `num_new_tokens` of the
//! step's token budget. A decode is a request that lacks one token, a prefill one that lacks many, and a
//! long prompt is computed in chunks because running requests are served first and what is left of the
//! budget goes to prompts.
//!
//! When L1 blocks run out, the request at the tail of the running queue makes room: the least urgent, and of those the one admitted
//! last. It is *swapped out*, if there is swap space and carrying its blocks there and back takes less time than
//! computing them anew ([`SwapConfig`]); else it is *preempted*: it gives its blocks back and starts again later, from whatever the
//! shared region still holds. In a step in which nobody made room there may be no pressure: then the swapped come back, the
//! first one out first, and when none is left those that wait are admitted. Both leave the blocks free that the
//! [watermark](crate::watermark) asks for.
//!
//! Where this differs from the paper's print of Algorithm 1: new requests are admitted behind the running ones and behind the swapped
//! ones instead of before them (as in vLLM), or whoever was swapped out would make room for its own successor.
//!
//! One step of its driver:
//! `schedule` → copy `swapped_out` (`lose_swapped` where that failed), then `swapped_in` and matched blocks (`rollback` where that
//! failed) → forward → `computed` for each scheduled request → `append_token` for each that chose a token → `finish` for each
//! that ended.

mod requests;
mod swap;

pub use swap::{NoSwap, Preemption, SwapConfig, SwapTransfer};

use crate::kv_blocks::{BlockId, KvBlocks};
use crate::watermark::{Load, Watermark, WatermarkController};
use cenote_base::RequestId;
use requests::{Place, Requests, Slot};
use std::collections::VecDeque;

/// Limits of a scheduler; all counts are of tokens, requests or L1 blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Requests that may run at once.
    pub max_num_seqs: usize,
    /// Tokens computed in one step, over all requests.
    pub max_num_batched_tokens: u32,
    /// Most prompt tokens of one request in one step; 0: only the budget limits.
    pub long_prefill_token_threshold: u32,
    /// Tokens of a block.
    pub block_size: u32,
    /// L1 blocks in all.
    pub num_blocks: u32,
    /// What admission leaves free, so that running requests can grow before anyone has to make room.
    pub watermark: Watermark,
    /// Requests that may wait.
    pub max_waiting: usize,
    /// Where blocks can go instead of being given up.
    pub swap: SwapConfig,
}

/// A request as the scheduler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewRequest {
    /// Its name.
    pub id: RequestId,
    /// Tokens known now: the prompt, and what another worker already generated.
    pub num_tokens: u32,
    /// Most tokens it can come to.
    pub max_num_tokens: u32,
    /// When it expires, on the driver's clock.
    pub deadline_ns: u64,
    /// 0 is the most urgent. The urgent are admitted first and make room last.
    pub priority: u32,
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddError {
    /// `max_waiting` requests wait already.
    QueueFull,
    /// Even alone it would not fit into L1: it needs `needed` of `num_blocks` blocks.
    NeverFits {
        /// Blocks needed.
        needed: u32,
        /// Blocks there are for requests.
        num_blocks: u32,
    },
}

/// Where the scheduler asks how much of a request's prefix another worker has already computed.
pub trait PrefixSource {
    /// Tokens of `id`, from the first, whose KV can be loaded: a multiple of the block size. Called when a
    /// request is about to be admitted; the answer is a hint, see [`Scheduler::rollback`].
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
    /// Tokens whose KV is to be loaded into the first blocks of the request's table before computing;
    /// not zero only in the step that admits the request.
    pub num_loaded_tokens: u32,
    /// Whether the last of the new tokens is the request's last known one, so that its logits choose the
    /// next token.
    pub samples: bool,
}

/// The decisions of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulerOutput {
    /// What to compute, running requests first.
    pub scheduled: Vec<ScheduledRequest>,
    /// Requests that lost their blocks in this step.
    pub preempted: Vec<Preemption>,
    /// Blocks to copy out, before anything is written into L1: they belong to others from here on.
    pub swapped_out: Vec<SwapTransfer>,
    /// Blocks to copy back before the step computes. Their swap slots are free from here on.
    pub swapped_in: Vec<SwapTransfer>,
}

impl SchedulerOutput {
    /// Tokens of the whole step.
    #[must_use]
    pub fn num_batched_tokens(&self) -> u32 {
        self.scheduled.iter().map(|s| s.num_new_tokens).sum()
    }

    fn clear(&mut self) {
        self.scheduled.clear();
        self.preempted.clear();
        self.swapped_out.clear();
        self.swapped_in.clear();
    }

    /// Whether somebody had to make room.
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
    swap: KvBlocks,
    requests: Requests,
    /// By urgency, then in order of arrival; who was preempted comes before its equals.
    waiting: VecDeque<Slot>,
    /// By urgency, then in order of admission.
    running: Vec<Slot>,
    /// By urgency, then in the order in which they went out.
    swapped: VecDeque<Slot>,
    totals: Totals,
}

/// Sums since the start, and over those who run.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    preemptions: u64,
    lost_blocks: u64,
    finished_requests: u64,
    finished_tokens: u64,
    running_tokens: u64,
    /// Of the running requests, with KV or without.
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
    /// It can never fit, or too many wait.
    ///
    /// # Panics
    /// Its id is in use, or it has no token.
    pub fn add(&mut self, new: NewRequest) -> Result<(), AddError> {
        assert!(new.num_tokens > 0 && new.num_tokens <= new.max_num_tokens, "a request starts with a token");
        // The last token is never computed, but its block may have been allocated for a chunk.
        let needed = self.blocks_for(new.max_num_tokens);
        if needed > self.config.num_blocks {
            return Err(AddError::NeverFits { needed, num_blocks: self.config.num_blocks });
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

    /// As [`Self::schedule`], into an output whose memory is used again.
    pub fn schedule_into(&mut self, prefix: &mut impl PrefixSource, output: &mut SchedulerOutput) {
        output.clear();
        let mut budget = self.config.max_num_batched_tokens;
        self.schedule_running(&mut budget, output);
        let load = self.load();
        self.watermark.observe(&load);
        // Who has just made room must not be let in again at the cost of those who stayed.
        if !output.is_under_pressure() {
            self.swap_in(&mut budget, output);
            if self.swapped.is_empty() {
                self.admit_waiting(&mut budget, output, prefix);
            }
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
            while !self.grow(slot, until, 0) {
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
            if !reserve.is_some_and(|reserve| self.grow(slot, matched + num_new_tokens, reserve)) {
                self.requests[slot].num_computed_tokens = 0;
                break;
            }
            self.waiting.pop_front();
            self.enter_running(slot);
            output.scheduled.push(self.scheduled(slot, num_new_tokens, matched));
            *budget -= num_new_tokens;
        }
    }

    /// What must stay free beside the blocks of `slot`, which is let in to compute `num_new_tokens` first.
    fn reserve(&self, slot: Slot, num_new_tokens: u32) -> Option<u32> {
        // Alone, a request may use the watermark's blocks too; else it could wait for ever.
        if self.running.is_empty() {
            return Some(0);
        }
        let state = &self.requests[slot];
        let next_tokens = u64::from(state.num_tokens - state.num_computed_tokens - num_new_tokens);
        self.watermark.reserve_blocks(&Load { next_tokens, ..self.load() })
    }

    /// What the watermark goes by.
    #[must_use]
    pub fn load(&self) -> Load {
        let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        Load {
            num_blocks: self.config.num_blocks,
            free_blocks: self.blocks.free(),
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

    /// Tells that a match, or what was swapped in, was worth less than promised: only `num_computed_tokens` tokens are there. The
    /// request is not part of the current step any more and goes on with the next one.
    ///
    /// # Panics
    /// The request is unknown or has not come that far.
    pub fn rollback(&mut self, id: RequestId, num_computed_tokens: u32) {
        let slot = self.requests.slot(id);
        let state = &mut self.requests[slot];
        assert!(num_computed_tokens <= state.num_computed_tokens, "a rollback goes back");
        self.totals.running_tokens -= u64::from(state.num_computed_tokens - num_computed_tokens);
        state.num_computed_tokens = num_computed_tokens;
    }

    /// Tells that `num_new_tokens` more tokens of `id` have KV.
    ///
    /// # Panics
    /// The request is unknown or does not have so many tokens.
    pub fn computed(&mut self, id: RequestId, num_new_tokens: u32) {
        let slot = self.requests.slot(id);
        let state = &mut self.requests[slot];
        state.num_computed_tokens += num_new_tokens;
        assert!(state.num_computed_tokens <= state.num_tokens, "request {id} computed tokens it does not have");
        self.totals.running_tokens += u64::from(num_new_tokens);
    }

    /// Tells that `id` has one more token.
    ///
    /// # Panics
    /// The request is unknown.
    pub fn append_token(&mut self, id: RequestId) {
        let slot = self.requests.slot(id);
        let state = &mut self.requests[slot];
        state.num_tokens += 1;
        self.totals.known_tokens += u64::from(state.place == Place::Running);
    }

    /// Forgets `id`, wherever it is, and frees its blocks. Returns whether it was known.
    pub fn finish(&mut self, id: RequestId) -> bool {
        let Some((slot, mut state)) = self.requests.remove(id) else { return false };
        match state.place {
            Place::Running => {
                self.blocks.release(&mut state.block_table);
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

    /// Requests whose deadline is at or before `now_ns`. The driver fails and [`finish`](Self::finish)es them.
    #[must_use]
    pub fn expired(&self, now_ns: u64) -> Vec<RequestId> {
        self.requests.iter().filter(|state| state.deadline_ns <= now_ns).map(|state| state.id).collect()
    }

    /// The earliest deadline, at which the driver should look for expired requests.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.requests.iter().map(|state| state.deadline_ns).min()
    }

    /// L1 blocks of a running request, in token order.
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

    /// Requests that run.
    #[must_use]
    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    /// Requests that wait.
    #[must_use]
    pub fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests whose blocks are swapped out.
    #[must_use]
    pub fn num_swapped(&self) -> usize {
        self.swapped.len()
    }

    /// Whether nothing waits, runs or is swapped out.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// Free L1 blocks.
    #[must_use]
    pub fn num_free_blocks(&self) -> u32 {
        self.blocks.free()
    }

    /// Preemptions since the start.
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

    /// Gives `slot` the blocks for its first `num_tokens` tokens, leaving `reserve` blocks free.
    fn grow(&mut self, slot: Slot, num_tokens: u32, reserve: u32) -> bool {
        let wanted = self.blocks_for(num_tokens);
        let state = &mut self.requests[slot];
        let held = u32::try_from(state.block_table.len()).expect("tables are shorter than the arena");
        let more = wanted.saturating_sub(held);
        if more == 0 {
            return true;
        }
        if self.blocks.free() < more.saturating_add(reserve) {
            return false;
        }
        self.blocks.allocate(more, &mut state.block_table)
    }

    fn enter_running(&mut self, slot: Slot) {
        let state = &mut self.requests[slot];
        state.place = Place::Running;
        self.totals.running_tokens += u64::from(state.num_computed_tokens);
        self.totals.known_tokens += u64::from(state.num_tokens);
        let priority = state.priority;
        let behind = self.running.partition_point(|&other| self.requests[other].priority <= priority);
        self.running.insert(behind, slot);
    }

    /// The tail of the running queue gives its blocks away.
    fn make_room(&mut self, output: &mut SchedulerOutput) -> Slot {
        let slot = self.running.pop().expect("whoever asks for room is running");
        let state = &self.requests[slot];
        self.totals.running_tokens -= u64::from(state.num_computed_tokens);
        self.totals.known_tokens -= u64::from(state.num_tokens);
        self.totals.lost_blocks += u64::from(self.blocks_for(state.num_computed_tokens));
        match self.is_worth_swapping(slot) {
            Ok(()) => self.swap_out(slot, output),
            Err(why) => {
                let state = &mut self.requests[slot];
                self.blocks.release(&mut state.block_table);
                let (id, tokens) = (state.id, state.num_computed_tokens);
                self.start_again(slot);
                output.preempted.push(Preemption { id, blocks: self.blocks_for(tokens), why });
            }
        }
        slot
    }

    /// Puts a request that has given its blocks back before its waiting equals.
    fn start_again(&mut self, slot: Slot) {
        let state = &mut self.requests[slot];
        state.num_computed_tokens = 0;
        state.place = Place::Waiting;
        let priority = state.priority;
        let before = self.waiting.partition_point(|&other| self.requests[other].priority < priority);
        self.waiting.insert(before, slot);
        self.totals.preemptions += 1;
    }
}

#[cfg(test)]
mod tests;
