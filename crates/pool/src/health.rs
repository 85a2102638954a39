//! A worker that leaves a damaged region alone.
//!
//! Damage costs hits and no wrong bytes, but it may cost time without end: each call waits for a lock whose line is
//! garbage, or walks structures that lead nowhere. So a worker that meets too much of it takes itself out: its calls of
//! the serving path come to nothing at once, and its engine computes. From its tick it then mends what this host may
//! mend, and joins in again when a walk finds nothing that does not hold.
//!
//! *What takes it out*: [`TIMEOUTS`] locks that were not free in time within [`WINDOW`]; a superblock, a line of its own or
//! a chunk line of its host that does not hold; memory that is gone. The tick looks for the latter three.

use crate::check::CheckReport;
use crate::error::PoolError;
use crate::locks::Name;
use crate::pool::{Inner, Pool};
use crate::region::lines::{HostLine, WorkerLine};
use crate::region::superblock::Superblock;
use cenote_base::Health;
use cenote_mem::{Fabric, HostLocal, Word};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Locks not free in time that take a worker out, if they come within a [`WINDOW`].
const TIMEOUTS: u32 = 4;
const WINDOW: Duration = Duration::from_secs(10);

/// Between two attempts to join in again; doubled with each that fails.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Chunk lines that a tick looks at.
const CHUNKS_A_TICK: u64 = 256;

/// Whether this worker uses the region.
#[derive(Default)]
pub(crate) struct Breaker {
    is_out: AtomicBool,
    state: Mutex<State>,
    /// The chunk whose line a tick looks at next.
    next_chunk: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Lock timeouts since `since`.
    timeouts: u32,
    since: Duration,
    /// Why the worker is out.
    reason: String,
    /// When it may try to join in again.
    next_attempt: Duration,
    pause: Duration,
}

impl Breaker {
    #[inline]
    pub fn is_out(&self) -> bool {
        self.is_out.load(Relaxed)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lock was not free in time.
    pub fn timed_out(&self, now: Duration, lock: Name) {
        let mut state = self.state();
        if now.saturating_sub(state.since) > WINDOW {
            (state.since, state.timeouts) = (now, 0);
        }
        state.timeouts += 1;
        if state.timeouts >= TIMEOUTS && !self.is_out() {
            let reason = format!("{TIMEOUTS} waits for locks of the region timed out, the last for {lock:?}");
            self.take_out(&mut state, now, reason);
        }
    }

    /// Something that must hold does not.
    fn found(&self, now: Duration, reason: String) {
        let mut state = self.state();
        if !self.is_out() {
            self.take_out(&mut state, now, reason);
        }
    }

    fn take_out(&self, state: &mut State, now: Duration, reason: String) {
        (state.reason, state.pause, state.next_attempt) = (reason, FIRST_PAUSE, now.saturating_add(FIRST_PAUSE));
        self.is_out.store(true, Relaxed);
    }

    fn is_due(&self, now: Duration) -> bool {
        now >= self.state().next_attempt
    }

    fn failed(&self, now: Duration, reason: String) {
        let mut state = self.state();
        state.pause = (2 * state.pause).min(LONGEST_PAUSE);
        state.next_attempt = now.saturating_add(state.pause);
        state.reason = reason;
    }

    fn join_in(&self) {
        let mut state = self.state();
        (state.timeouts, state.reason) = (0, String::new());
        self.is_out.store(false, Relaxed);
    }
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Whether this worker uses the region, and why not. While it does not, lookups find nothing, publishing has no room,
    /// and [`Pool::tick`] tries to mend the region.
    #[must_use]
    pub fn health(&self) -> Health {
        let breaker = &self.0.breaker;
        if breaker.is_out() { Health::degraded(breaker.state().reason.clone()) } else { Health::Ok }
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// Looks whether the region holds, and takes this worker out or lets it join in again. Called from the tick.
    pub(crate) fn look_after_health(&self) {
        let now = self.area.now();
        if !self.breaker.is_out() {
            if let Some(reason) = self.first_damage() {
                self.breaker.found(now, reason);
            }
        } else if self.breaker.is_due(now) {
            match self.mend() {
                Ok(()) => self.breaker.join_in(),
                Err(reason) => self.breaker.failed(self.area.now(), reason),
            }
        }
    }

    /// Something that must hold and does not, of what is quickly looked at.
    fn first_damage(&self) -> Option<String> {
        if let Err(reason) = self.whole_region() {
            return Some(reason);
        }
        let (worker, host) = (self.layout.worker(self.host, self.slot()), self.layout.host(self.host));
        if self.read::<WorkerLine>(worker).is_none() {
            return Some("this worker's line does not hold".to_owned());
        }
        if self.read::<HostLine>(host).is_none() {
            // Another process of the host may be writing it.
            let _membership = self.try_lock(Name::Membership)?;
            if self.read::<HostLine>(host).is_none() {
                return Some("this host's line does not hold".to_owned());
            }
        }
        let first = self.breaker.next_chunk.fetch_add(CHUNKS_A_TICK, Relaxed);
        let count = CHUNKS_A_TICK.min(self.layout.num_chunks);
        let torn =
            (0..count).map(|chunk| (first + chunk) % self.layout.num_chunks).find(|&chunk| self.is_lost(chunk))?;
        // It may have been written just now.
        let _heap = self.try_lock(Name::Heap)?;
        self.is_lost(torn).then(|| format!("the line of chunk {torn} does not hold"))
    }

    /// Whether this host holds a chunk whose line does not say so.
    fn is_lost(&self, chunk: u64) -> bool {
        self.chunk_class(chunk).load(Relaxed) != 0
            && self.read_chunk(chunk).is_none_or(|line| line.owner != self.host + 1)
            && !self.is_dead(self.host, self.incarnation())
    }

    /// Whether all of the region is there, and is the one that was opened.
    fn whole_region(&self) -> Result<(), String> {
        if !self.fabric.still_whole() {
            return Err("a part of the region's memory is gone: its file was cut, or the hardware lost it; \
                        make a new region and restart its users"
                .to_owned());
        }
        match Superblock::read(&self.fabric) {
            Ok(now) if now == self.superblock => Ok(()),
            Ok(_) => Err("the region was formatted anew while it was in use; restart its users".to_owned()),
            Err(error) => Err(format!("the superblock does not hold: {error}")),
        }
    }

    /// Mends what this host may mend, and walks what it has.
    fn mend(&self) -> Result<(), String> {
        if self.fabric.still_whole() {
            self.superblock.mend(&self.fabric);
        }
        self.whole_region()?;
        let busy = |error: PoolError| error.to_string();
        {
            let _membership = self.lock(Name::Membership).map_err(PoolError::lock("membership")).map_err(busy)?;
            self.rewrite_own_lines();
        }
        self.collect_garbage(false, self.lock_timeout).map_err(busy)?;
        let mut report = CheckReport::default();
        {
            let _heap = self.lock(Name::Heap).map_err(PoolError::lock("heap")).map_err(busy)?;
            if let Some(chunk) = (0..self.layout.num_chunks).find(|&chunk| self.is_lost(chunk)) {
                return Err(format!("the line of chunk {chunk} does not hold"));
            }
            let objects: BTreeSet<_> = self.object_blocks().into_iter().collect();
            // A line of another host that does not hold is that host's to mend.
            let lines = self.check_chunk_lines(&mut CheckReport::default());
            self.check_own(&lines, &objects, &|_| false, true, &mut report);
        }
        match report.damage.first() {
            None => Ok(()),
            Some(finding) => Err(format!("{} does not hold: {}", finding.what, finding.fact)),
        }
    }
}
