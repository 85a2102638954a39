//! TraCT's plain design, for comparison (TraCT §3.4, §4.2;
//! docs/internals/protocol.md#plain-design).
//!
//! One lock between hosts guards all shared state: index entries, a reference count for each block,
//! and one list of all blocks in the order of their last use. A lookup changes none of it, so it
//! takes no lock. The first read of its blocks does: it raises their counts and moves them to the
//! new end of the list. A block may be evicted while its count is zero, the oldest first. Cached
//! lines are never trusted: a lookup refreshes what it reads, and the guarded state is refreshed
//! after the lock is taken and published before it is released ([`super::list`]).
//!
//! Everything else is shared with our design: chunks, free lists, descriptors, payloads and their
//! checksums, the index's table, objects, the locks themselves. So this file, [`super::held`] and
//! [`super::list`] are all that differs between the two in a measurement.
//!
//! Decisions where the paper is silent, in favour of its design:
//! - *Accesses.* "On every access" an entry moves, and a count protects it while it is in use. An
//!   access is the read of a prompt, so its blocks share one turn: the first read or pin of a
//!   lookup's hits counts and moves all that are still there. A hit that is not read within
//!   [`HELD_FOR`] loses its count when its worker next takes the lock ([`super::held`]); reading it
//!   then takes the lock once more.
//! - *Ends of reads.* They take no turn of their own: the worker lowers these counts when it next
//!   takes the lock, at its tick, or when it owes many.
//! - *Publishing.* It looks for a block of the same hash without the lock too, and takes the lock
//!   to index the new one, or to move one that is there.
//! - *Victims.* Space belongs to the host that owns the chunk, so a host skips other hosts' blocks
//!   in the list. If its own blocks have other sizes, a whole chunk leaves when all its blocks are
//!   older.
//! - *Payload.* GPUs read it past the caches there; processors read it here, so each read drops its
//!   cached lines. It is written before the lock is taken to index the block.
//! - *Deaths.* A death under the lock is repaired as under any lock: index and list are rebuilt
//!   from the readable blocks. Counts of a dead reader stay raised, because their owner is unknown.
//!   The next worker that joins clears them if no other worker lives.

