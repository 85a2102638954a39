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
use crate::sync::{Guard, Holds, Intent, Locks, Timeout};
use cenote_base::BlockIndex;
use cenote_base::fault::{self, Point};
use cenote_mem::host::LockTimeout;
use cenote_mem::{Fabric, HostLocal};
use opened::Opened;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

/// What a holder of the table lock writes after it has named it
/// (docs/internals/protocol.md#named-changes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    /// A row of the object table.
    Object(u64),
    /// A row of the namespace table, with its name and its limit.
    Namespace(u64),
    /// A word of the locks that users have allocated.
    Locks(u64),
    /// The word of a slot with memory, and the words of its pieces.
    Memory(BlockIndex),
    /// The line of the region's keys.
    Keys,
}

impl Thing {
    /// Its number as an intent; no two things share one.
    const fn number(self) -> u64 {
        let (kind, index) = match self {
            Self::Object(row) => (0, row),
            Self::Namespace(row) => (1, row),
            Self::Locks(word) => (2, word),
            Self::Memory(block) => (3, block.0),
            Self::Keys => (4, 0),
        };
        kind << 60 | index
    }
}

/// The table lock.
pub(crate) struct HeldTables<'a, F: Fabric, H: HostLocal> {
    guard: Guard<'a, crate::sync::Tables, F, H>,
    /// Numbers of the things that hosts may still write that were declared dead inside the lock.
    named: Vec<u64>,
}

impl<F: Fabric, H: HostLocal> HeldTables<'_, F, H> {
    /// Whether a host that was declared dead may still write this. Then nothing new is put there
    /// before that host has come back: its store would replace it.
    fn leaves_alone(&self, thing: Thing) -> bool {
        self.named.contains(&thing.number())
    }
}

impl<F: Fabric, H: HostLocal> Deref for HeldTables<'_, F, H> {
    type Target = Holds<crate::sync::Tables>;

    fn deref(&self) -> &Self::Target {
        &self.guard
    }
}

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
    pub fn lock(&self, timeout: Timeout) -> Result<HeldTables<'_, F, H>, LockTimeout> {
        let repair = |tables: &Holds<crate::sync::Tables>, _| self.repair_rows(tables);
        let guard = self.locks.acquire(crate::sync::Tables, Intent::ALL, timeout, repair)?;
        let named = self.locks.named_by_passed(&guard);
        Ok(HeldTables { guard, named })
    }

    /// Mends the rows of objects after a life of this host that ended in the lock: it may have cleared
    /// a row late. Without the lock, the next dead holder's repair does.
    pub fn mend(&self) {
        if let (false, Ok(tables)) = (self.region.is_coherent(), self.lock(self.locks.patient())) {
            self.repair_rows(&tables);
        }
    }

    /// Names what is changed next.
    ///
    /// # Errors
    /// This host was declared dead, so that it must not write: other hosts may have passed it over.
    pub fn name(&self, tables: &Holds<crate::sync::Tables>, thing: Thing) -> Result<(), PoolError> {
        fault::point(Point::TableFound);
        if !self.locks.name(tables, thing.number()) {
            return Err(PoolError::DeclaredDead);
        }
        fault::point(Point::TableNamed);
        Ok(())
    }

    /// As [`Tables::name`], for what other hosts must not change until the lock is released.
    ///
    /// # Errors
    /// This host was declared dead; or another one was that may still write the same.
    pub fn claim(&self, tables: &HeldTables<'_, F, H>, thing: Thing) -> Result<(), PoolError> {
        if tables.leaves_alone(thing) {
            return Err(PoolError::LeftToDead);
        }
        self.name(tables, thing)
    }

    /// As [`Tables::lock`], with the wait of administration, for memory and locks of users: nothing
    /// finds out later that two hosts changed them at once. So a host that others hold dead does
    /// not, although they pass over what it holds.
    pub fn lock_alive(&self) -> Result<HeldTables<'_, F, H>, PoolError> {
        let (region, life) = (&self.region, self.region.incarnation());
        let held = self.lock(self.locks.patient()).map_err(PoolError::lock("table"))?;
        if region.is_dead(region.host, life) { Err(PoolError::DeclaredDead) } else { Ok(held) }
    }
}
