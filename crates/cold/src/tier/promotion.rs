//! Reads in progress, and the requests that wait for them.

use crate::record::Name;
use cenote_base::Deadline;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most blocks that wait for a reader.
const READS_MAX: usize = 1 << 14;

/// Blocks that one request waits for. Dropping it abandons nothing: blocks that are read become
/// shared.
#[derive(Clone)]
pub struct Promotion(Arc<Progress>);

struct Progress {
    until: Deadline,
    left: Mutex<usize>,
    done: Condvar,
}

impl Promotion {
    /// A promotion of so many blocks, which other code than a tier reads.
    #[must_use]
    pub fn of(blocks: usize, until: Deadline) -> Self {
        Self(Arc::new(Progress { until, left: Mutex::new(blocks), done: Condvar::new() }))
    }

    /// Whether all blocks are published or failed, or the deadline has passed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        *self.left() == 0 || self.0.until.passed()
    }

    /// Waits until [`Promotion::is_over`], at most until the promotion's own deadline. Returns
    /// whether every block was published or failed.
    pub fn wait(&self) -> bool {
        let waited = self.0.done.wait_timeout_while(self.left(), self.0.until.remaining(), |left| *left > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }

    fn left(&self) -> MutexGuard<'_, usize> {
        self.0.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block is published, or failed.
    pub fn one_done(&self) {
        let mut left = self.left();
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.0.done.notify_all();
        }
    }
}

/// A read for the requests that wait for it.
pub struct Read {
    /// The block.
    pub name: Name,
    started: u64,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Name>,
    /// Requests of each queued or running read.
    waiters: HashMap<Name, Vec<Promotion>>,
    /// Start of each running read.
    running: HashMap<u64, Instant>,
    started: u64,
    is_closed: bool,
}

/// All reads of a tier.
#[derive(Default)]
pub struct Reads {
    state: Mutex<State>,
    changed: Condvar,
}

impl Reads {
    fn state(&self) -> MutexGuard<'_, State> {
        // No statement leaves the state inconsistent, so a poisoned lock is usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the reads, for tests.
    #[cfg(test)]
    pub fn hold(&self) -> impl Sized + '_ {
        self.state()
    }

    /// Queues reads. A block that is being read for another request is not read again. Also returns
    /// the number of blocks that were refused.
    pub fn begin(&self, names: &[Name], until: Deadline) -> (Promotion, u64) {
        let promotion = Promotion::of(0, until);
        let (mut state, mut refused) = (self.state(), 0);
        for name in names {
            let is_new = !state.waiters.contains_key(name);
            if is_new && (state.is_closed || state.queue.len() >= READS_MAX) {
                refused += 1;
                continue;
            }
            if is_new {
                state.queue.push_back(*name);
            }
            *promotion.left() += 1;
            state.waiters.entry(*name).or_default().push(promotion.clone());
        }
        drop(state);
        self.changed.notify_all();
        (promotion, refused)
    }

    /// Takes a read; waits for one. `None`: the tier ends. Reads that no request waits for any more
    /// are taken off and told to `late`.
    pub fn take(&self, late: impl Fn()) -> Option<Read> {
        let mut state = self.state();
        loop {
            // Requests compute their blocks now, so nothing is read.
            if state.is_closed {
                let state = &mut *state;
                state.queue.drain(..).for_each(|name| release(state.waiters.remove(&name)));
                return None;
            }
            match state.queue.pop_front() {
                Some(name) if state.waiters[&name].iter().all(|waiter| waiter.0.until.passed()) => {
                    late();
                    release(state.waiters.remove(&name));
                }
                Some(name) => {
                    state.started += 1;
                    let started = state.started;
                    state.running.insert(started, Instant::now());
                    return Some(Read { name, started });
                }
                None => {
                    // The bound only limits a missed wake-up.
                    let waited = self.changed.wait_timeout(state, Duration::from_secs(1));
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Ends a read. `count` learns whether a request still waits for it, before the request
    /// continues.
    pub fn done(&self, read: &Read, count: impl FnOnce(bool)) {
        let mut state = self.state();
        state.running.remove(&read.started);
        let waiters = state.waiters.remove(&read.name);
        let in_time = waiters.iter().flatten().any(|waiter| !waiter.0.until.passed());
        drop(state);
        count(in_time);
        release(waiters);
    }

    /// Whether a read has taken longer than requests wait. Then no request should wait for further
    /// ones.
    pub fn is_stuck(&self, deadline: Duration) -> bool {
        self.state().running.values().any(|since| since.elapsed() > deadline)
    }

    /// Ends all takers.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }

    pub fn len(&self) -> usize {
        self.state().waiters.len()
    }
}

fn release(waiters: Option<Vec<Promotion>>) {
    waiters.into_iter().flatten().for_each(|waiter| waiter.one_done());
}
