//! An engine in another process, reached over the worker protocol ([`crate::worker`]).
//!
//! Every wait has a limit: connecting, the silence between two lines (the worker sends a blank line
//! when it has nothing else to send), and the request's own deadline. A worker that cannot be
//! reached, goes silent or closes the connection is [`ErrorKind::Unavailable`], which a router may
//! retry. The worker's own errors are passed on unchanged.

mod stream;

use crate::time::before;
use crate::worker::{DrainCall, DrainReply, TOKEN_HEADER, WorkerToken};
use cenote_base::engine::{EngineDescription, EngineError, EngineStats, ErrorKind, Event, Tenant};
use cenote_base::{Clock, Deadline, Engine, EventSink, Health, Request, RequestId};
use reqwest::Client;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Longest idle time of a pooled connection; below the server's own.
const KEPT_IDLE: Duration = Duration::from_secs(10);

/// Timeouts.
#[derive(Clone, Debug)]
pub struct RemoteConfig {
    /// Of a connection; by the machine's clock, as the HTTP client counts it.
    pub connect_timeout: Duration,
    /// Of the next line of a running request; several of the worker's heartbeats.
    pub idle_timeout: Duration,
    /// Of `describe`, `stats` and `health`.
    pub call_timeout: Duration,
    /// Of a change of tenants, which waits for locks of the region.
    pub tenants_timeout: Duration,
}

impl Default for RemoteConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            idle_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(2),
            tenants_timeout: Duration::from_secs(30),
        }
    }
}

/// A worker could not be called.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The HTTP client could not be set up.
    #[error("the HTTP client for workers: {0}")]
    Client(#[source] reqwest::Error),
    /// The worker's secret is no valid header.
    #[error("the worker token is not a header value")]
    Token,
    /// A worker did not answer in time.
    #[error("worker at {address}: no answer to {call} within {seconds} s")]
    Silent {
        /// The worker's address.
        address: SocketAddr,
        /// The call.
        call: &'static str,
        /// The time limit.
        seconds: f64,
    },
    /// A call failed.
    #[error("worker at {address}: {call} failed: {source}")]
    Call {
        /// The worker's address.
        address: SocketAddr,
        /// The call.
        call: &'static str,
        /// The reason.
        #[source]
        source: reqwest::Error,
    },
}

/// A worker process as an [`Engine`].
pub struct RemoteEngine {
    link: Arc<Link>,
    runtime: Handle,
    description: EngineDescription,
    last_stats: Mutex<EngineStats>,
    last_health: Mutex<Health>,
    draining: AtomicBool,
}

/// The part of the engine that a request's task needs; it may outlive the engine.
struct Link {
    client: Client,
    address: SocketAddr,
    config: RemoteConfig,
    clock: Clock,
    running: Mutex<HashMap<RequestId, oneshot::Sender<()>>>,
}

impl RemoteEngine {
    /// Connects to the worker at `address` and reads its description. Must be called within a tokio
    /// runtime, which then runs the requests.
    ///
    /// # Errors
    /// The worker does not answer in time, or not as a worker.
    pub async fn connect(
        address: SocketAddr,
        token: &WorkerToken,
        config: RemoteConfig,
        clock: Clock,
    ) -> Result<Self, RemoteError> {
        let mut secret = HeaderValue::from_str(token.expose()).map_err(|_| RemoteError::Token)?;
        secret.set_sensitive(true);
        let headers = HeaderMap::from_iter([(HeaderName::from_static(TOKEN_HEADER), secret)]);
        // Proxies of the environment are for other hosts; a worker is on the loopback. Pooled
        // connections close before the worker closes them, so that no request meets a closing one.
        let client = Client::builder()
            .no_proxy()
            .pool_idle_timeout(KEPT_IDLE)
            .connect_timeout(config.connect_timeout)
            .default_headers(headers);
        let client = client.build().map_err(RemoteError::Client)?;
        let link = Arc::new(Link { client, address, config, clock, running: Mutex::default() });
        let description = link.get("describe").await?;
        let health = link.get("health").await?;
        Ok(Self {
            link,
            runtime: Handle::current(),
            description,
            last_stats: Mutex::default(),
            last_health: Mutex::new(health),
            draining: AtomicBool::new(false),
        })
    }

    /// Whether the worker's socket answers in time. Stores the worker's health; the supervisor
    /// calls it every few seconds.
    pub async fn is_healthy(&self) -> bool {
        match self.link.get("health").await {
            Ok(health) => {
                *self.last_health.lock().unwrap_or_else(PoisonError::into_inner) = health;
                true
            }
            Err(error) => {
                tracing::debug!(%error, "a worker did not tell its health");
                false
            }
        }
    }

    /// As [`Engine::set_tenants`], without blocking a thread.
    pub async fn send_tenants(&self, tenants: &[Tenant]) -> Vec<String> {
        self.link.send_tenants(tenants).await
    }

