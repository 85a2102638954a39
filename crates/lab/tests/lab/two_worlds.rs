//! The engine and the simulator run the same policy code, so they swap the same requests in the
//! same order.
//!
//! Both get the same requests at the same moments: one request is computed alone, and all others
//! arrive meanwhile. All further decisions are made by the scheduler and its watermark, so the
//! traces are equal up to the last swap.

use cenote_base::engine::{Phase, Prompt, Retain};
use cenote_base::testing::PATIENCE;
use cenote_base::{
    BlockHash, ChainHasher, Clock, Engine, Event, EventSink, HashSeed, Health, Request, RequestId, SamplingParams,
    TenantKey, TokenId,
};
use cenote_engine::runtime::Direction;
use cenote_engine::{EngineConfig, LlmEngine, LoadedModel, Observer, SwapRecord};
use cenote_policy::{Eviction, Watermark};
use cenote_serving_sim::model::{CostModel, Link};
use cenote_serving_sim::serving::{Swap, swap_trace};
use cenote_serving_sim::workload::cpen;
use cenote_serving_sim::{Setup, Workload};
use cenote_store::{Computed, FarBlock, Loaded, Miss, Naming, PrefixStore, Promotion, Tenants};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

const REQUESTS: usize = 80;
const BLOCKS: u32 = 48;
const MAX_NUM_SEQS: usize = 64;
const MAX_NUM_BATCHED_TOKENS: u32 = 256;

/// A store with unlimited swap space and no shared blocks.
struct Space(ChainHasher);

struct Copy(Vec<u8>);

impl FarBlock for Copy {
    fn read(&self, page: usize, bytes: &mut [u8], _: bool) -> bool {
        bytes.copy_from_slice(&self.0[page * bytes.len()..][..bytes.len()]);
        true
    }
}

impl PrefixStore for Space {
    fn naming(&self) -> Naming {
        Naming::new(self.0.clone(), 16)
    }

    fn tenants(&self) -> Option<Box<dyn Tenants>> {
        None
    }

    fn match_prefix(&mut self, _: &[BlockHash]) -> usize {
        0
    }

    fn count_lookup(&mut self, _: usize, _: usize) {}

    fn record_request(&mut self, _: Option<TenantKey>, _: &[BlockHash], _: u32) -> Option<u64> {
        None
    }

    fn record_answer(&mut self, _: u64, _: u32) {}

    fn missed(&mut self, _: Miss) {}

    fn promotable(&self, _: Option<TenantKey>, _: &[BlockHash]) -> usize {
        0
    }

    fn promote(&mut self, _: Option<TenantKey>, _: &[BlockHash]) -> Option<Promotion> {
        None
    }

    fn has_computed(&mut self, _: u64, _: u64, _: u64) {}

    fn load(&mut self, _: BlockHash, _: &mut [&mut [u8]]) -> Loaded {
        unreachable!("nothing matches")
    }

