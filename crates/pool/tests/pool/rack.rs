//! Several hosts share one region as one pool: space moves to the hosts that need it, and a hit on
//! any host keeps a block. Hit rates are compared with one host that serves the same requests with
//! the same region.
#![allow(clippy::print_stdout, reason = "the figures are stated in docs/internals/protocol.md")]

use crate::support::{FlushedPool, attach_host, chain, payload, small_config, without_coherence};
use cenote_base::BlockHash;
use cenote_base::prng::Prng;
use cenote_policy::Eviction;
use cenote_pool::{Counter, Namespace, NewBlock, PoolConfig};

/// Blocks are small, so that many of them are soon published.
const BLOCK: u64 = 4 << 10;
const CHUNK: u64 = 64 << 10;
/// A tick comes after so many requests of the rack.
const REQUESTS_PER_TICK: usize = 20;

/// A region and its hosts.
struct Rack {
    hosts: Vec<(FlushedPool, Namespace)>,
    requests: usize,
    requests_per_tick: usize,
}

/// Blocks found and blocks asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    found: usize,
    asked: usize,
}

impl Hits {
    fn rate(self) -> f64 {
        self.found as f64 / self.asked as f64
    }
}

impl Rack {
    fn new(hosts: u8, bytes: u64, eviction: Eviction) -> Self {
        let config = PoolConfig { max_hosts: 8, eviction, events_per_host: 0, ..small_config(71) };
        let fabric = without_coherence(bytes, &config);
        let attach = |host| {
            let pool = attach_host(&fabric, host);
            let namespace = crate::support::namespace(&pool, 1, BLOCK);
            (pool, namespace)
        };
        Self { hosts: (0..hosts).map(attach).collect(), requests: 0, requests_per_tick: REQUESTS_PER_TICK }
    }

    fn blocks(&self) -> usize {
        let info = self.hosts[0].0.info();
        (info.num_chunks * CHUNK / BLOCK) as usize
    }

    /// A host serves a prompt: it reads what it finds and publishes the rest.
    fn serve(&mut self, host: usize, prompt: u32, blocks: usize) -> Hits {
        let (pool, namespace) = &self.hosts[host];
        let hashes = chain(namespace, prompt, blocks);
        let found = pool.lookup(&hashes).len();
        for (depth, &hash) in hashes.iter().enumerate().skip(found) {
            let _ = pool.publish(&NewBlock::new(namespace, hash, depth as u32), &[&payload(hash, BLOCK)]);
        }
        self.requests += 1;
        if self.requests.is_multiple_of(self.requests_per_tick) {
            self.tick();
        }
        Hits { found, asked: blocks }
    }

    /// A host looks a prompt up and publishes nothing.
    fn ask(&self, host: usize, prompt: u32, blocks: usize) -> Hits {
        let (pool, namespace) = &self.hosts[host];
        Hits { found: pool.lookup(&chain(namespace, prompt, blocks)).len(), asked: blocks }
    }

    fn tick(&self) {
        for (pool, _) in &self.hosts {
            pool.tick();
        }
    }

    /// Blocks of a prompt in the pool.
    fn has(&self, host: usize, prompt: u32, blocks: usize) -> usize {
        let (pool, namespace) = &self.hosts[host];
        let hashes: Vec<BlockHash> = chain(namespace, prompt, blocks);
        pool.peek(&hashes).len()
    }
}

/// Prompts of two kinds by turns: some that a few are asked for all the time and most once, and
/// some that are all asked for as often, so that the hit rate grows with the space for them.
fn prompts(count: usize) -> Vec<u32> {
    let mut prng = Prng::new(5);
    let draw = |number: usize| {
        if number.is_multiple_of(2) {
            return DISTINCT as u32 + prng.below(EQUAL) as u32;
        }
        let uniform = prng.below(1 << 20) as f64 / f64::from(1 << 20);
        ((DISTINCT as f64).powf(uniform) - 1.0) as u32
    };
    (0..count).map(draw).collect()
}

/// Blocks of a prompt.
fn blocks_of(prompt: u32) -> usize {
    4 + prompt as usize % 9
}

const REQUESTS: usize = 6000;
/// Prompts that differ in popularity, and prompts that do not.
const DISTINCT: u64 = 1500;
const EQUAL: u64 = 500;
const REGION: u64 = 16 << 20;

/// What hosts did together.
#[derive(Clone, Copy, Debug)]
struct Served {
    /// Blocks found, of those asked for.
    rate: f64,
    /// Chunks that went from host to host, for each chunk whose blocks were evicted.
    moves: f64,
}

/// Serves requests that `host_of` spreads over hosts, by their number and prompt.
fn served(hosts: usize, eviction: Eviction, requests_per_tick: usize, host_of: Split) -> Served {
    let mut rack = Rack { requests_per_tick, ..Rack::new(hosts as u8, REGION, eviction) };
    let mut hits = Hits::default();
    for (number, prompt) in prompts(REQUESTS).into_iter().enumerate() {
        let host = host_of(number, prompt as usize, hosts);
        let more = rack.serve(host, prompt, blocks_of(prompt));
        hits = Hits { found: hits.found + more.found, asked: hits.asked + more.asked };
    }
    let sum = |counter| rack.hosts.iter().map(|(pool, _)| pool.counter(counter)).sum::<u64>() as f64;
    let evicted_chunks = sum(Counter::Evicted) * BLOCK as f64 / CHUNK as f64;
    Served { rate: hits.rate(), moves: sum(Counter::ChunksShared) / evicted_chunks }
}

