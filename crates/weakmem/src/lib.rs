//! Floor 2: the cache-line model. Hosts with private caches over one shared device, and processes on them,
//! all simulated: the same pool code that runs on mapped memory runs here, under schedules, delays and deaths
//! that follow from a seed.
//!
//! The model is weaker than any machine we know, on purpose (docs/format.md#assumptions-about-the-fabric): what
//! holds here does not lean on a kindness of today's hardware. It knows
//! - stale lines: a host sees its cached copy until something drops it;
//! - write-back of any dirty line at any time, in any order, whole lines only, and not at once: other hosts
//!   may see some words of a line before others;
//! - prefetch: a line that was dropped may come back at any time;
//! - a store buffer per process, in order (x86's total store order);
//! - flushes and streaming (non-temporal) stores that happen any time before the next fence;
//! - death of a process, after which its buffered stores still arrive, and of a host, whose dirty lines and
//!   buffers may be lost.
//!
//! One process runs at a time; which one is drawn at every operation. Same seed, same run.
#![forbid(unsafe_code)]

mod cache;
mod fabric;
mod host;
mod machine;
mod mutation;
mod world;

pub use fabric::SimFabric;
pub use host::{SimClaim, SimHost, SimLock};
pub use mutation::{Effect, Focus, Mutation, Place, Site};
pub use world::{Crash, Process, Program, Rates, RunReport, World};
