//! Sockets and the end: accepts connections, and on shutdown drains within a deadline.

mod gate;
mod refusal;
mod stall;

pub(crate) use gate::{Gate, Ticket};

use crate::http::{AppState, router};
use axum::Router;
use cenote_base::Deadline;
use gate::Seat;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use refusal::Refusals;
use stall::StallGuard;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// Most bytes of a request's head, and of what is read ahead of a body.
const READ_BUFFER_BYTES_MAX: usize = 32 << 10;
/// Longest time a client may take no byte of an answer; then it is cut off.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How often the engine's health is looked at when no client asks.
const HEALTH_PERIOD: Duration = Duration::from_secs(1);
/// Pause after `accept` fails; the usual reason is that the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long a shutdown may take.
#[derive(Clone, Copy, Debug)]
pub struct Grace {
    /// For running requests to finish; then they are aborted.
    pub drain: Duration,
    /// For connections to write their last bytes after that; then they are cut.
    pub close: Duration,
}

impl Default for Grace {
    fn default() -> Self {
        Self { drain: Duration::from_secs(30), close: Duration::from_secs(2) }
    }
}

/// Serves the OpenAI API on `listener` until `shutdown` resolves; then stops accepting, lets running
/// requests finish for `grace.drain`, aborts the rest and returns whether all were finished.
pub async fn serve(
    listener: TcpListener,
    state: Arc<AppState>,
    shutdown: impl Future<Output = ()> + Send,
    grace: Grace,
) -> bool {
    let head_timeout = state.config.head_timeout;
    let connections = tokio::select! {
        connections = Connections::accept_until(listener, router(state.clone()), &state.gate, head_timeout, shutdown) => connections,
        never = watch_health(&state) => match never {},
    };
    state.start_draining();
    let engine = state.engine().clone();
    let deadline = Deadline::after(grace.drain);
    let drained = tokio::task::spawn_blocking(move || engine.drain(deadline));
    // The engine promises to come back by its deadline; the second one is for when it does not.
    let drained = tokio::time::timeout(grace.drain + grace.close, drained).await;
    let drained = matches!(drained, Ok(Ok(true)));
    if !drained {
        tracing::warn!(requests = state.running(), "the drain deadline has passed; aborting what still runs");
        state.abort_all();
    }
    connections.finish(grace.close).await;
    drained
}

/// A change of health is logged even if no client ever asks for it.
async fn watch_health(state: &AppState) -> Infallible {
    let mut ticks = tokio::time::interval(HEALTH_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        state.health();
    }
}

/// The open connections of one listener.
pub(crate) struct Connections {
    tasks: JoinSet<()>,
    closing: watch::Sender<bool>,
}

impl Connections {
    /// Serves `router` on `listener` until `shutdown` resolves; no connection is accepted after that, and
    /// open ones end with their current answer. `head_timeout` bounds the wait for a request's head, from
    /// the connection's start or the end of the answer before; answers may take as long as they like.
    pub(crate) async fn accept_until(
        listener: TcpListener,
        router: Router,
        gate: &Arc<Gate>,
        head_timeout: Duration,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Self {
        let (closing, closed) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        let mut refusals = Refusals::new(gate.max());
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                accepted = listener.accept() => match accepted {
                    Ok((socket, _)) => match gate.admit().await {
                        Some(seat) => {
                            tasks.spawn(connection(socket, router.clone(), seat, head_timeout, closed.clone()));
                        }
                        None => refusals.refuse(socket),
                    },
                    Err(error) => {
                        tracing::warn!(%error, "accepting a connection failed");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                // Ended tasks are collected as they end, or a long-lived server would keep them all.
                Some(_) = tasks.join_next() => {}
                () = refusals.closed() => {}
            }
        }
        drop(listener);
        closing.send_replace(true);
        Self { tasks, closing }
    }

    /// Waits for the connections to end, and cuts those that do not.
    pub(crate) async fn finish(mut self, timeout: Duration) {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(timeout, all).await.is_err() {
            tracing::warn!(connections = self.tasks.len(), "cutting connections that did not end");
            self.tasks.shutdown().await;
        }
        drop(self.closing);
    }
}

async fn connection(
    socket: TcpStream,
    router: Router,
    seat: Seat,
    head_timeout: Duration,
    mut closed: watch::Receiver<bool>,
) {
    // A token is a small packet that must not wait for the acknowledgement of the one before.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    let (inner, ticket) = (TowerToHyperService::new(router), seat.ticket().clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        ticket.work();
        request.extensions_mut().insert(ticket.clone());
        let (answer, ticket) = (inner.call(request), ticket.clone());
        async move { answer.await.map(|answer| answer.map(|body| ticket.until_end_of(body))) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(head_timeout).max_buf_size(READ_BUFFER_BYTES_MAX);
    let served = http.serve_connection(TokioIo::new(StallGuard::new(socket, STALL_TIMEOUT)), service);
    let mut served = std::pin::pin!(served);
    let mut ending = false;
    let result = loop {
        tokio::select! {
            result = &mut served => break result,
            () = raised(&mut closed), if !ending => {
                ending = true;
                served.as_mut().graceful_shutdown();
            }
            () = seat.told_to_leave() => {
                if !seat.works() {
                    return;
                }
                // A request came in just now; the connection leaves with its answer.
                served.as_mut().graceful_shutdown();
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended badly");
    }
}

/// Waits until the flag is up or nobody can raise it any more.
async fn raised(flag: &mut watch::Receiver<bool>) {
    // The value that comes back holds a lock, so it must not live in a caller's `select!`.
    let _ = flag.wait_for(|up| *up).await;
}
