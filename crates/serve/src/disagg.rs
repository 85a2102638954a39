//! Prefill and decode on separate workers (TraCT §3.2), and streams that survive their workers.
//!
//! A request goes to a prefill worker (steps 1–5, 11 and 12: lookup, KV read, prefill, publish,
//! free), and its hand-over goes to a decode worker (steps 6–10). Both speak only to the front. The
//! KV goes through the region, so any decode worker can continue, and the death of a worker costs
//! only time.
//!
//! The front remembers what it forwarded to the client (`progress.rs`). If a worker dies, goes
//! silent or refuses, the request continues elsewhere from exactly there: token `n` depends on the
//! seed and `n` only, and the front draws the seed if the client gave none. A replacement that
//! contradicts forwarded text ends the request with an error: a missing token is better than a
//! wrong one.
//!
//! Requirements on an engine that takes [`Phase::Decode`](cenote_base::engine::Phase):
//! `sampling.max_tokens` counts all output tokens, the hand-over's included, and so does
//! `usage.completion_tokens`. A hand-over whose tokens already end the request is answered with
//! `Finished` and the remaining text.

mod drive;
mod fleet;
mod progress;

pub use fleet::{Fleet, Lease, Role, Stage};

use crate::random;
use cenote_base::engine::{EngineDescription, EngineError, EngineStats, ErrorKind, Event, Tenant};
use cenote_base::{Clock, Deadline, Engine, EventSink, Health, Request, RequestId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Limits of retries.
#[derive(Clone, Debug)]
pub struct DisaggregatedConfig {
    /// Failures in a row without a new token, after which the request fails.
    pub failures_in_a_row_max: u32,
    /// Failures of one request in total, so that a request that kills every worker ends.
    pub failures_max: u32,
    /// Pause before a retry on a worker that failed before; doubles up to `backoff_max`.
    pub backoff_min: Duration,
    /// Longest such pause.
    pub backoff_max: Duration,
    /// Longest wait for any worker while workers restart.
    pub worker_wait: Duration,
}

impl Default for DisaggregatedConfig {
    fn default() -> Self {
        Self {
            failures_in_a_row_max: 6,
            failures_max: 64,
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_secs(1),
            worker_wait: Duration::from_secs(60),
        }
    }
}

/// Prefill and decode workers as one engine.
pub struct Disaggregated {
    shared: Arc<Shared>,
    runtime: Handle,
}

/// State that the requests' tasks share.
struct Shared {
    fleet: Arc<Fleet>,
    config: DisaggregatedConfig,
    clock: Clock,
    counters: Counters,
    /// Number of the next attempt. A worker may still run an abandoned attempt, so no number is
    /// used twice.
    last_attempt: AtomicU64,
    draining: AtomicBool,
    running: Mutex<HashMap<RequestId, oneshot::Sender<()>>>,
    all_done: Condvar,
}

#[derive(Default)]
struct Counters {
    handed_over: AtomicU64,
    resumed: AtomicU64,
    refused: AtomicU64,
    expired: AtomicU64,
    lost: AtomicU64,
}

impl Counters {
    /// Counts a request that ended with this error. `has_begun`: its client had tokens before.
    fn failed(&self, kind: ErrorKind, has_begun: bool) {
        let counter = match kind {
            // The client caused it.
            ErrorKind::InvalidRequest | ErrorKind::ContextLength | ErrorKind::Aborted => return,
            ErrorKind::DeadlineExceeded => &self.expired,
            ErrorKind::Overloaded if !has_begun => &self.refused,
            ErrorKind::Overloaded | ErrorKind::Unavailable | ErrorKind::Internal => &self.lost,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Disaggregated {
    /// A router over `fleet`. Must be called within a tokio runtime, which then runs the requests.
    #[must_use]
    pub fn new(fleet: Arc<Fleet>, config: DisaggregatedConfig, clock: Clock) -> Self {
        let shared = Shared {
            fleet,
            config,
            clock,
            counters: Counters::default(),
            last_attempt: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            running: Mutex::default(),
            all_done: Condvar::new(),
        };
        Self { shared: Arc::new(shared), runtime: Handle::current() }
    }
}

impl Shared {
    fn running(&self) -> MutexGuard<'_, HashMap<RequestId, oneshot::Sender<()>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a request from the list when its task ends, by any cause.
struct Listed {
    shared: Arc<Shared>,
    id: RequestId,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut running = self.shared.running();
        running.remove(&self.id);
        if running.is_empty() {
            self.shared.all_done.notify_all();
        }
    }
}

impl Engine for Disaggregated {
    fn describe(&self) -> EngineDescription {
        self.shared.fleet.describe()
    }

    fn submit(&self, mut request: Request, mut events: EventSink) -> Result<(), EngineError> {
        if self.shared.draining.load(Ordering::Acquire) {
            return Err(EngineError::new(ErrorKind::Unavailable, "the server is draining"));
        }
        request.sampling.seed.get_or_insert_with(random::number);
        let id = request.id;
        let (cancel, cancelled) = oneshot::channel();
        if self.shared.running().insert(id, cancel).is_some() {
            tracing::warn!(%id, "two requests of one name; the older one is aborted");
        }
        let listed = Listed { shared: self.shared.clone(), id };
        self.runtime.spawn(async move {
            let last = tokio::select! {
                _ = cancelled => Some(Event::Failed(EngineError::new(ErrorKind::Aborted, "the request was aborted"))),
                last = drive::run(&listed.shared, request, &mut events) => last,
            };
            if let Some(event) = last {
                events(event);
            }
            // Drop the sink first, so that a drain that waits for the request finds its answer
            // complete.
            drop(events);
            drop(listed);
        });
        Ok(())
    }

    fn abort(&self, id: RequestId) {
        // The entry stays until the task has released its worker, so that a drain waits for that
        // too.
        if let Some(cancel) = self.shared.running().get_mut(&id) {
            let (spent, _) = oneshot::channel();
            let _ = std::mem::replace(cancel, spent).send(());
        }
    }

    fn set_tenants(&self, tenants: &[Tenant]) -> Vec<String> {
        self.shared.fleet.set_tenants(tenants)
    }

    fn stats(&self) -> EngineStats {
        let mut stats = self.shared.fleet.stats();
        let counters = &self.shared.counters;
        let running = self.shared.running().len();
        let own = [
            ("router_requests_running", running as f64),
            ("router_handed_over_total", counters.handed_over.load(Ordering::Relaxed) as f64),
            ("router_resumed_total", counters.resumed.load(Ordering::Relaxed) as f64),
            ("router_refused_total", counters.refused.load(Ordering::Relaxed) as f64),
            ("router_expired_total", counters.expired.load(Ordering::Relaxed) as f64),
            ("router_lost_total", counters.lost.load(Ordering::Relaxed) as f64),
        ];
        stats.values.extend(own.map(|(name, value)| (name.to_owned(), value)));
        stats
    }

    fn health(&self) -> Health {
        self.shared.fleet.health()
    }

    fn drain(&self, deadline: Deadline) -> bool {
        self.shared.draining.store(true, Ordering::Release);
        let running = self.shared.running();
        let running = deadline.wait_while(&self.shared.all_done, running, |running| !running.is_empty());
        let done = running.is_empty();
        drop(running);
        // Workers drain last: a prefill that ends still needs a decode worker.
        done && self.shared.fleet.engines().iter().all(|engine| engine.drain(deadline))
    }
}
