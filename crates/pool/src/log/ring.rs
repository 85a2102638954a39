//! The rings of a host: of each kind of line it has one, which only it writes, and any process reads.
//!
//! A line has a number, from 1, and its position is this number less one, modulo the lines of the ring.
//! The number of the next line is a word of the host's memory. New host memory does not know it, and other
//! users of the host may have forged it, so it is found again in the ring itself.

use super::Log;
use crate::region::Region;
use crate::region::layout::Layout;
use crate::region::lines::{EventLine, Line, RecordLine, RemovalLine, RequestLine};
use cenote_mem::{Fabric, HostLocal, Word};
use std::sync::atomic::Ordering::Relaxed;

/// No host reaches this number. A line that has it, or a higher one, is forged.
const SEQUENCE_END: u64 = 1 << 62;
/// A host continues only from lines below this number. So a forged line cannot bring it to the end.
const CONTINUED_END: u64 = SEQUENCE_END / 2;

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
    RequestLine: requests_per_host, request, next_request;
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
        if known == 0 || known >= SEQUENCE_END {
            let of_host = (0..L::lines(&self.region.layout)).filter_map(|at| self.line_at::<L>(self.region.host, at));
            let numbers = of_host.map(|line| line.sequence()).filter(|&number| number < CONTINUED_END);
            let last = numbers.max().unwrap_or(0);
            let _ = next.compare_exchange(known, last + 1, Relaxed, Relaxed);
        }
        next
    }

    /// Forgets the ends of this host's rings: another host memory has written them since.
    pub(crate) fn forget_ends(&self) {
        RecordLine::next(&self.region).store(0, Relaxed);
        EventLine::next(&self.region).store(0, Relaxed);
        RemovalLine::next(&self.region).store(0, Relaxed);
        RequestLine::next(&self.region).store(0, Relaxed);
        self.region.quarter().store(0, Relaxed);
    }

    /// Finds the ends of this host's rings, so that no operation under the heap's lock does.
    pub(crate) fn find_ends(&self) {
        self.next_number::<RecordLine>();
        self.next_number::<EventLine>();
        self.next_number::<RemovalLine>();
        self.next_number::<RequestLine>();
    }

    /// Stores a line of this host's ring and waits for nothing: the next fence of this process completes
    /// the flush.
    pub(super) fn put_unfenced<L: RingLine>(&self, line: L) {
        let at = L::place(&self.region.layout, self.region.host, line.sequence());
        self.region.fabric.store_line(at, &line.seal(at, self.region.salt));
        self.region.fabric.publish_unfenced(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::events::Kind;
    use crate::log::follow::{Follower, Resync};
    use crate::region::config::PoolConfig;
    use crate::region::superblock::Superblock;
    use crate::{AttachOptions, Pool};
    use cenote_base::{BlockIndex, Generation, HashSeed};
    use cenote_mem::{Coherent, MapOptions, Mapping, RegionSource};
    use std::sync::atomic::AtomicBool;

    const EVENTS: u64 = 64;

    fn pool() -> Pool<std::sync::Arc<Coherent>> {
        let config = PoolConfig {
            chunk_bytes: 64 << 10,
            min_block_bytes: 4 << 10,
            max_hosts: 2,
            events_per_host: EVENTS as u32,
            ..PoolConfig::new(HashSeed([3; 32]), [3; 16])
        };
        let mapping = Mapping::create(&RegionSource::Anon, 2 << 20, 0o600, &MapOptions::default()).expect("memory");
        let fabric = std::sync::Arc::new(Coherent::new(mapping));
        Superblock::format(&fabric, &config).expect("the configuration fits");
        Pool::attach(fabric, &AttachOptions { private: true, ..AttachOptions::named("test") }).expect("it attaches")
    }

    /// Puts a line with this number at its position.
    fn forge<F: Fabric, H: HostLocal>(log: &Log<F, H>, sequence: u64) {
        let at = EventLine::place(&log.region.layout, 0, sequence);
        let line = EventLine::new(Kind::Gap, BlockIndex(0), Generation(0));
        log.region.write(at, EventLine { sequence, ..line });
    }

    #[test]
    fn forged_numbers_near_the_end_make_no_later_line_unreadable() {
        let pool = pool();
        let log = &pool.0.log;
        let next = EventLine::next(&log.region);
        for forged in [SEQUENCE_END - 1, SEQUENCE_END, CONTINUED_END, CONTINUED_END - 1] {
            // In a line: new host memory finds it.
            forge(log, forged);
            next.store(0, Relaxed);
            // In host memory: it counts up to the end.
            for start in [0, SEQUENCE_END - 1, SEQUENCE_END, u64::MAX] {
                next.store(start, Relaxed);
                for _ in 0..3 {
                    log.tell_gap();
                    let told = next.load(Relaxed) - 1;
                    let line = log.line_at::<EventLine>(0, (told - 1) % EVENTS);
                    assert_eq!(line.map(|line| line.sequence), Some(told), "{forged:#x}, {start:#x}");
                }
            }
        }
    }

    #[test]
    fn a_follower_that_read_a_forged_number_returns_to_the_ring() {
        for ahead in [2 * EVENTS, 3 * EVENTS + 5, 1 << 40] {
            let pool = pool();
            let log = &pool.0.log;
            let mut follower = Follower::default();
            let mut poll = || pool.follow(&mut follower).expect("the region keeps events").resync;
            assert_eq!(poll(), Some(Resync::Begun));
            forge(log, ahead + EventLine::next(&log.region).load(Relaxed));
            assert_eq!(poll(), Some(Resync::Overtaken));
            assert_eq!(poll(), None, "the forged line is still there");
            (0..EVENTS).for_each(|_| log.tell_gap());
            assert_eq!(poll(), Some(Resync::Overtaken), "{ahead}: it is overwritten");
            log.tell_gap();
            assert_eq!(poll(), Some(Resync::Gap), "{ahead}: the next line is read");
        }
    }

    #[test]
    fn host_memory_that_returns_after_another_goes_on_behind_its_lines() {
        let pool = pool();
        let log = &pool.0.log;
        let next = EventLine::next(&log.region);
        log.tell_gap();
        let of_this = next.load(Relaxed);
        (0..10).for_each(|_| log.tell_gap());
        let of_the_other = next.load(Relaxed);
        next.store(of_this, Relaxed);
        log.forget_ends();
        log.tell_gap();
        assert_eq!(next.load(Relaxed), of_the_other + 1);
    }

    #[test]
    fn a_number_in_host_memory_that_runs_away_ends_no_writer() {
        let pool = pool();
        let log = &pool.0.log;
        let next = EventLine::next(&log.region);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    next.fetch_add(2 * EVENTS, Relaxed);
                }
            });
            (0..1000).for_each(|_| log.tell_gap());
            is_over.store(true, Relaxed);
        });
        next.store(0, Relaxed);
        log.tell_gap();
        assert!(log.line_at::<EventLine>(0, (next.load(Relaxed) - 2) % EVENTS).is_some());
    }
}
