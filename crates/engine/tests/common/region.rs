//! A pool in private memory, and stores of a model in it.

use super::config;
use cenote_base::HashSeed;
use cenote_engine::LoadedModel;
use cenote_mem::{Coherent, MapOptions, Mapping, RegionSource};
use cenote_pool::{AttachOptions, Pool, PoolConfig, Superblock};
use cenote_store::RegionStore;
use std::path::Path;
use std::sync::Arc;

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

pub fn open(dir: &Path, pool: &RegionPool) -> Box<RegionStore<Arc<Coherent>>> {
    let model = LoadedModel::load(&config(dir)).unwrap();
    Box::new(RegionStore::new(pool.clone(), &model.namespace_spec("")).unwrap())
}
