//! Runs around every handler: request id, API key, count of answers.

use super::AppState;
use super::keys::Client;
use crate::openai::ApiError;
use crate::random;
use crate::tenants::{Right, Tenants};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument;

/// Target of the access log's lines, for `--log`.
pub(super) const ACCESS: &str = "access";

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest client-provided request id that is echoed; longer ones are replaced.
const REQUEST_ID_BYTES_MAX: usize = 128;

pub(super) async fn around(State(state): State<Arc<AppState>>, mut request: Request, next: Next) -> Response {
    let endpoint = endpoint(request.uri().path());
    let id = request_id(request.headers());
    let began_ns = state.clock.now_ns();
    let span = tracing::info_span!(target: ACCESS, "request", endpoint, ?id, tenant = tracing::field::Empty);
    let tenants = state.tenants();
    let authorized = authorize(&state, tenants.as_deref(), endpoint, request.headers());
    let tenant = authorized.as_ref().ok().and_then(|client| client.tenant.clone());
    if let Some(tenant) = &tenant {
        span.record("tenant", tenant.name());
    }
    let mut response = match authorized {
        Ok(mut client) => {
            client.label = id.to_str().ok().map(str::to_owned);
            request.extensions_mut().insert(client);
            next.run(request).instrument(span.clone()).await
        }
        Err(error) => {
            let mut refusal = error.into_response();
            if refusal.status() == StatusCode::UNAUTHORIZED {
                refusal.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            refusal
        }
    };
    state.metrics.answered(endpoint, response.status().as_u16());
    if let (Some(tenants), true, 401 | 429 | 503) = (&tenants, generates(endpoint), response.status().as_u16()) {
        tenants.refused(tenant.as_deref());
    }
    span.in_scope(|| log_access(endpoint, response.status(), state.clock.since(began_ns)));
    if state.is_draining() {
        // The client's next request is for another server.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// A line of the access log. A generation that has begun writes its own, with its tokens, when it ends.
/// Probes and scrapes come every few seconds.
fn log_access(endpoint: &str, status: StatusCode, took: Duration) {
    let (status, ms) = (status.as_u16(), took.as_millis() as u64);
    match endpoint {
        _ if generates(endpoint) && status == 200 => {}
        "/health" | "/ready" | "/metrics" => tracing::debug!(target: ACCESS, status, ms, "answered"),
        _ => tracing::info!(target: ACCESS, status, ms, "answered"),
    }
}

/// Whether the endpoint generates.
fn generates(endpoint: &str) -> bool {
    matches!(endpoint, "/v1/completions" | "/v1/chat/completions")
}

/// A path as a metric label, from a bounded set.
fn endpoint(path: &str) -> &'static str {
    const KNOWN: &[&str] = &["/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/ready", "/metrics"];
    match KNOWN.iter().find(|known| **known == path) {
        Some(known) => known,
        None if path.starts_with("/v1/models/") => "/v1/models",
        None => "other",
    }
}

fn request_id(headers: &HeaderMap) -> HeaderValue {
    match headers.get(REQUEST_ID) {
        Some(given) if (1..=REQUEST_ID_BYTES_MAX).contains(&given.len()) => given.clone(),
        _ => HeaderValue::from_str(&format!("req-{:016x}", random::number()))
            .unwrap_or_else(|_| HeaderValue::from_static("req")),
    }
}

fn authorize(
    state: &AppState,
    tenants: Option<&Tenants>,
    endpoint: &str,
    headers: &HeaderMap,
) -> Result<Client, ApiError> {
    let keys = &state.config.api_keys;
    if tenants.is_none() && keys.is_open() || matches!(endpoint, "/health" | "/ready") {
        return Ok(Client::default());
    }
    let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let given = given.and_then(|value| {
        let (scheme, rest) = value.split_at_checked(b"Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(rest.trim_ascii())
    });
    let find = |given| match tenants {
        Some(tenants) => opened(tenants, endpoint, given),
        None => Ok(keys.find(given)),
    };
    let message = match given.map(find).transpose()? {
        Some(Some(client)) => return Ok(client),
        Some(None) => "Authorization: the API key is wrong",
        None => "Authorization: missing; send `Bearer <API key>`",
    };
    let error = ApiError::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message);
    Err(ApiError { code: Some("invalid_api_key"), ..error })
}

/// What a key opens on a front with tenants; `None`: nothing here. `/metrics` has the numbers of all tenants,
/// so no tenant's key opens it.
fn opened(tenants: &Tenants, endpoint: &str, given: &[u8]) -> Result<Option<Client>, ApiError> {
    let is_metrics = endpoint == "/metrics";
    match tenants.find(given) {
        Some(Right::Tenant(_)) if is_metrics => {
            let message = "Authorization: a tenant's key does not open /metrics; send one of [metrics]";
            let error = ApiError::new(StatusCode::FORBIDDEN, "invalid_request_error", message);
            Err(ApiError { code: Some("permission_denied"), ..error })
        }
        Some(Right::Tenant(tenant)) => Ok(Some(Client { tenant: Some(tenant), ..Client::default() })),
        Some(Right::Metrics) if is_metrics => Ok(Some(Client::default())),
        Some(Right::Metrics) | None => Ok(None),
    }
}
