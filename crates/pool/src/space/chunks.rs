//! Chunks: which host owns which, and how they change hands.

use super::{Fill, Space};
use crate::log::recorder::Event;
use crate::region::host_layout::FREE;
use crate::region::lines::{BlockState, ChunkLine, Line};
use crate::sync::{Chunks, Guard, Heap, Holds, Intent, Timeout};
use cenote_base::BlockIndex;
use cenote_base::fault::{self, Point};
use cenote_mem::host::LockTimeout;
use cenote_mem::{Fabric, HostLocal, Word};
use std::ops::Deref;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// The chunk lock.
pub(crate) struct HeldChunks<'a, F: Fabric, H: HostLocal> {
    guard: Guard<'a, Chunks, F, H>,
    /// Chunks whose lines hosts may still write that were declared dead inside the lock.
    named: Vec<u64>,
}

impl<F: Fabric, H: HostLocal> HeldChunks<'_, F, H> {
    /// Whether a host that was declared dead may be about to take this chunk. Then no other host
    /// takes it before that host has come back: its store would take the chunk away again.
    pub fn leaves_alone(&self, chunk: u64) -> bool {
        self.named.contains(&chunk)
    }
}

impl<F: Fabric, H: HostLocal> Deref for HeldChunks<'_, F, H> {
    type Target = Holds<Chunks>;

    fn deref(&self) -> &Holds<Chunks> {
        &self.guard
    }
}

