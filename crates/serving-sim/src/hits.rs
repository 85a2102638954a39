//! The hit rate of a trace, without engines or time.
//!
//! Counting rule: a block hits only if every earlier block of its request hit. All blocks of a
//! request are inserted. A cached block is touched, also after a miss. With [`Instants::Block`]
//! each block of a request has its own instant, so the policies are exactly the published ones. A
//! pool gives all blocks of a prompt one instant and evicts the end of the prompt first
//! ([`Instants::Request`]).

use crate::cache::BlockCache;
use crate::workload::Workload;
use cenote_policy::Eviction;
use serde::Serialize;

/// The clock of the eviction policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Instants {
    /// Each block has its own instant: textbook LRU, SIEVE and S3-FIFO.
    #[default]
    Block,
    /// All blocks of a request share one instant, as in the pool.
    Request,
}

/// Hit statistics of a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HitRate {
    /// Number of requests.
    pub requests: u64,
    /// Number of blocks of all requests.
    pub blocks: u64,
    /// Number of different blocks.
    pub unique_blocks: u64,
    /// Number of blocks that hit together with all blocks before them.
    pub hit_blocks: u64,
    /// `hit_blocks` divided by `blocks`; 0 without blocks.
    pub hit_rate: f64,
    /// Number of evicted blocks.
    pub evicted_blocks: u64,
}

/// Replays a trace in order through one cache of `capacity` blocks. `None`: unlimited.
#[must_use]
pub fn hit_rate(workload: &Workload, eviction: Eviction, capacity: Option<usize>, instants: Instants) -> HitRate {
    let mut cache = BlockCache::new(eviction, capacity, workload.num_blocks());
    let (mut blocks, mut hit_blocks, mut instant) = (0, 0, 0_u64);
    for request in workload.requests() {
        let asked = workload.blocks(request);
        blocks += asked.len() as u64;
        hit_blocks += cache.num_found(asked) as u64;
        instant += 1;
        for (depth, &block) in (0..).zip(asked) {
            cache.touch(block, depth, instant);
            instant += u64::from(instants == Instants::Block);
        }
    }
    HitRate {
        requests: workload.requests().len() as u64,
        blocks,
        unique_blocks: workload.num_blocks() as u64,
        hit_blocks,
        hit_rate: if blocks == 0 { 0.0 } else { hit_blocks as f64 / blocks as f64 },
        evicted_blocks: cache.evicted(),
    }
}

#[cfg(test)]
mod tests;