    /// Runs a call on the runtime and blocks this thread until it ends. `None` after the deadline.
    fn wait_for<T: Send + 'static>(
        &self,
        deadline: Deadline,
        call: impl Future<Output = Option<T>> + Send + 'static,
    ) -> Option<T> {
        let (sender, answer) = std::sync::mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            if let Some(Some(value)) = before(deadline, call).await {
                let _ = sender.send(value);
            }
        });
        deadline.receive(&answer).ok()
    }
}

impl Link {
    fn url(&self, call: &str) -> String {
        format!("http://{}/engine/{call}", self.address)
    }

    async fn get<T: DeserializeOwned>(&self, call: &'static str) -> Result<T, RemoteError> {
        let fetch = async {
            let answer = self.client.get(self.url(call)).send().await?;
            answer.error_for_status()?.json().await
        };
        let (address, timeout) = (self.address, self.config.call_timeout);
        match before(self.clock.after(timeout), fetch).await {
            Some(fetched) => fetched.map_err(|source| RemoteError::Call { address, call, source }),
            None => Err(RemoteError::Silent { address, call, seconds: timeout.as_secs_f64() }),
        }
    }

    async fn send_tenants(&self, tenants: &[Tenant]) -> Vec<String> {
        let send = async {
            let answer = self.client.post(self.url("tenants")).json(tenants).send().await?;
            answer.error_for_status()?.json().await
        };
        let address = self.address;
        match before(self.clock.after(self.config.tenants_timeout), send).await {
            Some(Ok(troubles)) => troubles,
            Some(Err(error)) => {
                vec![format!("the worker at {address} did not take its tenants: {}", error.without_url())]
            }
            None => vec![format!("the worker at {address} did not answer")],
        }
    }

    fn running(&self) -> MutexGuard<'_, HashMap<RequestId, oneshot::Sender<()>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine for RemoteEngine {
    fn describe(&self) -> EngineDescription {
        self.description.clone()
    }

    fn submit(&self, request: Request, mut events: EventSink) -> Result<(), EngineError> {
        if self.draining.load(Ordering::Acquire) {
            return Err(EngineError::new(ErrorKind::Unavailable, "the worker is draining"));
        }
        let id = request.id;
        let (cancel, cancelled) = oneshot::channel();
        self.link.running().insert(id, cancel);
        let link = self.link.clone();
        self.runtime.spawn(async move {
            let last = tokio::select! {
                // The sender is dropped only if it is replaced, which no caller with unique ids
                // does.
                _ = cancelled => Some(Event::Failed(EngineError::new(ErrorKind::Aborted, "the request was aborted"))),
                last = stream::run(&link, &request, &mut events) => last,
            };
            link.running().remove(&id);
            if let Some(event) = last {
                events(event);
            }
        });
        Ok(())
    }

    fn abort(&self, id: RequestId) {
        if let Some(cancel) = self.link.running().remove(&id) {
            // Dropping the call closes its connection, which aborts the request in the worker.
            let _ = cancel.send(());
        }
    }

    fn release(&self, id: RequestId) {
        let link = self.link.clone();
        self.runtime.spawn(async move {
            let call = link.client.post(link.url(&format!("release/{id}"))).send();
            // If this fails, the hold expires.
            match before(link.clock.after(link.config.call_timeout), call).await {
                Some(Ok(_)) => {}
                Some(Err(error)) => tracing::debug!(%error, "a worker was not told to release a request's KV"),
                None => tracing::debug!("a worker did not answer the release of a request's KV"),
            }
        });
    }

    fn set_tenants(&self, tenants: &[Tenant]) -> Vec<String> {
        let (link, tenants) = (self.link.clone(), tenants.to_vec());
        let deadline = link.clock.after(link.config.tenants_timeout);
        let troubles = self.wait_for(deadline, async move { Some(link.send_tenants(&tenants).await) });
        troubles.unwrap_or_else(|| vec![format!("the worker at {} did not answer", self.link.address)])
    }

    fn stats(&self) -> EngineStats {
        let link = self.link.clone();
        let deadline = link.clock.after(link.config.call_timeout);
        let fresh = self.wait_for(deadline, async move { link.get::<EngineStats>("stats").await.ok() });
        let mut last = self.last_stats.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fresh) = fresh {
            *last = fresh;
        }
        last.clone()
    }

    fn health(&self) -> Health {
        self.last_health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn drain(&self, deadline: Deadline) -> bool {
        self.draining.store(true, Ordering::Release);
        let (link, timeout) = (self.link.clone(), deadline.remaining());
        let body = DrainCall { timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX) };
        let drained = self.wait_for(deadline, async move {
            let answer = link.client.post(link.url("drain")).json(&body).send().await.ok()?;
            Some(answer.error_for_status().ok()?.json::<DrainReply>().await.ok()?.drained)
        });
        drained.unwrap_or(false)
    }
}
