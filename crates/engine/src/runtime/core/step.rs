//! One step: `schedule`, swap and spill blocks, load matched ones, forward, sample and send tokens,
//! save completed blocks, end requests.
//!
//! Tokens are sent before blocks are saved, so that saving does not add to their latency. `Finished`
//! is sent after saving, so that its receiver finds the blocks.
//!
//! Encoded blocks are decoded while the step computes. If a block fails to decode, the step's
//! result for its request is discarded, and the request continues from the blocks before. If rows
//! of n-grams cannot be read, the request ends: it cannot be computed without them.

use super::Core;
use crate::lazy::LazyBlock;
use crate::llama::{Beyond, LogitsOf, SeqChunk};
use crate::runtime::observe::StepRecord;
use crate::runtime::request::Running;
use crate::sampler::{adjusted, sample};
use cenote_base::engine::ErrorKind;
use cenote_base::fault::{self, Point};
use cenote_base::{EngineError, Event, RequestId};
use cenote_policy::kv_blocks::BlockId;
use cenote_policy::scheduler::{PrefixSource, ScheduledRequest, SchedulerOutput};
use cenote_store::{Computed, Loaded, Miss, PrefixStore};
use std::collections::{BTreeMap, BTreeSet};

/// Blocks that are saved in one call. The lists of their pages are short-lived memory.
const SAVED_TOGETHER: usize = 64;
/// Looks up the prefix of a request in the store when the scheduler is about to admit it.
struct Matcher<'a> {
    store: &'a mut Option<Box<dyn PrefixStore>>,
    requests: &'a mut BTreeMap<RequestId, Running>,
    block_tokens: usize,
    /// Requests that were looked up, and their blocks. The last one may not have been admitted.
    looked: Vec<(RequestId, usize)>,
}

impl PrefixSource for Matcher<'_> {
    fn num_matched_tokens(&mut self, id: RequestId) -> u32 {
        let request = self.requests.get_mut(&id).expect("the scheduler knows only our requests");
        let Some((store, names)) = self.store.as_mut().zip(request.names.as_mut()) else { return 0 };
        // A preempted request has generated tokens since.
        names.extend(&request.tokens);
        self.looked.push((id, names.len()));
        request.published = store.match_prefix(names);
        u32::try_from(request.published * self.block_tokens).expect("a match is not longer than its request")
    }
}

impl Core {
    /// Runs one step. Returns `false` if there was nothing to do.
    pub(super) fn step(&mut self) -> bool {
        let begin = self.clock.now_ns();
        let block_tokens = self.model.config().block_tokens;
        let (store, requests) = (&mut self.store, &mut self.requests);
        let mut matcher = Matcher { store, requests, block_tokens, looked: Vec::new() };
        let output = self.scheduler.schedule(&mut matcher);
        let looked = matcher.looked;
        self.count_lookups(&looked, &output.scheduled);
        let mut progressed = !(output.preempted.is_empty() && output.swapped_out.is_empty());
        let mut damaged = self.swap(&output);
        let mut lazy = Vec::new();
        damaged.extend(self.spill(&output, &mut lazy));
        let mut scheduled = output.scheduled;
        scheduled.retain(|part| {
            progressed = true;
            !damaged.contains(&part.id) && (part.num_loaded_tokens == 0 || self.load(part, &mut lazy))
        });
        if scheduled.is_empty() {
            return progressed;
        }
        fault::point(Point::EngineStep);
        self.counters.steps += 1;
        let mut record = work(&scheduled);
        let loads = scheduled.iter().any(|part| part.num_loaded_tokens > 0);
        self.swapper.observer.computing(&record);
        let logits = self.compute(&scheduled, &lazy);
        let failed = self.failed(&lazy);
        let without_rows: BTreeMap<RequestId, String> =
            self.rows.take_failed().into_iter().map(|(at, why)| (scheduled[at].id, why)).collect();
        let mut rows = logits.chunks_exact(self.model.llama().config().vocab_size);
        scheduled.retain(|part| {
            let row = part.samples.then(|| rows.next().expect("one row of logits for each request that samples"));
            // No later step would have the rows either, so the request ends.
            if let Some(why) = without_rows.get(&part.id) {
                self.fail(part.id, EngineError::new(ErrorKind::Unavailable, why.clone()));
                return false;
            }
            if let Some(blocks) = self.first_of(part.id, &failed) {
                self.fall_back(part.id, blocks);
                return false;
            }
            self.note_cached(part.id, part.num_loaded_tokens);
            self.scheduler.computed(part.id, part.num_new_tokens);
            if let Some(row) = row {
                self.choose(part.id, row);
            }
            true
        });
        for part in &scheduled {
            self.summarize(part.id);
            // Save a prompt's blocks only after its first token is sent (TraCT §3.2: step 11 after
            // step 5), so that sharing adds nothing to the time to first token. A request preempted
            // within its prompt recomputes the unsaved part.
            if self.requests.get(&part.id).is_some_and(|request| !request.output().is_empty()) {
                self.publish_blocks(part.id);
            }
            self.end_if_finished(part.id);
        }
        record.ns = self.clock.now_ns() - begin;
        if let Some(step) = self.spills.streamed(record.ns) {
            self.scheduler.streamed(step);
        }
        self.swapper.observer.stepped(&record);
        // A step of a block or more takes its time for computing, unless it also loads.
        let computes = record.tokens >= block_tokens as u64 && !loads;
        if let Some(store) = self.store.as_mut().filter(|_| computes) {
            store.has_computed(record.tokens, record.pairs, record.ns);
        }
        true
    }

