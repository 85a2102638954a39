//! The ground floor: words that every other crate speaks.
//!
//! Nothing here does I/O, holds a lock or knows of a region. Ids and units, time, a deterministic
//! generator, the block hash that is a block's identity, fault points, and the [`engine::Engine`]
//! trait with its messages, through which servers and engines meet without knowing each other.
#![forbid(unsafe_code)]

pub mod engine;
pub mod fault;
pub mod hash;
pub mod health;
pub mod ids;
pub mod prng;
pub mod sampling;
pub mod time;
pub mod units;

pub use engine::{Engine, EngineError, Event, EventSink, Request};
pub use hash::{BlockHash, CacheSalt, ChainHasher, HashSeed};
pub use health::Health;
pub use ids::{BlockIndex, Generation, HostId, NamespaceId, RequestId, TokenId, WorkerSlot};
pub use sampling::SamplingParams;
pub use time::{Clock, Deadline, SystemClock};
