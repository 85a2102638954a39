//! The object store (TraCT §3.5): a small table of published roots, found by key. An object is one
//! extent of bytes, at most a chunk long; what it points to it names by offset.

use crate::error::PoolError;
use crate::events::Names;
use crate::heap::OBJECT;
use crate::locks::Name;
use crate::pool::{Inner, Pool};
use crate::region::layout::OBJECTS;
use crate::region::lines::{BlockState, Descriptor, NameLine, ObjectLine, checksum_key};
use crate::strays::Fill;
use cenote_base::{BlockHash, BlockIndex, Generation, fault};
use cenote_mem::{Fabric, HostLocal, LINE, Word};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Smallest extent of an object; larger ones are powers of two, so that few slot sizes arise.
const OBJECT_BYTES_MIN: u64 = 4096;

/// Looks at an object before it is taken for missing: one for each thing that may be stale.
const READ_ATTEMPTS: u32 = 4;

/// Longest key in bytes.
const KEY_BYTES_MAX: usize = 56;

/// Where an object was found, and as which publication. A generation is never used twice, so an unchanged row means an
/// unchanged object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectMark {
    row: u64,
    block: u64,
    generation: u64,
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Publishes `bytes` under `key`, in place of what was there.
    ///
    /// # Errors
    /// The key is empty or too long, the object is longer than a chunk, or there is no room.
    pub fn put_object(&self, key: &str, bytes: &[u8]) -> Result<(), PoolError> {
        let inner = &*self.0;
        let hash = inner.object_hash(key)?;
        let length = bytes.len() as u64;
        let slot_bytes = inner.slot_of_object(length)?;
        // Reserving may evict and takes the heap lock, so it comes before the table lock.
        let slot = inner.reserve(slot_bytes, None, Fill::Copied).map_err(|_| PoolError::NoRoom(length))?;
        let (block, offset) = (slot.block, inner.layout.payload(slot.block, slot.bytes));
        let generation = inner.write_block(block, offset, hash, BlockState::Object, 0, Names::default(), &[bytes]);
        fault::point("object.written");
        let entered = match inner.lock_patiently(Name::Tables) {
            Ok(_tables) => inner.enter_object(key, hash, block, length, generation),
            Err(_) => Err(PoolError::Lock { lock: "table" }),
        };
        let replaced = entered.inspect_err(|_| inner.unreserve(block))?;
        fault::point("object.entered");
        inner.free_objects(&replaced);
        Ok(())
    }

    /// The bytes published under `key`, or `None`.
    ///
    /// # Errors
    /// The key cannot be one.
    pub fn get_object(&self, key: &str) -> Result<Option<Vec<u8>>, PoolError> {
        let inner = &*self.0;
        let hash = inner.object_hash(key)?;
        // An object that is replaced just now may show neither its old row nor its new one, and caches may hold an older
        // descriptor and older payload.
        Ok((0..READ_ATTEMPTS).find_map(|_| inner.read_object(hash)).map(|(bytes, _)| bytes))
    }

    /// As [`Pool::get_object`], with what [`Pool::is_current`] needs.
    ///
    /// # Errors
    /// As for [`Pool::get_object`].
    pub fn get_object_marked(&self, key: &str) -> Result<Option<(Vec<u8>, ObjectMark)>, PoolError> {
        let inner = &*self.0;
        let hash = inner.object_hash(key)?;
        Ok((0..READ_ATTEMPTS).find_map(|_| inner.read_object(hash)))
    }

    /// Whether an object has neither been replaced nor destroyed since it was read. Looks at one line of the region.
    #[must_use]
    pub fn is_current(&self, mark: &ObjectMark) -> bool {
        let inner = &*self.0;
        if mark.row >= OBJECTS {
            return false;
        }
        inner.fabric.refresh(&[inner.layout.object(mark.row)]);
        inner.object_line(mark.row).is_some_and(|line| ObjectMark::of(mark.row, &line) == *mark)
    }

    /// The keys of all objects.
    #[must_use]
    pub fn object_keys(&self) -> Vec<String> {
        let inner = &*self.0;
        inner.refresh_objects();
        let rows = (0..OBJECTS).filter(|&row| inner.object_line(row).is_some());
        let keys = rows.filter_map(|row| {
            let at = inner.layout.object(row) + LINE;
            Some(inner.read::<NameLine>(at)?.text())
        });
        let keys: BTreeSet<String> = keys.collect();
        keys.into_iter().collect()
    }

    /// Removes the object under `key`; returns whether there was one.
    ///
    /// # Errors
    /// The key cannot be one, or the table was busy for too long.
    pub fn destroy_object(&self, key: &str) -> Result<bool, PoolError> {
        let inner = &*self.0;
        let hash = inner.object_hash(key)?;
        let removed = {
            let _tables = inner.lock_patiently(Name::Tables).map_err(PoolError::lock("table"))?;
            inner.clear_rows(inner.rows_of(hash))
        };
        inner.free_objects(&removed);
        Ok(!removed.is_empty())
    }
}

