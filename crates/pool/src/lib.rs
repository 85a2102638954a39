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
mod error;
mod events;
mod evict;
mod health;
mod heap;
mod heart;
mod history;
mod hosts;
mod index;
mod inspect;
mod kept;
mod locks;
mod membership;
mod memory;
mod namespaces;
mod objects;
mod pieces;
mod pins;
mod plain;
mod pool;
mod quota;
mod recovery;
mod region;
mod repack;
mod strays;

pub use blocks::{Hit, Publish, ReadOutcome};
pub use cenote_policy::{Eviction, UnknownEviction};
pub use check::{CheckReport, Finding, GcReport};
pub use error::PoolError;
pub use events::{BlockEvent, Followed, Follower, Names, Resync, Told};
pub use heart::Heart;
pub use history::{Event, Record, history};
pub use inspect::Inspector;
pub use kept::Kept;
pub use locks::{GrantReport, LockManager, UserLock};
pub use namespaces::{Namespace, NamespaceRecord};
pub use objects::ObjectMark;
pub use pieces::{Filling, InPlace, Reading};
pub use pins::Pin;
pub use pool::{HostInfo, HostPool, NamespaceInfo, Pool, PoolInfo, WorkerInfo};
pub use recovery::Recovered;
pub use region::area::{area_identity, remove_host_memory, sweep_host_memory};
pub use region::config::{AttachOptions, Design, EVENTS_MAX, EVENTS_MIN, HostsLock, PoolConfig};
pub use region::counters::Counter;
pub use region::make::{OpenError, make_region, open_region, peek, random_bytes};
pub use region::superblock::{FORMAT_VERSION, Superblock};
pub use repack::{ColdBlock, Shorter};
pub use strays::Strays;
