//! The event log: which blocks became readable and which left, for routers that follow where a
//! prompt is warm (docs/internals/protocol.md#events, docs/guides/events.md).
//!
//! Each host writes its own ring. A worker takes a number from a word of the host's memory and
//! stores the line without waiting for it. The lock of an index shard, taken next in any case,
//! fences it. The log records "stored" before the index leads to a block. It records "removed"
//! after the last moment at which the block could become readable again and before its slot is
//! free. So a worker that dies in between leaves only blocks that are logged, or that recovery
//! logs.
//!
//! A line names a block and its generation. Each generation of a block is stored once and then
//! removed once, so a reader may take lines in any order and repeatedly ([`super::view`]). A reader
//! must not miss a line: a number without a line is noticed, and the follower then walks the
//! descriptors ([`super::follow`]).

use crate::log::Log;
use crate::log::ring::RingLine;
use crate::region::lines::{Descriptor, EventLine};
use cenote_base::fault::{self, Mistake, Point};
use cenote_base::{BlockHash, BlockIndex, Generation, NamespaceId};
use cenote_mem::{Fabric, HostLocal, Offset, Word};
use serde::Serialize;
use std::sync::atomic::Ordering::Relaxed;

/// Names of a block in an engine, for routers that know blocks by them. The pool stores them and
/// does not interpret them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Names {
    /// The block's own name; 0: none.
    pub name: u64,
    /// Name of the preceding block of its sequence; 0: none, or unknown.
    pub parent: u64,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A block became readable.
    Stored = 1,
    /// A block left and will not be readable again in this generation.
    Removed = 2,
    /// Events may be missing.
    Gap = 3,
}

/// Gaps that a writer logs which is late again and again.
const GAPS_MAX: usize = 2;

/// A line that says that events may be missing.
fn gap() -> EventLine {
    EventLine::new(Kind::Gap, BlockIndex(0), Generation(0))
}

impl Kind {
    fn from_number(number: u64) -> Option<Self> {
        [Self::Stored, Self::Removed, Self::Gap].into_iter().find(|kind| *kind as u64 == number)
    }
}

impl EventLine {
    pub(super) fn new(kind: Kind, block: BlockIndex, generation: Generation) -> Self {
        Self { what: kind as u64 | block.0 << 24, which: generation.0, ..Self::default() }
    }

    pub(super) fn kind(&self) -> Option<Kind> {
        Kind::from_number(self.what & 0xff)
    }

    pub(super) const fn namespace(&self) -> NamespaceId {
        NamespaceId((self.what >> 8) as u16)
    }

    pub(super) const fn block(&self) -> BlockIndex {
        BlockIndex(self.what >> 24)
    }

    pub(super) const fn generation(&self) -> Generation {
        Generation(self.which & ((1 << 48) - 1))
    }

    pub(super) const fn depth(&self) -> u16 {
        (self.which >> 48) as u16
    }

    pub(super) fn block_hash(&self) -> BlockHash {
        BlockHash::from_words(self.hash)
    }
}

impl<F: Fabric, H: HostLocal> Log<F, H> {
    /// Logs that a block is readable. Its descriptor is written.
    #[inline]
    pub(crate) fn tell_stored(&self, block: BlockIndex, descriptor: &Descriptor, names: Names) {
        self.tell_all_stored(std::iter::once((block, *descriptor, names)));
    }

    /// As [`Log::tell_stored`], for several blocks after one fence.
    #[inline]
    pub(crate) fn tell_all_stored(&self, blocks: impl Iterator<Item = (BlockIndex, Descriptor, Names)>) {
        if !self.region.has_events() || fault::makes(Mistake::EventStoredUntold) {
            return;
        }
        // A dying host may lose unfenced stores. If it lost a descriptor and not its event, the log
        // would hold a generation that never ends.
        self.region.fabric.fence();
        for (block, descriptor, names) in blocks {
            let line = EventLine::new(Kind::Stored, block, descriptor.generation());
            self.tell(EventLine {
                hash: descriptor.hash,
                names: [names.name, names.parent],
                what: line.what | u64::from(descriptor.namespace()) << 8,
                which: line.which | u64::from(descriptor.depth().min(0xffff)) << 48,
                ..line
            });
        }
    }

    /// Logs that a block will not be readable again in its generation. Only the generation is taken
    /// from the descriptor, which may be corrupt; readers of the log know the rest.
    pub(crate) fn tell_removed(&self, block: BlockIndex) {
        if self.region.has_events() && !fault::makes(Mistake::EventRemovedUntold) {
            let generation = self.region.raw_generation(block);
            // A slot that was never used has no event.
            if generation != Generation(0) {
                self.tell(EventLine::new(Kind::Removed, block, generation));
            }
        }
    }

    /// Logs that events may be missing, so that followers walk the descriptors.
    pub(crate) fn tell_gap(&self) {
        if self.region.has_events() {
            self.tell(gap());
        }
    }

    fn tell(&self, line: EventLine) {
        // A gap may come a round late as well, and always does if other users of the host forge numbers.
        let _ = self.tells_in_time(line) || (0..GAPS_MAX).any(|_| self.tells_in_time(gap()));
    }

    /// Logs an event. `false`: this writer was delayed for a whole round of the ring, so its line has
    /// overwritten a newer one.
    fn tells_in_time(&self, line: EventLine) -> bool {
        let next = self.next_number::<EventLine>();
        let sequence = next.fetch_add(1, Relaxed);
        fault::point(Point::EventNumbered);
        let at = EventLine::place(&self.region.layout, self.region.host, sequence);
        self.region.write(at, EventLine { sequence, ..line });
        fault::point(Point::EventTold);
        next.load(Relaxed).wrapping_sub(sequence) <= self.region.layout.events_per_host
    }

    /// Stores a block's names for followers that walk descriptors. The caller fences before a
    /// reader can accept the descriptor.
    #[inline]
    pub(crate) fn put_names(&self, block: BlockIndex, names: Names) {
        if self.region.has_events() {
            let at = self.region.layout.names(block);
            self.region.fabric.write_word(Offset::new(at), names.name);
            self.region.fabric.write_word(Offset::new(at + 8), names.parent);
        }
    }

    /// The names of a block, as this host's caches have them.
    pub(crate) fn names_of(&self, block: BlockIndex) -> Names {
        if !self.region.has_events() {
            return Names::default();
        }
        let at = self.region.layout.names(block);
        Names { name: self.region.fabric.load(Offset::new(at)), parent: self.region.fabric.load(Offset::new(at + 8)) }
    }
}
