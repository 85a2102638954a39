//! Floor 1: decisions as values.
//!
//! Nothing in this crate reads a clock, starts a thread, does I/O or iterates an unordered map. The
//! same inputs give the same decisions in the engine, in the pool and in a simulator. `cargo xtask
//! tidy` checks it.
#![forbid(unsafe_code)]

mod ascent;
pub mod block_cache;
pub mod budget;
pub mod choice;
pub mod codec;
pub mod distinct;
pub mod eviction;
pub mod fetch;
pub mod kv_blocks;
pub mod prefetch;
pub mod retention;
pub mod scheduler;
pub mod sharing;
pub mod staging;
pub mod temperature;
pub mod transfer;
pub mod watermark;
pub mod whatif;

pub use eviction::{
    Candidate, Choice, CostAware, Eviction, EvictionPolicy, Lru, Rewrite, S3Fifo, Sieve, UnknownEviction,
};
pub use scheduler::{
    NewRequest, NoSwap, Preemption, PrefixSource, ScheduledRequest, Scheduler, SchedulerConfig, SchedulerOutput,
    SpillTransfer, SwapConfig,
};
pub use watermark::{Watermark, WatermarkController};
