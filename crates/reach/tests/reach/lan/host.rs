//! The process of a host: a region, its share, and peers. It obeys lines, and answers each with one line.
//!
//! All payloads follow from their names, so every block that is here or at a peer is compared byte for byte.

use super::{BLOCKS, PROMPTS};
use crate::support::{Tally, names, pace, patience, payload, readable};
use cenote_base::prng::Prng;
use cenote_base::testing::{PATIENCE, until};
use cenote_base::{BlockHash, Clock, Deadline, HashSeed};
use cenote_mem::{Coherent, MapOptions, Mapping, RegionSource};
use cenote_pool::{
    AttachOptions, Namespace, NamespaceRecord, NewBlock, Pool, PoolConfig, Publish, ReadOutcome, Superblock,
};
use cenote_reach::nixl::Nixl;
use cenote_reach::{Beside, Key, Memory, ReadError, Reader, Remote, Settings, Share, connect};
use cenote_store::{Computing, Peers, Wanted};
use std::io::{BufRead, Write};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const PORT: u16 = 7411;
const BLOCK_BYTES: u64 = 16 << 10;
/// The superblock, which damage spares: without it a peer is gone at once.
const SUPERBLOCK_BYTES: u64 = 4096;
/// Pause of the owner between blocks that it publishes while peers read.
const PAUSE: Duration = Duration::from_micros(500);

type SharedPool = Pool<Arc<Coherent>>;

/// What the variables of its process say of a host.
struct Setting {
    number: u64,
    address: String,
    mebibytes: u64,
}

struct Host {
    setting: Setting,
    source: RegionSource,
    nixl: Arc<Nixl>,
    share: Arc<Share>,
    memory: Memory,
    pool: SharedPool,
    namespace: Namespace,
    beside: Option<Arc<Beside<Arc<Coherent>>>>,
    churning: Option<(Arc<AtomicBool>, std::thread::JoinHandle<()>)>,
}

fn key() -> Key {
    Key::new([3; 32])
}

fn source() -> RegionSource {
    "shm:kv".parse().expect("a name")
}

/// The region of this host, made if there is none. `life` is part of its identity.
fn region(setting: &Setting, life: u8) -> (SharedPool, Namespace) {
    let source = source();
    let is_there = source.path().is_some_and(|path| path.exists());
    let options = MapOptions::default();
    let fabric = if is_there {
        Arc::new(Coherent::new(Mapping::open(&source, &options).expect("it is there")))
    } else {
        let config = PoolConfig {
            chunk_bytes: 256 << 10,
            min_block_bytes: BLOCK_BYTES,
            max_hosts: 1,
            // Without events a region keeps no names.
            events_per_host: 64,
            ..PoolConfig::new(HashSeed([7; 32]), [life; 16])
        };
        let mapping = Mapping::create(&source, setting.mebibytes << 20, 0o600, &options).expect("memory");
        let fabric = Arc::new(Coherent::new(mapping));
        Superblock::format(&fabric, &config).expect("it fits");
        fabric
    };
    let options = AttachOptions { lock_timeout: PATIENCE, ..AttachOptions::named("host") };
    let pool = Pool::attach(fabric, &options).expect("a region");
    let record = NamespaceRecord {
        fingerprint: [1; 32],
        label: "model".to_owned(),
        block_bytes: BLOCK_BYTES,
        block_tokens: 16,
        num_layers: 2,
    };
    let namespace = pool.namespace(&record).expect("the table has room");
    (pool, namespace)
}

fn publish(pool: &SharedPool, namespace: &Namespace, hash: BlockHash, depth: usize) -> Publish {
    let new = NewBlock { names: names(hash), ..NewBlock::new(namespace, hash, depth as u32) };
    pool.publish(&new, &[&payload(hash, BLOCK_BYTES)])
}

