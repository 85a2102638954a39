//! The parameters of a simulation, and the checks that they can serve a load.

use super::Spill;
use crate::kernel::Time;
use crate::model::{CostModel, Link};
use crate::rack::Hosts;
use crate::workload::Workload;
use cenote_policy::scheduler::{SchedulerConfig, SpillUse};
use cenote_policy::{Eviction, SwapConfig, Watermark};

/// The router numbers racks with 16 bits.
const RACKS_MAX: usize = u16::MAX as usize;

/// A store of blocks and the link to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Capacity in bytes. `None`: unlimited.
    pub bytes: Option<u64>,
    /// The link to it.
    pub link: Link,
}

/// The instances, their caches and the shared pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Number of engines.
    pub instances: u32,
    /// Cost of their steps.
    pub cost: CostModel,
    /// Nanoseconds from a client to an engine and back, without the steps: HTTP, tokenizing,
    /// streaming.
    pub front_ns: Time,
    /// Bytes of K and V of one token.
    pub kv_bytes_per_token: u64,
    /// Number of blocks of an engine's own memory (L1).
    pub l1_blocks: u32,
    /// Tokens per L1 block.
    pub l1_block_tokens: u32,
    /// Most requests that an engine runs at once.
    pub max_num_seqs: usize,
    /// Most tokens of a step.
    pub max_num_batched_tokens: u32,
    /// L1 blocks that admission leaves free.
    pub watermark: Watermark,
    /// Most L1 blocks that an engine can have swapped out at once. 0: no swapping.
    pub swap_blocks: u32,
    /// Whether an engine keeps the blocks of prompts in its own memory until others need the room, as
    /// vLLM does unless its prefix cache is turned off.
    pub has_prefix_cache: bool,
    /// Link between an engine and its swap space.
    pub swap_link: Link,
    /// Whether to swap even where recomputation would be faster, as CPEN 511 configured vLLM.
    pub always_swap: bool,
    /// Space of each engine for blocks of running requests outside its own memory, if any.
    pub spill: Option<Spill>,
    /// Each instance's own cache, if any.
    pub private: Option<Pool>,
    /// The pool that all instances share, if any.
    pub shared: Option<Pool>,
    /// The hosts of that pool, as the product implements it; instances are on them by turns, from the
    /// first rack's to the last one's.
    /// `None`: an ideal pool with one order of eviction.
    pub hosts: Option<Hosts>,
    /// Eviction policy of the caches and the pool.
    pub eviction: Eviction,
}

/// Latest arrival, in nanoseconds.
const YEAR: u64 = 365 * 86_400 * 1_000_000_000;

/// Why a setup cannot serve a load.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message explains the fields")]
pub enum ConfigError {
    #[error("no instances: no request would be answered")]
    NoInstances,
    #[error("a pool without hosts or racks, with chunks without blocks, or without time between ticks")]
    NoHosts,
    #[error("{racks} racks: there may be {most} at most", most = RACKS_MAX - 1)]
    TooManyRacks { racks: usize },
    #[error("a cold tier lies below one shared pool, without hosts and without caches of instances")]
    NoPoolAbove,
    #[error("{0} has no bandwidth: no transfer would complete")]
    NoBandwidth(&'static str),
    #[error("request {request} arrives after more than a year of simulated time")]
    TooLate { request: usize },
    #[error("{0} is without blocks or tokens: no step could compute anything")]
    Nothing(&'static str),
    #[error(
        "{held} blocks of an engine's own memory are too few to spill others: {least} hold a block of each request \
         and the tokens of a step"
    )]
    NoRoomToSpill { held: u32, least: u64 },
    #[error(
        "{what} of {bytes} bytes holds {held} blocks of {block_tokens} tokens, but request {request} alone has {needed} blocks \
         ({needed_bytes} bytes)"
    )]
    TooSmall {
        what: &'static str,
        bytes: u64,
        held: u64,
        block_tokens: u32,
        request: usize,
        needed: u64,
        needed_bytes: u64,
    },
    #[error(
        "an engine's own memory holds {held} tokens of KV, but request {request} needs {needed} tokens ({input} of \
         its prompt and {output} generated); spill space is included"
    )]
    EngineTooSmall { held: u64, request: usize, needed: u64, input: u32, output: u32 },
}

impl Setup {
    /// Bytes of KV per block of the workload.
    #[must_use]
    pub fn block_bytes(&self, workload: &Workload) -> u64 {
        self.kv_bytes_per_token * u64::from(workload.block_tokens())
    }

    /// Bytes of KV per block of an engine's own memory.
    #[must_use]
    pub fn l1_block_bytes(&self) -> u64 {
        self.kv_bytes_per_token * u64::from(self.l1_block_tokens)
    }

