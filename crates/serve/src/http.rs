//! The HTTP front over any engine.
//!
//! `/v1/models`, `/v1/completions`, `/v1/chat/completions`, `/health`, `/ready`, `/metrics`. A
//! handler translates ([`crate::openai`]), submits, and waits with a deadline. If it ends early,
//! for example because the connection broke, it drops its `Generation`, which aborts the request in
//! the engine.

pub(crate) mod body;
pub(crate) mod budget;
mod generate;
mod handlers;
mod keys;
mod middleware;
mod sse;
mod state;

pub use keys::ApiKeys;
pub use state::{AppState, HttpConfig, TenantsSet};

use axum::Router;
use axum::routing::{get, post};
use std::sync::Arc;

/// The whole API over `state`.
pub fn router(state: Arc<AppState>) -> Router {
    Router::new()
        .route("/v1/models", get(handlers::models))
        .route("/v1/models/{*id}", get(handlers::model))
        .route("/v1/completions", post(handlers::completions))
        .route("/v1/chat/completions", post(handlers::chat_completions))
        .route("/health", get(handlers::health))
        .route("/ready", get(handlers::ready))
        .route("/metrics", get(handlers::metrics))
        .fallback(handlers::unknown_path)
        .method_not_allowed_fallback(handlers::wrong_method)
        .layer(axum::middleware::from_fn_with_state(state.clone(), middleware::around))
        .with_state(state)
}