impl Host {
    fn start() -> Self {
        let words = std::env::var("CENOTE_TEST_HOST").expect("a setting");
        let mut words = words.split(' ');
        let mut word = || words.next().expect("a word").to_owned();
        let setting = Setting {
            number: word().parse().expect("a number"),
            address: word(),
            mebibytes: word().parse().expect("mebibytes"),
        };
        let library = std::env::var("CENOTE_TEST_NIXL").expect("CENOTE_TEST_NIXL names libnixl_capi.so");
        let nixl = Nixl::open(Some(library.as_ref())).expect("NIXL");
        let (pool, namespace) = region(&setting, setting.number as u8 + 1);
        let share = Arc::new(Share::new(key(), Clock::system()));
        let mut memory = Memory::new(source(), Arc::clone(&nixl));
        share.set(Some(&memory.follow().expect("a region")));
        let listener = TcpListener::bind((setting.address.as_str(), PORT)).expect("a port");
        listener.set_nonblocking(true).expect("a socket");
        let serving = Arc::clone(&share);
        std::thread::spawn(move || {
            serving.serve(&listener, &(Arc::new(|_, _| ()) as _), || {
                // tidy: pause of a server between looks, as the command has it; no outcome depends on it
                std::thread::park_timeout(Duration::from_millis(1));
                true
            });
        });
        Self { setting, source: source(), nixl, share, memory, pool, namespace, beside: None, churning: None }
    }

    fn chain(&self, prompt: u32) -> Vec<BlockHash> {
        crate::support::chain(&self.namespace, prompt, BLOCKS)
    }

    /// Number of leading blocks of a prompt here, each with the right bytes.
    fn here(&self, prompt: u32) -> usize {
        let hits = self.pool.peek(&self.chain(prompt));
        for hit in &hits {
            let mut bytes = vec![0; hit.length as usize];
            let outcome = self.pool.read(hit, &mut [&mut bytes]);
            // A region that a test damages has other outcomes, too.
            if outcome == ReadOutcome::Whole {
                assert!(bytes == payload(hit.hash, hit.length), "wrong bytes of prompt {prompt} are here");
            }
        }
        hits.len()
    }

    fn connector(&self) -> impl Fn(&str, Deadline) -> Result<Box<dyn Remote>, ReadError> + Send + Sync + use<> {
        let (nixl, seed) = (Arc::clone(&self.nixl), self.pool.superblock().config.seed);
        let (agents, host) = (AtomicU64::new(0), self.setting.number);
        move |address: &str, deadline: Deadline| {
            let number = agents.fetch_add(1, Ordering::Relaxed);
            let name = format!("host-{host}-{}-{number}", std::process::id());
            connect(&nixl, address, &key(), &seed, &name, deadline)
        }
    }

    fn beside(&self) -> &Beside<Arc<Coherent>> {
        self.beside.as_ref().expect("peers are named first")
    }

    /// Looks for a prompt at the peers. Returns the leading blocks that are here then; `None`: no peer was asked.
    fn bring(&self, prompt: u32) -> Option<usize> {
        let hashes = self.chain(prompt);
        let missing = &hashes[self.here(prompt)..];
        if missing.is_empty() {
            return Some(BLOCKS);
        }
        let promotion =
            self.beside().promote(&self.namespace, missing, &readable(), Wanted::Leading, &Computing::default())?;
        until("the promotion ends", || promotion.is_over().then_some(()));
        Some(self.here(prompt))
    }

    /// Reads blocks of any prompts at a peer, until so many were whole and one was overtaken by its owner. Every
    /// byte is compared.
    fn read(&self, address: &str, wanted: usize, seed: u64) -> Tally {
        let remote = self.connector()(address, patience()).expect("it connects");
        let seed_of_hashes = self.pool.superblock().config.seed;
        let mut reader = Reader::open(remote, &seed_of_hashes, None, patience()).expect("a region");
        let (mut random, mut tally) = (Prng::new(seed), Tally::default());
        while tally.whole < wanted || tally.stale + tally.wrong == 0 {
            let chain = self.chain(random.below(u64::from(PROMPTS)) as u32);
            let begin = random.below(BLOCKS as u64) as usize;
            let hits = reader.find(&chain[begin..], pace()).expect("it answers");
            reader
                .fetch((&self.namespace, &readable()), &hits, pace(), |hit, fetched| tally.count_named(hit, fetched))
                .expect("it answers");
        }
        tally
    }

    /// Reads each block of the first prompts that is found at a peer.
    fn sweep(&self, address: &str, prompts: u32) -> Tally {
        let remote = self.connector()(address, patience()).expect("it connects");
        let mut reader = Reader::open(remote, &self.pool.superblock().config.seed, None, patience()).expect("a region");
        let mut tally = Tally::default();
        for prompt in 0..prompts {
            let (chain, mut at) = (self.chain(prompt), 0);
            while at < BLOCKS {
                let hits = reader.find(&chain[at..], pace()).expect("it answers");
                reader
                    .fetch((&self.namespace, &readable()), &hits, pace(), |hit, fetched| tally.count(hit, fetched))
                    .expect("it answers");
                // Behind the one that is missing.
                at += hits.len() + 1;
            }
        }
        tally
    }

