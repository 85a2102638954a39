//! Floor 2: the KV block pool inside a shared region.
//!
//! All shared structures lie in the region at fixed places (`docs/internals/format.md`). What only
//! the processes of one host share (locks, free lists, recency) lies in that host's own memory and
//! can be rebuilt from the region. Rules, all of them from the non-coherent design, so that a
//! fabric without coherence changes code and not the format:
//!
//! - Every line has one writing host; bucket and chunk lines change hands only under a lock.
//! - The descriptor decides; the index is a hint.
//! - `READY` is written last. A reader checks the line's check word, bounds, hash, generation and
//!   payload checksum before it uses a byte. A failed check is a miss.
//!
//! [`Design::Plain`] is TraCT's design instead, with one lock and reference counts, for comparison.
//!
//! Lock order: membership → heap → one of chunks, tables, index shards.
#![forbid(unsafe_code)]

mod admin;
mod blocks;
mod error;
mod eviction;
mod hosts;
mod index;
mod log;
mod members;
mod pool;
mod region;
mod space;
mod sync;
mod tables;

pub use admin::check::{CheckReport, Finding};
pub use admin::gc::GcReport;
pub use admin::info::{ChunkInfo, HostInfo, ModelShare, NamespaceInfo, PoolInfo, WorkerInfo};
pub use admin::inspect::{Inspector, Seen};
pub use admin::memory::{Freed, MakerInfo, MemoryInfo};
pub use admin::outline::{Outline, Words};
pub use blocks::life::{Publish, ReadOutcome};
pub use cenote_policy::{Eviction, UnknownEviction};
pub use error::PoolError;
pub use eviction::repack::{ColdBlock, Shorter};
pub use log::events::Names;
pub use log::follow::{Followed, Follower, Resync};
pub use log::recorder::{Event, Record, history};
pub use log::removals::{RETURN_SECONDS, Removal, Removals, Returns, removals};
pub use log::requests::{Asked, Request, Requests, requests};
pub use log::view::{BlockEvent, LoggedBlock};
pub use log::windows::{Window, windows};
pub use members::recovery::Recovered;
pub use members::ticker::Ticker;
pub use pool::fill::{Filling, InPlace};
pub use pool::listing::Listed;
pub use pool::locks::UserLock;
pub use pool::parts::PartReader;
pub use pool::publish::NewBlock;
pub use pool::read::{Pin, Reading};
pub use pool::roots::{Over, OwnedPiece, PLACED_KEYS, Root};
pub use pool::rows::{Gathered, PinnedRows, RowError, RowRef, RowShape};
pub use pool::swap::SwapSlot;
pub use pool::{HostPool, Pool};
pub use region::area::{area_identity, remove_host_memory, sweep_host_memory};
pub use region::cause::Cause;
pub use region::config::{
    AttachOptions, Design, EVENTS_MAX, EVENTS_MIN, HostsLock, PoolConfig, REQUESTS_MAX, REQUESTS_MIN,
};
pub use region::counters::{Counter, RESIDENCE_SECONDS, Residence};
pub use region::hit::Hit;
pub use region::make::{OpenError, make_region, open_region, peek, prepare_region, random_bytes};
pub use region::piece::Maker;
pub use region::seal::key_names;
pub use region::superblock::{FORMAT_VERSION, Superblock};
pub use space::strays::Strays;
pub use sync::manager::{GrantReport, LockManager};
pub use tables::namespaces::{Namespace, NamespaceRecord};
