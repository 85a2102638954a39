//! One worker process, from its start to its end.

use super::{SupervisorConfig, SupervisorError};
use crate::remote::RemoteEngine;
use crate::time::before;
use crate::worker::{Ready, WorkerToken};
use cenote_base::Clock;
use rustix::process::{Pid, Signal};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Time for the kernel to deliver a SIGKILL and for this process to see the exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A worker that is ready. Dropping it kills the process.
pub(super) struct Process {
    name: String,
    clock: Clock,
    child: Child,
    engine: Arc<RemoteEngine>,
    /// Never written to. Its end tells the worker that its parent is gone.
    _stdin: Option<ChildStdin>,
}

impl Process {
    /// Starts the process and waits until it is ready.
    pub(super) async fn start(
        name: String,
        mut command: Command,
        token: &WorkerToken,
        config: &SupervisorConfig,
        clock: Clock,
    ) -> Result<Self, SupervisorError> {
        command.env(WorkerToken::ENVIRONMENT, token.expose());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).process_group(0);
        let spawned = command.spawn();
        let mut child = spawned.map_err(|source| SupervisorError::Spawn { worker: name.clone(), source })?;
        let stdin = child.stdin.take();
        let Some(stdout) = child.stdout.take() else {
            return Err(SupervisorError::Ended { worker: name, status: "without a stdout".to_owned() });
        };
        let mut lines = BufReader::new(stdout).lines();
        let ready = before(clock.after(config.ready_timeout), ready(&name, &mut lines)).await;
        let ready = match ready {
            Some(Some(ready)) => ready,
            Some(None) => {
                // It closed its stdout, so it is ending; its exit status says more than "ended".
                let status = before(clock.after(KILL_TIMEOUT), child.wait()).await;
                let status = status.map_or_else(|| "stdout closed".to_owned(), |status| tell(&status));
                return Err(SupervisorError::Ended { worker: name, status });
            }
            None => {
                let seconds = config.ready_timeout.as_secs_f64();
                return Err(SupervisorError::NotReady { worker: name, seconds });
            }
        };
        let forwarded = name.clone();
        // Read the pipe to its end, so that the worker never blocks on a full one.
        tokio::spawn(async move { while forward(&forwarded, &mut lines).await.is_some() {} });
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ready.port));
        let engine = RemoteEngine::connect(address, token, config.remote.clone(), clock).await;
        let engine = engine.map_err(|source| SupervisorError::Remote { worker: name.clone(), source })?;
        Ok(Self { name, clock, child, engine: Arc::new(engine), _stdin: stdin })
    }

    pub(super) fn engine(&self) -> &Arc<RemoteEngine> {
        &self.engine
    }

    /// The process id while it runs.
    pub(super) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for the process to end.
    pub(super) async fn ended(&mut self) -> String {
        tell(&self.child.wait().await)
    }

    /// Ends the process: SIGTERM and a grace period, unless that is zero; then SIGKILL.
    pub(super) async fn end(mut self, grace: Duration) {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        // Until it has been waited for, no other process can get its id.
        let Some(pid) = pid else { return };
        if !grace.is_zero() {
            if let Err(error) = rustix::process::kill_process(pid, Signal::TERM) {
                tracing::debug!(worker = self.name, %error, "SIGTERM was not sent");
            }
            if before(self.clock.after(grace), self.child.wait()).await.is_some() {
                return;
            }
            tracing::warn!(worker = self.name, "still running after its grace; SIGKILL");
        }
        if before(self.clock.after(KILL_TIMEOUT), self.child.kill()).await.is_none() {
            tracing::error!(worker = self.name, "still running after SIGKILL");
        }
    }
}

/// The ready line; `None` when stdout ends without one.
async fn ready(name: &str, lines: &mut Lines<BufReader<ChildStdout>>) -> Option<Ready> {
    loop {
        let line = forward(name, lines).await?;
        if let Some(ready) = Ready::from_line(&line) {
            return Some(ready);
        }
    }
}

/// The next protocol line of a worker's stdout; other lines go to the log.
async fn forward(name: &str, lines: &mut Lines<BufReader<ChildStdout>>) -> Option<String> {
    let line = lines.next_line().await.ok().flatten()?;
    if Ready::from_line(&line).is_none() {
        tracing::info!(worker = name, "{line}");
    }
    Some(line)
}

fn tell(status: &std::io::Result<std::process::ExitStatus>) -> String {
    match status {
        Ok(status) => status.to_string(),
        Err(error) => format!("its status is unknown: {error}"),
    }
}
