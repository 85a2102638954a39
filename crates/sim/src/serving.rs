//! A load on instances: engines with a scheduler each, caches of their own, and a pool that they share, or not.
//!
//! An instance computes step after step. What a step holds is decided by [`cenote_policy::Scheduler`], what a pool keeps by
//! [`cenote_policy::Eviction`]; what it takes is a `CostModel` and `Link`s. One step, as the reference engine does it: blocks are
//! swapped out and in, matched blocks are loaded, the step computes, tokens leave; a prompt's blocks are published once its first
//! token is out, without anybody waiting for it, but over the same link.
//!
//! Where it is simpler than the world: a link carries one transfer after the other; nothing is lost; routers know how many requests
//! each instance has, and choose the one with the fewest; loading is not overlapped with computing.

mod setup;
mod world;

pub use setup::{ConfigError, Pool, Setup};

use crate::workload::Workload;
use serde::Serialize;
use world::World;

/// What a run came to. Times are of the simulated clock.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Requests answered.
    pub requests: u64,
    /// Tokens of their prompts.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Of the blocks of all prompts, those found (with all before them) when their request was first let in.
    pub hit_rate: f64,
    /// From arrival to first token, milliseconds.
    pub ttft_mean_ms: f64,
    /// Median.
    pub ttft_p50_ms: f64,
    /// 99th percentile.
    pub ttft_p99_ms: f64,
    /// From one token to the next, milliseconds.
    pub token_mean_ms: f64,
    /// Median.
    pub token_p50_ms: f64,
    /// 99th percentile.
    pub token_p99_ms: f64,
    /// From the first arrival to the last token, seconds.
    pub makespan_s: f64,
    /// Generated tokens a second of that.
    pub throughput_tokens_per_s: f64,
    /// Requests a second of that.
    pub throughput_requests_per_s: f64,
    /// Bytes loaded from the pool.
    pub pool_read_bytes: u64,
    /// Bytes published into the pool.
    pub pool_written_bytes: u64,
    /// Bytes loaded from instances' own caches.
    pub private_read_bytes: u64,
    /// Bytes put into instances' own caches.
    pub private_written_bytes: u64,
    /// Blocks that had to leave the pool or a cache.
    pub evicted_blocks: u64,
    /// Times that a request was swapped out.
    pub swaps: u64,
    /// L1 blocks swapped out.
    pub swapped_out_blocks: u64,
    /// L1 blocks swapped in.
    pub swapped_in_blocks: u64,
    /// Bytes of both.
    pub swapped_bytes: u64,
    /// Times that a request gave its blocks up.
    pub preemptions: u64,
    /// Steps of all instances.
    pub steps: u64,
    /// Changes of something simulated: arrivals, steps, a request's part of a step (a chunk or a token), blocks looked up and
    /// published, ends.
    pub events: u64,
}

/// Runs a load to its end. `progress` is told of answered requests, now and then.
///
/// # Errors
/// The setup cannot serve the load at all; the error says why.
pub fn simulate(setup: &Setup, workload: &Workload, progress: &mut dyn FnMut(u64)) -> Result<Outcome, ConfigError> {
    setup.check(workload)?;
    Ok(World::new(setup, workload).run(progress))
}

/// A request's blocks went out or came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// This request's, out.
    Out(u32),
    /// This request's, back in.
    In(u32),
}

/// As [`simulate`], and the swaps in their order (CPEN 511 §V-B: what a prefetcher would have to foresee).
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
