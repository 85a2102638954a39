//! The event log: which blocks came and which left, for those who tell routers where a prompt is warm
//! (docs/format.md#event, docs/events.md).
//!
//! Each host has a ring of lines that only it writes, as for its [records](crate::history). A worker takes a number from
//! a word of the host's own memory and stores the line without waiting for it; the lock of an index shard, which is taken
//! next in any case, waits for it too. A block is told of before anybody can be led to it, and its end when nobody ever
//! makes it readable again but before its slot is free. So whoever dies in between leaves something that was told of, or
//! that those who clean up tell of.
//!
//! A line names a block and its generation, and of one generation a block first comes and then goes, once. So whoever
//! reads the lines may do so in any order, and more than once, and ends up with the same ([`view`]). What he may not do is
//! to miss one: numbers without a line are noticed, and then he goes by the descriptors instead ([`Follower`]).

mod follow;
mod view;

pub use follow::{Followed, Follower, Resync};
pub use view::{BlockEvent, Told};

use crate::check::{CheckReport, finding};
use crate::pool::Inner;
use crate::region::lines::{Descriptor, EventLine};
use cenote_base::{BlockHash, BlockIndex, Generation, NamespaceId, fault};
use cenote_mem::{Fabric, HostLocal, Offset, Word};
use serde::Serialize;
use std::sync::atomic::Ordering::Relaxed;

/// What other programs call a block, for routers that know it by that. The pool keeps names and does not ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Names {
    /// Its own name; 0: none.
    pub name: u64,
    /// The name of the block before it in its sequence; 0: none, or not known.
    pub parent: u64,
}

/// What a line tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// A block is readable.
    Stored = 1,
    /// It is not, and will not be.
    Removed = 2,
    /// Something may have gone untold.
    Gap = 3,
}

impl Kind {
    fn from_number(number: u64) -> Option<Self> {
        [Self::Stored, Self::Removed, Self::Gap].into_iter().find(|kind| *kind as u64 == number)
    }
}

/// A number that no host reaches; above it a line was forged.
const SEQUENCE_MAX: u64 = 1 << 62;

impl EventLine {
    fn new(kind: Kind, block: BlockIndex, generation: Generation) -> Self {
        Self { what: kind as u64 | block.0 << 24, which: generation.0, ..Self::default() }
    }

    /// Whether an event of its number belongs at this place of the ring.
    const fn is_at(&self, position: u64, events: u64) -> bool {
        self.sequence >= 1 && self.sequence <= SEQUENCE_MAX && (self.sequence - 1) % events == position
    }

    fn kind(&self) -> Option<Kind> {
        Kind::from_number(self.what & 0xff)
    }

    const fn namespace(&self) -> NamespaceId {
        NamespaceId((self.what >> 8) as u16)
    }

    const fn block(&self) -> BlockIndex {
        BlockIndex(self.what >> 24)
    }

    const fn generation(&self) -> Generation {
        Generation(self.which & ((1 << 48) - 1))
    }

    const fn depth(&self) -> u16 {
        (self.which >> 48) as u16
    }

    fn block_hash(&self) -> BlockHash {
        BlockHash::from_words(self.hash)
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// Tells that a block is readable whose descriptor this is, which was written.
    #[inline]
    pub(crate) fn tell_stored(&self, block: BlockIndex, descriptor: &Descriptor, names: Names) {
        if self.has_events() && !fault::sabotaged("event.stored-untold") {
            // A host that dies may lose what it did not wait for. Were that the descriptor and not the line, its
            // generation would be told of and never end.
            self.fabric.fence();
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

    /// Tells that a block will not be readable any more in its generation. Nothing but this host's descriptor is looked
    /// at, and that may not hold: who reads the line knows what the block was.
    pub(crate) fn tell_removed(&self, block: BlockIndex) {
        if self.has_events() && !fault::sabotaged("event.removed-untold") {
            let generation = self.raw_generation(block);
            // A slot that was never used has nothing to tell.
            if generation != Generation(0) {
                self.tell(EventLine::new(Kind::Removed, block, generation));
            }
        }
    }

    /// Tells that something may have gone untold, so that who follows goes by the descriptors.
    pub(crate) fn tell_gap(&self) {
        if self.has_events() {
            self.tell(EventLine::new(Kind::Gap, BlockIndex(0), Generation(0)));
        }
    }

    fn tell(&self, line: EventLine) {
        let events = self.layout.events_per_host;
        let next = self.next_event();
        if next.load(Relaxed) == 0 {
            // New memory of the host does not know where the log ends.
            let _ = next.compare_exchange(0, self.last_event() + 1, Relaxed, Relaxed);
        }
        let sequence = next.fetch_add(1, Relaxed);
        fault::point("event.numbered");
        let at = self.event_place(self.host, sequence);
        self.write(at, EventLine { sequence, ..line });
        fault::point("event.told");
        // Whoever was held up for a whole turn of the ring has written over what others had told.
        if next.load(Relaxed).wrapping_sub(sequence) > events {
            self.tell_gap();
        }
    }

    /// Where a host's event of this number lies.
    fn event_place(&self, host: u64, sequence: u64) -> u64 {
        self.layout.event(host, sequence.wrapping_sub(1) % self.layout.events_per_host)
    }

    /// What a line of a host's ring tells, if it holds.
    fn event_at(&self, host: u64, position: u64) -> Option<EventLine> {
        let at = self.layout.event(host, position);
        let line = self.read::<EventLine>(at)?;
        line.is_at(position, self.layout.events_per_host).then_some(line)
    }

    /// Number of the last event in this host's ring.
    fn last_event(&self) -> u64 {
        let positions = 0..self.layout.events_per_host;
        positions.filter_map(|position| Some(self.event_at(self.host, position)?.sequence)).max().unwrap_or(0)
    }

    /// Keeps a block's names beside it, for those who walk. The caller fences before anybody can believe the descriptor.
    #[inline]
    pub(crate) fn put_names(&self, block: BlockIndex, names: Names) {
        if self.has_events() {
            let at = self.layout.names(block);
            self.fabric.write_word(Offset::new(at), names.name);
            self.fabric.write_word(Offset::new(at + 8), names.parent);
        }
    }

    /// The names of a block, as this host's caches have them.
    pub(crate) fn names_of(&self, block: BlockIndex) -> Names {
        if !self.has_events() {
            return Names::default();
        }
        let at = self.layout.names(block);
        Names { name: self.fabric.load(Offset::new(at)), parent: self.fabric.load(Offset::new(at + 8)) }
    }

    /// Looks at a host's ring, as this host's caches have it: how many lines hold, and which do not.
    pub(crate) fn check_events(&self, host: u64, report: &mut CheckReport) {
        let (mut used, mut broken) = (0, 0);
        for position in 0..self.layout.events_per_host {
            if self.event_at(host, position).is_some() {
                used += 1;
            } else if self.fabric.load_line(self.layout.event(host, position)) != [0; 8] {
                broken += 1;
            }
        }
        report.events += used;
        if broken > 0 {
            report.pending.push(finding(
                format!("event log of host {host}"),
                &format!("{broken} of its lines do not hold: who wrote them died, or is not done"),
                "followers of the log notice, and go by the descriptors once",
                "later events are written over them",
            ));
        }
    }
}
