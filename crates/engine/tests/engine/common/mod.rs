//! A small engine with an in-memory store, for tests of the serving loop.
#![allow(dead_code, reason = "several test binaries share it")]

pub mod engram;
pub mod region;

use cenote_base::engine::{Event, FinishReason, HandOver, Phase, Prompt, Retain, Usage};
use cenote_base::hash::HashSeed;
use cenote_base::testing::{ManualTime, PATIENCE, until};
use cenote_base::{
    BlockHash, ChainHasher, Clock, Deadline, Engine, EngineError, EventSink, Health, Request, RequestId,
    SamplingParams, TenantKey, TokenId,
};
use cenote_engine::{EngineConfig, LlmEngine, LoadedModel, MoverKind, Observer, StepRecord};
use cenote_store::{Computed, FarBlock, Loaded, Miss, Names, Naming, PendingBlock, PrefixStore, Promotion, Tenants};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A directory with the weights of fixture `case` and the fixture tokenizer.
pub fn model_dir(case: &str) -> tempfile::TempDir {
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let dir = tempfile::tempdir().unwrap();
    let copy = |from: &Path| {
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
        }
    };
    copy(&fixtures.join(case));
    copy(&fixtures.join("tokenizer"));
    dir
}

pub fn config(dir: &Path) -> EngineConfig {
    EngineConfig { threads: 2, kv_bytes: 64 << 20, ..EngineConfig::new(dir, Clock::system()) }
}

pub fn start(config: &EngineConfig, store: Option<MemoryStore>) -> LlmEngine {
    let store = store.map(|store| Box::new(store) as Box<dyn PrefixStore>);
    LlmEngine::start(LoadedModel::load(config).unwrap(), store).unwrap()
}

pub fn start_with(config: &EngineConfig, store: Box<dyn PrefixStore>) -> LlmEngine {
    LlmEngine::start(LoadedModel::load(config).unwrap(), Some(store)).unwrap()
}

/// A deadline that only a test that has failed reaches.
pub fn patience() -> Deadline {
    Clock::system().after(PATIENCE)
}

/// What the steps of an engine cost that runs in manual time.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub step: Duration,
    pub token: Duration,
}

impl Default for Cost {
    fn default() -> Self {
        Self { step: Duration::from_micros(100), token: Duration::from_micros(20) }
    }
}

/// Lets time pass by what computing costs.
pub struct Pace {
    pub time: &'static ManualTime,
    pub cost: Cost,
}

impl Observer for Pace {
    fn computing(&mut self, work: &StepRecord) {
        self.time.advance(self.cost.step + self.cost.token * u32::try_from(work.tokens).unwrap());
    }
}

/// The settings with a time that passes only by computing and by links, and with copies in the engine's
/// own thread: then a run repeats exactly.
pub fn exact(config: EngineConfig, time: &'static ManualTime) -> EngineConfig {
    EngineConfig { mover: MoverKind::Inline, clock: time.clock(), ..config }
}

/// Starts an engine with [`exact`] settings.
pub fn start_exact(config: EngineConfig, store: Box<dyn PrefixStore>) -> LlmEngine {
    let time = ManualTime::start();
    let model = LoadedModel::load(&exact(config, time)).unwrap();
    LlmEngine::start_observed(model, Some(store), Box::new(Pace { time, cost: Cost::default() })).unwrap()
}

/// A request whose first token blocks the engine's thread, so that a test decides what the next step
/// finds in the inbox.
pub struct Held {
    pub events: Receiver<Event>,
    go: Sender<()>,
}

impl Held {
    /// Submits the request and waits for its first token.
    pub fn at_first_token(engine: &LlmEngine, request: Request) -> Self {
        let ((sender, events), (go, gone), (computed, is_computed)) = (channel(), channel::<()>(), channel());
        let mut gate = Some((computed, gone));
        let sink = move |event| {
            let is_wanted = sender.send(event).is_ok();
            if let Some((computed, gone)) = gate.take() {
                computed.send(()).unwrap();
                // An error is the test's end.
                let _ = gone.recv_timeout(PATIENCE);
            }
            is_wanted
        };
        engine.submit(request, Box::new(sink)).unwrap();
        is_computed.recv_timeout(PATIENCE).unwrap();
        Self { events, go }
    }