use crate::index::held::{Use, use_of};
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

    /// Finds the blocks of a prompt, in order, up to the first miss. Takes no lock and changes
    /// nothing in the region.
    pub fn lookup_plainly(&self, hashes: &[BlockHash]) -> Vec<Hit> {
        let mut hits = Vec::with_capacity(hashes.len());
        let found = |block, descriptor: &_| hits.push(Hit::of(block, descriptor));
        if self.region.is_coherent() {
            self.find_all(hashes, found)
        } else {
            self.find_all_now(hashes, found)
        }
        self.held().find(&hits);
        hits
    }

    /// Removes the uses that have ended: blocks that left since they were found. The lock keeps the
    /// others.
    fn retain_current(&self, _: &Holds<Shard>, uses: &mut Vec<Use>) {
        let descriptors: Vec<u64> = uses.iter().map(|&(block, _)| self.region.layout.descriptor(block)).collect();
        self.region.fabric.refresh(&descriptors);
        uses.retain(|&(block, generation)| self.region.hit(block).is_some_and(|now| now.generation == generation));
    }

    /// Calls `there` with the number of each hash of which a readable block exists, and marks these
    /// blocks as used.
    pub fn use_those_there(&self, hashes: &[BlockHash], mut there: impl FnMut(usize)) {
        let mut found = Vec::new();
        self.find_each_now(hashes, |at, one| {
            found.extend(one.map(|(block, descriptor)| (at, (block, descriptor.generation()))));
            true
        });
        if found.is_empty() {
            return;
        }
        let Ok(mut list) = self.lock_list() else { return };
        let mut uses = found.iter().map(|&(_, one)| one).collect();
        self.retain_current(list.shard(), &mut uses);
        list.fetch_around(uses.iter().map(|&(block, _)| member_of(block)));
        uses.iter().rev().for_each(|&(block, _)| list.set_newest(block));
        drop(list);
        found.iter().filter(|(_, one)| uses.contains(one)).for_each(|&(at, _)| there(at));
    }

    /// Gives the caller a count of the hit's block, if the block is still there. The first access
    /// of a lookup's hits counts all of them and moves them in the list.
    pub fn take_count(&self, hit: &Hit) -> bool {
        {
            let mut held = self.held();
            if !held.is_found(hit) && held.take(hit) {
                return true;
            }
        }
        let Ok(mut list) = self.lock_list() else { return false };
        let found = self.held().take_found(hit);
        // Another thread may have counted the lookup's hits meanwhile.
        if found.is_none() && self.held().take(hit) {
            return true;
        }
        let moves = found.is_some();
        let mut uses = found.unwrap_or_else(|| vec![use_of(hit)]);
        self.retain_current(list.shard(), &mut uses);
        if moves {
            list.fetch_around(uses.iter().map(|&(block, _)| member_of(block)));
        }
        // In reverse, so that the head of a prompt is evicted after its tail.
        for &(block, _) in uses.iter().rev() {
            list.raise(block);
            if moves {
                list.set_newest(block);
            }
        }
        drop(list);
        let own = uses.iter().position(|&one| one == use_of(hit));
        if let Some(at) = own {
            uses.swap_remove(at);
        }
        if !uses.is_empty() {
            let until = self.region.area.now() + HELD_FOR;
            self.held().add(&uses, until);
        }
        own.is_some()
    }

    /// Ends a use of a block. The worker lowers the count when it next takes the lock.
    pub fn give_count(&self, hit: &Hit) {
        let many = self.held().owe(hit);
        if many {
            self.give_owed_counts();
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

#[cfg(test)]
mod tests {
    use crate::region::config::{AttachOptions, Design, PoolConfig};
    use crate::region::superblock::Superblock;
    use crate::{NamespaceRecord, NewBlock, Pool, Publish, ReadOutcome};
    use cenote_base::{HashSeed, HostId};
    use cenote_mem::{Fabric, Flush, Flushed, MapOptions, Mapping, Offset, RegionSource};
    use std::sync::Arc;
    use std::time::Duration;

    const BLOCK_BYTES: u64 = 4 << 10;

    /// Hosts 0 and 1, which soon give up on a busy lock. A free one they take without a wait.
    fn two_hosts() -> [Pool<Arc<Flushed>>; 2] {
        let config = PoolConfig {
            chunk_bytes: 64 << 10,
            min_block_bytes: BLOCK_BYTES,
            max_hosts: 2,
            design: Design::Plain,
            ..PoolConfig::new(HashSeed([2; 32]), [2; 16])
        };
        let mapping = Mapping::create(&RegionSource::Anon, 2 << 20, 0o600, &MapOptions::default()).expect("memory");
        let fabric = Arc::new(Flushed::new(mapping, Flush::available()[0]).expect("it is available"));
        Superblock::format(&fabric, &config).expect("the configuration fits");
        [0, 1].map(|host| {
            let named = AttachOptions::named("test");
            let lock_timeout = Duration::from_millis(50);
            let options = AttachOptions { private: true, host: HostId(host), lock_timeout, ..named };
            Pool::attach(Arc::clone(&fabric), &options).expect("each host has its slot")
        })
    }

    #[test]
    fn a_lookup_needs_no_lock_and_changes_nothing_in_the_region() {
        let [owner, other] = two_hosts();
        let record = NamespaceRecord {
            fingerprint: [1; 32],
            label: "model".to_owned(),
            block_bytes: BLOCK_BYTES,
            block_tokens: 16,
            num_layers: 1,
        };
        let ns = owner.namespace(&record).expect("the table has room");
        let hashes = ns.hasher.chain(&(0..48).collect::<Vec<u32>>(), 16);
        let mut bytes = vec![7; BLOCK_BYTES as usize];
        for (depth, &hash) in (0..).zip(&hashes) {
            assert_eq!(owner.publish(&NewBlock::new(&ns, hash, depth), &[&bytes]), Publish::Published);
        }
        let turn = owner.0.index.lock_list().expect("it is free");
        let fabric = owner.fabric();
        let words = || (0..fabric.len()).step_by(8).map(|at| fabric.load(Offset::new(at))).collect::<Vec<u64>>();
        let before = words();
        let hits = other.lookup(&hashes);
        assert_eq!(hits.len(), 3, "the lookup waited for the lock");
        assert!(words() == before, "the lookup changed the region");
        assert_eq!(other.read(&hits[0], &mut [&mut bytes]), ReadOutcome::Stale, "a count needs the lock");
        drop(turn);
        assert_eq!(other.read(&hits[0], &mut [&mut bytes]), ReadOutcome::Whole);
        assert_eq!(owner.check(false).expect("it checks").pinned, 3, "the first read counts all hits");
    }
}
