//! Eviction in the plain design: the oldest block without a reference count leaves (TraCT §4.2).

use super::Evictor;
use super::room::Room;
use crate::index::{LIST, ListGuard, block_of};
use crate::region::cause::Cause;
use crate::region::counters::Counter;
use crate::region::host_layout::{FREE, PUBLISHED};
use crate::sync::{Heap, Holds};
use cenote_base::BlockIndex;
use cenote_base::fault::{self, Point};
use cenote_mem::{Fabric, HostLocal, Word};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Acquire;

impl<F: Fabric, H: HostLocal> Evictor<F, H> {
    /// Evicts up to `want` blocks of this host, the oldest first. Returns their number.
    pub(super) fn evict_oldest(&self, heap: &Holds<Heap>, want: usize) -> usize {
        let Ok(mut list) = self.index.lock_list() else { return 0 };
        let mut victims = Vec::new();
        let mut at = LIST;
        while victims.len() < want
            && let Some(newer) = list.newer(at)
        {
            at = newer;
            let block = block_of(at);
            if self.is_ours(block) && self.may_leave(&mut list, block) {
                victims.push(block);
            }
        }
        self.leave(heap, list, &victims)
    }

    /// Makes room for a class: evicts its oldest block, or all blocks of another class's chunk if
    /// they are older. Without a class, empties any chunk.
    pub(super) fn make_plain_room(&self, heap: &Holds<Heap>, class: Option<usize>) -> Room {
        let of_others = |chunk: &u64| self.region.class_of_chunk(*chunk).is_some_and(|is| class != Some(is));
        let mut others = self.region.listed_chunks().filter(of_others);
        if let Some(chunk) = others.find(|&chunk| self.space.is_empty(chunk)) {
            self.space.release_chunk(heap, chunk);
            return Room::Made;
        }
        let Ok(mut list) = self.index.lock_list() else { return Room::None };
        let mut older: BTreeMap<u64, usize> = BTreeMap::new();
        let mut at = LIST;
        while let Some(newer) = list.newer(at) {
            at = newer;
            let block = block_of(at);
            if !self.is_ours(block) {
                continue;
            }
            let chunk = self.region.layout.chunk_of(block);
            if !of_others(&chunk) {
                if self.may_leave(&mut list, block) {
                    return if self.leave(heap, list, &[block]) > 0 { Room::Made } else { Room::None };
                }
                continue;
            }
            let count = older.entry(chunk).or_default();
            *count += 1;
            if let Some(blocks) = self.all_may_leave(&mut list, chunk).filter(|blocks| blocks.len() == *count) {
                self.leave(heap, list, &blocks);
                self.space.release_chunk(heap, chunk);
                return Room::Made;
            }
        }
        Room::None
    }

    /// Whether a block is published in a chunk of this host. Owner words of other chunks are stale.
    fn is_ours(&self, block: BlockIndex) -> bool {
        self.region.lists(block) && self.region.slot_owner(block).load(Acquire) == PUBLISHED
    }

    fn may_leave(&self, list: &mut ListGuard<'_, F, H>, block: BlockIndex) -> bool {
        let counted = list.count(block) > 0;
        self.region.counters().add(Counter::EvictionsPinned, u64::from(counted));
        !counted
    }

    /// The blocks of a chunk, if it holds nothing else and no block has a reference count.
    fn all_may_leave(&self, list: &mut ListGuard<'_, F, H>, chunk: u64) -> Option<Vec<BlockIndex>> {
        let mut blocks = Vec::new();
        for block in self.region.slots_of(chunk) {
            match self.region.slot_owner(block).load(Acquire) {
                FREE => {}
                PUBLISHED if list.count(block) == 0 => blocks.push(block),
                _ => return None,
            }
        }
        Some(blocks)
    }

    /// Evicts blocks without reference counts and ends the list. Returns their number.
    fn leave(&self, heap: &Holds<Heap>, mut list: ListGuard<'_, F, H>, blocks: &[BlockIndex]) -> usize {
        for &block in blocks {
            let descriptor = self.region.read_descriptor(block);
            self.log.tell_removed(block);
            if let Some(descriptor) = &descriptor {
                self.log.note_removal(block, descriptor, Cause::Evicted);
            }
            // A reader with an old hit finds it gone from here on.
            self.space.write_free(block);
            if let Some(descriptor) = descriptor {
                self.index.unlink_locked(list.shard(), descriptor.block_hash(), block);
            }
            list.remove(block);
        }
        drop(list);
        fault::point(Point::EvictUnlinked);
        blocks.iter().for_each(|&block| self.space.push_free(heap, block));
        self.region.counters().add(Counter::Evicted, blocks.len() as u64);
        fault::point(Point::EvictFreed);
        blocks.len()
    }
}
