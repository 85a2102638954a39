//! The continuous-batching scheduler, a pure state machine (vLLM V1's, in vLLM's words; CPEN 511
//! Algorithm 1 without its swapped queue).
//!
//! There is no prefill state and no decode state. A request has `num_tokens` known tokens and
//! `num_computed_tokens` whose KV exists; a step gives each scheduled request `num_new_tokens` of the
//! step's token budget. A decode is a request that lacks one token, a prefill one that lacks many, and a
//! long prompt is computed in chunks because running requests are served first and what is left of the
//! budget goes to prompts. When L1 blocks run out, the request admitted last is preempted: it gives its
//! blocks back and starts again later, from whatever the shared region still holds.
//!
//! One step of its driver:
//! `schedule` → (load matched blocks; `rollback` where that failed) → forward → `computed` for each
//! scheduled request → `append_token` for each that chose a token → `finish` for each that ended.

use crate::kv_blocks::{BlockId, KvBlocks};
use cenote_base::RequestId;
use std::collections::{BTreeMap, VecDeque};

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
    /// L1 blocks that admission leaves free, so that running requests can grow before anyone is preempted
    /// (CPEN 511 §VIII: vLLM keeps 1 %).
    pub watermark_blocks: u32,
    /// Requests that may wait.
    pub max_waiting: usize,
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
    pub preempted: Vec<RequestId>,
}

impl SchedulerOutput {
    /// Tokens of the whole step.
    #[must_use]
    pub fn num_batched_tokens(&self) -> u32 {
        self.scheduled.iter().map(|s| s.num_new_tokens).sum()
    }
}

#[derive(Clone, Debug)]
struct State {
    num_tokens: u32,
    num_computed_tokens: u32,
    deadline_ns: u64,
    running: bool,
    block_table: Vec<BlockId>,
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    blocks: KvBlocks,
    requests: BTreeMap<RequestId, State>,
    waiting: VecDeque<RequestId>,
    running: Vec<RequestId>,
    num_preemptions: u64,
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
        let blocks = KvBlocks::new(config.num_blocks);
        Self {
            config,
            blocks,
            requests: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            num_preemptions: 0,
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
        let state = State {
            num_tokens: new.num_tokens,
            num_computed_tokens: 0,
            deadline_ns: new.deadline_ns,
            running: false,
            block_table: Vec::new(),
        };
        assert!(self.requests.insert(new.id, state).is_none(), "request {} is already known", new.id);
        self.waiting.push_back(new.id);
        Ok(())
    }

    /// Decides the next step.
    pub fn schedule(&mut self, prefix: &mut impl PrefixSource) -> SchedulerOutput {
        let mut output = SchedulerOutput::default();
        let mut budget = self.config.max_num_batched_tokens;
        self.schedule_running(&mut budget, &mut output);
        // Who was just preempted must not be let in again at the cost of those who stayed.
        if output.preempted.is_empty() {
            self.admit_waiting(&mut budget, &mut output, prefix);
        }
        output
    }

    fn schedule_running(&mut self, budget: &mut u32, output: &mut SchedulerOutput) {
        let mut next = 0;
        while next < self.running.len() && *budget > 0 {
            let id = self.running[next];
            let num_new_tokens = self.chunk(id, *budget);
            if num_new_tokens == 0 {
                next += 1;
                continue;
            }
            let until = self.requests[&id].num_computed_tokens + num_new_tokens;
            let mut preempted_itself = false;
            while !self.grow(id, until, 0) {
                let victim = self.preempt_last();
                output.preempted.push(victim);
                if victim == id {
                    preempted_itself = true;
                    break;
                }
            }
            if preempted_itself {
                break;
            }
            output.scheduled.push(self.scheduled(id, num_new_tokens, 0));
            *budget -= num_new_tokens;
            next += 1;
        }
    }

    fn admit_waiting(&mut self, budget: &mut u32, output: &mut SchedulerOutput, prefix: &mut impl PrefixSource) {
        while *budget > 0 && self.running.len() < self.config.max_num_seqs {
            let Some(&id) = self.waiting.front() else { break };
            // At least the last token is computed here: its logits choose the next one.
            let most = self.requests[&id].num_tokens - 1;
            let matched = prefix.num_matched_tokens(id).min(most) / self.config.block_size * self.config.block_size;
            self.state(id).num_computed_tokens = matched;
            let num_new_tokens = self.chunk(id, *budget);
            // Alone, a request may use the watermark's blocks too; else it could wait for ever.
            let reserve = if self.running.is_empty() { 0 } else { self.config.watermark_blocks };
            if !self.grow(id, matched + num_new_tokens, reserve) {
                self.state(id).num_computed_tokens = 0;
                break;
            }
            self.waiting.pop_front();
            self.running.push(id);
            self.state(id).running = true;
            output.scheduled.push(self.scheduled(id, num_new_tokens, matched));
            *budget -= num_new_tokens;
        }
    }

