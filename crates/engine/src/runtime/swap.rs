//! Blocks of swapped-out requests, stored in the region until L1 has free blocks again.
//!
//! The scheduler (`cenote_policy`) selects the request to preempt and decides between swapping and
//! recomputing. This module copies the bytes. Blocks that the region refuses or does not return
//! intact are recomputed: the request loses time only. Blocks are copied byte for byte, never
//! encoded, so the tokens equal those of a run without pressure.

use super::observe::{Direction, Observer, StepRecord, SwapRecord, Why};
use crate::engram::Rows;
use crate::kv::KvArena;
use crate::llama::{Beyond, LogitsOf, SeqChunk};
use crate::model::LoadedModel;
use crate::sparse::SparseDecode;
use crate::stream::Streamer;
use cenote_base::{Clock, RequestId, TenantKey, TokenId};
use cenote_policy::scheduler::{NoSwap, Preemption, SwapConfig, SwapTransfer};
use cenote_store::{FarBlock, PrefixStore};
use std::collections::BTreeMap;

/// Monotonic counters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Swaps {
    pub swaps: u64,
    pub out_blocks: u64,
    pub in_blocks: u64,
    pub refused: u64,
    pub damaged_blocks: u64,
}

/// Repetitions of each cost measurement; the shortest time counts.
const MEASUREMENTS: usize = 4;
/// Tokens per measurement of the recompute time.
const MEASURED_TOKENS: usize = 256;

/// The swapped-out blocks of all requests.
pub(super) struct Swapper {
    out: BTreeMap<RequestId, Out>,
    pub observer: Box<dyn Observer>,
    pub totals: Swaps,
}

struct Out {
    sequence: u64,
    blocks: Vec<Box<dyn FarBlock>>,
}

impl Swapper {
    pub fn new(observer: Box<dyn Observer>) -> Self {
        Self { out: BTreeMap::new(), observer, totals: Swaps::default() }
    }

    fn tell(&mut self, step: u64, sequence: u64, blocks: usize, direction: Direction, why: Why) {
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        self.observer.swapped(&SwapRecord { step, sequence, blocks, direction, why });
    }

    /// Reports a request that is preempted without swapping and recomputed.
    pub fn preempted(&mut self, step: u64, sequence: u64, preempted: &Preemption) {
        let why = match preempted.why {
            NoSwap::Empty => Why::Empty,
            NoSwap::Full => Why::SwapFull,
            NoSwap::Quicker => Why::Quicker,
            NoSwap::Spilled => Why::Spilled,
        };
        self.tell(step, sequence, preempted.blocks as usize, Direction::Dropped, why);
    }