    /// Publishes blocks of any prompts, so that others leave, until [`Host::calm`].
    fn churn(&mut self, seed: u64) {
        let (pool, namespace) = (self.pool.clone(), self.namespace.clone());
        let chains: Vec<Vec<BlockHash>> = (0..PROMPTS).map(|prompt| self.chain(prompt)).collect();
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut random = Prng::new(seed);
            while !ends.load(Ordering::Relaxed) {
                // Runs of blocks, because a reader takes what is there up to the first that is not.
                let chain = &chains[random.below(chains.len() as u64) as usize];
                let begin = random.below(BLOCKS as u64) as usize;
                for (depth, &hash) in chain.iter().enumerate().skip(begin).take(8) {
                    if pool.peek(&[hash]).is_empty() {
                        publish(&pool, &namespace, hash, depth);
                    }
                    std::thread::park_timeout(PAUSE);
                }
            }
        });
        self.churning = Some((is_over, thread));
    }

    fn calm(&mut self) {
        let (is_over, thread) = self.churning.take().expect("it publishes");
        is_over.store(true, Ordering::Relaxed);
        thread.join().expect("it ends");
    }

    /// Changes bytes at random places, one of every so many on average.
    fn damage(&self, seed: u64, every: u64) {
        let path = self.source.path().expect("a file");
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("a region");
        let length = file.metadata().expect("a file").len();
        let mut random = Prng::new(seed);
        for _ in 0..(length - SUPERBLOCK_BYTES) / every {
            let at = SUPERBLOCK_BYTES + random.below(length - SUPERBLOCK_BYTES);
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).expect("a byte");
            file.write_all_at(&[byte[0] ^ (1 << random.below(8))], at).expect("a byte");
        }
    }

    fn remake(&mut self, life: u8) {
        Mapping::remove(&self.source).expect("it is there");
        (self.pool, self.namespace) = region(&self.setting, life);
        self.share.set(Some(&self.memory.follow().expect("the new region")));
    }

    /// Obeys a line.
    fn obey(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        match words[0] {
            "peers" => {
                let settings: Settings = words[1].parse().expect("peers");
                self.beside = Some(Beside::start(self.pool.clone(), &settings, self.connector(), Clock::system()));
            }
            "publish" => {
                for (depth, hash) in self.chain(number(1) as u32).into_iter().enumerate() {
                    let outcome = publish(&self.pool, &self.namespace, hash, depth);
                    assert!(matches!(outcome, Publish::Published | Publish::Duplicate), "{outcome:?}");
                }
            }
            "bring" => return self.bring(number(1) as u32).map_or("unasked".to_owned(), |count| count.to_string()),
            "all" => return (0..PROMPTS).map(|prompt| self.here(prompt)).sum::<usize>().to_string(),
            "wait" => until(line, || (self.beside().stats()[words[1]] >= number(2) as f64).then_some(())),
            "count" => return self.beside().stats()[words[1]].to_string(),
            "read" => {
                let tally = self.read(words[1], number(2) as usize, number(3));
                return format!("{} {}", tally.whole, tally.stale + tally.wrong);
            }
            "sweep" => {
                let tally = self.sweep(words[1], number(2) as u32);
                return format!("{} {}", tally.whole, tally.stale + tally.wrong + tally.unreadable);
            }
            "churn" => self.churn(number(1)),
            "calm" => self.calm(),
            "damage" => self.damage(number(1), number(2)),
            "remake" => self.remake(number(1) as u8),
            other => panic!("`{other}` is no order"),
        }
        "done".to_owned()
    }
}

/// Answers stand behind this, because the harness of tests writes to the same pipe.
pub const ANSWER: &str = "answer: ";

pub fn run() {
    let host = Mutex::new(Host::start());
    let answer = |text: &str| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n{ANSWER}{text}").and_then(|()| out.flush()).expect("the test listens");
    };
    answer("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("the test speaks");
        answer(&host.lock().expect("no panic").obey(&line));
    }
}
