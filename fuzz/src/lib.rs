//! Hostile regions: a byte string drives changes of a region and calls of the pool.
//!
//! An input is a byte string. It is spent, byte by byte, on changes to a region's bytes and on
//! calls of the pool that opened it; any byte string is an input. For every input the pool must not
//! panic, must stay within the region, must return in time, and must never report bytes as whole
//! that were not published under that name.
//!
//! Two callers drive it: libFuzzer (`cargo xtask fuzz`, docs/evidence/testing.md) and a test of the
//! pool that draws inputs from seeds. The test includes this file by its path, so nothing here may
//! need more than the pool does.
//!
//! Not covered: an input that makes payload, checksum and descriptor agree under a foreign name. A
//! program that can write the region and read its seed can forge that by design; a checksum is no
//! signature.
#![forbid(unsafe_code)]

mod change;
pub(crate) mod format;
mod host;
mod input;
mod region;
#[cfg(test)]
mod regressions;
mod world;

pub use world::{Flushing, Kind, World, attach};