    /// Counts the blocks that admitted requests have asked for. A request that waits is asked for again in
    /// each step, and counts once. It is recorded when it first comes to an engine: not when it was
    /// preempted, nor when another worker hands it over.
    fn count_lookups(&mut self, looked: &[(RequestId, usize)], admitted: &[ScheduledRequest]) {
        let Some(store) = &mut self.store else { return };
        for (id, blocks) in looked.iter().filter(|(id, _)| admitted.iter().any(|part| part.id == *id)) {
            store.count_lookup(*blocks, 0);
            let request = self.requests.get_mut(id).expect("the scheduler knows only our requests");
            let tenant = request.tenant();
            if let Some(names) =
                request.names.as_deref().filter(|_| !request.was_recorded && request.output().is_empty())
            {
                request.was_recorded = true;
                let tokens = u32::try_from(request.prompt_len).unwrap_or(u32::MAX);
                request.recorded = store.record_request(tenant, names, tokens);
            }
            let missing = request.names.as_ref().and_then(|names| names.get(request.published));
            // A request that was here before, or at another worker, has said what it lacked.
            if let Some(&hash) = missing.filter(|_| request.cached_tokens.is_none()) {
                let (fetched_from, request, found) = (request.fetched_from, request.label(*id), request.published);
                let fetched = fetched_from.map_or(0, |from| found.saturating_sub(from));
                store.missed(Miss { request, tenant, blocks: *blocks, found, fetched, hash });
            }
        }
    }

    /// Copies the blocks that the scheduler has swapped. Returns the requests with blocks that did
    /// not return intact; these requests continue from their intact blocks in the next step.
    fn swap(&mut self, output: &SchedulerOutput) -> Vec<RequestId> {
        let step = self.counters.steps + 1;
        for preempted in &output.preempted {
            self.swapper.preempted(step, self.requests[&preempted.id].sequence, preempted);
            if output.swapped_out.iter().all(|transfer| transfer.id != preempted.id) {
                self.forget_from(preempted.id, 0);
            }
        }
        for transfer in &output.swapped_out {
            let request = &self.requests[&transfer.id];
            let store = self.store.as_deref_mut().filter(|_| request.names.is_some());
            if !self.swapper.swap_out(step, (request.sequence, request.tenant()), transfer, &self.kv, store) {
                self.scheduler.lose_swapped(transfer.id);
                self.forget_from(transfer.id, 0);
            }
        }
        let mut damaged = Vec::new();
        for transfer in &output.swapped_in {
            let whole = self.swapper.swap_in(step, transfer, &mut self.kv);
            if whole < transfer.blocks.len() {
                let tokens = whole * self.model.config().block_tokens;
                self.scheduler.rollback(transfer.id, u32::try_from(tokens).expect("less than went out"));
                self.forget_from(transfer.id, tokens);
                damaged.push(transfer.id);
            }
        }
        damaged
    }

    /// Copies the blocks out that the scheduler has spilled, and adds those that return to L1 to
    /// `lazy`. Returns the requests with blocks that found no place; they recompute these blocks.
    fn spill(&mut self, output: &SchedulerOutput, lazy: &mut Vec<LazyBlock>) -> Vec<RequestId> {
        self.spills.drop_all(&self.scheduler.take_freed_spill());
        let mut lost = Vec::new();
        for moved in &output.spilled {
            let request = &self.requests[&moved.id];
            let store = self.store.as_deref_mut().filter(|_| request.names.is_some());
            let published = request.published().get(moved.index as usize).copied();
            if !self.spills.copy_out(moved, published, request.tenant(), &self.kv, store) && !lost.contains(&moved.id) {
                lost.push(moved.id);
                let tokens = moved.index as usize * self.model.config().block_tokens;
                self.scheduler.lose_spilled(moved.id, u32::try_from(tokens).expect("less than was computed"));
                self.forget_from(moved.id, tokens);
            }
        }
        for moved in &output.promoted {
            match self.spills.promote(moved) {
                Some(block) => lazy.push(block),
                None => {
                    lost.push(moved.id);
                    let tokens = moved.index as usize * self.model.config().block_tokens;
                    self.scheduler.rollback(moved.id, u32::try_from(tokens).expect("less than was computed"));
                    self.forget_from(moved.id, tokens);
                }
            }
        }
        lost
    }

