//! Blocks decoded during the computation give the same results as blocks decoded before it, or
//! none.

use crate::common::{MemoryStore, collect, config, greedy, model_dir, prompt, request, run, start, submit};
use cenote_base::testing::{PATIENCE, until};
use cenote_base::{BlockHash, Clock, Engine, HashSeed, TokenId};
use cenote_codec::{
    Channels, CodecId, Declined, DecodeError, Element, Frame, Layout, Order, Page, PageCodec, PageKind, PageMut, QPack,
    Shape, Side, SpecKv, SpecKvMode,
};
use cenote_engine::engram::Rows;
use cenote_engine::kv::{KvArena, KvLayout};
use cenote_engine::lazy::LazyBlock;
use cenote_engine::llama::{Beyond, LogitsOf, SeqChunk};
use cenote_engine::sparse::SparseDecode;
use cenote_engine::stream::Streamer;
use cenote_engine::{ElementType, EngineConfig, LlmEngine, LoadedModel};
use cenote_mem::{Coherent, MapOptions, Mapping, RegionSource};
use cenote_pool::{AttachOptions, Pool, PoolConfig, Superblock};
use cenote_store::{BlockCodec, Computed, Loaded, NamespaceSpec, PendingBlock, PrefixStore, RegionStore};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};

const BLOCK: usize = 16;

type Store = RegionStore<Arc<Coherent>>;

fn beyond<'a>(
    lazy: &'a [LazyBlock],
    streamer: &'a mut Streamer,
    sparse: &'a mut SparseDecode,
    rows: &'a mut Rows,
) -> Beyond<'a> {
    Beyond { lazy, streamer, sparse, choosing: &[], rows }
}

fn pool() -> Pool<Arc<Coherent>> {
    let mapping = Mapping::create(&RegionSource::Anon, 16 << 20, 0o600, &MapOptions::default()).unwrap();
    let fabric = Arc::new(Coherent::new(mapping));
    let config = PoolConfig {
        max_hosts: 1,
        workers_per_host: 4,
        hazard_lines_per_worker: 2,
        ..PoolConfig::new(HashSeed([3; 32]), [4; 16])
    };
    Superblock::format(&fabric, &config).unwrap();
    Pool::attach(fabric, &AttachOptions { private: true, ..AttachOptions::named("test") }).unwrap()
}

fn page(layout: &KvLayout, layer: usize, side: Side) -> PageKind {
    let (heads, dim) = (layout.num_kv_heads as u16, layout.head_dim as u16);
    let shape = Shape { heads, tokens: BLOCK as u16, dim };
    let order = if side == Side::K { Order::KeyPanels } else { Order::ValuePanels };
    let element = if layout.element == ElementType::F32 { Element::F32 } else { Element::Bf16 };
    PageKind { shape, element, layout: Layout { order, capacity: BLOCK as u16 }, side, layer: layer as u16 }
}

fn open(pool: &Pool<Arc<Coherent>>, spec: &NamespaceSpec, layout: &KvLayout, codec: &Arc<dyn PageCodec>) -> Store {
    let pages = (0..layout.num_layers).flat_map(|layer| [(layer, Side::K), (layer, Side::V)]);
    let pages = pages.map(|(layer, side)| (page(layout, layer, side), Arc::clone(codec))).collect();
    RegionStore::new(pool.clone(), spec, Clock::system()).unwrap().with_codec(BlockCodec::new(pages), spec)
}

/// INT8, and QPack with arbitrary steps.
fn codecs(layout: &KvLayout) -> [Arc<dyn PageCodec>; 2] {
    let count = layout.num_kv_heads * layout.head_dim;
    let channels = || Channels { means: vec![0.1; count], steps: vec![0.05; count] };
    let qpack = QPack::new((0..layout.num_layers).map(|_| [channels(), channels()]).collect(), 77);
    [Arc::new(SpecKv { mode: SpecKvMode::Int8 }), Arc::new(qpack)]
}

fn tokens(seed: u64, length: usize) -> Vec<TokenId> {
    match prompt(seed, length) {
        cenote_base::engine::Prompt::Tokens(tokens) => tokens,
        other => panic!("{other:?} is not tokens"),
    }
}

/// Computes a prompt and saves its full blocks.
fn fill(model: &LoadedModel, store: &mut Store, tokens: &[TokenId]) -> Vec<BlockHash> {
    let table: Vec<u32> = (0..tokens.len().div_ceil(BLOCK) as u32).collect();
    let mut kv = KvArena::new(*model.layout(), table.len());
    let chunk = SeqChunk { tokens, before: &[], start_position: 0, block_table: &table, logits: LogitsOf::Nothing };
    model.forward(&[chunk], &mut kv);
    let hashes = store.naming().names(None, tokens).to_vec();
    for (depth, &hash) in (0..).zip(&hashes) {
        assert_eq!(store.save_all(None, &[Computed { hash, depth, pages: &kv.pages(depth) }]), 1);
    }
    hashes
}

