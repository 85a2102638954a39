//! Space (TraCT §3.5): chunks from the region, and block slots from chunks.
//!
//! A chunk belongs to one host and is divided into slots of one size. Only host memory records
//! which slots are free, so reserving and freeing touch no shared line, and a process that dies
//! with reservations leaves nothing in the region. Chunk lines and descriptors suffice to rebuild
//! all of it.
//!
//! Each slot has an owner word in host memory: free, reserved by a worker, published, draining, or
//! an object. A reservation belongs to its worker alone; every other change needs the heap lock.

mod chunks;
mod slots;
pub mod strays;
mod usage;

pub(crate) use slots::Slot;
pub(crate) use strays::Fill;
pub(crate) use usage::Limits;

use crate::log::Log;
use crate::region::Region;
use crate::sync::Locks;
use cenote_mem::{Fabric, HostLocal};
use std::sync::Arc;

/// Takes slots and chunks, and frees them. Never evicts.
pub(crate) struct Space<F: Fabric, H: HostLocal> {
    region: Arc<Region<F, H>>,
    log: Arc<Log<F, H>>,
    locks: Arc<Locks<F, H>>,
}

impl<F: Fabric, H: HostLocal> Space<F, H> {
    pub const fn new(region: Arc<Region<F, H>>, log: Arc<Log<F, H>>, locks: Arc<Locks<F, H>>) -> Self {
        Self { region, log, locks }
    }
}
