//! Shorter instead of gone: under pressure a host's coldest chunks are emptied, and what was in them is published anew in
//! fewer bytes. What makes it shorter is the caller's business (`store`).
//!
//! By whole chunks, because space changes its slot size only chunk by chunk: slots that become free here and there are
//! of no use to shorter blocks. Between leaving and coming back a block is in its caller's memory alone, and a lookup
//! misses it; who dies then has lost a cache's content and nothing else.

use crate::blocks::{Hit, Publish, slot_for};
use crate::events::Names;
use crate::heap::{FREE, PUBLISHED, Slot};
use crate::locks::Name;
use crate::namespaces::Namespace;
use crate::pool::{Inner, Pool};
use crate::region::counters::Counter;
use crate::region::lines::{BlockState, Descriptor};
use crate::strays::Fill;
use cenote_base::{BlockIndex, fault};
use cenote_mem::{Fabric, HostLocal, LINE, Word};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Of a host's chunks, those used last are warm: this part of them is left as it is.
const WARM_SHARE: usize = 4;

/// A block that nobody has asked for in a while.
#[derive(Clone, Copy, Debug)]
pub struct ColdBlock {
    /// How to read it.
    pub hit: Hit,
    names: Names,
    depth: u32,
    /// When it was used, as the eviction policy has it.
    word: u64,
}

