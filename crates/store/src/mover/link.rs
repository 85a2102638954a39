//! The link that jobs copy over: as fast as memory, or held back to the speed of a slower one.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

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
    /// When the link will have delivered all bytes of earlier jobs.
    free_at: Mutex<Instant>,
}

impl Link {
    /// A link of this speed; `None`: of memory's own.
    #[must_use]
    pub fn new(speed: Option<LinkSpeed>) -> Self {
        Self { speed, free_at: Mutex::new(Instant::now()) }
    }

    /// Reserves the link for `bytes` requested at `begin`. Returns when they are delivered.
    #[must_use]
    pub fn deliver(&self, begin: Instant, bytes: u64) -> Instant {
        let Some(speed) = self.speed else { return begin };
        // The instant is whole at any time, so a poisoned lock is usable.
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        *free_at = begin.max(*free_at) + Duration::from_secs_f64(bytes as f64 / speed.bytes_per_s);
        *free_at + speed.latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_queue_up_and_latencies_overlap() {
        let speed = LinkSpeed { bytes_per_s: 1e9, latency: Duration::from_micros(7) };
        let (link, begin) = (Link::new(Some(speed)), Instant::now() + Duration::from_secs(1));
        let micros = |instant: Instant| (instant - begin).as_micros();
        assert_eq!(micros(link.deliver(begin, 10_000)), 17);
        assert_eq!(micros(link.deliver(begin, 10_000)), 27, "behind the first");
        assert_eq!(micros(link.deliver(begin + Duration::from_micros(50), 1_000)), 58, "the link was idle");
        assert_eq!(Link::new(None).deliver(begin, 1 << 40), begin);
    }
}
