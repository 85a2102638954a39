//! The breaker: whether this worker uses the region. It trips on [`TIMEOUTS`] lock timeouts within
//! [`WINDOW`], or when [`crate::members`] finds damage, and closes when a walk finds none.

use super::Name;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Lock timeouts within a [`WINDOW`] that trip the breaker.
const TIMEOUTS: u32 = 4;
const WINDOW: Duration = Duration::from_secs(10);

/// Pause before the first attempt to close it; doubled with each failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Whether this worker uses the region.
#[derive(Default)]
pub(crate) struct Breaker {
    is_out: AtomicBool,
    state: Mutex<State>,
    /// The first chunk that the next tick checks.
    next_chunk: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Lock timeouts since `since`.
    timeouts: u32,
    since: Duration,
    /// Why the worker is out.
    reason: String,
    /// Time of the next attempt to close it.
    next_attempt: Duration,
    pause: Duration,
}

impl Breaker {
    /// Whether this worker leaves the region alone.
    #[inline]
    pub fn is_out(&self) -> bool {
        self.is_out.load(Relaxed)
    }

    /// Why the worker is out.
    pub fn reason(&self) -> String {
        self.state().reason.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a lock that was not free in time.
    pub fn timed_out(&self, now: Duration, lock: Name) {
        let mut state = self.state();
        if now.saturating_sub(state.since) > WINDOW {
            (state.since, state.timeouts) = (now, 0);
        }
        state.timeouts += 1;
        if state.timeouts >= TIMEOUTS && !self.is_out() {
            let reason = format!("{TIMEOUTS} waits for locks of the region timed out, the last for {lock:?}");
            self.trip(&mut state, now, reason);
        }
    }

    /// Trips because a structure does not hold.
    pub fn found(&self, now: Duration, reason: String) {
        let mut state = self.state();
        if !self.is_out() {
            self.trip(&mut state, now, reason);
        }
    }

    fn trip(&self, state: &mut State, now: Duration, reason: String) {
        (state.reason, state.pause, state.next_attempt) = (reason, FIRST_PAUSE, now.saturating_add(FIRST_PAUSE));
        self.is_out.store(true, Relaxed);
    }

    /// Whether an attempt to close it is due.
    pub fn is_due(&self, now: Duration) -> bool {
        now >= self.state().next_attempt
    }

    /// Records a failed attempt to close it.
    pub fn failed(&self, now: Duration, reason: String) {
        let mut state = self.state();
        state.pause = (2 * state.pause).min(LONGEST_PAUSE);
        state.next_attempt = now.saturating_add(state.pause);
        state.reason = reason;
    }

    /// Closes it.
    pub fn close(&self) {
        let mut state = self.state();
        (state.timeouts, state.reason) = (0, String::new());
        self.is_out.store(false, Relaxed);
    }

    /// Where the next tick begins to check `count` chunks.
    pub fn next_chunk(&self, count: u64) -> u64 {
        self.next_chunk.fetch_add(count, Relaxed)
    }
}
