//! A load on instances: engines with one scheduler each, optional caches of their own, and an
//! optional shared pool.
//!
//! An instance computes one step after another. [`cenote_policy::Scheduler`] chooses the content of
//! a step, [`cenote_policy::Eviction`] the victims of a pool. A `CostModel` and `Link`s give
//! durations. A step follows the reference engine: swap and spill blocks out and in, load matched
//! blocks, compute while spilled blocks arrive, emit tokens. A prompt's blocks are published after its first token. No step waits for
//! that, but it uses the same link.
//!
//! Simplifications: a link carries one transfer at a time. Nothing is lost. The router knows the
//! number of requests of each instance and chooses the smallest, of a rack that is likely to have the
//! prompt. Loading does not overlap computing.

mod cold;
mod far;
mod foresight;
mod mesh;
mod near;
mod objects;
mod router;
mod setup;
mod spill;
mod stores;
mod world;

pub use cold::{Cold, ColdOutcome, Compression, Prefetch};
pub use mesh::NetworkReads;
pub use setup::{ConfigError, Pool, Setup};
pub use spill::Spill;

use crate::workload::Workload;
use serde::Serialize;
use world::World;

/// The results of a run. Times are simulated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Number of finished requests.
    pub requests: u64,
    /// Number of tokens of their prompts.
    pub prompt_tokens: u64,
    /// Number of generated tokens.
    pub generated_tokens: u64,
    /// Share of the prompts' blocks, 0 to 1, that hit together with all blocks before them when
    /// their request was first admitted.
    pub hit_rate: f64,
    /// Mean time from arrival to first token, in milliseconds.
    pub ttft_mean_ms: f64,
    /// Median of it.
    pub ttft_p50_ms: f64,
    /// 99th percentile of it.
    pub ttft_p99_ms: f64,
    /// Mean time from one token to the next, in milliseconds.
    pub token_mean_ms: f64,
    /// Median of it.
    pub token_p50_ms: f64,
    /// 95th percentile of it.
    pub token_p95_ms: f64,
    /// 99th percentile of it.
    pub token_p99_ms: f64,
    /// Time from the first arrival to the last token, in seconds.
    pub makespan_s: f64,
    /// Generated tokens per second of the makespan.
    pub throughput_tokens_per_s: f64,
    /// Generated tokens per second while the middle 60 % of the requests end: without the drain of the
    /// longest answers.
    pub steady_tokens_per_s: f64,
    /// Finished requests per second of the makespan.
    pub throughput_requests_per_s: f64,
    /// Bytes loaded from the pool.
    pub pool_read_bytes: u64,
    /// Bytes published into the pool.
    pub pool_written_bytes: u64,
    /// Bytes loaded from instances' own caches.
    pub private_read_bytes: u64,
    /// Bytes put into instances' own caches.
    pub private_written_bytes: u64,
    /// Number of blocks evicted from the pool and the caches.
    pub evicted_blocks: u64,
    /// Number of times that a request was swapped out.
    pub swaps: u64,
    /// Number of L1 blocks swapped out.
    pub swapped_out_blocks: u64,
    /// Number of L1 blocks swapped in.
    pub swapped_in_blocks: u64,
    /// Bytes swapped out and in.
    pub swapped_bytes: u64,
    /// Number of preemptions that dropped a request's blocks.
    pub preemptions: u64,
    /// Number of L1 blocks of running requests that were spilled.
    pub spilled_blocks: u64,
    /// Number of spilled blocks that returned to L1.
    pub promoted_blocks: u64,
    /// Bytes of spilled blocks that steps read.
    pub streamed_bytes: u64,
    /// Time in which steps of all instances waited for spilled blocks, in seconds.
    pub streaming_stall_s: f64,
    /// Number of steps of all instances.
    pub steps: u64,
    /// Number of state changes: arrivals, steps, parts of steps (a request's chunk or token),
    /// lookups and publications of blocks, and ends of requests.
    pub events: u64,
}

/// Runs a load to its end. Calls `progress` now and then with the number of finished requests.
///
/// # Errors
/// Returns an error with the reason if the setup cannot serve the load.
pub fn simulate(setup: &Setup, workload: &Workload, progress: &mut dyn FnMut(u64)) -> Result<Outcome, ConfigError> {
    setup.check(workload)?;
    Ok(World::new(setup, workload).run(progress))
}

/// As [`simulate`]. Also returns what hosts without common memory read over their network.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_on_network(
    setup: &Setup,
    workload: &Workload,
    progress: &mut dyn FnMut(u64),
) -> Result<(Outcome, NetworkReads), ConfigError> {
    setup.check(workload)?;
    let mut world = World::new(setup, workload);
    let outcome = world.run(progress);
    Ok((outcome, world.fetched()))
}

/// As [`simulate`], with a cold tier (L4) below the shared pool: blocks that the pool evicts may go to
/// it, and blocks found there are loaded and shared again. Loading waits in the step that admits the
/// request, or happens ahead if [`Cold::prefetch`] is set.
///
/// # Errors
/// As [`simulate`]. There must be a shared pool, without hosts or caches of instances.
pub fn simulate_with_cold_tier(
    setup: &Setup,
    cold: &Cold,
    workload: &Workload,
    progress: &mut dyn FnMut(u64),
) -> Result<(Outcome, ColdOutcome), ConfigError> {
    setup.check(workload)?;
    if cold.write_bytes_per_s == 0 || cold.tier.link.bytes_per_s == 0 {
        return Err(ConfigError::NoBandwidth("the link to the cold tier"));
    }
    let (Some(pool), None, None) = (setup.shared, setup.hosts, setup.private) else {
        return Err(ConfigError::NoPoolAbove);
    };
    let mut world = World::new(setup, workload);
    world.add_cold_tier(cold::ColdTier::new(cold, setup, pool, workload));
    let outcome = world.run(progress);
    Ok((outcome, world.cold_outcome()))
}

/// A swap of a request's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// This request was swapped out.
    Out(u32),
    /// This request was swapped back in.
    In(u32),
}

/// As [`simulate`]. Also returns the swaps in order, which a prefetcher would have to predict (CPEN
/// 511 §V-B).
///
/// # Errors
/// As [`simulate`].
pub fn swap_trace(setup: &Setup, workload: &Workload) -> Result<(Outcome, Vec<Swap>), ConfigError> {
    setup.check(workload)?;
    let mut world = World::new(setup, workload);
    world.record_swaps();
    let outcome = world.run(&mut |_| ());
    Ok((outcome, world.into_swap_trace()))
}

#[cfg(test)]
mod tests;