impl ObjectMark {
    const fn of(row: u64, line: &ObjectLine) -> Self {
        Self { row, block: line.block, generation: line.generation }
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// The slot for an object of any length. A chunk is a power of two, so what is no longer than it rounds up to no
    /// more than it.
    pub(crate) fn slot_of_object(&self, length: u64) -> Result<u64, PoolError> {
        let chunk_bytes = self.layout.chunk_bytes;
        if length > chunk_bytes {
            return Err(PoolError::BlockTooLarge { block_bytes: length, chunk_bytes });
        }
        Ok(length.next_power_of_two().max(OBJECT_BYTES_MIN))
    }

    pub(crate) fn object_hash(&self, key: &str) -> Result<BlockHash, PoolError> {
        if self.area.is_inherited() {
            return Err(PoolError::Inherited);
        }
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(PoolError::Config(format!("object key `{key}` must have 1 to {KEY_BYTES_MAX} bytes")));
        }
        let tokens: Vec<u32> = key.bytes().map(u32::from).collect();
        // No namespace has an all-ones fingerprint, so an object's name is never a block's.
        Ok(cenote_base::ChainHasher::new(&self.superblock.config.seed, &[0xff; 32]).block(None, &tokens))
    }

    fn object_line(&self, row: u64) -> Option<ObjectLine> {
        let at = self.layout.object(row);
        self.read::<ObjectLine>(at).filter(|line| line.block != 0)
    }

    /// Rows of this key: mostly one. Where somebody died while he replaced an object there are two, and either will do.
    fn rows_of(&self, hash: BlockHash) -> Vec<(u64, ObjectLine)> {
        let rows = (0..OBJECTS).filter_map(|row| Some((row, self.object_line(row)?)));
        rows.filter(|(_, line)| line.key_hash == hash.words()).collect()
    }

    /// Clears rows; returns what they named. The caller holds the table lock.
    fn clear_rows(&self, rows: Vec<(u64, ObjectLine)>) -> Vec<(BlockIndex, Generation)> {
        rows.into_iter()
            .map(|(row, line)| {
                self.clear(self.layout.object(row));
                (BlockIndex(line.block - 1), Generation(line.generation))
            })
            .collect()
    }

    /// Names `block` by `key`; returns what it named before. The new row is whole before the old one goes, so that a
    /// death in between loses neither. The caller holds the table lock.
    pub(crate) fn enter_object(
        &self,
        key: &str,
        hash: BlockHash,
        block: BlockIndex,
        length: u64,
        generation: Generation,
    ) -> Result<Vec<(BlockIndex, Generation)>, PoolError> {
        let old = self.rows_of(hash);
        let full = PoolError::TableFull { table: "object", rows: OBJECTS, fact: "" };
        let row = (0..OBJECTS).find(|&row| self.object_line(row).is_none()).ok_or(full)?;
        let at = self.layout.object(row);
        let line = ObjectLine {
            key_hash: hash.words(),
            block: block.0 + 1,
            length,
            generation: generation.0,
            ..ObjectLine::default()
        };
        self.write(at + LINE, NameLine::new(key));
        self.write(at, line);
        // Before the old row goes, and before the block bears a mark for which others look for its row.
        self.fabric.fence();
        self.slot_owner(block).store(OBJECT, Release);
        fault::point("object.named");
        Ok(self.clear_rows(old))
    }

