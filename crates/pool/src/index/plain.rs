//! TraCT's plain design, for comparison (TraCT §3.4, §4.2;
//! docs/internals/protocol.md#plain-design).
//!
//! One lock between hosts guards all shared state: index entries, a reference count for each block,
//! and one list of all blocks in the order of their last use. A lookup takes the lock, finds the
//! blocks, raises their counts and moves them to the new end of the list. A finished read takes the
//! lock again and lowers the count. A block may be evicted while its count is zero, the oldest
//! first. Cached lines are never trusted: the guarded state is refreshed after the lock is taken
//! and published before it is released ([`super::list`]).
//!
//! Everything else is shared with our design: chunks, free lists, descriptors, payloads and their
//! checksums, the index's table, objects, the locks themselves. So this file and [`super::list`]
//! are all that differs between the two in a measurement.
//!
//! Decisions where the paper is silent:
//! - *Counts of hits.* A lookup raises one per hit; [`crate::Pool::read`] or a dropped pin lowers
//!   it. A hit that is not read within [`HELD_FOR`] loses its count when its worker next takes the
//!   lock ([`super::held`]); reading it then takes the lock once more.
//! - *Victims.* Space belongs to the host that owns the chunk, so a host skips other hosts' blocks
//!   in the list. If its own blocks have other sizes, a whole chunk leaves when all its blocks are
//!   older.
//! - *Payload.* GPUs read it past the caches there; processors read it here, so each read drops its
//!   cached lines. It is written before the lock is taken to index the block.
//! - *Deaths.* A death under the lock is repaired as under any lock: index and list are rebuilt
//!   from the readable blocks. Counts of a dead reader stay raised, because their owner is unknown.
//!   The next worker that joins clears them if no other worker lives.

use crate::index::list::{ListGuard, member_of, stored_count};
use crate::index::table::Inserting;
use crate::index::{Index, Inserted};
use crate::region::hit::Hit;
use crate::region::host_layout::PUBLISHED;
use crate::region::layout::SHARDS;
use crate::region::lines::BlockState;
use crate::sync::{Heap, Holds, Intent, Shard, Timeout};
use cenote_base::{BlockHash, BlockIndex};
use cenote_mem::host::LockTimeout;
use cenote_mem::{Fabric, HostLocal, Word};
use std::collections::BTreeSet;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

/// Time for which an unread hit keeps its count.
const HELD_FOR: Duration = Duration::from_secs(1);

