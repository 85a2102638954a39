//! Words for memory of users (docs/internals/format.md#memory). A word is believed alone: zero is
//! free memory, and any other word bears a check.

use crate::region::Region;
use crate::region::lines::{BlockState, Descriptor};
use cenote_base::{BlockIndex, Generation};
use cenote_mem::{Fabric, HostLocal, LINE};
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Bits of [`Piece::size`].
const SIZE_BITS: u32 = 12;
const NAMED: u64 = 1 << SIZE_BITS;
const HOST_AT: u32 = SIZE_BITS + 1;
const SLOT_AT: u32 = HOST_AT + 7;
const EPOCH_AT: u32 = SLOT_AT + 12;
const EPOCH_MASK: u64 = (1 << 24) - 1;
const CHECK_AT: u32 = EPOCH_AT + 24;

/// What a slot holds, by its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No memory of users: a block, an object, or nothing.
    Other,
    /// One piece of memory.
    Piece,
    /// Pieces of memory, and a word for each of its lines.
    Arena,
}

impl Kind {
    pub fn of(descriptor: &Descriptor) -> Self {
        match descriptor.encoding() {
            _ if descriptor.block_state() != Some(BlockState::Object) => Self::Other,
            1 => Self::Piece,
            2 => Self::Arena,
            _ => Self::Other,
        }
    }

    /// The encoding of an object's descriptor.
    pub const fn encoding(self) -> u8 {
        match self {
            Self::Other => 0,
            Self::Piece => 1,
            Self::Arena => 2,
        }
    }

    pub fn is_memory(self) -> bool {
        self != Self::Other
    }
}

/// The worker that allocated memory. Written as `host.slot.epoch`, such as 0.3.17.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Maker {
    /// Its host. As wide as the slot, so that a copy has no padding, which memory checkers report.
    pub host: u16,
    /// Its slot there.
    pub slot: u16,
    /// How often the slot had been taken, modulo 2²⁴.
    pub epoch: u32,
}

impl Maker {
    /// The worker that joined in a slot under this epoch of its line.
    pub const fn of(host: u64, slot: u64, line_epoch: u64) -> Self {
        Self { host: host as u16, slot: slot as u16, epoch: (line_epoch >> 1 & EPOCH_MASK) as u32 }
    }
}

impl Serialize for Maker {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl FromStr for Maker {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('.').collect();
        let maker = match parts[..] {
            [host, slot, epoch] => host.parse().ok().zip(slot.parse().ok()).zip(epoch.parse().ok()),
            _ => None,
        };
        let maker = maker.map(|((host, slot), epoch)| Self { host, slot, epoch });
        maker.ok_or_else(|| format!("`{text}` is no worker: write host.slot.epoch, such as 0.3.17"))
    }
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.host, self.slot, self.epoch)
    }
}

/// A piece of memory, or an arena of pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Of a piece in an arena: its lines. Of a slot that is one piece: the low bits of its
    /// descriptor's generation. Of an arena: at least the number of its pieces.
    pub size: u64,
    /// Whether a row of the object table names it.
    pub named: bool,
    pub maker: Maker,
}

impl Piece {
    pub const SIZE_MAX: u64 = (1 << SIZE_BITS) - 1;

    /// The word at byte offset `at` of the region.
    pub const fn word(self, at: u64, salt: u64) -> u64 {
        let Maker { host, slot, epoch } = self.maker;
        let named = if self.named { NAMED } else { 0 };
        let content = self.size & Self::SIZE_MAX
            | named
            | (host as u64 + 1) << HOST_AT
            | (slot as u64) << SLOT_AT
            | (epoch as u64 & EPOCH_MASK) << EPOCH_AT;
        content | check(content, at, salt) << CHECK_AT
    }

    /// `None`: free memory, or a corrupt word.
    pub fn open(word: u64, at: u64, salt: u64) -> Option<Self> {
        let content = word & ((1 << CHECK_AT) - 1);
        if word >> CHECK_AT != check(content, at, salt) {
            return None;
        }
        let host = (content >> HOST_AT & 0x7f).checked_sub(1)?;
        let maker = Maker {
            host: host as u16,
            slot: (content >> SLOT_AT & 0xfff) as u16,
            epoch: (content >> EPOCH_AT & EPOCH_MASK) as u32,
        };
        Some(Self { size: content & Self::SIZE_MAX, named: content & NAMED != 0, maker })
    }
}

/// Eight bits over a word's content, its place and the region's identity.
const fn check(content: u64, at: u64, salt: u64) -> u64 {
    let mixed = (salt ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ content).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 56
}

