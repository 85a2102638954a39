//! The cache as a router uses it: through Dynamo's trait, on a region that another member writes.
#![allow(clippy::single_range_in_vec_init, reason = "an answer is a list of ranges")]

use cenote_base::testing::{ManualTime, PATIENCE};
use cenote_base::time::TimeSource;
use cenote_base::{BlockHash, Clock, HashSeed};
use cenote_dynamo::{CenoteCache, Counts, Miss, Naming, Settings, SettingsError, Vllm};
use cenote_mem::{Coherent, MapOptions, Mapping, RegionSource};
use cenote_pool::{AttachOptions, Namespace, NamespaceRecord, NewBlock, Pool, PoolConfig, Publish, Superblock};
use dynamo_kv_router::SharedKvCache;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

const BLOCK_BYTES: u64 = 16 << 10;
const BLOCK_TOKENS: u32 = 16;
/// Of a query. On the clocks of these tests it passes when a test says so.
const DEADLINE: Duration = Duration::from_millis(5);

static REGIONS: AtomicU32 = AtomicU32::new(0);

/// A region in shared memory, removed after the test.
struct Made(RegionSource);

impl Made {
    fn new() -> Self {
        let number = REGIONS.fetch_add(1, Relaxed);
        Self(RegionSource::Shm(format!("cenote-test-dynamo-{}-{number}", std::process::id())))
    }

    fn path(&self) -> PathBuf {
        self.0.path().expect("shared memory has a path")
    }

    fn make(&self, identity: u8) -> Pool<Arc<Coherent>> {
        let mapping = Mapping::create(&self.0, 8 << 20, 0o600, &MapOptions::default()).expect("shared memory");
        let fabric = Arc::new(Coherent::new(mapping));
        let config = PoolConfig {
            chunk_bytes: 64 << 10,
            min_block_bytes: 4 << 10,
            ..PoolConfig::new(HashSeed([identity; 32]), [identity; 16])
        };
        Superblock::format(&fabric, &config).expect("the configuration fits");
        let options = AttachOptions { private: true, ..AttachOptions::named("writer") };
        Pool::attach(fabric, &options).expect("a fresh region attaches")
    }

    fn settings(&self, namespaces: &[&str]) -> Settings {
        let names = namespaces.iter().map(|&name| name.to_owned()).collect();
        Settings {
            deadline: DEADLINE,
            recheck: Duration::ZERO,
            clock: Clock::stopped(),
            ..Settings::new(self.0.clone(), names, Naming::Cenote)
        }
    }

    fn cache(&self, namespaces: &[&str]) -> CenoteCache {
        CenoteCache::new(self.settings(namespaces)).expect("settings that can work")
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = Mapping::remove(&self.0);
    }
}

fn namespace(pool: &Pool<Arc<Coherent>>, fingerprint: u8, label: &str, block_tokens: u32) -> Namespace {
    let record = NamespaceRecord {
        fingerprint: [fingerprint; 32],
        label: label.to_owned(),
        block_bytes: BLOCK_BYTES,
        block_tokens,
        num_layers: 2,
    };
    pool.namespace(&record).expect("the table has room")
}

fn publish(pool: &Pool<Arc<Coherent>>, namespace: &Namespace, hashes: &[BlockHash]) {
    for (depth, &hash) in (0..).zip(hashes) {
        let outcome = pool.publish(&NewBlock::new(namespace, hash, depth), &[&vec![7; BLOCK_BYTES as usize]]);
        assert_eq!(outcome, Publish::Published);
    }
}

fn tokens(blocks: u32) -> Vec<u32> {
    (0..blocks * BLOCK_TOKENS).map(|token| token * 3 + 1).collect()
}

async fn ask(cache: &CenoteCache, tokens: &[u32], block_tokens: u32, salt: Option<&str>) -> Vec<Range<u32>> {
    let router: Arc<dyn SharedKvCache> = Arc::new(cache.clone());
    router.check_blocks(tokens, block_tokens, salt).await.expect("a fault is a miss, not an error").ranges
}

const NOTHING: [Range<u32>; 0] = [];

fn sole_miss(counts: Counts) -> Option<Miss> {
    let missed: Vec<Miss> = Miss::ALL.into_iter().filter(|&reason| counts.misses(reason) > 0).collect();
    (missed.len() == 1).then(|| missed[0])
}

