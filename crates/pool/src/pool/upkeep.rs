//! Calls beside serving: ticks, health, fencing of hosts, eviction on demand, users' locks.

use super::Pool;
use crate::admin::check::CheckReport;
use crate::admin::gc::GcReport;
use crate::admin::info::PoolInfo;
use crate::error::PoolError;
use crate::log::follow::{Followed, Follower};
use crate::members::recovery::Recovered;
use crate::region::layout::USER_LOCKS;
use crate::sync::{Guard, User};
use crate::tables::namespaces::Namespace;
use cenote_base::fault::{self, Point};
use cenote_base::{Health, HostId};
use cenote_mem::{Fabric, HostArea, HostLocal};
use std::time::Duration;

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Advances this host's heartbeat, recovers dead workers of this host, and declares hosts dead
    /// that were silent for the host timeout. Call it about once a second, and more often than the
    /// host timeout; it is cheap while no process dies.
    pub fn tick(&self) -> Recovered {
        let member = &*self.0;
        if member.region.area.is_inherited() {
            return Recovered::default();
        }
        if member.region.is_plain() {
            member.index.give_owed_counts();
        }
        // Work behind a busy lock is left to the next tick.
        let _ = member.watch_hosts();
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

    /// Evicts up to `count` of this host's blocks, in the order of the region's policy. Returns the
    /// number of slots that became free.
    pub fn evict(&self, count: usize) -> usize {
        self.0.evictor.evict(count)
    }

    /// Withdraws all blocks of a namespace that this host owns, because they no longer match its
    /// model. Lookups miss them from then on; pinned ones free their slots with the last pin.
    /// Returns the number of slots that became free. ([`crate::Design::Plain`] does nothing.)
    pub fn forget(&self, namespace: &Namespace) -> usize {
        self.0.evictor.forget(namespace.id.0)
    }

    /// A summary of the region. Counts are of one pass over the descriptors and may disagree a
    /// little while other processes work.
    #[must_use]
    pub fn info(&self) -> PoolInfo {
        let member = &*self.0;
        member.info(|host, slot| (host == member.region.host).then(|| member.region.area.slot_alive(slot)))
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
        self.0.collect_garbage(true, self.0.locks.patient())
    }

    /// Blocks that were stored and removed in the whole region since this follower last looked.
    /// Reads memory and takes no lock. A follower that polls rarely only has more to read.
    ///
    /// # Errors
    /// The region keeps no events.
    pub fn follow(&self, follower: &mut Follower) -> Result<Followed, PoolError> {
        self.0.log.read_log(follower)
    }

    /// How many locks users have.
    pub const USER_LOCKS: u8 = USER_LOCKS as u8;

    /// Takes a lock that all processes of all hosts share, for data that the caller keeps in the
    /// region. After taking it, refresh that data; before releasing it, publish changes by calls of
    /// the fabric that leave no line dirty ([`Fabric::publish_lines`], [`Fabric::publish_word`]).
    ///
    /// # Errors
    /// The lock was not free within `timeout`, or it does not exist.
    pub fn lock_user(&self, number: u8, timeout: Duration) -> Result<UserLock<'_, F, H>, PoolError> {
        if number >= Self::USER_LOCKS {
            return Err(PoolError::Config(format!("there is no lock {number}; users have {}", Self::USER_LOCKS)));
        }
        let guard = self.0.locks.lock_user(number.into(), timeout.into()).map_err(PoolError::lock("user"))?;
        fault::point(Point::UserLocked);
        Ok(UserLock(guard))
    }
}

/// A held lock of users; see [`Pool::lock_user`].
pub struct UserLock<'a, F: Fabric, H: HostLocal = HostArea>(Guard<'a, User, F, H>);

impl<F: Fabric, H: HostLocal> UserLock<'_, F, H> {
    /// Whether a holder died with it, so that the data may be half changed. The next holder learns
    /// it, and so does one of each other host.
    #[must_use]
    pub const fn abandoned(&self) -> bool {
        self.0.abandoned
    }

    /// Releases it with the data half changed: the next holder learns it, as if this one had died.
    pub fn abandon(mut self) {
        self.0.gives_up = true;
    }
}
