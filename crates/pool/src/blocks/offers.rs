//! Chunks that change hands between living hosts, with the blocks in them
//! (docs/internals/protocol.md#offers).
//!
//! A host offers a chunk whose slots are all published or free. From then on it leaves the chunk
//! alone: it neither evicts from it nor reserves in it. Any host may take an offered chunk under the
//! chunk lock, the one that offers it too. Readers notice nothing: descriptors, payloads and index
//! entries stay.

use super::Blocks;
use crate::log::recorder::Event;
use crate::region::counters::Counter;
use crate::region::host_layout::{FREE, PUBLISHED};
use crate::region::layout::LINE_WORDS;
use crate::region::lines::{ChunkLine, Line};
use crate::sync::{Chunks, Heap, Holds};
use cenote_base::BlockIndex;
use cenote_base::fault::{self, Point};
use cenote_mem::{Fabric, HostLocal, LINE, Offset, Word};
use cenote_policy::sharing::moved_word;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

impl<F: Fabric, H: HostLocal> Blocks<F, H> {
    /// The blocks of a chunk that this host lists or offers, if all of its slots are published or
    /// free.
    pub fn published_alone(&self, chunk: u64) -> Option<Vec<BlockIndex>> {
        let mut blocks = Vec::new();
        for block in self.region.slots_of(chunk) {
            match self.region.slot_owner(block).load(Acquire) {
                PUBLISHED => blocks.push(block),
                FREE => {}
                _ => return None,
            }
        }
        Some(blocks)
    }

