//! Memory of users (TraCT §3.5; docs/internals/protocol.md#memory): pieces of whole lines that stay
//! until a process of any host frees them.
//!
//! A slot with the state *object* is one piece, or an arena of pieces. The word of a slot says that
//! it is in use, and each piece of an arena has a word of its own. Storing a word takes or frees a
//! piece in one step, under the table lock. Only the owner of an arena's chunk takes pieces from
//! it, so its cached words may show a piece that another host has freed, and never show a piece as
//! free that is taken.

use super::objects::READ_ATTEMPTS;
use super::{HeldTables, Tables, Thing};
use crate::blocks::Label;
use crate::blocks::life::Draft;
use crate::error::PoolError;
use crate::log::events::Names;
use crate::region::host_layout::OBJECT;
use crate::region::lines::{BlockState, Descriptor, ObjectLine};
use crate::region::piece::{Arena, Kind, Maker, MemorySlot, Piece};
use crate::space::{Fill, Slot};
use crate::sync::{Holds, Tables as Lock};
use cenote_base::fault::{self, Point};
use cenote_base::seal::SealWord;
use cenote_base::{BlockHash, BlockIndex, Generation};
use cenote_mem::{Fabric, HostLocal, LINE, Offset, Tag, Word};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Arenas that an allocation looks through before it makes a new one.
const ARENAS_SEARCHED: usize = 8;

/// Chunks in which an allocation looks for arenas.
const CHUNKS_SEARCHED: u64 = 64;

/// A piece of memory and its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// Offset of its first byte.
    pub offset: u64,
    pub bytes: u64,
    pub piece: Piece,
    /// Offset of its word.
    word: u64,
    block: BlockIndex,
    generation: Generation,
    is_arena: bool,
}

impl<F: Fabric, H: HostLocal> Tables<F, H> {
    /// A word of memory, as this host's caches have it.
    fn open_piece(&self, at: u64) -> Option<Piece> {
        Piece::open(self.region.fabric.load(Offset::new(at)), at, self.region.salt)
    }

    fn put_piece(&self, _: &Holds<Lock>, at: u64, piece: Piece) {
        self.region.fabric.write_word(Offset::new(at), piece.word(at, self.region.salt));
    }

    fn clear_piece(&self, _: &Holds<Lock>, at: u64) {
        self.region.fabric.write_word(Offset::new(at), 0);
    }

    /// The word of a slot, as the device has it.
    pub fn memory_word(&self, block: BlockIndex) -> Option<Piece> {
        let at = self.region.layout.piece(block);
        self.region.fabric.refresh(&[at / LINE * LINE]);
        self.open_piece(at)
    }

    /// Whether a slot is in use. Also if its word is corrupt: users may go on with memory that
    /// cannot be freed, until `gc` mends the word.
    pub fn holds_memory(&self, block: BlockIndex) -> bool {
        self.without_memory(vec![(block, Generation(0))]).is_empty()
    }

    /// The slots that hold no memory. They share a fence: a tick looks at all slots of the host.
    pub fn without_memory(&self, slots: Vec<(BlockIndex, Generation)>) -> Vec<(BlockIndex, Generation)> {
        let place = |block| self.region.layout.piece(block);
        let mut lines: Vec<u64> = slots.iter().map(|&(block, _)| place(block) / LINE * LINE).collect();
        lines.dedup();
        self.region.fabric.refresh(&lines);
        slots.into_iter().filter(|&(block, _)| self.region.fabric.load(Offset::new(place(block))) == 0).collect()
    }

    /// This worker.
    pub fn maker(&self) -> Maker {
        let region = &self.region;
        let line = region.layout.worker(region.host, region.slot());
        Maker::of(region.host, region.slot(), region.fabric.load(Offset::new(line)))
    }

