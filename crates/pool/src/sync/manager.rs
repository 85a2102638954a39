//! TraCT's lock between hosts (TraCT §3.3), for comparison: each host has a slot per lock, and a
//! manager thread on one host turns one waiting slot at a time into a granted one.
//!
//! As in the paper, both its host and the manager write a slot. Two faults follow that the bakery
//! does not have. Without a manager no host enters. A waiter that gives up while the manager grants
//! may leave its slot granted with no process inside, until its host asks again. Two additions make
//! the lock usable where hosts die: a slot found granted is taken, and the manager frees slots of
//! dead hosts.

use super::locks::{Entered, Late, Tier};
use super::{Intent, Locks};
use crate::error::PoolError;
use crate::log::Log;
use crate::region::Region;
use crate::region::area::area_opener;
use crate::region::config::AttachOptions;
use crate::region::layout::LOCKS;
use cenote_mem::host::HostError;
use cenote_mem::{Fabric, HostArea, HostLocal, HostSpec, LINE, Offset};
use std::sync::Arc;
use std::time::Duration;

pub(super) struct Managed;

/// States of a slot, as in TraCT's figure 3, in its low bits. Above them: the life of its host.
const IDLE: u64 = 0;
const WAITING: u64 = 1;
const LOCKED: u64 = 2;
const STATE_BITS: u32 = 8;

const fn state(slot: u64) -> u64 {
    slot & ((1 << STATE_BITS) - 1)
}

impl<F: Fabric, H: HostLocal> Locks<F, H> {
    /// Offset of a host's slot: the first word of its second line for the lock.
    fn grant_slot(&self, lock: u64, host: u64) -> u64 {
        self.region.layout.lock(lock, host) + LINE
    }

    /// A slot as the device had it when its line was dropped or at the drop before, never older
    /// than this host's last write.
    fn grant(&self, slot: u64) -> u64 {
        self.region.fabric.load(Offset::new(slot))
    }

    fn fresh_grant(&self, slot: u64) -> u64 {
        self.region.fabric.refresh_unfenced(slot);
        self.grant(slot)
    }

    fn set_grant(&self, slot: u64, state: u64) {
        self.region.fabric.publish_word(Offset::new(slot), state);
    }
}

impl Tier for Managed {
    fn enter<F: Fabric, H: HostLocal>(
        &self,
        locks: &Locks<F, H>,
        lock: u64,
        intent: Intent,
        _inherited: bool,
        deadline: Duration,
    ) -> Result<Entered, Late> {
        // The ticket stays 0: the manager orders the waiters.
        locks.announce(lock, intent, 0);
        let slot = locks.grant_slot(lock, locks.region.host);
        let life = locks.region.incarnation() << STATE_BITS;
        let mut looks = 0;
        loop {
            let known = locks.fresh_grant(slot);
            if known == LOCKED | life {
                break;
            }
            // The manager may just have freed the slot of an earlier life.
            if known != WAITING | life {
                locks.set_grant(slot, WAITING | life);
            }
            if locks.region.area.now() >= deadline {
                return Err(Late);
            }
            locks.pause(looks);
            looks += 1;
        }
        // The manager has freed the slots of dead hosts; their lines still name their intents.
        let others = (0..locks.region.layout.max_hosts).filter(|&host| host != locks.region.host);
        let dead = others
            .filter(|&host| {
                let [_, incarnation, left] = locks.lock_words(lock, host);
                left != 0 && locks.region.is_dead(host, incarnation)
            })
            .collect();
        Ok(Entered { dead, contended: true })
    }

    fn leave<F: Fabric, H: HostLocal>(&self, locks: &Locks<F, H>, lock: u64) {
        locks.retract(lock);
        locks.set_grant(locks.grant_slot(lock, locks.region.host), IDLE);
    }
}

/// Result of a manager's round over the locks that it scans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantReport {
    /// Locks granted.
    pub granted: u64,
    /// Slots of dead hosts freed.
    pub freed: u64,
}

/// The manager: its thread calls [`LockManager::round`] without end. A rack has exactly one.
pub struct LockManager<F: Fabric, H: HostLocal = HostArea> {
    locks: Locks<F, H>,
    /// The host that was granted each lock last; the next search begins behind it.
    last: Vec<u64>,
}

impl<F: Fabric> LockManager<F> {
    /// A manager that has granted nothing yet. It does not join the region: joining takes locks.
    ///
    /// # Errors
    /// As for [`crate::Pool::attach`].
    pub fn open(fabric: F, options: &AttachOptions) -> Result<Self, PoolError> {
        let area = area_opener(&fabric, options);
        Self::open_on(fabric, options, area)
    }
}

