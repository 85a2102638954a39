//! A pool in private memory, and stores of a model in it.

use super::config;
use cenote_base::prng::Prng;
use cenote_base::{Clock, HashSeed};
use cenote_engine::LoadedModel;
use cenote_mem::{Coherent, Fabric, MapOptions, Mapping, Offset, RegionSource};
use cenote_pool::{AttachOptions, Pool, PoolConfig, Superblock};
use cenote_store::RegionStore;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub type RegionPool = Pool<Arc<Coherent>>;

pub fn pool(bytes: u64) -> (Arc<Coherent>, RegionPool) {
    let mapping = Mapping::create(&RegionSource::Anon, bytes, 0o600, &MapOptions::default()).unwrap();
    let fabric = Arc::new(Coherent::new(mapping));
    let config = PoolConfig {
        chunk_bytes: 256 << 10,
        max_hosts: 1,
        workers_per_host: 4,
        hazard_lines_per_worker: 2,
        ..PoolConfig::new(HashSeed([3; 32]), [4; 16])
    };
    Superblock::format(&fabric, &config).unwrap();
    let options = AttachOptions { private: true, ..AttachOptions::named("test") };
    (Arc::clone(&fabric), Pool::attach(fabric, &options).unwrap())
}

/// Changes bytes of the region's payload while `run` runs: of copies that only the engine knows, and of
/// published blocks.
pub fn while_damaged<T>(fabric: &Coherent, run: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut prng = Prng::new(7);
            // Chunks lie behind the control areas.
            let first = fabric.len() / 2;
            while !done.load(Relaxed) {
                let at = Offset::<u64>::new(first + prng.below((fabric.len() - first) / 8) * 8);
                fabric.store(at, fabric.load(at) ^ 1);
                std::thread::yield_now();
            }
        });
        let result = catch_unwind(AssertUnwindSafe(run));
        done.store(true, Relaxed);
        result.unwrap()
    })
}

pub fn open(dir: &Path, pool: &RegionPool) -> Box<RegionStore<Arc<Coherent>>> {
    let model = LoadedModel::load(&config(dir)).unwrap();
    Box::new(RegionStore::new(pool.clone(), &model.namespace_spec(""), Clock::system()).unwrap())
}