    /// Takes a piece of an arena of this host, if one has room. Returns its offset.
    ///
    /// The search begins at the arena that had room last, then goes on where the last search ended.
    /// It is short, because the table lock is held: an arena out of its reach has its turn later.
    pub fn take_piece(&self, tables: &HeldTables<'_, F, H>, lines: u64) -> Option<u64> {
        let region = &self.region;
        let last = BlockIndex(self.last_arena.load(Relaxed));
        let (from, chunks) = (self.next_search.load(Relaxed), region.layout.num_chunks);
        let others = (from..from + chunks.min(CHUNKS_SEARCHED)).map(|chunk| chunk % chunks);
        let others = others.inspect(|&chunk| self.next_search.store((chunk + 1) % chunks, Relaxed));
        let of_last = region.layout.chunk_of(last);
        let slots = |chunk| region.slots_of(chunk).filter(move |_| self.may_have_arenas(chunk));
        let from_last = slots(of_last).skip_while(|block| block.0 < last.0);
        let mut searched = 0;
        for block in from_last.chain(others.flat_map(slots)) {
            let Some((block, arena)) = self.own_arena(block) else { continue };
            if let Some(offset) = self.take_from(tables, block, arena, lines) {
                self.last_arena.store(block.0, Relaxed);
                return Some(offset);
            }
            searched += 1;
            if searched == ARENAS_SEARCHED {
                break;
            }
        }
        None
    }

    /// Whether this host may take memory of a chunk that has slots for arenas.
    fn may_have_arenas(&self, chunk: u64) -> bool {
        let region = &self.region;
        let Some(class) = region.class_of_chunk(chunk) else { return false };
        let slot_bytes = Arena::slot_bytes(region.layout.chunk_bytes);
        (slot_bytes..=slot_bytes / 4 * 5).contains(&region.class_bytes(class).load(Relaxed))
            && self.space.takes(chunk, Fill::InPlace)
    }

    /// An arena in a slot of this host. One that has lost its word is about to be freed.
    fn own_arena(&self, block: BlockIndex) -> Option<(BlockIndex, Arena)> {
        let region = &self.region;
        if region.slot_owner(block).load(Acquire) != OBJECT {
            return None;
        }
        let line = region.own_chunk(region.layout.chunk_of(block))?;
        let arena = region.memory_slot(block).filter(|slot| slot.bytes == line.slot_bytes)?.arena()?;
        self.memory_word(block)?;
        Some((block, arena))
    }

    fn take_from(&self, tables: &HeldTables<'_, F, H>, block: BlockIndex, arena: Arena, lines: u64) -> Option<u64> {
        let room = || self.free_lines(arena).find(|&(_, free)| free >= lines).map(|(line, _)| line);
        let line = room().or_else(|| {
            let (start, bytes) = arena.table();
            self.region.refresh_range(start, start + bytes);
            room()
        })?;
        let at = self.region.layout.piece(block);
        self.claim(tables, Thing::Memory(block)).ok()?;
        let counted = self.open_piece(at)?;
        // The count first: if this process dies in between, the arena only stays too long.
        self.put_piece(tables, at, Piece { size: (counted.size + 1).min(Piece::SIZE_MAX), ..counted });
        self.region.fabric.fence();
        fault::point(Point::MemoryCounted);
        self.put_piece(tables, arena.word(line), Piece { size: lines, named: false, maker: self.maker() });
        Some(arena.line(line))
    }

    /// The piece that begins at a line of an arena, as this host's caches have its word.
    fn piece_of(&self, arena: Arena, line: u64) -> Option<Piece> {
        let fits = |piece: &Piece| piece.size > 0 && line + piece.size <= arena.lines;
        self.open_piece(arena.word(line)).filter(fits)
    }

