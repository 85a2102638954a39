//! The clock that all processes of a host share.

use cenote_base::time::{Clock, TimeSource};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The kernel's monotonic clock. `Clock::system` counts from an origin of its process.
struct Kernel;

impl TimeSource for Kernel {
    fn now_ns(&self) -> u64 {
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
    }

    fn unix(&self) -> Duration {
        Clock::system().unix()
    }
}

/// Time since the host's boot.
pub(super) fn kernel() -> Clock {
    Clock::of(&Kernel)
}
