//! Recovery of dead workers of this host by living ones.
//!
//! A dead worker may leave reserved slots, blocks that are readable but not indexed, pins, its
//! worker line, and locks. Locks repair themselves (`crate::sync`). The first worker that notices
//! the death recovers the rest, and holds the dead worker's slot meanwhile so that no process joins
//! in it.

use super::Member;
use crate::error::PoolError;
use crate::log::recorder::Event;
use crate::region::counters::Counter;
use crate::region::host_layout::{FREE, OBJECT};
use crate::region::lines::BlockState;
use crate::sync::{Holds, Membership, Name, Timeout};
use cenote_base::BlockIndex;
use cenote_base::fault::{self, Point};
use cenote_mem::{Fabric, HostLocal, Word};
use serde::Serialize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

/// What recovery found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Recovered {
    /// Dead workers.
    pub workers: u64,
    /// Block slots that they had reserved, now free.
    pub reservations: u64,
    /// Blocks that they had written but not indexed, now published.
    pub published: u64,
}

impl Recovered {
    fn add(&mut self, other: Self) {
        self.workers += other.workers;
        self.reservations += other.reservations;
        self.published += other.published;
    }
}

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// Recovers every dead worker of this host. Takes the membership lock only if there is one.
    pub fn recover_dead(&self) -> Result<Recovered, PoolError> {
        let own = self.region.slot();
        if !(0..self.region.layout.workers_per_host).any(|slot| slot != own && self.hosts.died(slot)) {
            return Ok(Recovered::default());
        }
        let membership = self.locks.lock_membership(self.locks.serving()).map_err(PoolError::lock("membership"))?;
        self.recover_dead_locked(&membership, own)
    }

    /// As [`Member::recover_dead`], for the worker of slot `own`.
    pub(super) fn recover_dead_locked(&self, membership: &Holds<Membership>, own: u64) -> Result<Recovered, PoolError> {
        let mut recovered = Recovered::default();
        for slot in (0..self.region.layout.workers_per_host).filter(|&slot| slot != own) {
            if !self.hosts.died(slot) {
                continue;
            }
            let Some(_claim) = self.region.area.claim_slot(slot as u32)? else { continue };
            recovered.add(self.recover_last_worker(membership, slot, own)?);
        }
        Ok(recovered)
    }

    /// Recovers the worker that died with `slot`, if there was one, and counts it. The caller is
    /// the worker of slot `own` and has claimed `slot`.
    pub(super) fn recover_last_worker(
        &self,
        membership: &Holds<Membership>,
        slot: u64,
        own: u64,
    ) -> Result<Recovered, PoolError> {
        if !self.region.joined(self.region.host, slot) {
            // The line is cleared last, so nothing of the worker is left.
            return self.recover_slot(membership, slot);
        }
        self.log.record_as(own, Event::WorkerDead, slot, self.hosts.worker_pid(slot));
        let mut recovered = self.recover_slot(membership, slot)?;
        recovered.workers = 1;
        self.region.counters().add(Counter::WorkersRecovered, 1);
        self.log.record_as(own, Event::Recovered, recovered.reservations, recovered.published);
        Ok(recovered)
    }

    /// Frees all that the last holder of `slot` held. The caller has claimed the slot or is its
    /// holder.
    ///
    /// The worker's line is cleared last: if this recovery dies or fails, the next one finds the
    /// dead worker again.
    pub(super) fn recover_slot(&self, membership: &Holds<Membership>, slot: u64) -> Result<Recovered, PoolError> {
        let mut recovered = Recovered::default();
        let owner = u32::try_from(slot + 1).expect("at most 1,024 workers");
        // Taking the heap lock repairs the heap, which may leave draining blocks and objects
        // without rows.
        self.settle_locks();
        if let Ok(heap) = self.blocks.lock_heap() {
            self.blocks.retry_draining(&heap);
        }
        // Pins first, so that eviction may take what they held.
        self.hosts.clear_hazards(membership, slot);
        let left: Vec<BlockIndex> = (0_u64..)
            .zip(self.region.slot_owners())
            .filter(|(_, word)| word.load(Acquire) == owner)
            .map(|(block, _)| BlockIndex(block))
            .collect();
        fault::point(Point::RecoverScanned);
        for block in left {
            self.recover_block(block, owner, &mut recovered)?;
        }
        recovered.reservations += self.tables.free_unused();
        fault::point(Point::RecoverFreed);
        self.hosts.clear_opened(membership, slot);
        self.hosts.clear_worker_line(membership, slot);
        self.region.counters().add(Counter::ReservationsRecovered, recovered.reservations);
        Ok(recovered)
    }

    fn recover_block(&self, block: BlockIndex, owner: u32, recovered: &mut Recovered) -> Result<(), PoolError> {
        let region = &self.region;
        let heap = self.blocks.lock_heap_patiently().map_err(PoolError::lock("heap"))?;
        // A process that destroyed the object in it may have freed the slot meanwhile.
        if region.slot_owner(block).load(Acquire) != owner {
            return Ok(());
        }
        if !region.lists(block) {
            // Another host has adopted the chunk and owns its slots.
            region.slot_owner(block).store(FREE, Release);
            return Ok(());
        }
        match region.read_descriptor(block).and_then(|d| Some((d.block_state()?, d.block_hash()))) {
            // Payload and descriptor are complete: only the index entry may be missing.
            Some((BlockState::Ready, hash)) => {
                if self.blocks.enter_recovered(&heap, block, hash) {
                    recovered.published += 1;
                } else {
                    recovered.reservations += 1;
                }
            }
            Some((BlockState::Object, _)) if self.tables.is_used(block) => {
                region.slot_owner(block).store(OBJECT, Release);
            }
            _ => {
                self.space.write_free(block);
                self.space.push_free(&heap, block);
                recovered.reservations += 1;
            }
        }
        Ok(())
    }

    /// Takes and releases every lock between hosts that a dead process of this host holds. That
    /// repairs what it guards; other hosts would wait for this host, which lives. Locks of living
    /// processes are skipped: their mutex is busy.
    pub(super) fn settle_locks(&self) {
        // One deadline for all locks: a host that holds many must not delay this one once for each.
        let deadline = self.region.area.now().saturating_add(self.region.lock_timeout);
        for name in self.locks.locks_held_here() {
            match name {
                Name::User(user) => self.locks.release_dead_user_lock(user),
                name => {
                    let total = deadline.saturating_sub(self.region.area.now());
                    self.pass_through(name, Timeout { mutex: Duration::ZERO, total });
                }
            }
        }
    }
}
