//! Repacking: under pressure a host empties its coldest chunks and publishes their blocks again in
//! fewer bytes. The caller (`store`) makes them shorter.
//!
//! Whole chunks, because space changes its slot size only by chunk: single free slots are of no use
//! to shorter blocks. Between retraction and publication a block exists only in its caller's
//! memory, and lookups miss it. A death in between loses cached content and nothing else.

use super::Evictor;
use crate::log::events::Names;
use crate::region::hit::Hit;
use crate::region::host_layout::{FREE, PUBLISHED};
use crate::region::lines::Descriptor;
use crate::space::{Fill, Slot};
use crate::sync::{Heap, Holds};
use cenote_base::BlockIndex;
use cenote_base::fault::{self, Point};
use cenote_mem::{Fabric, HostLocal, LINE, Word};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// This part of a host's chunks, the most recently used ones, is warm and is not repacked.
const WARM_SHARE: usize = 4;

/// A block that no lookup has found for a while.
#[derive(Clone, Copy, Debug)]
pub struct ColdBlock {
    /// Reads it.
    pub hit: Hit,
    pub(crate) names: Names,
    /// Its index in the sequence.
    pub depth: u32,
    /// The eviction policy's word.
    pub(crate) word: u64,
}

/// A block's shorter form.
#[derive(Clone, Copy, Debug)]
pub struct Shorter<'a> {
    /// The block.
    pub of: &'a ColdBlock,
    /// Encoding of the payload, not 0.
    pub encoding: u8,
    /// Whole lines, at most the block's; empty: the block is evicted.
    pub payload: &'a [u8],
}

/// Slot size of a payload of any length: sixteen sizes per doubling, so that few sizes serve all
/// lengths and at most a sixteenth is lost.
pub(crate) const fn slot_for(length: u64) -> u64 {
    let length = if length < LINE { LINE } else { length };
    let step = 1 << length.ilog2().saturating_sub(4);
    // No chunk has a slot this large, and reserving it fails.
    match length.checked_next_multiple_of(if step > LINE { step } else { LINE }) {
        Some(slot_bytes) => slot_bytes,
        None => u64::MAX,
    }
}

impl<F: Fabric, H: HostLocal> Evictor<F, H> {
    /// All blocks of a chunk, if all are published blocks of this namespace and `wanted` accepts
    /// each.
    fn cold_blocks(&self, chunk: u64, namespace: u16, wanted: &dyn Fn(&Hit) -> bool) -> Option<Vec<ColdBlock>> {
        let mut cold = Vec::new();
        for block in self.region.slots_of(chunk) {
            match self.region.slot_owner(block).load(Acquire) {
                FREE => continue,
                PUBLISHED => {}
                _ => return None,
            }
            let descriptor = self.region.read_descriptor(block).filter(|found| found.namespace() == namespace)?;
            let (hit, depth) = (Hit::of(block, &descriptor), descriptor.depth());
            let word = self.region.policy_word(block).load(Relaxed);
            cold.push(ColdBlock { hit, names: self.log.names_of(block), depth, word });
            if !wanted(&hit) {
                return None;
            }
        }
        (!cold.is_empty()).then_some(cold)
    }

    /// Whether a slot still holds the block that was found in it.
    fn still_holds(&self, cold: &ColdBlock) -> bool {
        let same = |descriptor: Descriptor| Hit::of(cold.hit.block, &descriptor) == cold.hit;
        self.region.slot_owner(cold.hit.block).load(Acquire) == PUBLISHED
            && self.region.lists(cold.hit.block)
            && self.region.read_descriptor(cold.hit.block).is_some_and(same)
    }

    /// Retracts blocks and reserves slots for their shorter forms from the freed space, without
    /// evicting others. Returns the index of each retracted block, with its slot if there is one.
    pub fn reserve_shorter(
        &self,
        heap: &Holds<Heap>,
        namespace: u16,
        shorter: &[Shorter<'_>],
    ) -> Vec<(usize, Option<Slot>)> {
        let mut left: Vec<usize> = (0..shorter.len()).filter(|&at| self.still_holds(shorter[at].of)).collect();
        let blocks: Vec<BlockIndex> = left.iter().map(|&at| shorter[at].of.hit.block).collect();
        let mut kept = BTreeSet::new();
        self.blocks.retract(heap, &blocks, None, |block| {
            self.blocks.restore(heap, block);
            kept.insert(block);
        });
        fault::point(Point::RepackEmptied);
        left.retain(|&at| !kept.contains(&shorter[at].of.hit.block));
        let chunks: BTreeSet<u64> = blocks.iter().map(|&block| self.region.layout.chunk_of(block)).collect();
        for chunk in chunks {
            if self.region.slots_of(chunk).all(|block| self.region.slot_owner(block).load(Acquire) == FREE) {
                self.space.release_chunk(heap, chunk);
            }
        }
        // The longest first: a chunk claimed for it serves those that are a little shorter.
        left.sort_by_key(|&at| std::cmp::Reverse(shorter[at].payload.len()));
        let slot = |payload: &[u8]| {
            let slot = self.space.take_free_slot(heap, slot_for(payload.len() as u64), Fill::Copied)?;
            self.space.charge(heap, slot.block, namespace, slot.bytes);
            Some(slot)
        };
        let payload = |at: usize| Some(shorter[at].payload).filter(|payload| !payload.is_empty());
        left.into_iter().map(|at| (at, payload(at).and_then(slot))).collect()
    }

    /// Blocks of this host's cold chunks, the oldest chunk first.
    pub fn coldest(&self, namespace: u16, most: usize, wanted: &dyn Fn(&Hit) -> bool) -> Vec<Vec<ColdBlock>> {
        if self.region.is_plain() {
            return Vec::new();
        }
        let Ok(_heap) = self.blocks.lock_heap() else { return Vec::new() };
        let pinned = self.blocks.pinned();
        let aged = |chunk| (self.youngest_age(chunk, &pinned).unwrap_or(0), chunk);
        let mut chunks: Vec<(u64, u64)> = self.region.listed_chunks().map(aged).collect();
        chunks.sort_unstable_by_key(|&(age, chunk)| (std::cmp::Reverse(age), chunk));
        chunks.truncate(chunks.len() - chunks.len() / WARM_SHARE);
        let of_chunk = |(_, chunk)| {
            let cold = self.cold_blocks(chunk, namespace, wanted)?;
            cold.iter().all(|block| !pinned.contains(&block.hit.block)).then_some(cold)
        };
        chunks.into_iter().filter_map(of_chunk).take(most).collect()
    }
}
