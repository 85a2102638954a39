//! A private region with L4 below it, for the bench and the torture of the cold tier.

use cenote_base::{BlockHash, Clock, HashSeed};
use cenote_console::failure::Failure;
use cenote_mem::{Coherent, MapOptions, Mapping, RegionSource};
use cenote_pool::{AttachOptions, Namespace, NamespaceRecord, NewBlock, Pool, PoolConfig, Publish, Superblock};
use cenote_store::cold::{ColdTier, Settings, seed_of};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for L4's list.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// Sizes of a region.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub region_bytes: u64,
    pub chunk_bytes: u64,
    pub block_bytes: u64,
    /// Touches all pages first.
    pub prefault: bool,
}

/// A region of this process, which ends with it, and L4 below.
pub struct ColdRegion {
    pub pool: Pool<Arc<Coherent>>,
    pub namespace: Namespace,
    pub cold: Arc<ColdTier>,
}

impl ColdRegion {
    /// Makes a region and opens the place. `seed` becomes the hash seed of a new place.
    pub fn open(settings: &Settings, seed: HashSeed, shape: Shape) -> Result<Self, Failure> {
        let config = PoolConfig {
            chunk_bytes: shape.chunk_bytes,
            max_hosts: 1,
            workers_per_host: 2,
            hazard_lines_per_worker: 2,
            ..PoolConfig::new(seed_of(settings, &seed, Clock::system())?, [7; 16])
        };
        let options = MapOptions { prefault: shape.prefault, ..MapOptions::default() };
        let mapping = Mapping::create(&RegionSource::Anon, shape.region_bytes, 0o600, &options)?;
        let fabric = Arc::new(Coherent::new(mapping));
        Superblock::format(&fabric, &config)?;
        let pool = Pool::attach(fabric, &AttachOptions { private: true, ..AttachOptions::named("lab") })?;
        let namespace = pool.namespace(&NamespaceRecord {
            fingerprint: [5; 32],
            label: "lab".to_owned(),
            block_bytes: shape.block_bytes,
            block_tokens: 16,
            num_layers: 1,
        })?;
        let cold = ColdTier::start(pool.clone(), settings, Clock::system())?;
        cold.open(&namespace);
        if !cold.wait_open(Clock::system().after(OPEN_TIMEOUT)) {
            return Err(Failure::new(format!("the cold tier does not open: {:?}", cold.last_error())));
        }
        Ok(Self { pool, namespace, cold })
    }

    /// Name of the block with this number.
    pub fn hash(&self, number: u64) -> BlockHash {
        self.namespace.hasher.alias(&number.to_le_bytes())
    }

    /// Publishes a block. Returns whether the region has it.
    pub fn publish(&self, number: u64, payload: &[u8]) -> bool {
        let block = NewBlock::new(&self.namespace, self.hash(number), u32::try_from(number).unwrap_or(u32::MAX));
        matches!(self.pool.publish(&block, &[payload]), Publish::Published | Publish::Duplicate)
    }
}
