//! The worker's HTTP endpoints.

use super::{WorkerConfig, WorkerToken};
use crate::http::body::{self, Bounds};
use crate::server::Gate;
use crate::time::before;
use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, Request as HttpRequest, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use cenote_base::engine::{EngineError, EngineStats, ErrorKind, Event, Tenant};
use cenote_base::{Clock, Engine, Request, RequestId};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Largest body of any call but `submit`.
const CALL_BYTES_MAX: usize = 4096;
/// Largest list of tenants: 256 of at most 32 bytes of name, with keys and limits.
const TENANTS_BYTES_MAX: usize = 256 << 10;
/// Header with the secret.
pub(crate) const TOKEN_HEADER: &str = "x-cenote-worker-token";

/// Body of `drain`.
#[derive(Serialize, Deserialize)]
pub(crate) struct DrainCall {
    pub(crate) timeout_ms: u64,
}

/// Answer of `drain`.
#[derive(Serialize, Deserialize)]
pub(crate) struct DrainReply {
    pub(crate) drained: bool,
}

struct Worker {
    engine: Arc<dyn Engine>,
    token: WorkerToken,
    config: WorkerConfig,
    clock: Clock,
    /// The connections, if this crate accepts them.
    gate: Option<Arc<Gate>>,
}

/// The worker protocol over `engine`.
pub fn worker_router(engine: Arc<dyn Engine>, token: WorkerToken, config: WorkerConfig, clock: Clock) -> Router {
    router(engine, token, config, clock, None)
}

pub(super) fn router(
    engine: Arc<dyn Engine>,
    token: WorkerToken,
    config: WorkerConfig,
    clock: Clock,
    gate: Option<Arc<Gate>>,
) -> Router {
    let worker = Arc::new(Worker { engine, token, config, clock, gate });
    Router::new()
        .route("/engine/health", get(health))
        .route("/engine/describe", get(describe))
        .route("/engine/stats", get(stats))
        .route("/engine/submit", post(submit))
        .route("/engine/abort/{id}", post(abort))
        .route("/engine/release/{id}", post(release))
        .route("/engine/drain", post(drain))
        .route("/engine/tenants", post(tenants).layer(DefaultBodyLimit::max(TENANTS_BYTES_MAX)))
        .layer(DefaultBodyLimit::max(CALL_BYTES_MAX))
        .layer(axum::middleware::from_fn_with_state(worker.clone(), authorize))
        .with_state(worker)
}

async fn authorize(State(worker): State<Arc<Worker>>, request: HttpRequest, next: Next) -> Response {
    match request.headers().get(TOKEN_HEADER) {
        Some(given) if worker.token.matches(given.as_bytes()) => next.run(request).await,
        _ => (StatusCode::UNAUTHORIZED, "x-cenote-worker-token: missing or wrong").into_response(),
    }
}

async fn describe(State(worker): State<Arc<Worker>>) -> Response {
    axum::Json(worker.engine.describe()).into_response()
}

async fn health(State(worker): State<Arc<Worker>>) -> Response {
    axum::Json(worker.engine.health()).into_response()
}

async fn stats(State(worker): State<Arc<Worker>>) -> Response {
    let engine = worker.engine.clone();
    let stats = tokio::task::spawn_blocking(move || engine.stats()).await;
    let mut stats = stats.unwrap_or_else(|_| EngineStats::default());
    if let Some(gate) = &worker.gate {
        let own = [
            ("worker_connections", gate.open() as f64),
            ("worker_connections_refused_total", gate.refused() as f64),
            ("worker_connections_evicted_total", gate.evicted() as f64),
        ];
        stats.values.extend(own.map(|(name, value)| (name.to_owned(), value)));
    }
    axum::Json(stats).into_response()
}

async fn abort(State(worker): State<Arc<Worker>>, Path(id): Path<u64>) -> StatusCode {
    worker.engine.abort(RequestId(id));
    StatusCode::NO_CONTENT
}

async fn release(State(worker): State<Arc<Worker>>, Path(id): Path<u64>) -> StatusCode {
    worker.engine.release(RequestId(id));
    StatusCode::NO_CONTENT
}

async fn drain(State(worker): State<Arc<Worker>>, axum::Json(call): axum::Json<DrainCall>) -> Response {
    let engine = worker.engine.clone();
    let deadline = worker.clock.after(Duration::from_millis(call.timeout_ms));
    let drained = tokio::task::spawn_blocking(move || engine.drain(deadline)).await.unwrap_or(false);
    axum::Json(DrainReply { drained }).into_response()
}

async fn tenants(State(worker): State<Arc<Worker>>, axum::Json(tenants): axum::Json<Vec<Tenant>>) -> Response {
    let engine = worker.engine.clone();
    let set = tokio::task::spawn_blocking(move || engine.set_tenants(&tenants)).await;
    axum::Json(set.unwrap_or_else(|_| vec!["the engine panicked".to_owned()])).into_response()
}

async fn submit(State(worker): State<Arc<Worker>>, call: HttpRequest) -> Response {
    let (parts, body) = call.into_parts();
    let (bytes_max, timeout) = (worker.config.body_bytes_max, worker.config.head_timeout);
    let body = match body::read(&parts, body, &Bounds { bytes_max, timeout, clock: worker.clock, budget: None }).await {
        Ok(whole) => whole.bytes,
        Err(refused) => {
            let error = EngineError::new(ErrorKind::InvalidRequest, refused.error.message);
            return (refused.error.status, axum::Json(error)).into_response();
        }
    };
    let request: Request = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => {
            let message = format!("the worker cannot read the request: {error}");
            return refusal(&EngineError::new(ErrorKind::Internal, message));
        }
    };
    let id = request.id;
    let (sender, events) = mpsc::unbounded_channel();
    let sink = Box::new(move |event| sender.send(event).is_ok());
    if let Err(error) = worker.engine.submit(request, sink) {
        return refusal(&error);
    }
    let (engine, heartbeat, clock) = (worker.engine.clone(), worker.config.heartbeat, worker.clock);
    let lines = Lines { engine, id, events, heartbeat, clock, ended: false };
    let stream = futures::stream::unfold(lines, |mut lines| async move {
        let line = lines.next().await?;
        Some((Ok::<_, Infallible>(line), lines))
    });
    let mut response = Response::new(Body::from_stream(stream));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response
}

fn refusal(error: &EngineError) -> Response {
    let status = match error.kind {
        ErrorKind::InvalidRequest | ErrorKind::ContextLength => StatusCode::BAD_REQUEST,
        ErrorKind::Overloaded | ErrorKind::Unavailable | ErrorKind::Aborted => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, axum::Json(error)).into_response()
}

/// One submit's events as lines. Dropping it early, because the connection closed, aborts the
/// request.
struct Lines {
    engine: Arc<dyn Engine>,
    id: RequestId,
    events: mpsc::UnboundedReceiver<Event>,
    heartbeat: Duration,
    clock: Clock,
    ended: bool,
}

impl Lines {
    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let event = match before(self.clock.after(self.heartbeat), self.events.recv()).await {
            None => return Some(Bytes::from_static(b"\n")),
            Some(Some(event)) => event,
            // The engine dropped the request without a last event; do not let the front wait.
            Some(None) => Event::Failed(EngineError::new(ErrorKind::Unavailable, "the engine dropped the request")),
        };
        self.ended = !matches!(event, Event::Token { .. });
        let mut line = serde_json::to_vec(&event).ok()?;
        line.push(b'\n');
        Some(line.into())
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if !self.ended {
            self.engine.abort(self.id);
        }
    }
}