    /// Lets the engine go on.
    pub fn go(self) -> Receiver<Event> {
        self.go.send(()).unwrap();
        self.events
    }
}

/// Waits until all that was sent to the engine is in the inbox of its thread: the thread that tokenizes
/// refuses a request behind it.
pub fn forwarded(engine: &LlmEngine) {
    let (sender, refused) = channel();
    let too_long = request(Prompt::Tokens(vec![1; engine.model().max_model_len() + 1]), greedy(1));
    let sink: EventSink = Box::new(move |event| sender.send(event).is_ok());
    engine.submit(too_long, sink).unwrap();
    assert!(matches!(refused.recv_timeout(PATIENCE).unwrap(), Event::Failed(_)));
}

/// Submits all requests: the first is computed up to its first token, and the next step finds all others
/// in their order.
pub fn submit_together(engine: &LlmEngine, requests: &[Request]) -> Vec<Receiver<Event>> {
    let first = Held::at_first_token(engine, requests[0].clone());
    let others: Vec<_> = requests[1..].iter().map(|request| submit(engine, request.clone()).unwrap()).collect();
    forwarded(engine);
    std::iter::once(first.go()).chain(others).collect()
}

/// Runs all requests together. Returns their tokens, and the stats once nothing runs.
pub fn crowd(engine: &LlmEngine, requests: &[Request]) -> (Vec<Vec<TokenId>>, BTreeMap<String, f64>) {
    let before = engine.stats().values["requests_finished_total"];
    let events = submit_together(engine, requests);
    let tokens: Vec<Vec<TokenId>> = events.iter().map(|events| collect(events).unwrap().tokens).collect();
    // The engine publishes its stats when it becomes idle.
    let stats = until("an idle engine with all blocks free", || {
        let stats = engine.stats().values;
        let runs = stats["requests_running"] + stats["requests_swapped"];
        let is_idle = stats["kv_blocks_free"] == stats["kv_blocks"] && runs == 0.0;
        (is_idle && stats["requests_finished_total"] >= before + requests.len() as f64).then_some(stats)
    });
    (tokens, stats)
}

/// Runs the requests one by one, without a store. Returns their tokens.
pub fn alone(config: &EngineConfig, requests: &[Request]) -> Vec<Vec<TokenId>> {
    let ample = start(config, None);
    requests.iter().map(|request| run(&ample, request.clone()).unwrap().tokens).collect()
}

/// A store in a map that several engines share.
#[derive(Clone)]
pub struct MemoryStore {
    pub shared: Arc<Mutex<Blocks>>,
    pub naming: Naming,
}

impl Default for MemoryStore {
    fn default() -> Self {
        let hasher = ChainHasher::new(&HashSeed([7; 32]), &[1; 32]);
        Self { shared: Arc::default(), naming: Naming::new(hasher, BLOCK_TOKENS) }
    }
}

