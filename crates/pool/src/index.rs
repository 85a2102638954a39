//! The prefix index maps hashes to blocks. It is a hint; descriptors decide.

pub mod held;
mod list;
pub mod plain;
mod probe;
mod table;

pub(crate) use list::{LIST, ListGuard, block_of};
pub(crate) use probe::{Probe, named};
pub(crate) use table::Inserted;

use crate::region::Region;
use crate::sync::Locks;
use cenote_mem::{Fabric, HostLocal};
use held::Held;
use std::sync::{Arc, Mutex};

/// Finds blocks by hash, and changes the table under the locks of its shards.
pub(crate) struct Index<F: Fabric, H: HostLocal> {
    region: Arc<Region<F, H>>,
    locks: Arc<Locks<F, H>>,
    /// Reference counts that this worker raised, in the plain design.
    held: Mutex<Held>,
}

impl<F: Fabric, H: HostLocal> Index<F, H> {
    pub fn new(region: Arc<Region<F, H>>, locks: Arc<Locks<F, H>>) -> Self {
        Self { region, locks, held: Mutex::default() }
    }
}
