//! Joining and leaving.

use super::Member;
use crate::error::PoolError;
use crate::log::recorder::Event;
use crate::region::lines::{HostLine, Line};
use cenote_base::fault::{self, Point};
use cenote_mem::{Fabric, HostLocal, LINE, Word};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// Joins the region: registers the host, claims a worker slot, and recovers dead workers.
    pub fn join(mut self, worker_name: &str) -> Result<Self, PoolError> {
        let region = &*self.region;
        if region.rebuilt().load(Acquire) == 0 {
            self.drop_own_lines();
        }
        let drawn = region.area.draw_name();
        let last = self.outlive_other_memory(drawn)?;
        let membership = self.locks.lock_membership(self.locks.patient()).map_err(PoolError::lock("membership"))?;
        let slots = u32::try_from(region.layout.workers_per_host).expect("validated");
        let is_empty = !(0..slots).any(|slot| region.area.slot_alive(slot));
        let mut area_is_new = region.rebuilt().load(Acquire) == 0;
        let known = region.memory_name().load(Relaxed);
        let words = region.fresh_line(region.layout.host(region.host));
        let line = HostLine::open(words, region.layout.host(region.host), region.salt);
        let has_slot = drawn == 0 || known != 0 && line.is_none_or(|line| line.memory == known);
        if !has_slot {
            // The slot is free, or another memory had it. That memory may have come back since, and
            // workers of this one may go on that do not know yet that they have lost the slot.
            if words != last || !is_empty {
                return Err(self.in_use());
            }
            self.drop_own_lines();
            region.fabric.fence();
            self.log.forget_ends();
            area_is_new = true;
            region.rebuilt().store(0, Release);
            if let Some(line) = region.read_host(region.host).filter(|_| !region.is_coherent()) {
                // A process that resumes with the other memory finds its life ended.
                self.hosts.mark_dead(&membership, region.host, line.incarnation);
            }
        }
        let name = if has_slot && known != 0 { known } else { drawn };
        if name != known {
            region.memory_name().store(name, Relaxed);
        }
        // Without a worker there was no heartbeat, and another host may be about to declare this
        // life dead.
        let was_silent = !region.is_coherent() && is_empty;
        let claimed = (0..slots).find_map(|slot| match region.area.claim_slot(slot) {
            Ok(claim) => claim.map(|claim| Ok((u64::from(slot), claim))),
            Err(error) => Some(Err(error)),
        });
        let Some((slot, claim)) = claimed.transpose()? else {
            return Err(PoolError::WorkersFull { slots: region.layout.workers_per_host, host: region.host as u8 });
        };
        self.log.find_ends();
        // With the heap lock, because other threads of this host must not reserve slots in the new
        // life before the heap is of that life.
        let heap = self.blocks.lock_heap_patiently().map_err(PoolError::lock("heap"))?;
        // Only now: the heap of a memory that the host line does not name is refused.
        region.set_memory(name);
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
        if region.is_superseded_now() {
            return Err(self.in_use());
        }
        region.set_slot(slot);
        self.blocks.begin_without_doubt();
        self.hosts.pins.adopt(epoch);
        self.name = worker_name.to_owned();
        self._claim = Some(claim);
        Ok(self)
    }
}

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// Drops the lines that only this host writes from its caches, without a fence: they may be of
    /// an older region at this place, or another machine may have written them, and they are not
    /// refreshed otherwise.
    fn drop_own_lines(&self) {
        let region = &*self.region;
        let own = region.layout.written_by(region.host).into_iter().filter(|_| !region.is_coherent());
        let lines = own.flat_map(|(start, end)| (start..end).step_by(LINE as usize));
        lines.for_each(|line| region.fabric.refresh_unfenced(line));
    }

    /// Waits until no life of another host memory goes on in this host's slot, and returns the words
    /// of the host's line. Such a life is over if its workers have left in order, if it was declared
    /// dead, or if its heart has stood still for the host timeout. `drawn` is 0 for memory of one
    /// process.
    fn outlive_other_memory(&self, drawn: u64) -> Result<[u64; 8], PoolError> {
        let region = &*self.region;
        let at = region.layout.host(region.host);
        let first = region.fresh_line(at);
        let deadline = region.area.now().saturating_add(region.host_timeout);
        loop {
            let words = region.fresh_line(at);
            let ours = region.memory_name().load(Relaxed);
            let line = HostLine::open(words, at, region.salt);
            // A torn line is damaged, or a process of this host is writing it.
            let is_ours = drawn == 0 || ours != 0 && line.is_none_or(|line| line.memory == ours);
            if is_ours || words == [0; 8] {
                return Ok(words);
            }
            if words != first {
                return Err(self.in_use());
            }
            let is_over = line.is_some_and(|line| region.is_dead(region.host, line.incarnation));
            if is_over || !self.has_joined_workers() || region.area.now() >= deadline {
                return Ok(words);
            }
            region.area.rest();
        }
    }

    /// Whether a worker line of this host shows a process that has not left, by the device's lines.
    fn has_joined_workers(&self) -> bool {
        let region = &*self.region;
        region.refresh_range(region.layout.worker(region.host, 0), region.layout.worker(region.host + 1, 0));
        (0..region.layout.workers_per_host).any(|slot| region.joined(region.host, slot))
    }

    fn in_use(&self) -> PoolError {
        PoolError::HostInUse { host: self.region.host as u8 }
    }
}

impl<F: Fabric, H: HostLocal> Drop for Member<F, H> {
    fn drop(&mut self) {
        // The lines of a slot that another host memory has taken are its own.
        if !self.has_joined() || self.region.area.is_inherited() || self.region.is_superseded_now() {
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
