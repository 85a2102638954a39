//! Floor 2: the KV block pool inside a shared region.
//!
//! Everything that participants share lives in the region at fixed places (`docs/format.md`); what only the
//! processes of one host share (locks, free lists, recency) lives in that host's own memory and can be
//! rebuilt from the region. The rules the code keeps, all of them from the non-coherent design, so that a
//! fabric without coherence changes code and not the format:
//!
//! - every line has one writing host; bucket and chunk lines change hands only under a lock;
//! - the descriptor is the truth, the index is a hint;
//! - `READY` is written last, and a reader believes nothing it has not checked: line check, bounds, hash,
//!   generation, payload checksum. What does not hold is a miss.
//!
//! [`Design::Plain`] is TraCT's design instead, with one lock and reference counts, to be measured beside it.
//!
//! Lock order: membership → heap → one of chunks, tables, index shards.
#![forbid(unsafe_code)]

mod blocks;
mod check;
mod config;
mod error;
mod events;
mod evict;
mod health;
mod heap;
mod heart;
mod history;
mod host_words;
mod hosts;
mod index;
mod inspect;
mod kept;
mod layout;
mod lines;
mod locks;
mod membership;
mod memory;
mod namespaces;
mod objects;
mod open;
mod pieces;
mod pins;
mod plain;
mod pool;
mod quota;
mod recovery;
mod repack;
mod stats;
mod strays;
mod superblock;

pub use blocks::{Hit, Publish, ReadOutcome};
pub use cenote_policy::{Eviction, UnknownEviction};
pub use check::{CheckReport, Finding, GcReport};
pub use config::{AttachOptions, Design, EVENTS_MAX, EVENTS_MIN, PoolConfig};
pub use error::PoolError;
pub use events::{BlockEvent, Followed, Follower, Names, Resync, Told};
pub use heart::Heart;
pub use history::{Event, Record, history};
pub use inspect::Inspector;
pub use kept::Kept;
pub use locks::{GrantReport, HostsLock, LockManager, UserLock};
pub use namespaces::{Namespace, NamespaceRecord};
pub use objects::ObjectMark;
pub use open::{HostPool, OpenError, make_region, open_region, peek, random_bytes};
pub use pieces::{Filling, InPlace, Reading};
pub use pins::Pin;
pub use pool::{HostInfo, NamespaceInfo, Pool, PoolInfo, WorkerInfo, area_identity};
pub use recovery::Recovered;
pub use repack::{ColdBlock, Shorter};
pub use stats::Counter;
pub use strays::Strays;
pub use superblock::{FORMAT_VERSION, Superblock};
