//! The heartbeat in this host's line, by which other hosts see that it lives.

use super::{Holds, Locks, Membership, Timeout};
use crate::region::lines::HostLine;
use cenote_mem::{Fabric, HostLocal, Word};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Heartbeats of this process while it waits for a lock.
#[derive(Default)]
pub(crate) struct Pulse {
    /// When a wait last checked whether a heartbeat is due, in nanoseconds.
    last: AtomicU64,
    /// The thread that holds the membership lock; 0: none of this process.
    holder: AtomicU64,
}

impl Pulse {
    /// Records that this thread holds the membership lock, or has released it.
    pub fn set_holder(&self, holds: bool) {
        self.holder.store(if holds { this_thread() } else { 0 }, Relaxed);
    }
}

/// A number that is unique among living threads.
fn this_thread() -> u64 {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here) as u64)
}

impl<F: Fabric, H: HostLocal> Locks<F, H> {
    /// Advances this host's heartbeat.
    pub fn beat(&self, _: &Holds<Membership>) {
        let region = &self.region;
        let at = region.layout.host(region.host);
        // A line of another host memory is not this host's to change.
        if let Some(mut line) = region.read::<HostLine>(at).filter(|_| !region.is_superseded_now()) {
            line.heartbeat = line.heartbeat.wrapping_add(1);
            line.wants = region.wants_chunk().load(Acquire);
            region.write(at, line);
        }
    }

    /// Advances the heartbeat from within a wait for another host, every quarter of the host
    /// timeout. The other host may be dead, and is declared so only after a time in which this host
    /// would be declared dead too.
    pub fn beat_in_wait(&self) {
        let region = &self.region;
        let now = u64::try_from(region.area.now().as_nanos()).unwrap_or(u64::MAX);
        let pace = u64::try_from(region.host_timeout.as_nanos() / 4).unwrap_or(u64::MAX);
        if now.saturating_sub(self.pulse.last.load(Relaxed)) < pace {
            return;
        }
        self.pulse.last.store(now, Relaxed);
        // No fence: the next heartbeat is due long before another host misses this one.
        if self.pulse.holder.load(Relaxed) == this_thread() {
            self.beat(&Holds::new(Membership));
        } else if let Ok(membership) = self.lock_membership(Timeout::TRY) {
            self.beat(&membership);
        }
        // Otherwise the holder of the membership lock beats.
    }
}
