//! Swapped-out requests give the same tokens as requests that always fit.

use crate::common::region::{open, pool};
use crate::common::{
    Cost, MemoryStore, Pace, alone, collect, config, crowd, exact, forwarded, greedy, model_dir, patience, prompt,
    request, submit_together,
};
use cenote_base::engine::Retain;
use cenote_base::testing::{ManualTime, PATIENCE};
use cenote_base::{BlockHash, Engine, Health, Request, TenantKey, TokenId};
use cenote_engine::runtime::{Direction, Why};
use cenote_engine::{EngineConfig, LlmEngine, LoadedModel, Observer, StepRecord, SwapRecord};
use cenote_mem::{Coherent, Fabric, Offset};
use cenote_policy::Watermark;
use cenote_store::{Computed, FarBlock, Loaded, Miss, Naming, PrefixStore, Promotion, RegionStore, Tenants};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Fourteen KV blocks, which two or three of the requests fill.
fn crowded(dir: &Path) -> EngineConfig {
    EngineConfig {
        max_num_batched_tokens: 24,
        kv_blocks: Some(14),
        max_model_len: Some(160),
        max_num_seqs: 8,
        swap_bytes: 64 << 20,
        always_swap: true,
        ..config(dir)
    }
}

fn requests() -> Vec<Request> {
    (0..12).map(|seed| request(prompt(seed, 9 * seed as usize + 1), greedy(40))).collect()
}

type Trace = Arc<Mutex<Vec<SwapRecord>>>;

struct Sink(Trace);

impl Observer for Sink {
    fn swapped(&mut self, record: &SwapRecord) {
        self.0.lock().unwrap().push(*record);
    }
}

/// A trace of an engine in manual time.
struct PacedSink(Pace, Sink);

impl Observer for PacedSink {
    fn computing(&mut self, work: &StepRecord) {
        self.0.computing(work);
    }

    fn swapped(&mut self, record: &SwapRecord) {
        self.1.swapped(record);
    }
}

fn start_traced(config: &EngineConfig, store: Box<dyn PrefixStore>) -> (LlmEngine, Trace) {
    let trace = Trace::default();
    let sink = Box::new(Sink(Arc::clone(&trace)));
    let engine = LlmEngine::start_observed(LoadedModel::load(config).unwrap(), Some(store), sink).unwrap();
    (engine, trace)
}

#[test]
fn swapping_does_not_change_tokens() {
    let dir = model_dir("gqa-untied-llama3");
    let requests = requests();
    let expected = alone(&config(dir.path()), &requests);
    let watermarks = ["fixed:0.01", "opt:3", "avg-below:2", "learned"].map(|name| name.parse::<Watermark>().unwrap());
    for watermark in watermarks {
        let (_, pool) = pool(8 << 20);
        let store = open(dir.path(), &pool);
        let config = EngineConfig { watermark: watermark.clone(), ..crowded(dir.path()) };
        let (engine, trace) = start_traced(&config, store);
        let (tokens, stats) = crowd(&engine, &requests);
        assert!(tokens == expected, "{watermark}");
        let trace = trace.lock().unwrap();
        assert!(stats["swaps_total"] > 0.0 && stats["swaps_refused_total"] == 0.0, "{watermark}: {stats:?}");
        assert_eq!(stats["preemptions_total"], count(&trace, Direction::Dropped, None).0 as f64, "{watermark}");
        let (out, out_blocks) = count(&trace, Direction::Out, Some(Why::Pressure));
        let (back, in_blocks) = count(&trace, Direction::In, Some(Why::Room));
        assert_eq!((out, out_blocks), (back, in_blocks), "every request that swapped out came back whole");
        assert_eq!((out as f64, out_blocks as f64), (stats["swaps_total"], stats["swap_out_blocks_total"]));
        assert!(trace.is_sorted_by_key(|record| record.step));
        drop(engine);
        assert_eq!(pool.check(true).unwrap().reserved, 0, "no reservation is left");
    }
}

fn count(trace: &[SwapRecord], direction: Direction, why: Option<Why>) -> (usize, u64) {
    let of = trace.iter().filter(|record| record.direction == direction && why.is_none_or(|why| record.why == why));
    of.fold((0, 0), |(count, blocks), record| (count + 1, blocks + u64::from(record.blocks)))
}

