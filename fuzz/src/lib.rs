//! Hostile regions: what a byte string does to the pool.
//!
//! An input is a byte string. It is spent, byte by byte, on changes to a region's bytes and on calls of the pool
//! that opened it; any byte string is an input. Whatever it does, the pool must not panic, not leave the region's
//! bounds, come back in time, and never call bytes whole that were not published under that name.
//!
//! Two things drive it: libFuzzer (`cargo xtask fuzz`, docs/evidence/testing.md) and a test of the
//! pool that draws inputs from seeds. The test includes this file by its path, so nothing here may
//! need more than the pool does.
//!
//! What it leaves out: an input that makes payload, checksum and descriptor agree under a foreign name. Who can
//! write the region and reads its seed can forge that by design; a checksum is no signature.
#![forbid(unsafe_code)]

mod change;
mod format;
mod host;
mod input;
mod region;
#[cfg(test)]
mod regressions;
mod world;

pub use world::{Flushing, Kind, World, attach};