#[test]
fn logits_equal_those_of_blocks_decoded_first() {
    let dir = model_dir("gqa-untied-llama3");
    for (dtype, threads) in
        [(ElementType::F32, 1), (ElementType::F32, 2), (ElementType::Bf16, 1), (ElementType::Bf16, 3)]
    {
        let model = LoadedModel::load(&EngineConfig { dtype, threads, ..config(dir.path()) }).unwrap();
        let spec = model.namespace_spec("");
        for codec in codecs(model.layout()) {
            let mut store = open(&pool(), &spec, model.layout(), &codec);
            let (warm, cold) = (tokens(1, 150), tokens(2, 40));
            let hashes = fill(&model, &mut store, &warm);
            // The warm prompt's blocks lie between those of the cold one, in arbitrary order.
            let tables: [Vec<u32>; 2] = [(0..10).map(|block| (block * 7 + 3) % 10 * 2).collect(), vec![1, 3, 5]];
            let mut compute = |first: bool| {
                let mut kv = KvArena::new(*model.layout(), 20);
                let mut lazy = Vec::new();
                for (hash, &block) in hashes.iter().zip(&tables[0]) {
                    let mut pages = kv.pages_mut(block);
                    let loaded = store.load(*hash, &mut pages);
                    match loaded {
                        Loaded::Pending(pending) if !first => lazy.push(LazyBlock::new(block, pending)),
                        loaded => assert!(loaded.finish(&mut pages)),
                    }
                }
                let start = hashes.len() * BLOCK;
                let chunk = |tokens, start_position, block_table| SeqChunk {
                    tokens,
                    before: &[],
                    start_position,
                    block_table,
                    logits: LogitsOf::All,
                };
                let batch = [chunk(&cold[..], 0, &tables[1][..]), chunk(&warm[start..], start, &tables[0])];
                assert_eq!(lazy.len(), if first { 0 } else { hashes.len() });
                let logits: Vec<u32> = model
                    .forward_beyond(
                        &batch,
                        &mut kv,
                        beyond(&lazy, &mut Streamer::off(), &mut SparseDecode::off(), &mut Rows::untimed()),
                    )
                    .into_iter()
                    .map(f32::to_bits)
                    .collect();
                assert!(!lazy.iter().any(LazyBlock::has_failed));
                let blocks: Vec<Vec<u8>> = (0..20).map(|block| kv.pages(block).concat()).collect();
                (logits, blocks)
            };
            assert!(compute(true) == compute(false), "{dtype}, {threads} threads, codec {:?}", codec.id());
        }
    }
}

#[test]
fn tokens_equal_those_of_blocks_decoded_first() {
    let dir = model_dir("gqa-tied");
    for threads in [1, 2] {
        let base = EngineConfig { threads, ..config(dir.path()) };
        for which in 0..2 {
            let pool = pool();
            let engine = |decode_first| {
                let model = LoadedModel::load(&EngineConfig { decode_first, ..base.clone() }).unwrap();
                let spec = model.namespace_spec("");
                let store = open(&pool, &spec, model.layout(), &codecs(model.layout())[which]);
                LlmEngine::start(model, Some(Box::new(store))).unwrap()
            };
            let (first, lazy) = (engine(true), engine(false));
            let new = || request(prompt(4, 100), greedy(30));
            let cold = run(&lazy, new()).unwrap();
            let (first, lazy) = (run(&first, new()).unwrap(), run(&lazy, new()).unwrap());
            assert_eq!((cold.usage.cached_tokens, lazy.usage.cached_tokens), (0, 96));
            assert_eq!(first, lazy);
        }
    }
}

/// INT8, but the frames of one layer have a valid header and an invalid payload.
struct Forger(u16);

impl PageCodec for Forger {
    fn id(&self) -> CodecId {
        CodecId::SpecKv
    }

    fn encode_payload(&self, page: &Page<'_>, payload: &mut Vec<u8>) -> Result<(), Declined> {
        if page.kind().layer == self.0 {
            payload.push(200);
            return Ok(());
        }
        SpecKv { mode: SpecKvMode::Int8 }.encode_payload(page, payload)
    }

    fn decode_payload(&self, _: &Frame<'_>, _: &mut PageMut<'_>) -> Result<(), DecodeError> {
        unreachable!("it only encodes")
    }
}

