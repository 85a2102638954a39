//! Raw memory of the region, for programs that keep structures of their own in it (TraCT §3.5, §3.6): allocated from this
//! host's heap, given a name when it is ready, found by it on every host. The pool knows where it is and not what is in it.
//!
//! Callers hand in sizes and offsets that nobody has checked. A worker's own record says which memory it has, so neither a
//! damaged region nor a slot that is reserved for something else makes an offset valid.

use crate::error::PoolError;
use crate::events::Names;
use crate::heap::{OBJECT, Slot};
use crate::locks::Name;
use crate::pool::{Inner, Pool};
use crate::region::lines::{BlockState, Descriptor};
use crate::strays::Fill;
use cenote_base::{BlockHash, BlockIndex, Generation, fault};
use cenote_mem::{Fabric, HostLocal, Word};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The encoding of objects whose bytes change after they were named, so that they have no checksum.
pub(crate) const MUTABLE: u8 = 1;

/// Memory that this worker has allocated and not named.
#[derive(Clone, Copy, Debug)]
struct Allocation {
    slot: Slot,
    /// Of the host, when it was allocated.
    life: u64,
}

/// All of it, by offset. Freeing and naming take the entry out first, so that of several threads one succeeds.
#[derive(Debug, Default)]
pub(crate) struct Allocated(Mutex<BTreeMap<u64, Allocation>>);

impl Allocated {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Allocation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Offsets of the region's space: all memory, objects and blocks lie in it.
    #[must_use]
    pub fn space(&self) -> Range<u64> {
        let layout = &self.0.layout;
        layout.data()..layout.data() + layout.data_bytes()
    }

    /// Allocates at least `bytes` of memory; returns its offset in the region, a multiple of 64. It is this worker's, and
    /// goes with it, until [`Pool::name_memory`].
    ///
    /// # Errors
    /// It is more than a chunk, or there is no room.
    pub fn allocate(&self, bytes: u64) -> Result<u64, PoolError> {
        let inner = &*self.0;
        if inner.area.is_inherited() {
            return Err(PoolError::Inherited);
        }
        let slot_bytes = inner.slot_of_object(bytes)?;
        let life = inner.incarnation();
        let slot = inner.reserve(slot_bytes, None, Fill::InPlace).map_err(|_| PoolError::NoRoom(bytes))?;
        let offset = inner.layout.payload(slot.block, slot.bytes);
        inner.allocated.all().insert(offset, Allocation { slot, life });
        fault::point("memory.allocated");
        Ok(offset)
    }

    /// Gives allocated memory back. What has a name goes with it ([`Pool::destroy_object`]).
    ///
    /// # Errors
    /// The offset is none that this worker was given, or its memory has a name.
    pub fn free(&self, offset: u64) -> Result<(), PoolError> {
        let inner = &*self.0;
        let Allocation { slot, life } = inner.take_allocated(offset)?;
        inner.unreserve_in(slot.block, life);
        Ok(())
    }

    /// Bytes of allocated memory that has no name: at least as many as were asked for.
    ///
    /// # Errors
    /// As for [`Pool::free`].
    pub fn allocated_bytes(&self, offset: u64) -> Result<u64, PoolError> {
        let inner = &*self.0;
        if inner.area.is_inherited() {
            return Err(PoolError::Inherited);
        }
        inner.allocated_at(&inner.allocated.all(), offset).map(|allocation| allocation.slot.bytes)
    }

    /// Names allocated memory, in place of what had the name. From here on it belongs to the region and outlives this
    /// process. What was written to it through this processor's caches is flushed.
    ///
    /// # Errors
    /// As for [`Pool::free`], and as for [`Pool::put_object`]; and this host was declared dead.
    pub fn name_memory(&self, key: &str, offset: u64) -> Result<(), PoolError> {
        let inner = &*self.0;
        let hash = inner.object_hash(key)?;
        let allocation = inner.take_allocated(offset)?;
        // The memory may be another host's by now, and has no checksum that would tell.
        if !inner.still_reserved(allocation.slot.block, allocation.life) {
            return Err(PoolError::DeclaredDead);
        }
        let replaced = inner.name_slot(key, hash, offset, allocation.slot).inspect_err(|_| {
            inner.allocated.all().insert(offset, allocation);
        })?;
        fault::point("object.entered");
        inner.free_objects(&replaced);
        Ok(())
    }

    /// Offset and length in bytes of the memory that has this name. Old copies of it are dropped from this processor's
    /// caches.
    ///
    /// # Errors
    /// The key cannot be one.
    pub fn find_memory(&self, key: &str) -> Result<Option<(u64, u64)>, PoolError> {
        let inner = &*self.0;
        let hash = inner.object_hash(key)?;
        let found = inner.find_object(hash).filter(|(_, _, descriptor)| descriptor.encoding() == MUTABLE);
        let place = found.map(|(_, _, descriptor)| {
            let (length, offset) = descriptor.extent();
            inner.fabric.refresh_payload(offset, length);
            (offset, length)
        });
        Ok(place)
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// Describes memory and enters its name; returns what had the name.
    fn name_slot(
        &self,
        key: &str,
        hash: BlockHash,
        offset: u64,
        Slot { block, bytes }: Slot,
    ) -> Result<Vec<(BlockIndex, Generation)>, PoolError> {
        self.fabric.refresh_payload(offset, bytes);
        let generation = self.next_generation(block);
        let kind = Descriptor::pack_kind(0, MUTABLE, self.slot() as u16, 0);
        self.describe_block(block, (offset, bytes), hash, BlockState::Object, kind, Names::default(), generation, 0);
        fault::point("object.written");
        let _tables = self.lock_patiently(Name::Tables).map_err(PoolError::lock("table"))?;
        self.enter_object(key, hash, block, bytes, generation)
    }

    /// Takes memory out of this worker's record, for a caller that frees or names it.
    fn take_allocated(&self, offset: u64) -> Result<Allocation, PoolError> {
        if self.area.is_inherited() {
            return Err(PoolError::Inherited);
        }
        let mut all = self.allocated.all();
        let allocation = self.allocated_at(&all, offset)?;
        all.remove(&offset);
        Ok(allocation)
    }

    /// Memory that this worker has allocated and not named.
    fn allocated_at(&self, all: &BTreeMap<u64, Allocation>, offset: u64) -> Result<Allocation, PoolError> {
        let wrong = |fact: &str| Err(PoolError::Config(format!("the memory at offset {offset:#x} {fact}")));
        let Some(into) = offset.checked_sub(self.layout.data()).filter(|&into| into < self.layout.data_bytes()) else {
            return wrong("lies outside the region's space");
        };
        let chunk = into / self.layout.chunk_bytes;
        let Some(line) = self.read_chunk(chunk).filter(|line| line.owner == self.host + 1) else {
            return wrong("is another host's");
        };
        let (slot, rest) = (into % self.layout.chunk_bytes / line.slot_bytes, into % line.slot_bytes);
        if rest != 0 || slot >= self.layout.slots(line.slot_bytes) {
            return wrong("is the middle of something");
        }
        let block = BlockIndex(chunk * self.layout.descriptors_per_chunk + slot);
        let owner = self.slot_owner(block).load(Acquire);
        let is_it = |known: &&Allocation| known.slot.block == block && known.slot.bytes == line.slot_bytes;
        let known = all.get(&offset).filter(is_it);
        match known.filter(|_| u64::from(owner) == self.slot() + 1) {
            Some(&allocation) => Ok(allocation),
            None if owner == OBJECT => wrong("has a name, and goes with it"),
            None => wrong("is not allocated by this process"),
        }
    }
}
