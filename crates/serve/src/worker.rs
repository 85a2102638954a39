//! The worker protocol, worker's side: any engine behind a loopback socket.
//!
//! | call | body | answer |
//! |---|---|---|
//! | `GET /engine/health` | | `Health`, always with 200 |
//! | `GET /engine/describe` | | `EngineDescription` |
//! | `GET /engine/stats` | | `EngineStats` |
//! | `POST /engine/submit` | `Request` | one `Event` per line as it happens; a blank line each second is a heartbeat |
//! | `POST /engine/abort/{id}` | | 204 |
//! | `POST /engine/release/{id}` | | 204 |
//! | `POST /engine/tenants` | all tenants | what is not as asked, one sentence each |
//! | `POST /engine/drain` | `{"timeout_ms"}` | `{"drained"}` |
//!
//! A refused submit answers with an `EngineError` and a status of 400 or more. Closing the
//! connection of a submit aborts its request. Every call carries the secret that parent and worker
//! share ([`WorkerToken`]), because other users of the host reach the loopback too.
//!
//! The blank lines come from the socket's thread, not from the engine. They distinguish a stopped
//! process from a long prefill. A stuck engine in a living process is detected by the request's
//! deadline.

mod protocol;
mod ready;

pub use protocol::worker_router;
pub use ready::{Ready, WorkerToken, parent_gone};

pub(crate) use protocol::{DrainCall, DrainReply, TOKEN_HEADER};

use crate::server::{Connections, Gate, Grace};
use crate::time::before;
use cenote_base::{Clock, Engine};
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Settings of a worker.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Interval of heartbeats on a silent stream; well below the front's idle timeout.
    pub heartbeat: Duration,
    /// Largest request; prompts of the longest context fit as JSON.
    pub body_bytes_max: usize,
    /// Most open connections: one per running request and some for checks; as
    /// [`HttpConfig::connections_max`](crate::HttpConfig::connections_max).
    pub connections_max: usize,
    /// Longest time that a caller may take to send a head or a body, and to keep a connection idle.
    pub head_timeout: Duration,
    /// Time limits of the shutdown.
    pub grace: Grace,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(1),
            body_bytes_max: 64 << 20,
            connections_max: 4096,
            head_timeout: Duration::from_secs(30),
            grace: Grace::default(),
        }
    }
}

/// Runs a worker process: binds a loopback port, reports it on stdout, serves until `shutdown`
/// resolves, drains. Returns whether all requests finished.
///
/// # Errors
/// No port could be bound, or the parent does not read.
pub async fn run_worker(
    engine: Arc<dyn Engine>,
    token: WorkerToken,
    config: WorkerConfig,
    clock: Clock,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<bool> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let ready = Ready { port: listener.local_addr()?.port(), pid: std::process::id() };
    {
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{}", ready.to_line())?;
        stdout.flush()?;
    }
    Ok(serve_worker(listener, engine, token, config, clock, shutdown).await)
}

/// Serves the worker protocol on `listener` until `shutdown` resolves, then drains. Returns whether
/// all requests finished.
pub async fn serve_worker(
    listener: TcpListener,
    engine: Arc<dyn Engine>,
    token: WorkerToken,
    config: WorkerConfig,
    clock: Clock,
    shutdown: impl Future<Output = ()> + Send,
) -> bool {
    let (grace, head_timeout) = (config.grace, config.head_timeout);
    let gate = Gate::new(config.connections_max, clock);
    let router = protocol::router(engine.clone(), token, config, clock, Some(gate.clone()));
    let connections = Connections::accept_until(listener, router, &gate, head_timeout, clock, shutdown).await;
    let deadline = clock.after(grace.drain);
    let drained = tokio::task::spawn_blocking(move || engine.drain(deadline));
    let drained = before(clock.after(grace.drain + grace.close), drained).await;
    let drained = matches!(drained, Some(Ok(true)));
    // Closing a connection aborts its request, and the front resumes it elsewhere.
    connections.finish(clock.after(grace.close)).await;
    drained
}
