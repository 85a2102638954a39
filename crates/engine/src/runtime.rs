//! [`LlmEngine`]: a loaded model behind the [`Engine`] trait.
//!
//! Two threads: `front` validates, tokenizes and names blocks; `core` owns the KV memory, the scheduler and the
//! store. The threads and the callers communicate through channels only. The model computes on its
//! own rayon pool. A panic in a step is a bug: it ends all requests with `Internal`, and later
//! requests get `Unavailable`. No client hangs.

mod core;
mod front;
mod observe;
mod promoting;
mod request;
mod spill;
mod swap;

pub use observe::{Direction, Observer, StepRecord, SwapRecord, TakenRecord, Why};

use self::core::{Core, Message};
use crate::model::LoadedModel;
use cenote_base::engine::{EngineDescription, EngineStats, ErrorKind, Tenant};
use cenote_base::{Deadline, Engine, EngineError, Event, EventSink, Health, Request, RequestId};
use cenote_store::{Naming, PrefixStore, Tenants};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A running engine. Dropping it stops its threads; requests that still run end with `Unavailable`.
pub struct LlmEngine {
    model: Arc<LoadedModel>,
    shared: Arc<Shared>,
    inbox: Sender<FrontMessage>,
    /// Tenants of the store.
    tenants: Option<Box<dyn Tenants>>,
    threads: Vec<JoinHandle<()>>,
}

enum FrontMessage {
    Submit { request: Box<Request>, deadline_ns: u64, sink: EventSink },
    Abort(RequestId),
    Release(RequestId),
    Stop,
}

/// State shared by callers and the engine's thread. The lock is held only for a few instructions.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Requests submitted and not ended.
    in_flight: usize,
    draining: bool,
    /// The reason why the engine stopped serving, if it did.
    dead: Option<String>,
    stats: EngineStats,
    /// Health of the store.
    health: Health,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No statement leaves the state inconsistent, so a poisoned lock is usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn request_ended(&self) {
        self.state().in_flight -= 1;
        self.ended.notify_all();
    }

    fn set_stats(&self, values: BTreeMap<String, f64>, health: Health) {
        let mut state = self.state();
        state.stats = EngineStats { values };
        state.health = health;
    }

    fn queue_full(&self, max_waiting: usize) -> EngineError {
        EngineError::overloaded(format!("{max_waiting} requests wait already"), 1000)
    }
}

impl LlmEngine {
    /// Starts serving. `store`: the shared KV, if any.
    ///
    /// # Errors
    /// The operating system cannot create a thread.
    pub fn start(model: LoadedModel, store: Option<Box<dyn PrefixStore>>) -> std::io::Result<Self> {
        Self::start_observed(model, store, Box::new(()))
    }

    /// As [`Self::start`]; the engine reports requests, swaps and steps to `observer`.
    ///
    /// # Errors
    /// The operating system cannot create a thread.
    pub fn start_observed(
        model: LoadedModel,
        store: Option<Box<dyn PrefixStore>>,
        observer: Box<dyn Observer>,
    ) -> std::io::Result<Self> {
        let model = Arc::new(model);
        let shared = Arc::new(Shared::default());
        let (inbox, front_inbox) = channel();
        let (core_outbox, core_inbox) = channel();
        let naming = store.as_ref().map(|store| store.naming());
        let tenants = store.as_ref().and_then(|store| store.tenants());
        let core = Core::new(Arc::clone(&model), store, observer, Arc::clone(&shared), core_outbox.clone());
        // The engine's thread also sends to itself, so only `Stop` ends it. The thread that sends it is
        // started first, and ends with `inbox` if the second cannot be started.
        let front = {
            let (model, shared, outbox) = (Arc::clone(&model), Arc::clone(&shared), StopAtEnd(core_outbox));
            let run = move || tokenize_all(&model, naming.as_ref(), &shared, &front_inbox, &outbox.0);
            std::thread::Builder::new().name("cenote-tokenize".to_owned()).spawn(run)?
        };
        let core = {
            let shared = Arc::clone(&shared);
            let run = move || serve(core, &core_inbox, &shared);
            std::thread::Builder::new().name("cenote-engine".to_owned()).spawn(run)?
        };
        Ok(Self { model, shared, inbox, tenants, threads: vec![front, core] })
    }

    /// The loaded model.
    #[must_use]
    pub fn model(&self) -> &LoadedModel {
        &self.model
    }
}

