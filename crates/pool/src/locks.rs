//! The pool's locks (TraCT §3.3). Tier 1 is a robust process-shared mutex in host-local memory; on a
//! coherent fabric with one host it is the whole lock, and the tier between hosts, whose lines the format
//! reserves, vanishes.
//!
//! Order: [`Name::Membership`] → [`Name::Heap`] → [`Name::Shard`]; [`Name::Tables`] is taken alone. At most
//! one shard is held at a time. A holder that died leaves the lock marked; whoever gets it next repairs what
//! the lock protects before using it.

use crate::layout::SHARDS;
use crate::pool::Inner;
use crate::stats::Counter;
use cenote_mem::host::{HeldLock, LockTimeout};
use cenote_mem::{Fabric, HostLocal};
use std::time::Duration;

/// Mutexes a host needs.
pub const MUTEXES: u32 = 3 + SHARDS as u32;

/// What a lock protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Worker slots of this host.
    Membership,
    /// Free lists, chunk lines of this host, and eviction.
    Heap,
    /// Namespace and object tables.
    Tables,
    /// One shard of the index.
    Shard(u64),
}

impl Name {
    fn index(self) -> u32 {
        match self {
            Self::Membership => 0,
            Self::Heap => 1,
            Self::Tables => 2,
            Self::Shard(shard) => 3 + u32::try_from(shard).expect("fewer than 2^32 shards"),
        }
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// Takes a lock within the serving path's timeout and repairs what a dead holder left.
    pub(crate) fn lock(&self, name: Name) -> Result<H::Lock<'_>, LockTimeout> {
        self.lock_within(name, self.lock_timeout)
    }

    /// As [`Inner::lock`], for administration, which may wait longer.
    pub(crate) fn lock_patiently(&self, name: Name) -> Result<H::Lock<'_>, LockTimeout> {
        self.lock_within(name, self.lock_timeout.max(Duration::from_secs(10)))
    }

    fn lock_within(&self, name: Name, timeout: Duration) -> Result<H::Lock<'_>, LockTimeout> {
        let guard = self.area.lock(name.index(), timeout).inspect_err(|_| {
            self.counters().add(Counter::LockTimeouts, 1);
        })?;
        if guard.abandoned() {
            self.counters().add(Counter::LocksAbandoned, 1);
            match name {
                Name::Membership => {}
                Name::Heap => self.rebuild_heap(),
                Name::Tables => self.repair_tables(),
                Name::Shard(shard) => {
                    self.repair_shard(shard);
                }
            }
        }
        Ok(guard)
    }
}
