//! Space: chunks from the region, block slots from chunks (TraCT §3.5).
//!
//! A chunk belongs to one host and is carved into slots of one size. Which slots are free is known in
//! host-local memory only, so reserving and freeing touch no shared line, and a process that dies with
//! reservations leaves nothing in the region. All of it can be rebuilt from chunk lines and descriptors.
//!
//! Each block slot has an owner word: [`FREE`], `worker slot + 1` while reserved, or one of the marks below.
//! A reservation belongs to its worker alone; every other change is made under the heap lock.

use crate::evict::Room;
use crate::history::Event;
use crate::pool::Inner;
use crate::region::counters::Counter;
use crate::region::host_layout::CLASSES;
use crate::region::lines::{BlockState, ChunkLine, Descriptor, Line};
use crate::strays::Fill;
use cenote_base::{BlockIndex, fault};
use cenote_mem::{Fabric, HostLocal, LINE, Word};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// In the free list of its class.
pub(crate) const FREE: u32 = 0;
/// Readable; eviction may take it.
pub(crate) const PUBLISHED: u32 = u32::MAX;
/// Marked as leaving, but still pinned.
pub(crate) const DRAINING: u32 = u32::MAX - 1;
/// Holds an object.
pub(crate) const OBJECT: u32 = u32::MAX - 2;

/// Why no slot was to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Nothing may leave, or the lock was busy for too long.
    NoRoom,
    /// The namespace has all that it may have, and what this host has of it may not leave or would not suffice.
    OverQuota,
}

/// Where a block's payload goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub block: BlockIndex,
    /// At least as many as were asked for.
    pub bytes: u64,
}