impl<F: Fabric, H: HostLocal> Index<F, H> {
    fn held(&self) -> MutexGuard<'_, super::Held> {
        self.held.lock().expect("no holder panics")
    }

    /// Takes the lock, and lowers the counts that this worker owes.
    pub fn lock_list(&self) -> Result<ListGuard<'_, F, H>, LockTimeout> {
        self.lock_list_within(self.locks.serving())
    }

    fn lock_list_within(&self, timeout: Timeout) -> Result<ListGuard<'_, F, H>, LockTimeout> {
        let mut list = ListGuard::new(self, self.lock_shard(0, Intent::ALL, timeout)?);
        let owed = self.held().owed(self.region.area.now());
        list.fetch(owed.iter().map(|&block| member_of(block)));
        owed.into_iter().for_each(|block| list.lower(block, 1));
        Ok(list)
    }

    /// Finds the blocks of a prompt, in order, up to the first miss. Each hit has a count.
    pub fn lookup_counted(&self, hashes: &[BlockHash]) -> Vec<Hit> {
        let mut hits = Vec::with_capacity(hashes.len());
        let Ok(mut list) = self.lock_list() else { return hits };
        self.find_all_now(hashes, |block, descriptor| hits.push(Hit::of(block, descriptor)));
        list.fetch_around(hits.iter().map(|hit| member_of(hit.block)));
        // In reverse, so that the head of a prompt is evicted after its tail.
        for hit in hits.iter().rev() {
            list.raise(hit.block);
            list.set_newest(hit.block);
        }
        drop(list);
        let until = self.region.area.now() + HELD_FOR;
        self.held().add(&hits, until);
        hits
    }

    /// Whether a readable block of this hash exists. If so, the call marks it as used.
    pub fn use_if_there(&self, hash: BlockHash) -> bool {
        let Ok(mut list) = self.lock_list() else { return false };
        let mut found = None;
        self.find_all_now(&[hash], |block, _| found = Some(block));
        found.into_iter().for_each(|block| list.set_newest(block));
        found.is_some()
    }

    /// Gives the caller a count of the hit's block: the one that its lookup raised, or a new one if
    /// the block is still there.
    pub fn take_count(&self, hit: &Hit) -> bool {
        if self.held().take(hit) {
            return true;
        }
        let Ok(mut list) = self.lock_list() else { return false };
        self.region.fabric.refresh(&[self.region.layout.descriptor(hit.block)]);
        let same = self.region.hit(hit.block).is_some_and(|now| now == *hit);
        if same {
            list.raise(hit.block);
        }
        same
    }

    /// Lowers a count. If the lock is busy, the worker lowers it when it next takes the lock.
    pub fn give_count(&self, hit: &Hit) {
        match self.lock_list() {
            Ok(mut list) => list.lower(hit.block, 1),
            Err(_) => self.held().owe(hit),
        }
    }

    /// Lowers the counts that are due.
    pub fn give_owed_counts(&self) {
        let now = self.region.area.now();
        let owes = self.held().owes(now);
        if owes {
            drop(self.lock_list());
        }
    }

    /// Lowers all counts of a worker that leaves.
    pub fn give_all_counts(&self) {
        self.held().end();
        self.give_owed_counts();
    }

    /// Indexes and lists readable blocks, as [`Index::insert_all`] does.
    pub(super) fn insert_all_plain(&self, all: &mut [Inserting]) {
        let Ok(mut list) = self.lock_list() else { return };
        for one in all {
            one.outcome = self.insert_locked(list.shard(), one.hash, one.block);
            if one.outcome == Inserted::New {
                list.set_newest(one.block);
            }
        }
    }

    /// Removes a block from index and list. `false`: the block has a count, or the lock is busy.
    pub fn unlink_plain(&self, hash: BlockHash, block: BlockIndex, patience: &mut Duration) -> bool {
        let Ok(mut list) = self.lock_list_within((*patience).into()) else {
            *patience = Duration::ZERO;
            return false;
        };
        if list.count(block) > 0 {
            return false;
        }
        self.unlink_locked(list.shard(), hash, block);
        list.remove(block);
        true
    }

    /// Blocks of all hosts that have a count.
    pub fn counted_blocks(&self) -> BTreeSet<BlockIndex> {
        let blocks = (0..self.region.layout.num_descriptors()).map(BlockIndex);
        self.region.refresh_range(
            self.region.layout.plain(1),
            self.region.layout.plain(self.region.layout.num_descriptors() + 1),
        );
        blocks.filter(|&block| stored_count(self, block) > 0).collect()
    }

    /// Rebuilds index and list from the readable blocks.
    pub(super) fn repair_plain(&self, held: &Holds<Shard>) {
        for shard in 0..SHARDS {
            self.repair_shard(held, shard);
        }
        ListGuard::within(self, held).relink();
    }

    /// Rebuilds the list if it is corrupt.
    pub fn mend_list(&self, heap: &Holds<Heap>) -> Result<(), LockTimeout> {
        if self.check_list(heap)? != ListFaults::default() {
            let shard = self.lock_shard(0, Intent::ALL, self.locks.patient())?;
            ListGuard::within(self, &shard).relink();
        }
        Ok(())
    }

    /// Compares the list with the blocks that it must have.
    pub fn check_list(&self, _: &Holds<Heap>) -> Result<ListFaults, LockTimeout> {
        let region = &self.region;
        let mut list = self.lock_list_within(self.locks.patient())?;
        let listed = list.all();
        let is_unready = |&block: &BlockIndex| {
            region.fabric.refresh(&[region.layout.descriptor(block)]);
            region.block_state(block) != Some(BlockState::Ready)
        };
        let unready = listed.iter().copied().filter(is_unready).collect();
        let unlisted = region
            .listed_chunks()
            .flat_map(|chunk| region.slots_of(chunk))
            .filter(|&block| region.slot_owner(block).load(Acquire) == PUBLISHED && !listed.contains(&block))
            .collect();
        Ok(ListFaults { is_broken: list.is_broken(), unready, unlisted })
    }

    /// Clears all counts if no other worker lives: they are counts of dead workers.
    pub fn forget_dead_counts(&self, others_live: impl FnOnce() -> bool) {
        let Ok(mut list) = self.lock_list() else { return };
        // Workers that joined before the lock was taken show in their lines; later ones have no
        // count yet.
        if !others_live() {
            self.counted_blocks().into_iter().for_each(|block| list.lower(block, u64::MAX));
        }
    }
}

/// Faults of the plain design's list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ListFaults {
    /// Its links disagree.
    pub is_broken: bool,
    /// Blocks in the list that are not readable.
    pub unready: Vec<BlockIndex>,
    /// Published blocks of this host that are not in the list.
    pub unlisted: Vec<BlockIndex>,
}
