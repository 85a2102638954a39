//! One function per endpoint.

use super::body::Bounds;
use super::budget::Share;
use super::generate::Generation;
use super::keys::Client;
use super::{AppState, body, sse};
use crate::openai::{self, ApiError, Body, Call, Limits, Reply, Shape};
use crate::random;
use crate::time::before;
use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use cenote_base::engine::EngineStats;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for an engine's statistics. After it, a scrape is answered without them.
const STATS_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT_HEADER: &str = "x-cenote-timeout-ms";

pub(super) async fn completions(State(state): State<Arc<AppState>>, request: Request) -> Result<Response, ApiError> {
    generate(&state, request, Shape::Completion, openai::completions_call).await
}

pub(super) async fn chat_completions(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, ApiError> {
    generate(&state, request, Shape::Chat, openai::chat_call).await
}

async fn generate(
    state: &Arc<AppState>,
    request: Request,
    shape: Shape,
    translate: fn(Body, &Limits) -> Result<Call, ApiError>,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let config = &state.config;
    let timeout = timeout(&parts.headers, config.request_timeout)?;
    let bytes_max = config.body_bytes_max;
    // Check before reading the body, so that a full server holds no bodies. The place itself is
    // taken when the body is complete, so that slow bodies do not take all places.
    let client: Client = parts.extensions.get().cloned().unwrap_or_default();
    if let Err(error) = Generation::check_room(state, &client) {
        body::discard(&parts, body, bytes_max, state.clock).await;
        return Err(error);
    }
    let bounds = Bounds { bytes_max, timeout: config.body_timeout, clock: state.clock, budget: Some(&state.bodies) };
    let body::Whole { bytes, share } = body::read_json(&parts, body, &bounds).await.map_err(|refused| {
        if let Some(bound) = refused.bound {
            state.metrics.refused(bound);
        }
        refused.error
    })?;
    let limits = Limits::of(&state.engine.describe(), config.prompts_max);
    if limits.model.is_empty() {
        return Err(ApiError::unavailable("no worker has told yet which model it serves"));
    }
    let call = translate(Body::parse(&bytes)?, &limits)?;
    drop(bytes);
    let prefix = match shape {
        Shape::Completion => "cmpl",
        Shape::Chat => "chatcmpl",
    };
    let reply = Reply {
        shape,
        id: format!("{prefix}-{:016x}", random::number()),
        created: state.clock.unix().as_secs(),
        model: limits.model,
        include_usage: call.include_usage,
    };
    let max_tokens_field = call.max_tokens_field;
    let answer = answer(state, call, client, reply, timeout, share).await;
    // Errors name fields in the client's spelling.
    answer.map_err(|error| match (shape, error.param.as_deref()) {
        (Shape::Chat, Some("prompt")) => error.renamed("messages"),
        (_, Some("max_tokens")) => error.renamed(max_tokens_field),
        _ => error,
    })
}

async fn answer(
    state: &Arc<AppState>,
    call: Call,
    client: Client,
    reply: Reply,
    timeout: Duration,
    share: Option<Share>,
) -> Result<Response, ApiError> {
    let stream = call.stream;
    let generation = Generation::start(state, call, &client, timeout, share)?;
    if stream {
        return sse::respond(generation, reply, state.config.keep_alive, state.clock).await;
    }
    let (answers, usage) = generation.collect().await?;
    Ok(Json(reply.whole(&answers, usage)).into_response())
}

/// The request's time limit; the client may ask for less than the server's.
fn timeout(headers: &HeaderMap, longest: Duration) -> Result<Duration, ApiError> {
    let Some(given) = headers.get(TIMEOUT_HEADER) else { return Ok(longest) };
    let asked = given.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok()).filter(|ms| *ms > 0);
    match asked {
        Some(ms) => Ok(Duration::from_millis(ms).min(longest)),
        None => Err(ApiError::invalid(TIMEOUT_HEADER, "not a count of milliseconds")),
    }
}

pub(super) async fn models(State(state): State<Arc<AppState>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [model_body(&state)] }))
}

pub(super) async fn model(State(state): State<Arc<AppState>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let served = state.engine.describe().model;
    if id == served { Ok(Json(model_body(&state))) } else { Err(openai::unknown_model(&id, &served)) }
}

fn model_body(state: &AppState) -> Value {
    let description = state.engine.describe();
    json!({
        "id": description.model,
        "object": "model",
        "created": state.started_s,
        "owned_by": "cenote",
        "max_model_len": description.max_model_len,
    })
}

/// For a liveness probe: 200 unless a restart is needed. A draining server ends by itself, and a
/// degraded engine serves correctly.
pub(super) async fn health(State(state): State<Arc<AppState>>) -> Response {
    let has_worker = !state.engine.describe().process_ids.is_empty();
    report(&state, has_worker || state.is_draining())
}

/// For a readiness probe and for load balancers: 200 only if a request sent now would be accepted
/// and some worker lives.
pub(super) async fn ready(State(state): State<Arc<AppState>>) -> Response {
    let has_worker = !state.engine.describe().process_ids.is_empty();
    report(&state, has_worker && !state.is_draining())
}

/// The server's state, with 200 or 503.
fn report(state: &AppState, is_well: bool) -> Response {
    let health = state.health();
    let description = state.engine.describe();
    let status = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let word = if state.is_draining() {
        "draining"
    } else if description.process_ids.is_empty() {
        "no worker"
    } else if health.is_degraded() {
        "degraded"
    } else {
        "ok"
    };
    let body = json!({
        "status": word,
        "reasons": health.reasons(),
        "model": description.model,
        "region": description.region,
        "process_ids": description.process_ids,
        "requests_running": state.running(),
    });
    (status, Json(body)).into_response()
}

pub(super) async fn metrics(State(state): State<Arc<AppState>>) -> Response {
    state.health();
    let engine = state.engine.clone();
    // An engine may have to ask its workers, so do not call it on a thread that serves other
    // requests.
    let asked = tokio::task::spawn_blocking(move || engine.stats());
    let stats = match before(state.clock.after(STATS_TIMEOUT), asked).await {
        Some(Ok(stats)) => stats,
        Some(Err(_)) | None => EngineStats::default(),
    };
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], state.render(&stats)).into_response()
}

pub(super) async fn unknown_path(method: Method, uri: Uri) -> ApiError {
    let message = format!("{method} {}: there is no such path", uri.path());
    ApiError { code: Some("unknown_url"), ..ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message) }
}

pub(super) async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{method} {}: the path does not take this method", uri.path());
    ApiError {
        code: Some("method_not_allowed"),
        ..ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }
}
