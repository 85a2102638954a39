//! Memory of the region for programs that keep their own structures in it (TraCT §3.5, §3.6;
//! docs/internals/protocol.md#memory). It stays until a process of any host frees it. Names lead
//! other processes to it.
//!
//! Callers pass unchecked sizes and offsets. Words in the region say where memory begins, so no
//! other offset is freed or named.

use super::Pool;
use crate::error::PoolError;
use crate::region::piece::Arena;
use crate::space::Fill;
use crate::tables::objects::READ_ATTEMPTS;
use cenote_base::fault::{self, Point};
use cenote_mem::{Fabric, HostLocal, LINE};
use std::ops::Range;

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Offsets of the region's data area, which holds all memory, objects and blocks.
    #[must_use]
    pub fn space(&self) -> Range<u64> {
        let layout = &self.0.region.layout;
        layout.data()..layout.data() + layout.data_bytes()
    }

    /// Allocates at least `bytes` of memory, in whole lines. Returns its offset in the region, a
    /// multiple of 64. The memory outlives this process and this host, until it is freed.
    ///
    /// # Errors
    /// It is more than a chunk, there is no room, or a lock was busy for too long.
    pub fn allocate(&self, bytes: u64) -> Result<u64, PoolError> {
        let member = &*self.0;
        let (region, tables) = (&member.region, &member.tables);
        if region.area.is_inherited() {
            return Err(PoolError::Inherited);
        }
        let slot_bytes = tables.slot_of_object(bytes)?;
        let life = region.incarnation();
        let arena_bytes = Arena::slot_bytes(region.layout.chunk_bytes);
        let lines = bytes.div_ceil(LINE).max(1);
        let small = (lines <= Arena::new(0, arena_bytes).longest()).then_some(lines);
        if let Some(lines) = small {
            let held = tables.lock_alive()?;
            if let Some(offset) = tables.take_piece(&held, lines) {
                drop(held);
                fault::point(Point::MemoryAllocated);
                return Ok(offset);
            }
        }
        // Reserving may evict and takes the heap lock, so it comes before the table lock.
        let slot_bytes = if small.is_some() { arena_bytes } else { slot_bytes };
        let slot = member.evictor.reserve(slot_bytes, Fill::InPlace).map_err(|_| PoolError::NoRoom(bytes))?;
        let generation = tables.prepare_memory(slot, small);
        let shown = tables.lock_alive().and_then(|held| match member.space.still_reserved(slot.block, life) {
            true => tables.show_memory(&held, slot, generation, small.is_some()),
            false => Err(PoolError::DeclaredDead),
        });
        let offset = shown.inspect_err(|_| member.blocks.unreserve_in(slot.block, life))?;
        fault::point(Point::MemoryAllocated);
        Ok(offset)
    }

    /// Frees memory that any process of any host has allocated. Lines of it that this host's caches
    /// hold are written back first. A third host that wrote to it must have flushed its lines
    /// before, because they could arrive after the memory was allocated again.
    ///
    /// # Errors
    /// No memory begins at the offset, or it has a name ([`Pool::destroy_object`] frees it), or a
    /// lock was busy for too long.
    pub fn free(&self, offset: u64) -> Result<(), PoolError> {
        let member = &*self.0;
        let tables = member.tables.lock_alive()?;
        let memory = member.tables.unnamed_memory_at(offset)?;
        let unused = member.tables.release(&tables, &memory)?;
        drop(tables);
        member.tables.free_objects(unused.as_slice());
        Ok(())
    }

    /// Bytes of allocated memory without a name: at least as many as were asked for.
    ///
    /// # Errors
    /// As for [`Pool::free`].
    pub fn allocated_bytes(&self, offset: u64) -> Result<u64, PoolError> {
        let member = &*self.0;
        if member.region.area.is_inherited() {
            return Err(PoolError::Inherited);
        }
        Ok(member.tables.unnamed_memory_at(offset)?.bytes)
    }

    /// Names allocated memory, in place of the object that had the name, which is freed. Writes
    /// through this processor's caches are flushed.
    ///
    /// # Errors
    /// As for [`Pool::free`]; also if the key is empty or too long, or the table is full.
    pub fn name_memory(&self, key: &str, offset: u64) -> Result<(), PoolError> {
        let member = &*self.0;
        let hash = member.tables.object_hash(key)?;
        let tables = member.tables.lock_alive()?;
        let memory = member.tables.unnamed_memory_at(offset)?;
        member.region.refresh_range(offset, offset + memory.bytes);
        let unused = member.tables.enter_memory(&tables, key, hash, &memory)?;
        drop(tables);
        fault::point(Point::ObjectEntered);
        member.tables.free_objects(&unused);
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
        // During a replacement neither row may be visible.
        let found = (0..READ_ATTEMPTS).find_map(|_| member.tables.memory_of_key(hash));
        Ok(found.inspect(|&(offset, bytes)| member.region.refresh_range(offset, offset + bytes)))
    }
}
