//! Reading a request's body with a bound in bytes and in time.

use crate::openai::ApiError;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use futures::StreamExt;
use std::time::Duration;

/// A body that is too large is still read up to this many times its limit before the answer: a client
/// that writes all before it reads would otherwise see a reset connection instead of the 413.
const DISCARD_FACTOR: usize = 4;

/// The body, if it is JSON of an acceptable size.
pub(super) async fn read_json(
    headers: &HeaderMap,
    body: Body,
    bytes_max: usize,
    timeout: Duration,
) -> Result<Bytes, ApiError> {
    check_content_type(headers)?;
    tokio::time::timeout(timeout, read(body, bytes_max)).await.unwrap_or_else(|_| {
        let message = format!("the body did not arrive within {} s", timeout.as_secs_f64());
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message))
    })
}

async fn read(body: Body, bytes_max: usize) -> Result<Bytes, ApiError> {
    let mut pieces = body.into_data_stream();
    let mut whole = Vec::new();
    let mut length = 0_usize;
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| ApiError::malformed(format!("the body broke off: {error}")))?;
        length = length.saturating_add(piece.len());
        if length <= bytes_max {
            whole.extend_from_slice(&piece);
        } else if length > bytes_max.saturating_mul(DISCARD_FACTOR) {
            break;
        }
    }
    if length > bytes_max {
        let message = format!("the body is larger than {bytes_max} bytes");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message));
    }
    Ok(whole.into())
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
