//! State that the handlers share.

use super::ApiKeys;
use super::budget::Budget;
use crate::metrics::Metrics;
use crate::server::Gate;
use crate::tenants::{TenantFile, Tenants};
use cenote_base::engine::EngineStats;
use cenote_base::{Clock, Engine, Health, RequestId};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Settings of the front.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// Keys that clients must send as `Authorization: Bearer <key>`; `/health` and `/ready` need
    /// none. A front with tenants uses theirs instead.
    pub api_keys: ApiKeys,
    /// Longest time of one request; clients may ask for less (`x-cenote-timeout-ms`).
    pub request_timeout: Duration,
    /// Longest time a client may take to send a body.
    pub body_timeout: Duration,
    /// Longest time that a client may take to send a request's head, and longest idle time of a
    /// connection.
    pub head_timeout: Duration,
    /// Largest body.
    pub body_bytes_max: usize,
    /// Most bytes of bodies held at once, over all requests; more are refused with 503. The first
    /// 16 KiB of each body are not counted.
    pub body_bytes_total: usize,
    /// Most open connections. When they are reached, the connection that has been idle or slow for
    /// longest is closed for a new one; if all are busy, the new one is refused with 503.
    pub connections_max: usize,
    /// Most generating requests at once; more are refused with 503.
    pub requests_max: usize,
    /// Most prompts of one completions request.
    pub prompts_max: usize,
    /// Time after which a silent stream gets a comment, so that proxies keep it open.
    pub keep_alive: Duration,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            api_keys: ApiKeys::default(),
            request_timeout: Duration::from_secs(300),
            body_timeout: Duration::from_secs(30),
            head_timeout: Duration::from_secs(30),
            body_bytes_max: 8 << 20,
            body_bytes_total: 256 << 20,
            connections_max: 4096,
            requests_max: 1024,
            prompts_max: 64,
            keep_alive: Duration::from_secs(10),
        }
    }
}

/// Time after which a log line about a degraded engine comes again.
const REPEAT: Duration = Duration::from_secs(30);

/// What came of a file of tenants: [`AppState::set_tenants`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantsSet {
    /// Tenants that are served.
    pub tenants: usize,
    /// A sentence for each part of the region that is not as the file says. Its tenant is served; without
    /// its part it saves no KV.
    pub troubles: Vec<String>,
}

/// An engine, its settings, and its running requests.
pub struct AppState {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) config: HttpConfig,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) places: Arc<Semaphore>,
    pub(crate) gate: Arc<Gate>,
    pub(super) bodies: Arc<Budget>,
    pub(crate) started_s: u64,
    tenants: RwLock<Option<Arc<Tenants>>>,
    /// Held while tenants are replaced, so that engine and front get them in one order.
    replacing: Mutex<()>,
    draining: AtomicBool,
    last_id: AtomicU64,
    running: Mutex<HashSet<RequestId>>,
    last_health: Mutex<LastHealth>,
}

/// The engine's health at the last look, and when it was logged.
#[derive(Default)]
struct LastHealth {
    health: Health,
    logged_ns: u64,
}

impl AppState {
    /// A front over `engine`; `clock` measures all its timeouts.
    #[must_use]
    pub fn new(engine: Arc<dyn Engine>, config: HttpConfig, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            engine,
            metrics: Metrics::new(),
            places: Arc::new(Semaphore::new(config.requests_max.min(Semaphore::MAX_PERMITS))),
            gate: Gate::new(config.connections_max, clock),
            bodies: Budget::new(config.body_bytes_total),
            config,
            clock,
            started_s: clock.unix().as_secs(),
            tenants: RwLock::default(),
            replacing: Mutex::default(),
            draining: AtomicBool::new(false),
            last_id: AtomicU64::new(0),
            running: Mutex::default(),
            last_health: Mutex::default(),
        })
    }

    /// The engine behind this front.
    #[must_use]
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Serves these tenants from now on, in place of earlier ones: only their keys open the API, and only
    /// those of `[metrics]` open `/metrics`. Requests that run go on. Waits for the engine, so call it where
    /// a thread may block.
    ///
    /// Keys that the file lacks open nothing from the begin of the call on, whatever the engine says: one that
    /// was taken out because it has leaked must not wait for a worker that hangs.
    pub fn set_tenants(&self, file: TenantFile) -> TenantsSet {
        let _one_at_a_time = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.tenants();
        let new = Tenants::new(file, before.as_deref());
        if let Some(before) = &before {
            self.put_tenants(before.until(&new));
        }
        // First the engine: a request of a new tenant must find its part.
        let troubles = self.engine.set_tenants(&new.parts());
        let tenants = new.len();
        self.put_tenants(new);
        TenantsSet { tenants, troubles }
    }

    fn put_tenants(&self, tenants: Tenants) {
        *self.tenants.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(tenants));
    }

    pub(crate) fn tenants(&self) -> Option<Arc<Tenants>> {
        self.tenants.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refuses generating requests from now on; `/health` reports it.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether new requests are refused.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// The engine's current health. Logs a change since the last call, and again while it is degraded.
    /// Updates the metrics.
    pub fn health(&self) -> Health {
        let health = self.engine.health();
        let mut last = self.last_health.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = last.health != health;
        if is_new || health.is_degraded() && self.clock.since(last.logged_ns) >= REPEAT {
            self.metrics.degraded(health.is_degraded());
            match &health {
                Health::Ok => tracing::info!("the engine is no longer degraded"),
                Health::Degraded { reasons } => {
                    tracing::warn!(?reasons, "the engine is degraded; answers stay correct but cost more");
                }
            }
            *last = LastHealth { health: health.clone(), logged_ns: self.clock.now_ns() };
        }
        health
    }

    /// All metrics, as Prometheus text.
    pub(super) fn render(&self, engine: &EngineStats) -> String {
        self.health();
        self.metrics.connections(self.gate.open(), self.gate.refused(), self.gate.evicted());
        self.metrics.body_bytes(self.bodies.used());
        let mut page = self.metrics.render(engine);
        if let Some(tenants) = self.tenants() {
            tenants.render(&mut page);
        }
        page
    }

    /// Number of generating requests that have not ended.
    #[must_use]
    pub fn running(&self) -> usize {
        self.ids().len()
    }

    /// Aborts all requests; their answers end with an error.
    pub fn abort_all(&self) {
        // Call the engine without the lock, because an abort may end a request at once.
        let ids: Vec<_> = self.ids().iter().copied().collect();
        for id in ids {
            self.engine.abort(id);
        }
    }

    pub(super) fn name_request(&self) -> RequestId {
        let id = RequestId(self.last_id.fetch_add(1, Ordering::Relaxed) + 1);
        self.ids().insert(id);
        id
    }

    pub(super) fn forget_request(&self, id: RequestId) {
        self.ids().remove(&id);
    }

    fn ids(&self) -> std::sync::MutexGuard<'_, HashSet<RequestId>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