/// What a block becomes.
#[derive(Clone, Copy, Debug)]
pub struct Shorter<'a> {
    /// Which block.
    pub of: &'a ColdBlock,
    /// What the payload is, as for [`Pool::publish_encoded`].
    pub encoding: u8,
    /// Whole lines, no more than there were; none: the block leaves for good.
    pub payload: &'a [u8],
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// All blocks of a chunk, if they are all of this namespace, nobody uses them, and `wanted` takes each.
    fn cold_blocks(&self, chunk: u64, namespace: u16, wanted: &dyn Fn(&Hit) -> bool) -> Option<Vec<ColdBlock>> {
        let mut cold = Vec::new();
        for block in self.slots_of(chunk) {
            match self.slot_owner(block).load(Acquire) {
                FREE => continue,
                PUBLISHED => {}
                _ => return None,
            }
            let descriptor = self.read_descriptor(block).filter(|found| found.namespace() == namespace)?;
            let (hit, depth) = (Hit::of(block, &descriptor), descriptor.depth());
            let word = self.policy_word(block).load(Relaxed);
            cold.push(ColdBlock { hit, names: self.names_of(block), depth, word });
            if !wanted(&hit) {
                return None;
            }
        }
        (!cold.is_empty()).then_some(cold)
    }

    /// Whether a slot still holds what was found in it.
    fn still_holds(&self, cold: &ColdBlock) -> bool {
        let same = |descriptor: Descriptor| Hit::of(cold.hit.block, &descriptor) == cold.hit;
        self.slot_owner(cold.hit.block).load(Acquire) == PUBLISHED
            && self.read_descriptor(cold.hit.block).is_some_and(same)
    }

    /// Takes blocks back, and reserves slots for what they become out of what that leaves free; no other block
    /// leaves for them. Each block that left, with its slot if there is one. The caller holds the heap lock.
    fn swap_slots(&self, namespace: u16, shorter: &[Shorter<'_>]) -> Vec<(usize, Option<Slot>)> {
        let mut left: Vec<usize> = (0..shorter.len()).filter(|&at| self.still_holds(shorter[at].of)).collect();
        let blocks: Vec<BlockIndex> = left.iter().map(|&at| shorter[at].of.hit.block).collect();
        let kept = RefCell::new(BTreeSet::new());
        self.take_back(&blocks, |block| {
            self.keep(block);
            kept.borrow_mut().insert(block);
        });
        fault::point("repack.emptied");
        left.retain(|&at| !kept.borrow().contains(&shorter[at].of.hit.block));
        let chunks: BTreeSet<u64> = blocks.iter().map(|&block| self.layout.chunk_of(block)).collect();
        for chunk in chunks {
            if self.slots_of(chunk).all(|block| self.slot_owner(block).load(Acquire) == FREE) {
                self.release_chunk(chunk);
            }
        }
        // The longest first: a chunk that is claimed for it serves those that are a little shorter.
        left.sort_by_key(|&at| std::cmp::Reverse(shorter[at].payload.len()));
        let slot = |payload: &[u8]| {
            let slot = self.take_free_slot(slot_for(payload.len() as u64), Fill::Copied)?;
            self.charge(slot.block, namespace, slot.bytes);
            Some(slot)
        };
        let payload = |at: usize| Some(shorter[at].payload).filter(|payload| !payload.is_empty());
        left.into_iter().map(|at| (at, payload(at).and_then(slot))).collect()
    }
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Whether a payload of so many bytes could be published without another block leaving. A hint: others publish too.
    #[must_use]
    pub fn has_room(&self, namespace: &Namespace, length: u64) -> bool {
        let inner = &*self.0;
        inner.has_free_slot(slot_for(length).min(namespace.slot_bytes())) || inner.has_free_chunk()
    }

    /// The blocks of chunks of this host, those first that were idle longest: of chunks that hold blocks of this namespace only,
    /// which nobody pins and `wanted` takes, and no more than `most`. Empty: there are none, or none that are cold.
    #[must_use]
    pub fn coldest(&self, namespace: &Namespace, most: usize, wanted: &dyn Fn(&Hit) -> bool) -> Vec<Vec<ColdBlock>> {
        let inner = &*self.0;
        if inner.is_plain() {
            return Vec::new();
        }
        let Ok(_heap) = inner.lock(Name::Heap) else { return Vec::new() };
        let pinned = inner.pinned_blocks();
        let mut chunks: Vec<(u64, u64)> = (0..inner.layout.num_chunks)
            .filter(|&chunk| inner.chunk_class(chunk).load(Relaxed) != 0)
            .map(|chunk| (inner.chunk_idle(chunk, &pinned).unwrap_or(0), chunk))
            .collect();
        chunks.sort_unstable_by_key(|&(idle, chunk)| (std::cmp::Reverse(idle), chunk));
        chunks.truncate(chunks.len() - chunks.len() / WARM_SHARE);
        let of_chunk = |(_, chunk)| {
            let cold = inner.cold_blocks(chunk, namespace.id.0, wanted)?;
            cold.iter().all(|block| !pinned.contains(&block.hit.block)).then_some(cold)
        };
        chunks.into_iter().filter_map(of_chunk).take(most).collect()
    }

    /// Bytes of a chunk: what has to become free for slots of another size.
    #[must_use]
    pub fn chunk_bytes(&self) -> u64 {
        self.0.layout.chunk_bytes
    }

    /// Publishes blocks of some chunks anew, as something shorter, with the depth and the age that they had. Blocks that
    /// somebody has pinned, or that have changed, stay as they are; what finds no slot is evicted. Returns how many became
    /// shorter.
    ///
    /// # Panics
    /// A payload is not of whole lines or longer than the block it replaces, or an encoding is 0: bugs of the caller.
    pub fn repack(&self, namespace: &Namespace, shorter: &[Shorter<'_>]) -> usize {
        let fits = |one: &Shorter<'_>| {
            let length = one.payload.len() as u64;
            length.is_multiple_of(LINE) && length <= one.of.hit.length && one.encoding != 0
        };
        assert!(shorter.iter().all(fits), "not payloads, or longer than what they replace");
        let inner = &*self.0;
        let left = match inner.lock(Name::Heap) {
            Ok(_heap) if !inner.is_plain() => inner.swap_slots(namespace.id.0, shorter),
            _ => return 0,
        };
        fault::point("repack.reserved");
        let (mut published, count) = (0, left.len());
        for (at, slot) in left {
            let (Shorter { of, encoding, payload }, Some(Slot { block, bytes })) = (shorter[at], slot) else {
                continue;
            };
            let kind = Descriptor::pack_kind(namespace.id.0, encoding, inner.slot() as u16, of.depth);
            let (hash, offset) = (of.hit.hash, inner.layout.payload(block, bytes));
            inner.write_block(block, offset, hash, BlockState::Ready, kind, of.names, &[payload]);
            published += usize::from(inner.enter(block, hash, Some(of.word)) == Publish::Published);
        }
        inner.counters().add(Counter::Repacked, published as u64);
        inner.counters().add(Counter::Evicted, (count - published) as u64);
        published
    }
}