#[tokio::test]
async fn a_router_sees_the_blocks_of_a_prompt() {
    let made = Made::new();
    let pool = made.make(1);
    let ns = namespace(&pool, 1, "m", BLOCK_TOKENS);
    let prompt = tokens(8);
    let hashes = ns.hasher.chain(&prompt, BLOCK_TOKENS as usize);
    publish(&pool, &ns, &hashes[..3]);
    publish(&pool, &ns, &hashes[5..6]);
    let before = std::fs::read(made.path()).unwrap();
    let cache = made.cache(&["m"]);
    assert_eq!(ask(&cache, &prompt, BLOCK_TOKENS, None).await, [0..3, 5..6]);
    // A tail that fills no block has no name.
    assert_eq!(ask(&cache, &prompt[..3 * 16 + 15], BLOCK_TOKENS, Some("")).await, [0..3]);
    assert_eq!(ask(&cache, &prompt[1..], BLOCK_TOKENS, None).await, NOTHING);
    assert_eq!(ask(&cache, &[], BLOCK_TOKENS, None).await, NOTHING);
    assert!(std::fs::read(made.path()).unwrap() == before, "a query changed a byte of the region");
    let counts = cache.counts();
    assert_eq!((counts.queries, counts.blocks, counts.hits), (4, 8 + 3 + 7, 4 + 3));
    assert!(Miss::ALL.iter().all(|&reason| counts.misses(reason) == 0));
    while pool.evict(8) > 0 {}
    assert_eq!(ask(&cache, &prompt, BLOCK_TOKENS, None).await, NOTHING, "evicted blocks are not reported");
}

/// Blocks of one tenant are no hits of another, and none of a request without a salt.
#[tokio::test]
async fn a_salt_separates_tenants() {
    for naming in [Naming::Cenote, Naming::Vllm(Vllm::default()), Naming::Sglang] {
        let made = Made::new();
        let pool = made.make(2);
        let ns = namespace(&pool, 1, "m", BLOCK_TOKENS);
        let prompt = tokens(4);
        let cache = CenoteCache::new(Settings { naming: naming.clone(), ..made.settings(&["m"]) }).unwrap();
        let all = [None, Some("a"), Some("b")];
        for salt in all {
            publish(&pool, &ns, &names_of(&naming, &ns, &prompt, salt));
            assert_eq!(ask(&cache, &prompt, BLOCK_TOKENS, salt).await, [0..4], "{naming:?} {salt:?}");
            let others = all.into_iter().filter(|other| *other != salt);
            for other in others {
                assert_eq!(ask(&cache, &prompt, BLOCK_TOKENS, other).await, NOTHING, "{naming:?} {salt:?} {other:?}");
            }
            while pool.evict(8) > 0 {}
        }
    }
}

/// The engines' names. Vectors of the engines themselves test how they are computed (`src/vllm.rs`,
/// `src/sglang.rs`).
fn names_of(naming: &Naming, ns: &Namespace, prompt: &[u32], salt: Option<&str>) -> Vec<BlockHash> {
    cenote_dynamo::names(naming, &ns.hasher, prompt, BLOCK_TOKENS as usize, salt).expect("such blocks have names")
}

#[tokio::test]
async fn a_block_counts_if_all_ranks_have_it() {
    let made = Made::new();
    let pool = made.make(3);
    let prompt = tokens(6);
    let ranks = [namespace(&pool, 1, "m 0.0", BLOCK_TOKENS), namespace(&pool, 2, "m 1.0", BLOCK_TOKENS)];
    let hashes = |rank: usize| ranks[rank].hasher.chain(&prompt, BLOCK_TOKENS as usize);
    publish(&pool, &ranks[0], &hashes(0)[..5]);
    publish(&pool, &ranks[1], &hashes(1)[..2]);
    let second = "02".repeat(6);
    assert_eq!(ask(&made.cache(&["m 0.0"]), &prompt, BLOCK_TOKENS, None).await, [0..5]);
    assert_eq!(ask(&made.cache(&["m 0.0", &second]), &prompt, BLOCK_TOKENS, None).await, [0..2]);
    for (names, what) in [(vec!["m"], "no such label"), (vec!["0202"], "too few digits")] {
        let cache = made.cache(&names);
        assert_eq!(ask(&cache, &prompt, BLOCK_TOKENS, None).await, NOTHING, "{what}");
        assert_eq!(sole_miss(cache.counts()), Some(Miss::Namespace), "{what}");
    }
    let _same_label = namespace(&pool, 3, "m 0.0", BLOCK_TOKENS);
    let cache = made.cache(&["m 0.0"]);
    assert_eq!(ask(&cache, &prompt, BLOCK_TOKENS, None).await, NOTHING);
    assert_eq!(sole_miss(cache.counts()), Some(Miss::Namespace), "a label of two namespaces");
}