impl Drop for LlmEngine {
    fn drop(&mut self) {
        // Sending fails if the thread has ended. A thread that panicked has failed its
        // requests.
        let _ = self.inbox.send(FrontMessage::Stop);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Engine for LlmEngine {
    fn describe(&self) -> EngineDescription {
        let config = self.model.config();
        let small = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let is_dead = self.shared.state().dead.is_some();
        EngineDescription {
            model: self.model.name().to_owned(),
            max_model_len: small(self.model.max_model_len()),
            block_tokens: small(config.block_tokens),
            dtype: config.dtype.name().to_owned(),
            has_chat_template: self.model.tokenizer().chat().is_some(),
            region: config.region.clone(),
            process_ids: if is_dead { Vec::new() } else { vec![std::process::id()] },
        }
    }

    fn submit(&self, request: Request, sink: EventSink) -> Result<(), EngineError> {
        front::check(&request)?;
        let config = self.model.config();
        {
            let mut state = self.shared.state();
            if let Some(why) = &state.dead {
                return Err(EngineError::new(ErrorKind::Unavailable, why.clone()));
            }
            if state.draining {
                return Err(EngineError::new(ErrorKind::Unavailable, "the engine is draining"));
            }
            // The scheduler bounds its queue; this check also bounds requests still in the
            // channels.
            if state.in_flight >= config.max_waiting.saturating_add(config.max_num_seqs) {
                return Err(self.shared.queue_full(config.max_waiting));
            }
            state.in_flight += 1;
        }
        let deadline_ns = config.clock.now_ns().saturating_add(request.timeout_ms.saturating_mul(1_000_000));
        self.inbox.send(FrontMessage::Submit { request: Box::new(request), deadline_ns, sink }).map_err(|_| {
            self.shared.request_ended();
            EngineError::new(ErrorKind::Unavailable, "the engine has ended")
        })
    }

    fn abort(&self, id: RequestId) {
        // Sending fails if the engine has ended; then there is no request to abort.
        let _ = self.inbox.send(FrontMessage::Abort(id));
    }

    fn release(&self, id: RequestId) {
        // Sending fails if the engine has ended; then there is no hold to release.
        let _ = self.inbox.send(FrontMessage::Release(id));
    }

    /// On the caller's thread: the engine's own must not wait for the region's lock.
    fn set_tenants(&self, tenants: &[Tenant]) -> Vec<String> {
        self.tenants.as_ref().map_or_else(Vec::new, |table| table.set(tenants))
    }

    fn stats(&self) -> EngineStats {
        self.shared.state().stats.clone()
    }

    fn health(&self) -> Health {
        let state = self.shared.state();
        state.dead.as_ref().map_or_else(|| state.health.clone(), |why| Health::degraded(why.clone()))
    }

    fn drain(&self, deadline: Deadline) -> bool {
        let mut state = self.shared.state();
        state.draining = true;
        deadline.wait_while(&self.shared.ended, state, |state| state.in_flight > 0).in_flight == 0
    }
}

/// Stops the engine's thread when the tokenizing thread ends, also by a panic.
struct StopAtEnd(Sender<Message>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        // Sending fails if the engine's thread has ended.
        let _ = self.0.send(Message::Stop);
    }
}

/// Main function of the tokenizing thread.
fn tokenize_all(
    model: &LoadedModel,
    naming: Option<&Naming>,
    shared: &Shared,
    inbox: &Receiver<FrontMessage>,
    outbox: &Sender<Message>,
) {
    while let Ok(message) = inbox.recv() {
        let message = match message {
            FrontMessage::Abort(id) => Message::Abort(id),
            FrontMessage::Release(id) => Message::Release(id),
            FrontMessage::Stop => break,
            FrontMessage::Submit { request, deadline_ns, sink } => {
                match tokenize_one(model, naming, *request, deadline_ns, sink) {
                    Some(admission) => Message::Admit(Box::new(admission)),
                    None => {
                        shared.request_ended();
                        continue;
                    }
                }
            }
        };
        if outbox.send(message).is_err() {
            break;
        }
    }
}

/// Tokenizes one request, or sends the client the error. The tokenizer and the template engine are
/// third-party code that parses untrusted text, so a panic in them fails this request only.
fn tokenize_one(
    model: &LoadedModel,
    naming: Option<&Naming>,
    request: Request,
    deadline_ns: u64,
    sink: EventSink,
) -> Option<request::Admission> {
    let sink = Arc::new(Mutex::new(sink));
    let tell = |event: Event| sink.lock().unwrap_or_else(PoisonError::into_inner)(event);
    let through = Arc::clone(&sink);
    let forwarding: EventSink = Box::new(move |event| through.lock().unwrap_or_else(PoisonError::into_inner)(event));
    match catch_unwind(AssertUnwindSafe(|| front::admit(model, naming, request, deadline_ns, forwarding))) {
        Ok(Ok(admission)) => Some(admission),
        Ok(Err((_, error))) => {
            tell(Event::Failed(error));
            None
        }
        Err(_) => {
            tell(Event::Failed(EngineError::new(ErrorKind::Internal, "the prompt could not be tokenized")));
            None
        }
    }
}

/// Main function of the engine's thread.
fn serve(mut core: Core, inbox: &Receiver<Message>, shared: &Shared) {
    let error = match catch_unwind(AssertUnwindSafe(|| core.run(inbox))) {
        Ok(()) => EngineError::new(ErrorKind::Unavailable, "the engine is shutting down"),
        Err(_) => {
            tracing::error!("a step panicked; the engine is unavailable");
            EngineError::new(ErrorKind::Internal, "the engine failed during a step")
        }
    };
    shared.state().dead = Some(error.message.clone());
    let stopped = error.kind == ErrorKind::Unavailable;
    core.fail_all(inbox, &error, stopped);
}