    fn save_all(&mut self, _: Option<TenantKey>, blocks: &[Computed<'_>]) -> usize {
        blocks.len()
    }

    fn swap_out(&mut self, _: Option<TenantKey>, pages: &[&[u8]]) -> Option<Box<dyn FarBlock>> {
        Some(Box::new(Copy(pages.concat())))
    }

    fn open(&mut self, _: BlockHash, _: usize) -> Option<Box<dyn FarBlock>> {
        None
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn hold(&mut self, _: &[BlockHash], _: u64) -> u64 {
        0
    }

    fn release(&mut self, _: u64) {}

    fn retain(&mut self, _: Option<TenantKey>, _: &[BlockHash], _: &Retain) {}

    fn stats(&self) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }

    fn health(&self) -> Health {
        Health::Ok
    }
}

type Trace = Arc<Mutex<Vec<Swap>>>;

struct Recorder(Trace);

impl Observer for Recorder {
    fn swapped(&mut self, record: &SwapRecord) {
        let sequence = u32::try_from(record.sequence).unwrap();
        self.0.lock().unwrap().push(match record.direction {
            Direction::Out => Swap::Out(sequence),
            Direction::In => Swap::In(sequence),
            Direction::Dropped => panic!("the swap space holds all requests: {record:?}"),
        });
    }
}

/// The first request alone, all others one nanosecond later.
fn load(seed: u64) -> Workload {
    let drawn = cpen(REQUESTS, 0.7, seed);
    let others = drawn.requests().iter().map(|request| (1, request.input_tokens, request.output_tokens));
    Workload::alone(16, std::iter::once((0, 16, 1)).chain(others))
}

fn asked(id: u64, prompt: Vec<TokenId>, output_tokens: u32) -> Request {
    Request {
        id: RequestId(id),
        prompt: Prompt::Tokens(prompt),
        sampling: SamplingParams {
            temperature: 0.0,
            max_tokens: Some(output_tokens),
            ignore_eos: true,
            ..SamplingParams::default()
        },
        phase: Phase::Whole,
        use_pool: true,
        cache_salt: None,
        tenant: None,
        priority: 0,
        label: None,
        continues_in_ms: None,
        retain: None,
        timeout_ms: PATIENCE.as_millis() as u64,
    }
}

fn engine_swaps(watermark: &Watermark, load: &Workload) -> Vec<Swap> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    let config = EngineConfig {
        threads: 1,
        kv_blocks: Some(BLOCKS as usize),
        max_model_len: Some(16 * BLOCKS as usize),
        max_num_seqs: MAX_NUM_SEQS,
        max_num_batched_tokens: MAX_NUM_BATCHED_TOKENS as usize,
        watermark: watermark.clone(),
        swap_bytes: 1 << 30,
        always_swap: true,
        ..EngineConfig::new(model, Clock::system())
    };
    let trace = Trace::default();
    let store = Box::new(Space(ChainHasher::new(&HashSeed([7; 32]), &[1; 32])));
    let recorder = Box::new(Recorder(Arc::clone(&trace)));
    let engine = LlmEngine::start_observed(LoadedModel::load(&config).unwrap(), Some(store), recorder).unwrap();
    // The sink of the first token blocks the engine's thread. The others are submitted meanwhile.
    // Then a too long request is submitted: its refusal shows that the tokenizing thread has
    // forwarded all others.
    let (all_sent, are_sent) = channel();
    let (computed, is_computed) = channel();
    let mut gate = Some((computed, are_sent));
    let (ended, ends) = channel();
    for (id, request) in (0..).zip(load.requests()) {
        let prompt = (0..request.input_tokens).map(|at| 100 + (7 * id as u32 + at) % 3_000).collect();
        let ended = ended.clone();
        let mut gate = gate.take();
        let sink: EventSink = Box::new(move |event| {
            if let Some((computed, are_sent)) = gate.take() {
                computed.send(()).unwrap();
                are_sent.recv_timeout(PATIENCE).unwrap();
            }
            if !matches!(event, Event::Token { .. }) {
                ended.send((id, event)).unwrap();
            }
            true
        });
        engine.submit(asked(id, prompt, request.output_tokens), sink).unwrap();
        if id == 0 {
            is_computed.recv_timeout(PATIENCE).unwrap();
        }
    }
    let too_long = asked(load.requests().len() as u64, vec![1; 16 * BLOCKS as usize + 1], 1);
    engine.submit(too_long, Box::new(move |_| all_sent.send(()).is_ok())).unwrap();
    for _ in load.requests() {
        let (id, event) = ends.recv_timeout(PATIENCE).unwrap();
        let Event::Finished { usage, .. } = event else { panic!("request {id}: {event:?}") };
        assert_eq!(usage.completion_tokens, load.requests()[id as usize].output_tokens, "request {id}");
    }
    assert!(engine.drain(Clock::system().after(PATIENCE)));
    drop(engine);
    trace.lock().unwrap().clone()
}

fn simulated_swaps(watermark: &Watermark, load: &Workload) -> Vec<Swap> {
    let setup = Setup {
        instances: 1,
        // A step longer than the interval to the other arrivals, so that times decide nothing.
        cost: CostModel { step_ns: 1_000, ..CostModel::default() },
        front_ns: 0,
        kv_bytes_per_token: 1,
        l1_blocks: BLOCKS,
        l1_block_tokens: 16,
        max_num_seqs: MAX_NUM_SEQS,
        max_num_batched_tokens: MAX_NUM_BATCHED_TOKENS,
        watermark: watermark.clone(),
        swap_blocks: 1 << 14,
        has_prefix_cache: false,
        swap_link: Link { bytes_per_s: 1 << 30, latency_ns: 0 },
        always_swap: true,
        spill: None,
        private: None,
        shared: None,
        hosts: None,
        eviction: Eviction::Lru,
    };
    swap_trace(&setup, load).unwrap().1
}

#[test]
fn the_engine_and_the_simulator_swap_the_same_requests() {
    let rules = ["fixed:0.01", "fixed:0.05", "opt:6", "avg-above:3.6", "avg-below:1.8", "avg-below:7.5", "learned"];
    let mut swapped = Vec::new();
    for (seed, rule) in (1..).zip(rules) {
        let (watermark, load) = (rule.parse().unwrap(), load(seed));
        let (engine, simulator) = (engine_swaps(&watermark, &load), simulated_swaps(&watermark, &load));
        assert!(engine == simulator, "{rule}:\n{engine:?}\n{simulator:?}");
        if !engine.is_empty() {
            swapped.push(rule);
        }
    }
    assert!(["fixed:0.01", "avg-below:1.8"].iter().all(|rule| swapped.contains(rule)), "only {swapped:?} swapped");
}
