//! The scale of the paper, from shapes and devices.
//!
//! LLaMA-2 70B with INT8 weights and FP16 KV (§4.1.2) on eight A100 (§4.1.1). Each GPU has an eighth of
//! the weights and one of the eight KV heads, and half of an x16 link (§4.5.1: one FPGA for two GPUs).
//! One GPU is simulated; the others do the same.
//!
//! **The paper's own L1 leaves nothing to prefetch.** Its chatbot (128 + 256 tokens, 32 requests) has
//! [`chatbot_kv_bytes`] of KV over all GPUs, and its L1 has 8 to 16 GB on each. So a quarter of the
//! working set is in L1 here, which is an assumption.

use cenote_policy::choice::{ChoiceKind, ChoiceShape};
use cenote_policy::temperature::ThresholdConfig;
use cenote_serving_sim::model::{Device, ModelShape, SPECKV_L3, TierLink};
use cenote_serving_sim::tiers::dense::{Arrival, DenseSetup, FetchOrder, Placement, token_addresses};
use cenote_serving_sim::tiers::sparse::{Depth, SparseSetup};

/// GPUs that share the model (§4.1.1).
const GPUS: u64 = 8;
/// Requests of a batch (Table 2).
pub const BATCH: u32 = 32;
/// Tokens of a page: vLLM's block.
const PAGE_TOKENS: u32 = 16;
/// Tokens of a chatbot's request at its end (§4.1.2: 128 in, 256 out).
pub const CHATBOT_TOKENS: u32 = 384;
/// Pages of a request of Table 4's length, 2,048 tokens: sparse attention needs a context to choose
/// from.
pub const CONTEXT_PAGES: u32 = CONTEXT_TOKENS / PAGE_TOKENS;
/// Tokens of a request of Table 4's longest.
pub const CONTEXT_TOKENS: u32 = 2_048;
/// Share of its pages that sparse attention chooses: our assumption, as in the engine's benchmark.
const CHOSEN: u32 = CONTEXT_PAGES / 8;
/// Requests of the sparse batch: fewer than [`BATCH`], to keep the run short; each has its share of the
/// link.
const SPARSE_BATCH: u32 = 8;

fn shape() -> ModelShape {
    *ModelShape::named("llama-70b").expect("a preset")
}

/// Bytes of a page of K and V: one layer, one of eight KV heads.
fn page_bytes() -> u64 {
    let shape = shape();
    u64::from(PAGE_TOKENS) * shape.kv_bytes_per_token() / shape.layers / GPUS
}

/// Bytes of KV of the paper's chatbot batch, over all GPUs.
#[must_use]
pub fn chatbot_kv_bytes() -> u64 {
    u64::from(BATCH) * u64::from(CHATBOT_TOKENS) * shape().kv_bytes_per_token()
}

/// Nanoseconds of one layer: its INT8 weights and `kv_bytes` of KV at the speed of the GPU's memory.
fn layer_ns(kv_bytes: u64) -> u64 {
    let (shape, device) = (shape(), Device::named("a100").expect("a preset"));
    let bytes = shape.parameters / GPUS / shape.layers + kv_bytes;
    (u128::from(bytes) * 100 * 1_000_000_000
        / (u128::from(device.memory_bytes_per_s) * u128::from(device.memory_percent))) as u64
}

/// Nanoseconds of a step beside its layers.
fn step_ns() -> u64 {
    let device = Device::named("a100").expect("a preset");
    device.step_ns + u64::from(BATCH) * device.request_ns
}

/// Requests of so many tokens whose KV lies beyond L1 from the start, but for their latest `near` tokens
/// (§3.2, §3.3.1): allocated in L3 first.
#[must_use]
pub fn far_first(tokens: u32, near: u32) -> DenseSetup {
    let staged = dense_of(tokens, Arrival::Staged(3));
    DenseSetup { l1_pages: (staged.layers * BATCH * near.min(tokens) / PAGE_TOKENS) as usize, ..staged }
}

/// The chatbot batch with dense attention, a quarter of it in L1.
#[must_use]
pub fn dense(arrival: Arrival) -> DenseSetup {
    dense_of(CHATBOT_TOKENS, arrival)
}

fn dense_of(tokens: u32, arrival: Arrival) -> DenseSetup {
    let (layers, pages) = (shape().layers as u32, tokens / PAGE_TOKENS);
    DenseSetup {
        layers,
        requests: BATCH,
        pages,
        page_bytes: page_bytes(),
        layer_ns: layer_ns(u64::from(BATCH * pages) * page_bytes()),
        step_ns: step_ns(),
        l1_pages: (layers * BATCH * pages / 4) as usize,
        arrival,
        tier: SPECKV_L3,
        batch: 8,
        placement: Placement::Sequential,
        order: FetchOrder::ByRequest,
        steps: 4,
    }
}

/// The same on a tier whose eight channels share the link's bandwidth. The paper's memory channels are
/// each faster than the link, so this shows the most that a layout can gain.
#[must_use]
pub fn channels(setup: DenseSetup) -> DenseSetup {
    DenseSetup { tier: TierLink { name: "eight-channels", channels: 8, ..SPECKV_L3 }, steps: 3, ..setup }
}

/// Pages that the token predictor names for a step of the whole batch, and of them those that the step
/// reads from beyond L1. Requests have all lengths from 128 to 384 tokens.
#[must_use]
pub fn token_predictor(setup: &DenseSetup, depth: u32) -> (u64, u64) {
    let lengths = (0..setup.requests).map(|request| 128 + request * (CHATBOT_TOKENS - 128) / setup.requests);
    // L1 lacks every page but the one that the last token was written to: the best case for prediction.
    let of = |tokens: u32| token_addresses(tokens, PAGE_TOKENS, depth, |_| true);
    let add = |sum: (u64, u64), one: (u32, u32)| (sum.0 + u64::from(one.0), sum.1 + u64::from(one.1));
    let (named, useful) = lengths.map(of).fold((0, 0), add);
    (named * u64::from(setup.layers), useful * u64::from(setup.layers))
}

/// Requests of 2,048 tokens with sparse attention, an eighth of the pages chosen. L1 has a quarter of
/// the pages that a layer chooses, and the buffer a quarter of all pages: two choices of a whole step.
#[must_use]
pub fn sparse() -> SparseSetup {
    let layers = shape().layers as u32;
    let share = u64::from(BATCH / SPARSE_BATCH);
    let mut tier = SPECKV_L3;
    tier.link.bytes_per_s /= share;
    SparseSetup {
        shape: ChoiceShape { layers, groups: 1 },
        requests: SPARSE_BATCH,
        chosen: CHOSEN,
        page_bytes: page_bytes(),
        layer_ns: layer_ns(u64::from(BATCH * CHOSEN) * page_bytes()),
        step_ns: step_ns(),
        l1_pages: (CHOSEN / 4) as usize,
        buffer_pages: u64::from(layers * SPARSE_BATCH * CONTEXT_PAGES / 4),
        kind: ChoiceKind::Averaged,
        depth: Depth::Fixed(4),
        tier,
        batch: 8,
        thresholds: ThresholdConfig::default(),
        steps: 40,
        warm_steps: 10,
    }
}
