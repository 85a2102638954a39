//! Two regions with one hash seed, of an owner and of a reader, in this process.

use cenote_base::prng::Prng;
use cenote_base::seal::{Seal, SealKeys};
use cenote_base::testing::PATIENCE;
use cenote_base::{BlockHash, Clock, Deadline, HashSeed};
use cenote_codec::{CodecSpec, Element, Layout, Order, PageKind, Shape, Side};
use cenote_mem::{Coherent, MapOptions, Mapping, RegionSource};
use cenote_pool::{
    AttachOptions, Hit, Names, Namespace, NamespaceRecord, NewBlock, Pool, PoolConfig, Publish, ReadOutcome, Superblock,
};
use cenote_reach::fake::{Fake, Faults};
use cenote_reach::{Fetched, Pace, ReadError, Reader};
use cenote_store::{BlockCodec, Readable};
use std::sync::{Arc, Mutex, MutexGuard};

pub type TestPool = Pool<Arc<Coherent>>;

pub const BLOCK_BYTES: u64 = 2 << 10;

pub fn patience() -> Deadline {
    Clock::system().after(PATIENCE)
}

pub fn pace() -> Pace {
    Pace::by(patience())
}

pub fn keys(number: u64) -> SealKeys {
    SealKeys::parse(&format!("{number:064x}\n")).expect("a key")
}

pub fn config(identity: u8, seed: u8, seal: Seal) -> PoolConfig {
    let config = PoolConfig {
        chunk_bytes: 64 << 10,
        min_block_bytes: 1 << 10,
        max_hosts: 2,
        workers_per_host: 16,
        hazard_lines_per_worker: 4,
        events_per_host: 64,
        ..PoolConfig::new(HashSeed([seed; 32]), [identity; 16])
    };
    if seal == Seal::None { config } else { config.sealed(seal, &keys(1)) }
}

/// A region of this process with a worker.
pub struct Host {
    pub fabric: Arc<Coherent>,
    pub pool: TestPool,
    pub namespace: Namespace,
}

impl Host {
    pub fn new(bytes: u64, config: &PoolConfig) -> Self {
        let mapping = Mapping::create(&RegionSource::Anon, bytes, 0o600, &MapOptions::default()).expect("memory");
        let fabric = Arc::new(Coherent::new(mapping));
        Superblock::format(&fabric, config).expect("the configuration fits");
        let keys = (config.seal != Seal::None).then(|| keys(1));
        let options = AttachOptions { private: true, lock_timeout: PATIENCE, keys, ..AttachOptions::named("test") };
        let pool = Pool::attach(Arc::clone(&fabric), &options).expect("a fresh region attaches");
        let namespace = namespace(&pool, 1);
        Self { fabric, pool, namespace }
    }

    pub fn publish(&self, hash: BlockHash, depth: u32) -> Publish {
        let new = NewBlock { names: names(hash), ..NewBlock::new(&self.namespace, hash, depth) };
        self.pool.publish(&new, &[&payload(hash, BLOCK_BYTES)])
    }

    pub fn has(&self, hashes: &[BlockHash]) -> usize {
        self.pool.peek(hashes).len()
    }

    /// Number of leading blocks here, each with the right bytes.
    pub fn read(&self, hashes: &[BlockHash]) -> usize {
        let hits = self.pool.peek(hashes);
        for hit in &hits {
            let mut bytes = vec![0; hit.length as usize];
            assert_eq!(self.pool.read(hit, &mut [&mut bytes]), ReadOutcome::Whole);
            assert_eq!(bytes, payload(hit.hash, hit.length));
        }
        hits.len()
    }
}

pub fn namespace(pool: &TestPool, fingerprint: u8) -> Namespace {
    let record = NamespaceRecord {
        fingerprint: [fingerprint; 32],
        label: format!("model {fingerprint}"),
        block_bytes: BLOCK_BYTES,
        block_tokens: 16,
        num_layers: 2,
    };
    pool.namespace(&record).expect("the table has room")
}

