//! Making room: blocks leave in the order that the eviction policy names.
//!
//! The owner host marks a block `EVICTING`, publishes the mark, and only then looks for pins; a reader
//! stores its pin, publishes it, and only then looks at the state. One of the two sees the other.

use crate::heap::{DRAINING, PUBLISHED};
use crate::history::Event;
use crate::namespaces::Namespace;
use crate::pool::{Inner, Pool};
use crate::region::counters::Counter;
use crate::region::lines::{BlockState, Descriptor, hazard_block};
use crate::strays::Fill;
use cenote_base::{BlockIndex, fault};
use cenote_mem::{Fabric, HostLocal, Word};
use cenote_policy::{Candidate, EvictionPolicy};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

/// What making room came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Slots or a chunk became free; try again.
    Made,
    /// Nothing may leave.
    None,
}

/// One eviction clears this part of the published blocks, so that the walk over all of them is paid rarely.
pub(crate) const BATCH_SHARE: usize = 64;

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// Evicts for `class`, from chunks that may be written so: from its own blocks or, where those are younger or none, by taking the chunk that
    /// was idle longest from another class. The caller holds the heap lock.
    pub(crate) fn make_room(&self, class: usize, fill: Fill) -> Room {
        // The plain design evicts one by one, and must not look at every slot each time.
        let retry = || self.retry_draining() > 0;
        if self.adopt_chunks() > 0 || !self.is_plain() && retry() {
            return Room::Made;
        }
        if self.is_plain() {
            return match self.make_plain_room(Some(class)) {
                Room::None if retry() => Room::Made,
                room => room,
            };
        }
        let pinned = self.pinned_blocks();
        let mut own = Vec::new();
        let mut idlest_chunk: Option<(u64, u64)> = None;
        for chunk in 0..self.layout.num_chunks {
            let Some(chunk_class) = self.chunk_class(chunk).load(Relaxed).checked_sub(1) else { continue };
            if !self.takes(chunk, fill) {
                continue;
            }
            if chunk_class as usize == class {
                own.extend(self.candidates(chunk));
            } else if let Some(idle) = self.chunk_idle(chunk, &pinned) {
                idlest_chunk = idlest_chunk.max(Some((idle, chunk)));
            }
        }
        let want = (own.len() / BATCH_SHARE).max(1);
        let victims = self.victims(&own, want);
        let own_idle = victims.first().map(|&block| self.idle(block));
        if let Some((idle, chunk)) = idlest_chunk
            && own_idle.is_none_or(|own| idle > own)
        {
            let blocks: Vec<BlockIndex> = self.candidates(chunk).map(|c| c.block).collect();
            if self.evict_blocks(&blocks) == blocks.len() {
                self.release_chunk(chunk);
                return Room::Made;
            }
            // Somebody pinned one of them just now; the own blocks are next.
        }
        if self.evict_blocks(&victims) > 0 { Room::Made } else { self.evict_unpinned(&own) }
    }

    /// Empties the chunk that was idle longest and gives it back to the region. The caller holds the heap lock.
    pub(crate) fn yield_chunk(&self) -> bool {
        if self.is_plain() {
            return self.make_plain_room(None) == Room::Made;
        }
        self.retry_draining();
        let pinned = self.pinned_blocks();
        let owned = (0..self.layout.num_chunks).filter(|&chunk| self.chunk_class(chunk).load(Relaxed) != 0);
        let idlest = owned.filter_map(|chunk| Some((self.chunk_idle(chunk, &pinned)?, chunk))).max();
        let Some((_, chunk)) = idlest else { return false };
        let blocks: Vec<BlockIndex> = self.candidates(chunk).map(|candidate| candidate.block).collect();
        if self.evict_blocks(&blocks) < blocks.len() {
            return false;
        }
        self.release_chunk(chunk);
        true
    }

    /// The victims of choice were pinned: whatever else may leave.
    fn evict_unpinned(&self, own: &[Candidate]) -> Room {
        let pinned = self.pinned_blocks();
        let free_to_go: Vec<BlockIndex> =
            own.iter().map(|c| c.block).filter(|block| !pinned.contains(block)).take(1).collect();
        if self.evict_blocks(&free_to_go) > 0 { Room::Made } else { Room::None }
    }

    pub(crate) fn candidates(&self, chunk: u64) -> impl Iterator<Item = Candidate> + '_ {
        self.slots_of(chunk).filter(|&block| self.slot_owner(block).load(Acquire) == PUBLISHED).map(|block| {
            let descriptor = self.read_descriptor(block);
            Candidate {
                block,
                word: self.policy_word(block).load(Relaxed),
                depth: descriptor.as_ref().map_or(u32::MAX, Descriptor::depth),
                key: descriptor.map_or(0, |d| d.hash[0]),
            }
        })
    }

    pub(crate) fn policy(&self) -> &'static dyn EvictionPolicy {
        self.superblock.config.eviction.policy()
    }

    pub(crate) fn victims(&self, candidates: &[Candidate], want: usize) -> Vec<BlockIndex> {
        let clock = self.access_clock().load(Relaxed);
        let choice = self.policy().victims(clock, self.policy_state(), candidates, want);
        for rewrite in choice.rewrites {
            // A hit that came meanwhile is kept.
            let word = self.policy_word(rewrite.block);
            let _ = word.compare_exchange(rewrite.from, rewrite.to, Relaxed, Relaxed);
        }
        choice.victims
    }

    /// Lookups since a block was last touched.
    fn idle(&self, block: BlockIndex) -> u64 {
        self.policy().idle(self.policy_word(block).load(Relaxed), self.access_clock().load(Relaxed))
    }

    /// Lookups since anything in a chunk was last touched, if all it holds could leave.
    pub(crate) fn chunk_idle(&self, chunk: u64, pinned: &BTreeSet<BlockIndex>) -> Option<u64> {
        self.read_chunk(chunk)?;
        let mut idle = u64::MAX;
        for block in self.slots_of(chunk) {
            match self.slot_owner(block).load(Acquire) {
                PUBLISHED if pinned.contains(&block) => return None,
                PUBLISHED => idle = idle.min(self.idle(block)),
                crate::heap::FREE => {}
                _ => return None,
            }
        }
        Some(idle)
    }

    /// Evicts published blocks of this host; returns how many slots became free. The caller holds the heap lock.
    pub(crate) fn evict_blocks(&self, blocks: &[BlockIndex]) -> usize {
        let kept = Cell::new(0);
        let freed = self.take_back(blocks, |block| {
            self.keep(block);
            kept.set(kept.get() + 1);
        });
        self.counters().add(Counter::EvictionsPinned, kept.get());
        self.counters().add(Counter::Evicted, freed as u64);
        if !blocks.is_empty() {
            self.record(Event::Evicted, freed as u64, kept.get());
        }
        freed
    }

    /// Takes back a readable block that has no business to be found, though somebody may have: it leaves when the last
    /// pin does. The caller holds the heap lock.
    pub(crate) fn withdraw(&self, block: BlockIndex) {
        self.take_back(&[block], |block| self.drain(block));
    }

    /// A block that nobody may read any more and somebody still pins leaves when he lets go.
    fn drain(&self, block: BlockIndex) {
        self.tell_removed(block);
        self.slot_owner(block).store(DRAINING, Release);
    }

    /// Marks, looks for pins, and frees what is not pinned; returns how many slots became free.
    pub(crate) fn take_back(&self, blocks: &[BlockIndex], pinned_one: impl Fn(BlockIndex)) -> usize {
        if blocks.is_empty() {
            return 0;
        }
        for &block in blocks {
            // A descriptor that does not hold any more has nothing to mark: readers miss it already.
            if let Some(descriptor) = self.read_descriptor(block) {
                let at = self.layout.descriptor(block);
                self.write(at, descriptor.with_state(BlockState::Evicting));
            }
        }
        self.fabric.fence();
        fault::point("evict.marked");
        let pinned = self.pinned_blocks();
        let mut freed = 0;
        let mut patience = self.lock_timeout;
        for &block in blocks {
            if pinned.contains(&block) {
                pinned_one(block);
            } else if self.finish_eviction(block, &mut patience) {
                freed += 1;
            }
        }
        freed
    }

    /// A pinned block stays readable: nobody has touched its payload since the mark.
    pub(crate) fn keep(&self, block: BlockIndex) {
        if let Some(descriptor) = self.read_descriptor(block) {
            let at = self.layout.descriptor(block);
            self.write(at, descriptor.with_state(BlockState::Ready));
            // Who walked meanwhile took it for leaving.
            self.tell_stored(block, &descriptor, self.names_of(block));
            self.slot_owner(block).store(PUBLISHED, Release);
        }
    }

    /// Takes a block out of the index and frees it.
    pub(crate) fn finish_eviction(&self, block: BlockIndex, patience: &mut Duration) -> bool {
        // It is marked, and nobody ever makes it readable again. Taking the shard's lock takes this along.
        self.tell_removed(block);
        if let Some(descriptor) = self.read_descriptor(block)
            && !self.unlink(descriptor.block_hash(), block, patience)
        {
            // The block leaves another time.
            self.slot_owner(block).store(DRAINING, Release);
            return false;
        }
        fault::point("evict.unlinked");
        self.write_free(block);
        self.push_free(block);
        fault::point("evict.freed");
        true
    }

    /// Frees blocks whose eviction waited for a pin or a lock; returns how many became free.
    pub(crate) fn retry_draining(&self) -> usize {
        let draining: Vec<BlockIndex> = (0_u64..)
            .zip(self.slot_owners())
            .filter(|(_, owner)| owner.load(Relaxed) == DRAINING)
            .map(|(block, _)| BlockIndex(block))
            .collect();
        // Marked once more: who marked them may have died before others could see it.
        let freed = self.take_back(&draining, |_| ());
        self.counters().add(Counter::Evicted, freed as u64);
        freed
    }

    /// Every block that some worker pins. Hazard lines of slots never used are not read.
    pub(crate) fn pinned_blocks(&self) -> BTreeSet<BlockIndex> {
        if self.is_plain() {
            return self.counted_blocks();
        }
        let mut pinned = BTreeSet::new();
        if fault::sabotaged("evict.scan-skipped") {
            return pinned;
        }
        let others = (0..self.layout.max_hosts).filter(|&host| host != self.host);
        for host in std::iter::once(self.host).chain(others) {
            let Some(line) = self.read_host(host) else { continue };
            // Nobody uses what the dead pinned.
            if host != self.host && self.is_dead(host, line.incarnation) {
                continue;
            }
            for slot in 0..line.workers_high.min(self.layout.workers_per_host) {
                self.add_pins(host, slot, &mut pinned);
            }
        }
        pinned
    }

    /// Adds the blocks that a worker pins.
    pub(crate) fn add_pins(&self, host: u64, slot: u64, pinned: &mut BTreeSet<BlockIndex>) {
        let lines: Vec<u64> =
            (0..self.layout.hazard_lines_per_worker).map(|index| self.layout.hazard(host, slot, index)).collect();
        if host != self.host {
            self.fabric.refresh(&lines);
        }
        for at in lines {
            let words = self.fabric.load_line(at);
            if words[7] == 0 {
                // Lines come into use in order.
                break;
            }
            pinned.extend(words[..7].iter().filter_map(|&word| hazard_block(word)));
        }
    }
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Evicts up to `count` of this host's blocks, in the order of the region's policy; returns how many left.
    pub fn evict(&self, count: usize) -> usize {
        let inner = &*self.0;
        let Ok(_heap) = inner.lock(crate::locks::Name::Heap) else { return 0 };
        if inner.is_plain() {
            return inner.evict_oldest(count);
        }
        let all: Vec<Candidate> = (0..inner.layout.num_chunks)
            .filter(|&chunk| inner.chunk_class(chunk).load(Relaxed) != 0)
            .flat_map(|chunk| inner.candidates(chunk))
            .collect();
        let victims = inner.victims(&all, count);
        inner.evict_blocks(&victims)
    }

    /// Takes back all blocks of a namespace that this host has, because what they say of its model holds no longer.
    /// Nobody finds them from here on; memory of those that somebody has pinned is free when he lets go. Returns how many
    /// slots are free now. ([`crate::Design::Plain`] does nothing.)
    pub fn forget(&self, namespace: &Namespace) -> usize {
        let inner = &*self.0;
        let Ok(_heap) = inner.lock(crate::locks::Name::Heap) else { return 0 };
        if inner.is_plain() {
            return 0;
        }
        let charged = u32::from(namespace.id.0) + 1;
        let all: Vec<BlockIndex> = (0..inner.layout.num_chunks)
            .filter(|&chunk| inner.chunk_class(chunk).load(Relaxed) != 0)
            .flat_map(|chunk| inner.slots_of(chunk))
            .filter(|&block| inner.slot_owner(block).load(Acquire) == PUBLISHED)
            .filter(|&block| inner.slot_namespace(block).load(Relaxed) == charged)
            .collect();
        let freed = inner.take_back(&all, |block| inner.drain(block));
        inner.counters().add(Counter::Evicted, freed as u64);
        inner.record(Event::Evicted, freed as u64, (all.len() - freed) as u64);
        freed
    }
}