impl<F: Fabric, H: HostLocal> Space<F, H> {
    /// Takes the chunk lock, and mends chunk lines if its last holder died. The caller refreshes the
    /// lines that it reads.
    pub fn lock_chunks(&self, timeout: Timeout) -> Result<HeldChunks<'_, F, H>, LockTimeout> {
        let guard = self.locks.acquire(Chunks, Intent::ALL, timeout, |chunks, _| self.repair_lines(chunks))?;
        let named = self.locks.named_by_passed(&guard);
        Ok(HeldChunks { guard, named })
    }

    /// Takes the chunk lock, and refreshes all chunk lines.
    pub fn lock_all_chunks(&self, timeout: Timeout) -> Result<HeldChunks<'_, F, H>, LockTimeout> {
        let chunks = self.lock_chunks(timeout)?;
        self.region.refresh_chunks();
        Ok(chunks)
    }

    /// Writes a chunk's line, after its name. `false`: nothing was written, because this host was
    /// declared dead and other hosts may have passed it over. It rebuilds its heap in its next life.
    #[must_use]
    pub fn put_chunk(&self, chunks: &Holds<Chunks>, chunk: u64, line: ChunkLine) -> bool {
        fault::point(Point::ChunkFound);
        let may_write = self.locks.name(chunks, chunk);
        if may_write {
            fault::point(Point::ChunkNamed);
            self.region.write(self.region.layout.chunk(chunk), line);
        }
        may_write
    }

    /// Lowers the number below which this host looks for no free chunk.
    pub fn hint_free_chunk(&self, chunk: u64) {
        self.region.chunk_hint().fetch_min(u32::try_from(chunk).unwrap_or(u32::MAX), Relaxed);
    }

    /// Whether the region seems to have a chunk without owner.
    pub fn has_free_chunk(&self) -> bool {
        let first = u64::from(self.region.chunk_hint().load(Relaxed));
        (first..self.region.layout.num_chunks).any(|chunk| self.region.free_chunk(chunk).is_some())
    }

    /// Whether the region has a chunk without owner, by the device's lines of those that seem to
    /// have none.
    pub fn finds_free_chunk(&self) -> bool {
        (0..self.region.layout.num_chunks).any(|chunk| self.fresh_free_chunk(chunk).is_some())
    }

    /// The line of a chunk that seems to have no owner, if it has none on the device either.
    fn fresh_free_chunk(&self, chunk: u64) -> Option<ChunkLine> {
        self.region.free_chunk(chunk)?;
        self.region.refresh_chunk(chunk);
        self.region.free_chunk(chunk)
    }

    /// Takes a chunk without owner that may be written by `fill`, for slots of `class`.
    pub(super) fn claim_chunk(&self, heap: &Holds<Heap>, class: usize, fill: Fill) -> bool {
        let region = &self.region;
        let hint = region.chunk_hint();
        let known = || u64::from(hint.load(Relaxed));
        let learn = |chunk: u64| hint.store(u32::try_from(chunk).unwrap_or(u32::MAX), Relaxed);
        if known() >= region.layout.num_chunks {
            return false;
        }
        let Ok(chunks) = self.lock_chunks(self.locks.serving()) else { return false };
        let mut passed = None;
        let mut find = || {
            (known()..region.layout.num_chunks).find_map(|chunk| {
                let free = self.fresh_free_chunk(chunk).filter(|_| !chunks.leaves_alone(chunk))?;
                let takes = fill == Fill::Copied || !self.has_strays(&free);
                if !takes {
                    passed.get_or_insert(chunk);
                }
                takes.then_some((chunk, free))
            })
        };
        // A cached copy may name an owner that has given the chunk back.
        let found = find().or_else(|| {
            region.refresh_chunks();
            find()
        });
        let Some((chunk, free)) = found else {
            learn(passed.unwrap_or(region.layout.num_chunks));
            return false;
        };
        let line = ChunkLine { slot_bytes: region.class_bytes(class).load(Relaxed), ..region.taken(free) };
        if !self.put_chunk(&chunks, chunk, line) {
            return false;
        }
        fault::point(Point::ChunkClaimed);
        self.list_slots(heap, chunk, class, &line);
        self.log.record(Event::ChunkTaken, chunk, line.slot_bytes);
        learn(passed.unwrap_or(chunk + 1));
        true
    }

    /// Puts every slot of a chunk that was just taken into the free list.
    fn list_slots(&self, heap: &Holds<Heap>, chunk: u64, class: usize, line: &ChunkLine) {
        let slots = self.region.layout.blocks_of(chunk, line.slot_bytes);
        self.region.refresh_descriptors(slots.clone());
        self.region.list_chunk(chunk, class, false);
        for block in slots.rev().map(BlockIndex) {
            self.write_free(block);
            self.push_free(heap, block);
        }
    }

    /// Returns a chunk without used slots to the region.
    pub fn release_chunk(&self, heap: &Holds<Heap>, chunk: u64) {
        let region = &self.region;
        let Ok(chunks) = self.lock_chunks(self.locks.serving()) else { return };
        region.refresh_chunk(chunk);
        let Some(line) = region.read_chunk(chunk) else { return };
        if let Some(class) = region.unlist_chunk(chunk) {
            // All of them, whatever number of slots a corrupt line names: another class may take the
            // chunk, and a slot in two lists would lead from one into the other.
            self.unlist(heap, class, |block| region.layout.chunk_of(block) == chunk);
        }
        if !region.is_coherent() {
            // Lines written in place may be dirty in this host's caches and would later overwrite
            // the next owner's blocks.
            region.fabric.refresh_payload(region.layout.chunk_data(chunk), region.layout.chunk_bytes);
        }
        if line.owner != region.host + 1 {
            // Another host declared this one dead and has adopted the chunk.
            return;
        }
        if !self.put_chunk(&chunks, chunk, ChunkLine { owner: 0, slot_bytes: 0, ..line }) {
            return;
        }
        self.log.record(Event::ChunkGivenBack, chunk, line.slot_bytes);
        self.hint_free_chunk(chunk);
    }

    /// Whether this host owns the chunk and all its slots are free.
    pub fn is_empty(&self, chunk: u64) -> bool {
        let Some(line) = self.region.own_chunk(chunk) else { return false };
        let mut slots = self.region.layout.blocks_of(chunk, line.slot_bytes).map(BlockIndex);
        slots.all(|block| self.region.slot_owner(block).load(Acquire) == FREE)
    }

    /// Mends chunk lines that were torn when their writer died with the chunk lock. A chunk that
    /// was just taken or returned holds no block and becomes free. A chunk with blocks was changing
    /// hands.
    fn repair_lines(&self, chunks: &Holds<Chunks>) {
        let region = &self.region;
        region.refresh_chunks();
        for chunk in 0..region.layout.num_chunks {
            let at = region.layout.chunk(chunk);
            let words = region.fabric.load_line(at);
            if words != [0; 8] && ChunkLine::open(words, at, region.salt).is_none() {
                let line = self.line_of_blocks(chunk, words).unwrap_or_default();
                if !self.put_chunk(chunks, chunk, ChunkLine { strays: ChunkLine::strays_of(words), ..line }) {
                    return;
                }
            }
        }
    }

    /// The line of a chunk with blocks whose line is torn. Its owner is the one before or the one
    /// after the change; both have the same slot size.
    fn line_of_blocks(&self, chunk: u64, [owner, _, slot_bytes, generation, ..]: [u64; 8]) -> Option<ChunkLine> {
        let region = &self.region;
        let host = owner.checked_sub(1).filter(|&host| host < region.layout.max_hosts)?;
        let slots = region.layout.is_slot(slot_bytes).then(|| region.layout.blocks_of(chunk, slot_bytes))?;
        region.refresh_descriptors(slots.clone());
        let holds = |block: BlockIndex| {
            region.read_descriptor(block).is_some_and(|descriptor| {
                let is_free = descriptor.block_state().is_none_or(|state| state == BlockState::Free);
                !is_free && descriptor.extent().1 == region.layout.payload(block, slot_bytes)
            })
        };
        let generation = generation as u32;
        // The last known life of the owner: a new life reclaims the chunk, and other hosts may
        // adopt it if that life is over.
        let life = region.read_host(host).map_or(0, |line| line.incarnation);
        let incarnation = life.max(region.highest_mark(host)).max(1);
        let line = ChunkLine { owner, incarnation, slot_bytes, generation, ..ChunkLine::default() };
        slots.map(BlockIndex).any(holds).then_some(line)
    }

    /// Writes this life's number into chunks that an earlier life of this host owned, unless other
    /// hosts have adopted them.
    pub fn reclaim_chunks(&self) {
        let Ok(chunks) = self.lock_chunks(self.locks.patient()) else { return };
        // A repair of the life that ended may have been given up.
        self.repair_lines(&chunks);
        let incarnation = self.region.incarnation();
        for chunk in 0..self.region.layout.num_chunks {
            let Some(line) = self.region.own_chunk(chunk) else { continue };
            if line.incarnation != incarnation && !self.put_chunk(&chunks, chunk, ChunkLine { incarnation, ..line }) {
                return;
            }
        }
    }

    /// Number of chunks that each host owns; `None`: a chunk is free, or the lock is busy.
    pub fn owned_if_all_taken(&self) -> Option<Vec<u64>> {
        let mut owned = vec![0_u64; self.region.layout.max_hosts as usize];
        let _chunks = self.lock_all_chunks(self.locks.serving()).ok()?;
        for chunk in 0..self.region.layout.num_chunks {
            let line = self.region.read_chunk(chunk)?;
            owned.get_mut((line.owner - 1) as usize).into_iter().for_each(|count| *count += 1);
        }
        Some(owned)
    }
}
