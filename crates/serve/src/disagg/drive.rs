//! Runs one request through the workers.

use super::fleet::{Lease, Life, Stage};
use super::progress::{Progress, Step};
use super::{DisaggregatedConfig, Shared};
use crate::time::before;
use cenote_base::engine::{EngineError, ErrorKind, Event};
use cenote_base::{Deadline, Engine, EventSink, Request, RequestId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;

/// Runs a request to its end and forwards its tokens. Returns the last event, which the caller
/// forwards, or `None` if the client has left.
pub(super) async fn run(shared: &Shared, request: Request, events: &mut EventSink) -> Option<Event> {
    let deadline = shared.clock.after(Duration::from_millis(request.timeout_ms));
    let mut progress = Progress::new(request, shared.fleet.is_split());
    let last = carry(shared, &mut progress, deadline, events).await;
    if let Some(Event::Failed(error)) = &last {
        shared.counters.failed(error.kind, progress.has_begun());
    }
    last
}

async fn carry(shared: &Shared, progress: &mut Progress, deadline: Deadline, events: &mut EventSink) -> Option<Event> {
    let mut failures = Failures::default();
    // Released when the next worker sends its first token, and at the end of this function.
    let mut held = None;
    loop {
        let lease = match find_worker(shared, progress, &failures, deadline).await {
            Ok(lease) => lease,
            Err(error) => return Some(Event::Failed(error)),
        };
        let (life, before) = (lease.life(), progress.tokens());
        match attempt(shared, progress, lease, deadline, events, &mut held).await {
            Outcome::HandedOver(holder) => {
                held = Some(holder);
                shared.counters.handed_over.fetch_add(1, Ordering::Relaxed);
                failures.start_afresh();
            }
            Outcome::Ended(last) => return last,
            Outcome::Failed(error) => {
                if progress.tokens() > before {
                    failures.start_afresh();
                }
                let begun = progress.has_begun();
                tracing::warn!(%error, worker = life.0, begun, "a worker failed a request");
                if let Err(error) = failures.add(life, error, &shared.config) {
                    return Some(Event::Failed(error));
                }
                shared.counters.resumed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Result of an attempt on one worker.
enum Outcome {
    HandedOver(Held),
    /// The request ended, with the last event, or `None` if the client has left.
    Ended(Option<Event>),
    /// Another worker may succeed.
    Failed(EngineError),
}

async fn attempt(
    shared: &Shared,
    progress: &mut Progress,
    lease: Lease,
    deadline: Deadline,
    events: &mut EventSink,
    held: &mut Option<Held>,
) -> Outcome {
    let id = RequestId(shared.last_attempt.fetch_add(1, Ordering::Relaxed) + 1);
    let timeout_ms = u64::try_from(deadline.remaining().as_millis()).unwrap_or(u64::MAX);
    let request = progress.next_request(id, timeout_ms);
    let (sender, mut arriving) = mpsc::unbounded_channel();
    if let Err(error) = lease.engine().submit(request, Box::new(move |event| sender.send(event).is_ok())) {
        return failed(error);
    }
    let _open = Open { lease: &lease, id };
    loop {
        let event = match before(deadline, arriving.recv()).await {
            Some(Some(event)) => event,
            Some(None) => {
                return failed(EngineError::new(ErrorKind::Unavailable, "the worker let go of the request"));
            }
            None => return Outcome::Ended(Some(Event::Failed(time_is_up()))),
        };
        match progress.accept(event) {
            Step::Forward(event) => {
                *held = None;
                if !events(event) {
                    return Outcome::Ended(None);
                }
            }
            Step::Known => {}
            Step::HandedOver => return Outcome::HandedOver(Held { engine: lease.engine().clone(), id }),
            Step::Done(event) => return Outcome::Ended(Some(event)),
            Step::Failed(error) => return failed(error),
            Step::Contradiction(error) => {
                tracing::error!(%error, "a stream is ended rather than continued wrongly");
                return Outcome::Ended(Some(Event::Failed(error)));
            }
        }
    }
}

/// KV that a worker keeps for the next one. Dropping this releases it.
struct Held {
    engine: Arc<dyn Engine>,
    id: RequestId,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.engine.release(self.id);
    }
}

/// A submitted attempt. Dropping it aborts it in the worker, unless it has ended.
struct Open<'a> {
    lease: &'a Lease,
    id: RequestId,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.lease.engine().abort(self.id);
    }
}

/// Whether another worker may succeed after this error.
fn failed(error: EngineError) -> Outcome {
    match error.kind {
        // A worker that drains aborts its requests; the request's client did not abort it.
        ErrorKind::Unavailable | ErrorKind::Overloaded | ErrorKind::Internal | ErrorKind::Aborted => {
            Outcome::Failed(error)
        }
        ErrorKind::InvalidRequest | ErrorKind::ContextLength | ErrorKind::DeadlineExceeded => {
            Outcome::Ended(Some(Event::Failed(error)))
        }
    }
}

fn time_is_up() -> EngineError {
    EngineError::new(ErrorKind::DeadlineExceeded, "the request's time is up")
}

/// Failures of a request.
#[derive(Default)]
struct Failures {
    in_a_row: u32,
    all: u32,
    /// Workers that failed since the last progress, and their last errors.
    avoid: Vec<Life>,
    last: Option<EngineError>,
}

impl Failures {
    /// Records progress: workers that failed before may succeed now.
    fn start_afresh(&mut self) {
        self.in_a_row = 0;
        self.avoid.clear();
    }

    fn add(&mut self, life: Life, error: EngineError, config: &DisaggregatedConfig) -> Result<(), EngineError> {
        self.in_a_row += 1;
        self.all += 1;
        if !self.avoid.contains(&life) {
            self.avoid.push(life);
        }
        if self.in_a_row >= config.failures_in_a_row_max || self.all >= config.failures_max {
            return Err(error);
        }
        self.last = Some(error);
        Ok(())
    }

    fn backoff(&self, config: &DisaggregatedConfig) -> Duration {
        let doubled = config.backoff_min.saturating_mul(1 << self.in_a_row.saturating_sub(1).min(16));
        doubled.min(config.backoff_max)
    }
}

/// A worker for the next attempt: one that has not failed this request since its last progress, or
/// else, after a pause, any.
async fn find_worker(
    shared: &Shared,
    progress: &Progress,
    failures: &Failures,
    deadline: Deadline,
) -> Result<Lease, EngineError> {
    let stage = if progress.is_handed_over() { Stage::Continue } else { Stage::Start };
    let choose = |avoid: &[Life]| shared.fleet.choose(stage, progress.cost(), avoid);
    let mut changes = shared.fleet.changes();
    if let Some(lease) = choose(&failures.avoid) {
        return Ok(lease);
    }
    let full = failures.last.as_ref().filter(|error| error.kind == ErrorKind::Overloaded);
    if let Some(error) = full.filter(|_| !progress.has_begun() && choose(&[]).is_some()) {
        // All workers are full and the client has no tokens yet: let it retry.
        return Err(error.clone());
    }
    let patience = shared.clock.after(shared.config.worker_wait).min(deadline);
    let pause = shared.clock.after(failures.backoff(&shared.config));
    loop {
        if let Some(lease) = choose(&failures.avoid) {
            return Ok(lease);
        }
        // A new worker ends the pause early. After the pause, workers that failed are tried again.
        let rested = pause.passed();
        if rested && let Some(lease) = choose(&[]) {
            return Ok(lease);
        }
        if deadline.passed() {
            return Err(time_is_up());
        }
        if patience.passed() {
            return Err(no_worker(failures));
        }
        let next = if rested { patience } else { pause.min(patience) };
        if let Some(Err(_)) = before(next, changes.changed()).await {
            return Err(no_worker(failures));
        }
    }
}

/// The last worker's error, which says more than that there is no other worker.
fn no_worker(failures: &Failures) -> EngineError {
    let none = || EngineError::new(ErrorKind::Unavailable, "no worker is alive");
    failures.last.clone().unwrap_or_else(none)
}
