//! The hit rate of a trace, without engines or time.
//!
//! Counting rule: a block hits only if every earlier block of its request hit. All blocks of a
//! request are inserted. A cached block is touched, also after a miss. With [`Instants::Block`]
//! each block of a request has its own instant, so the policies are exactly the published ones. A
//! pool gives all blocks of a prompt one instant and evicts the end of the prompt first
//! ([`Instants::Request`]).

use crate::cache::BlockCache;
use crate::kernel::Time;
use crate::rack::{Rack, RackShape};
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
    /// To the host that last served the deepest block of the prompt; new prompts by turns.
    Sticky,
    /// All to the first host. The others idle.
    One,
}

/// The hosts of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// Number of hosts, at least 1.
    pub count: usize,
    /// Blocks of a chunk, at least 1.
    pub chunk_blocks: usize,
    /// Time between two ticks of a host.
    pub tick: Time,
    /// Which host serves a request.
    pub routing: Routing,
}

/// As [`hit_rate`], on a pool of several hosts as the product implements it. The pool has the
/// chunks that hold `capacity` blocks; the last one may be partly beyond.
///
/// # Panics
/// Panics if `hosts` has no hosts, chunks without blocks, or no time between ticks.
#[must_use]
pub fn hit_rate_on_hosts(workload: &Workload, eviction: Eviction, capacity: Option<usize>, hosts: &Hosts) -> HitRate {
    let chunks = match capacity {
        Some(capacity) => capacity.div_ceil(hosts.chunk_blocks),
        None => workload.num_blocks().div_ceil(hosts.chunk_blocks) + hosts.count,
    };
    let shape = RackShape { hosts: hosts.count, chunks, chunk_blocks: hosts.chunk_blocks, eviction };
    let mut rack = Rack::new(shape, workload.num_blocks());
    let mut ticks = Ticks::new(hosts);
    let mut router =
        Router { routing: hosts.routing, hosts: hosts.count, turn: 0, last: vec![0; workload.num_blocks()] };
    let (mut blocks, mut hit_blocks) = (0, 0);
    for request in workload.requests() {
        ticks.until(request.arrival, |host| rack.tick(host));
        let asked = workload.blocks(request);
        let host = router.host(asked, |block| rack.contains(block));
        blocks += asked.len() as u64;
        let found = rack.lookup(host, asked);
        hit_blocks += found as u64;
        for (depth, &block) in (0..).zip(asked).skip(found) {
            rack.publish(host, block, depth);
        }
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

/// The ticks of hosts, which are spread evenly over the time between two ticks of one.
struct Ticks {
    hosts: u64,
    interval: Time,
    done: u64,
}

impl Ticks {
    fn new(hosts: &Hosts) -> Self {
        assert!(hosts.tick > 0, "there is time between two ticks");
        Self { hosts: hosts.count as u64, interval: hosts.tick, done: 0 }
    }

    /// Calls `tick` for each host whose tick is due by `now`, in order of time.
    fn until(&mut self, now: Time, mut tick: impl FnMut(usize)) {
        while (self.done + 1) * self.interval / self.hosts <= now {
            tick((self.done % self.hosts) as usize);
            self.done += 1;
        }
    }
}

struct Router {
    routing: Routing,
    hosts: usize,
    turn: usize,
    /// Host that last served a block.
    last: Vec<u32>,
}

impl Router {
    fn host(&mut self, blocks: &[BlockNumber], is_there: impl Fn(BlockNumber) -> bool) -> usize {
        let turn = self.turn % self.hosts;
        let host = match self.routing {
            Routing::RoundRobin => turn,
            Routing::One => 0,
            Routing::Sticky => {
                let known = blocks.iter().rev().find(|&&block| is_there(block));
                known.map_or(turn, |&block| self.last[block as usize] as usize)
            }
        };
        self.turn += 1;
        blocks.iter().for_each(|&block| self.last[block as usize] = host as u32);
        host
    }
}

#[cfg(test)]
mod tests;
