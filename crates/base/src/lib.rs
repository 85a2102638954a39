//! The ground floor: types that all other crates share.
//!
//! Nothing here does I/O, holds a lock or uses a region. The crate has ids and units, time, a
//! deterministic generator, the block hash (a block's identity), keys that seal KV, and fault points. The
//! [`engine::Engine`] trait and its messages connect servers and engines, which do not depend on
//! each other.
#![forbid(unsafe_code)]

pub mod engine;
pub mod fault;
pub mod hash;
pub mod health;
pub mod ids;
pub mod prng;
pub mod sampling;
pub mod seal;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::disallowed_methods, reason = "patience is real time")]
pub mod testing;
#[allow(clippy::disallowed_methods, reason = "the place that wraps them")]
pub mod time;
pub mod units;

pub use engine::{Engine, EngineError, Event, EventSink, Request};
pub use hash::{BlockHash, CacheSalt, ChainHasher, HashSeed, TenantKey};
pub use health::Health;
pub use ids::{BlockIndex, Generation, HostId, NamespaceId, RequestId, TokenId, WorkerSlot};
pub use sampling::SamplingParams;
pub use time::{Clock, Deadline};
