//! What the fuzz targets drive: a byte string drives changes of a region, of files or of an object
//! store's answers, and calls of the code that reads them.
//!
//! Any byte string is an input, spent byte by byte. For every input the product must not panic, must
//! return in time and take little memory, and must never report bytes as whole that were not written
//! under that name.
//!
//! | module | hostile |
//! |---|---|
//! | [`regions`] | a region; tests of the pool drive it too, so it needs no more than the pool |
//! | [`cold`] | a directory of L4, and an object store |
//! | [`snapshots`] | a snapshot |
//! | [`tables`] | a model's folder, and the record of a table in a region |
//! | [`answers`] | a peer: bytes of its region, and frames of the exchange |
//!
//! Edits begin with valid files, so that code behind the checks is reached. An input without edits must
//! find everything that was written, or the target would test nothing: each run asserts it.
#![forbid(unsafe_code)]

pub mod answers;
pub mod cold;
mod edit;
#[allow(dead_code, reason = "each module uses a part")]
mod input;
pub mod memory;
#[path = "lib.rs"]
pub mod regions;
mod scratch;
pub mod snapshots;
pub mod tables;
