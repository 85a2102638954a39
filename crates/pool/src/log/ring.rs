//! The rings of a host: of each kind of line it has one, which only it writes, and any process reads.
//!
//! A line has a number, from 1, and its position is this number less one, modulo the lines of the ring.
//! The number of the next line is a word of the host's memory. New host memory does not know it, and other
//! users of the host may have forged it, so it is found again in the ring itself.

use super::Log;
use crate::region::Region;
use crate::region::layout::Layout;
use crate::region::lines::{EventLine, Line, RecordLine, RemovalLine};
use cenote_mem::{Fabric, HostLocal, Word};
use std::sync::atomic::Ordering::Relaxed;

/// No host reaches this number. A line that has it, or a higher one, is forged.
const SEQUENCE_END: u64 = 1 << 62;

/// A kind of line that has rings.
pub(crate) trait RingLine: Line {
    /// Number of the line among its host's.
    fn sequence(&self) -> u64;
    /// Lines of a host's ring; 0: the region has no such rings.
    fn lines(layout: &Layout) -> u64;
    /// Offset of the line at a position of a host's ring.
    fn at(layout: &Layout, host: u64, position: u64) -> u64;
    /// Number of this host's next line; 0: unknown.
    fn next<F: Fabric, H: HostLocal>(region: &Region<F, H>) -> &H::Word64;

    /// Offset of a host's line with this number.
    fn place(layout: &Layout, host: u64, sequence: u64) -> u64 {
        Self::at(layout, host, sequence.wrapping_sub(1) % Self::lines(layout))
    }

    /// The line at a position, if it is whole and belongs there.
    fn open_at<F: Fabric>(fabric: &F, salt: u64, layout: &Layout, host: u64, position: u64) -> Option<Self> {
        let at = Self::at(layout, host, position);
        let line = Self::open(fabric.load_line(at), at, salt)?;
        let (sequence, lines) = (line.sequence(), Self::lines(layout));
        ((1..SEQUENCE_END).contains(&sequence) && (sequence - 1) % lines == position).then_some(line)
    }

    /// All lines of a host's ring, by position, around this process's caches.
    fn all<F: Fabric>(fabric: &F, salt: u64, layout: &Layout, host: u64) -> impl Iterator<Item = Self> {
        (0..Self::lines(layout)).filter_map(move |position| {
            fabric.refresh(&[Self::at(layout, host, position)]);
            Self::open_at(fabric, salt, layout, host, position)
        })
    }
}

macro_rules! ring_lines {
    ($($line:ident: $lines:ident, $at:ident, $next:ident;)*) => {
        $(impl RingLine for $line {
            fn sequence(&self) -> u64 {
                self.sequence
            }

            fn lines(layout: &Layout) -> u64 {
                layout.$lines
            }

            fn at(layout: &Layout, host: u64, position: u64) -> u64 {
                layout.$at(host, position)
            }

            fn next<F: Fabric, H: HostLocal>(region: &Region<F, H>) -> &H::Word64 {
                region.$next()
            }
        })*
    };
}

ring_lines! {
    RecordLine: records_per_host, record, next_record;
    EventLine: events_per_host, event, next_event;
    RemovalLine: removals_per_host, removal, next_removal;
}

impl<F: Fabric, H: HostLocal> Log<F, H> {
    /// The line at a position of a host's ring, as this process's caches have it.
    pub(crate) fn line_at<L: RingLine>(&self, host: u64, position: u64) -> Option<L> {
        L::open_at(&self.region.fabric, self.region.salt, &self.region.layout, host, position)
    }

    /// Number of this host's next line, which is known after the call.
    pub(super) fn next_number<L: RingLine>(&self) -> &H::Word64 {
        let next = L::next(&self.region);
        let known = next.load(Relaxed);
        if known == 0 || known > SEQUENCE_END {
            let of_host = (0..L::lines(&self.region.layout)).filter_map(|at| self.line_at::<L>(self.region.host, at));
            let last = of_host.map(|line| line.sequence()).max().unwrap_or(0);
            let _ = next.compare_exchange(known, last + 1, Relaxed, Relaxed);
        }
        next
    }

    /// Finds the ends of this host's rings, so that no operation under a lock does.
    pub(crate) fn find_ends(&self) {
        self.next_number::<RecordLine>();
        self.next_number::<EventLine>();
        self.next_number::<RemovalLine>();
    }

    /// Stores a line of this host's ring and waits for nothing: the next fence of this process completes
    /// the flush.
    pub(super) fn put_unfenced<L: RingLine>(&self, line: L) {
        let at = L::place(&self.region.layout, self.region.host, line.sequence());
        self.region.fabric.store_line(at, &line.seal(at, self.region.salt));
        self.region.fabric.publish_unfenced(at);
    }
}