    /// Copies a request's blocks out. Returns `false` if the blocks were not stored; the request is
    /// then recomputed. `store`: `None` if the request must not use the store.
    pub fn swap_out(
        &mut self,
        step: u64,
        (sequence, of): (u64, Option<TenantKey>),
        transfer: &SwapTransfer,
        kv: &KvArena,
        store: Option<&mut (dyn PrefixStore + '_)>,
    ) -> bool {
        let count = transfer.blocks.len();
        let Some(store) = store else {
            self.tell(step, sequence, count, Direction::Dropped, Why::KeptOut);
            return false;
        };
        let out = transfer.blocks.iter().map(|&block| store.swap_out(of, &kv.pages(block)));
        let blocks: Option<Vec<_>> = out.collect();
        let Some(blocks) = blocks else {
            self.totals.refused += 1;
            self.tell(step, sequence, count, Direction::Dropped, Why::Refused);
            return false;
        };
        self.totals.swaps += 1;
        self.totals.out_blocks += count as u64;
        self.tell(step, sequence, count, Direction::Out, Why::Pressure);
        self.out.insert(transfer.id, Out { sequence, blocks });
        true
    }

    /// Copies a request's blocks back. Returns the number of intact blocks, from the first; the
    /// rest must be recomputed.
    pub fn swap_in(&mut self, step: u64, transfer: &SwapTransfer, kv: &mut KvArena) -> usize {
        let out = self.out.remove(&transfer.id).expect("a request that swaps in has swapped out");
        let pairs = out.blocks.iter().zip(&transfer.blocks);
        let whole = pairs.take_while(|(swapped, block)| swapped.read_all(&mut kv.pages_mut(**block))).count();
        self.totals.in_blocks += whole as u64;
        self.tell(step, out.sequence, whole, Direction::In, Why::Room);
        let lost = out.blocks.len() - whole;
        if lost > 0 {
            self.totals.damaged_blocks += lost as u64;
            self.tell(step, out.sequence, lost, Direction::Dropped, Why::Damaged);
        }
        whole
    }

    /// Frees the swap space of a request that has ended.
    pub fn forget(&mut self, step: u64, id: RequestId) {
        if let Some(out) = self.out.remove(&id) {
            self.tell(step, out.sequence, out.blocks.len(), Direction::Dropped, Why::Ended);
        }
    }
}

/// The scheduler's swap settings for a model. The costs of a block and of a token are measured on
/// this machine, before there are requests.
pub(super) fn config(
    model: &LoadedModel,
    kv: &mut KvArena,
    store: Option<&mut (dyn PrefixStore + '_)>,
    observer: &mut dyn Observer,
) -> SwapConfig {
    let settings = model.config();
    let bytes = model.layout().block_bytes() as u64;
    let num_blocks = u32::try_from(settings.swap_bytes / bytes).unwrap_or(u32::MAX);
    let spills = settings.spill_bytes > 0 && !settings.spill_freely && settings.sparse.is_none();
    let Some(store) = store.filter(|_| num_blocks > 0 || spills) else { return SwapConfig::OFF };
    if num_blocks == 0 {
        // The cost decides when a request makes room by being computed again.
        return SwapConfig { recompute_token_ns: recompute_token_ns(model, kv, observer), ..SwapConfig::OFF };
    }
    if settings.always_swap {
        return SwapConfig { num_blocks, block_ns: 0, recompute_token_ns: u64::MAX };
    }
    let block_ns = block_ns(settings.clock, kv, store);
    let swap = SwapConfig { num_blocks, block_ns, recompute_token_ns: recompute_token_ns(model, kv, observer) };
    tracing::info!(?swap, "measured the costs of swapping and recomputing");
    swap
}

fn best(clock: Clock, mut measured: impl FnMut()) -> u64 {
    let times = (0..MEASUREMENTS).map(|_| {
        let begin_ns = clock.now_ns();
        measured();
        clock.ns_since(begin_ns)
    });
    times.min().unwrap_or(u64::MAX)
}

/// Nanoseconds to copy a block in one direction.
fn block_ns(clock: Clock, kv: &mut KvArena, store: &mut dyn PrefixStore) -> u64 {
    let both = best(clock, || match store.swap_out(None, &kv.pages(0)) {
        Some(swapped) => {
            // The pages are unused at this time, so the result of the copy does not matter.
            swapped.read_all(&mut kv.pages_mut(0));
        }
        // The region may have no space now but some later: measure a plain copy instead.
        None => {
            let copy: Vec<u8> = kv.pages(0).concat();
            let pages = kv.pages_mut(0);
            let bytes = copy.len() / pages.len();
            pages.into_iter().zip(copy.chunks_exact(bytes)).for_each(|(page, from)| page.copy_from_slice(from));
        }
    });
    both / 2
}

/// Nanoseconds to compute one token of a prompt.
fn recompute_token_ns(model: &LoadedModel, kv: &mut KvArena, observer: &mut dyn Observer) -> u64 {
    let config = model.config();
    let room = (model.max_model_len() - 1).min(model.kv_blocks() * config.block_tokens);
    let count = MEASURED_TOKENS.min(config.max_num_batched_tokens).min(room).max(1);
    let tokens: Vec<TokenId> = vec![0; count];
    let block_table: Vec<u32> = (0..).take(count.div_ceil(config.block_tokens)).collect();
    let chunk = [SeqChunk {
        tokens: &tokens,
        before: &[],
        start_position: 0,
        block_table: &block_table,
        logits: LogitsOf::Nothing,
    }];
    let tokens = count as u64;
    let work = StepRecord { requests: 1, tokens, pairs: tokens * (tokens + 1) / 2, context: tokens, ns: 0 };
    let time = best(config.clock, || {
        observer.computing(&work);
        // The result does not matter, so it may lack rows of n-grams.
        let (streamer, sparse, rows) = (&mut Streamer::off(), &mut SparseDecode::off(), &mut Rows::untimed());
        let beyond = Beyond { lazy: &[], streamer, sparse, choosing: &[], rows };
        drop(model.forward_beyond(&chunk, kv, beyond));
    });
    time / tokens
}