/// The costs of a token and of a block are measured before there are requests, and decide.
#[test]
fn measured_costs_choose_between_swapping_and_recomputing() {
    let dir = model_dir("gqa-tied");
    let requests = requests();
    let expected = alone(&config(dir.path()), &requests);
    let token = Duration::from_micros(20);
    // There and back, a block takes as long as one of its tokens, or longer than all 16.
    for (both_ways, swaps) in [(token, true), (16 * token + Duration::from_micros(1), false)] {
        let (time, trace, store) = (ManualTime::start(), Trace::default(), MemoryStore::default());
        {
            let mut shared = store.shared.lock().unwrap();
            (shared.swap_room, shared.swap_time) = (usize::MAX, Some((time, both_ways)));
        }
        let undecided = EngineConfig { always_swap: false, ..crowded(dir.path()) };
        let model = LoadedModel::load(&exact(undecided, time)).unwrap();
        let pace = Pace { time, cost: Cost { step: Duration::ZERO, token } };
        let observer = Box::new(PacedSink(pace, Sink(Arc::clone(&trace))));
        let engine = LlmEngine::start_observed(model, Some(Box::new(store)), observer).unwrap();
        let (tokens, stats) = crowd(&engine, &requests);
        assert!(tokens == expected);
        let dropped = |why| count(&trace.lock().unwrap(), Direction::Dropped, Some(why)).0 as f64;
        assert_eq!(stats["swaps_total"] > 0.0, swaps, "{stats:?}");
        assert_eq!(dropped(Why::Quicker) > 0.0, !swaps, "{stats:?}");
        assert_eq!(stats["preemptions_total"], dropped(Why::Quicker) + dropped(Why::Empty));
    }
}

#[test]
fn a_full_region_makes_requests_recompute() {
    let dir = model_dir("gqa-tied");
    let requests = requests();
    let (_, pool) = pool(8 << 20);
    let store = open(dir.path(), &pool);
    let taken = std::iter::from_fn(|| pool.allocate(256 << 10).ok()).count();
    assert!(taken > 16, "the region is full");
    let (engine, trace) = start_traced(&crowded(dir.path()), store);
    let (tokens, stats) = crowd(&engine, &requests);
    assert!(tokens == alone(&config(dir.path()), &requests));
    assert!(stats["swaps_refused_total"] > 0.0 && stats["swaps_total"] == 0.0, "{stats:?}");
    assert_eq!(
        count(&trace.lock().unwrap(), Direction::Dropped, Some(Why::Refused)).0 as f64,
        stats["swaps_refused_total"]
    );
}

/// A region store in which every third swapped block loses a bit.
struct Leaky {
    store: RegionStore<Arc<Coherent>>,
    fabric: Arc<Coherent>,
    swapped: usize,
}

impl PrefixStore for Leaky {
    fn naming(&self) -> Naming {
        self.store.naming()
    }

    fn tenants(&self) -> Option<Box<dyn Tenants>> {
        self.store.tenants()
    }

    fn match_prefix(&mut self, names: &[BlockHash]) -> usize {
        self.store.match_prefix(names)
    }

    fn count_lookup(&mut self, blocks: usize, found: usize) {
        self.store.count_lookup(blocks, found);
    }

    fn record_request(&mut self, of: Option<TenantKey>, names: &[BlockHash], tokens: u32) -> Option<u64> {
        self.store.record_request(of, names, tokens)
    }

    fn record_answer(&mut self, number: u64, tokens: u32) {
        self.store.record_answer(number, tokens);
    }

    fn missed(&mut self, miss: Miss) {
        self.store.missed(miss);
    }

    fn promotable(&self, of: Option<TenantKey>, names: &[BlockHash]) -> usize {
        self.store.promotable(of, names)
    }

    fn promote(&mut self, of: Option<TenantKey>, names: &[BlockHash]) -> Option<Promotion> {
        self.store.promote(of, names)
    }

    fn has_computed(&mut self, tokens: u64, pairs: u64, ns: u64) {
        self.store.has_computed(tokens, pairs, ns);
    }

    fn load(&mut self, hash: BlockHash, pages: &mut [&mut [u8]]) -> Loaded {
        self.store.load(hash, pages)
    }

