//! Common parts of the pool's tests: regions, namespaces, and payloads that identify themselves.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod shared;

use cenote_base::seal::{Seal, SealKeys};
use cenote_base::testing::PATIENCE;
use cenote_base::{BlockHash, HashSeed, HostId};
use cenote_mem::{Coherent, Fabric, Flush, Flushed, MapOptions, Mapping, RegionSource};
use cenote_pool::{
    AttachOptions, Design, Hit, Namespace, NamespaceRecord, NewBlock, Pool, PoolConfig, Publish, ReadOutcome,
    Superblock,
};
use std::sync::Arc;

pub type TestPool = Pool<Arc<Coherent>>;
pub type FlushedPool = Pool<Arc<Flushed>>;

pub const BLOCK_BYTES: u64 = 16 << 10;

/// Small chunks and few slots, so that every limit is soon reached.
pub fn small_config(identity: u8) -> PoolConfig {
    PoolConfig {
        chunk_bytes: 64 << 10,
        min_block_bytes: 4 << 10,
        max_hosts: 2,
        workers_per_host: 16,
        hazard_lines_per_worker: 4,
        events_per_host: 64,
        ..PoolConfig::new(HashSeed([identity; 32]), [identity; 16])
    }
}

/// As [`small_config`], for each design.
pub fn each_design(identity: u8) -> impl Iterator<Item = PoolConfig> {
    Design::ALL.into_iter().map(move |design| PoolConfig { design, ..small_config(identity) })
}

/// As [`small_config`], sealed by the first of [`keys`].
pub fn sealed(seal: Seal, identity: u8) -> PoolConfig {
    small_config(identity).sealed(seal, &keys(&[1]))
}

/// The keys with these numbers.
pub fn keys(numbers: &[u64]) -> SealKeys {
    let key = |number: &u64| format!("{number:064x}\n");
    SealKeys::parse(&numbers.iter().map(key).collect::<String>()).expect("they are keys")
}

/// Options of a worker whose timeouts outlast any pause of a busy machine. Tests declare a host dead
/// by `fence_host`, or let the time of a clock of their own pass.
pub fn patient(host: u8) -> AttachOptions {
    AttachOptions { host: HostId(host), lock_timeout: PATIENCE, host_timeout: PATIENCE, ..AttachOptions::named("test") }
}

/// As [`patient`], on memory of this process.
pub fn private(host: u8) -> AttachOptions {
    AttachOptions { private: true, ..patient(host) }
}

pub fn anonymous(bytes: u64, config: &PoolConfig) -> (Arc<Coherent>, TestPool) {
    anonymous_for(bytes, config, &private(0))
}

/// As [`anonymous`], for a worker with these options.
pub fn anonymous_for(bytes: u64, config: &PoolConfig, options: &AttachOptions) -> (Arc<Coherent>, TestPool) {
    let mapping = Mapping::create(&RegionSource::Anon, bytes, 0o600, &MapOptions::default()).expect("anonymous memory");
    let fabric = Arc::new(Coherent::new(mapping));
    Superblock::format(&fabric, config).expect("the configuration fits");
    let keys = options.keys.clone().or_else(|| (config.seal != Seal::None).then(|| keys(&[1])));
    let options = AttachOptions { keys, ..options.clone() };
    let pool = Pool::attach(Arc::clone(&fabric), &options).expect("a fresh region attaches");
    (fabric, pool)
}

/// An empty region whose hosts do not share their caches.
pub fn without_coherence(bytes: u64, config: &PoolConfig) -> Arc<Flushed> {
    let mapping = Mapping::create(&RegionSource::Anon, bytes, 0o600, &MapOptions::default()).expect("anonymous memory");
    let fabric = Arc::new(Flushed::new(mapping, Flush::available()[0]).expect("it is available"));
    Superblock::format(&fabric, config).expect("the configuration fits");
    fabric
}

/// A region of hosts without coherence, and a worker on each of two hosts.
pub fn two_hosts(config: &PoolConfig) -> (Arc<Flushed>, [FlushedPool; 2]) {
    let fabric = without_coherence(2 << 20, config);
    let hosts = [0, 1].map(|host| attach_host(&fabric, host));
    (fabric, hosts)
}

/// A worker of a host of [`two_hosts`].
pub fn attach_host(fabric: &Arc<Flushed>, host: u8) -> FlushedPool {
    Pool::attach(Arc::clone(fabric), &private(host)).expect("each host has its slot")
}

pub fn namespace<F: Fabric>(pool: &Pool<F>, fingerprint: u8, block_bytes: u64) -> Namespace {
    pool.namespace(&NamespaceRecord {
        fingerprint: [fingerprint; 32],
        label: format!("model {fingerprint}"),
        block_bytes,
        block_tokens: 16,
        num_layers: 2,
    })
    .expect("the table has room")
}

/// Hashes of `blocks` blocks of the prompt number `prompt`.
pub fn chain(namespace: &Namespace, prompt: u32, blocks: usize) -> Vec<BlockHash> {
    let tokens: Vec<u32> = (0..blocks as u32 * 16).map(|token| token ^ (prompt << 12)).collect();
    namespace.hasher.chain(&tokens, 16)
}

/// The payload for a hash; another block's bytes are recognised.
pub fn payload(hash: BlockHash, bytes: u64) -> Vec<u8> {
    let mut prng = cenote_base::prng::Prng::new(hash.words()[0]);
    let mut bytes = vec![0; bytes as usize];
    bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&prng.next_u64().to_le_bytes()[..part.len()]));
    bytes
}

pub fn publish<F: Fabric>(pool: &Pool<F>, namespace: &Namespace, hash: BlockHash, depth: u32) -> Publish {
    let bytes = payload(hash, namespace.block_bytes);
    let (left, right) = bytes.split_at(bytes.len() / 128 * 64);
    pool.publish(&NewBlock::new(namespace, hash, depth), &[left, right])
}

/// Reads a block and asserts that a whole one is right.
pub fn read<F: Fabric>(pool: &Pool<F>, hit: &Hit) -> ReadOutcome {
    let mut bytes = vec![0; hit.length as usize];
    let outcome = pool.read(hit, &mut [&mut bytes]);
    if outcome == ReadOutcome::Whole {
        assert_eq!(bytes, payload(hit.hash, hit.length), "a whole read returned another block's bytes");
    }
    outcome
}