/// The host of a request, from its number, its prompt and the number of hosts.
type Split = fn(usize, usize, usize) -> usize;

const ALL_ON_ONE: &str = "all on one";
const EVEN: &str = "even";
const BY_PROMPT: &str = "each prompt on its host";
const SPLITS: [(&str, Split); 6] = [
    (ALL_ON_ONE, |_, _, hosts| hosts - 1),
    (EVEN, |number, _, hosts| number % hosts),
    (BY_PROMPT, |_, prompt, hosts| prompt % hosts),
    ("moving", |number, _, hosts| number / 300 % hosts),
    ("moving slowly", |number, _, hosts| number / 1500 % hosts),
    ("one in ten elsewhere", |number, _, hosts| if number.is_multiple_of(10) { number / 10 % hosts } else { 0 }),
];

/// Lowest part of one host's hit rate that several hosts reach. If requests for one prompt go to
/// several hosts, its blocks lie in several queues. SIEVE and S3-FIFO then evict some heads before
/// their tails, because only blocks in one queue leave in the order of their depth. Each host has
/// its own ghosts of S3-FIFO.
fn least_part(eviction: Eviction, split: &str) -> f64 {
    let is_whole = [ALL_ON_ONE, BY_PROMPT].contains(&split);
    match eviction {
        Eviction::Lru => 0.97,
        _ if is_whole => 0.97,
        Eviction::CostAware => 0.96,
        Eviction::Sieve => 0.92,
        Eviction::S3Fifo => 0.91,
    }
}

#[test]
fn space_moves_to_the_host_that_serves() {
    let served = |hosts: u8| {
        let mut rack = Rack::new(hosts, REGION, Eviction::Lru);
        let last = usize::from(hosts) - 1;
        // The first host fills the region and goes idle.
        let fill = rack.blocks() / 8 + 40;
        for prompt in 0..fill as u32 {
            rack.serve(0, 100_000 + prompt, 8);
        }
        (0..10).for_each(|_| rack.tick());
        // The other serves prompts that fit the region.
        let fit = rack.blocks() * 9 / 10 / 8;
        for prompt in 0..fit as u32 {
            rack.serve(last, prompt, 8);
        }
        let found: usize = (0..fit as u32).map(|prompt| rack.has(last, prompt, 8)).sum();
        found as f64 / (8 * fit) as f64
    };
    let (one, two) = (served(1), served(2));
    assert!(one > 0.99 && two >= 0.95 * one, "{two:.3} of the tokens are found; with one host {one:.3}");
}

/// Part of the hot prompt's blocks that the last host finds, while the first serves cold prompts,
/// and the last too if it is `busy`.
fn kept(hosts: u8, eviction: Eviction, busy: bool) -> f64 {
    let mut rack = Rack::new(hosts, REGION, eviction);
    let last = usize::from(hosts) - 1;
    rack.serve(0, 0, 12);
    let mut hits = Hits::default();
    for cold in 0..1500 {
        rack.serve(0, 1000 + cold, 8);
        if busy {
            rack.serve(last, 50_000 + cold, 8);
        }
        let more = rack.ask(last, 0, 12);
        hits = Hits { found: hits.found + more.found, asked: hits.asked + more.asked };
    }
    hits.rate()
}

#[test]
fn a_block_that_another_host_uses_stays() {
    for (eviction, busy) in Eviction::ALL.into_iter().flat_map(|eviction| [(eviction, false), (eviction, true)]) {
        let [one, two] = [1, 2].map(|hosts| kept(hosts, eviction, busy));
        assert!(two >= 0.95, "{eviction}, busy {busy}: {two:.3} of the hot blocks are found; with one host {one:.3}");
    }
}

/// Serves all splits of the load, and checks hit rates and the chunks moved.
fn expect_one_pool(eviction: Eviction, requests_per_tick: usize, most_moves: f64) {
    let mut missed = Vec::new();
    let one = served(1, eviction, requests_per_tick, |_, _, _| 0).rate;
    for hosts in [2, 4, 8] {
        for (split, host_of) in SPLITS {
            let Served { rate, moves } = served(hosts, eviction, requests_per_tick, host_of);
            let row = format!("{eviction}, {hosts} hosts, {split}: {:.3} of one host, {moves:.3} moves", rate / one);
            println!("{row}");
            if rate < least_part(eviction, split) * one || split == EVEN && moves > most_moves {
                missed.push(row);
            }
        }
    }
    assert!(missed.is_empty(), "with one host {one:.4}; missed:\n{}", missed.join("\n"));
}

#[test]
fn hosts_find_as_much_together_as_one() {
    for eviction in Eviction::ALL {
        // Ages of busy hosts differ by chance. Policies that evict by age make them equal.
        let most_moves = if eviction.policy().evicts_by_age() { 1.0 } else { 0.1 };
        expect_one_pool(eviction, REQUESTS_PER_TICK, most_moves);
    }
}

#[test]
fn hosts_find_as_much_together_if_they_tick_after_every_request() {
    expect_one_pool(Eviction::Lru, 1, 1.0);
}
