//! Floor 2: the cache-line model. It simulates hosts with private caches, the device that they
//! share, and the processes on them. The pool code that runs on mapped memory runs here unchanged.
//! The seed determines schedules, delays and crashes.
//!
//! The model is deliberately weaker than any known machine
//! (docs/internals/format.md#assumptions-about-the-fabric). Code that is correct here does not
//! depend on stronger guarantees of today's hardware. It models
//! - stale lines: a host reads its cached copy until the line is evicted or invalidated;
//! - write-back of any dirty line at any time and in any order, always all eight words. The words
//!   may reach the device one by one, so other hosts may see a torn line;
//! - prefetch: a cache may fetch an invalidated line again at any time;
//! - an in-order store buffer per process (x86's total store order);
//! - flushes and streaming (non-temporal) stores that complete at any time before the next fence;
//! - the crash of a process, after which its buffered stores still arrive;
//! - the crash of a host, which may lose its dirty lines and its processes' buffers;
//! - reads by a network card, of the device or through the caches of one host ([`View`]).
//!
//! One process runs at a time; the scheduler draws it at every operation. Equal seeds give equal
//! runs.
#![forbid(unsafe_code)]

mod cache;
mod fabric;
mod flushes;
mod host;
mod machine;
mod mutation;
mod outside;
mod world;

pub use fabric::SimFabric;
pub use host::{SimClaim, SimHost, SimLock};
pub use mutation::{Effect, Focus, Mutation, Place, Site};
pub use outside::View;
pub use world::{Crash, Process, Program, Rates, RunReport, World};