#[test]
fn a_forged_layer_costs_a_step_and_no_token() {
    let dir = model_dir("gqa-tied");
    let config = config(dir.path());
    let model = LoadedModel::load(&config).unwrap();
    let (spec, layout) = (model.namespace_spec(""), *model.layout());
    let sound = &codecs(&layout)[0];
    let start = |store: Store| LlmEngine::start(LoadedModel::load(&config).unwrap(), Some(Box::new(store))).unwrap();
    let new = || request(prompt(4, 90), greedy(30));
    // Codecs are lossy: the reference is a run with exactly three cached blocks.
    let three = pool();
    fill(&model, &mut open(&three, &spec, &layout, sound), &tokens(4, 48));
    let want = run(&start(open(&three, &spec, &layout, sound)), new()).unwrap();
    assert_eq!(want.usage.cached_tokens, 48);
    for layer in [0, 1] {
        let pool = pool();
        let forger: Arc<dyn PageCodec> = Arc::new(Forger(layer));
        fill(&model, &mut open(&pool, &spec, &layout, sound), &tokens(4, 48));
        // The fourth block is forged, the fifth is not.
        fill(&model, &mut open(&pool, &spec, &layout, &forger), &tokens(4, 64));
        fill(&model, &mut open(&pool, &spec, &layout, sound), &tokens(4, 90));
        let engine = start(open(&pool, &spec, &layout, sound));
        for (unreadable, steps) in [(1.0, 31.0), (2.0, 61.0)] {
            assert_eq!(run(&engine, new()).unwrap(), want, "layer {layer}");
            let stats = stats_of(&engine, |stats| stats["requests_finished_total"] == unreadable);
            // The second time the store knows the unreadable block, so it costs no extra step.
            assert_eq!((stats["store_unreadable_total"], stats["engine_steps_total"]), (unreadable, steps));
        }
    }
}

/// Polls the stats until `done`: the engine's thread publishes them when it becomes idle.
fn stats_of(engine: &LlmEngine, done: impl Fn(&BTreeMap<String, f64>) -> bool) -> BTreeMap<String, f64> {
    until("the stats of an idle engine", || Some(engine.stats().values).filter(&done))
}

#[test]
fn a_forged_block_does_not_affect_other_requests_of_the_step() {
    let dir = model_dir("gqa-tied");
    let model = LoadedModel::load(&config(dir.path())).unwrap();
    let (warm, cold) = (tokens(1, 40), tokens(2, 40));
    let tables = [[0_u32, 2, 4], [1, 3, 5]];
    let chunk = |tokens, start_position, block_table| SeqChunk {
        tokens,
        before: &[],
        start_position,
        block_table,
        logits: LogitsOf::All,
    };
    let want = model.forward(&[chunk(&cold[..], 0, &tables[1][..])], &mut KvArena::new(*model.layout(), 6));
    for forged in 0..2 * model.layout().num_layers {
        // Undecodable pages are NaN.
        let pages = || Box::new(Script { forged: Some(forged), ..Script::default() });
        let lazy = [0, 2].map(|block| LazyBlock::new(block, pages()));
        let batch = [chunk(&warm[32..], 32, &tables[0][..]), chunk(&cold, 0, &tables[1])];
        let logits = model.forward_beyond(
            &batch,
            &mut KvArena::new(*model.layout(), 6),
            beyond(&lazy, &mut Streamer::off(), &mut SparseDecode::off(), &mut Rows::untimed()),
        );
        assert!(lazy.iter().all(LazyBlock::has_failed));
        assert!(logits[logits.len() - want.len()..] == want, "page {forged}");
    }
}

#[test]
fn tokens_survive_forged_and_vanished_blocks_of_other_requests() {
    let dir = model_dir("gqa-tied");
    let alone = start(&config(dir.path()), None);
    let store = MemoryStore::default();
    let engine = start(&config(dir.path()), Some(store.clone()));
    let requests: Vec<_> = (0..6).map(|seed| request(prompt(seed, 100), greedy(20))).collect();
    let want: Vec<_> = requests.iter().map(|request| run(&alone, request.clone()).unwrap()).collect();
    for round in 0..6 {
        let events: Vec<_> = requests.iter().map(|request| submit(&engine, request.clone()).unwrap()).collect();
        for (seed, (events, want)) in events.iter().zip(&want).enumerate() {
            let outcome = collect(events).unwrap();
            assert_eq!(outcome.tokens, want.tokens);
            let cached = if round == 0 { 0 } else { [96, 48, 32, 0, 96][(seed + round) % 5] };
            assert_eq!(outcome.usage.cached_tokens, cached, "prompt {seed}, round {round}");
        }
        // Faults in each prompt's six blocks for the next round.
        let mut shared = store.shared.lock().unwrap();
        shared.pending = true;
        shared.forged.clear();
        for seed in 0..requests.len() {
            let hashes = MemoryStore::names(&tokens(seed as u64, 100));
            let forged = [&[][..], &[(3, 2)], &[(2, 3)], &[(0, 0), (5, 1)], &[]][(seed + round + 1) % 5];
            shared.forged.extend(forged.iter().map(|&(block, page): &(usize, usize)| (hashes[block], page)));
            if forged == [(2, 3)] {
                // A later block is missing as well, so no step begins with the forged one.
                shared.vanish.insert(hashes[4]);
            }
        }
    }
}

