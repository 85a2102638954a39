//! Memory in front of the region changes no token, and its division follows measured loads.

use crate::common::engram::Tiny;
use crate::common::{MemoryStore, alone, config, crowd, greedy, patience, request, run};
use cenote_base::engine::{Prompt, Retain};
use cenote_base::testing::ManualTime;
use cenote_base::{BlockHash, Deadline, Engine, Health, Request, TenantKey};
use cenote_engine::engram::{Fetch, FetchError, Fetched, FileTables, InMemoryTables, RowBuffer, RowTables, TableShape};
use cenote_engine::near::NearMemory;
use cenote_engine::{EngineConfig, LlmEngine, LoadedModel};
use cenote_engram::Stored;
use cenote_store::{Computed, FarBlock, Loaded, Miss, Naming, PrefixStore, Promotion, Tenants};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Requests whose prompts share a head of `head` tokens.
fn requests(tiny: &Tiny, head: usize) -> Vec<Request> {
    let of = |seed: u64| {
        let mut tokens = tiny.tokens(100, head);
        tokens.extend(tiny.tokens(seed, 40));
        request(Prompt::Tokens(tokens), greedy(8))
    };
    (0..6).map(of).collect()
}

fn memory(tiny: &Tiny) -> Arc<InMemoryTables> {
    let own = FileTables::open(tiny.path(), &tiny.addresses).unwrap().unwrap();
    Arc::new(InMemoryTables::load(&own).unwrap())
}

#[test]
fn copies_change_no_token_whatever_room_they_have() {
    let tiny = Tiny::new();
    let requests = requests(&tiny, 64);
    let expected = alone(&config(tiny.path()), &requests);
    for pending in [false, true] {
        // Room for nothing, for a few blocks, and for all.
        for near_bytes in [64, 200 << 10, 64 << 20] {
            let store = MemoryStore::default();
            store.shared.lock().unwrap().pending = pending;
            let config = EngineConfig { near_bytes, ..config(tiny.path()) };
            let model = LoadedModel::load_with(&config, Some(memory(&tiny))).unwrap();
            let engine = LlmEngine::start(model, Some(Box::new(store.clone()))).unwrap();
            let mut stats = BTreeMap::new();
            for _ in 0..3 {
                let tokens;
                (tokens, stats) = crowd(&engine, &requests);
                assert_eq!(tokens, expected);
            }
            let [kv, rows] = ["near_kv", "near_rows"].map(|of| stats[&format!("{of}_bytes_max")]);
            assert!(stats["near_kv_bytes"] <= kv && stats["near_rows_bytes"] <= rows, "{stats:?}");
            assert!(kv + rows <= near_bytes as f64);
            let loads = store.shared.lock().unwrap().loads as f64;
            assert_eq!(stats["near_kv_misses_total"], loads, "{stats:?}");
            let hits = ["near_kv", "near_rows"].map(|of| stats[&format!("{of}_hits_total")]);
            match (near_bytes, pending) {
                (64, _) => assert_eq!(hits, [0.0; 2], "{stats:?}"),
                // Encoded blocks are decoded by the step and not kept.
                (_, true) => assert!(hits[0] == 0.0 && hits[1] > 0.0, "{stats:?}"),
                (_, false) => assert!(hits[0] > 0.0 && hits[1] > 0.0, "{stats:?}"),
            }
        }
    }
}

/// A block that the store has lost is a miss although there is a copy: the copy is never asked for.
#[test]
fn a_block_that_no_longer_matches_is_not_read_from_its_copy() {
    let tiny = Tiny::new();
    let store = MemoryStore::default();
    let config = EngineConfig { near_bytes: 64 << 20, ..config(tiny.path()) };
    let engine = crate::common::start(&config, Some(store.clone()));
    let prompt = requests(&tiny, 64).remove(0);
    let expected = run(&engine, prompt.clone()).unwrap().tokens;
    let cached = || run(&engine, prompt.clone()).unwrap();
    assert_eq!((cached().usage.cached_tokens, cached().usage.cached_tokens), (96, 96));
    store.shared.lock().unwrap().blocks.clear();
    let after = cached();
    assert_eq!((after.usage.cached_tokens, after.tokens), (0, expected));
}