/// Room made for one slot size may be taken by chunks that turn out damaged; a reservation does not chase
/// it for ever.
const RESERVE_ATTEMPTS: u32 = 16;

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// Marks a slot free in the region. Readers are kept off already; but the line must not stay behind in this
    /// host's caches, from where it could overwrite the line of a host that takes the chunk over.
    pub(crate) fn write_free(&self, block: BlockIndex) {
        let free = Descriptor {
            state: Descriptor::state_word(BlockState::Free, self.raw_generation(block)),
            place: Descriptor::pack_place(0, self.layout.data()),
            ..Descriptor::default()
        };
        let at = self.layout.descriptor(block);
        self.write(at, free);
    }

    /// Reserves a slot of `slot_bytes`, or a little more, for this worker and charges it to a namespace, making room if it
    /// must.
    pub(crate) fn reserve(&self, slot_bytes: u64, namespace: Option<u16>, fill: Fill) -> Result<Slot, Refusal> {
        if !self.layout.is_slot(slot_bytes) {
            return Err(Refusal::NoRoom);
        }
        let _heap = self.lock(crate::locks::Name::Heap).map_err(|_| Refusal::NoRoom)?;
        if !namespace.is_none_or(|namespace| self.keeps_quota(namespace, slot_bytes)) {
            return Err(Refusal::OverQuota);
        }
        let slot = self.take_slot(slot_bytes, fill).ok_or(Refusal::NoRoom)?;
        if let Some(namespace) = namespace {
            self.charge(slot.block, namespace, slot.bytes);
        }
        Ok(slot)
    }

    fn take_slot(&self, slot_bytes: u64, fill: Fill) -> Option<Slot> {
        for _ in 0..RESERVE_ATTEMPTS {
            let slot = self.take_free_slot(slot_bytes, fill);
            if slot.is_some() {
                return slot;
            }
            if self.make_room(self.class_of(slot_bytes)?, fill) == Room::None {
                // Hosts that have more will see it when this one ticks.
                self.wants_chunk().store(1, Relaxed);
                return None;
            }
        }
        None
    }

    /// Reserves a slot for this worker if there is a free one or a free chunk, or else a free one that is somewhat larger:
    /// where chunks are few, not every size can have its own. The caller holds the heap lock.
    pub(crate) fn take_free_slot(&self, slot_bytes: u64, fill: Fill) -> Option<Slot> {
        let class = self.class_of(slot_bytes)?;
        let claimed = || {
            let claimed = self.claim_chunk(class, fill);
            if claimed {
                self.wants_chunk().store(0, Relaxed);
            }
            claimed.then(|| self.pop_free_for(class, fill)).flatten()
        };
        let exact = self.pop_free_for(class, fill).or_else(claimed).map(|block| Slot { block, bytes: slot_bytes });
        let slot = exact.or_else(|| self.pop_larger(slot_bytes, fill))?;
        let owner = self.owner_word();
        self.slot_owner(slot.block).store(owner, Release);
        Some(slot)
    }

    /// Of the slots that are larger by no more than a quarter, a free one of the smallest size.
    fn pop_larger(&self, slot_bytes: u64, fill: Fill) -> Option<Slot> {
        let fits = |&(bytes, class): &(u64, usize)| {
            bytes > slot_bytes && bytes - slot_bytes <= slot_bytes / 4 && self.class_head(class).load(Relaxed) != 0
        };
        let sizes = (0..CLASSES).map(|class| (self.class_bytes(class).load(Relaxed), class));
        let (bytes, class) = sizes.filter(fits).min().filter(|_| !self.is_plain())?;
        self.pop_free_for(class, fill).map(|block| Slot { block, bytes })
    }

    /// Whether there seems to be a free slot for so many bytes.
    pub(crate) fn has_free_slot(&self, slot_bytes: u64) -> bool {
        let fits = |bytes: u64| bytes >= slot_bytes && bytes - slot_bytes <= slot_bytes / 4;
        (0..CLASSES)
            .any(|class| fits(self.class_bytes(class).load(Relaxed)) && self.class_head(class).load(Relaxed) != 0)
    }

    /// Whether the region seems to have a chunk that nobody has.
    pub(crate) fn has_free_chunk(&self) -> bool {
        (u64::from(self.chunk_hint().load(Relaxed))..self.layout.num_chunks)
            .any(|chunk| self.free_chunk(chunk).is_some())
    }

    /// The line of a chunk that no host has; `None`: some host does, or the line does not hold.
    pub(crate) fn free_chunk(&self, chunk: u64) -> Option<ChunkLine> {
        let at = self.layout.chunk(chunk);
        match self.fabric.load_line(at) {
            [0, 0, 0, 0, 0, 0, 0, 0] => Some(ChunkLine::default()),
            words => ChunkLine::open(words, at, self.salt).filter(|line| line.owner == 0),
        }
    }

    /// Gives a slot back. The caller holds the heap lock; the slot's descriptor says free.
    pub(crate) fn push_free(&self, block: BlockIndex) {
        let class = self.chunk_class(self.layout.chunk_of(block)).load(Relaxed);
        let Some(class) = class.checked_sub(1) else { return };
        let slot_bytes = self.class_bytes(class as usize).load(Relaxed);
        if block.0 % self.layout.descriptors_per_chunk >= self.layout.slots(slot_bytes) {
            // Only a damaged region names a slot that the chunk does not have. Its payload would lie behind the chunk.
            self.counters().add(Counter::Damaged, 1);
            self.slot_owner(block).store(FREE, Release);
            return;
        }
        self.discharge(block, slot_bytes);
        let head = self.class_head(class as usize);
        self.free_link(block).store(head.load(Relaxed), Relaxed);
        self.slot_owner(block).store(FREE, Release);
        head.store(u32::try_from(block.0 + 1).expect("blocks fit 32 bits on a host"), Release);
    }

    /// Whether what this worker reserved in a life of its host is still its own. Another host may have taken the slot
    /// over, and published in it, since somebody declared that life dead; this host may not have noticed yet.
    pub(crate) fn still_reserved(&self, block: BlockIndex, life: u64) -> bool {
        !self.area.is_inherited()
            && self.incarnation() == life
            && u64::from(self.slot_owner(block).load(Acquire)) == self.slot() + 1
            && !self.is_dead(self.host, life)
    }

    /// Gives back a slot that this worker reserved in a life of its host, unless it has lost the slot since.
    pub(crate) fn unreserve_in(&self, block: BlockIndex, life: u64) {
        if self.still_reserved(block, life) {
            self.unreserve(block);
        }
    }

    /// Gives back a slot that this worker reserved and does not use after all.
    pub(crate) fn unreserve(&self, block: BlockIndex) {
        self.write_free(block);
        // Without the lock the slot stays reserved, and is given back when this worker leaves.
        if let Ok(_heap) = self.lock(crate::locks::Name::Heap) {
            self.push_free(block);
        }
    }

    fn pop_free(&self, class: usize) -> Option<BlockIndex> {
        let head = self.class_head(class);
        let block = BlockIndex(u64::from(head.load(Relaxed).checked_sub(1)?));
        if self.slot_owner(block).load(Acquire) != FREE {
            // A list that leads to a taken slot is wrong from here on. What it loses, `gc` finds again; what it
            // would hand out belongs to somebody.
            self.counters().add(Counter::Damaged, 1);
            head.store(0, Release);
            return None;
        }
        head.store(self.free_link(block).load(Relaxed), Release);
        Some(block)
    }

    /// As [`Inner::pop_free`], the first that may be written so.
    fn pop_free_for(&self, class: usize, fill: Fill) -> Option<BlockIndex> {
        let mut passed = Vec::new();
        let mut refused = None;
        let mut found = None;
        // No list is longer than there are blocks; one that is goes in a circle.
        for _ in 0..self.layout.num_descriptors() {
            let Some(block) = self.pop_free(class) else { break };
            let chunk = self.layout.chunk_of(block);
            if refused != Some(chunk) && self.takes(chunk, fill) {
                found = Some(block);
                break;
            }
            refused = Some(chunk);
            passed.push(block);
        }
        for block in passed.into_iter().rev() {
            self.push_free(block);
        }
        found
    }

    /// The class of this slot size, made if it is new and there is room for one more.
    pub(crate) fn class_of(&self, slot_bytes: u64) -> Option<usize> {
        // Zero marks an unused class, and no other size that a chunk cannot have may take one.
        if !self.layout.is_slot(slot_bytes) {
            return None;
        }
        // They are made in order, and only all together forgotten.
        for class in 0..CLASSES {
            match self.class_bytes(class).load(Relaxed) {
                bytes if bytes == slot_bytes => return Some(class),
                0 => {
                    self.class_bytes(class).store(slot_bytes, Relaxed);
                    return Some(class);
                }
                _ => {}
            }
        }
        None
    }

    /// Takes a free chunk that may be written so from the region for `class`.
    fn claim_chunk(&self, class: usize, fill: Fill) -> bool {
        let hint = self.chunk_hint();
        if u64::from(hint.load(Relaxed)) >= self.layout.num_chunks {
            return false;
        }
        let Ok(_chunks) = self.lock(crate::locks::Name::Chunks) else { return false };
        let mut passed = None;
        for chunk in u64::from(hint.load(Relaxed))..self.layout.num_chunks {
            let Some(free) = self.free_chunk(chunk) else { continue };
            if fill == Fill::InPlace && self.has_strays(&free) {
                passed.get_or_insert(chunk);
                continue;
            }
            let line = ChunkLine {
                owner: self.host + 1,
                incarnation: self.incarnation(),
                slot_bytes: self.class_bytes(class).load(Relaxed),
                generation: free.generation.wrapping_add(1),
                ..free
            };
            self.put_chunk(chunk, &line);
            fault::point("chunk.claimed");
            self.adopt_chunk(chunk, class, &line);
            self.record(Event::ChunkTaken, chunk, line.slot_bytes);
            hint.store(u32::try_from(passed.unwrap_or(chunk + 1)).unwrap_or(u32::MAX), Relaxed);
            return true;
        }
        hint.store(u32::try_from(passed.unwrap_or(self.layout.num_chunks)).unwrap_or(u32::MAX), Relaxed);
        false
    }

    /// Mends chunk lines that were torn when their writer died with the chunk lock. A chunk that was just taken or given back
    /// holds no block, and is free. One with blocks was being passed on, to another host or to a new life of its own. The
    /// caller holds the lock.
    pub(crate) fn repair_chunks(&self) {
        for chunk in 0..self.layout.num_chunks {
            let at = self.layout.chunk(chunk);
            let words = self.fabric.load_line(at);
            if words != [0; 8] && ChunkLine::open(words, at, self.salt).is_none() {
                let line = self.passed_on(chunk, words).unwrap_or_default();
                self.put_chunk(chunk, &ChunkLine { strays: ChunkLine::strays_of(words), ..line });
            }
        }
    }

    /// What a torn line says of a chunk with blocks, whose owner is either the one before or the one after: the size of its
    /// slots is the same in both.
    fn passed_on(&self, chunk: u64, [owner, _, slot_bytes, generation, ..]: [u64; 8]) -> Option<ChunkLine> {
        let host = owner.checked_sub(1).filter(|&host| host < self.layout.max_hosts)?;
        let first = chunk * self.layout.descriptors_per_chunk;
        let slots = first..first + self.layout.is_slot(slot_bytes).then(|| self.layout.slots(slot_bytes))?;
        self.refresh_descriptors(slots.clone());
        let holds = |block: BlockIndex| {
            self.read_descriptor(block).is_some_and(|descriptor| {
                let is_free = descriptor.block_state().is_none_or(|state| state == BlockState::Free);
                !is_free && descriptor.extent().1 == self.layout.payload(block, slot_bytes)
            })
        };
        // In the last life of its owner that is known: a new one takes it along, and if it is over, others may.
        let incarnation = self.read_host(host).map_or(0, |line| line.incarnation).max(self.highest_mark(host)).max(1);
        let line = ChunkLine { owner, incarnation, slot_bytes, generation, ..ChunkLine::default() };
        slots.map(BlockIndex).any(holds).then_some(line)
    }

    /// Writes a chunk's line. The caller holds the chunk lock.
    pub(crate) fn put_chunk(&self, chunk: u64, line: &ChunkLine) {
        let at = self.layout.chunk(chunk);
        self.write(at, *line);
    }

    /// Puts every slot of a chunk that was just taken into the free list.
    fn adopt_chunk(&self, chunk: u64, class: usize, line: &ChunkLine) {
        let first = chunk * self.layout.descriptors_per_chunk;
        let slots = first..first + self.layout.slots(line.slot_bytes);
        self.refresh_descriptors(slots.clone());
        self.chunk_class(chunk).store(class as u32 + 1, Relaxed);
        for block in slots.rev().map(BlockIndex) {
            self.write_free(block);
            self.push_free(block);
        }
    }

    /// Makes what is said of the blocks of a chunk that was another host's as fresh as the device's. Only then is it noted as
    /// this host's: who dies in between leaves it to be refreshed by whoever rebuilds the heap.
    pub(crate) fn refresh_taken(&self, blocks: std::ops::Range<u64>) {
        if self.is_coherent() || blocks.is_empty() {
            return;
        }
        let mut lines: Vec<u64> = blocks.clone().map(|block| self.layout.descriptor(BlockIndex(block))).collect();
        if self.has_events() {
            let names = |block| self.layout.names(BlockIndex(block)) / LINE * LINE;
            lines.extend((names(blocks.start)..=names(blocks.end - 1)).step_by(LINE as usize));
        }
        self.fabric.refresh(&lines);
    }

    /// Gives a chunk back to the region. All its slots are free; the caller holds the heap lock.
    pub(crate) fn release_chunk(&self, chunk: u64) {
        let Ok(_chunks) = self.lock(crate::locks::Name::Chunks) else { return };
        let Some(line) = self.read_chunk(chunk) else { return };
        let first = chunk * self.layout.descriptors_per_chunk;
        let slots = first..first + self.layout.slots(line.slot_bytes);
        if let Some(class) = self.chunk_class(chunk).swap(0, Relaxed).checked_sub(1) {
            self.unlist(class as usize, |block| slots.contains(&block.0));
        }
        if !self.is_coherent() {
            // What was written in place may lie dirty in this host's caches, and would come down on the next owner's blocks.
            self.fabric.refresh_payload(self.layout.chunk_data(chunk), self.layout.chunk_bytes);
        }
        if line.owner != self.host + 1 {
            // This host was declared dead and does not know it yet: the chunk is another's to give back.
            return;
        }
        self.put_chunk(chunk, &ChunkLine { owner: 0, slot_bytes: 0, ..line });
        self.record(Event::ChunkGivenBack, chunk, line.slot_bytes);
        let hint = self.chunk_hint();
        hint.fetch_min(u32::try_from(chunk).unwrap_or(u32::MAX), Relaxed);
    }

    /// Takes blocks out of a class's free list.
    fn unlist(&self, class: usize, leaves: impl Fn(BlockIndex) -> bool) {
        let mut kept = Vec::new();
        // No list is longer than there are blocks; one that is goes in a circle.
        for _ in 0..self.layout.num_descriptors() {
            let Some(block) = self.pop_free(class) else { break };
            if !leaves(block) {
                kept.push(block);
            }
        }
        for block in kept.into_iter().rev() {
            self.push_free(block);
        }
    }

    /// Blocks in a class's free list, in order; stops at a link that leads nowhere or in a circle.
    pub(crate) fn free_list(&self, class: usize) -> Vec<BlockIndex> {
        let mut seen = BTreeSet::new();
        let mut list = Vec::new();
        let mut next = self.class_head(class).load(Acquire);
        while let Some(block) = u64::from(next).checked_sub(1) {
            if block >= self.layout.num_descriptors() || !seen.insert(block) {
                break;
            }
            list.push(BlockIndex(block));
            next = self.free_link(BlockIndex(block)).load(Relaxed);
        }
        list
    }

    /// Rebuilds free lists, classes and owner words from the region. The caller holds the heap lock.
    ///
    /// A block that was being evicted is never made readable again, because it may have been reused in part. Nor is it
    /// free: who marked it may have died before others could see the mark. It waits to be marked and looked for once more.
    pub(crate) fn rebuild_heap(&self) {
        for class in 0..CLASSES {
            self.class_bytes(class).store(0, Relaxed);
            self.class_head(class).store(0, Relaxed);
        }
        self.chunk_hint().store(0, Relaxed);
        // Chunks may have been adopted by others since this host last looked.
        self.refresh_chunks();
        self.recount_usage();
        let pinned = self.pinned_blocks();
        for chunk in 0..self.layout.num_chunks {
            let known = self.chunk_class(chunk).swap(0, Relaxed) != 0;
            let Some(line) = self.read_chunk(chunk).filter(|line| line.owner == self.host + 1) else {
                self.forget_slots(chunk);
                continue;
            };
            let Some(class) = self.class_of(line.slot_bytes) else { continue };
            let first = chunk * self.layout.descriptors_per_chunk;
            let slots = first..first + self.layout.slots(line.slot_bytes);
            if !known {
                self.refresh_taken(slots.clone());
            }
            self.chunk_class(chunk).store(class as u32 + 1, Relaxed);
            for block in slots.rev().map(BlockIndex) {
                self.rebuild_slot(block, line.slot_bytes, &pinned);
            }
        }
        self.show_all_usage();
    }

    /// What was in a chunk that is another host's by now is that host's, and its charges as well. Reservations are left
    /// to their workers' recovery.
    fn forget_slots(&self, chunk: u64) {
        let first = chunk * self.layout.descriptors_per_chunk;
        for block in (first..first + self.layout.descriptors_per_chunk).map(BlockIndex) {
            self.slot_namespace(block).store(0, Relaxed);
            let owner = self.slot_owner(block);
            if owner.load(Acquire) >= OBJECT {
                owner.store(FREE, Release);
            }
        }
    }

    pub(crate) fn rebuild_slot(&self, block: BlockIndex, slot_bytes: u64, pinned: &BTreeSet<BlockIndex>) {
        let owner = self.slot_owner(block).load(Acquire);
        if owner != FREE && owner < OBJECT {
            // Reserved: its worker goes on with it, or recovery of that worker will.
            if let Some(namespace) = self.slot_namespace(block).load(Relaxed).checked_sub(1) {
                self.charge(block, namespace as u16, slot_bytes);
            }
            return;
        }
        let descriptor = self.read_descriptor(block);
        if let Some(charged) = descriptor.filter(Descriptor::is_charged) {
            self.charge(block, charged.namespace(), slot_bytes);
        }
        match descriptor.and_then(|descriptor| descriptor.block_state()) {
            Some(BlockState::Evicting) if fault::sabotaged("recover.evicting-revived") => self.keep(block),
            // On its way out, whatever its descriptor says by now: the index may lead to it no longer.
            Some(BlockState::Ready) if owner == DRAINING => {}
            Some(BlockState::Ready) => self.slot_owner(block).store(PUBLISHED, Release),
            Some(BlockState::Object) => self.slot_owner(block).store(OBJECT, Release),
            Some(BlockState::Evicting) => {
                self.tell_removed(block);
                self.slot_owner(block).store(DRAINING, Release);
            }
            None if pinned.contains(&block) => {
                self.tell_removed(block);
                self.slot_owner(block).store(DRAINING, Release);
            }
            state @ (Some(BlockState::Free) | None) => {
                if state.is_none() {
                    self.tell_removed(block);
                }
                self.write_free(block);
                self.push_free(block);
            }
        }
    }
}
