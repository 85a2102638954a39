//! The object store (TraCT §3.5): a small table of published roots, found by key. An object is one
//! extent of bytes, at most a chunk long; pointers within it are offsets.

use super::HeldTables;
use crate::error::PoolError;
use crate::region::hit::Hit;
use crate::region::host_layout::OBJECT;
use crate::region::lines::{BlockState, Descriptor, ObjectLine};
use crate::sync::{Holds, Tables as Lock};
use cenote_base::fault::{self, Point};
use cenote_base::{BlockHash, BlockIndex, Generation};
use cenote_mem::{Fabric, HostLocal, LINE, Word};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Smallest extent of an object; larger ones are powers of two, so that few slot sizes arise.
const OBJECT_BYTES_MIN: u64 = 4096;

/// Reads of an object before it counts as missing: one for each copy that may be stale.
pub(crate) const READ_ATTEMPTS: u32 = 4;

/// Objects that a tick looks for one by one, a fence or more each. For more, it reads all rows.
const PROBES_MAX: usize = 16;

/// Longest key in bytes.
const KEY_BYTES_MAX: usize = 56;

/// A new row, its line, and the slots that the key's last value leaves without use.
pub(crate) type Entered = (u64, ObjectLine, Vec<(BlockIndex, Generation)>);

impl<F: Fabric, H: HostLocal> super::Tables<F, H> {
    /// Slot size of an object. Chunk sizes are powers of two, so rounding up never exceeds a chunk.
    pub fn slot_of_object(&self, length: u64) -> Result<u64, PoolError> {
        let chunk_bytes = self.region.layout.chunk_bytes;
        if length > chunk_bytes {
            return Err(PoolError::BlockTooLarge { block_bytes: length, chunk_bytes });
        }
        Ok(length.next_power_of_two().max(OBJECT_BYTES_MIN))
    }