/// Without far rows, blocks have all the memory.
#[test]
fn private_tables_are_not_copied() {
    let tiny = Tiny::new();
    let config = EngineConfig { near_bytes: 1 << 20, ..config(tiny.path()) };
    let engine = crate::common::start(&config, Some(MemoryStore::default()));
    run(&engine, requests(&tiny, 0).remove(0)).unwrap();
    let stats = engine.stats().values;
    assert_eq!((stats["near_kv_bytes_max"], stats["near_rows_bytes_max"]), ((1 << 20) as f64, 0.0));
}

const BLOCK_BYTES: usize = 16 << 10;
const BLOCK_NS: u64 = 16_000;
const ROW_VALUES: usize = 32;
const ROW_NS: u64 = 400;

/// A region behind a link: it has each block and each row.
/// Its time passes only by far reads.
#[derive(Clone)]
struct Link(&'static ManualTime, Arc<AtomicBool>);

impl Link {
    fn new(time: &'static ManualTime) -> Self {
        Self(time, Arc::default())
    }
}

impl PrefixStore for Link {
    fn load(&mut self, hash: BlockHash, pages: &mut [&mut [u8]]) -> Loaded {
        self.0.advance(Duration::from_nanos(BLOCK_NS));
        pages.iter_mut().for_each(|page| page.fill(hash.words()[0] as u8));
        Loaded::Whole
    }

    fn naming(&self) -> Naming {
        unreachable!()
    }

    fn tenants(&self) -> Option<Box<dyn Tenants>> {
        None
    }

    fn match_prefix(&mut self, _: &[BlockHash]) -> usize {
        unreachable!()
    }

    fn count_lookup(&mut self, _: usize, _: usize) {
        unreachable!()
    }

    fn record_request(&mut self, _: Option<TenantKey>, _: &[BlockHash], _: u32) -> Option<u64> {
        unreachable!()
    }

    fn record_answer(&mut self, _: u64, _: u32) {
        unreachable!()
    }

    fn missed(&mut self, _: Miss) {
        unreachable!()
    }

    fn promotable(&self, _: Option<TenantKey>, _: &[BlockHash]) -> usize {
        unreachable!()
    }

    fn promote(&mut self, _: Option<TenantKey>, _: &[BlockHash]) -> Option<Promotion> {
        unreachable!()
    }

    fn has_computed(&mut self, _: u64, _: u64, _: u64) {
        unreachable!()
    }

    fn save_all(&mut self, _: Option<TenantKey>, _: &[Computed<'_>]) -> usize {
        unreachable!()
    }

    fn swap_out(&mut self, _: Option<TenantKey>, _: &[&[u8]]) -> Option<Box<dyn FarBlock>> {
        unreachable!()
    }

    fn open(&mut self, _: BlockHash, _: usize) -> Option<Box<dyn FarBlock>> {
        unreachable!()
    }

    fn is_exact(&self) -> bool {
        unreachable!()
    }

    fn hold(&mut self, _: &[BlockHash], _: u64) -> u64 {
        unreachable!()
    }

    fn release(&mut self, _: u64) {
        unreachable!()
    }

    fn retain(&mut self, _: Option<TenantKey>, _: &[BlockHash], _: &Retain) {
        unreachable!()
    }

    fn stats(&self) -> BTreeMap<String, f64> {
        unreachable!()
    }

    fn health(&self) -> Health {
        unreachable!()
    }
}

impl RowTables for Link {
    fn layers(&self) -> &[TableShape] {
        &[TableShape { layer: 0, rows: 1 << 20, values: ROW_VALUES, stored: Stored::Bf16 }]
    }

    fn digest(&self) -> [u8; 32] {
        [0; 32]
    }

    fn start(&self, _: usize, rows: &[u64], into: RowBuffer) -> Box<dyn Fetch> {
        Box::new(LinkFetch { link: self.clone(), rows: rows.to_vec(), into })
    }
}

struct LinkFetch {
    link: Link,
    rows: Vec<u64>,
    into: RowBuffer,
}

impl Fetch for LinkFetch {
    fn poll(&mut self) -> bool {
        false
    }

    fn finish(mut self: Box<Self>, _: Deadline) -> Result<Fetched, FetchError> {
        if self.link.1.load(Ordering::Relaxed) {
            return Err(FetchError::Late);
        }
        self.link.0.advance(Duration::from_nanos(ROW_NS * self.rows.len() as u64));
        for (place, row) in self.rows.iter().enumerate() {
            self.into.set_bf16(place, &row_bits(*row));
        }
        // Every seventh row is damaged in the region.
        let missing = (0..self.rows.len()).filter(|&place| self.rows[place] % 7 == 6).collect();
        Ok(Fetched { rows: self.into, missing, failure: None, ns: 0 })
    }
}

/// Bits of a row: small positive numbers.
fn row_bits(row: u64) -> [u16; ROW_VALUES] {
    std::array::from_fn(|at| 0x3f80 + (row as usize * 5 + at) as u16 % 64)
}

/// Reads `hot` blocks and rows in turn, in `rounds` rounds. Returns the link's time per round.
fn load(near: &NearMemory, time: &'static ManualTime, hot: [u64; 2], rounds: u64) -> u64 {
    let mut store = near.store(Box::new(Link::new(time)), 64);
    let tables = near.tables(Arc::new(Link::new(time)), 1);
    let (begin_ns, mut block) = (time.clock().now_ns(), vec![0_u8; BLOCK_BYTES]);
    for _ in 0..rounds {
        for name in 0..hot[0] {
            let hash = BlockHash::from_words([name.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1, name]);
            let (key, value) = block.split_at_mut(BLOCK_BYTES / 2);
            assert!(store.load(hash, &mut [key, value]).finish(&mut []));
            assert!(block.iter().all(|byte| *byte == hash.words()[0] as u8));
        }
        for first in (0..hot[1]).step_by(64) {
            let rows: Vec<u64> = (first..hot[1].min(first + 64)).collect();
            let fetch = tables.start(0, &rows, RowBuffer::new(rows.len(), ROW_VALUES));
            let Fetched { rows: found, missing, .. } = fetch.finish(patience()).unwrap();
            let lost: Vec<usize> = (0..rows.len()).filter(|&place| rows[place] % 7 == 6).collect();
            assert_eq!(missing, lost, "and they have no copies");
            for (place, row) in rows.iter().enumerate().filter(|(_, row)| **row % 7 != 6) {
                let values = &found.values()[place * ROW_VALUES..][..ROW_VALUES];
                let expected = row_bits(*row).map(|bits| f32::from_bits(u32::from(bits) << 16));
                assert_eq!(values, expected, "row {row}");
            }
        }
    }
    (time.clock().now_ns() - begin_ns) / rounds
}

/// Memory of 64 blocks. Loads need it for blocks, for rows, and for blocks again.
#[test]
fn the_division_follows_the_load() {
    let time = ManualTime::start();
    let near = NearMemory::new(64 * (BLOCK_BYTES as u64 + 80), BLOCK_BYTES, Some(ROW_VALUES), time.clock());
    let of = |near: &NearMemory| near.counts().bytes_max;
    assert_eq!(of(&near)[0], of(&near)[1], "half and half");
    for _ in 0..2 {
        // A loop hits only if all of it fits, so half of the memory would be worth nothing.
        for hot in [[56, 64], [4, 6000]] {
            load(&near, time, hot, 300);
            let damaged = hot[1] / 7;
            let ns = load(&near, time, hot, 1);
            assert_eq!(ns, damaged * ROW_NS, "{hot:?} with {:?}: only damaged rows come from the region", of(&near));
        }
    }
    assert!(near.counts().moves < 60, "{:?}", near.counts());
}

#[test]
fn kept_rows_are_there_while_the_link_is_down() {
    let time = ManualTime::start();
    let near = NearMemory::new(1 << 20, BLOCK_BYTES, Some(ROW_VALUES), time.clock());
    let link = Link::new(time);
    let tables = near.tables(Arc::new(link.clone()), 1);
    let fetch = |rows: &[u64]| {
        let fetch = tables.start(0, rows, RowBuffer::new(rows.len(), ROW_VALUES));
        fetch.finish(patience()).unwrap()
    };
    assert_eq!(fetch(&[1, 2, 3]).failure, None);
    link.1.store(true, Ordering::Relaxed);
    let Fetched { rows, missing, failure, .. } = fetch(&[9, 2, 8, 1]);
    assert_eq!((missing, failure), (vec![0, 2], Some(FetchError::Late)));
    for (place, row) in [(1, 2), (3, 1)] {
        assert_eq!(rows.values()[place * ROW_VALUES], f32::from_bits(u32::from(row_bits(row)[0]) << 16));
    }
}
