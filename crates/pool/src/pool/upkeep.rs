//! Calls beside serving: ticks, health, fencing of hosts, eviction on demand.

use super::Pool;
use crate::admin::check::CheckReport;
use crate::admin::gc::GcReport;
use crate::admin::info::{NamespaceInfo, PoolInfo};
use crate::admin::memory::Freed;
use crate::error::PoolError;
use crate::log::follow::{Followed, Follower};
use crate::members::recovery::Recovered;
use crate::region::piece::Maker;
use crate::tables::namespaces::Namespace;
use cenote_base::{Health, HostId};
use cenote_mem::{Fabric, HostLocal};

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Advances this host's heartbeat, recovers dead workers of this host, and declares hosts dead
    /// that were silent for the host timeout. Call it about once a second, and more often than the
    /// host timeout; it is cheap while no process dies.
    pub fn tick(&self) -> Recovered {
        let member = &*self.0;
        if member.region.area.is_inherited() {
            return Recovered::default();
        }
        if member.region.is_superseded_now() {
            member.look_after_health();
            return Recovered::default();
        }
        if member.region.is_plain() {
            member.index.give_owed_counts();
        }
        member.log.end_record_of_all();
        // Work behind a busy lock is left to the next tick.
        let _ = member.watch_hosts();
        member.renew_rows();
        let recovered = member.recover_dead().unwrap_or_default();
        member.look_after_health();
        recovered
    }

    /// Declares a host dead on the operator's word that it will not write again, without timeout
    /// and without this host's quarantine. Its blocks stay readable; its chunks may be reused.
    ///
    /// # Errors
    /// There is no such host, it is this one, or the lock was busy for too long.
    pub fn fence_host(&self, host: HostId) -> Result<(), PoolError> {
        self.0.fence_host(host)
    }

    /// Whether this worker uses the region, and why not. While it does not, lookups find nothing,
    /// publishing has no room, and [`Pool::tick`] tries to mend the region.
    #[must_use]
    pub fn health(&self) -> Health {
        let breaker = &self.0.locks.breaker;
        if breaker.is_out() { Health::degraded(breaker.reason()) } else { Health::Ok }
    }

    /// What the last tick found wrong with the region while this worker goes on using it: its file has
    /// lost its name, blocks were damaged lately, a host died lately. A sentence each.
    #[must_use]
    pub fn troubles(&self) -> Vec<String> {
        self.0.troubles.all()
    }

    /// Evicts up to `count` of this host's blocks, in the order of the region's policy. Returns the
    /// number of slots that became free.
    pub fn evict(&self, count: usize) -> usize {
        self.0.evictor.evict(count)
    }

    /// Withdraws all blocks of a namespace that this host owns, because they no longer match its
    /// model. Lookups miss them from then on; pinned ones free their slots with the last pin.
    /// Returns the number of slots that became free. Does nothing if this worker has not opened the
    /// namespace, and in [`crate::Design::Plain`].
    pub fn forget(&self, namespace: &Namespace) -> usize {
        if self.0.tables.has_open(namespace) { self.0.evictor.forget(namespace.id.0) } else { 0 }
    }

    /// A summary of the region. Counts are of one pass over the descriptors and may disagree a
    /// little while other processes work.
    #[must_use]
    pub fn info(&self) -> PoolInfo {
        let member = &*self.0;
        member.info(|host, slot| member.slot_alive(host, slot))
    }

    /// The models that share the region, without counts of their blocks.
    #[must_use]
    pub fn namespaces(&self) -> Vec<NamespaceInfo> {
        self.0.region.refresh_namespaces();
        self.0.namespace_rows()
    }

    /// Walks chunks, descriptors, free lists and index of this host, and with `payloads` every
    /// byte. Other processes may work meanwhile; the heap lock keeps space from changing hands.
    ///
    /// # Errors
    /// A lock was busy for too long.
    pub fn check(&self, payloads: bool) -> Result<CheckReport, PoolError> {
        self.0.check(payloads)
    }

    /// Recovers dead workers, drops index entries that lead nowhere, frees blocks that lookups
    /// cannot find or that do not hold, and returns empty chunks to the region.
    ///
    /// # Errors
    /// A lock was busy for too long.
    pub fn gc(&self) -> Result<GcReport, PoolError> {
        if self.0.region.is_superseded_now() {
            return Err(PoolError::HostInUse { host: self.0.region.host as u8 });
        }
        self.0.collect_garbage(true, self.0.locks.patient())
    }

    /// Frees memory without a name that a dead worker has allocated; without `maker`, that of all
    /// workers known to be dead. Memory outlives its maker on purpose, and other processes may use
    /// it: this is for leaks. [`PoolInfo::memory`] lists them. Memory at an offset that `keep`
    /// accepts stays. If workers record what they allocate and leave, `keep` knows too little: a
    /// worker may record memory and leave after `keep` was made. List [`Pool::dead_memory`] first,
    /// then read the records, then call [`Pool::free_pieces`].
    ///
    /// # Errors
    /// The worker is not known to be dead, or the table was busy for too long.
    pub fn free_memory_of(&self, maker: Option<Maker>, keep: impl Fn(u64) -> bool) -> Result<Freed, PoolError> {
        self.0.free_memory_of(maker, keep, |host, slot| self.0.slot_alive(host, slot))
    }

    /// Blocks that were stored and removed in the whole region since this follower last looked.
    /// Reads memory and takes no lock. A follower that polls rarely only has more to read.
    ///
    /// # Errors
    /// The region keeps no events.
    pub fn follow(&self, follower: &mut Follower) -> Result<Followed, PoolError> {
        self.0.log.read_log(follower)
    }
}
