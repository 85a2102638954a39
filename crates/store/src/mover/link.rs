//! The link that jobs copy over: as fast as memory, or held back to the speed of a slower one.

use cenote_base::time::nanoseconds;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Speed of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpeed {
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Time from a request to its first byte, which overlaps with other requests.
    pub latency: Duration,
}

impl LinkSpeed {
    /// SK hynix Niagara 2.0 as TraCT measured it (evaluation, "Hardware"): 10.1 GB/s and 640 ns.
    pub const NIAGARA: Self = Self { bytes_per_s: 10.1e9, latency: Duration::from_nanos(640) };
}

/// A link that all threads of a mover share. A job over it ends when its copy has ended, and not
/// before a link of the given speed could have delivered its bytes after those of earlier jobs.
#[derive(Debug)]
pub struct Link {
    speed: Option<LinkSpeed>,
    /// When the link will have delivered all bytes of earlier jobs, in nanoseconds of the mover's
    /// clock.
    free_at_ns: Mutex<u64>,
}

impl Link {
    /// A link of this speed; `None`: of memory's own.
    #[must_use]
    pub const fn new(speed: Option<LinkSpeed>) -> Self {
        Self { speed, free_at_ns: Mutex::new(0) }
    }

    /// Reserves the link for `bytes` requested at `begin_ns`. Returns when they are delivered.
    #[must_use]
    pub fn deliver(&self, begin_ns: u64, bytes: u64) -> u64 {
        let Some(speed) = self.speed else { return begin_ns };
        let ns = nanoseconds(Duration::from_secs_f64(bytes as f64 / speed.bytes_per_s));
        // The number is whole at any time, so a poisoned lock is usable.
        let mut free_at_ns = self.free_at_ns.lock().unwrap_or_else(PoisonError::into_inner);
        *free_at_ns = begin_ns.max(*free_at_ns).saturating_add(ns);
        free_at_ns.saturating_add(nanoseconds(speed.latency))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_queue_up_and_latencies_overlap() {
        let speed = LinkSpeed { bytes_per_s: 1e9, latency: Duration::from_micros(7) };
        let (link, begin) = (Link::new(Some(speed)), 1_000_000_000);
        let micros = |ns: u64| (ns - begin) / 1_000;
        assert_eq!(micros(link.deliver(begin, 10_000)), 17);
        assert_eq!(micros(link.deliver(begin, 10_000)), 27, "behind the first");
        assert_eq!(micros(link.deliver(begin + 50_000, 1_000)), 58, "the link was idle");
        assert_eq!(Link::new(None).deliver(begin, 1 << 40), begin);
    }
}