impl<F: Fabric, H: HostLocal> LockManager<F, H> {
    /// As [`LockManager::open`], with the host memory that `host` makes.
    ///
    /// # Errors
    /// As for [`crate::Pool::attach`].
    pub fn open_on(
        fabric: F,
        options: &AttachOptions,
        host: impl FnOnce(&str, HostSpec) -> Result<H, HostError>,
    ) -> Result<Self, PoolError> {
        let region = Arc::new(Region::open(fabric, options, host)?);
        let log = Arc::new(Log::new(Arc::clone(&region)));
        Ok(Self { locks: Locks::new(region, log), last: vec![0; LOCKS as usize] })
    }

    /// Looks once at each lock that a process may take, and grants those that are wanted and free.
    /// TraCT's manager scans "each allocated global lock entry" (§3.3).
    pub fn round(&mut self) -> GrantReport {
        let mut report = GrantReport::default();
        let scanned: Vec<u64> = self.locks.in_use().collect();
        // All lines are dropped before the first is read, so that their loads wait together.
        for &lock in &scanned {
            for host in 0..self.locks.region.layout.max_hosts {
                self.locks.region.fabric.refresh_unfenced(self.locks.grant_slot(lock, host));
            }
        }
        for lock in scanned {
            self.visit(lock, &mut report);
        }
        report
    }

    /// Frees a dead host's slot of a lock, or grants the lock. The slots' lines were dropped.
    fn visit(&mut self, lock: u64, report: &mut GrantReport) {
        let locks = &self.locks;
        let hosts = locks.region.layout.max_hosts;
        let slots: Vec<u64> = (0..hosts).map(|host| locks.grant_slot(lock, host)).collect();
        let states: Vec<u64> = slots.iter().map(|&slot| locks.grant(slot)).collect();
        for (host, &slot) in (0..hosts).zip(&slots).filter(|(host, _)| states[*host as usize] != IDLE) {
            if locks.region.is_dead(host, states[host as usize] >> STATE_BITS) {
                locks.set_grant(slot, IDLE);
                report.freed += 1;
                return;
            }
        }
        if states.iter().any(|&slot| state(slot) == LOCKED) {
            return;
        }
        let last = &mut self.last[lock as usize];
        let next = (1..=hosts).map(|step| (*last + step) % hosts).find(|&host| state(states[host as usize]) == WAITING);
        if let Some(host) = next {
            let life = states[host as usize] >> STATE_BITS;
            locks.set_grant(slots[host as usize], LOCKED | life << STATE_BITS);
            *last = host;
            report.granted += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::config::{Design, HostsLock, PoolConfig};
    use crate::region::layout::{FIXED_LOCKS, SHARDS};
    use crate::region::superblock::Superblock;
    use crate::sync::names::Name;
    use cenote_base::HashSeed;
    use cenote_mem::{Flush, Flushed, MapOptions, Mapping, RegionSource};

    fn manager(design: Design) -> LockManager<Arc<Flushed>> {
        let config = PoolConfig {
            chunk_bytes: 64 << 10,
            min_block_bytes: 4 << 10,
            max_hosts: 2,
            hosts_lock: HostsLock::Manager,
            design,
            ..PoolConfig::new(HashSeed([1; 32]), [1; 16])
        };
        let mapping = Mapping::create(&RegionSource::Anon, 2 << 20, 0o600, &MapOptions::default()).expect("memory");
        let fabric = Arc::new(Flushed::new(mapping, Flush::available()[0]).expect("it is available"));
        Superblock::format(&fabric, &config).expect("the configuration fits");
        let options = AttachOptions { private: true, ..AttachOptions::named("test") };
        LockManager::open(fabric, &options).expect("it opens")
    }

    /// A host waits forever for a lock that is not scanned; a lock that no process takes delays the
    /// others.
    #[test]
    fn the_manager_scans_the_locks_that_a_region_has_and_no_others() {
        for (design, shards) in [(Design::Cenote, SHARDS), (Design::Plain, 1)] {
            let mut manager = manager(design);
            let region = Arc::clone(&manager.locks.region);
            let given = FIXED_LOCKS + 70;
            region.fabric.write_word(Offset::new(region.layout.given_locks().nth(1).expect("a word")), 1 << 6);
            // Host 0 wants every lock that the region has room for.
            for lock in 0..LOCKS {
                manager.locks.set_grant(manager.locks.grant_slot(lock, 0), WAITING);
            }
            let granted = shards + 2 + FIXED_LOCKS + 1;
            assert_eq!(manager.round(), GrantReport { granted, freed: 0 }, "{design:?}");
            let is_granted = |name: Name| {
                let lock = name.between_hosts().expect("hosts contend for it");
                state(manager.locks.fresh_grant(manager.locks.grant_slot(lock, 0))) == LOCKED
            };
            assert!([Name::Shard(0), Name::Chunks, Name::Tables].into_iter().all(is_granted), "{design:?}");
            assert!((0..FIXED_LOCKS).chain([given]).map(Name::User).all(is_granted), "{design:?}");
            assert!(!is_granted(Name::User(given - 1)));
            assert_eq!(is_granted(Name::Shard(1)), design == Design::Cenote);
        }
    }
}
