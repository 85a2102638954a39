//! Floor 4: what a pool of a given size would do for a given load, told in seconds.
//!
//! Engines, links and pools are events in integer time ([`kernel`]). What takes time is a model, each of whose
//! parameters has its source beside it ([`model`]); what decides is not a model: [`cenote_policy`]'s scheduler, eviction and
//! watermark, the very functions that serve. There is no other scheduler, eviction or watermark here, and `cargo xtask tidy`
//! holds the crate to it.
//!
//! Loads come from public traces or from generators ([`workload`]). The same configuration, trace and seed give the same result to
//! the last byte.
#![forbid(unsafe_code)]

pub mod cache;
pub mod hits;
pub mod kernel;
pub mod model;
pub mod quantiles;
pub mod serving;
pub mod workload;

pub use cache::BlockCache;
pub use hits::{HitRate, hit_rate};
pub use model::{CostModel, Device, Link, ModelShape};
pub use serving::{ConfigError, Outcome, Setup, simulate};
pub use workload::{Request, Workload};
