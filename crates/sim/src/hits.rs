//! The hit rate of a trace, without engines or time.
//!
//! Counting rule: a block hits only if every earlier block of its request hit; all blocks of a request are inserted; a block
//! that is there is touched, also behind a gap. The blocks of a request are asked for one after the other, each at an instant of its own, so
//! the policies are exactly the published ones; a pool gives all blocks of a prompt one instant, and evicts its end first.

use crate::cache::BlockCache;
use crate::workload::Workload;
use cenote_policy::Eviction;
use serde::Serialize;

/// How time passes for the eviction policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Instants {
    /// Each block has its own: textbook LRU, SIEVE and S3-FIFO.
    #[default]
    Block,
    /// All blocks of a request share one, as in the pool.
    Request,
}

/// What a trace found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HitRate {
    /// Requests.
    pub requests: u64,
    /// Blocks of all requests.
    pub blocks: u64,
    /// Different ones.
    pub unique_blocks: u64,
    /// Blocks found with all before them.
    pub hit_blocks: u64,
    /// Found, over all; 0 of none.
    pub hit_rate: f64,
    /// Blocks that had to leave.
    pub evicted_blocks: u64,
}

/// Replays a trace in its order through one cache of `capacity` blocks; `None`: as many as there are.
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
