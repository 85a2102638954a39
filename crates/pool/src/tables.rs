//! The tables of a region: namespaces (models that share it), objects (named bytes), memory of
//! users and the locks that they allocate. The table lock guards all of them.

pub mod locks;
pub mod memory;
pub mod namespaces;
pub mod objects;
pub mod opened;
mod rows;

use crate::blocks::Blocks;
use crate::error::PoolError;
use crate::hosts::Hosts;
use crate::region::Region;
use crate::space::Space;
use crate::sync::{Guard, Intent, Locks, Timeout};
use cenote_mem::host::LockTimeout;
use cenote_mem::{Fabric, HostLocal};
use opened::Opened;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

/// Reads and changes the tables, and frees slots that no row and no word names.
pub(crate) struct Tables<F: Fabric, H: HostLocal> {
    region: Arc<Region<F, H>>,
    locks: Arc<Locks<F, H>>,
    hosts: Arc<Hosts<F, H>>,
    space: Arc<Space<F, H>>,
    blocks: Arc<Blocks<F, H>>,
    /// Namespaces that this worker has open.
    opened: Mutex<Opened>,
    /// Slot of the arena that had room last.
    last_arena: AtomicU64,
    /// Chunk in which the next search for an arena begins.
    next_search: AtomicU64,
}

impl<F: Fabric, H: HostLocal> Tables<F, H> {
    pub fn new(
        region: Arc<Region<F, H>>,
        locks: Arc<Locks<F, H>>,
        hosts: Arc<Hosts<F, H>>,
        space: Arc<Space<F, H>>,
        blocks: Arc<Blocks<F, H>>,
    ) -> Self {
        Self {
            region,
            locks,
            hosts,
            space,
            blocks,
            opened: Mutex::default(),
            last_arena: AtomicU64::new(0),
            next_search: AtomicU64::new(0),
        }
    }

    /// Takes the table lock, and mends the rows of objects if its last holder died.
    pub fn lock(&self, timeout: Timeout) -> Result<Guard<'_, crate::sync::Tables, F, H>, LockTimeout> {
        self.locks.acquire(crate::sync::Tables, Intent::ALL, timeout, |tables, _| self.repair_rows(tables))
    }

    /// As [`Tables::lock`], with the wait of administration, for memory and locks of users: nothing
    /// finds out later that two hosts changed them at once. So a host that others hold dead does
    /// not, although they pass over what it holds.
    pub fn lock_alive(&self) -> Result<Guard<'_, crate::sync::Tables, F, H>, PoolError> {
        let (region, life) = (&self.region, self.region.incarnation());
        let held = self.lock(self.locks.patient()).map_err(PoolError::lock("table"))?;
        if region.is_dead(region.host, life) { Err(PoolError::DeclaredDead) } else { Ok(held) }
    }
}
