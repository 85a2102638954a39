//! Floor 1: copies between a GPU's memory and the processor's.
//!
//! [`driver`] has the CUDA driver's calls, [`layout`] the places of an engine's pages, and [`mover`]
//! the loads and saves. No interpreter's lock and no lock of the engine is needed anywhere.
//! `docs/internals/mover.md` states the order of copies and why the engine never uses wrong bytes.

mod calls;
pub mod driver;
pub mod kernels;
pub mod layout;
pub mod locking;
pub mod memory;
pub mod mover;
pub mod rows;
