//! What survivors do for the dead of their host.
//!
//! A worker can leave behind: reserved block slots, blocks that are readable but not yet findable, pins, its
//! worker line, and locks. Locks repair themselves (see [`crate::locks`]); the rest is done here, by
//! whoever notices first, with the dead worker's slot claimed meanwhile so that nobody takes it.

use crate::error::PoolError;
use crate::heap::{FREE, OBJECT, PUBLISHED};
use crate::history::Event;
use crate::index::Inserted;
use crate::locks::Name;
use crate::pool::Inner;
use crate::region::counters::Counter;
use crate::region::lines::BlockState;
use cenote_base::{BlockHash, BlockIndex, fault};
use cenote_mem::{Fabric, HostLocal, Word};
use serde::Serialize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// What recovery found and gave back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Recovered {
    /// Workers that had died.
    pub workers: u64,
    /// Block slots they had reserved, now free again.
    pub reservations: u64,
    /// Blocks they had finished but not made findable, now published.
    pub published: u64,
}

impl Recovered {
    fn add(&mut self, other: Self) {
        self.workers += other.workers;
        self.reservations += other.reservations;
        self.published += other.published;
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// Cleans up after every worker of this host that died. Takes the membership lock only if there is one.
    pub(crate) fn recover_dead(&self) -> Result<Recovered, PoolError> {
        let own = self.slot();
        if !(0..self.layout.workers_per_host).any(|slot| slot != own && self.died(slot)) {
            return Ok(Recovered::default());
        }
        let _membership = self.lock(Name::Membership).map_err(PoolError::lock("membership"))?;
        self.recover_dead_locked(own)
    }

    /// Whether a worker holds the slot, as its line says, and does not live.
    pub(crate) fn died(&self, slot: u64) -> bool {
        self.worker_joined(slot) && !self.area.slot_alive(slot as u32)
    }

    /// As [`Inner::recover_dead`], for a caller that holds the membership lock and the slot `own`.
    pub(crate) fn recover_dead_locked(&self, own: u64) -> Result<Recovered, PoolError> {
        let mut recovered = Recovered::default();
        for slot in (0..self.layout.workers_per_host).filter(|&slot| slot != own) {
            if !self.died(slot) {
                continue;
            }
            let Some(_claim) = self.area.claim_slot(slot as u32)? else { continue };
            recovered.add(self.recover_last_worker(slot, own)?);
        }
        Ok(recovered)
    }

    /// Recovers the worker that died holding `slot`, if one did, and counts it. The caller is the worker of slot
    /// `own`, has claimed `slot`, and holds the membership lock.
    pub(crate) fn recover_last_worker(&self, slot: u64, own: u64) -> Result<Recovered, PoolError> {
        if !self.worker_joined(slot) {
            // Its line was cleared last, so nothing of it is left.
            return self.recover_slot(slot);
        }
        self.record_as(own, Event::WorkerDead, slot, self.worker_pid(slot));
        let mut recovered = self.recover_slot(slot)?;
        recovered.workers = 1;
        self.counters().add(Counter::WorkersRecovered, 1);
        self.record_as(own, Event::Recovered, recovered.reservations, recovered.published);
        Ok(recovered)
    }

    /// Gives back all that the last holder of `slot` held. The caller has claimed the slot or is its holder,
    /// and holds the membership lock.
    ///
    /// The worker's line goes last: a recoverer that dies or gives up before leaves the dead worker to be seen,
    /// and recovered, by the next.
    pub(crate) fn recover_slot(&self, slot: u64) -> Result<Recovered, PoolError> {
        let mut recovered = Recovered::default();
        let owner = u32::try_from(slot + 1).expect("at most 1,024 workers");
        // Repairing the heap may leave an object without a name, where a chunk was just being taken over, and blocks
        // whose eviction nobody ended.
        self.settle_locks();
        if let Ok(_heap) = self.lock(Name::Heap) {
            self.retry_draining();
        }
        // Pins first: what they held may then be evicted by whoever needs room.
        self.clear_hazards(slot);
        let left: Vec<BlockIndex> = (0_u64..)
            .zip(self.slot_owners())
            .filter(|(_, word)| word.load(Acquire) == owner)
            .map(|(block, _)| BlockIndex(block))
            .collect();
        fault::point("recover.scanned");
        for block in left {
            self.recover_block(block, owner, &mut recovered)?;
        }
        recovered.reservations += self.free_unnamed_objects();
        fault::point("recover.freed");
        self.clear_worker_line(slot);
        self.counters().add(Counter::ReservationsRecovered, recovered.reservations);
        Ok(recovered)
    }

    fn recover_block(&self, block: BlockIndex, owner: u32, recovered: &mut Recovered) -> Result<(), PoolError> {
        let _heap = self.lock_patiently(Name::Heap).map_err(PoolError::lock("heap"))?;
        // Somebody else may have freed it meanwhile: whoever destroyed the object it was becoming.
        if self.slot_owner(block).load(Acquire) != owner {
            return Ok(());
        }
        if self.chunk_class(self.layout.chunk_of(block)).load(Relaxed) == 0 {
            // Another host has adopted the chunk since: nothing in it is this one's to free.
            self.slot_owner(block).store(FREE, Release);
            return Ok(());
        }
        match self.read_descriptor(block).and_then(|d| Some((d.block_state()?, d.block_hash()))) {
            // Payload and descriptor are whole: only the last steps were missing.
            Some((BlockState::Ready, hash)) => {
                if self.enter_ready(block, hash)? {
                    recovered.published += 1;
                } else {
                    recovered.reservations += 1;
                }
            }
            Some((BlockState::Object, _)) if self.object_blocks().contains(&block) => {
                self.slot_owner(block).store(OBJECT, Release);
            }
            _ => {
                self.write_free(block);
                self.push_free(block);
                recovered.reservations += 1;
            }
        }
        Ok(())
    }

    /// Makes a readable block that no live worker is busy with findable, or frees it if another has its hash.
    /// The caller holds the heap lock. Returns whether the block stays.
    fn enter_ready(&self, block: BlockIndex, hash: BlockHash) -> Result<bool, PoolError> {
        let Ok(inserted) = self.insert(hash, block) else {
            // Perhaps another host died with the shard's lock. That is noticed by those who joined, so joining
            // must not wait for it. The index may lead here: the block leaves as any other does.
            self.withdraw(block);
            return Ok(false);
        };
        if inserted == Inserted::New {
            self.place(block, hash);
            if let Some(descriptor) = self.read_descriptor(block) {
                // Who died may not have come to that.
                self.tell_stored(block, &descriptor, self.names_of(block));
            }
            self.slot_owner(block).store(PUBLISHED, Release);
            return Ok(true);
        }
        self.withdraw(block);
        Ok(false)
    }

    /// Enters readable blocks that the index does not lead to: their worker died, and so did the memory that
    /// told who it was. The caller holds the heap lock.
    pub(crate) fn enter_unfindable(&self) -> Result<(), PoolError> {
        // An entry of an older use of the block would lead to it from this host's caches only.
        self.refresh_index();
        let published = (0_u64..).zip(self.slot_owners()).filter(|(_, owner)| owner.load(Acquire) == PUBLISHED);
        for (block, _) in published {
            let Some(hit) = self.hit(BlockIndex(block)) else { continue };
            if self.find(hit.hash).is_none_or(|(found, _)| found != hit.block) {
                self.enter_ready(hit.block, hit.hash)?;
            }
        }
        Ok(())
    }
}
