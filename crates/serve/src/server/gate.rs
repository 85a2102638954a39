//! Limits the open connections of a listener, and chooses the one to close when it is full.
//!
//! A connection *waits* while it owes bytes to the server: idle, in the middle of a head, or in the
//! middle of a body. It *works* from then until its answer is written. A full listener closes the
//! connection that has waited longest to admit a new one, so idle or slow clients cannot exclude
//! others. If all connections work, the new one is refused. Answers are never cut for a new
//! connection.

use crate::time::before;
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use cenote_base::Clock;
use hyper::body::{Frame, SizeHint};
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Longest wait for a connection that was asked to close. It has nothing to finish, so one poll is
/// enough.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(100);

/// The connections of one listener.
pub(crate) struct Gate {
    max: usize,
    clock: Clock,
    places: Arc<Semaphore>,
    waiting: Mutex<Waiting>,
    refused: AtomicU64,
    evicted: AtomicU64,
}

/// Waiting connections, the one that has waited longest first.
#[derive(Default)]
struct Waiting {
    last: u64,
    by_age: BTreeMap<u64, Arc<Notify>>,
}

impl Gate {
    /// Room for `max` connections, or for three quarters of the limit on open files.
    pub(crate) fn new(max: usize, clock: Clock) -> Arc<Self> {
        let files = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| files as usize);
        let allowed = (files / 4 * 3).clamp(1, Semaphore::MAX_PERMITS);
        if max > allowed {
            tracing::warn!(
                max,
                allowed,
                "fewer connections than asked for: the limit on open files is low (ulimit -n)"
            );
        }
        let max = max.clamp(1, allowed);
        Arc::new(Self {
            max,
            clock,
            places: Arc::new(Semaphore::new(max)),
            waiting: Mutex::default(),
            refused: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        })
    }

    /// Most connections at once.
    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    /// Number of open connections.
    pub(crate) fn open(&self) -> usize {
        self.max - self.places.available_permits()
    }

    /// Connections that were refused because all others were working.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Waiting connections that were closed to make room.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// A place for a new connection; `None` if all connections work.
    pub(crate) async fn admit(self: &Arc<Self>) -> Option<Seat> {
        let place = match self.places.clone().try_acquire_owned() {
            Ok(place) => Some(place),
            Err(_) if self.evict() => {
                let freed = before(self.clock.after(LEAVE_TIMEOUT), self.places.clone().acquire_owned());
                freed.await.and_then(Result::ok)
            }
            Err(_) => None,
        };
        let Some(place) = place else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let ticket = Ticket(Arc::new(Standing {
            gate: self.clone(),
            leave: Arc::default(),
            works: AtomicBool::new(true),
            number: Mutex::default(),
        }));
        ticket.wait();
        Some(Seat { ticket, _place: place })
    }

    /// Asks the connection that has waited longest to close.
    fn evict(&self) -> bool {
        let Some((_, leave)) = self.waiting().by_age.pop_first() else { return false };
        leave.notify_one();
        self.evicted.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An admitted connection. Dropping it frees its place.
pub(crate) struct Seat {
    ticket: Ticket,
    _place: OwnedSemaphorePermit,
}

impl Seat {
    pub(crate) const fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// Resolves when the connection should close, if it still waits.
    pub(crate) async fn told_to_leave(&self) {
        self.ticket.0.leave.notified().await;
    }

    pub(crate) fn works(&self) -> bool {
        self.ticket.0.works.load(Ordering::Acquire)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.ticket.work();
    }
}

/// Whether a connection waits or works, for its handlers.
#[derive(Clone)]
pub(crate) struct Ticket(Arc<Standing>);

struct Standing {
    gate: Arc<Gate>,
    leave: Arc<Notify>,
    works: AtomicBool,
    /// Its key in `Waiting::by_age`.
    number: Mutex<Option<u64>>,
}

impl Ticket {
    /// Marks that the connection owes bytes.
    pub(crate) fn wait(&self) {
        let mut number = self.0.number.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.works.swap(false, Ordering::AcqRel) {
            let mut waiting = self.0.gate.waiting();
            waiting.last += 1;
            let last = waiting.last;
            waiting.by_age.insert(last, self.0.leave.clone());
            *number = Some(last);
        }
    }

    /// Marks that the server owes an answer.
    pub(crate) fn work(&self) {
        let mut number = self.0.number.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.works.store(true, Ordering::Release);
        if let Some(number) = number.take() {
            self.0.gate.waiting().by_age.remove(&number);
        }
    }

    /// `body`; when it ends, the connection waits again.
    pub(crate) fn until_end_of(&self, body: Body) -> Body {
        Body::new(Answer { body, _end: WaitsAfter(self.clone()) })
    }
}

struct WaitsAfter(Ticket);

impl Drop for WaitsAfter {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// An answer's body; its length stays known.
struct Answer {
    body: Body,
    _end: WaitsAfter,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_longest_waiting_leaves_and_the_working_stay() {
        let gate = Gate::new(2, Clock::stopped());
        let old = gate.admit().await.expect("room");
        let young = gate.admit().await.expect("room");
        old.ticket().work();
        young.ticket().work();
        assert!(gate.admit().await.is_none(), "both work");
        old.ticket().wait();
        let leaving = tokio::spawn(async move {
            old.told_to_leave().await;
            assert!(!old.works());
        });
        let third = gate.admit().await.expect("the one that waits leaves");
        leaving.await.expect("it was told");
        assert_eq!((gate.open(), gate.refused(), gate.evicted()), (2, 1, 1));
        drop((young, third));
        assert_eq!(gate.open(), 0);
        assert!(gate.waiting().by_age.is_empty(), "nothing is left of connections that are gone");
    }
}
