//! Errors in OpenAI's shape: a status and `{"error": {"message", "type", "param", "code"}}`.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cenote_base::engine::{EngineError, ErrorKind};
use serde_json::{Value, json};

/// An error answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// A sentence that names the thing and the reason.
    pub message: String,
    /// The invalid request field.
    pub param: Option<String>,
    /// Machine-readable code.
    pub code: Option<&'static str>,
    /// Value of the `Retry-After` header.
    pub retry_after_s: Option<u64>,
}

impl ApiError {
    /// An error with only a status, a type and a message.
    #[must_use]
    pub fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, code: None, retry_after_s: None }
    }

    /// 400: the field `param` is wrong. The message starts with the field's name.
    #[must_use]
    pub fn invalid(param: impl Into<String>, fact: impl std::fmt::Display) -> Self {
        let param = param.into();
        let message = format!("{param}: {fact}");
        Self { param: Some(param), ..Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message) }
    }

    /// 400: the body is invalid as a whole.
    #[must_use]
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 503: no room now.
    #[must_use]
    pub fn overloaded(message: impl Into<String>, retry_after_s: u64) -> Self {
        Self {
            code: Some("overloaded"),
            retry_after_s: Some(retry_after_s.max(1)),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
        }
    }

    /// 429: the client has all that its own limit grants.
    #[must_use]
    pub fn rate_limited(message: impl Into<String>, retry_after_s: u64) -> Self {
        Self {
            code: Some("rate_limit_exceeded"),
            retry_after_s: Some(retry_after_s.max(1)),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "requests", message)
        }
    }

    /// 503: the server is shutting down, or no worker lives.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self { code: Some("unavailable"), ..Self::overloaded(message, 1) }
    }

    /// 400: prompt and output exceed the model's context; `param` is the field to shorten.
    #[must_use]
    pub fn context_length(param: impl Into<String>, fact: &str) -> Self {
        Self { code: Some("context_length_exceeded"), ..Self::invalid(param, fact) }
    }

    /// 504: the request's deadline passed.
    #[must_use]
    pub fn deadline(message: impl Into<String>) -> Self {
        Self { code: Some("deadline_exceeded"), ..Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message) }
    }

    /// 500: a bug or failure of the server.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self { code: Some("internal_error"), ..Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message) }
    }

    /// The same error with its field under another name.
    #[must_use]
    pub fn renamed(self, param: &str) -> Self {
        let fact = self.param.as_deref().and_then(|old| self.message.strip_prefix(old));
        let message = fact.map_or_else(|| self.message.clone(), |fact| format!("{param}{fact}"));
        Self { message, param: Some(param.to_owned()), ..self }
    }

    /// The JSON body; also sent in a stream that breaks.
    #[must_use]
    pub fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        match error.kind {
            ErrorKind::ContextLength => {
                Self::context_length(error.field.as_deref().unwrap_or("prompt"), &error.message)
            }
            ErrorKind::InvalidRequest => match &error.field {
                Some(field) => Self::invalid(field.as_str(), &error.message),
                None => Self::malformed(error.message),
            },
            ErrorKind::Overloaded => {
                let retry_after_s = error.retry_after_ms.unwrap_or(1000).div_ceil(1000);
                Self::overloaded(error.to_string(), retry_after_s)
            }
            ErrorKind::Unavailable => Self::unavailable(error.to_string()),
            ErrorKind::DeadlineExceeded => Self::deadline(error.to_string()),
            // The server owns the request. It aborts a request when its client has left, which does
            // not read this, and when the server shuts down.
            ErrorKind::Aborted => Self { code: Some("aborted"), ..Self::unavailable(error.to_string()) },
            ErrorKind::Internal => Self::internal(error.to_string()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_error_has_its_status() {
        let status = |error: EngineError| ApiError::from(error).status.as_u16();
        assert_eq!(status(EngineError::invalid("prompt", "too long")), 400);
        assert_eq!(status(EngineError::context_length("prompt", "too long")), 400);
        assert_eq!(status(EngineError::overloaded("full", 10)), 503);
        assert_eq!(status(EngineError::new(ErrorKind::Unavailable, "gone")), 503);
        assert_eq!(status(EngineError::new(ErrorKind::DeadlineExceeded, "late")), 504);
        assert_eq!(status(EngineError::new(ErrorKind::Aborted, "shut down")), 503);
        assert_eq!(status(EngineError::new(ErrorKind::Internal, "bug")), 500);
    }

    #[test]
    fn retry_after_is_rounded_up_to_whole_seconds() {
        assert_eq!(ApiError::from(EngineError::overloaded("full", 1)).retry_after_s, Some(1));
        assert_eq!(ApiError::from(EngineError::overloaded("full", 1001)).retry_after_s, Some(2));
        assert_eq!(ApiError::from(EngineError::overloaded("full", 0)).retry_after_s, Some(1));
    }
}
