//! Raw memory of the region, for programs that keep structures of their own in it (TraCT §3.5, §3.6): allocated from this
//! host's heap, given a name when it is ready, found by it on every host. The pool knows where it is and not what is in it.

use crate::error::PoolError;
use crate::events::Names;
use crate::heap::OBJECT;
use crate::lines::{BlockState, Descriptor};
use crate::locks::Name;
use crate::objects::slot_of_object;
use crate::pool::{Inner, Pool};
use cenote_base::{BlockIndex, fault};
use cenote_mem::{Fabric, HostLocal, Word};
use std::sync::atomic::Ordering::Acquire;

/// The encoding of objects whose bytes change after they were named, so that they have no checksum.
pub(crate) const MUTABLE: u8 = 1;

impl<F: Fabric, H: HostLocal> Pool<F, H> {
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
        let slot_bytes = slot_of_object(bytes);
        if slot_bytes > inner.layout.chunk_bytes {
            return Err(PoolError::BlockTooLarge { block_bytes: bytes, chunk_bytes: inner.layout.chunk_bytes });
        }
        let slot = inner.reserve(slot_bytes, None).map_err(|_| PoolError::NoRoom(bytes))?;
        fault::point("memory.allocated");
        Ok(inner.layout.payload(slot.block, slot.bytes))
    }

    /// Gives allocated memory back. What has a name goes with it ([`Pool::destroy_object`]).
    ///
    /// # Errors
    /// The offset is none that this worker was given, or its memory has a name.
    pub fn free(&self, offset: u64) -> Result<(), PoolError> {
        let inner = &*self.0;
        let (block, _) = inner.allocated_at(offset)?;
        inner.unreserve_in(block, inner.incarnation());
        Ok(())
    }

    /// Bytes of allocated memory that has no name: at least as many as were asked for.
    ///
    /// # Errors
    /// As for [`Pool::free`].
    pub fn allocated_bytes(&self, offset: u64) -> Result<u64, PoolError> {
        self.0.allocated_at(offset).map(|(_, length)| length)
    }

    /// Names allocated memory, in place of what had the name. From here on it belongs to the region and outlives this
    /// process. What was written to it through this processor's caches is flushed.
    ///
    /// # Errors
    /// As for [`Pool::free`], and as for [`Pool::put_object`]; and this host was declared dead.
    pub fn name_memory(&self, key: &str, offset: u64) -> Result<(), PoolError> {
        let inner = &*self.0;
        let hash = inner.object_hash(key)?;
        let (block, length) = inner.allocated_at(offset)?;
        // The memory may be another host's by now, and has no checksum that would tell.
        if !inner.still_reserved(block, inner.incarnation()) {
            return Err(PoolError::DeclaredDead);
        }
        inner.fabric.refresh_payload(offset, length);
        let generation = inner.next_generation(block);
        let kind = Descriptor::pack_kind(0, MUTABLE, inner.member.slot as u16, 0);
        inner.describe_block(block, (offset, length), hash, BlockState::Object, kind, Names::default(), generation, 0);
        fault::point("object.written");
        let _tables = inner.lock_patiently(Name::Tables).map_err(PoolError::lock("table"))?;
        let replaced = inner.enter_object(key, hash, block, length, generation)?;
        drop(_tables);
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
        let found = inner.find_object(hash).filter(|(_, descriptor)| descriptor.encoding() == MUTABLE);
        let place = found.map(|(_, descriptor)| {
            let (length, offset) = descriptor.extent();
            inner.fabric.refresh_payload(offset, length);
            (offset, length)
        });
        Ok(place)
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// The slot of memory that this worker has allocated and not named, and its bytes.
    fn allocated_at(&self, offset: u64) -> Result<(BlockIndex, u64), PoolError> {
        if self.area.is_inherited() {
            return Err(PoolError::Inherited);
        }
        let wrong = |fact: &str| Err(PoolError::Config(format!("the memory at offset {offset:#x} {fact}")));
        let Some(into) = offset.checked_sub(self.layout.data()).filter(|&into| into < self.layout.data_bytes()) else {
            return wrong("lies outside the region's space");
        };
        let chunk = into / self.layout.chunk_bytes;
        let Some(line) = self.read_chunk(chunk).filter(|line| line.owner == self.host + 1 && line.slot_bytes > 0)
        else {
            return wrong("is another host's");
        };
        let (slot, rest) = (into % self.layout.chunk_bytes / line.slot_bytes, into % line.slot_bytes);
        if rest != 0 || slot >= self.layout.slots(line.slot_bytes) {
            return wrong("is the middle of something");
        }
        let block = BlockIndex(chunk * self.layout.descriptors_per_chunk + slot);
        match self.slot_owner(block).load(Acquire) {
            owner if u64::from(owner) == self.member.slot + 1 => Ok((block, line.slot_bytes)),
            OBJECT => wrong("has a name, and goes with it"),
            _ => wrong("is not allocated by this process"),
        }
    }
}
