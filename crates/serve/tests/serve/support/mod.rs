//! Common parts of this crate's tests: a deterministic engine, a server around it, and its client.

pub mod client;
pub mod fake;
pub mod requests;
pub mod script;
pub mod time;

use cenote_base::testing::PATIENCE;
use cenote_base::{Clock, Engine};
use cenote_serve::{
    AppState, Grace, HttpConfig, RemoteConfig, RemoteEngine, RemoteError, WorkerConfig, WorkerToken, worker_router,
};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Awaits with the tests' deadline.
pub async fn soon<T>(what: &str, wait: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, wait).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long for {what}"),
    }
}

/// A running front.
pub struct TestServer {
    pub address: SocketAddr,
    pub state: Arc<AppState>,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<bool>,
}

impl TestServer {
    /// A front without timeouts: its clock stands.
    pub async fn start(engine: Arc<dyn Engine>, config: HttpConfig) -> Self {
        Self::start_at(Clock::stopped(), engine, config).await
    }

    pub async fn start_at(clock: Clock, engine: Arc<dyn Engine>, config: HttpConfig) -> Self {
        Self::start_with(clock, engine, config, Grace::default()).await
    }

    pub async fn start_with(clock: Clock, engine: Arc<dyn Engine>, config: HttpConfig, grace: Grace) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
        let address = listener.local_addr().expect("it is bound");
        let state = AppState::new(engine, config, clock);
        let (stop, stopped) = oneshot::channel();
        let stopped = async move {
            let _ = stopped.await;
        };
        let served = tokio::spawn(cenote_serve::serve(listener, state.clone(), stopped, grace));
        Self { address, state, stop: Some(stop), served }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Asks the server to end.
    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits for its end; returns whether it drained.
    pub async fn ended(self) -> bool {
        soon("the server's end", self.served).await.expect("the server does not panic")
    }
}

/// Serves `engine` as a worker in this process, without timeouts.
pub async fn start_worker(engine: Arc<dyn Engine>, token: &WorkerToken) -> SocketAddr {
    start_worker_at(Clock::stopped(), engine, token, WorkerConfig::default()).await
}

pub async fn start_worker_at(
    clock: Clock,
    engine: Arc<dyn Engine>,
    token: &WorkerToken,
    config: WorkerConfig,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
    let address = listener.local_addr().expect("it is bound");
    let router = worker_router(engine, token.clone(), config, clock);
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// The only timeout by the machine's clock is long.
pub fn patient() -> RemoteConfig {
    RemoteConfig { connect_timeout: PATIENCE, ..RemoteConfig::default() }
}

/// Connects to a worker, without timeouts.
pub async fn connect(address: SocketAddr, token: &WorkerToken) -> Result<RemoteEngine, RemoteError> {
    soon("a connection", RemoteEngine::connect(address, token, patient(), Clock::stopped())).await
}
