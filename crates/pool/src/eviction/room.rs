//! Making room: blocks leave in the order that the eviction policy names.

use super::Evictor;
use super::kept::Kept;
use crate::log::recorder::Event;
use crate::region::cause::Cause;
use crate::region::counters::Counter;
use crate::region::host_layout::{FREE, PUBLISHED};
use crate::region::lines::Descriptor;
use crate::space::Fill;
use crate::sync::{Heap, Holds};
use cenote_base::BlockIndex;
use cenote_mem::{Fabric, HostLocal, Word};
use cenote_policy::{Candidate, eviction::batch};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Result of an attempt to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Slots or a chunk became free; try again.
    Made,
    /// No block may leave.
    None,
}

impl<F: Fabric, H: HostLocal> Evictor<F, H> {
    /// Evicts for a class, in chunks that may be written by `fill`: blocks of the class itself, or
    /// all blocks of another class's chunk that is older.
    /// What is kept for namespaces other than `asker`'s stays.
    pub(super) fn make_room(&self, heap: &Holds<Heap>, class: usize, fill: Fill, asker: Option<u16>) -> Room {
        let region = &self.region;
        // The plain design evicts one by one, and must not look at every slot each time.
        let retry = || self.blocks.retry_draining(heap) > 0;
        if self.blocks.adopt_chunks(heap) > 0 || !region.is_plain() && retry() {
            return Room::Made;
        }
        if region.is_plain() {
            return match self.make_plain_room(heap, Some(class)) {
                Room::None if retry() => Room::Made,
                room => room,
            };
        }
        let pinned = self.blocks.pinned();
        if self.hosts.shares() {
            self.blocks.hear_hits(heap, &self.hosts.living_peers());
            if region.offers_all().swap(0, Relaxed) == 1 {
                self.blocks.take_back_all(heap);
                if self.space.has_free_in(heap, class, fill) {
                    return Room::Made;
                }
            }
        }
        let kept = self.kept_from(asker);
        let (mut own, mut oldest_chunk) = self.of_class(class, fill, &pinned, &kept);
        if self.hosts.shares() && self.take_offers(heap, &own) {
            if self.space.has_free_in(heap, class, fill) {
                return Room::Made;
            }
            (own, oldest_chunk) = self.of_class(class, fill, &pinned, &kept);
        }
        let victims = kept.spared(self, self.victims(&own, batch(own.len())));
        let own_age = victims.first().map(|&block| self.age(block));
        if let Some((age, chunk)) = oldest_chunk
            && own_age.is_none_or(|own| age > own)
            && self.evict_chunk(heap, chunk)
        {
            return Room::Made;
        }
        if self.evict_blocks(heap, &victims, Cause::Evicted) > 0 { Room::Made } else { self.evict_unpinned(heap, &own) }
    }

    /// The blocks of a class in chunks that may be written by `fill`, and of the chunks of other
    /// classes the one with the oldest blocks, with the age of its youngest. Without what is kept.
    fn of_class(
        &self,
        class: usize,
        fill: Fill,
        pinned: &BTreeSet<BlockIndex>,
        kept: &Kept,
    ) -> (Vec<Candidate>, Option<(u64, u64)>) {
        let region = &self.region;
        let mut own = Vec::new();
        let mut oldest_chunk: Option<(u64, u64)> = None;
        for chunk in 0..region.layout.num_chunks {
            let Some(chunk_class) = region.class_of_chunk(chunk) else { continue };
            if !self.space.takes(chunk, fill) {
                continue;
            }
            if chunk_class == class {
                own.extend(self.candidates(chunk).filter(|candidate| kept.lets(self, candidate.block)));
            } else if kept.lets_chunk(self, chunk)
                && let Some(age) = self.youngest_age(chunk, pinned)
            {
                oldest_chunk = oldest_chunk.max(Some((age, chunk)));
            }
        }
        (own, oldest_chunk)
    }

    /// Evicts all blocks of a chunk and returns it to the region. `false`: a block was pinned
    /// meanwhile.
    fn evict_chunk(&self, heap: &Holds<Heap>, chunk: u64) -> bool {
        let blocks: Vec<BlockIndex> = self.candidates(chunk).map(|candidate| candidate.block).collect();
        let is_empty = self.evict_blocks(heap, &blocks, Cause::Evicted) == blocks.len();
        if is_empty {
            self.space.release_chunk(heap, chunk);
        }
        is_empty
    }

    /// Returns a chunk to the region, if a host that wants one has at least two fewer than this
    /// host. In the plain design no host offers chunks.
    pub fn share_plain_chunks(&self, wanting: &[u64]) {
        let Ok(heap) = self.blocks.lock_heap() else { return };
        // A host that wants a chunk takes a free one if there is any.
        let Some(owned) = self.space.owned_if_all_taken() else { return };
        let ours = owned[self.region.host as usize];
        let is_wanted = wanting.iter().any(|&host| owned[host as usize] + 2 <= ours);
        if is_wanted && self.make_plain_room(&heap, None) == Room::Made {
            self.region.counters().add(Counter::ChunksShared, 1);
        }
    }

