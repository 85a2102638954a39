//! Block slots: free lists by slot size, and reservations.

use super::{Fill, Space};
use crate::region::counters::Counter;
use crate::region::host_layout::{CLASSES, FREE};
use crate::region::lines::{BlockState, Descriptor};
use crate::sync::{Heap, Holds};
use cenote_base::BlockIndex;
use cenote_mem::{Fabric, HostLocal, Word};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A reserved slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub block: BlockIndex,
    /// At least the bytes that were asked for.
    pub bytes: u64,
}

impl<F: Fabric, H: HostLocal> Space<F, H> {
    /// Reserves a slot for this worker without evicting: a free slot, one of a free chunk, or a
    /// free slot that is a little larger, because few chunks cannot serve every size.
    pub fn take_free_slot(&self, heap: &Holds<Heap>, slot_bytes: u64, fill: Fill) -> Option<Slot> {
        let class = self.class_of(heap, slot_bytes)?;
        let claimed = || {
            let claimed = self.claim_chunk(heap, class, fill);
            if claimed {
                self.region.wants_chunk().store(0, Relaxed);
            }
            claimed.then(|| self.pop_free_for(heap, class, fill)).flatten()
        };
        let exact = self.pop_free_for(heap, class, fill).or_else(claimed);
        let exact = exact.map(|block| Slot { block, bytes: slot_bytes });
        let slot = exact.or_else(|| self.pop_larger(heap, slot_bytes, fill))?;
        self.region.slot_owner(slot.block).store(self.region.owner_word(), Release);
        // The lock guards it. An atomic addition would wait for the store before it.
        let reserved = self.region.reserved();
        reserved.store(reserved.load(Relaxed).wrapping_add(1), Relaxed);
        if fill == Fill::InPlace {
            self.region.set_dirty(self.region.layout.chunk_of(slot.block), true);
        }
        Some(slot)
    }

    /// A free slot of the smallest size that is larger by at most a quarter.
    fn pop_larger(&self, heap: &Holds<Heap>, slot_bytes: u64, fill: Fill) -> Option<Slot> {
        let region = &self.region;
        let fits = |&(bytes, class): &(u64, usize)| {
            bytes > slot_bytes && bytes - slot_bytes <= slot_bytes / 4 && region.class_head(class).load(Relaxed) != 0
        };
        let sizes = (0..CLASSES).map(|class| (region.class_bytes(class).load(Relaxed), class));
        let (bytes, class) = sizes.filter(fits).min().filter(|_| !region.is_plain())?;
        self.pop_free_for(heap, class, fill).map(|block| Slot { block, bytes })
    }

    /// Whether a slot of this class that may be written by `fill` is free.
    pub fn has_free_in(&self, heap: &Holds<Heap>, class: usize, fill: Fill) -> bool {
        let block = self.pop_free_for(heap, class, fill);
        block.into_iter().for_each(|block| self.push_free(heap, block));
        block.is_some()
    }

    /// Whether a free slot for so many bytes seems to exist.
    pub fn has_free_slot(&self, slot_bytes: u64) -> bool {
        let region = &self.region;
        let fits = |bytes: u64| bytes >= slot_bytes && bytes - slot_bytes <= slot_bytes / 4;
        (0..CLASSES)
            .any(|class| fits(region.class_bytes(class).load(Relaxed)) && region.class_head(class).load(Relaxed) != 0)
    }

    /// Marks a slot free in the region. Readers miss the block already. The line must not stay
    /// dirty in this host's caches, where it could overwrite the line of a host that takes the
    /// chunk over.
    pub fn write_free(&self, block: BlockIndex) {
        let free = Descriptor {
            state: Descriptor::state_word(BlockState::Free, self.region.raw_generation(block)),
            place: Descriptor::pack_place(0, self.region.layout.data()),
            ..Descriptor::default()
        };
        self.region.write(self.region.layout.descriptor(block), free);
    }

    /// Puts a slot with a free descriptor into its free list.
    pub fn push_free(&self, heap: &Holds<Heap>, block: BlockIndex) {
        let region = &self.region;
        let Some(class) = region.class_of_chunk(region.layout.chunk_of(block)) else { return };
        let slot_bytes = region.class_bytes(class).load(Relaxed);
        if block.0 % region.layout.descriptors_per_chunk >= region.layout.slots(slot_bytes) {
            // Only a corrupt region names a slot that the chunk does not have. Its payload would
            // lie behind the chunk.
            region.counters().add(Counter::Damaged, 1);
            region.slot_owner(block).store(FREE, Release);
            return;
        }
        self.discharge(heap, block, slot_bytes);
        let head = region.class_head(class);
        region.free_link(block).store(head.load(Relaxed), Relaxed);
        region.slot_owner(block).store(FREE, Release);
        head.store(u32::try_from(block.0 + 1).expect("blocks fit 32 bits on a host"), Release);
    }