#[derive(Default)]
pub struct Blocks {
    pub blocks: HashMap<BlockHash, Vec<u8>>,
    /// Blocks that match, but are missing when they are loaded.
    pub vanish: BTreeSet<BlockHash>,
    /// Hashes in the order in which they were saved.
    pub saved: Vec<BlockHash>,
    pub held: Vec<Vec<BlockHash>>,
    pub loads: usize,
    /// Blocks that admitted requests asked for, and those of them that were found.
    pub counted: (usize, usize),
    /// Of each recorded request: its blocks, its tokens, and those of its answer when it has ended.
    pub recorded: Vec<(usize, u32, Option<u32>)>,
    /// What admitted requests lacked.
    pub missed: Vec<Miss>,
    /// Whether blocks are loaded as pending, as if they were encoded.
    pub pending: bool,
    /// Page index per pending block that fails to decode.
    pub forged: HashMap<BlockHash, usize>,
    /// Makes the next save panic.
    pub explode: bool,
    /// Number of blocks that can still be swapped out.
    pub swap_room: usize,
    /// `Some(n)`: every n-th swapped-out block does not come back.
    pub swap_damage: Option<usize>,
    pub swapped_out: usize,
    /// Time that passes while a block is swapped out.
    pub swap_time: Option<(&'static ManualTime, Duration)>,
    /// The health that the store reports.
    pub health: Health,
    /// Tokens whose computation the engine has timed, and the nanoseconds.
    pub computed: (u64, u64),
    /// Promotions of the next requests.
    pub promotions: VecDeque<Promotion>,
    /// Blocks that clients asked to keep, and for how long.
    pub retained: Vec<(Vec<BlockHash>, Retain)>,
}

struct Swapped {
    pages: Vec<Vec<u8>>,
    damaged: bool,
}

impl FarBlock for Swapped {
    fn read(&self, page: usize, bytes: &mut [u8], _: bool) -> bool {
        // NaN changes the result if it is read.
        bytes.fill(0xff);
        if !self.damaged {
            bytes.copy_from_slice(&self.pages[page]);
        }
        !self.damaged
    }
}

/// A block's pages, concatenated.
struct Copy {
    block: Vec<u8>,
    forged: Option<usize>,
}

impl PendingBlock for Copy {
    fn decode(&self, page: usize, bytes: &mut [u8]) -> bool {
        let whole = self.forged != Some(page);
        // NaN changes the result if it is read.
        bytes.fill(0xff);
        if whole {
            bytes.copy_from_slice(&self.block[page * bytes.len()..][..bytes.len()]);
        }
        whole
    }
}

impl MemoryStore {
    /// Names of the blocks of a sequence without a salt.
    pub fn names(tokens: &[TokenId]) -> Names {
        Self::default().naming.names(None, tokens)
    }
}

const BLOCK_TOKENS: usize = 16;

impl PrefixStore for MemoryStore {
    fn naming(&self) -> Naming {
        self.naming.clone()
    }

    fn tenants(&self) -> Option<Box<dyn Tenants>> {
        None
    }

    fn match_prefix(&mut self, names: &[BlockHash]) -> usize {
        let shared = self.shared.lock().unwrap();
        names.iter().take_while(|hash| shared.blocks.contains_key(hash)).count()
    }

    fn count_lookup(&mut self, blocks: usize, found: usize) {
        let (all, hits) = &mut self.shared.lock().unwrap().counted;
        *all += blocks;
        *hits += found;
    }

    fn record_request(&mut self, _: Option<TenantKey>, names: &[BlockHash], tokens: u32) -> Option<u64> {
        let recorded = &mut self.shared.lock().unwrap().recorded;
        recorded.push((names.len(), tokens, None));
        Some(recorded.len() as u64)
    }

    fn record_answer(&mut self, number: u64, tokens: u32) {
        self.shared.lock().unwrap().recorded[number as usize - 1].2 = Some(tokens);
    }

    fn missed(&mut self, miss: Miss) {
        self.shared.lock().unwrap().missed.push(miss);
    }

    fn promotable(&self, _: Option<TenantKey>, _names: &[BlockHash]) -> usize {
        usize::from(!self.shared.lock().unwrap().promotions.is_empty())
    }

    fn promote(&mut self, _: Option<TenantKey>, _names: &[BlockHash]) -> Option<Promotion> {
        self.shared.lock().unwrap().promotions.pop_front()
    }

    fn has_computed(&mut self, tokens: u64, _: u64, ns: u64) {
        let (all_tokens, all_ns) = &mut self.shared.lock().unwrap().computed;
        *all_tokens += tokens;
        *all_ns += ns;
    }

    fn load(&mut self, hash: BlockHash, pages: &mut [&mut [u8]]) -> Loaded {
        let mut shared = self.shared.lock().unwrap();
        shared.loads += 1;
        if shared.vanish.remove(&hash) {
            shared.blocks.remove(&hash);
            // The trait leaves the content undefined; NaN changes the result if it is read.
            pages.iter_mut().for_each(|page| page.fill(0xff));
            return Loaded::Miss;
        }
        let block = shared.blocks[&hash].clone();
        if shared.pending {
            return Loaded::Pending(Box::new(Copy { block, forged: shared.forged.get(&hash).copied() }));
        }
        let page_bytes = block.len() / pages.len();
        for (page, bytes) in pages.iter_mut().zip(block.chunks_exact(page_bytes)) {
            page.copy_from_slice(bytes);
        }
        Loaded::Whole
    }

