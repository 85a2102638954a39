//! Swapped-out requests give the same tokens as requests that always fit.

use crate::common::region::{open, pool};
use crate::common::{MemoryStore, alone, collect, config, crowd, greedy, model_dir, prompt, request, submit};
use cenote_base::{BlockHash, CacheSalt, Clock, Engine, Request, TokenId};
use cenote_engine::runtime::{Direction, Why};
use cenote_engine::{EngineConfig, LlmEngine, LoadedModel, Observer, SwapRecord};
use cenote_mem::{Coherent, Fabric, Offset};
use cenote_policy::Watermark;
use cenote_store::{Computed, FarBlock, Loaded, PrefixMatch, PrefixStore, RegionStore};
use std::collections::BTreeMap;
use std::path::Path;
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

/// The costs are measured on this machine, so either choice may occur; the tokens are the same.
#[test]
fn measured_costs_choose_between_swapping_and_recomputing() {
    let dir = model_dir("gqa-tied");
    let requests = requests();
    let (_, pool) = pool(8 << 20);
    let undecided = EngineConfig { always_swap: false, ..crowded(dir.path()) };
    let (engine, trace) = start_traced(&undecided, open(dir.path(), &pool));
    let (tokens, stats) = crowd(&engine, &requests);
    assert!(tokens == alone(&config(dir.path()), &requests));
    assert!(stats["swaps_total"] + stats["preemptions_total"] > 0.0, "{stats:?}");
    let explained =
        [Why::Quicker, Why::Empty].map(|why| count(&trace.lock().unwrap(), Direction::Dropped, Some(why)).0);
    assert_eq!(stats["preemptions_total"], explained.iter().sum::<usize>() as f64);
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
    fn root(&self, salt: &CacheSalt) -> BlockHash {
        self.store.root(salt)
    }

    fn match_prefix(&mut self, root: Option<BlockHash>, tokens: &[TokenId]) -> PrefixMatch {
        self.store.match_prefix(root, tokens)
    }

    fn load(&mut self, hash: BlockHash, pages: &mut [&mut [u8]]) -> Loaded {
        self.store.load(hash, pages)
    }

    fn save_all(&mut self, blocks: &[Computed<'_>]) -> usize {
        self.store.save_all(blocks)
    }

    fn swap_out(&mut self, pages: &[&[u8]]) -> Option<Box<dyn FarBlock>> {
        let swapped = self.store.swap_out(pages)?;
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

    fn block_hash(&self, parent: Option<BlockHash>, tokens: &[TokenId]) -> BlockHash {
        self.store.block_hash(parent, tokens)
    }

    fn hold(&mut self, hashes: &[BlockHash], ttl_ms: u64) -> u64 {
        self.store.hold(hashes, ttl_ms)
    }

    fn release(&mut self, ticket: u64) {
        self.store.release(ticket);
    }

    fn stats(&self) -> BTreeMap<String, f64> {
        self.store.stats()
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
    let mut seen = Vec::new();
    // The arrival order varies and decides which failures occur.
    for _ in 0..20 {
        let store = MemoryStore::default();
        {
            let mut shared = store.shared.lock().unwrap();
            (shared.swap_room, shared.swap_damage, shared.pending) = (20, Some(5), true);
        }
        let config = EngineConfig { swap_bytes: 12 * block_bytes, ..crowded(dir.path()) };
        let (engine, trace) = start_traced(&config, Box::new(store));
        let (tokens, _) = crowd(&engine, &requests);
        assert!(tokens == expected);
        seen.extend(trace.lock().unwrap().iter().map(|record| record.why));
        if wanted.iter().all(|why| seen.contains(why)) {
            return;
        }
    }
    panic!("expected all of {wanted:?}, saw only {seen:?}");
}

#[test]
fn a_request_that_ends_while_swapped_out_leaves_no_reservation() {
    let dir = model_dir("gqa-tied");
    let (_, pool) = pool(8 << 20);
    let (engine, trace) = start_traced(&crowded(dir.path()), open(dir.path(), &pool));
    let requests: Vec<_> = (0..8).map(|seed| request(prompt(seed, 60), greedy(90))).collect();
    let events: Vec<_> = requests.iter().map(|request| submit(&engine, request.clone()).unwrap()).collect();
    let deadline = Clock::system().after(Duration::from_secs(60));
    let is_out = |sequence: u64| {
        let trace = trace.lock().unwrap();
        let last = trace.iter().rfind(|record| record.sequence == sequence);
        last.is_some_and(|record| record.direction == Direction::Out)
    };
    let out = loop {
        if let Some(out) = (0..8).find(|&sequence| is_out(sequence)) {
            break out;
        }
        assert!(!deadline.passed(), "no request was swapped out");
        std::thread::yield_now();
    };
    engine.abort(requests[out as usize].id);
    let ended: Vec<_> = events.iter().map(collect).collect();
    assert!(ended.iter().filter(|ended| ended.is_ok()).count() >= 7);
    assert!(engine.drain(deadline));
    drop(engine);
    assert_eq!(pool.check(true).unwrap().reserved, 0);
}