/// Names of `blocks` blocks of the prompt number `prompt`.
pub fn chain(namespace: &Namespace, prompt: u32, blocks: usize) -> Vec<BlockHash> {
    let tokens: Vec<u32> = (0..blocks as u32 * 16).map(|token| token ^ (prompt << 12)).collect();
    namespace.hasher.chain(&tokens, 16)
}

/// The payload for a hash; another block's bytes are recognised.
pub fn payload(hash: BlockHash, bytes: u64) -> Vec<u8> {
    let mut prng = Prng::new(hash.words()[0]);
    (0..bytes / 8).flat_map(|_| prng.next_u64().to_le_bytes()).collect()
}

/// A codec for the blocks of these tests: four pages of 16 tokens, in so many heads of `f32`.
pub fn codec(heads: u16) -> Arc<BlockCodec> {
    let kind = |layer: u16, side: Side| PageKind {
        shape: Shape { heads, tokens: 16, dim: 8 / heads },
        element: Element::F32,
        layout: Layout { order: Order::TokenMajor, capacity: 16 },
        side,
        layer,
    };
    let page = "int8".parse::<CodecSpec>().expect("a codec").build(None).expect("it needs no profile");
    let pages = (0..2).flat_map(|layer| [(layer, Side::K), (layer, Side::V)]);
    Arc::new(BlockCodec::new(pages.map(|(layer, side)| (kind(layer, side), Arc::clone(&page))).collect()))
}

/// Frames of a block of numbers, as the codec saves them.
pub fn frames(codec: &BlockCodec) -> Vec<u8> {
    let page: Vec<u8> = (0..BLOCK_BYTES / 16).flat_map(|at| (at as f32).to_le_bytes()).collect();
    let mut frames = Vec::new();
    (0..4).for_each(|index| codec.encode_page(index, &page, &mut frames));
    BlockCodec::seal(&mut frames);
    frames
}

/// What a store with [`codec`] of one head reads.
pub fn readable() -> Readable {
    Readable::of(Some(codec(1)))
}

pub fn names(hash: BlockHash) -> Names {
    let [name, parent] = hash.words();
    Names { name, parent }
}

/// Faults of a peer, shared with it.
#[derive(Clone, Default)]
pub struct Trouble(pub Arc<Mutex<Faults>>);

impl Trouble {
    pub fn set(&self) -> MutexGuard<'_, Faults> {
        self.0.lock().expect("no panic while it is held")
    }

    pub fn peer(&self, of: &Host, seed: u64) -> Fake<Arc<Coherent>> {
        Fake::new(Arc::clone(&of.fabric), &self.0, seed)
    }

    /// A reader of the peer for a region with the same seed and the first key, if it has one.
    pub fn reader(&self, of: &Host, seed: u64) -> Result<Reader<Fake<Arc<Coherent>>>, ReadError> {
        Reader::open(self.peer(of, seed), &of.pool.superblock().config.seed, of.pool.seal_keys(), patience())
    }
}

/// What came of a fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub whole: usize,
    pub stale: usize,
    pub wrong: usize,
    pub unreadable: usize,
}

impl Tally {
    /// Counts a block; a whole one must have its payload.
    pub fn count(&mut self, hit: &Hit, fetched: Fetched<'_>) {
        match fetched {
            Fetched::Whole { payload: bytes, .. } => {
                assert!(bytes == payload(hit.hash, hit.length), "a whole block has another one's bytes");
                self.whole += 1;
            }
            Fetched::Stale => self.stale += 1,
            Fetched::Wrong => self.wrong += 1,
            Fetched::Unreadable => self.unreadable += 1,
        }
    }

    /// As [`Tally::count`], of a peer that does not lie: names have no check word.
    pub fn count_named(&mut self, hit: &Hit, fetched: Fetched<'_>) {
        if let Fetched::Whole { names: found, .. } = &fetched {
            assert_eq!(*found, names(hit.hash));
        }
        self.count(hit, fetched);
    }
}
