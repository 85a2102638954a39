//! Deadlines of promotions and of reads, which one thread looks at.

use super::{Job, Shared, Standing};
use crate::remote::{Landing, Piece, ReadError, Remote};
use cenote_base::Deadline;
use cenote_mem::Fabric;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

/// What the thread of deadlines looks at.
pub(super) struct Watch {
    /// Jobs whose promotion has not ended.
    pub jobs: Vec<Arc<Job>>,
    /// By peer: the deadline of the read that its thread is in.
    pub reads: Vec<Option<Deadline>>,
    /// When the thread looks again, in nanoseconds of the clock.
    pub looks_at_ns: u64,
    pub is_closed: bool,
}

impl Watch {
    pub fn new(peers: usize) -> Self {
        Self { jobs: Vec::new(), reads: vec![None; peers], looks_at_ns: 0, is_closed: false }
    }

    fn next(&self) -> Option<Deadline> {
        let jobs = self.jobs.iter().map(|job| job.promotion.until());
        jobs.chain(self.reads.iter().copied().flatten()).min_by_key(|until| until.at_ns())
    }
}

impl<F: Fabric + 'static> Shared<F> {
    pub(super) fn watched(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a deadline. The thread is woken only if it would look later.
    pub(super) fn watch(&self, until: Deadline, add: impl FnOnce(&mut Watch)) {
        let mut watch = self.watched();
        add(&mut watch);
        if until.at_ns() < watch.looks_at_ns {
            watch.looks_at_ns = until.at_ns();
            self.watch_changed.notify_all();
        }
    }

    /// Ends promotions at their deadlines, and finds peers whose read is late.
    pub(super) fn keep_deadlines(&self) {
        loop {
            let mut watch = self.watched();
            watch.jobs.retain(|job| !job.is_over.load(Ordering::Acquire));
            // Without a deadline only a new one matters; the bound only limits a missed wake-up.
            let until = watch.next().unwrap_or_else(|| self.clock.after(Duration::from_secs(1)));
            watch.looks_at_ns = until.at_ns();
            let nothing_new = |watch: &mut Watch| !watch.is_closed && watch.looks_at_ns == until.at_ns();
            watch = until.wait_while(&self.watch_changed, watch, nothing_new);
            let is_closed = watch.is_closed;
            let ended = watch.jobs.iter().filter(|job| is_closed || job.promotion.until().passed());
            let ended: Vec<Arc<Job>> = ended.cloned().collect();
            let late = watch.reads.iter_mut().map(|read| read.take_if(|until| until.passed()).is_some());
            let late: Vec<bool> = late.collect();
            drop(watch);
            for (peer, _) in self.peers.iter().zip(late).filter(|(_, is_late)| *is_late) {
                let mut state = peer.state();
                let is_new = state.standing == Standing::Good && self.suspect(&mut state, &ReadError::Late);
                drop(state);
                if is_new {
                    peer.log(&ReadError::Late);
                }
            }
            // Suspicion comes first: a request that goes on must not meet the same peer again.
            for job in ended {
                job.end();
            }
            if is_closed {
                return;
            }
        }
    }
}

/// A peer's region whose reads the thread of deadlines sees.
pub(super) struct Watched<'a, F: Fabric> {
    pub remote: Box<dyn Remote>,
    pub shared: &'a Shared<F>,
    pub number: usize,
}

impl<F: Fabric + 'static> Remote for Watched<'_, F> {
    fn region_bytes(&self) -> u64 {
        self.remote.region_bytes()
    }

    fn read(&mut self, pieces: &[Piece], landing: Landing, deadline: Deadline) -> Result<(), ReadError> {
        self.shared.watch(deadline, |watch| watch.reads[self.number] = Some(deadline));
        let outcome = self.remote.read(pieces, landing, deadline);
        self.shared.watched().reads[self.number] = None;
        outcome
    }

    fn landed(&mut self, landing: Landing) -> &mut [u8] {
        self.remote.landed(landing)
    }
}
