//! Checks of modules, by name.

pub mod engine;
pub mod float;
pub mod frames;
pub mod load;
pub mod memory;
pub mod oaken;
pub mod path;
pub mod qpack;
pub mod speckv;
pub mod store;
pub mod streams;
pub mod system;
pub mod translation;

use crate::bench::Failure;

/// A check: it fails if a module is wrong. `rounds` scales its work.
pub type Check = fn(seed: u64, rounds: u64) -> Result<(), Failure>;

/// All checks by name. Those with faults in `src/faults.rs` are named there.
pub const CHECKS: &[(&str, Check)] = &[
    ("float", float::arithmetic),
    ("latency", latency),
    ("compact", streams::compact),
    ("byte_pack", streams::byte_pack),
    ("speckv_encode", speckv::encode),
    ("speckv_decode", speckv::decode),
    ("speckv_forged", speckv::forged),
    ("speckv_reset", speckv::reset),
    ("qpack_encode", qpack::encode),
    ("qpack_decode", qpack::decode),
    ("qpack_reset", qpack::reset),
    ("oaken_encode", oaken::encode),
    ("oaken_decode", oaken::decode),
    ("oaken_reset", oaken::reset),
    ("oaken_stream", oaken::stream),
    ("oaken_store", store::oaken_store),
    ("oaken_engine", load::oaken_engine),
    ("atu", translation::atu),
    ("atu_flush", translation::atu_flush),
    ("dma_read", memory::dma_read),
    ("dma_write", memory::dma_write),
    ("service_meter", memory::service_meter),
    ("wrr_weights", memory::wrr_weights),
    ("channel_front", memory::channel_front),
    ("frame_write", frames::frame_write),
    ("frame_read", frames::frame_read),
    ("registers", engine::registers),
    ("cache_engine", engine::cache_engine),
    ("memory_path", path::memory_path),
    #[cfg(feature = "whole")]
    ("cache_system", system::cache_system),
];

/// Latencies do not depend on a seed.
fn latency(_: u64, _: u64) -> Result<(), Failure> {
    crate::latency::pipelines()
}

/// The check of a name.
///
/// # Panics
/// There is none.
#[must_use]
pub fn by_name(name: &str) -> Check {
    CHECKS.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no check `{name}`")).1
}

/// An error unless two values are equal.
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(what: &str, rtl: &T, rust: &T) -> Result<(), Failure> {
    if rtl == rust { Ok(()) } else { Err(format!("{what}: RTL {rtl:?}, Rust {rust:?}")) }
}

/// An error unless bytes are equal; it names the first that differs.
pub(crate) fn same_bytes(what: &str, rtl: &[u8], rust: &[u8]) -> Result<(), Failure> {
    if rtl == rust {
        return Ok(());
    }
    let at = rtl.iter().zip(rust).position(|(a, b)| a != b).unwrap_or(rtl.len().min(rust.len()));
    let show = |bytes: &[u8]| bytes[at.min(bytes.len())..].iter().take(8).copied().collect::<Vec<u8>>();
    Err(format!(
        "{what}: {} bytes of RTL, {} of Rust; at {at}: RTL {:02x?}, Rust {:02x?}",
        rtl.len(),
        rust.len(),
        show(rtl),
        show(rust)
    ))
}
