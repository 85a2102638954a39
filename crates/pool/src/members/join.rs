//! Joining and leaving.

use super::Member;
use crate::error::PoolError;
use crate::log::recorder::Event;
use cenote_base::fault::{self, Point};
use cenote_mem::{Fabric, HostLocal, LINE, Word};
use std::sync::atomic::Ordering::{Acquire, Release};

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// Joins the region: registers the host, claims a worker slot, and recovers dead workers.
    pub fn join(mut self, worker_name: &str) -> Result<Self, PoolError> {
        let region = &*self.region;
        if region.rebuilt().load(Acquire) == 0 {
            // This host's caches may hold an older region at this place, and lines that only this
            // host writes are not refreshed otherwise. Taking the lock fences.
            let own = region.layout.written_by(region.host).into_iter().filter(|_| !region.is_coherent());
            let lines = own.flat_map(|(start, end)| (start..end).step_by(LINE as usize));
            lines.for_each(|line| region.fabric.refresh_unfenced(line));
        }
        let membership = self.locks.lock_membership(self.locks.patient()).map_err(PoolError::lock("membership"))?;
        let area_is_new = region.rebuilt().load(Acquire) == 0;
        let slots = u32::try_from(region.layout.workers_per_host).expect("validated");
        // Without a worker there was no heartbeat, and another host may be about to declare this
        // life dead.
        let was_silent = !region.is_coherent() && !(0..slots).any(|slot| region.area.slot_alive(slot));
        let claimed = (0..slots).find_map(|slot| match region.area.claim_slot(slot) {
            Ok(claim) => claim.map(|claim| Ok((u64::from(slot), claim))),
            Err(error) => Some(Err(error)),
        });
        let Some((slot, claim)) = claimed.transpose()? else {
            return Err(PoolError::WorkersFull { slots: region.layout.workers_per_host, host: region.host as u8 });
        };
        // With the heap lock, because other threads of this host must not reserve slots in the new
        // life before the heap is of that life.
        let heap = self.blocks.lock_heap_patiently().map_err(PoolError::lock("heap"))?;
        let new_life = self.hosts.register_host(&membership, area_is_new || was_silent);
        if was_silent && self.space.sweep_strays(&membership) {
            self.hosts.note_swept(&membership);
        }
        if new_life {
            self.begin_life(&membership, &heap);
        }
        if area_is_new {
            // No process of this host has the region open: its lines describe dead processes.
            for other in 0..region.layout.workers_per_host {
                self.hosts.clear_hazards(&membership, other);
                self.hosts.clear_opened(&membership, other);
                self.hosts.clear_worker_line(&membership, other);
            }
            // Again, because pins of dead workers no longer hold blocks.
            self.blocks.rebuild_heap(&heap);
            self.blocks.enter_unindexed(&heap);
            self.blocks.retry_draining(&heap);
            fault::point(Point::JoinRebuilt);
            region.rebuilt().store(1, Release);
            drop(heap);
            // A worker that died may have left an object without a row, or memory without a word.
            self.tables.free_unused();
        } else {
            drop(heap);
            // The slot's last holder may have died.
            self.recover_last_worker(&membership, slot, slot)?;
        }
        let epoch = self.hosts.write_worker(&membership, slot, worker_name);
        self.log.record_as(slot, Event::Attached, epoch >> 1, 0);
        self.hosts.raise_workers_high(&membership, slot + 1);
        fault::point(Point::JoinRegistered);
        self.recover_dead_locked(&membership, slot)?;
        if region.is_plain() {
            let others_live = || (0..region.layout.max_hosts).any(|host| self.hosts.has_other_worker(host, slot));
            self.index.forget_dead_counts(others_live);
        }
        drop(membership);
        region.set_slot(slot);
        self.hosts.pins.adopt(epoch);
        self.name = worker_name.to_owned();
        self._claim = Some(claim);
        Ok(self)
    }
}

impl<F: Fabric, H: HostLocal> Drop for Member<F, H> {
    fn drop(&mut self) {
        if !self.has_joined() || self.region.area.is_inherited() {
            return;
        }
        if self.region.is_plain() {
            self.index.give_all_counts();
        }
        // Without the lock the worker is recovered like a dead one, by the next worker that joins
        // or ticks.
        if let Ok(membership) = self.locks.lock_membership(self.locks.serving()) {
            let _ = self.recover_slot(&membership, self.region.slot());
            self.log.record(Event::Left, 0, 0);
        }
    }
}
