//! The hit rate of a trace, without engines or time.
//!
//! Counting rule: a block hits only if every earlier block of its request hit. All blocks of a
//! request are inserted. A cached block is touched, also after a miss. With [`Instants::Block`]
//! each block of a request has its own instant, so the policies are exactly the published ones. A
//! pool gives all blocks of a prompt one instant and evicts the end of the prompt first
//! ([`Instants::Request`]).

mod future;

pub use future::{Evicted, Returns, best_hit_rate, evictions, returns};

use crate::cache::BlockCache;
use crate::rack::{Hosts, Rack};
use crate::workload::{BlockNumber, Workload};
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
    /// Number of chunks that went from host to host.
    pub moved_chunks: u64,
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
        moved_chunks: 0,
    }
}

/// How requests are spread over hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// By turns.
    #[default]
    RoundRobin,
    /// A prompt of which half is found goes to the host that last served the deepest block found.
    /// Other prompts go by turns.
    Sticky,
    /// All to the first host. The others idle.
    One,
}

/// As [`hit_rate`] with [`Instants::Request`], on a pool of several hosts as the product implements
/// it.
#[must_use]
pub fn hit_rate_on_hosts(
    workload: &Workload,
    eviction: Eviction,
    capacity: Option<usize>,
    hosts: Hosts,
    routing: Routing,
) -> HitRate {
    let mut rack = Rack::new(eviction, capacity, workload.num_blocks(), hosts);
    let mut router = Router { routing, hosts: hosts.count, turn: 0, last: vec![0; workload.num_blocks()] };
    let (mut blocks, mut hit_blocks, mut ticks) = (0, 0, 0);
    for request in workload.requests() {
        while hosts.tick_at(ticks) <= request.arrival {
            rack.tick(hosts.ticks(ticks));
            ticks += 1;
        }
        let asked = workload.blocks(request);
        let host = router.host(asked, rack.num_found(asked));
        blocks += asked.len() as u64;
        hit_blocks += rack.serve(host, asked) as u64;
    }
    HitRate {
        requests: workload.requests().len() as u64,
        blocks,
        unique_blocks: workload.num_blocks() as u64,
        hit_blocks,
        hit_rate: if blocks == 0 { 0.0 } else { hit_blocks as f64 / blocks as f64 },
        evicted_blocks: rack.evicted(),
        moved_chunks: rack.moved_chunks(),
    }
}

struct Router {
    routing: Routing,
    hosts: usize,
    turn: usize,
    /// Host that last served a block.
    last: Vec<usize>,
}

impl Router {
    fn host(&mut self, blocks: &[BlockNumber], found: usize) -> usize {
        let turn = self.turn % self.hosts;
        let host = match self.routing {
            Routing::One => 0,
            // Prompts of all conversations may begin alike.
            Routing::Sticky if found > 0 && 2 * found >= blocks.len() => self.last[blocks[found - 1] as usize],
            Routing::RoundRobin | Routing::Sticky => turn,
        };
        self.turn += 1;
        blocks.iter().for_each(|&block| self.last[block as usize] = host);
        host
    }
}

#[cfg(test)]
mod tests;
