//! TraCT's plain design, to be measured beside ours (TraCT §3.4, §4.2; docs/format.md#the-plain-design).
//!
//! One lock between hosts guards what all of them change: index entries, a reference count for each block, and one
//! list of all blocks in the order of their last use. Who looks blocks up takes the lock, finds them, raises their
//! counts and moves them to the new end of the list; who has read one takes the lock again and lowers its count. A
//! block may be evicted while its count is zero, the oldest first. Nothing is believed of a cached line: what the lock
//! guards is refreshed after taking it and published before letting go ([`turn`]).
//!
//! Everything else is shared with our design: chunks, free lists, descriptors, payloads and their checksums, the
//! index's table, objects, the locks themselves. So what differs between the two in a measurement is this file.
//!
//! What the paper leaves open, and what is done here:
//! - *Which count a hit has.* A lookup raises one for every hit; [`Pool::read`] or a dropped pin lowers it. A hit that
//!   nobody reads within [`HELD_FOR`] loses its count in a later turn of its worker ([`held`]); reading it then takes
//!   a turn more.
//! - *Whose block leaves.* Space belongs to the host that owns the chunk, so a host passes over the blocks of others
//!   in the list; where its own have other sizes, a whole chunk leaves, when all in it is older.
//! - *Payload.* GPUs read it past the caches there; processors read it here, so each read drops its cached lines.
//!   It is written before the lock is taken to enter the block.
//! - *Deaths.* The paper tells of none. A death under the lock is repaired as under any lock: index and list are made
//!   anew from what is readable. Counts of a dead reader stay raised, because nobody knows which were its own; they
//!   are cleared by the next worker that joins and finds nobody else alive.

mod held;
mod turn;

pub(crate) use held::Held;

use crate::blocks::{Hit, ReadOutcome};
use crate::check::{CheckReport, finding};
use crate::evict::Room;
use crate::heap::{FREE, PUBLISHED};
use crate::index::Inserted;
use crate::locks::{Intent, Name};
use crate::pool::Inner;
use crate::region::counters::Counter;
use crate::region::layout::SHARDS;
use crate::region::lines::{BlockState, Line, WorkerLine, checksum_key};
use cenote_base::{BlockHash, BlockIndex, fault};
use cenote_mem::host::LockTimeout;
use cenote_mem::{Fabric, HostLocal, Word};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;
use turn::{LIST, Turn, block_of, member_of};

