//! Floor 1: bytes that several processes share, and access to them.
//!
//! A [`region::Mapping`] owns mapped memory. Code above reads and writes it only through a
//! [`fabric::Fabric`], by 64-bit offsets and never by pointers. [`host::HostArea`] is memory that
//! the processes of one host share: robust locks, counters, and slots that show which processes are
//! alive. [`cpu::probe`] and [`numa`] report the features of the machine.
//!
//! This crate is one of the few that may use `unsafe`. All of its `unsafe` concerns mapped memory,
//! system calls and vector instructions.
#![allow(clippy::disallowed_methods, reason = "processes of a host share its clock")]

#[cfg(not(all(target_os = "linux", target_endian = "little", target_pointer_width = "64")))]
compile_error!("cenote maps little-endian structures with Linux system calls on 64-bit machines");

mod bus_error;
pub mod checksum;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod cpu;
pub mod fabric;
pub mod files;
pub mod fork;
pub mod host;
pub mod keys;
pub mod numa;
pub mod offset;
pub mod payload;
pub mod region;
mod registry;
pub mod rows;

pub use fabric::{Coherent, Fabric, Flush, Flushed, Mapped, ReadOnly, UnsupportedFlush};
pub use host::{AreaFile, HostArea, HostLocal, HostSpec, Word};
pub use offset::{LINE, Line, Offset};
pub use payload::{Guard, PayloadSum, Tag};
pub use region::{Fresh, MapError, MapOptions, Mapping, ReadMapping, RegionSource};
