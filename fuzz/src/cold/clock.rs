//! Time of a tier. It passes with each look, and at once where a call waits for it.

use cenote_base::Clock;
use cenote_base::time::TimeSource;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Time of one look.
const LOOK_NS: u64 = 1000;
/// Time that a wait takes at least, of this clock.
const WAIT: Duration = Duration::from_millis(100);

pub struct Looks(AtomicU64);

static LOOKS_OF_ALL: Looks = Looks(AtomicU64::new(0));

impl Looks {
    /// The clock of all runs.
    pub fn clock() -> Clock {
        Clock::of(&LOOKS_OF_ALL)
    }

    /// Lets time pass.
    pub fn advance(by: Duration) {
        LOOKS_OF_ALL.0.fetch_add(by.as_nanos() as u64, Relaxed);
    }
}

impl TimeSource for Looks {
    fn now_ns(&self) -> u64 {
        self.0.fetch_add(LOOK_NS, Relaxed)
    }

    fn unix(&self) -> Duration {
        Duration::from_secs(1_790_000_000) + Duration::from_nanos(self.now_ns())
    }

    fn block_for(&self, ahead: Duration) -> Duration {
        // A wait that nothing ends would take real time otherwise.
        Self::advance(ahead / 2 + WAIT);
        ahead.min(Duration::from_micros(20))
    }

    fn spin_until(&self, at_ns: u64) {
        self.0.fetch_max(at_ns, Relaxed);
    }
}

/// Time that passes only where a test says so, for threads.
pub struct Still(AtomicU64);

static STILL: Still = Still(AtomicU64::new(0));

impl Still {
    /// The clock of all runs.
    pub fn clock() -> Clock {
        Clock::of(&STILL)
    }

    /// Lets time pass.
    pub fn advance(by: Duration) {
        STILL.0.fetch_add(by.as_nanos() as u64, Relaxed);
    }
}

impl TimeSource for Still {
    fn now_ns(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn unix(&self) -> Duration {
        // Names of extents need an order.
        Looks::clock().unix()
    }

    fn block_for(&self, ahead: Duration) -> Duration {
        ahead.min(Duration::from_micros(100))
    }

    fn spin_until(&self, at_ns: u64) {
        self.0.fetch_max(at_ns, Relaxed);
    }
}
