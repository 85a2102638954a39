//! An engine that follows the script, and fails on command.

use super::script;
use cenote_base::engine::{EngineDescription, EngineError, EngineStats, ErrorKind, Event, Phase, Tenant};
use cenote_base::{Deadline, Engine, EventSink, Health, Request, RequestId, TokenId};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use tokio::sync::{Semaphore, oneshot, watch};

/// The region as the fake sees it: prompts with cached KV.
pub type FakePool = Arc<Mutex<HashSet<Vec<TokenId>>>>;

#[derive(Clone)]
pub struct FakeEngine(Arc<Inner>);

struct Inner {
    pool: FakePool,
    /// Generates other tokens than the other engines.
    lies: bool,
    process_ids: Vec<u32>,
    /// Each permit releases one event.
    gate: Semaphore,
    /// Events until it dies.
    life: AtomicI64,
    dead: watch::Sender<bool>,
    running: Mutex<HashMap<RequestId, oneshot::Sender<()>>>,
    idle: Condvar,
    draining: watch::Sender<bool>,
    seen: watch::Sender<Vec<Request>>,
    aborted: watch::Sender<Vec<RequestId>>,
    released: watch::Sender<Vec<RequestId>>,
    health: Mutex<Health>,
    tenants: Mutex<Vec<Tenant>>,
}

impl FakeEngine {
    /// An engine that sends everything at once.
    pub fn new() -> Self {
        let engine = Self::gated();
        engine.let_out(Semaphore::MAX_PERMITS);
        engine
    }

    /// An engine that sends nothing until [`Self::let_out`].
    pub fn gated() -> Self {
        Self::sharing(FakePool::default(), 0)
    }

    /// An engine with other tokens than all others, as with wrong weights.
    pub fn lying() -> Self {
        Self::build(FakePool::default(), Semaphore::MAX_PERMITS, true)
    }

    /// An engine that shares a pool of prompts with others, and sends this many events.
    pub fn sharing(pool: FakePool, events: usize) -> Self {
        Self::build(pool, events, false)
    }

    fn build(pool: FakePool, events: usize, lies: bool) -> Self {
        Self(Arc::new(Inner {
            pool,
            lies,
            process_ids: vec![std::process::id()],
            gate: Semaphore::new(events),
            life: AtomicI64::new(i64::MAX),
            dead: watch::Sender::new(false),
            running: Mutex::default(),
            idle: Condvar::new(),
            draining: watch::Sender::new(false),
            seen: watch::Sender::new(Vec::new()),
            aborted: watch::Sender::new(Vec::new()),
            released: watch::Sender::new(Vec::new()),
            health: Mutex::default(),
            tenants: Mutex::default(),
        }))
    }

    pub fn shared(&self) -> Arc<dyn Engine> {
        Arc::new(self.clone())
    }

    /// Releases this many more events.
    pub fn let_out(&self, events: usize) {
        self.0.gate.add_permits(events);
    }

    /// Dies before the event after this many more.
    pub fn die_after(&self, events: u32) {
        self.0.life.store(i64::from(events), Ordering::SeqCst);
    }

    /// Changes when it has died.
    pub fn death(&self) -> watch::Receiver<bool> {
        self.0.dead.subscribe()
    }

    pub fn set_health(&self, health: Health) {
        *self.0.health.lock().expect("no test panics with the lock") = health;
    }

    /// It takes no tenants meanwhile.
    pub fn without_tenants(&self, meanwhile: impl FnOnce()) {
        let _held = self.0.tenants.lock().expect("no test panics with the lock");
        meanwhile();
    }

    /// The tenants that it was given last.
    pub fn tenants(&self) -> Vec<Tenant> {
        self.0.tenants.lock().expect("no test panics with the lock").clone()
    }

    pub fn seen(&self) -> watch::Receiver<Vec<Request>> {
        self.0.seen.subscribe()
    }

    pub fn aborted(&self) -> watch::Receiver<Vec<RequestId>> {
        self.0.aborted.subscribe()
    }

    /// Requests with a released hand-over.
    pub fn released(&self) -> watch::Receiver<Vec<RequestId>> {
        self.0.released.subscribe()
    }

    pub fn is_draining(&self) -> watch::Receiver<bool> {
        self.0.draining.subscribe()
    }

    pub fn running(&self) -> usize {
        self.0.running.lock().expect("no test panics with the lock").len()
    }
}

impl Inner {
    /// Commands in text prompts: `!overloaded` and `!unavailable` are refused, `!internal` fails
    /// after three tokens, `!vanish` loses its sink after two, `!hang` sends nothing.
    fn command(request: &Request) -> &str {
        match &request.prompt {
            cenote_base::engine::Prompt::Text(text) if text.starts_with('!') => text,
            _ => "",
        }
    }

