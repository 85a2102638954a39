//! Time as a value. Code that waits or stamps takes a [`Clock`], so that tests and the simulator
//! can own time; every wait takes a [`Deadline`].

use std::time::{Duration, Instant};

/// A monotonic clock in nanoseconds from an origin of its own.
pub trait Clock: Send + Sync {
    /// Nanoseconds since the clock's origin; never goes back.
    fn now_ns(&self) -> u64;
}

/// The machine's monotonic clock (`CLOCK_MONOTONIC` through [`Instant`]), counted from its creation.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock whose origin is now.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The instant after which a wait gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// `timeout` from now.
    #[must_use]
    pub fn after(timeout: Duration) -> Self {
        let now = Instant::now();
        // A timeout past the end of the clock means "as late as the clock can say".
        Self(now.checked_add(timeout).unwrap_or(now + Duration::from_secs(u32::MAX.into())))
    }

    /// What is left; zero once passed.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether the deadline has passed.
    #[must_use]
    pub fn passed(self) -> bool {
        Instant::now() >= self.0
    }
}
