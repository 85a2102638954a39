//! Floor 4: what clients and operators talk to.
//!
//! OpenAI-compatible HTTP over any [`Engine`](cenote_base::Engine), Prometheus metrics, the worker
//! protocol, and the router that splits prefill and decode over worker processes (TraCT §3.2).
//! Nothing here knows how tokens are computed or where KV lies: an engine in this process, an
//! engine behind a socket ([`RemoteEngine`]) and a fleet of them ([`Disaggregated`]) look the same
//! from above.
//!
//! ```text
//! client ── http ──▶ Disaggregated ──▶ Fleet ──▶ RemoteEngine ── HTTP ──▶ worker process
//!                         ▲                ▲
//!                  resumes streams    Supervisor publishes, retracts, restarts
//! ```
//!
//! A front with one engine in its own process needs no fleet:
//!
//! ```no_run
//! # async fn front(engine: std::sync::Arc<dyn cenote_base::Engine>) -> std::io::Result<()> {
//! use cenote_base::Clock;
//! use cenote_serve::{AppState, Grace, HttpConfig, serve};
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8000").await?;
//! let state = AppState::new(engine, HttpConfig::default(), Clock::system());
//! let stop = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
//! serve(listener, state, stop, Grace::default()).await;
//! # Ok(())
//! # }
//! ```
//!
//! With workers, the engine is [`Disaggregated`] over the [`Fleet`] that a [`Supervisor`] keeps
//! filled, and a worker process is little more than [`run_worker`].
#![forbid(unsafe_code)]

pub mod disagg;
pub mod http;
pub mod metrics;
pub mod openai;
pub mod random;
pub mod remote;
pub mod server;
pub mod supervisor;
pub mod tenants;
mod time;
pub mod worker;

pub use disagg::{Disaggregated, DisaggregatedConfig, Fleet, Role};
pub use http::{ApiKeys, AppState, HttpConfig, TenantsSet, router};
pub use remote::{RemoteConfig, RemoteEngine, RemoteError};
pub use server::{Grace, serve, serve_pages};
pub use supervisor::{Supervisor, SupervisorConfig, SupervisorError};
pub use tenants::TenantFile;
pub use worker::{Ready, WorkerConfig, WorkerToken, parent_gone, run_worker, serve_worker, worker_router};