    fn pop_free(&self, _: &Holds<Heap>, class: usize) -> Option<BlockIndex> {
        let region = &self.region;
        let head = region.class_head(class);
        let block = BlockIndex(u64::from(head.load(Relaxed).checked_sub(1)?));
        let end = (block.0 % region.layout.descriptors_per_chunk + 1) * region.class_bytes(class).load(Relaxed);
        if end > region.layout.chunk_bytes || region.slot_owner(block).load(Acquire) != FREE {
            // A list that leads to a taken slot, or to one that no chunk of the class has, is corrupt
            // from here on. Drop the rest: `gc` finds lost slots, but a taken slot must not be reserved
            // again, and the payload of the other would lie behind its chunk.
            region.counters().add(Counter::Damaged, 1);
            head.store(0, Release);
            return None;
        }
        head.store(region.free_link(block).load(Relaxed), Release);
        Some(block)
    }

    /// The first slot in the free list that may be written by `fill`.
    fn pop_free_for(&self, heap: &Holds<Heap>, class: usize, fill: Fill) -> Option<BlockIndex> {
        let mut passed = Vec::new();
        let mut refused = None;
        let mut found = None;
        // A list longer than the number of blocks is a cycle.
        for _ in 0..self.region.layout.num_descriptors() {
            let Some(block) = self.pop_free(heap, class) else { break };
            let chunk = self.region.layout.chunk_of(block);
            if refused != Some(chunk) && self.takes(chunk, fill) {
                found = Some(block);
                break;
            }
            refused = Some(chunk);
            passed.push(block);
        }
        for block in passed.into_iter().rev() {
            self.push_free(heap, block);
        }
        found
    }

    /// The class of this slot size; makes a new one if there is room. Classes are made in order and
    /// dropped all at once.
    pub fn class_of(&self, _: &Holds<Heap>, slot_bytes: u64) -> Option<usize> {
        // Zero marks an unused class, and a size that no chunk can have must not take one.
        if !self.region.layout.is_slot(slot_bytes) {
            return None;
        }
        for class in 0..CLASSES {
            match self.region.class_bytes(class).load(Relaxed) {
                bytes if bytes == slot_bytes => return Some(class),
                0 => {
                    self.region.class_bytes(class).store(slot_bytes, Relaxed);
                    return Some(class);
                }
                _ => {}
            }
        }
        None
    }

    /// Removes blocks from a class's free list.
    pub fn unlist(&self, heap: &Holds<Heap>, class: usize, leaves: impl Fn(BlockIndex) -> bool) {
        let mut kept = Vec::new();
        // A list longer than the number of blocks is a cycle.
        for _ in 0..self.region.layout.num_descriptors() {
            let Some(block) = self.pop_free(heap, class) else { break };
            if !leaves(block) {
                kept.push(block);
            }
        }
        for block in kept.into_iter().rev() {
            self.push_free(heap, block);
        }
    }

    /// Blocks in a class's free list, in order, up to a link that leads nowhere or in a cycle.
    pub fn free_list(&self, class: usize) -> Vec<BlockIndex> {
        let region = &self.region;
        let mut seen = BTreeSet::new();
        let mut list = Vec::new();
        let mut next = region.class_head(class).load(Acquire);
        while let Some(block) = u64::from(next).checked_sub(1) {
            if block >= region.layout.num_descriptors() || !seen.insert(block) {
                break;
            }
            list.push(BlockIndex(block));
            next = region.free_link(BlockIndex(block)).load(Relaxed);
        }
        list
    }

    /// Whether a slot that this worker reserved in a life of its host is still its own. Another
    /// host may have declared that life dead, adopted the slot and published in it, before this
    /// host notices.
    pub fn still_reserved(&self, block: BlockIndex, life: u64) -> bool {
        let region = &self.region;
        !region.area.is_inherited()
            && region.incarnation() == life
            && u64::from(region.slot_owner(block).load(Acquire)) == region.slot() + 1
            && !region.is_dead(region.host, life)
    }
}