    /// Runs of free lines of an arena, with their lengths. A corrupt word ends them: the lines
    /// behind it may be in use.
    fn free_lines(&self, arena: Arena) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut line = 0;
        std::iter::from_fn(move || {
            let mut free = 0;
            while line < arena.lines {
                let at = arena.word(line);
                let word = self.region.fabric.load(Offset::new(at));
                if word == 0 {
                    (free, line) = (free + 1, line + 1);
                    continue;
                }
                let end = line;
                line = self.piece_of(arena, line).map_or(arena.lines, |piece| line + piece.size);
                if free > 0 {
                    return Some((end - free, free));
                }
            }
            (free > 0).then(|| (arena.lines - free, free))
        })
    }

    /// Makes a reserved slot one piece, or an arena with its first piece, of so many lines. Nothing
    /// shows it yet.
    pub fn prepare_memory(&self, slot: Slot, first: Option<u64>) -> Generation {
        let region = &self.region;
        let start = region.layout.payload(slot.block, slot.bytes);
        let kind = if first.is_some() { Kind::Arena } else { Kind::Piece };
        if let Some(lines) = first {
            let arena = Arena::new(start, slot.bytes);
            let (table, bytes) = arena.table();
            let at = arena.word(0);
            let piece = Piece { size: lines, named: false, maker: self.maker() }.word(at, region.salt);
            for line in (table..table + bytes).step_by(LINE as usize) {
                region.fabric.write_line(line, &[if line == table { piece } else { 0 }, 0, 0, 0, 0, 0, 0, 0]);
            }
        }
        let generation = self.blocks.next_generation(slot.block);
        let kind = Descriptor::pack_kind(0, kind.encoding(), region.slot() as u16, 0);
        let label = Label { hash: BlockHash([0; 16]), state: BlockState::Object, kind, names: Names::default() };
        self.blocks.describe(&[Draft {
            at: 0,
            slot,
            label,
            generation,
            length: slot.bytes,
            tag: Tag::default(),
            seal: SealWord(0),
        }]);
        fault::point(Point::MemoryDescribed);
        generation
    }

    /// Shows that a prepared slot is in use. Returns the offset of its piece.
    ///
    /// # Errors
    /// As for [`Tables::claim`].
    pub fn show_memory(
        &self,
        tables: &HeldTables<'_, F, H>,
        slot: Slot,
        generation: Generation,
        is_arena: bool,
    ) -> Result<u64, PoolError> {
        let region = &self.region;
        self.claim(tables, Thing::Memory(slot.block))?;
        let size = if is_arena { 1 } else { generation.0 & Piece::SIZE_MAX };
        let at = region.layout.piece(slot.block);
        self.put_piece(tables, at, Piece { size, named: false, maker: self.maker() });
        // Before the owner word sends others to look for the word.
        region.fabric.fence();
        region.slot_owner(slot.block).store(OBJECT, Release);
        let start = region.layout.payload(slot.block, slot.bytes);
        Ok(if is_arena {
            self.last_arena.store(slot.block.0, Relaxed);
            Arena::new(start, slot.bytes).line(0)
        } else {
            start
        })
    }

    /// The piece of memory that begins at an offset, as the device has it.
    pub fn memory_at(&self, offset: u64) -> Result<Memory, PoolError> {
        let layout = &self.region.layout;
        let wrong = |fact: &str| PoolError::Config(format!("the memory at offset {offset:#x} {fact}"));
        let within = |&into: &u64| into < layout.data_bytes();
        let into = offset.checked_sub(layout.data()).filter(within);
        let into = into.ok_or_else(|| wrong("lies outside the region's space"))?;
        let block = self.block_at(into / layout.chunk_bytes, offset)?;
        block
            .and_then(|block| self.find_memory(block, offset))
            .ok_or_else(|| wrong("is not allocated: it was freed, or nothing begins there"))
    }

    /// As [`Tables::memory_at`], for memory that may be freed or named.
    pub fn unnamed_memory_at(&self, offset: u64) -> Result<Memory, PoolError> {
        let memory = self.memory_at(offset)?;
        if memory.piece.named {
            return Err(PoolError::Config(format!("the memory at offset {offset:#x} has a name, and goes with it")));
        }
        Ok(memory)
    }

    /// The memory that begins at an offset in a slot, as the device has it.
    fn find_memory(&self, block: BlockIndex, offset: u64) -> Option<Memory> {
        let region = &self.region;
        let slot = self.slot_in_use(block)?;
        let generation = slot.generation;
        let Some(arena) = slot.arena() else {
            let word = region.layout.piece(block);
            let piece = self.open_piece(word).filter(|piece| piece.size == generation.0 & Piece::SIZE_MAX)?;
            let memory = Memory { offset, bytes: slot.bytes, piece, word, block, generation, is_arena: false };
            return (offset == slot.start).then_some(memory);
        };
        let line = arena.line_at(offset)?;
        let word = arena.word(line);
        region.fabric.refresh(&[word / LINE * LINE]);
        let piece = self.piece_of(arena, line)?;
        Some(Memory { offset, bytes: piece.size * LINE, piece, word, block, generation, is_arena: true })
    }

    /// The slot of an offset in a chunk, by the chunk's line as the device has it.
    fn block_at(&self, chunk: u64, offset: u64) -> Result<Option<BlockIndex>, PoolError> {
        let layout = &self.region.layout;
        let look = |_| {
            self.region.refresh_chunk(chunk);
            let is_free = || self.region.free_chunk(chunk).is_some();
            self.region.read_chunk(chunk).map(Some).or_else(|| is_free().then_some(None))
        };
        // Another host may be writing the line.
        let line = (0..READ_ATTEMPTS).find_map(look);
        let torn = || {
            let fact = format!("the line of chunk {chunk}, with offset {offset:#x}, is corrupt: ");
            PoolError::Config(fact + "`cenote pool gc` mends it")
        };
        let Some(line) = line.ok_or_else(torn)? else { return Ok(None) };
        let slot = (offset - layout.chunk_data(chunk)) / line.slot_bytes;
        let block = BlockIndex(chunk * layout.descriptors_per_chunk + slot);
        Ok((slot < layout.slots(line.slot_bytes)).then_some(block))
    }

    /// A slot with memory, as the device has its descriptor and its word.
    fn slot_in_use(&self, block: BlockIndex) -> Option<MemorySlot> {
        let region = &self.region;
        region.fabric.refresh(&[region.layout.descriptor(block), region.layout.piece(block) / LINE * LINE]);
        region.memory_slot(block).filter(|_| self.open_piece(region.layout.piece(block)).is_some())
    }

    /// The memory that a row names, if it bears a name. The chunk's line does not count: another
    /// host may be writing it, and memory without a row would be lost.
    pub fn named_memory(&self, line: &ObjectLine) -> Option<Memory> {
        let block = line.block.checked_sub(1).filter(|&block| block < self.region.layout.num_descriptors())?;
        let memory = self.find_memory(BlockIndex(block), line.memory)?;
        let is_it = memory.generation.0 == line.generation && line.length <= memory.bytes;
        (is_it && memory.piece.named).then_some(memory)
    }

    /// Offset and bytes of the memory that a key names.
    pub fn memory_of_key(&self, hash: BlockHash) -> Option<(u64, u64)> {
        let mut rows = self.rows_of(hash).into_iter().filter(|(_, line)| line.memory != 0);
        rows.find_map(|(_, line)| Some((self.named_memory(&line)?.offset, line.length)))
    }

    /// Names memory by `key`. Returns the slots that the key's last value leaves without use.
    pub fn enter_memory(
        &self,
        tables: &HeldTables<'_, F, H>,
        key: &str,
        hash: BlockHash,
        memory: &Memory,
    ) -> Result<Vec<(BlockIndex, Generation)>, PoolError> {
        let old = self.rows_of(hash);
        let line = ObjectLine {
            key_hash: hash.words(),
            block: memory.block.0 + 1,
            length: memory.bytes,
            generation: memory.generation.0,
            memory: memory.offset,
            ..ObjectLine::default()
        };
        self.write_row(tables, key, line, &old)?;
        // If this process dies here, the memory has no name, and the next holder of the lock clears
        // the row.
        fault::point(Point::MemoryNamed);
        self.name(tables, Thing::Memory(memory.block))?;
        self.put_piece(tables, memory.word, Piece { named: true, ..memory.piece });
        self.region.fabric.fence();
        fault::point(Point::ObjectNamed);
        Ok(self.forget_replaced(tables, old))
    }

    /// Frees a piece. Returns its slot if that is without use then. This host's stores to the piece
    /// must not arrive after it is taken again.
    ///
    /// # Errors
    /// This host was declared dead.
    pub fn release(
        &self,
        tables: &Holds<Lock>,
        memory: &Memory,
    ) -> Result<Option<(BlockIndex, Generation)>, PoolError> {
        self.name(tables, Thing::Memory(memory.block))?;
        let region = &self.region;
        region.refresh_range(memory.offset, memory.offset + memory.bytes);
        self.clear_piece(tables, memory.word);
        region.fabric.fence();
        fault::point(Point::MemoryFreed);
        if memory.is_arena {
            let at = region.layout.piece(memory.block);
            let Some(counted) = self.open_piece(at) else { return Ok(None) };
            if counted.size > 1 {
                self.put_piece(tables, at, Piece { size: counted.size - 1, ..counted });
                return Ok(None);
            }
            self.clear_piece(tables, at);
        }
        Ok(Some((memory.block, memory.generation)))
    }

    /// All pieces of memory in a chunk, as the device has them.
    pub fn memory_in(&self, chunk: u64) -> Vec<Memory> {
        self.slots_with_memory(chunk).into_iter().flat_map(|block| self.memory_in_slot(block)).collect()
    }

    /// Slots of a chunk that seem to hold memory.
    fn slots_with_memory(&self, chunk: u64) -> Vec<BlockIndex> {
        let region = &self.region;
        region.fabric.refresh(&[region.layout.chunk(chunk)]);
        let Some(line) = region.read_chunk(chunk) else { return Vec::new() };
        let blocks = region.layout.blocks_of(chunk, line.slot_bytes);
        region.refresh_descriptors(blocks.clone());
        blocks.map(BlockIndex).filter(|&block| region.memory_slot(block).is_some()).collect()
    }

    fn memory_in_slot(&self, block: BlockIndex) -> Vec<Memory> {
        let Some(slot) = self.slot_in_use(block) else { return Vec::new() };
        match slot.arena() {
            Some(arena) => self.pieces_of(block, slot.generation, arena),
            None => self.find_memory(block, slot.start).into_iter().collect(),
        }
    }

    fn pieces_of(&self, block: BlockIndex, generation: Generation, arena: Arena) -> Vec<Memory> {
        let (table, bytes) = arena.table();
        self.region.refresh_range(table, table + bytes);
        let is_arena = true;
        let pieces = (0..arena.lines).filter_map(|line| {
            let (word, offset) = (arena.word(line), arena.line(line));
            let piece = self.piece_of(arena, line)?;
            Some(Memory { offset, bytes: piece.size * LINE, piece, word, block, generation, is_arena })
        });
        pieces.collect()
    }

    /// Counts the pieces of this host's arenas anew, and lets arenas without a piece go: a process
    /// died between two steps. The next free of unused slots frees them. Writes corrupt words of
    /// slots anew.
    pub fn recount_arenas(&self, tables: &HeldTables<'_, F, H>) {
        let region = &self.region;
        let own = region.listed_chunks().flat_map(|chunk| region.slots_of(chunk));
        for block in own.filter(|&block| region.slot_owner(block).load(Acquire) == OBJECT) {
            let Some(slot) = region.memory_slot(block) else { continue };
            let at = region.layout.piece(block);
            let (is_used, counted) = (self.holds_memory(block), self.open_piece(at));
            let Some(arena) = slot.arena() else {
                if is_used && counted.is_none() && self.claim(tables, Thing::Memory(block)).is_ok() {
                    self.put_piece(tables, at, self.lost_piece(block, slot));
                }
                continue;
            };
            let pieces = if is_used { self.pieces_of(block, slot.generation, arena) } else { continue };
            let size = pieces.len() as u64;
            match (pieces.first(), counted) {
                (Some(_), Some(counted)) if size == counted.size => {}
                _ if self.claim(tables, Thing::Memory(block)).is_err() => {}
                (None, _) => self.clear_piece(tables, at),
                (Some(first), _) => self.put_piece(tables, at, Piece { size, named: false, ..first.piece }),
            }
        }
    }

    /// The word of a slot that is one piece. Its allocator is not known any more, so it counts as
    /// this worker's.
    fn lost_piece(&self, block: BlockIndex, slot: MemorySlot) -> Piece {
        let generation = slot.generation.0;
        let names = |(_, line): (u64, ObjectLine)| {
            (line.block, line.generation, line.memory) == (block.0 + 1, generation, slot.start)
        };
        Piece { size: generation & Piece::SIZE_MAX, named: self.all_rows().any(names), maker: self.maker() }
    }

    /// All pieces of memory in the region, as the device has them.
    pub fn all_memory(&self) -> impl Iterator<Item = Memory> + '_ {
        (0..self.region.layout.num_chunks).flat_map(|chunk| self.memory_in(chunk))
    }

    /// The arenas of the region: slot, number of pieces, and whether each of its words is a piece's
    /// or zero. Also slots of memory with corrupt words (`None`).
    pub fn arenas(&self) -> impl Iterator<Item = (BlockIndex, Option<(u64, bool)>)> + '_ {
        let chunks = 0..self.region.layout.num_chunks;
        let slots = chunks.flat_map(|chunk| self.slots_with_memory(chunk));
        slots.filter_map(|block| {
            let Some(slot) = self.slot_in_use(block) else {
                return self.holds_memory(block).then_some((block, None));
            };
            let arena = slot.arena()?;
            let pieces = self.pieces_of(block, slot.generation, arena);
            let words = (0..arena.lines).filter(|&line| self.region.fabric.load(Offset::new(arena.word(line))) != 0);
            let ends = pieces.iter().map(|memory| memory.offset + memory.bytes).chain([u64::MAX]);
            let starts = pieces.iter().map(|memory| memory.offset).skip(1).chain([u64::MAX]);
            let apart = ends.zip(starts).all(|(end, start)| end <= start);
            Some((block, Some((pieces.len() as u64, apart && words.count() == pieces.len()))))
        })
    }
}