    /// Copies matched blocks into the request's own blocks, or adds them to `lazy` for decoding
    /// during the step. Blocks for which L1 has no room stay where they are. Returns `false` if some
    /// were missing; the request then continues from the loaded blocks in the next step.
    fn load(&mut self, part: &ScheduledRequest, lazy: &mut Vec<LazyBlock>) -> bool {
        let store = self.store.as_mut().expect("only a store matches");
        let config = self.model.config();
        let blocks = part.num_loaded_tokens as usize / config.block_tokens;
        let hashes = self.requests[&part.id].names.as_deref().expect("only blocks with names match");
        let table = self.scheduler.block_table(part.id);
        let own = lazy.len();
        let loaded = (0..blocks)
            .take_while(|&at| {
                if self.spills.is_spilled(table[at]) {
                    return self.spills.open(table[at], hashes[at], store.as_mut());
                }
                let mut pages = self.kv.pages_mut(table[at]);
                match store.load(hashes[at], &mut pages) {
                    Loaded::Pending(block) if !config.decode_first => {
                        lazy.push(LazyBlock::new(table[at], block));
                        true
                    }
                    other => other.finish(&mut pages),
                }
            })
            .count();
        // The blocks behind one that failed are not asked for.
        store.count_lookup(0, blocks.min(loaded + 1));
        if loaded == blocks {
            return true;
        }
        // The request leaves this step, so decode its pending blocks here.
        let own = lazy.split_off(own);
        own.iter().for_each(|block| block.decode_all(self.kv.pages_mut(block.block())));
        let failed = own.iter().filter(|block| block.has_failed()).map(LazyBlock::block).collect();
        self.fall_back(part.id, self.first_of(part.id, &failed).unwrap_or(loaded));
        false
    }

    /// Blocks of the last step that were damaged or gone.
    fn failed(&mut self, lazy: &[LazyBlock]) -> BTreeSet<BlockId> {
        let mut failed = self.spills.take_failed();
        failed.extend(self.sparse.take_failed());
        failed.extend(lazy.iter().filter(|block| block.has_failed()).map(LazyBlock::block));
        failed
    }

    /// Index of the first of a request's blocks that is in `blocks`.
    fn first_of(&self, id: RequestId, blocks: &BTreeSet<BlockId>) -> Option<usize> {
        if blocks.is_empty() {
            return None;
        }
        self.scheduler.block_table(id).iter().position(|own| blocks.contains(own))
    }

    /// Keeps only the first `blocks` of a request's matched blocks; the next steps compute the
    /// rest.
    fn fall_back(&mut self, id: RequestId, blocks: usize) {
        let tokens = u32::try_from(blocks * self.model.config().block_tokens).expect("less than was matched");
        let request = self.requests.get_mut(&id).expect("scheduled requests are known");
        // The computed blocks are saved in place of the missing ones.
        request.published = request.published.min(blocks);
        self.scheduler.rollback(id, tokens);
        self.forget_from(id, tokens as usize);
        self.note_cached(id, tokens);
    }

    /// Forgets what is known about a request's KV beyond its first `tokens` tokens: it is computed
    /// anew, and not by sparse steps.
    fn forget_from(&mut self, id: RequestId, tokens: usize) {
        self.sparse.truncate(id, tokens / self.model.config().block_tokens);
        let request = self.requests.get_mut(&id).expect("only known requests are rolled back");
        request.sparse_from = request.sparse_from.filter(|first| *first < tokens);
    }

    /// Records how many prompt tokens came from the pool, when the request runs for the first time.
    fn note_cached(&mut self, id: RequestId, tokens: u32) {
        let request = self.requests.get_mut(&id).expect("scheduled requests are known");
        if request.cached_tokens.is_none() {
            let cached = tokens.min(u32::try_from(request.prompt_len).unwrap_or(u32::MAX));
            request.cached_tokens = Some(cached);
            self.counters.cached_tokens += u64::from(cached);
        }
    }