    /// Sends the events; returns whether the receiver left before the end.
    async fn play(&self, mut request: Request, sink: &mut EventSink) -> bool {
        if self.lies {
            request.sampling.seed = request.sampling.seed.map(|seed| seed ^ 1);
            if let Phase::Decode(hand_over) = &mut request.phase {
                hand_over.seed ^= 1;
            }
        }
        let command = Self::command(&request).to_owned();
        if command == "!hang" {
            std::future::pending::<()>().await;
        }
        let cached = |prompt: &[TokenId]| {
            let known = self.pool.lock().expect("no test panics with the lock").contains(prompt);
            if known { (prompt.len().saturating_sub(1) / 16 * 16) as u32 } else { 0 }
        };
        let events = script::events(&request, cached);
        if request.use_pool && !matches!(request.phase, Phase::Decode(_)) {
            self.pool.lock().expect("no test panics with the lock").insert(script::tokenize(&request.prompt));
        }
        for (at, event) in events.into_iter().enumerate() {
            self.gate.acquire().await.expect("the gate is never closed").forget();
            match self.life.fetch_sub(1, Ordering::SeqCst) {
                1.. => {}
                0 => {
                    // Tasks that are ready run first, so the sockets get all earlier events.
                    tokio::task::yield_now().await;
                    self.dead.send_replace(true);
                    return false;
                }
                // Another request had the last event; the death ends this one as well.
                _ => std::future::pending().await,
            }
            if command == "!internal" && at == 3 {
                return sink(Event::Failed(EngineError::new(ErrorKind::Internal, "the fake fails as told")));
            }
            if command == "!vanish" && at == 2 {
                return false;
            }
            if !sink(event) {
                return true;
            }
        }
        false
    }
}

impl Engine for FakeEngine {
    fn describe(&self) -> EngineDescription {
        EngineDescription {
            model: script::MODEL.to_owned(),
            max_model_len: script::MAX_MODEL_LEN,
            block_tokens: 16,
            dtype: "f32".to_owned(),
            has_chat_template: true,
            region: Some("fake".to_owned()),
            process_ids: self.0.process_ids.clone(),
        }
    }

    fn submit(&self, request: Request, mut sink: EventSink) -> Result<(), EngineError> {
        self.0.seen.send_modify(|seen| seen.push(request.clone()));
        if *self.0.dead.borrow() || *self.0.draining.borrow() {
            return Err(EngineError::new(ErrorKind::Unavailable, "the fake is dead"));
        }
        match Inner::command(&request) {
            "!overloaded" => return Err(EngineError::overloaded("the region is full", 1500)),
            "!unavailable" => return Err(EngineError::new(ErrorKind::Unavailable, "the fake is away")),
            _ => {}
        }
        let id = request.id;
        let (cancel, cancelled) = oneshot::channel();
        self.0.running.lock().expect("no test panics with the lock").insert(id, cancel);
        let inner = self.0.clone();
        tokio::spawn(async move {
            let mut dead = inner.dead.subscribe();
            let left = tokio::select! {
                biased;
                cancelled = cancelled => cancelled.is_ok(),
                _ = async { dead.wait_for(|dead| *dead).await.map(|_| ()) } => false,
                left = inner.play(request, &mut sink) => left,
            };
            drop(sink);
            if left {
                inner.aborted.send_modify(|aborted| aborted.push(id));
            }
            inner.running.lock().expect("no test panics with the lock").remove(&id);
            inner.idle.notify_all();
        });
        Ok(())
    }

    fn abort(&self, id: RequestId) {
        if let Some(cancel) = self.0.running.lock().expect("no test panics with the lock").remove(&id) {
            let _ = cancel.send(());
        }
    }

    fn release(&self, id: RequestId) {
        self.0.released.send_modify(|released| released.push(id));
    }

    /// Cannot have a tenant with a quota of one byte.
    fn set_tenants(&self, tenants: &[Tenant]) -> Vec<String> {
        *self.0.tenants.lock().expect("no test panics with the lock") = tenants.to_vec();
        tenants.iter().filter(|tenant| tenant.quota_bytes == 1).map(|tenant| tenant.name.clone()).collect()
    }

    fn stats(&self) -> EngineStats {
        let values =
            [("fake_requests_total", self.0.seen.borrow().len() as f64), ("fake_running", self.running() as f64)];
        EngineStats { values: values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }
    }

    fn health(&self) -> Health {
        self.0.health.lock().expect("no test panics with the lock").clone()
    }

    fn drain(&self, deadline: Deadline) -> bool {
        self.0.draining.send_replace(true);
        let running = self.0.running.lock().expect("no test panics with the lock");
        deadline.wait_while(&self.0.idle, running, |running| !running.is_empty()).is_empty()
    }
}
