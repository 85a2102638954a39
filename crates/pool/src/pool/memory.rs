//! Raw memory of the region for programs that keep their own structures in it (TraCT §3.5, §3.6):
//! allocated from this host's chunks, named when it is ready, found by name on every host.
//!
//! Callers pass unchecked sizes and offsets. A worker's own record says which memory it has
//! allocated, so neither a corrupt region nor a slot reserved for something else makes an offset
//! valid.

use super::Pool;
use crate::blocks::Label;
use crate::blocks::life::Draft;
use crate::error::PoolError;
use crate::log::events::Names;
use crate::members::{Allocation, Member};
use crate::region::host_layout::OBJECT;
use crate::region::lines::{BlockState, Descriptor};
use crate::space::{Fill, Slot};
use cenote_base::fault::{self, Point};
use cenote_base::{BlockHash, BlockIndex, Generation};
use cenote_mem::{Fabric, HostLocal, Word};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering::Acquire;

/// Encoding of objects that change after they were named. They have no checksum.
const MUTABLE: u8 = 1;

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Offsets of the region's data area, which holds all memory, objects and blocks.
    #[must_use]
    pub fn space(&self) -> Range<u64> {
        let layout = &self.0.region.layout;
        layout.data()..layout.data() + layout.data_bytes()
    }

    /// Allocates at least `bytes` of memory. Returns its offset in the region, a multiple of 64.
    /// Recovery frees it when this worker dies or leaves, unless [`Pool::name_memory`] has named
    /// it.
    ///
    /// # Errors
    /// It is more than a chunk, or there is no room.
    pub fn allocate(&self, bytes: u64) -> Result<u64, PoolError> {
        let member = &*self.0;
        if member.region.area.is_inherited() {
            return Err(PoolError::Inherited);
        }
        let slot_bytes = member.tables.slot_of_object(bytes)?;
        let life = member.region.incarnation();
        let slot = member.evictor.reserve(slot_bytes, None, Fill::InPlace).map_err(|_| PoolError::NoRoom(bytes))?;
        let offset = member.region.layout.payload(slot.block, slot.bytes);
        member.allocated().insert(offset, Allocation { slot, life });
        fault::point(Point::MemoryAllocated);
        Ok(offset)
    }

    /// Frees allocated memory. [`Pool::destroy_object`] frees named memory.
    ///
    /// # Errors
    /// This worker did not allocate the offset, or its memory has a name.
    pub fn free(&self, offset: u64) -> Result<(), PoolError> {
        let member = &*self.0;
        let Allocation { slot, life } = member.take_allocated(offset)?;
        member.blocks.unreserve_in(slot.block, life);
        Ok(())
    }

    /// Bytes of allocated memory that has no name: at least as many as were asked for.
    ///
    /// # Errors
    /// As for [`Pool::free`].
    pub fn allocated_bytes(&self, offset: u64) -> Result<u64, PoolError> {
        let member = &*self.0;
        if member.region.area.is_inherited() {
            return Err(PoolError::Inherited);
        }
        member.allocated_at(&member.allocated(), offset).map(|allocation| allocation.slot.bytes)
    }

    /// Names allocated memory, in place of the object that had the name. From then on it belongs to
    /// the region and outlives this process. Writes through this processor's caches are flushed.
    ///
    /// # Errors
    /// As for [`Pool::free`] and [`Pool::put_object`]; also if this host was declared dead.
    pub fn name_memory(&self, key: &str, offset: u64) -> Result<(), PoolError> {
        let member = &*self.0;
        let hash = member.tables.object_hash(key)?;
        let allocation = member.take_allocated(offset)?;
        // Another host may have adopted the memory, and no checksum would show it.
        if !member.space.still_reserved(allocation.slot.block, allocation.life) {
            return Err(PoolError::DeclaredDead);
        }
        let replaced = member.name_slot(key, hash, allocation.slot).inspect_err(|_| {
            member.allocated().insert(offset, allocation);
        })?;
        fault::point(Point::ObjectEntered);
        member.tables.free_objects(&replaced);
        Ok(())
    }

    /// Offset and length in bytes of the memory with this name. Drops old copies of it from this
    /// processor's caches.
    ///
    /// # Errors
    /// The key is empty or too long.
    pub fn find_memory(&self, key: &str) -> Result<Option<(u64, u64)>, PoolError> {
        let member = &*self.0;
        let hash = member.tables.object_hash(key)?;
        let found = member.tables.find_object(hash).filter(|(_, _, descriptor)| descriptor.encoding() == MUTABLE);
        let place = found.map(|(_, _, descriptor)| {
            let (length, offset) = descriptor.extent();
            member.region.fabric.refresh_payload(offset, length);
            (offset, length)
        });
        Ok(place)
    }
}

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// Describes memory and names it. Returns the blocks that had the name.
    fn name_slot(&self, key: &str, hash: BlockHash, slot: Slot) -> Result<Vec<(BlockIndex, Generation)>, PoolError> {
        let region = &self.region;
        region.fabric.refresh_payload(region.layout.payload(slot.block, slot.bytes), slot.bytes);
        let generation = self.blocks.next_generation(slot.block);
        let kind = Descriptor::pack_kind(0, MUTABLE, region.slot() as u16, 0);
        let label = Label { hash, state: BlockState::Object, kind, names: Names::default() };
        self.blocks.describe(&[Draft { at: 0, slot, label, generation, length: slot.bytes, checksum: 0 }]);
        fault::point(Point::ObjectWritten);
        let tables = self.locks.lock_tables(self.locks.patient()).map_err(PoolError::lock("table"))?;
        self.tables.enter_object(&tables, key, hash, slot.block, slot.bytes, generation)
    }

    /// Removes memory from this worker's record, so that the caller may free or name it.
    fn take_allocated(&self, offset: u64) -> Result<Allocation, PoolError> {
        if self.region.area.is_inherited() {
            return Err(PoolError::Inherited);
        }
        let mut all = self.allocated();
        let allocation = self.allocated_at(&all, offset)?;
        all.remove(&offset);
        Ok(allocation)
    }

    /// Memory at this offset that this worker has allocated and not named.
    fn allocated_at(&self, all: &BTreeMap<u64, Allocation>, offset: u64) -> Result<Allocation, PoolError> {
        let region = &self.region;
        let wrong = |fact: &str| Err(PoolError::Config(format!("the memory at offset {offset:#x} {fact}")));
        let within = |&into: &u64| into < region.layout.data_bytes();
        let Some(into) = offset.checked_sub(region.layout.data()).filter(within) else {
            return wrong("lies outside the region's space");
        };
        let chunk = into / region.layout.chunk_bytes;
        let Some(line) = region.own_chunk(chunk) else { return wrong("is another host's") };
        let (slot, rest) = (into % region.layout.chunk_bytes / line.slot_bytes, into % line.slot_bytes);
        if rest != 0 || slot >= region.layout.slots(line.slot_bytes) {
            return wrong("is the middle of something");
        }
        let block = BlockIndex(chunk * region.layout.descriptors_per_chunk + slot);
        let owner = region.slot_owner(block).load(Acquire);
        let is_it = |known: &&Allocation| known.slot.block == block && known.slot.bytes == line.slot_bytes;
        let known = all.get(&offset).filter(is_it);
        match known.filter(|_| u64::from(owner) == region.slot() + 1) {
            Some(&allocation) => Ok(allocation),
            None if owner == OBJECT => wrong("has a name, and goes with it"),
            None => wrong("is not allocated by this process"),
        }
    }
}