    fn save_all(&mut self, _: Option<TenantKey>, blocks: &[Computed<'_>]) -> usize {
        let mut shared = self.shared.lock().unwrap();
        assert!(!shared.explode, "`explode` is set");
        for Computed { hash, pages, .. } in blocks {
            shared.saved.push(*hash);
            shared.blocks.insert(*hash, pages.concat());
        }
        blocks.len()
    }

    fn swap_out(&mut self, _: Option<TenantKey>, pages: &[&[u8]]) -> Option<Box<dyn FarBlock>> {
        let mut shared = self.shared.lock().unwrap();
        shared.swap_room = shared.swap_room.checked_sub(1)?;
        shared.swapped_out += 1;
        if let Some((time, of_block)) = shared.swap_time {
            time.advance(of_block);
        }
        let damaged = shared.swap_damage.is_some_and(|every| shared.swapped_out.is_multiple_of(every));
        Some(Box::new(Swapped { pages: pages.iter().map(|page| page.to_vec()).collect(), damaged }))
    }

    fn open(&mut self, _hash: BlockHash, _parts: usize) -> Option<Box<dyn FarBlock>> {
        None
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn hold(&mut self, hashes: &[BlockHash], _ttl_ms: u64) -> u64 {
        self.shared.lock().unwrap().held.push(hashes.to_vec());
        1
    }

    fn release(&mut self, _ticket: u64) {}

    fn retain(&mut self, _: Option<TenantKey>, names: &[BlockHash], retain: &Retain) {
        self.shared.lock().unwrap().retained.push((names.to_vec(), *retain));
    }

    fn stats(&self) -> BTreeMap<String, f64> {
        BTreeMap::from([("pool_loads_total".to_owned(), self.shared.lock().unwrap().loads as f64)])
    }

    fn health(&self) -> Health {
        self.shared.lock().unwrap().health.clone()
    }
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

pub fn greedy(max_tokens: u32) -> SamplingParams {
    SamplingParams { temperature: 0.0, max_tokens: Some(max_tokens), ..SamplingParams::default() }
}

pub fn request(prompt: Prompt, sampling: SamplingParams) -> Request {
    Request {
        id: RequestId(NEXT_ID.fetch_add(1, Ordering::Relaxed)),
        prompt,
        sampling,
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

/// Random tokens; each `seed` gives others.
pub fn prompt(seed: u64, length: usize) -> Prompt {
    let mut prng = cenote_base::prng::Prng::new(seed);
    Prompt::Tokens((0..length).map(|_| prng.below(300) as u32).collect())
}

/// The result of a finished request.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    pub tokens: Vec<TokenId>,
    pub text: String,
    pub reason: FinishReason,
    pub usage: Usage,
    pub hand_over: Option<HandOver>,
}

/// Submits a request; its events arrive in the channel.
pub fn submit(engine: &LlmEngine, request: Request) -> Result<Receiver<Event>, EngineError> {
    let (sender, receiver) = channel();
    engine.submit(request, Box::new(move |event| sender.send(event).is_ok()))?;
    Ok(receiver)
}

pub fn collect(events: &Receiver<Event>) -> Result<Outcome, EngineError> {
    let (mut tokens, mut text) = (Vec::new(), String::new());
    loop {
        match events.recv_timeout(PATIENCE).expect("events end with Finished or Failed") {
            Event::Token { token, text: piece, .. } => {
                tokens.push(token);
                text += &piece;
            }
            Event::Finished { reason, text: rest, usage, hand_over } => {
                return Ok(Outcome { tokens, text: text + &rest, reason, usage, hand_over });
            }
            Event::Failed(error) => return Err(error),
        }
    }
}

pub fn run(engine: &LlmEngine, request: Request) -> Result<Outcome, EngineError> {
    collect(&submit(engine, request)?)
}
