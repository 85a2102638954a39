//! The model of a pool on several hosts finds what the pool finds: the same requests on both, with
//! ticks at the same moments.
#![allow(clippy::print_stdout, reason = "the rows are shown with --nocapture")]

use cenote_base::prng::Prng;
use cenote_base::{BlockHash, HashSeed, HostId};
use cenote_mem::{Flush, Flushed, MapOptions, Mapping, RegionSource};
use cenote_policy::Eviction;
use cenote_pool::{AttachOptions, Counter, Namespace, NamespaceRecord, NewBlock, Pool, PoolConfig, Superblock};
use cenote_serving_sim::{Hosts, Rack};
use std::sync::Arc;
use std::time::Duration;

const CHUNK: u64 = 64 << 10;
const REGION: u64 = 16 << 20;
const REQUESTS: usize = 3_000;

/// Most that hit rates may differ, as a share of all blocks.
const BOUND: f64 = 0.004;

/// Prompts by their blocks: conversations that come back longer, and prompts that come once.
fn prompts(blocks_per_region: usize) -> Vec<Vec<u32>> {
    let mut prng = Prng::new(11);
    let mut next = 0..;
    let mut fresh = |count: u64| -> Vec<u32> { next.by_ref().take(count as usize).collect() };
    let mut conversations: Vec<Vec<u32>> = Vec::new();
    // So many conversations that about a half of them fits.
    let most = blocks_per_region / 12;
    let prompt = |_| {
        let known = prng.below(3) > 0 && !conversations.is_empty();
        let which = prng.below(conversations.len().max(1) as u64) as usize;
        let mut blocks = if known { conversations[which].clone() } else { Vec::new() };
        blocks.extend(fresh(1 + prng.below(8)));
        match (known, conversations.len() < most) {
            (true, _) if blocks.len() > 60 => drop(conversations.swap_remove(which)),
            (true, _) => conversations[which].clone_from(&blocks),
            (false, true) => conversations.push(blocks.clone()),
            (false, false) => {}
        }
        blocks
    };
    (0..REQUESTS).map(prompt).collect()
}

/// Hosts of a region in this process.
struct Region {
    hosts: Vec<(Pool<Arc<Flushed>>, Namespace)>,
    block_bytes: u64,
}

impl Region {
    fn new(hosts: usize, chunk_blocks: usize, eviction: Eviction) -> Self {
        let block_bytes = CHUNK / chunk_blocks as u64;
        let mapping = Mapping::create(&RegionSource::Anon, REGION, 0o600, &MapOptions::default()).expect("memory");
        let fabric = Arc::new(Flushed::new(mapping, Flush::available()[0]).expect("it is available"));
        let config = PoolConfig {
            chunk_bytes: CHUNK,
            min_block_bytes: block_bytes,
            workers_per_host: 16,
            hazard_lines_per_worker: 4,
            eviction,
            ..PoolConfig::new(HashSeed([3; 32]), [3; 16])
        };
        Superblock::format(&fabric, &config).expect("the configuration fits");
        let attach = |host| {
            // No pause of the test is a death.
            let host_timeout = Duration::from_secs(24 * 3600);
            let host = HostId(host as u8);
            let options = AttachOptions { private: true, host, host_timeout, ..AttachOptions::named("test") };
            let pool = Pool::attach(Arc::clone(&fabric), &options).expect("each host has its slot");
            let record = NamespaceRecord {
                fingerprint: [1; 32],
                label: "model".to_owned(),
                block_bytes,
                block_tokens: 16,
                num_layers: 2,
            };
            let namespace = pool.namespace(&record).expect("the table has room");
            (pool, namespace)
        };
        Self { hosts: (0..hosts).map(attach).collect(), block_bytes }
    }

    fn serve(&self, host: usize, blocks: &[u32]) -> usize {
        let (pool, namespace) = &self.hosts[host];
        let hash = |block: &u32| {
            let mut prng = Prng::new(u64::from(*block));
            BlockHash(std::array::from_fn(|_| prng.next_u64() as u8))
        };
        let hashes: Vec<BlockHash> = blocks.iter().map(hash).collect();
        let found = pool.lookup(&hashes).len();
        let payload = vec![7; self.block_bytes as usize];
        for (depth, &hash) in (0..).zip(&hashes).skip(found) {
            let _ = pool.publish(&NewBlock::new(namespace, hash, depth), &[&payload]);
        }
        found
    }

    fn sum(&self, counter: Counter) -> u64 {
        self.hosts.iter().map(|(pool, _)| pool.counter(counter)).sum()
    }
}

/// Serves the requests on both. Each host ticks once in `requests_per_tick`. `host_of` gives a
/// request's host.
fn expect_alike(
    hosts: usize,
    chunk_blocks: usize,
    eviction: Eviction,
    requests_per_tick: usize,
    host_of: fn(usize, usize) -> usize,
) {
    let region = Region::new(hosts, chunk_blocks, eviction);
    let capacity = region.hosts[0].0.info().num_chunks as usize * chunk_blocks;
    let prompts = prompts(capacity);
    let numbers = prompts.iter().flatten().max().map_or(0, |&last| last as usize + 1);
    let mut model = Rack::new(eviction, Some(capacity), numbers, Hosts { chunk_blocks, ..Hosts::new(hosts) });
    let (mut found, mut modelled, mut asked) = (0, 0, 0);
    for (number, prompt) in prompts.iter().enumerate() {
        let host = host_of(number, hosts);
        asked += prompt.len();
        found += region.serve(host, prompt);
        modelled += model.serve(host, prompt);
        if number % requests_per_tick == requests_per_tick - 1 {
            for host in 0..hosts {
                region.hosts[host].0.tick();
                model.tick(host);
            }
        }
    }
    let rate = |blocks: usize| blocks as f64 / asked as f64;
    let row = format!(
        "{eviction}, {hosts} hosts, chunks of {chunk_blocks}: the pool finds {:.4} and moves {} chunks, the model {:.4} and {}",
        rate(found),
        region.sum(Counter::ChunksShared),
        rate(modelled),
        model.moved_chunks()
    );
    println!("{row}");
    assert!(rate(found) > 0.1 && region.sum(Counter::Evicted) > capacity as u64, "{row}");
    assert!((rate(found) - rate(modelled)).abs() <= BOUND, "{row}");
    let (moved, modelled) = (region.sum(Counter::ChunksShared) as f64, model.moved_chunks() as f64);
    assert!((moved - modelled).abs() <= 20.0 + 0.1 * moved, "{row}");
}

#[test]
fn the_model_of_hosts_finds_what_the_pool_finds() {
    for eviction in Eviction::ALL {
        for hosts in [1, 2, 4, 8] {
            expect_alike(hosts, 16, eviction, 20, |number, hosts| number % hosts);
            expect_alike(hosts, 16, eviction, 20, |number, hosts| number / 500 % hosts);
        }
        expect_alike(4, 4, eviction, 3, |number, hosts| number % hosts);
        expect_alike(4, 4, eviction, 1, |number, hosts| if number % 10 == 0 { number / 10 % hosts } else { 0 });
    }
}