/// How long a hit keeps its count unread.
const HELD_FOR: Duration = Duration::from_secs(1);

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// Takes the lock, and lowers the counts that this worker owes.
    fn turn(&self) -> Result<Turn<'_, F, H>, LockTimeout> {
        self.turn_within(self.lock_timeout)
    }

    fn turn_within(&self, timeout: Duration) -> Result<Turn<'_, F, H>, LockTimeout> {
        let lock = self.lock_within(Name::PLAIN, Intent::ALL, timeout)?;
        let mut turn = Turn::holding(self, lock);
        let now = self.area.now();
        let owed = self.held.lock().expect("nobody panics with it").owed(now);
        turn.fetch(owed.iter().map(|&block| member_of(block)));
        owed.into_iter().for_each(|block| turn.lower(block, 1));
        Ok(turn)
    }

    /// Finds the blocks of a prompt, in order, up to the first that is missing; each hit has a count.
    pub(crate) fn lookup_counted(&self, hashes: &[BlockHash]) -> Vec<Hit> {
        let mut hits = Vec::with_capacity(hashes.len());
        let Ok(mut turn) = self.turn() else { return hits };
        self.find_all_now(hashes, |block, descriptor| hits.push(Hit::of(block, descriptor)));
        turn.fetch_around(hits.iter().map(|hit| member_of(hit.block)));
        // The last first, so that the head of a prompt leaves after its tail.
        for hit in hits.iter().rev() {
            turn.raise(hit.block);
            turn.set_newest(hit.block);
        }
        drop(turn);
        let until = self.area.now() + HELD_FOR;
        self.held.lock().expect("nobody panics with it").add(&hits, until);
        hits
    }

    /// Whether a readable block of this hash is there; if so it counts as used now.
    pub(crate) fn use_if_there(&self, hash: BlockHash) -> bool {
        let Ok(mut turn) = self.turn() else { return false };
        let mut found = None;
        self.find_all_now(&[hash], |block, _| found = Some(block));
        found.into_iter().for_each(|block| turn.set_newest(block));
        found.is_some()
    }

    /// Gives this caller a count of the block that a hit names: one that its lookup raised, or one more if the block
    /// is still there.
    pub(crate) fn take_count(&self, hit: &Hit) -> bool {
        if self.held.lock().expect("nobody panics with it").take(hit) {
            return true;
        }
        let Ok(mut turn) = self.turn() else { return false };
        self.fabric.refresh(&[self.layout.descriptor(hit.block)]);
        let same = self.hit(hit.block).is_some_and(|now| now == *hit);
        if same {
            turn.raise(hit.block);
        }
        same
    }

    /// Gives a count back; without the lock, in a later turn of this worker.
    pub(crate) fn give_count(&self, hit: &Hit) {
        match self.turn() {
            Ok(mut turn) => turn.lower(hit.block, 1),
            Err(_) => self.held.lock().expect("nobody panics with it").owe(hit),
        }
    }

    /// Lowers the counts that this worker owes, if it does.
    pub(crate) fn give_owed_counts(&self) {
        let now = self.area.now();
        let owes = self.held.lock().expect("nobody panics with it").owes(now);
        if owes {
            drop(self.turn());
        }
    }

    /// Lowers all counts of a worker that leaves.
    pub(crate) fn give_all_counts(&self) {
        self.held.lock().expect("nobody panics with it").end();
        self.give_owed_counts();
    }

    /// Copies a payload that a count keeps in its place.
    pub(crate) fn read_counted(&self, hit: &Hit, wanted: u64, parts: &mut [&mut [u8]]) -> ReadOutcome {
        if !self.take_count(hit) {
            return ReadOutcome::Stale;
        }
        self.fabric.refresh_payload(hit.offset, wanted);
        let checksum = self.fabric.read_payload(hit.offset, parts, checksum_key(hit.hash, hit.generation));
        fault::point("read.copied");
        self.give_count(hit);
        if checksum == hit.checksum { ReadOutcome::Whole } else { ReadOutcome::Damaged }
    }

    /// Enters a readable block in index and list, unless its hash is there already.
    pub(crate) fn insert_plain(&self, hash: BlockHash, block: BlockIndex) -> Result<Inserted, LockTimeout> {
        let mut turn = self.turn()?;
        let outcome = self.insert_locked(hash, block);
        if outcome == Inserted::New {
            turn.set_newest(block);
        }
        Ok(outcome)
    }

    /// Removes a block from index and list; returns whether it is gone. One with a count stays.
    pub(crate) fn unlink_plain(&self, hash: BlockHash, block: BlockIndex, patience: &mut Duration) -> bool {
        let Ok(mut turn) = self.turn_within(*patience) else {
            *patience = Duration::ZERO;
            return false;
        };
        if turn.count(block) > 0 {
            return false;
        }
        self.unlink_locked(hash, block);
        turn.remove(block);
        true
    }

    /// Evicts up to `want` blocks of this host, the oldest first; returns how many left. The caller holds the heap
    /// lock.
    pub(crate) fn evict_oldest(&self, want: usize) -> usize {
        let Ok(mut turn) = self.turn() else { return 0 };
        let mut victims = Vec::new();
        let mut at = LIST;
        while victims.len() < want
            && let Some(newer) = turn.newer(at)
        {
            at = newer;
            let block = block_of(at);
            if self.is_ours(block) && self.may_leave(&mut turn, block) {
                victims.push(block);
            }
        }
        self.leave(turn, &victims)
    }

    /// Makes room for `class`: its oldest block leaves, or all of a chunk of another class in which everything is
    /// older. Without a class any chunk will do. The caller holds the heap lock.
    pub(crate) fn make_plain_room(&self, class: Option<usize>) -> Room {
        let wanted = class.map(|class| class as u32 + 1);
        let of_others = |chunk: &u64| ![0, wanted.unwrap_or(0)].contains(&self.chunk_class(*chunk).load(Relaxed));
        if let Some(chunk) = (0..self.layout.num_chunks).filter(of_others).find(|&chunk| self.chunk_is_empty(chunk)) {
            self.release_chunk(chunk);
            return Room::Made;
        }
        let Ok(mut turn) = self.turn() else { return Room::None };
        let mut older: BTreeMap<u64, usize> = BTreeMap::new();
        let mut at = LIST;
        while let Some(newer) = turn.newer(at) {
            at = newer;
            let block = block_of(at);
            if !self.is_ours(block) {
                continue;
            }
            let chunk = self.layout.chunk_of(block);
            if !of_others(&chunk) {
                if self.may_leave(&mut turn, block) {
                    return if self.leave(turn, &[block]) > 0 { Room::Made } else { Room::None };
                }
                continue;
            }
            let count = older.entry(chunk).or_default();
            *count += 1;
            if let Some(blocks) = self.all_may_leave(&mut turn, chunk).filter(|blocks| blocks.len() == *count) {
                self.leave(turn, &blocks);
                self.release_chunk(chunk);
                return Room::Made;
            }
        }
        Room::None
    }

    /// Whether a block is published in a chunk of this host. What owner words say of other chunks is of a time when it
    /// had them.
    fn is_ours(&self, block: BlockIndex) -> bool {
        self.chunk_class(self.layout.chunk_of(block)).load(Relaxed) != 0
            && self.slot_owner(block).load(Acquire) == PUBLISHED
    }

    fn may_leave(&self, turn: &mut Turn<'_, F, H>, block: BlockIndex) -> bool {
        let counted = turn.count(block) > 0;
        self.counters().add(Counter::EvictionsPinned, u64::from(counted));
        !counted
    }

    /// The blocks of a chunk, if the chunk holds nothing else and none of them has a count.
    fn all_may_leave(&self, turn: &mut Turn<'_, F, H>, chunk: u64) -> Option<Vec<BlockIndex>> {
        let mut blocks = Vec::new();
        for block in self.slots_of(chunk) {
            match self.slot_owner(block).load(Acquire) {
                FREE => {}
                PUBLISHED if turn.count(block) == 0 => blocks.push(block),
                _ => return None,
            }
        }
        Some(blocks)
    }

    /// Evicts blocks that may leave, and ends the turn; returns how many slots became free.
    fn leave(&self, mut turn: Turn<'_, F, H>, blocks: &[BlockIndex]) -> usize {
        for &block in blocks {
            let descriptor = self.read_descriptor(block);
            self.tell_removed(block);
            // Who finds it by its hit from here on finds it gone.
            self.write_free(block);
            if let Some(descriptor) = descriptor {
                self.unlink_locked(descriptor.block_hash(), block);
            }
            turn.remove(block);
        }
        drop(turn);
        fault::point("evict.unlinked");
        blocks.iter().for_each(|&block| self.push_free(block));
        self.counters().add(Counter::Evicted, blocks.len() as u64);
        fault::point("evict.freed");
        blocks.len()
    }

    /// Blocks that have a count, of whatever host.
    pub(crate) fn counted_blocks(&self) -> BTreeSet<BlockIndex> {
        let blocks = (0..self.layout.num_descriptors()).map(BlockIndex);
        self.refresh_range(self.layout.plain(1), self.layout.plain(self.layout.num_descriptors() + 1));
        blocks.filter(|&block| turn::stored_count(self, block) > 0).collect()
    }

    /// Makes index and list anew from the blocks that are readable. The caller holds the lock.
    pub(crate) fn repair_plain(&self) {
        for shard in 0..SHARDS {
            self.repair_shard(shard);
        }
        Turn::under_lock(self).relink();
    }

    /// Makes the list anew if it is not the one that it must be. The caller holds the heap lock.
    pub(crate) fn mend_list(&self) -> Result<(), LockTimeout> {
        let mut report = CheckReport::default();
        self.check_list(&mut report)?;
        if !report.is_clean() {
            let _lock = self.lock_patiently(Name::PLAIN)?;
            Turn::under_lock(self).relink();
        }
        Ok(())
    }

    /// Clears all counts if the worker that joins in `slot` finds no other alive: they are those of the dead.
    pub(crate) fn forget_counts_of_the_dead(&self, slot: u64) {
        let Ok(mut turn) = self.turn() else { return };
        // Whoever joined before this turn shows in its line, and whoever joins later has no count yet.
        if !(0..self.layout.max_hosts).any(|host| self.has_worker_but(host, slot)) {
            self.counted_blocks().into_iter().for_each(|block| turn.lower(block, u64::MAX));
        }
    }

    fn has_worker_but(&self, host: u64, own: u64) -> bool {
        let Some(line) = self.read_host(host) else { return false };
        let mut slots = 0..line.workers_high.min(self.layout.workers_per_host);
        if host == self.host {
            return slots.any(|slot| slot != own && self.area.slot_alive(slot as u32));
        }
        !self.is_dead(host, line.incarnation)
            && slots.any(|slot| {
                let at = self.layout.worker(host, slot);
                let words = self.fresh_line(at);
                words != [0; 8] && WorkerLine::open(words, at, self.salt).is_none_or(|line| line.epoch & 1 == 1)
            })
    }

    /// Compares the list with the blocks that it must have. The caller holds the heap lock.
    pub(crate) fn check_list(&self, report: &mut CheckReport) -> Result<(), LockTimeout> {
        let mut turn = self.turn_within(self.patience())?;
        let listed = turn.all();
        let repair = "`cenote pool gc` makes the list anew";
        let mut damage = |what: String, fact: &str| {
            report.damage.push(finding(what, fact, "blocks may stay that should leave", repair));
        };
        if turn.is_broken() {
            damage("the list of the plain design".to_owned(), "its links do not agree");
        }
        for &block in &listed {
            self.fabric.refresh(&[self.layout.descriptor(block)]);
            if self.read_descriptor(block).and_then(|found| found.block_state()) != Some(BlockState::Ready) {
                damage(format!("block {block}"), "it is listed as a block that may leave, and is none");
            }
        }
        let owned = (0..self.layout.num_chunks).filter(|&chunk| self.chunk_class(chunk).load(Relaxed) != 0);
        let published = owned
            .flat_map(|chunk| self.slots_of(chunk))
            .filter(|&block| self.slot_owner(block).load(Acquire) == PUBLISHED);
        for block in published.filter(|block| !listed.contains(block)) {
            let fact = "it is published but not in the list of those that may leave";
            report.leaks.push(finding(format!("block {block}"), fact, "it can be found but never leaves", repair));
        }
        Ok(())
    }
}
