//! Reads a request's body within limits: bytes, time, and the bytes of all bodies together.

use super::budget::{Budget, Share};
use crate::openai::ApiError;
use crate::server::Ticket;
use crate::time::before;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use cenote_base::Clock;
use futures::StreamExt;
use std::sync::Arc;
use std::time::Duration;

/// A body that is too large is still read up to this many times its limit before the answer: a
/// client that writes everything before it reads would otherwise see a reset connection instead of
/// the 413. A body with too large a `Content-Length` has one second to arrive; with a larger one
/// still, it is refused unread.
const DISCARD_FACTOR: usize = 4;
/// Longest time for reading a body that is refused, for the same reason.
const DISCARD_TIME: Duration = Duration::from_secs(1);

/// Limits of a body.
pub(crate) struct Bounds<'a> {
    pub(crate) bytes_max: usize,
    pub(crate) timeout: Duration,
    pub(crate) clock: Clock,
    /// Budget of all bodies together, if they are counted.
    pub(crate) budget: Option<&'a Arc<Budget>>,
}

/// A complete body.
pub(crate) struct Whole {
    pub(crate) bytes: Vec<u8>,
    /// Kept as long as the bytes, or data made of them, are in memory.
    pub(crate) share: Option<Share>,
}

/// Reasons for which a body was refused.
#[derive(Debug)]
pub(crate) struct BodyError {
    /// The exceeded limit, as a label of a metric; `None` if the body is invalid or incomplete.
    pub(crate) bound: Option<&'static str>,
    pub(crate) error: ApiError,
}

impl From<ApiError> for BodyError {
    fn from(error: ApiError) -> Self {
        Self { bound: None, error }
    }
}

/// The body, if it is JSON of an acceptable size.
pub(super) async fn read_json(parts: &Parts, body: Body, bounds: &Bounds<'_>) -> Result<Whole, BodyError> {
    check_content_type(&parts.headers)?;
    read(parts, body, bounds).await
}

/// The body, if it is within the limits. Meanwhile its connection may be closed to make room for
/// another one.
pub(crate) async fn read(parts: &Parts, body: Body, bounds: &Bounds<'_>) -> Result<Whole, BodyError> {
    if content_length(&parts.headers) > bounds.bytes_max as u64 {
        discard(parts, body, bounds.bytes_max.saturating_mul(DISCARD_FACTOR), bounds.clock).await;
        return Err(too_large(bounds.bytes_max));
    }
    while_waiting(parts, async {
        before(bounds.clock.after(bounds.timeout), collect(body, bounds)).await.unwrap_or_else(|| {
            let message = format!("the body did not arrive within {} s", bounds.timeout.as_secs_f64());
            let error = ApiError::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message);
            Err(BodyError { bound: Some("time"), error })
        })
    })
    .await
}

/// Reads and drops the body of a request that is refused in any case.
pub(super) async fn discard(parts: &Parts, body: Body, bytes_max: usize, clock: Clock) {
    if content_length(&parts.headers) > bytes_max as u64 {
        return;
    }
    let all = async {
        let (mut pieces, mut length) = (body.into_data_stream(), 0);
        while let Some(Ok(piece)) = pieces.next().await {
            length += piece.len();
            if length > bytes_max {
                break;
            }
        }
    };
    let _ = while_waiting(parts, before(clock.after(DISCARD_TIME), all)).await;
}

async fn while_waiting<T>(parts: &Parts, reading: impl Future<Output = T>) -> T {
    let ticket = parts.extensions.get::<Ticket>();
    if let Some(ticket) = ticket {
        ticket.wait();
    }
    let result = reading.await;
    if let Some(ticket) = ticket {
        ticket.work();
    }
    result
}

async fn collect(body: Body, bounds: &Bounds<'_>) -> Result<Whole, BodyError> {
    let Bounds { bytes_max, budget, .. } = *bounds;
    let mut pieces = body.into_data_stream();
    let mut whole = Whole { bytes: Vec::new(), share: budget.map(Budget::share) };
    let mut length = 0_usize;
    let mut refusal = None;
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| ApiError::malformed(format!("the body broke off: {error}")))?;
        length = length.saturating_add(piece.len());
        if refusal.is_none() {
            refusal = if length > bytes_max {
                Some(too_large(bytes_max))
            } else if whole.share.as_mut().is_some_and(|share| !share.grow_to(length)) {
                Some(no_memory(budget.map_or(0, |budget| budget.max())))
            } else {
                None
            };
            if refusal.is_some() {
                // Read and drop the rest, and free what was read so far.
                whole = Whole { bytes: Vec::new(), share: None };
            } else {
                whole.bytes.extend_from_slice(&piece);
            }
        }
        if length > bytes_max.saturating_mul(DISCARD_FACTOR) {
            break;
        }
    }
    refusal.map_or(Ok(whole), Err)
}

fn too_large(bytes_max: usize) -> BodyError {
    let message = format!("the body is larger than {bytes_max} bytes");
    let error = ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message);
    BodyError { bound: Some("length"), error }
}

fn no_memory(budget: usize) -> BodyError {
    let message = format!("the bodies of other requests fill the {budget} bytes that there are for them");
    BodyError { bound: Some("memory"), error: ApiError::overloaded(message, 1) }
}

/// The `Content-Length`; 0 if there is none. A value that is no number does not get here: hyper
/// answers it with 400.
fn content_length(headers: &HeaderMap) -> u64 {
    let given = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    given.map_or(0, |value| value.trim().parse().unwrap_or(u64::MAX))
}

fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(header::CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let media = given.as_deref().and_then(|value| value.split(';').next()).unwrap_or("").trim().to_ascii_lowercase();
    if media == "application/json" || (media.starts_with("application/") && media.ends_with("+json")) {
        return Ok(());
    }
    let shown = given.as_deref().unwrap_or("missing");
    let message = format!("Content-Type: {shown}, but application/json is needed");
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message))
}