    /// The row and the descriptor of a key, as the device has them.
    pub(crate) fn find_object(&self, hash: BlockHash) -> Option<(ObjectMark, ObjectLine, Descriptor)> {
        self.refresh_objects();
        let (row, line) = self.rows_of(hash).into_iter().next()?;
        let block = BlockIndex(line.block.checked_sub(1).filter(|&b| b < self.layout.num_descriptors())?);
        // Nothing is waited for: a stale descriptor does not have the row's generation, stale payload does not have its
        // checksum, and whoever asks looks again.
        self.fabric.refresh_unfenced(self.layout.descriptor(block));
        let descriptor = self.read_descriptor(block)?;
        let whole = descriptor.state == Descriptor::state_word(BlockState::Object, Generation(line.generation));
        let (length, offset) = descriptor.extent();
        // Only a damaged region leads out of the block's chunk, to memory of others.
        let chunk = self.layout.chunk_data(self.layout.chunk_of(block));
        let lies_within = offset >= chunk && offset + length <= chunk + self.layout.chunk_bytes;
        (whole && lies_within && line.length <= length).then_some((ObjectMark::of(row, &line), line, descriptor))
    }

    fn read_object(&self, hash: BlockHash) -> Option<(Vec<u8>, ObjectMark)> {
        let (mark, line, descriptor) = self.find_object(hash)?;
        let (padded, offset) = descriptor.extent();
        let mut bytes = vec![0; usize::try_from(line.length).ok()?];
        for at in (offset..offset + padded).step_by(LINE as usize) {
            self.fabric.refresh_unfenced(at);
        }
        let key = checksum_key(hash, descriptor.generation());
        let checksum = self.fabric.read_payload(offset, &mut [&mut bytes], key);
        (checksum == descriptor.checksum).then_some((bytes, mark))
    }

    /// Blocks that rows of the object table name.
    pub(crate) fn object_blocks(&self) -> Vec<BlockIndex> {
        self.refresh_objects();
        (0..OBJECTS).filter_map(|row| self.object_line(row)).map(|line| BlockIndex(line.block - 1)).collect()
    }

    /// Frees objects that no row names: their worker died between renaming the row and freeing them, or another
    /// host destroyed them.
    pub(crate) fn free_unnamed_objects(&self) -> u64 {
        // A row is written before its block bears the mark, so blocks first and rows second finds no block
        // that is about to be named.
        let marked: Vec<(BlockIndex, Generation)> = (0_u64..)
            .zip(self.slot_owners())
            .filter(|(_, owner)| owner.load(Acquire) == OBJECT)
            .map(|(block, _)| (BlockIndex(block), self.raw_generation(BlockIndex(block))))
            .collect();
        if marked.is_empty() {
            return 0;
        }
        let named = self.object_blocks();
        let unnamed: Vec<_> = marked.into_iter().filter(|(block, _)| !named.contains(block)).collect();
        self.free_objects(&unnamed)
    }

    /// Frees the blocks of objects that no row names any more; returns how many were still there.
    pub(crate) fn free_objects(&self, objects: &[(BlockIndex, Generation)]) -> u64 {
        objects.iter().map(|&(block, generation)| u64::from(self.free_object(block, generation))).sum()
    }

    /// Frees the block of an object that no row names any more, unless somebody did already.
    fn free_object(&self, block: BlockIndex, generation: Generation) -> bool {
        if block.0 >= self.layout.num_descriptors() {
            return false;
        }
        // Another host's block is that host's to free: it looks for objects without a name when it ticks.
        if self.chunk_class(self.layout.chunk_of(block)).load(Relaxed) == 0 {
            return false;
        }
        // Without the lock the block stays until the next recovery.
        let Ok(_heap) = self.lock_patiently(Name::Heap) else { return false };
        let object = Descriptor::state_word(BlockState::Object, generation);
        if self.read_descriptor(block).is_none_or(|descriptor| descriptor.state != object) {
            return false;
        }
        self.write_free(block);
        self.push_free(block);
        true
    }
}
