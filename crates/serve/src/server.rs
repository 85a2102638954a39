//! Sockets and shutdown: accepts connections, and drains within a deadline.

mod gate;
mod refusal;
mod stall;

pub(crate) use gate::{Gate, Ticket};

use crate::http::{AppState, router};
use crate::time::{ConnectionTimer, before, sleep_until};
use axum::Router;
use cenote_base::{Clock, Deadline};
use gate::Seat;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use refusal::Refusals;
use stall::StallGuard;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Most bytes of a request's head, and of a body that are read ahead.
const READ_BUFFER_BYTES_MAX: usize = 32 << 10;
/// Longest time that a client may read no byte of an answer; then its connection is closed.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of checking the engine's health without requests.
const HEALTH_PERIOD: Duration = Duration::from_secs(1);
/// Pause after `accept` fails; the usual cause is that the process has no free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Time limits of a shutdown.
#[derive(Clone, Copy, Debug)]
pub struct Grace {
    /// For running requests to finish; then they are aborted.
    pub drain: Duration,
    /// For connections to write their last bytes after that; then they are closed.
    pub close: Duration,
}

impl Default for Grace {
    fn default() -> Self {
        Self { drain: Duration::from_secs(30), close: Duration::from_secs(2) }
    }
}

/// Serves the OpenAI API on `listener` until `shutdown` resolves. Then drains: lets running requests
/// finish for `grace.drain`, and aborts the others. Meanwhile it goes on accepting connections, so that
/// probes and load balancers see the drain; generating requests get 503. Returns whether all finished.
pub async fn serve(
    listener: TcpListener,
    state: Arc<AppState>,
    shutdown: impl Future<Output = ()> + Send,
    grace: Grace,
) -> bool {
    let (clock, head_timeout) = (state.clock, state.config.head_timeout);
    let mut drained = false;
    let end = async {
        shutdown.await;
        drained = drain(&state, grace).await;
    };
    let connections = tokio::select! {
        connections = Connections::accept_until(listener, router(state.clone()), &state.gate, head_timeout, clock, end) => connections,
        never = watch_health(&state) => match never {},
    };
    connections.finish(clock.after(grace.close)).await;
    drained
}

/// Returns whether all requests have finished.
async fn drain(state: &AppState, grace: Grace) -> bool {
    let clock = state.clock;
    state.start_draining();
    tracing::info!(requests = state.running(), "draining: new requests get 503");
    let engine = state.engine().clone();
    let deadline = clock.after(grace.drain);
    let drained = tokio::task::spawn_blocking(move || engine.drain(deadline));
    // The engine returns by its deadline; the second deadline is for an engine that does not.
    let drained = before(clock.after(grace.drain + grace.close), drained).await;
    let drained = matches!(drained, Some(Ok(true)));
    if !drained {
        tracing::warn!(requests = state.running(), "the drain deadline has passed; aborting what still runs");
        state.abort_all();
    }
    drained
}

/// Connections of [`serve_pages`].
const PAGE_READERS: usize = 64;
/// Longest wait of [`serve_pages`] for a request's head.
const PAGE_HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves pages without an engine, such as an exporter's, on `listener` until `shutdown` resolves.
pub async fn serve_pages(
    listener: TcpListener,
    pages: Router,
    clock: Clock,
    shutdown: impl Future<Output = ()> + Send,
) {
    let gate = Gate::new(PAGE_READERS, clock);
    let connections = Connections::accept_until(listener, pages, &gate, PAGE_HEAD_TIMEOUT, clock, shutdown).await;
    connections.finish(clock.after(Grace::default().close)).await;
}

/// Logs changes of health even without requests for it.
async fn watch_health(state: &AppState) -> Infallible {
    loop {
        state.health();
        sleep_until(state.clock.after(HEALTH_PERIOD)).await;
    }
}

/// The open connections of one listener.
pub(crate) struct Connections {
    tasks: JoinSet<()>,
    closing: watch::Sender<bool>,
}

impl Connections {
    /// Serves `router` on `listener` until `shutdown` resolves; accepts no connection after that,
    /// and open ones end with their current answer. `head_timeout` limits the wait for a request's
    /// head, from the connection's start or the end of the previous answer. Answers have no time
    /// limit.
    pub(crate) async fn accept_until(
        listener: TcpListener,
        router: Router,
        gate: &Arc<Gate>,
        head_timeout: Duration,
        clock: Clock,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Self {
        let (closing, closed) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        let mut refusals = Refusals::new(gate.max(), clock);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                accepted = listener.accept() => match accepted {
                    Ok((socket, _)) => match gate.admit().await {
                        Some(seat) => {
                            tasks.spawn(connection(socket, router.clone(), seat, head_timeout, clock, closed.clone()));
                        }
                        None => refusals.refuse(socket),
                    },
                    Err(error) => {
                        tracing::warn!(%error, "accepting a connection failed");
                        sleep_until(clock.after(ACCEPT_PAUSE)).await;
                    }
                },
                // Collect ended tasks now, because a long-lived server would accumulate them.
                Some(_) = tasks.join_next() => {}
                () = refusals.closed() => {}
            }
        }
        drop(listener);
        closing.send_replace(true);
        Self { tasks, closing }
    }

    /// Waits for the connections to end, and closes those that do not by the deadline.
    pub(crate) async fn finish(mut self, deadline: Deadline) {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if before(deadline, all).await.is_none() {
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
    clock: Clock,
    mut closed: watch::Receiver<bool>,
) {
    // A token is a small packet, which must not wait for an acknowledgement (Nagle).
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
    http.timer(ConnectionTimer::new(clock)).header_read_timeout(head_timeout).max_buf_size(READ_BUFFER_BYTES_MAX);
    let served = http.serve_connection(TokioIo::new(StallGuard::new(socket, STALL_TIMEOUT, clock)), service);
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
                // A request has just arrived; the connection closes after its answer.
                served.as_mut().graceful_shutdown();
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended badly");
    }
}

/// Waits until the flag is set or all its setters are gone.
async fn raised(flag: &mut watch::Receiver<bool>) {
    // The returned value holds a lock, so it must not live in a caller's `select!`.
    let _ = flag.wait_for(|up| *up).await;
}
