//! Floor 1: bytes that several processes share, and how to touch them.
//!
//! A [`region::Mapping`] owns mapped memory; a [`fabric::Fabric`] is the only door through which code
//! above reads and writes it, by 64-bit offsets and never by pointers. [`host::HostArea`] is memory that
//! only the processes of one host share: robust locks, counters, and slots that tell who is alive.
//! [`cpu::probe`] and [`numa`] tell what the machine offers.
//!
//! This is one of the few crates that may use `unsafe`; all of it is about mapped memory, system calls
//! and vector instructions.

#[cfg(not(all(target_os = "linux", target_endian = "little", target_pointer_width = "64")))]
compile_error!("cenote maps little-endian structures with Linux system calls on 64-bit machines");

mod bus_error;
pub mod checksum;
pub mod cpu;
pub mod fabric;
pub mod fork;
pub mod host;
pub mod numa;
pub mod offset;
pub mod region;
mod registry;

pub use fabric::{Coherent, Fabric, Flush, Flushed, Mapped, ReadOnly, UnsupportedFlush};
pub use host::{AreaFile, HostArea, HostLocal, HostSpec, Word};
pub use offset::{LINE, Line, Offset};
pub use region::{Fresh, MapError, MapOptions, Mapping, ReadMapping, RegionSource};
