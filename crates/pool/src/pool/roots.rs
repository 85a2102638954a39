//! Objects that change hands: a caller replaces or destroys what it has read, and nothing newer.
//!
//! A [`Root`] is an object's row as it was read. Rows name publications, and no generation is used
//! twice, so a row that still equals its root names the same bytes, and everything that these bytes
//! lead to is still kept for readers (docs/internals/protocol.md#roots).

use super::Pool;
use crate::admin::memory::Freed;
use crate::blocks::Label;
use crate::error::PoolError;
use crate::log::events::Names;
use crate::region::lines::{BlockState, Line, ObjectLine};
use crate::region::piece::Maker;
use crate::space::Fill;
use crate::tables::memory::Memory;
use crate::tables::objects::READ_ATTEMPTS;
use cenote_base::fault::{self, Point};
use cenote_mem::{Fabric, HostLocal};
use std::sync::atomic::{Ordering::Acquire, fence};

/// Keys of objects that name memory of their region begin with this. Elsewhere such an object has no
/// meaning, so it belongs into no snapshot.
pub const PLACED_KEYS: &str = "cenote/engram";

/// The row of one publication of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    row: u64,
    words: [u64; 8],
}

/// What [`Pool::put_object_over`] does only to an object in a known state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over<'a> {
    /// Whatever the key has, or nothing.
    Any,
    /// The key has no object.
    Nothing,
    /// The key has the object with this root.
    This(&'a Root),
}

/// A piece of memory of users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnedPiece {
    /// Offset of its first byte in the region.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The worker that allocated it.
    pub maker: Maker,
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// As [`Pool::get_object`], with the object's root.
    ///
    /// # Errors
    /// The key is empty or too long.
    pub fn get_root(&self, key: &str) -> Result<Option<(Root, Vec<u8>)>, PoolError> {
        let tables = &self.0.tables;
        let hash = tables.object_hash(key)?;
        // During a replacement neither row may be visible, and caches may hold an older descriptor
        // and an older payload.
        let found = (0..READ_ATTEMPTS).find_map(|_| tables.read_object(hash));
        Ok(found.map(|(row, line, bytes)| (self.root(row, line), bytes)))
    }

    fn root(&self, row: u64, line: ObjectLine) -> Root {
        let region = &self.0.region;
        Root { row, words: line.seal(region.layout.object(row), region.salt) }
    }

    /// Whether the object with this root is still there, by the device's copy of its row. Bytes that
    /// a caller copied before this call were not freed before they were copied, if the copies that
    /// the object leads to are freed only after the object is destroyed.
    #[must_use]
    pub fn holds(&self, root: &Root) -> bool {
        let region = &self.0.region;
        if region.area.is_inherited() {
            return false;
        }
        let at = region.layout.object(root.row);
        match region.is_coherent() {
            // The caller's copies come before the row, and no line is stale.
            true => fence(Acquire),
            false => region.fabric.refresh(&[at]),
        }
        region.fabric.load_line(at) == root.words
    }

    /// Publishes `bytes` under `key` if the key is in the state that `over` says. `None`: it is not,
    /// and nothing changed.
    ///
    /// # Errors
    /// As for [`Pool::put_object`].
    pub fn put_object_over(&self, key: &str, bytes: &[u8], over: Over<'_>) -> Result<Option<Root>, PoolError> {
        let member = &*self.0;
        let hash = member.tables.object_hash(key)?;
        let length = bytes.len() as u64;
        let slot_bytes = member.tables.slot_of_object(length)?;
        // Reserving may evict and takes the heap lock, so it comes before the table lock.
        let slot = member.evictor.reserve(slot_bytes, Fill::Copied).map_err(|_| PoolError::NoRoom(length))?;
        let label = Label { hash, state: BlockState::Object, kind: 0, names: Names::default() };
        let generation = member.blocks.write(slot, &label, &[bytes]);
        fault::point(Point::ObjectWritten);
        let entered = member.tables.lock(member.locks.patient()).map_err(PoolError::lock("table")).and_then(|tables| {
            let old = member.tables.rows_of(hash);
            let is_so = match over {
                Over::Any => true,
                Over::Nothing => old.is_empty(),
                Over::This(root) => old.iter().any(|&(row, line)| self.root(row, line) == *root),
            };
            match is_so {
                true => member.tables.enter_object(&tables, key, hash, slot.block, length, generation, old).map(Some),
                false => Ok(None),
            }
        });
        let Some((row, line, replaced)) = entered.inspect_err(|_| member.blocks.unreserve(slot.block))? else {
            member.blocks.unreserve(slot.block);
            return Ok(None);
        };
        fault::point(Point::ObjectEntered);
        member.tables.free_objects(&replaced);
        Ok(Some(self.root(row, line)))
    }

    /// Destroys the object with this root; returns whether it was there.
    ///
    /// # Errors
    /// As for [`Pool::destroy_object`].
    pub fn destroy_root(&self, key: &str, root: &Root) -> Result<bool, PoolError> {
        let member = &*self.0;
        let hash = member.tables.object_hash(key)?;
        let tables = member.tables.lock_alive()?;
        let rows = member.tables.rows_of(hash);
        let existed = rows.iter().any(|&(row, line)| self.root(row, line) == *root);
        let unused = if existed { member.tables.forget_rows(&tables, rows)? } else { Vec::new() };
        drop(tables);
        member.tables.free_objects(&unused);
        Ok(existed)
    }

    /// This worker, as the maker of memory.
    #[must_use]
    pub fn maker(&self) -> Maker {
        self.0.tables.maker()
    }

    /// Whether a worker lives; `None` if this host does not know.
    #[must_use]
    pub fn is_alive(&self, maker: Maker) -> Option<bool> {
        self.0.maker_alive(maker, &|host, slot| self.0.slot_alive(host, slot))
    }

    /// Memory without a name that these workers allocated. It reads the whole table of memory.
    #[must_use]
    pub fn memory_of(&self, makers: &[Maker]) -> Vec<OwnedPiece> {
        let theirs = |memory: &Memory| !memory.piece.named && makers.contains(&memory.piece.maker);
        let all = self.0.tables.all_memory().filter(theirs);
        all.map(|of| OwnedPiece { offset: of.offset, bytes: of.bytes, maker: of.piece.maker }).collect()
    }

    /// Memory without a name that a dead worker has allocated; without `maker`, that of all workers
    /// known to be dead.
    ///
    /// # Errors
    /// The worker is not known to be dead.
    pub fn dead_memory(&self, maker: Option<Maker>) -> Result<Vec<OwnedPiece>, PoolError> {
        // Makers first: a dead worker allocates nothing more.
        let makers = self.0.dead_makers(maker, |host, slot| self.0.slot_alive(host, slot))?;
        Ok(self.memory_of(&makers))
    }

    /// Frees those of the pieces that are still as they were listed. A piece that was freed and
    /// allocated again has another maker, and stays.
    ///
    /// # Errors
    /// The table was busy for too long.
    pub fn free_pieces(&self, pieces: &[OwnedPiece]) -> Result<Freed, PoolError> {
        let member = &*self.0;
        let (mut freed, mut unused) = (Freed::default(), Vec::new());
        for piece in pieces {
            let held = member.tables.lock_alive()?;
            let Ok(memory) = member.tables.unnamed_memory_at(piece.offset) else { continue };
            if (memory.piece.maker, memory.bytes) != (piece.maker, piece.bytes) {
                continue;
            }
            unused.extend(member.tables.release(&held, &memory)?);
            freed.pieces += 1;
            freed.bytes += memory.bytes;
        }
        member.tables.free_objects(&unused);
        Ok(freed)
    }
}