    /// The chunks that this host offers and no other host has taken.
    pub fn offered_chunks(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.region.layout.num_chunks).filter(|&chunk| self.region.class_of_offered(chunk).is_some())
    }

    /// Offers chunks to all hosts.
    pub fn offer(&self, heap: &Holds<Heap>, chunks: &[u64]) {
        if chunks.is_empty() {
            return;
        }
        let Ok(held) = self.space.lock_chunks(self.locks.serving()) else { return };
        let may = |chunk: &u64| {
            self.region.refresh_chunk(*chunk);
            self.may_be_offered(*chunk)
        };
        let chunks: BTreeSet<u64> = chunks.iter().copied().filter(may).collect();
        let classes: BTreeSet<usize> = chunks.iter().filter_map(|&chunk| self.region.class_of_chunk(chunk)).collect();
        for class in classes {
            self.space.unlist(heap, class, |block| chunks.contains(&self.region.layout.chunk_of(block)));
        }
        for chunk in chunks {
            self.offer_one(&held, chunk);
        }
    }

    fn may_be_offered(&self, chunk: u64) -> bool {
        let region = &self.region;
        let is_ours = |line: ChunkLine| line.incarnation == region.incarnation() && line.offered == 0;
        region.class_of_chunk(chunk).is_some()
            && region.own_chunk(chunk).is_some_and(is_ours)
            && self.published_alone(chunk).is_some()
    }

    fn offer_one(&self, held: &Holds<Chunks>, chunk: u64) {
        let region = &*self.region;
        let Some(line) = region.own_chunk(chunk) else { return };
        if region.is_dirty(chunk) {
            // Lines written in place may be dirty in this host's caches and would later overwrite
            // the next owner's blocks.
            region.fabric.refresh_payload(region.layout.chunk_data(chunk), region.layout.chunk_bytes);
            region.set_dirty(chunk, false);
        }
        self.write_recency(chunk);
        if !self.space.put_chunk(held, chunk, ChunkLine { offered: 1, ..line }) {
            return;
        }
        region.set_offered(chunk, true);
        fault::point(Point::ChunkOffered);
    }

    /// Writes the eviction policy's words of a chunk's blocks into the region, for its next owner.
    /// They may be lost or torn: they only order evictions.
    fn write_recency(&self, chunk: u64) {
        let region = &self.region;
        let first = chunk * region.layout.descriptors_per_chunk;
        let (start, end) = region.layout.recency(chunk);
        for (line, at) in (0..).zip((start..end).step_by(LINE as usize)) {
            let block = |word: usize| BlockIndex(first + line * LINE_WORDS + word as u64);
            let words = std::array::from_fn(|word| {
                let is_here = line * LINE_WORDS + (word as u64) < region.layout.descriptors_per_chunk;
                if is_here { region.policy_word(block(word)).load(Relaxed) } else { 0 }
            });
            region.fabric.write_line(at, &words);
        }
    }

    /// Takes over the words that the last owner wrote, with the hits that this host knows besides.
    fn read_recency(&self, chunk: u64, blocks: impl Iterator<Item = BlockIndex>) {
        let region = &self.region;
        let (start, end) = region.layout.recency(chunk);
        region.refresh_range(start, end);
        let clock = region.access_clock().load(Relaxed);
        let policy = self.policy();
        for block in blocks {
            let at = start + block.0 % region.layout.descriptors_per_chunk * 8;
            let told = region.fabric.load(Offset::new(at));
            let word = region.policy_word(block);
            word.store(moved_word(policy, told, word.load(Relaxed), clock), Relaxed);
        }
    }

    /// Takes offered chunks, in this order, until `most` are taken. Returns their number.
    pub fn take_offered(&self, heap: &Holds<Heap>, chunks: impl IntoIterator<Item = u64>, most: usize) -> usize {
        let region = &*self.region;
        let Ok(held) = self.space.lock_chunks(self.locks.serving()) else { return 0 };
        let pinned = self.pinned();
        let mut taken = 0;
        for chunk in chunks {
            if taken == most {
                break;
            }
            region.refresh_chunk(chunk);
            let may_be_taken = |line: &ChunkLine| line.offered == 1 && !held.leaves_alone(chunk);
            let Some(line) = region.read_chunk(chunk).filter(may_be_taken) else { continue };
            let is_own = line.owner == region.host + 1;
            if is_own && region.class_of_offered(chunk).is_some() {
                if !self.space.put_chunk(&held, chunk, ChunkLine { offered: 0, ..line }) {
                    break;
                }
                self.take_back(heap, chunk, line.slot_bytes);
                taken += 1;
                continue;
            }
            let Some(class) = self.space.class_of(heap, line.slot_bytes) else { continue };
            let ours = region.taken(line);
            if !self.space.put_chunk(&held, chunk, ours) {
                break;
            }
            fault::point(Point::ChunkMoved);
            self.take_over(heap, chunk, class, &ours, &pinned);
            self.read_recency(chunk, region.layout.blocks_of(chunk, ours.slot_bytes).map(BlockIndex));
            self.log.record(Event::ChunkMoved, chunk, line.owner - 1);
            region.counters().add(Counter::ChunksShared, 1);
            taken += 1;
        }
        taken
    }

    /// Lists a chunk again that this host had offered. Its line says so already, or will when the
    /// store arrives.
    fn take_back(&self, heap: &Holds<Heap>, chunk: u64, slot_bytes: u64) {
        self.region.set_offered(chunk, false);
        for block in self.region.layout.blocks_of(chunk, slot_bytes).map(BlockIndex) {
            if self.region.slot_owner(block).load(Acquire) == FREE {
                self.space.push_free(heap, block);
            }
        }
    }

    /// Takes back the chunks that this host offers, all that no other host has taken.
    pub fn take_back_all(&self, heap: &Holds<Heap>) {
        let offered: Vec<u64> = self.offered_chunks().collect();
        if !offered.is_empty() {
            self.take_offered(heap, offered, usize::MAX);
            self.settle_offers(heap);
        }
    }

    /// Forgets chunks that this host offered and another one has taken.
    pub fn settle_offers(&self, heap: &Holds<Heap>) {
        let region = &*self.region;
        let offered: Vec<u64> = self.offered_chunks().collect();
        let lines: Vec<u64> = offered.iter().map(|&chunk| region.layout.chunk(chunk)).collect();
        region.fabric.refresh(&lines);
        for chunk in offered {
            let at = region.layout.chunk(chunk);
            match ChunkLine::open(region.fabric.load_line(at), at, region.salt) {
                Some(line) if line.owner != region.host + 1 => self.lose(heap, chunk),
                // A process died while it took the chunk, and the next holder of the chunk lock
                // mended its line.
                Some(line) if line.offered == 0 => self.take_back(heap, chunk, line.slot_bytes),
                // A torn line is being written.
                Some(_) | None => {}
            }
        }
    }

    /// Removes a chunk that another host has taken from this host's memory, if it is there.
    pub(super) fn lose(&self, heap: &Holds<Heap>, chunk: u64) {
        let region = &self.region;
        let Some(class) = region.unlist_chunk(chunk) else { return };
        let slot_bytes = region.class_bytes(class).load(Relaxed);
        for block in region.layout.blocks_of(chunk, slot_bytes).map(BlockIndex) {
            self.space.discharge(heap, block, slot_bytes);
            region.slot_owner(block).store(FREE, Release);
        }
    }
}
