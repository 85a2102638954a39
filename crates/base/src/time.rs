//! Time as a value. Code that waits or takes timestamps gets a [`Clock`], so that tests and the
//! simulator control time. Every wait takes a [`Deadline`].

use std::time::{Duration, Instant};

/// A monotonic clock in nanoseconds from its own origin.
pub trait Clock: Send + Sync {
    /// Nanoseconds since the clock's origin; never goes back.
    fn now_ns(&self) -> u64;
}

/// The machine's monotonic clock (`CLOCK_MONOTONIC` through [`Instant`]). Its origin is its
/// creation.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock with its origin now.
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

/// The instant at which a wait ends with a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The deadline `timeout` from now.
    #[must_use]
    pub fn after(timeout: Duration) -> Self {
        let now = Instant::now();
        // A timeout past the clock's range becomes 2^32 - 1 seconds, which is effectively never.
        Self(now.checked_add(timeout).unwrap_or(now + Duration::from_secs(u32::MAX.into())))
    }

    /// Remaining time; zero after the deadline.
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
