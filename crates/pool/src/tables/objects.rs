//! The object store (TraCT §3.5): a small table of published roots, found by key. An object is one
//! extent of bytes, at most a chunk long; pointers within it are offsets.

use crate::error::PoolError;
use crate::region::host_layout::OBJECT;
use crate::region::layout::OBJECTS;
use crate::region::lines::{BlockState, Descriptor, NameLine, ObjectLine, checksum_key};
use crate::sync::{Holds, Tables};
use cenote_base::fault::{self, Point};
use cenote_base::{BlockHash, BlockIndex, Generation};
use cenote_mem::{Fabric, HostLocal, LINE, Word};
use std::sync::atomic::Ordering::{Acquire, Release};

/// Smallest extent of an object; larger ones are powers of two, so that few slot sizes arise.
const OBJECT_BYTES_MIN: u64 = 4096;

/// Reads of an object before it counts as missing: one for each copy that may be stale.
pub(crate) const READ_ATTEMPTS: u32 = 4;

/// Longest key in bytes.
const KEY_BYTES_MAX: usize = 56;

/// A publication of an object. Generations are never reused, so an unchanged row is an unchanged
/// object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectMark {
    pub(crate) row: u64,
    block: u64,
    generation: u64,
}

impl ObjectMark {
    pub(crate) const fn of(row: u64, line: &ObjectLine) -> Self {
        Self { row, block: line.block, generation: line.generation }
    }
}

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

    /// A row of the object table.
    pub fn object_line(&self, row: u64) -> Option<ObjectLine> {
        let at = self.region.layout.object(row);
        self.region.read::<ObjectLine>(at).filter(|line| line.block != 0)
    }

    /// Rows of this key: one, or two after a death in the middle of a replacement; either is valid.
    pub fn rows_of(&self, hash: BlockHash) -> Vec<(u64, ObjectLine)> {
        let rows = (0..OBJECTS).filter_map(|row| Some((row, self.object_line(row)?)));
        rows.filter(|(_, line)| line.key_hash == hash.words()).collect()
    }

    /// Clears rows. Returns the blocks that they named.
    pub fn clear_rows(&self, _: &Holds<Tables>, rows: Vec<(u64, ObjectLine)>) -> Vec<(BlockIndex, Generation)> {
        rows.into_iter()
            .map(|(row, line)| {
                self.region.clear(self.region.layout.object(row));
                (BlockIndex(line.block - 1), Generation(line.generation))
            })
            .collect()
    }

    /// Names `block` by `key`. Returns the blocks that the key named before. The new row is
    /// complete before the old one is cleared, so a death in between loses neither.
    pub fn enter_object(
        &self,
        tables: &Holds<Tables>,
        key: &str,
        hash: BlockHash,
        block: BlockIndex,
        length: u64,
        generation: Generation,
    ) -> Result<Vec<(BlockIndex, Generation)>, PoolError> {
        let old = self.rows_of(hash);
        let full = PoolError::TableFull { table: "object", rows: OBJECTS, fact: "" };
        let row = (0..OBJECTS).find(|&row| self.object_line(row).is_none()).ok_or(full)?;
        let at = self.region.layout.object(row);
        let line = ObjectLine {
            key_hash: hash.words(),
            block: block.0 + 1,
            length,
            generation: generation.0,
            ..ObjectLine::default()
        };
        self.region.write(at + LINE, NameLine::new(key));
        self.region.write(at, line);
        // Before the old row is cleared, and before the owner word sends others to look for the
        // row.
        self.region.fabric.fence();
        self.region.slot_owner(block).store(OBJECT, Release);
        fault::point(Point::ObjectNamed);
        Ok(self.clear_rows(tables, old))
    }

    /// The row and the descriptor of a key, as the device has them.
    pub fn find_object(&self, hash: BlockHash) -> Option<(ObjectMark, ObjectLine, Descriptor)> {
        self.region.refresh_objects();
        let (row, line) = self.rows_of(hash).into_iter().next()?;
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
        (whole && lies_within && line.length <= length).then_some((ObjectMark::of(row, &line), line, descriptor))
    }

    /// Reads an object once; `None` also if a copy was stale.
    pub fn read_object(&self, hash: BlockHash) -> Option<(Vec<u8>, ObjectMark)> {
        let (mark, line, descriptor) = self.find_object(hash)?;
        let (padded, offset) = descriptor.extent();
        let mut bytes = vec![0; usize::try_from(line.length).ok()?];
        for at in (offset..offset + padded).step_by(LINE as usize) {
            self.region.fabric.refresh_unfenced(at);
        }
        let key = checksum_key(hash, descriptor.generation());
        let checksum = self.region.fabric.read_payload(offset, &mut [&mut bytes], key);
        (checksum == descriptor.checksum).then_some((bytes, mark))
    }

    /// Blocks that rows of the object table name.
    pub fn object_blocks(&self) -> Vec<BlockIndex> {
        self.region.refresh_objects();
        (0..OBJECTS).filter_map(|row| self.object_line(row)).map(|line| BlockIndex(line.block - 1)).collect()
    }

    /// Frees objects that no row names: their worker died before it freed them, or another host
    /// destroyed them. Returns their number.
    pub fn free_unnamed_objects(&self) -> u64 {
        // A row is written before the owner word of its block, so reading owner words first and
        // rows second finds no block that is about to be named.
        let marked: Vec<(BlockIndex, Generation)> = (0_u64..)
            .zip(self.region.slot_owners())
            .filter(|(_, owner)| owner.load(Acquire) == OBJECT)
            .map(|(block, _)| (BlockIndex(block), self.region.raw_generation(BlockIndex(block))))
            .collect();
        if marked.is_empty() {
            return 0;
        }
        let named = self.object_blocks();
        let unnamed: Vec<_> = marked.into_iter().filter(|(block, _)| !named.contains(block)).collect();
        self.free_objects(&unnamed)
    }

    /// Frees the blocks of objects that no row names. Returns their number.
    pub fn free_objects(&self, objects: &[(BlockIndex, Generation)]) -> u64 {
        objects.iter().map(|&(block, generation)| u64::from(self.free_object(block, generation))).sum()
    }

    /// Frees the block of an object that no row names, unless it is free already.
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
        let object = Descriptor::state_word(BlockState::Object, generation);
        if self.region.read_descriptor(block).is_none_or(|descriptor| descriptor.state != object) {
            return false;
        }
        self.space.write_free(block);
        self.space.push_free(&heap, block);
        true
    }
}