    fn compute(&mut self, scheduled: &[ScheduledRequest], lazy: &[LazyBlock]) -> Vec<f32> {
        let mut choosing = Vec::new();
        for (at, part) in scheduled.iter().enumerate() {
            let request = self.requests.get_mut(&part.id).expect("scheduled requests are known");
            let start = part.num_computed_tokens as usize;
            let is_decode = part.num_new_tokens == 1 && start >= request.prompt_len;
            if is_decode && self.sparse.knows(part.id, start) {
                request.sparse_from.get_or_insert(start);
                choosing.push((at, part.id));
            }
        }
        let batch: Vec<SeqChunk<'_>> = scheduled
            .iter()
            .map(|part| {
                let start = part.num_computed_tokens as usize;
                let (before, tokens) = self.requests[&part.id].tokens.split_at(start);
                SeqChunk {
                    tokens: &tokens[..part.num_new_tokens as usize],
                    before,
                    start_position: start,
                    block_table: self.scheduler.block_table(part.id),
                    logits: if part.samples { LogitsOf::Last } else { LogitsOf::Nothing },
                }
            })
            .collect();
        let (streamer, sparse, rows) = (self.spills.streamer(), &mut self.sparse, &mut self.rows);
        let beyond = Beyond { lazy, streamer, sparse, choosing: &choosing, rows };
        self.model.forward_beyond(&batch, &mut self.kv, beyond)
    }

    /// Adds what the step computed to what later steps choose from.
    fn summarize(&mut self, id: RequestId) {
        if self.sparse.is_on() && self.requests.contains_key(&id) {
            let tokens = self.scheduler.num_computed_tokens(id) as usize;
            let table = self.scheduler.block_table(id);
            self.sparse.extend(id, table, tokens, &self.kv, self.spills.streamer());
        }
    }

    /// Samples the next token and sends it.
    fn choose(&mut self, id: RequestId, logits: &[f32]) {
        let request = self.requests.get_mut(&id).expect("scheduled requests are known");
        let sampling = &request.sampling;
        let (prompt, output) = request.tokens.split_at(request.prompt_len);
        let changed = sampling.changes_logits().then(|| adjusted(logits, sampling, prompt, output));
        let token = sample(changed.as_deref().unwrap_or(logits), sampling, request.seed, output.len() as u64);
        let logprobs = sampling.logprobs.map(|top| Box::new(self.model.logprobs(logits, token, top as usize)));
        let text = request.push(&self.model, token);
        self.scheduler.append_token(id);
        self.counters.generation_tokens += 1;
        if !(request.sink)(Event::Token { token, text, logprobs }) {
            self.forget(id);
        }
    }

    /// Saves the full blocks that the request has computed since the last call.
    fn publish_blocks(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let Some((store, names)) = self.store.as_mut().zip(request.names.as_mut()) else { return };
        let block_tokens = self.model.config().block_tokens;
        // What sparse steps computed has no name.
        let computed = self.scheduler.num_computed_tokens(id) as usize;
        let full = request.sparse_from.map_or(computed, |first| first.min(computed)) / block_tokens;
        let table = self.scheduler.block_table(id);
        names.extend(&request.tokens[..full * block_tokens]);
        while request.published < full {
            let now = request.published..full.min(request.published + SAVED_TOGETHER);
            let far: Vec<Option<Vec<u8>>> = now.clone().map(|at| self.spills.bytes(table[at])).collect();
            let page_bytes = self.model.layout().page_bytes();
            let pages = now.clone().zip(&far).map_while(|(at, far)| match far {
                None if self.spills.is_spilled(table[at]) => None,
                None => Some(self.kv.pages(table[at])),
                Some(bytes) => Some(bytes.chunks_exact(page_bytes).collect()),
            });
            let pages: Vec<Vec<&[u8]>> = pages.collect();
            let computed = |(at, pages)| Computed {
                hash: names[at],
                depth: u32::try_from(at).expect("contexts are shorter"),
                pages,
            };
            let blocks: Vec<Computed<'_>> = now.clone().zip(pages.iter().map(Vec::as_slice)).map(computed).collect();
            let saved = store.save_all(names.tenant(), &blocks);
            request.published += saved;
            (0..saved).for_each(|_| fault::point(Point::EngineBlockSaved));
            if saved < now.len() {
                // No space. A later block is unreachable without this one, so retry it with the
                // next full block.
                return;
            }
        }
    }
}

/// The work of a step, with a duration of 0 until it is known.
fn work(scheduled: &[ScheduledRequest]) -> StepRecord {
    let mut record = StepRecord { requests: scheduled.len() as u64, tokens: 0, pairs: 0, context: 0, ns: 0 };
    for part in scheduled {
        let (computed, new) = (u64::from(part.num_computed_tokens), u64::from(part.num_new_tokens));
        record.tokens += new;
        record.pairs += new * computed + new * (new + 1) / 2;
        record.context += computed + new;
    }
    record
}