    /// The hash of an object's key.
    pub fn object_hash(&self, key: &str) -> Result<BlockHash, PoolError> {
        if self.region.area.is_inherited() {
            return Err(PoolError::Inherited);
        }
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(PoolError::Config(format!("object key `{key}` must have 1 to {KEY_BYTES_MAX} bytes")));
        }
        let tokens: Vec<u32> = key.bytes().map(u32::from).collect();
        // No namespace has an all-ones fingerprint, so an object's name is never a block's.
        Ok(cenote_base::ChainHasher::new(&self.region.superblock.config.seed, &[0xff; 32]).block(None, &tokens))
    }

    /// Names a block by `key`, whose rows are `old`. Returns the new row, and the slots that the
    /// key's last value leaves without use. The new row is complete before the old one is cleared,
    /// so a death in between loses neither.
    pub fn enter_object(
        &self,
        tables: &HeldTables<'_, F, H>,
        key: &str,
        hash: BlockHash,
        block: BlockIndex,
        length: u64,
        generation: Generation,
        old: Vec<(u64, ObjectLine)>,
    ) -> Result<Entered, PoolError> {
        let (key_hash, generation) = (hash.words(), generation.0);
        let line = ObjectLine { key_hash, block: block.0 + 1, length, generation, ..ObjectLine::default() };
        let row = self.write_row(tables, key, line, &old)?;
        self.region.slot_owner(block).store(OBJECT, Release);
        fault::point(Point::ObjectNamed);
        Ok((row, line, self.forget_replaced(tables, old)))
    }

    /// Clears rows, and frees the memory that they name. Returns the slots that are without use
    /// then.
    ///
    /// # Errors
    /// This host was declared dead; some rows are there yet.
    pub fn forget_rows(
        &self,
        tables: &Holds<Lock>,
        rows: Vec<(u64, ObjectLine)>,
    ) -> Result<Vec<(BlockIndex, Generation)>, PoolError> {
        let unused: Result<Vec<_>, _> =
            rows.into_iter().map(|(row, line)| self.forget_row(tables, row, &line)).collect();
        Ok(unused?.into_iter().flatten().collect())
    }

    /// As [`Tables::forget_rows`], for the rows of a key that has a new one. What stays is valid, and
    /// the next repair clears it.
    pub(super) fn forget_replaced(
        &self,
        tables: &Holds<Lock>,
        rows: Vec<(u64, ObjectLine)>,
    ) -> Vec<(BlockIndex, Generation)> {
        rows.into_iter().filter_map(|(row, line)| self.forget_row(tables, row, &line).ok().flatten()).collect()
    }

    /// As [`Tables::forget_rows`], for one row. Memory goes first: if this process dies in between,
    /// the next holder of the lock clears the row.
    pub(super) fn forget_row(
        &self,
        tables: &Holds<Lock>,
        row: u64,
        line: &ObjectLine,
    ) -> Result<Option<(BlockIndex, Generation)>, PoolError> {
        let unused = match line.memory {
            0 => Some((BlockIndex(line.block - 1), Generation(line.generation))),
            // The row of memory that is not freed stays, so that it has a name.
            _ => self.named_memory(line).map_or(Ok(None), |memory| self.release(tables, &memory))?,
        };
        self.clear_row(tables, row)?;
        Ok(unused)
    }

    /// The row and the descriptor of a key, as the device has them.
    fn find_object(&self, hash: BlockHash) -> Option<(u64, ObjectLine, Descriptor)> {
        let mut rows = self.rows_of(hash).into_iter().filter(|(_, line)| line.memory == 0);
        rows.find_map(|(row, line)| Some((row, line, self.descriptor_of(&line)?)))
    }

    /// The descriptor that an object's row names.
    fn descriptor_of(&self, line: &ObjectLine) -> Option<Descriptor> {
        let block = BlockIndex(line.block.checked_sub(1).filter(|&b| b < self.region.layout.num_descriptors())?);
        // No fence: a stale descriptor does not have the row's generation, a stale payload does not
        // have its checksum, and callers look again.
        self.region.fabric.refresh_unfenced(self.region.layout.descriptor(block));
        let descriptor = self.region.read_descriptor(block)?;
        let whole = descriptor.state == Descriptor::state_word(BlockState::Object, Generation(line.generation));
        let (length, offset) = descriptor.extent();
        // Only a corrupt descriptor leads out of the block's chunk.
        let chunk = self.region.layout.chunk_data(self.region.layout.chunk_of(block));
        let lies_within = offset >= chunk && offset + length <= chunk + self.region.layout.chunk_bytes;
        (whole && lies_within && line.length <= length).then_some(descriptor)
    }

    /// Reads an object and its row once; `None` also if a copy was stale.
    pub fn read_object(&self, hash: BlockHash) -> Option<(u64, ObjectLine, Vec<u8>)> {
        let (row, line, descriptor) = self.find_object(hash)?;
        let (padded, offset) = descriptor.extent();
        let mut bytes = vec![0; usize::try_from(line.length).ok()?];
        for at in (offset..offset + padded).step_by(LINE as usize) {
            self.region.fabric.refresh_unfenced(at);
        }
        let hit = Hit::of(BlockIndex(line.block - 1), &descriptor);
        self.region.refresh_seal(hit.block);
        (hit.hash == hash && self.region.copy_out(&hit, &mut [&mut bytes]) == Some(true)).then_some((row, line, bytes))
    }

    /// Whether a row names the object in a slot, or a word says that the slot holds memory. The
    /// caller has a fresh descriptor of an object.
    pub fn is_used(&self, block: BlockIndex) -> bool {
        let Some(descriptor) = self.region.read_descriptor(block) else { return false };
        if self.region.memory_slot(block).is_some() {
            return self.holds_memory(block);
        }
        let names = |line: &ObjectLine| line.block == block.0 + 1 && line.generation == descriptor.generation().0;
        self.rows_of(descriptor.block_hash()).iter().any(|(_, line)| line.memory == 0 && names(line))
    }

    /// Frees slots of objects and memory that are without use: their worker died before it freed
    /// them, or another host destroyed them. Returns their number.
    pub fn free_unused(&self) -> u64 {
        // A row or a word is written before the owner word of its block, so reading owner words
        // first finds no block that is about to be used.
        let marked: Vec<(BlockIndex, Generation)> = (0_u64..)
            .zip(self.region.slot_owners())
            .filter(|(_, owner)| owner.load(Acquire) == OBJECT)
            .map(|(block, _)| (BlockIndex(block), self.region.raw_generation(BlockIndex(block))))
            .collect();
        let is_memory = |&(block, _): &(BlockIndex, Generation)| self.region.memory_slot(block).is_some();
        let (memory, objects): (Vec<_>, Vec<_>) = marked.into_iter().partition(is_memory);
        let named: BTreeSet<(u64, u64)> = match objects.len() {
            // A probe of each is cheaper than the table.
            0..PROBES_MAX => BTreeSet::new(),
            _ => self.all_rows().map(|(_, line)| (line.block, line.generation)).collect(),
        };
        let is_named = |block: BlockIndex, generation: Generation| {
            named.contains(&(block.0 + 1, generation.0)) || self.is_used(block)
        };
        let unused: Vec<_> = objects.into_iter().filter(|&(block, of)| !is_named(block, of)).collect();
        self.free_objects(&unused) + self.free_objects(&self.without_memory(memory))
    }

    /// Frees slots that are without use. Returns their number.
    pub fn free_objects(&self, objects: &[(BlockIndex, Generation)]) -> u64 {
        objects.iter().map(|&(block, generation)| u64::from(self.free_object(block, generation))).sum()
    }

    /// Frees a slot that is without use, unless it is free already.
    fn free_object(&self, block: BlockIndex, generation: Generation) -> bool {
        if block.0 >= self.region.layout.num_descriptors() {
            return false;
        }
        // Another host frees its own blocks: its tick looks for objects without a name.
        if !self.region.lists(block) {
            return false;
        }
        // Without the lock the block stays until the next recovery.
        let Ok(heap) = self.blocks.lock_heap_patiently() else { return false };
        // A worker may have freed it, reserved it again and described memory that no word shows
        // yet.
        if self.region.slot_owner(block).load(Acquire) != OBJECT {
            return false;
        }
        let object = Descriptor::state_word(BlockState::Object, generation);
        if self.region.read_descriptor(block).is_none_or(|descriptor| descriptor.state != object) {
            return false;
        }
        self.space.write_free(block);
        self.space.push_free(&heap, block);
        true
    }
}
