//! TraCT's lock between hosts (TraCT §3.3), for comparison: each host has a slot per lock, and a manager
//! thread on one host turns one waiting slot at a time into a granted one.
//!
//! Kept as the paper has it, the slot is written by its host and by the manager. So it has two faults that
//! the bakery has not: without a manager nobody gets in, and a waiter that gives up while the manager
//! grants may leave its slot granted with nobody inside, until its host asks again. Two additions make it
//! usable at all beside deaths: a slot found granted is taken, and the manager frees slots of hosts that are
//! marked dead.

use super::{Entered, Intent, Late, Tier};
use crate::error::PoolError;
use crate::pool::Inner;
use crate::region::Region;
use crate::region::area::area_opener;
use crate::region::config::AttachOptions;
use crate::region::layout::LOCKS;
use cenote_mem::host::HostError;
use cenote_mem::{Fabric, HostArea, HostLocal, HostSpec, LINE, Offset};
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

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// Offset of a host's slot: the first word of its second line for the lock.
    fn grant_slot(&self, lock: u64, host: u64) -> u64 {
        self.layout.lock(lock, host) + LINE
    }

    /// A slot as the device has it, or had it at the last look, but never as it was before this host last wrote it.
    fn fresh_slot(&self, slot: u64) -> u64 {
        self.fabric.refresh_unfenced(slot);
        self.fabric.load(Offset::new(slot))
    }

    fn set_slot(&self, slot: u64, state: u64) {
        self.fabric.publish_word(Offset::new(slot), state);
    }
}

impl Tier for Managed {
    fn enter<F: Fabric, H: HostLocal>(
        &self,
        inner: &Inner<F, H>,
        lock: u64,
        intent: Intent,
        _inherited: bool,
        deadline: Duration,
    ) -> Result<Entered, Late> {
        // Nobody takes a number here.
        inner.announce(lock, intent, 0);
        let slot = inner.grant_slot(lock, inner.host);
        let life = inner.incarnation() << STATE_BITS;
        let mut looks = 0;
        loop {
            let known = inner.fresh_slot(slot);
            if known == LOCKED | life {
                break;
            }
            // Also where the manager has just freed what an earlier life left.
            if known != WAITING | life {
                inner.set_slot(slot, WAITING | life);
            }
            if inner.area.now() >= deadline {
                return Err(Late);
            }
            inner.wait(looks);
            looks += 1;
        }
        // The manager freed the slots of the dead without a word; their lines still say what they did.
        let others = (0..inner.layout.max_hosts).filter(|&host| host != inner.host);
        let dead = others
            .filter(|&host| {
                let [_, incarnation, left] = inner.lock_words(lock, host);
                left != 0 && inner.is_dead(host, incarnation)
            })
            .collect();
        Ok(Entered { dead, contended: true })
    }

    fn leave<F: Fabric, H: HostLocal>(&self, inner: &Inner<F, H>, lock: u64) {
        inner.retract(lock);
        inner.set_slot(inner.grant_slot(lock, inner.host), IDLE);
    }
}

/// What a manager's round over all locks came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantReport {
    /// Locks granted.
    pub granted: u64,
    /// Slots of dead hosts freed.
    pub freed: u64,
}

/// The manager: whoever has it calls [`LockManager::round`] without end. There must be one in all hosts.
pub struct LockManager<F: Fabric, H: HostLocal = HostArea> {
    inner: Inner<F, H>,
    /// Who was granted each lock last; the search for the next begins behind it.
    last: Vec<u64>,
}

impl<F: Fabric> LockManager<F> {
    /// A manager that has granted nothing yet. It is no worker of the region: to join takes locks.
    ///
    /// # Errors
    /// As for [`crate::Pool::attach`].
    pub fn open(fabric: F, options: &AttachOptions) -> Result<Self, PoolError> {
        let area = area_opener(&fabric, options);
        Self::open_on(fabric, options, area)
    }
}

impl<F: Fabric, H: HostLocal> LockManager<F, H> {
    /// As [`LockManager::open`], with host-local memory of the caller's making.
    ///
    /// # Errors
    /// As for [`crate::Pool::attach`].
    pub fn open_on(
        fabric: F,
        options: &AttachOptions,
        host: impl FnOnce(&str, HostSpec) -> Result<H, HostError>,
    ) -> Result<Self, PoolError> {
        Ok(Self { inner: Inner::over(Region::open(fabric, options, host)?), last: vec![0; LOCKS as usize] })
    }

    /// Looks at every lock once and grants those that are wanted and free.
    pub fn round(&mut self) -> GrantReport {
        let mut report = GrantReport::default();
        for lock in 0..LOCKS {
            self.visit(lock, &mut report);
        }
        report
    }

    fn visit(&mut self, lock: u64, report: &mut GrantReport) {
        let inner = &self.inner;
        let hosts = inner.layout.max_hosts;
        let slots: Vec<u64> = (0..hosts).map(|host| inner.grant_slot(lock, host)).collect();
        let states: Vec<u64> = slots.iter().map(|&slot| inner.fresh_slot(slot)).collect();
        for (host, &slot) in (0..hosts).zip(&slots).filter(|(host, _)| states[*host as usize] != IDLE) {
            if inner.is_dead(host, states[host as usize] >> STATE_BITS) {
                inner.set_slot(slot, IDLE);
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
            inner.set_slot(slots[host as usize], LOCKED | life << STATE_BITS);
            *last = host;
            report.granted += 1;
        }
    }
}
