//! Regions and specifications of the tests.

use cenote_base::seal::SealKeys;
use cenote_mem::{Coherent, MapOptions, Mapping, RegionSource};
use cenote_pool::{AttachOptions, Pool, PoolConfig, PoolError, Superblock};
use cenote_store::NamespaceSpec;
use std::sync::Arc;

/// A new region for one worker in this process.
pub fn region(config: &PoolConfig, bytes: u64) -> Pool<Arc<Coherent>> {
    region_in(&RegionSource::Anon, config, bytes, None).expect("it attaches")
}

/// The same in a place, whose file has mode 0640, for a worker with these keys.
pub fn region_in(
    source: &RegionSource,
    config: &PoolConfig,
    bytes: u64,
    keys: Option<SealKeys>,
) -> Result<Pool<Arc<Coherent>>, PoolError> {
    let mapping = Mapping::create(source, bytes, 0o640, &MapOptions::default()).expect("memory");
    let fabric = Arc::new(Coherent::new(mapping));
    Superblock::format(&fabric, config)?;
    Pool::attach(fabric, &AttachOptions { private: true, keys, ..AttachOptions::named("test") })
}

/// Blocks of 16 tokens with two layers, so of four pages.
pub fn spec(model: u8, page_bytes: usize, tenant_salt: &str) -> NamespaceSpec {
    NamespaceSpec {
        model_fingerprint: [model; 32],
        label: "tiny".to_owned(),
        dtype: "f32".to_owned(),
        block_tokens: 16,
        num_layers: 2,
        page_bytes: page_bytes as u32,
        page_layout: "test".to_owned(),
        shard: "0/1".to_owned(),
        tenant_salt: tenant_salt.to_owned(),
    }
}