    fn save_all(&mut self, of: Option<TenantKey>, blocks: &[Computed<'_>]) -> usize {
        self.store.save_all(of, blocks)
    }

    fn swap_out(&mut self, of: Option<TenantKey>, pages: &[&[u8]]) -> Option<Box<dyn FarBlock>> {
        let swapped = self.store.swap_out(of, pages)?;
        self.swapped += 1;
        if self.swapped.is_multiple_of(3) {
            let word = |at: usize| u64::from_le_bytes(pages[0][8 * at..8 * at + 8].try_into().unwrap());
            // Damages every copy of these pages, published ones too.
            for at in (0..self.fabric.len()).step_by(64) {
                if (0..8).all(|index| self.fabric.load(Offset::<u64>::new(at + 8 * index)) == word(index as usize)) {
                    self.fabric.store(Offset::new(at), word(0) ^ 1);
                }
            }
        }
        Some(swapped)
    }

    fn open(&mut self, hash: BlockHash, parts: usize) -> Option<Box<dyn FarBlock>> {
        self.store.open(hash, parts)
    }

    fn is_exact(&self) -> bool {
        self.store.is_exact()
    }

    fn hold(&mut self, hashes: &[BlockHash], ttl_ms: u64) -> u64 {
        self.store.hold(hashes, ttl_ms)
    }

    fn release(&mut self, ticket: u64) {
        self.store.release(ticket);
    }

    fn retain(&mut self, of: Option<TenantKey>, names: &[BlockHash], retain: &Retain) {
        self.store.retain(of, names, retain);
    }

    fn stats(&self) -> BTreeMap<String, f64> {
        self.store.stats()
    }

    fn health(&self) -> Health {
        self.store.health()
    }
}

#[test]
fn damaged_swapped_blocks_are_recomputed() {
    let dir = model_dir("gqa-tied");
    let requests = requests();
    let (fabric, pool) = pool(8 << 20);
    let store = Leaky { store: *open(dir.path(), &pool), fabric, swapped: 0 };
    let (engine, trace) = start_traced(&crowded(dir.path()), Box::new(store));
    let (tokens, stats) = crowd(&engine, &requests);
    assert!(tokens == alone(&config(dir.path()), &requests));
    let (_, lost) = count(&trace.lock().unwrap(), Direction::Dropped, Some(Why::Damaged));
    assert!(lost > 0 && stats["pool_reads_damaged_total"] > 0.0, "{stats:?}");
    assert_eq!(stats["swap_damaged_blocks_total"], lost as f64);
    assert_eq!(stats["swap_in_blocks_total"] + lost as f64, stats["swap_out_blocks_total"]);
}

/// Refused swaps, lost blocks, a small swap space and lazy blocks together.
#[test]
fn tokens_survive_all_swap_failures_together() {
    let dir = model_dir("gqa-untied-llama3");
    let mut requests = requests();
    requests[7].use_pool = false;
    let expected = alone(&config(dir.path()), &requests);
    let block_bytes = LoadedModel::load(&config(dir.path())).unwrap().layout().block_bytes() as u64;
    let wanted = [Why::Pressure, Why::Room, Why::SwapFull, Why::Damaged, Why::Refused];
    let store = MemoryStore::default();
    {
        let mut shared = store.shared.lock().unwrap();
        (shared.swap_room, shared.swap_damage, shared.pending) = (12, Some(5), true);
    }
    let config = EngineConfig { swap_bytes: 5 * block_bytes, ..crowded(dir.path()) };
    let (engine, trace) = start_traced(&config, Box::new(store));
    let (tokens, _) = crowd(&engine, &requests);
    assert!(tokens == expected);
    let seen: Vec<Why> = trace.lock().unwrap().iter().map(|record| record.why).collect();
    assert!(wanted.iter().all(|why| seen.contains(why)), "expected all of {wanted:?}, saw only {seen:?}");
}

/// Blocks the engine's thread when the first request is swapped out.
struct AtSwapOut {
    trace: Trace,
    /// Gets the request's number, and waits until the test goes on.
    gate: Option<(Sender<u64>, Receiver<()>)>,
}

impl Observer for AtSwapOut {
    fn swapped(&mut self, record: &SwapRecord) {
        self.trace.lock().unwrap().push(*record);
        if record.direction == Direction::Out
            && let Some((sender, go)) = self.gate.take()
        {
            sender.send(record.sequence).unwrap();
            go.recv_timeout(PATIENCE).unwrap();
        }
    }
}

#[test]
fn a_request_that_ends_while_swapped_out_leaves_no_reservation() {
    let dir = model_dir("gqa-tied");
    let (_, pool) = pool(8 << 20);
    let (sender, out) = channel();
    let (go, gone) = channel();
    let trace = Trace::default();
    let observer = AtSwapOut { trace: Arc::clone(&trace), gate: Some((sender, gone)) };
    let model = LoadedModel::load(&crowded(dir.path())).unwrap();
    let engine = LlmEngine::start_observed(model, Some(open(dir.path(), &pool)), Box::new(observer)).unwrap();
    let requests: Vec<_> = (0..8).map(|seed| request(prompt(seed, 60), greedy(90))).collect();
    let events = submit_together(&engine, &requests);
    let out = out.recv_timeout(PATIENCE).expect("a request is swapped out");
    engine.abort(requests[out as usize].id);
    forwarded(&engine);
    go.send(()).unwrap();
    let ended: Vec<_> = events.iter().map(collect).collect();
    let failed: Vec<u64> = (0..8).filter(|&at| ended[at as usize].is_err()).collect();
    assert_eq!(failed, [out]);
    let last = *trace.lock().unwrap().iter().rfind(|record| record.sequence == out).unwrap();
    assert_eq!((last.direction, last.why), (Direction::Dropped, Why::Ended));
    assert!(engine.drain(patience()));
    drop(engine);
    assert_eq!(pool.check(true).unwrap().reserved, 0);
}

/// A preempted request looked its prompt up again, and hashed it again.
#[test]
fn names_of_a_preempted_request_are_computed_once() {
    let dir = model_dir("gqa-tied");
    let requests = requests();
    let (store, config) = (MemoryStore::default(), EngineConfig { swap_bytes: 0, ..crowded(dir.path()) });
    let naming = store.naming.clone();
    let (engine, _) = start_traced(&config, Box::new(store));
    let (tokens, stats) = crowd(&engine, &requests);
    assert!(stats["preemptions_total"] > 0.0, "{stats:?}");
    // The KV of the last token is never computed.
    let blocks = |(seed, tokens): (usize, &Vec<TokenId>)| (9 * seed + 1 + tokens.len() - 1) / 16;
    let named: usize = tokens.iter().enumerate().map(blocks).sum();
    assert_eq!(naming.computed(), named as u64);
}
