//! Floor 4: hosts that share no memory read each other's regions, one-sidedly.
//!
//! A region needs no server: its index, descriptors and payloads are found by offsets, and a reader
//! verifies what it reads. So a host that can read another one's memory, by RDMA or what stands for it,
//! finds blocks there as local readers do. Everything odd is a counted miss.
//!
//! - [`Remote`] reads pieces of a peer's region by a deadline: [`nixl`], or a fake with faults.
//! - [`Reader`] finds blocks through it and verifies them.
//! - [`Memory`] registers a region, and [`Share`] tells peers with the key where it is. They decide nothing.
//! - [`Beside`] asks peers for what the local region lacks, on threads beside the engine.
//!
//! docs/guides/reach.md has the set-up, and says what a peer with the key can do.
#![deny(unsafe_code)]

mod access;
mod auth;
mod beside;
mod counters;
#[cfg(feature = "testing")]
pub mod exchange;
mod exchanges;
#[cfg(feature = "testing")]
pub mod fake;
#[cfg(feature = "testing")]
pub mod lan;
mod memory;
#[allow(unsafe_code, reason = "calls of a C library")]
pub mod nixl;
mod reader;
mod remote;
mod settings;
mod share;

pub use access::{Access, AccessError, Given, KEY_FILE_VARIABLE, NIXL_VARIABLE, PEERS_VARIABLE};
pub use auth::Key;
pub use beside::{Beside, Connect};
pub use counters::{Count, Counters};
pub use memory::{Memory, Registration, ShareError};
pub use reader::{Fetched, Reader};
pub use remote::{Landing, Pace, Piece, ReadError, Remote};
pub use settings::{ParseSettingsError, Settings};
pub use share::{Offer, Share, connect, offer_of};
