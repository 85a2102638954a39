//! The heap lock, and what its next holder rebuilds after a death: owner words, free lists,
//! charges, and blocks that were on their way into the index. Also the adoption of a dead host's
//! chunks.

use super::Blocks;
use crate::index::Inserted;
use crate::log::recorder::Event;
use crate::region::cause::Cause;
use crate::region::counters::Counter;
use crate::region::host_layout::{CLASSES, DRAINING, FREE, OBJECT, PUBLISHED, Peer};
use crate::region::lines::{BlockState, ChunkLine, Descriptor};
use crate::region::piece::MemorySlot;
use crate::sync::{Guard, Heap, Holds, Intent, Name, Timeout};
use cenote_base::fault::{self, Mistake, Point};
use cenote_base::seal::Seal;
use cenote_base::{BlockHash, BlockIndex};
use cenote_mem::host::LockTimeout;
use cenote_mem::{Fabric, HostLocal, LINE, Word};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

impl<F: Fabric, H: HostLocal> Blocks<F, H> {
    /// Takes the heap lock within the serving path's timeout, and rebuilds the heap if its last
    /// holder died.
    pub fn lock_heap(&self) -> Result<Guard<'_, Heap, F, H>, LockTimeout> {
        self.lock_heap_within(self.locks.serving())
    }

    /// As [`Blocks::lock_heap`], with the wait of administration.
    pub fn lock_heap_patiently(&self) -> Result<Guard<'_, Heap, F, H>, LockTimeout> {
        self.lock_heap_within(self.locks.patient())
    }

    /// As [`Blocks::lock_heap`].
    pub fn lock_heap_within(&self, timeout: Timeout) -> Result<Guard<'_, Heap, F, H>, LockTimeout> {
        if self.region.is_superseded() {
            // This memory's heap is that of an ended life, and another memory's is in use.
            return Err(LockTimeout::Passed { index: Name::Heap.mutex() });
        }
        self.locks.acquire(Heap, Intent::ALL, timeout, |heap, _| {
            self.rebuild_heap(heap);
            self.finish_adoption(heap);
        })
    }

    /// Rebuilds free lists, classes and owner words from the region.
    ///
    /// A block that was being evicted never becomes readable again, because its slot may have been
    /// reused in part. It is not free either: its marker may have died before other hosts saw the
    /// mark. It drains: it is marked again, and freed if it has no pin.
    pub fn rebuild_heap(&self, heap: &Holds<Heap>) {
        let region = &self.region;
        for class in 0..CLASSES {
            region.class_bytes(class).store(0, Relaxed);
            region.class_head(class).store(0, Relaxed);
        }
        region.chunk_hint().store(0, Relaxed);
        // Other hosts may have adopted chunks since this host last looked.
        region.refresh_chunks();
        self.space.clear_usage(heap);
        let pinned = self.pinned();
        for chunk in 0..region.layout.num_chunks {
            let was_dirty = region.is_dirty(chunk);
            let known = region.unlist_chunk(chunk).is_some();
            let Some(line) = region.own_chunk(chunk) else {
                self.forget_slots(chunk);
                continue;
            };
            let Some(class) = self.space.class_of(heap, line.slot_bytes) else { continue };
            let slots = region.layout.blocks_of(chunk, line.slot_bytes);
            if !known {
                self.refresh_taken(slots.clone());
            }
            region.list_chunk(chunk, class, was_dirty || !known);
            if line.offered == 1 {
                self.rebuild_offered(heap, chunk, line.slot_bytes);
                continue;
            }
            for block in slots.rev().map(BlockIndex) {
                self.rebuild_slot(heap, block, line.slot_bytes, &pinned);
            }
        }
        self.space.show_all_usage(heap);
    }

    /// Drops cached copies of the descriptors, names and arenas' words of a chunk that another host
    /// owned. Only then does this host list the chunk; after a death in between the next rebuild
    /// refreshes them.
    fn refresh_taken(&self, blocks: Range<u64>) {
        let region = &self.region;
        if region.is_coherent() || blocks.is_empty() {
            return;
        }
        let mut lines: Vec<u64> = blocks.clone().map(|block| region.layout.descriptor(BlockIndex(block))).collect();
        if region.has_events() {
            let names = |block| region.layout.names(BlockIndex(block)) / LINE * LINE;
            lines.extend((names(blocks.start)..=names(blocks.end - 1)).step_by(LINE as usize));
        }
        if region.seal_mode() != Seal::None {
            let seal = |block| region.layout.seal(BlockIndex(block)) / LINE * LINE;
            lines.extend((seal(blocks.start)..=seal(blocks.end - 1)).step_by(LINE as usize));
        }
        region.fabric.refresh(&lines);
        // Only the owner of a chunk takes memory from its arenas, so it relies on its cached words.
        for block in blocks.map(BlockIndex) {
            if let Some(arena) = region.memory_slot(block).and_then(MemorySlot::arena) {
                let (table, bytes) = arena.table();
                region.fabric.refresh_payload(table, bytes);
            }
        }
    }

    /// Clears owner words and charges of a chunk that another host owns now. Reservations are left
    /// to the recovery of their workers.
    fn forget_slots(&self, chunk: u64) {
        let region = &self.region;
        let first = chunk * region.layout.descriptors_per_chunk;
        for block in (first..first + region.layout.descriptors_per_chunk).map(BlockIndex) {
            region.slot_namespace(block).store(0, Relaxed);
            let owner = region.slot_owner(block);
            if owner.load(Acquire) >= OBJECT {
                owner.store(FREE, Release);
            }
        }
    }

    /// Rebuilds the owner words and charges of a chunk that this host offers. Another host may have
    /// taken it, so it changes no descriptor.
    fn rebuild_offered(&self, heap: &Holds<Heap>, chunk: u64, slot_bytes: u64) {
        let region = &self.region;
        for block in region.layout.blocks_of(chunk, slot_bytes).map(BlockIndex) {
            region.slot_owner(block).store(FREE, Release);
            region.slot_namespace(block).store(0, Relaxed);
            let ready = region.read_descriptor(block).filter(|it| it.block_state() == Some(BlockState::Ready));
            if let Some(ready) = ready {
                self.space.charge(heap, block, ready.namespace(), slot_bytes);
                region.slot_owner(block).store(PUBLISHED, Release);
            }
        }
        region.set_offered(chunk, true);
    }

    fn rebuild_slot(&self, heap: &Holds<Heap>, block: BlockIndex, slot_bytes: u64, pinned: &BTreeSet<BlockIndex>) {
        let region = &self.region;
        let owner = region.slot_owner(block).load(Acquire);
        if owner != FREE && owner < OBJECT {
            // Reserved: its worker goes on with it, or recovery of that worker will.
            if let Some(namespace) = region.slot_namespace(block).load(Relaxed).checked_sub(1) {
                self.space.charge(heap, block, namespace as u16, slot_bytes);
            }
            return;
        }
        let descriptor = region.read_descriptor(block);
        if let Some(charged) = descriptor.filter(Descriptor::is_charged) {
            self.space.charge(heap, block, charged.namespace(), slot_bytes);
        }
        match descriptor.and_then(|descriptor| descriptor.block_state()) {
            Some(BlockState::Evicting) if fault::makes(Mistake::RecoverEvictingRevived) => self.restore(heap, block),
            // It drains even if its descriptor is readable: the index may no longer lead to it.
            Some(BlockState::Ready) if owner == DRAINING => {}
            Some(BlockState::Ready) => region.slot_owner(block).store(PUBLISHED, Release),
            Some(BlockState::Object) => region.slot_owner(block).store(OBJECT, Release),
            // Its process died before it noted the removal, or after.
            Some(BlockState::Evicting) => self.drain(heap, block, Some(Cause::Evicted)),
            None if pinned.contains(&block) => self.drain(heap, block, None),
            state @ (Some(BlockState::Free) | None) => {
                if state.is_none() {
                    self.log.tell_removed(block);
                }
                self.space.write_free(block);
                self.space.push_free(heap, block);
            }
        }
    }

    /// Adopts the chunks of hosts that are dead and past their quarantine. Returns their number.
    pub fn adopt_chunks(&self, heap: &Holds<Heap>) -> u64 {
        let region = &self.region;
        if region.is_coherent() {
            return 0;
        }
        let gone_life = |host| {
            let life = if self.hosts.is_past_quarantine(host) { region.highest_mark(host) } else { 0 };
            if life > region.peer(host).emptied { life } else { 0 }
        };
        let gone: Vec<u64> = (0..region.layout.max_hosts).map(gone_life).collect();
        if gone.iter().all(|&incarnation| incarnation == 0) {
            return 0;
        }
        let Ok(chunks) = self.space.lock_all_chunks(self.locks.serving()) else { return 0 };
        let pinned = self.pinned();
        let (mut adopted, mut left) = (0, false);
        for chunk in 0..region.layout.num_chunks {
            let Some(line) = region.read_chunk(chunk) else { continue };
            let owner = line.owner - 1;
            // Lives count from 1; 0 stands for a living host here.
            if gone.get(owner as usize).is_none_or(|&dead| dead == 0 || line.incarnation > dead) {
                continue;
            }
            let class = self.space.class_of(heap, line.slot_bytes).filter(|_| !chunks.leaves_alone(chunk));
            let Some(class) = class else {
                left = true;
                continue;
            };
            // A write of its own: the list must be complete in a line that is torn at the change of
            // owner.
            let line = self.space.with_stray_owner(&chunks, line);
            if !self.space.put_chunk(&chunks, chunk, line) {
                left = true;
                break;
            }
            let ours = region.taken(line);
            // Before the change of owner: after a death from here on, the next holder of the heap
            // lock finishes the adoption.
            region.adopting().store(1, Relaxed);
            if !self.space.put_chunk(&chunks, chunk, ours) {
                left = true;
                break;
            }
            fault::point(Point::ChunkAdopted);
            self.take_over(heap, chunk, class, &ours, &pinned);
            self.log.record(Event::ChunkAdopted, chunk, owner);
            adopted += 1;
        }
        drop(chunks);
        // An ended life claims no chunks. Without this, each eviction would look for them again.
        for (host, &life) in (0..).zip(&gone).filter(|(_, life)| **life > 0 && !left) {
            region.set_peer(host, Peer { emptied: life, ..region.peer(host) });
        }
        region.counters().add(Counter::ChunksAdopted, adopted);
        self.finish_adoption(heap);
        adopted
    }

    /// Rebuilds the host memory of a chunk that another host owned.
    pub(super) fn take_over(
        &self,
        heap: &Holds<Heap>,
        chunk: u64,
        class: usize,
        line: &ChunkLine,
        pinned: &BTreeSet<BlockIndex>,
    ) {
        let region = &self.region;
        let slots = region.layout.blocks_of(chunk, line.slot_bytes);
        // This host may have offered the chunk before, and not noticed yet that another took it.
        self.lose(heap, chunk);
        self.refresh_taken(slots.clone());
        region.list_chunk(chunk, class, false);
        for block in slots.rev().map(BlockIndex) {
            region.slot_owner(block).store(FREE, Relaxed);
            region.slot_namespace(block).store(0, Relaxed);
            self.rebuild_slot(heap, block, line.slot_bytes, pinned);
        }
    }

    /// Enters blocks of adopted chunks that their host had written but not indexed. If a shard is
    /// busy for too long, the next adoption or `gc` enters the rest.
    fn finish_adoption(&self, heap: &Holds<Heap>) {
        if self.region.adopting().load(Relaxed) == 1 {
            self.enter_unindexed(heap);
            self.region.adopting().store(0, Relaxed);
        }
    }

    /// Enters readable blocks of this host that the index does not lead to: their worker died, and
    /// so did the host memory that named it.
    pub fn enter_unindexed(&self, heap: &Holds<Heap>) {
        // This host's caches may hold an index entry of an older use of the block.
        self.index.refresh_index();
        let owners = (0_u64..).zip(self.region.slot_owners());
        for (block, _) in owners.filter(|(_, owner)| owner.load(Acquire) == PUBLISHED) {
            if !self.region.lists(BlockIndex(block)) {
                // Another host may have taken its chunk.
                continue;
            }
            let Some(hit) = self.region.hit(BlockIndex(block)) else { continue };
            if self.index.find(hit.hash).is_none_or(|(found, _)| found != hit.block) {
                self.enter_recovered(heap, hit.block, hit.hash);
            }
        }
    }

    /// Enters a readable block that its worker did not enter, or withdraws it if another block has
    /// its hash. Returns whether the block stays.
    pub fn enter_recovered(&self, heap: &Holds<Heap>, block: BlockIndex, hash: BlockHash) -> bool {
        // If the shard is busy, another host may have died with its lock. Only workers that have
        // joined notice that, so joining must not wait for it.
        if self.index.insert(hash, block) != Inserted::New {
            self.withdraw(heap, block, None, self.region.lock_timeout);
            return false;
        }
        self.place(block, hash);
        if let Some(descriptor) = self.region.read_descriptor(block) {
            // The dead worker may not have logged it.
            self.log.tell_stored(block, &descriptor, self.log.names_of(block));
        }
        self.region.slot_owner(block).store(PUBLISHED, Release);
        true
    }
}