    /// Tells that a match was worth less than promised: only `num_computed_tokens` tokens are there. The
    /// request is not part of the current step any more and goes on with the next one.
    ///
    /// # Panics
    /// The request is unknown or has not come that far.
    pub fn rollback(&mut self, id: RequestId, num_computed_tokens: u32) {
        let state = self.state(id);
        assert!(num_computed_tokens <= state.num_computed_tokens, "a rollback goes back");
        state.num_computed_tokens = num_computed_tokens;
    }

    /// Tells that `num_new_tokens` more tokens of `id` have KV.
    ///
    /// # Panics
    /// The request is unknown or does not have so many tokens.
    pub fn computed(&mut self, id: RequestId, num_new_tokens: u32) {
        let state = self.state(id);
        state.num_computed_tokens += num_new_tokens;
        assert!(state.num_computed_tokens <= state.num_tokens, "request {id} computed tokens it does not have");
    }

    /// Tells that `id` has one more token.
    ///
    /// # Panics
    /// The request is unknown.
    pub fn append_token(&mut self, id: RequestId) {
        self.state(id).num_tokens += 1;
    }

    /// Forgets `id`, whether it waits or runs, and frees its blocks. Returns whether it was known.
    pub fn finish(&mut self, id: RequestId) -> bool {
        let Some(mut state) = self.requests.remove(&id) else { return false };
        self.blocks.release(&mut state.block_table);
        if state.running {
            self.running.retain(|&other| other != id);
        } else {
            self.waiting.retain(|&other| other != id);
        }
        true
    }

    /// Requests whose deadline is at or before `now_ns`. The driver fails and [`finish`](Self::finish)es them.
    #[must_use]
    pub fn expired(&self, now_ns: u64) -> Vec<RequestId> {
        self.requests.iter().filter(|(_, state)| state.deadline_ns <= now_ns).map(|(&id, _)| id).collect()
    }

    /// The earliest deadline, at which the driver should look for expired requests.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.requests.values().map(|state| state.deadline_ns).min()
    }

    /// L1 blocks of a request, in token order.
    ///
    /// # Panics
    /// The request is unknown.
    #[must_use]
    pub fn block_table(&self, id: RequestId) -> &[BlockId] {
        &self.requests[&id].block_table
    }

    /// Tokens of a request that have KV.
    ///
    /// # Panics
    /// The request is unknown.
    #[must_use]
    pub fn num_computed_tokens(&self, id: RequestId) -> u32 {
        self.requests[&id].num_computed_tokens
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

    /// Whether nothing waits or runs.
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
        self.num_preemptions
    }

    fn state(&mut self, id: RequestId) -> &mut State {
        self.requests.get_mut(&id).unwrap_or_else(|| panic!("request {id} is unknown to the scheduler"))
    }

    fn blocks_for(&self, num_tokens: u32) -> u32 {
        num_tokens.div_ceil(self.config.block_size)
    }

    fn chunk(&self, id: RequestId, budget: u32) -> u32 {
        let state = &self.requests[&id];
        let missing = state.num_tokens - state.num_computed_tokens;
        let limit = match self.config.long_prefill_token_threshold {
            0 => budget,
            threshold => threshold.min(budget),
        };
        missing.min(limit)
    }

    fn scheduled(&self, id: RequestId, num_new_tokens: u32, num_loaded_tokens: u32) -> ScheduledRequest {
        let state = &self.requests[&id];
        ScheduledRequest {
            id,
            num_computed_tokens: state.num_computed_tokens,
            num_new_tokens,
            num_loaded_tokens,
            samples: state.num_computed_tokens + num_new_tokens == state.num_tokens,
        }
    }

    /// Gives `id` the blocks for its first `num_tokens` tokens, leaving `reserve` blocks free.
    fn grow(&mut self, id: RequestId, num_tokens: u32, reserve: u32) -> bool {
        let wanted = self.blocks_for(num_tokens);
        let state = self.requests.get_mut(&id).expect("only known requests grow");
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

    fn preempt_last(&mut self) -> RequestId {
        let id = self.running.pop().expect("whoever asks for room is running");
        let state = self.requests.get_mut(&id).expect("running requests are known");
        self.blocks.release(&mut state.block_table);
        state.num_computed_tokens = 0;
        state.running = false;
        self.waiting.push_front(id);
        self.num_preemptions += 1;
        id
    }
}

#[cfg(test)]
mod tests;