    /// Evicts any block that is not pinned, because the policy's victims were.
    fn evict_unpinned(&self, heap: &Holds<Heap>, own: &[Candidate]) -> Room {
        let pinned = self.blocks.pinned();
        let blocks = own.iter().map(|candidate| candidate.block);
        let first: Vec<BlockIndex> = blocks.filter(|block| !pinned.contains(block)).take(1).collect();
        if self.evict_blocks(heap, &first, Cause::Evicted) > 0 { Room::Made } else { Room::None }
    }

    /// Published blocks of this host.
    pub(super) fn all_candidates(&self) -> impl Iterator<Item = Candidate> + '_ {
        self.region.listed_chunks().flat_map(|chunk| self.candidates(chunk))
    }

    pub(super) fn published(&self, chunk: u64) -> impl Iterator<Item = BlockIndex> + '_ {
        let is_published = |block: &BlockIndex| self.region.slot_owner(*block).load(Acquire) == PUBLISHED;
        self.region.slots_of(chunk).filter(is_published)
    }

    pub(super) fn candidates(&self, chunk: u64) -> impl Iterator<Item = Candidate> + '_ {
        let region = &self.region;
        self.published(chunk).map(|block| {
            let descriptor = region.read_descriptor(block);
            Candidate {
                block,
                word: region.policy_word(block).load(Relaxed),
                depth: descriptor.as_ref().map_or(u32::MAX, Descriptor::depth),
                key: descriptor.map_or(0, |descriptor| descriptor.hash[0]),
            }
        })
    }

    /// The policy's choice of `want` blocks.
    pub(super) fn victims(&self, candidates: &[Candidate], want: usize) -> Vec<BlockIndex> {
        let region = &self.region;
        let clock = region.access_clock().load(Relaxed);
        let choice = self.blocks.policy().victims(clock, region.policy_state(), candidates, want);
        for rewrite in choice.rewrites {
            // The exchange fails if the block was hit meanwhile, which keeps the hit.
            let word = region.policy_word(rewrite.block);
            let _ = word.compare_exchange(rewrite.from, rewrite.to, Relaxed, Relaxed);
        }
        choice.victims
    }

    /// Age of a block, by the eviction policy.
    pub(super) fn age(&self, block: BlockIndex) -> u64 {
        let (word, clock) = (self.region.policy_word(block), self.region.access_clock());
        self.blocks.policy().age(word.load(Relaxed), clock.load(Relaxed))
    }

    /// Age of the youngest block of a chunk; `None`: not all of its blocks may leave.
    pub(super) fn youngest_age(&self, chunk: u64, pinned: &BTreeSet<BlockIndex>) -> Option<u64> {
        self.region.read_chunk(chunk)?;
        let mut age = u64::MAX;
        for block in self.region.slots_of(chunk) {
            match self.region.slot_owner(block).load(Acquire) {
                PUBLISHED if pinned.contains(&block) => return None,
                PUBLISHED => age = age.min(self.age(block)),
                FREE => {}
                _ => return None,
            }
        }
        Some(age)
    }

    /// Evicts published blocks of this host that are not pinned. Returns the number of slots that
    /// became free.
    pub(super) fn evict_blocks(&self, heap: &Holds<Heap>, blocks: &[BlockIndex], cause: Cause) -> usize {
        let mut kept = 0;
        let freed = self.blocks.retract(heap, blocks, Some(cause), |block| {
            self.blocks.restore(heap, block);
            kept += 1;
        });
        self.region.counters().add(Counter::EvictionsPinned, kept);
        self.region.counters().add(Counter::Evicted, freed as u64);
        if !blocks.is_empty() {
            self.log.record(Event::Evicted, freed as u64, kept);
        }
        freed
    }

    /// Evicts up to `count` blocks of this host. Returns the number of slots that became free.
    pub fn evict(&self, count: usize) -> usize {
        let Ok(heap) = self.blocks.lock_heap() else { return 0 };
        if self.region.is_plain() {
            return self.evict_oldest(&heap, count);
        }
        self.blocks.take_back_all(&heap);
        let all: Vec<Candidate> = self.all_candidates().collect();
        self.evict_blocks(&heap, &self.victims(&all, count), Cause::Evicted)
    }

    /// Withdraws all blocks of a namespace that this host owns. Pinned ones drain. Returns the
    /// number of slots that became free.
    pub fn forget(&self, namespace: u16) -> usize {
        let region = &self.region;
        let Ok(heap) = self.blocks.lock_heap() else { return 0 };
        if region.is_plain() {
            return 0;
        }
        self.blocks.take_back_all(&heap);
        let all: Vec<BlockIndex> = region
            .listed_chunks()
            .flat_map(|chunk| region.slots_of(chunk))
            .filter(|&block| region.slot_owner(block).load(Acquire) == PUBLISHED)
            .filter(|&block| region.slot_namespace(block).load(Relaxed) == u32::from(namespace) + 1)
            .collect();
        let cause = Some(Cause::Forgotten);
        let freed = self.blocks.retract(&heap, &all, cause, |block| self.blocks.drain(&heap, block, cause));
        region.counters().add(Counter::Evicted, freed as u64);
        self.log.record(Event::Evicted, freed as u64, (all.len() - freed) as u64);
        freed
    }
}