/// A pending block of zeros that records when its pages are decoded.
#[derive(Default)]
struct Script {
    events: Arc<Events>,
    forged: Option<usize>,
    /// Whether decoding waits for the attention of the previous layer.
    waits: bool,
}

#[derive(Default)]
struct Events {
    seen: Mutex<Vec<Event>>,
    more: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// The page of this index is decoded.
    Decode(usize),
    /// The layer's queries are computed; its attention follows.
    Attend(usize),
}

impl Events {
    fn tell(&self, event: Event) {
        self.seen.lock().unwrap().push(event);
        self.more.notify_all();
    }

    /// Waits for an event of another thread, and fails if it does not occur.
    fn await_event(&self, event: Event) {
        let waits = |seen: &mut Vec<Event>| !seen.contains(&event);
        let seen = self.seen.lock().unwrap();
        let waited = self.more.wait_timeout_while(seen, PATIENCE, waits).unwrap();
        assert!(!waited.1.timed_out(), "{event:?} does not occur");
    }
}

impl PendingBlock for Script {
    fn decode(&self, page: usize, bytes: &mut [u8]) -> bool {
        self.events.tell(Event::Decode(page));
        if self.waits && page >= 2 {
            self.events.await_event(Event::Attend(page / 2 - 1));
        }
        let whole = self.forged != Some(page);
        bytes.fill(if whole { 0 } else { 0xff });
        whole
    }
}

/// Computes a prompt with two lazy blocks on `threads` threads. With several threads, the decoding
/// and the attention of each layer wait for each other.
fn compute_late(model: &LoadedModel, threads: usize) -> Vec<Event> {
    let (model, num_layers) = (model.llama(), model.layout().num_layers);
    let mut kv = KvArena::new(model.kv_layout(BLOCK, ElementType::F32), 3);
    let (events, waits) = (Arc::new(Events::default()), threads > 1);
    let pages = || Box::new(Script { events: Arc::clone(&events), forged: None, waits });
    let lazy = [0, 1].map(|block| LazyBlock::new(block, pages()));
    let (tokens, table) = (tokens(1, 5), [0, 1, 2]);
    let chunk =
        SeqChunk { tokens: &tokens, before: &[], start_position: 32, block_table: &table, logits: LogitsOf::Last };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| {
        let (streamer, sparse) = (&mut Streamer::off(), &mut SparseDecode::off());
        model.forward_beyond(&[chunk], &mut kv, beyond(&lazy, streamer, sparse, &mut Rows::untimed()), &mut |seen| {
            events.tell(Event::Attend(seen.layer));
            if waits && seen.layer + 1 < num_layers {
                events.await_event(Event::Decode(2 * seen.layer + 2));
            }
        })
    });
    events.seen.lock().unwrap().clone()
}

/// Each layer waits during its computation until the next layer's decoding has begun. That decoding
/// waits for the layer to compute. Both would time out if one ran after the other.
#[test]
fn a_layer_is_decoded_while_the_previous_layer_computes() {
    let dir = model_dir("gqa-tied");
    let model = LoadedModel::load(&config(dir.path())).unwrap();
    let seen = compute_late(&model, 2);
    assert_eq!(seen.len(), 5 * model.layout().num_layers, "{seen:?}");
}

#[test]
fn with_one_thread_a_layer_is_decoded_just_before_its_attention() {
    let dir = model_dir("gqa-tied");
    let model = LoadedModel::load(&config(dir.path())).unwrap();
    let of_layer = |layer| {
        let (k, v) = (Event::Decode(2 * layer), Event::Decode(2 * layer + 1));
        [k, v, k, v, Event::Attend(layer)]
    };
    let want: Vec<Event> = (0..model.layout().num_layers).flat_map(of_layer).collect();
    assert_eq!(compute_late(&model, 1), want);
}
