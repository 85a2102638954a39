//! An observer maps a region to read it. It knows which blocks may be there, and changes no byte.

use crate::support::shared::shm;
use crate::support::{BLOCK_BYTES, chain, each_design, namespace, publish, small_config};
use cenote_base::BlockHash;
use cenote_mem::{Coherent, Fabric, Flush, Flushed, MapOptions, Mapping, ReadMapping, ReadOnly, RegionSource};
use cenote_pool::{AttachOptions, ChunkInfo, Inspector, Pool, PoolConfig, Superblock};
use std::sync::Arc;

const REGION_BYTES: u64 = 2 << 20;

/// A region in shared memory, removed after the test.
struct Made(RegionSource);

impl Made {
    fn new(test: &str) -> Self {
        Self(shm(test))
    }

    fn format<F: Fabric>(&self, config: &PoolConfig, fabric: impl FnOnce(Mapping) -> F) -> Arc<F> {
        let mapping = Mapping::create(&self.0, REGION_BYTES, 0o600, &MapOptions::default()).expect("shared memory");
        let fabric = Arc::new(fabric(mapping));
        Superblock::format(&fabric, config).expect("the configuration fits");
        fabric
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.0.path().expect("shared memory has a path")).expect("it is there")
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = Mapping::remove(&self.0);
    }
}

/// An observer whose pages cannot be written: a store ends the process.
fn observe(made: &Made, flush: Flush) -> Inspector<Arc<ReadOnly>> {
    let mapping = ReadMapping::open(&made.0).unwrap();
    let fabric = Arc::new(ReadOnly::new(mapping, flush).unwrap());
    let options = AttachOptions { private: true, ..AttachOptions::named("") };
    Inspector::open(&fabric, &options).expect("it is a region")
}

fn follow<F: Fabric + Clone>(made: &Made, pool: &Pool<F>, flush: Flush) {
    let ns = namespace(pool, 1, BLOCK_BYTES);
    let hashes = chain(&ns, 1, 20);
    let observer = observe(made, flush);
    assert_eq!(observer.may_have(&hashes), vec![false; 20]);
    for (depth, &hash) in (0..).zip(&hashes).filter(|(depth, _)| depth % 3 != 1) {
        let _ = publish(pool, &ns, hash, depth);
    }
    let before = made.bytes();
    let there = |hash: &BlockHash| !pool.peek(std::slice::from_ref(hash)).is_empty();
    let wanted: Vec<bool> = hashes.iter().map(there).collect();
    assert!(wanted.contains(&true) && wanted.contains(&false), "{wanted:?}");
    assert_eq!(observer.may_have(&hashes), wanted, "holes in a prompt do not end the answer");
    assert_eq!(observer.may_have(&chain(&ns, 2, 20)), vec![false; 20], "another prompt");
    assert!(before == made.bytes(), "a query changed a byte of the region");
    while pool.evict(8) > 0 {}
    assert_eq!(observer.may_have(&hashes), vec![false; 20], "the blocks left");
}

fn options() -> AttachOptions {
    AttachOptions { private: true, ..AttachOptions::named("writer") }
}

#[test]
fn an_observer_sees_blocks_come_and_leave() {
    for config in each_design(61) {
        let made = Made::new("observed");
        let fabric = made.format(&config, Coherent::new);
        follow(&made, &Pool::attach(fabric, &options()).unwrap(), Flush::None);
    }
}

#[test]
fn an_observer_without_coherence_sees_blocks_come_and_leave() {
    let made = Made::new("observed-flushed");
    let flush = Flush::available()[0];
    let fabric = made.format(&small_config(62), |mapping| Flushed::new(mapping, flush).unwrap());
    follow(&made, &Pool::attach(fabric, &options()).unwrap(), flush);
}

#[test]
fn a_survey_has_the_chunks_that_its_summary_sums_up() {
    let made = Made::new("surveyed");
    let fabric = made.format(&small_config(63), Coherent::new);
    let pool = Pool::attach(fabric, &options()).unwrap();
    let observer = observe(&made, Flush::None);
    let (_, chunks) = observer.survey();
    assert!(chunks.len() > 1 && chunks.iter().all(|chunk| *chunk == ChunkInfo::default()), "all are free");
    let (one, other) = (namespace(&pool, 1, BLOCK_BYTES), namespace(&pool, 2, BLOCK_BYTES));
    for (ns, prompt, count) in [(&one, 1, 5), (&other, 2, 3)] {
        for (depth, &hash) in (0..).zip(&chain(ns, prompt, count)) {
            let _ = publish(&pool, ns, hash, depth);
        }
    }
    pool.put_object("root", b"bytes").expect("there is room");
    let (info, chunks) = observer.survey();
    let sum = |of: fn(&ChunkInfo) -> u64| chunks.iter().map(of).sum::<u64>();
    assert_eq!(chunks.len() as u64, info.num_chunks);
    assert_eq!((sum(|chunk| chunk.blocks), sum(|chunk| chunk.bytes)), (8, info.bytes_ready));
    assert_eq!((sum(|chunk| chunk.objects), sum(|chunk| u64::from(chunk.slots > 0))), (1, info.chunks_taken));
    for row in &info.namespaces {
        let shares = || chunks.iter().flat_map(|chunk| &chunk.models).filter(|share| share.id == row.id);
        assert_eq!(shares().map(|share| share.blocks).sum::<u64>(), row.blocks);
        assert_eq!(shares().map(|share| share.new_bytes).sum::<u64>(), row.new_bytes);
        assert!(row.blocks > 0 && row.new_bytes == row.bytes, "{row:?}");
    }
    for chunk in chunks.iter().filter(|chunk| chunk.blocks > 0) {
        let (oldest, newest) = chunk.ages.expect("it has blocks");
        assert!(chunk.owner == Some(0) && newest <= oldest && oldest < 60, "{chunk:?}");
        assert!(chunk.age_sum <= chunk.blocks * u64::from(oldest) && chunk.blocks <= chunk.slots, "{chunk:?}");
    }
    assert!(chunks.iter().any(|chunk| chunk.owner.is_none() && chunk.ages.is_none()), "some are free");
}