#[tokio::test]
async fn block_sizes_may_differ_if_one_divides_the_other() {
    let made = Made::new();
    let pool = made.make(4);
    let prompt = tokens(8);
    let ns = namespace(&pool, 1, "m", BLOCK_TOKENS);
    publish(&pool, &ns, &ns.hasher.chain(&prompt, 16)[..3]);
    let cache = made.cache(&["m"]);
    assert_eq!(ask(&cache, &prompt, 8, None).await, [0..6]);
    assert_eq!(ask(&cache, &prompt, 32, None).await, [0..1], "the second has a block that is missing");
    assert_eq!(ask(&cache, &prompt[..3 * 16 - 1], 8, None).await, [0..4], "the third block is not full");
    for size in [0, 24, 48 + 1] {
        assert_eq!(ask(&cache, &prompt, size, None).await, NOTHING, "{size}");
    }
    assert_eq!(sole_miss(cache.counts()), Some(Miss::BlockSize));
    assert_eq!(cache.counts().misses(Miss::BlockSize), 3);
}

#[tokio::test]
async fn a_region_may_be_made_removed_and_made_again() {
    let made = Made::new();
    let prompt = tokens(4);
    let cache = made.cache(&["m"]);
    assert_eq!(ask(&cache, &prompt, BLOCK_TOKENS, None).await, NOTHING);
    assert_eq!(sole_miss(cache.counts()), Some(Miss::Region));
    for identity in [5, 6] {
        let pool = made.make(identity);
        let ns = namespace(&pool, 1, "m", BLOCK_TOKENS);
        publish(&pool, &ns, &ns.hasher.chain(&prompt, 16)[..usize::from(identity) - 4]);
        assert_eq!(ask(&cache, &prompt, BLOCK_TOKENS, None).await, [0..u32::from(identity) - 4]);
        drop(pool);
        Mapping::remove(&made.0).unwrap();
        assert_eq!(ask(&cache, &prompt, BLOCK_TOKENS, None).await, NOTHING, "a removed region has no blocks");
    }
    assert_eq!(cache.counts().misses(Miss::Region), 3);
}

/// Memory that another process cuts off reads as zeros.
#[tokio::test]
async fn a_truncated_region_is_a_miss() {
    let made = Made::new();
    let pool = made.make(7);
    let prompt = tokens(4);
    let ns = namespace(&pool, 1, "m", BLOCK_TOKENS);
    publish(&pool, &ns, &ns.hasher.chain(&prompt, 16));
    let settings = Settings { recheck: Duration::from_secs(3600), ..made.settings(&["m"]) };
    let (now, later) = (made.cache(&["m"]), CenoteCache::new(settings).unwrap());
    for cache in [&now, &later] {
        assert_eq!(ask(cache, &prompt, BLOCK_TOKENS, None).await, [0..4]);
    }
    std::mem::forget(pool);
    std::fs::OpenOptions::new().write(true).open(made.path()).unwrap().set_len(0).unwrap();
    for cache in [&now, &later] {
        assert_eq!(ask(cache, &prompt, BLOCK_TOKENS, None).await, NOTHING);
        assert_eq!(sole_miss(cache.counts()), Some(Miss::Region));
    }
}

#[tokio::test]
async fn bytes_that_are_no_region_are_a_miss() {
    let made = Made::new();
    for bytes in [vec![], vec![0xff; 4096], vec![0; 2 << 20]] {
        std::fs::write(made.path(), bytes).unwrap();
        let cache = made.cache(&["m"]);
        assert_eq!(ask(&cache, &tokens(4), BLOCK_TOKENS, None).await, NOTHING);
        assert_eq!(sole_miss(cache.counts()), Some(Miss::Region));
    }
}

/// Time that stands still, and in which one look of a lookup at the clock lasts until a test opens the
/// gate. Looks of the router's own thread pass.
struct Gate {
    time: &'static ManualTime,
    router: ThreadId,
    held: u32,
    looks: AtomicU32,
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    /// A gate that holds the look of this number, counted from 1.
    fn at(held: u32) -> &'static Self {
        let (time, router) = (ManualTime::start(), std::thread::current().id());
        let (looks, is_open, opened) = (AtomicU32::new(0), Mutex::new(false), Condvar::new());
        Box::leak(Box::new(Self { time, router, held, looks, is_open, opened }))
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    /// Asks with this clock, and lets the deadline pass while the lookup is held.
    async fn ask_late(&self, cache: &CenoteCache, tokens: &[u32]) -> Vec<Range<u32>> {
        let passes = async {
            soon("a held lookup", || self.looks.load(SeqCst) >= self.held).await;
            assert_eq!(cache.counts().misses(Miss::Late), 0, "the deadline has not passed");
            self.time.advance(DEADLINE);
        };
        tokio::join!(ask(cache, tokens, BLOCK_TOKENS, None), passes).0
    }
}

impl TimeSource for Gate {
    fn now_ns(&self) -> u64 {
        if std::thread::current().id() != self.router && self.looks.fetch_add(1, SeqCst) + 1 == self.held {
            let is_open = self.is_open.lock().unwrap();
            drop(self.opened.wait_while(is_open, |is_open| !*is_open).unwrap());
        }
        self.time.now_ns()
    }

