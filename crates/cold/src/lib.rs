//! Floor 2: L4, KV blocks that outlive the region, on a local disk, in an object store, or in a Redis or
//! Valkey server.
//!
//! A [`Tier`] sits below an [`Upper`] (the region). It writes blocks behind the publisher, keeps a
//! list of what it holds in memory, and promotes blocks that a lookup misses above. Everything that
//! fails here is a counted miss: no call of a serving thread touches the disk, waits without a
//! deadline, or returns an error.
//!
//! **Stored is not trusted.** A record ([`record`], docs/internals/cold-format.md) carries its full
//! name and a keyed checksum. A reader compares both with what it asked for, so a torn, damaged,
//! reused or foreign record is a miss.
//! Below a sealed region the keys of checksums are not in the place, and payloads are sealed.
#![forbid(unsafe_code)]

mod address;
mod backend;
mod counters;
pub mod disk;
mod error;
mod extent;
pub mod identity;
#[cfg(feature = "objects")]
mod objects;
pub mod record;
#[cfg(feature = "redis")]
mod servers;
mod settings;
mod sums;
mod tier;
#[cfg(any(feature = "objects", feature = "redis"))]
mod wait;

pub use address::{Address, Listener, ParseAddressError};
pub use backend::{Backend, Refreshed, Sealed, Used};
pub use counters::{Count, Counters};
pub use error::{ColdError, ErrorKind};
pub use extent::{Extents, ExtentsConfig, identity_of};
#[cfg(feature = "objects")]
pub use objects::Objects;
#[cfg(feature = "redis")]
pub use servers::Servers;
pub use settings::{DEFAULT_BYTES, ParseSettingsError, Place, Settings, WriteBehind, check_size};
pub use sums::Sealing;
pub use tier::{Promotion, Tier, TierConfig, Upper};