/// Slots and pieces of a slot that is divided: a word for each of its data lines, then the data
/// lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arena {
    /// Offset of the slot.
    pub start: u64,
    /// Data lines.
    pub lines: u64,
    table_lines: u64,
}

impl Arena {
    pub const fn new(start: u64, slot_bytes: u64) -> Self {
        let lines = slot_bytes / LINE;
        let table_lines = lines.div_ceil(9);
        Self { start, lines: lines - table_lines, table_lines }
    }

    /// Bytes of a new arena's slot: few enough that a chunk has several, and that a walk over its
    /// words is short.
    pub const fn slot_bytes(chunk_bytes: u64) -> u64 {
        match chunk_bytes / 16 {
            bytes @ 0x1000..=0x1_0000 => bytes,
            _ => 0x1_0000,
        }
    }

    /// Longest piece, in lines. A longer one has a slot of its own.
    pub const fn longest(self) -> u64 {
        self.lines / 2
    }

    /// Offset of the word of a data line.
    pub const fn word(self, line: u64) -> u64 {
        self.start + line * 8
    }

    pub const fn line(self, line: u64) -> u64 {
        self.start + (self.table_lines + line) * LINE
    }

    /// The data line at an offset.
    pub fn line_at(self, offset: u64) -> Option<u64> {
        let into = offset.checked_sub(self.line(0))?;
        (into.is_multiple_of(LINE) && into / LINE < self.lines).then_some(into / LINE)
    }

    /// Offset and bytes of the words.
    pub const fn table(self) -> (u64, u64) {
        (self.start, self.table_lines * LINE)
    }
}

/// A slot that holds memory of users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemorySlot {
    pub generation: Generation,
    pub start: u64,
    pub bytes: u64,
    kind: Kind,
}

impl MemorySlot {
    /// Its arena, if it is one.
    pub fn arena(self) -> Option<Arena> {
        (self.kind == Kind::Arena).then(|| Arena::new(self.start, self.bytes))
    }
}

impl<F: Fabric, H: HostLocal> Region<F, H> {
    /// The memory in a slot, as this host's caches have its descriptor. A corrupt descriptor may
    /// lead to another slot: then there is none.
    pub fn memory_slot(&self, block: BlockIndex) -> Option<MemorySlot> {
        let descriptor = self.read_descriptor(block)?;
        let (kind, (bytes, start)) = (Kind::of(&descriptor), descriptor.extent());
        let layout = &self.layout;
        let fits = kind.is_memory()
            && layout.is_slot(bytes)
            && block.0 % layout.descriptors_per_chunk < layout.slots(bytes)
            && start == layout.payload(block, bytes);
        fits.then(|| MemorySlot { generation: descriptor.generation(), start, bytes, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_believed_in_its_place_only() {
        let maker = Maker { host: 63, slot: 1023, epoch: (1 << 24) - 1 };
        for piece in [
            Piece { size: 910, named: false, maker },
            Piece { size: Piece::SIZE_MAX, named: true, maker: Maker { host: 0, slot: 0, epoch: 1 } },
        ] {
            let word = piece.word(4096, 77);
            assert_eq!(Piece::open(word, 4096, 77), Some(piece));
            let places = (0..512).map(|place| 4096 + 8 * place);
            let believed = places.filter(|&at| Piece::open(word, at, 77).is_some()).count();
            assert!(believed < 16, "{believed} of 512 places believe it");
            let flipped = (0..64).filter(|bit| Piece::open(word ^ 1 << bit, 4096, 77).is_some()).count();
            assert!(flipped <= 2, "{flipped} flipped bits are not seen");
        }
        assert_eq!(Piece::open(0, 4096, 77), None);
    }

    #[test]
    fn words_and_lines_of_an_arena_do_not_overlap() {
        for slot_bytes in [4 << 10, 5 << 10, 8 << 10, 64 << 10, 80 << 10] {
            let arena = Arena::new(1 << 20, slot_bytes);
            assert!(arena.word(arena.lines) <= arena.line(0));
            assert_eq!(arena.line(arena.lines), (1 << 20) + slot_bytes);
            assert!(arena.lines <= Piece::SIZE_MAX && arena.lines * 9 >= slot_bytes / LINE * 8 - 9);
            assert_eq!(arena.line_at(arena.line(3)), Some(3));
            assert_eq!([arena.start, arena.line(3) + 8, (1 << 20) + slot_bytes].map(|at| arena.line_at(at)), [None; 3]);
        }
        assert_eq!([64 << 10, 2 << 20, 512 << 20].map(Arena::slot_bytes), [4 << 10, 64 << 10, 64 << 10]);
    }
}