    fn unix(&self) -> Duration {
        self.time.unix()
    }

    fn block_for(&self, ahead: Duration) -> Duration {
        self.time.block_for(ahead)
    }
}

/// Waits until another thread has made `so` true.
async fn soon(what: &str, mut so: impl FnMut() -> bool) {
    let looking = async {
        while !so() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("waited {PATIENCE:?} for {what}"));
}

#[tokio::test]
async fn a_late_answer_is_a_miss() {
    let made = Made::new();
    let pool = made.make(8);
    let ns = namespace(&pool, 1, "m", BLOCK_TOKENS);
    publish(&pool, &ns, &ns.hasher.chain(&tokens(4), 16));
    // The first look is at the region, the second before the blocks.
    let gate = Gate::at(2);
    let cache = CenoteCache::new(Settings { clock: Clock::of(gate), ..made.settings(&["m"]) }).unwrap();
    assert_eq!(gate.ask_late(&cache, &tokens(4)).await, NOTHING);
    assert_eq!(sole_miss(cache.counts()), Some(Miss::Late));
    gate.open();
    assert_eq!(ask(&cache, &tokens(4), BLOCK_TOKENS, None).await, [0..4], "the next query has a deadline of its own");
    assert_eq!(cache.counts().misses(Miss::Late), 1);
}

/// A prompt of a million tokens does not hold a thread beyond its deadline.
#[tokio::test]
async fn a_lookup_ends_with_its_deadline() {
    const HELD: u32 = 10;
    let made = Made::new();
    let pool = made.make(9);
    namespace(&pool, 1, "m", BLOCK_TOKENS);
    let gate = Gate::at(HELD);
    let settings = Settings { clock: Clock::of(gate), lookups: 1, ..made.settings(&["m"]) };
    let cache = CenoteCache::new(Settings { naming: Naming::Vllm(Vllm::default()), ..settings }).unwrap();
    let long: Vec<u32> = (0..4_000_000).collect();
    assert_eq!(gate.ask_late(&cache, &long).await, NOTHING);
    assert_eq!(sole_miss(cache.counts()), Some(Miss::Late));
    ask(&cache, &[], BLOCK_TOKENS, None).await;
    assert_eq!(cache.counts().misses(Miss::Busy), 1, "the lookup still has the only permit");
    gate.open();
    // The permit comes back when the lookup notices.
    let is_free = async {
        loop {
            let before = cache.counts().misses(Miss::Busy);
            ask(&cache, &[], BLOCK_TOKENS, None).await;
            if cache.counts().misses(Miss::Busy) == before {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, is_free).await.expect("the lookup ends");
    // The query that was not refused looks twice. All names would take two thousand looks.
    assert_eq!(gate.looks.load(SeqCst), HELD + 2, "the lookup ends at the look after its deadline");
}

/// New weights have new names; without a readable version no name is known.
#[tokio::test]
async fn the_version_of_the_weights_is_in_the_names() {
    let made = Made::new();
    let pool = made.make(10);
    let ns = namespace(&pool, 1, "m", BLOCK_TOKENS);
    let prompt = tokens(2);
    let file = std::env::temp_dir().join(format!("cenote-test-dynamo-weights-{}", std::process::id()));
    let naming = Naming::Vllm(Vllm { weights_version_file: Some(file.clone()), ..Vllm::default() });
    let cache = CenoteCache::new(Settings { naming: naming.clone(), ..made.settings(&["m"]) }).unwrap();
    assert_eq!(ask(&cache, &prompt, BLOCK_TOKENS, None).await, NOTHING);
    assert_eq!(sole_miss(cache.counts()), Some(Miss::Region), "the file is missing");
    std::fs::write(&file, "step 1").unwrap();
    publish(&pool, &ns, &names_of(&naming, &ns, &prompt, None));
    assert_eq!(ask(&cache, &prompt, BLOCK_TOKENS, None).await, [0..2]);
    std::fs::write(&file, "step 2").unwrap();
    assert_eq!(ask(&cache, &prompt, BLOCK_TOKENS, None).await, NOTHING);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let made = Made::new();
    assert!(matches!(CenoteCache::new(made.settings(&[])), Err(SettingsError::NoNamespace)));
    let zero = Settings { deadline: Duration::ZERO, ..made.settings(&["m"]) };
    assert!(matches!(CenoteCache::new(zero), Err(SettingsError::Zero("deadline"))));
    let zero = Settings { lookups: 0, ..made.settings(&["m"]) };
    assert!(matches!(CenoteCache::new(zero), Err(SettingsError::Zero("lookups"))));
}