    pub(super) fn check(&self, workload: &Workload) -> Result<(), ConfigError> {
        if self.instances == 0 {
            return Err(ConfigError::NoInstances);
        }
        if self
            .hosts
            .is_some_and(|hosts| [hosts.count, hosts.chunk_blocks, hosts.racks].contains(&0) || hosts.tick == 0)
        {
            return Err(ConfigError::NoHosts);
        }
        if self.racks() >= RACKS_MAX {
            return Err(ConfigError::TooManyRacks { racks: self.racks() });
        }
        if let Some(late) = workload.requests().iter().position(|request| request.arrival > YEAR) {
            return Err(ConfigError::TooLate { request: late + 1 });
        }
        if self.l1_blocks == 0 || self.l1_block_tokens == 0 {
            return Err(ConfigError::Nothing("an engine's own memory"));
        }
        if self.max_num_seqs == 0 || self.max_num_batched_tokens == 0 {
            return Err(ConfigError::Nothing("a step"));
        }
        if let Some(spill) = &self.spill {
            spill.check(&self.scheduler())?;
            if let Some(near) = spill.near_tokens {
                // The newest tokens of all requests, and the tokens of a step.
                let least = self.max_num_seqs as u64 * u64::from(near.div_ceil(self.l1_block_tokens))
                    + u64::from(self.max_num_batched_tokens.div_ceil(self.l1_block_tokens));
                if u64::from(self.l1_blocks) < least {
                    return Err(ConfigError::NoRoomToSpill { held: self.l1_blocks, least });
                }
            }
        }
        let links = [
            (self.shared.map(|pool| pool.link), "the pool's link"),
            (self.private.map(|pool| pool.link), "the link to an instance's own cache"),
            ((self.swap_blocks > 0).then_some(self.swap_link), "the link to the swap space"),
        ];
        if let Some((_, what)) = links.iter().find(|(link, _)| link.is_some_and(|link| link.bytes_per_s == 0)) {
            return Err(ConfigError::NoBandwidth(what));
        }
        if let Some((request, needed)) = workload.widest() {
            for (pool, what) in [(self.shared, "a pool"), (self.private, "an instance's own cache")] {
                let Some(bytes) = pool.and_then(|pool| pool.bytes) else { continue };
                let (block_bytes, needed) = (self.block_bytes(workload), needed as u64);
                let held = bytes / block_bytes.max(1);
                if held < needed {
                    return Err(ConfigError::TooSmall {
                        what,
                        bytes,
                        held,
                        block_tokens: workload.block_tokens(),
                        request: request + 1,
                        needed,
                        needed_bytes: needed * block_bytes,
                    });
                }
            }
        }
        self.check_engine(workload)
    }

    fn check_engine(&self, workload: &Workload) -> Result<(), ConfigError> {
        let far = self.spill.map_or(0, |spill| u64::from(spill.blocks));
        let is_far_first = self.spill.is_some_and(|spill| spill.near_tokens.is_some());
        let blocks = if is_far_first { far } else { u64::from(self.l1_blocks) + far };
        let held = blocks * u64::from(self.l1_block_tokens);
        let sizes = workload.requests().iter().map(|r| u64::from(r.input_tokens) + u64::from(r.output_tokens));
        match sizes.enumerate().max_by_key(|&(at, tokens)| (tokens, std::cmp::Reverse(at))) {
            Some((at, needed)) if needed > held => {
                let request = &workload.requests()[at];
                let (input, output) = (request.input_tokens, request.output_tokens);
                Err(ConfigError::EngineTooSmall { held, request: at + 1, needed, input, output })
            }
            _ => Ok(()),
        }
    }

    /// Number of racks: 1 without hosts.
    #[must_use]
    pub const fn racks(&self) -> usize {
        match self.hosts {
            Some(hosts) => hosts.racks,
            None => 1,
        }
    }

    /// The configuration of each engine's scheduler.
    pub(super) fn scheduler(&self) -> SchedulerConfig {
        let block_bytes = self.l1_block_bytes();
        let swap = SwapConfig {
            num_blocks: self.swap_blocks,
            block_ns: if self.swap_blocks == 0 {
                0
            } else {
                self.swap_link.time(block_bytes) - self.swap_link.latency_ns
            },
            recompute_token_ns: if self.always_swap { u64::MAX } else { self.cost.recompute_token_ns() },
        };
        let far_first = self.spill.filter(|spill| spill.near_tokens.is_some());
        SchedulerConfig {
            spill_blocks: self.spill.filter(|_| far_first.is_none()).map_or(0, |spill| spill.blocks),
            spill_use: if self.spill.is_some_and(|spill| spill.fills) { SpillUse::All } else { SpillUse::Hidden },
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            long_prefill_token_threshold: 0,
            block_size: self.l1_block_tokens,
            num_blocks: far_first.map_or(self.l1_blocks, |spill| spill.blocks),
            watermark: self.watermark.clone(),
            max_waiting: usize::MAX,
            swap,
        }
    }
}
