//! Floor 4: estimates the effect of a pool of a given size on a given load, within seconds.
//!
//! Engines, links and pools are events in integer time ([`kernel`]). Durations come from a cost
//! model, with the source of each parameter beside it ([`model`], [`hardware`]). Decisions are not modelled: the
//! scheduler, eviction and watermark are [`cenote_policy`]'s, the same functions that serve. `cargo
//! xtask tidy` checks that this crate has no other scheduler, eviction or watermark.
//!
//! Loads come from public traces or from generators ([`workload`]). Equal configuration, trace and
//! seed give equal results, byte for byte.
#![forbid(unsafe_code)]

pub mod budget;
pub mod hardware;
pub mod hits;
pub mod kernel;
pub mod locks;
pub mod model;
pub mod provision;
pub mod quantiles;
pub mod rack;
pub mod roles;
pub mod serving;
mod steady;
pub mod tiers;
pub mod workload;

pub use cenote_policy::block_cache::{self as cache, BlockCache};
pub use hits::{HitRate, hit_rate, hit_rate_on_hosts};
pub use model::{CostModel, Device, Link, ModelShape};
pub use rack::{Card, Hosts, Network, Rack};
pub use serving::{
    Cold, ColdOutcome, ConfigError, NetworkReads, Outcome, Setup, Spill, simulate, simulate_on_network,
    simulate_with_cold_tier,
};
pub use workload::{Request, Workload};
