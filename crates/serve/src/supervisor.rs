//! Keeps worker processes alive: starts them, waits until they are ready, restarts dead ones, and
//! ends all of them with itself.
//!
//! A worker gets the shared secret through its environment, and a stdin that closes when its parent
//! is gone. It has its own process group, so that a Ctrl-C reaches only the front, which drains
//! before it ends its workers. Each slot's task publishes the worker's engine to the [`Fleet`] and
//! retracts it when the process ends or its socket stops answering.

mod process;

use crate::disagg::{Fleet, Role};
use crate::remote::{RemoteConfig, RemoteError};
use crate::time::{before, sleep_until};
use crate::worker::WorkerToken;
use cenote_base::engine::Tenant;
use cenote_base::{Clock, Deadline};
use process::Process;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Time limits and intervals.
#[derive(Clone, Debug)]
pub struct SupervisorConfig {
    /// From the start of a process to its ready line, which includes loading the model.
    pub ready_timeout: Duration,
    /// Interval of checks whether a worker's socket answers.
    pub health_interval: Duration,
    /// Failed checks in a row after which the worker is killed and restarted.
    pub health_failures_max: u32,
    /// Pause before the first restart; doubles up to `backoff_max`.
    pub backoff_min: Duration,
    /// Longest pause. The number of restarts is unlimited, only their rate is limited.
    pub backoff_max: Duration,
    /// A worker that lived this long resets its successor's pauses.
    pub healthy_after: Duration,
    /// Failures of a worker that was never ready, after which [`Supervisor::all_ready`] fails.
    pub first_failures_max: u32,
    /// From SIGTERM to SIGKILL at shutdown.
    pub stop_grace: Duration,
    /// Timeouts of calls to workers.
    pub remote: RemoteConfig,
}

impl Default for SupervisorConfig {
    fn default() -> Self {
        Self {
            ready_timeout: Duration::from_secs(120),
            health_interval: Duration::from_secs(2),
            health_failures_max: 5,
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(2),
            healthy_after: Duration::from_secs(10),
            first_failures_max: 3,
            stop_grace: Duration::from_secs(10),
            remote: RemoteConfig::default(),
        }
    }
}

/// A worker is not running.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// No secret could be drawn.
    #[error("drawing the worker token: {0}")]
    Token(#[source] io::Error),
    /// The process could not be started.
    #[error("worker {worker}: starting the process: {source}")]
    Spawn {
        /// Name of the worker.
        worker: String,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The process ended before it was ready.
    #[error("worker {worker}: ended before it was ready ({status})")]
    Ended {
        /// Name of the worker.
        worker: String,
        /// Its exit status.
        status: String,
    },
    /// The process did not report that it is ready.
    #[error("worker {worker}: not ready within {seconds} s")]
    NotReady {
        /// Name of the worker.
        worker: String,
        /// The time limit.
        seconds: f64,
    },
    /// The process is ready but does not answer as a worker.
    #[error("worker {worker}: {source}")]
    Remote {
        /// Name of the worker.
        worker: String,
        /// The reason.
        #[source]
        source: RemoteError,
    },
    /// Some workers were not ready by the deadline.
    #[error("{missing} of {all} workers were not ready in time")]
    Missing {
        /// Workers not ready.
        missing: usize,
        /// Workers in all.
        all: usize,
    },
    /// A worker failed several times before it was ever ready.
    #[error("{0}")]
    Hopeless(String),
}

/// The workers of one front.
pub struct Supervisor {
    fleet: Arc<Fleet>,
    token: WorkerToken,
    starts: watch::Receiver<Starts>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

/// Which workers became ready, and which cannot.
#[derive(Clone, Default)]
struct Starts {
    ready: Vec<usize>,
    failures: HashMap<usize, u32>,
    hopeless: Option<String>,
}

type MakeCommand = dyn Fn(Role, usize) -> Command + Send + Sync;

/// State of the task of one slot.
struct Keeper {
    slot: usize,
    role: Role,
    /// Its number within the role.
    index: usize,
    command: Arc<MakeCommand>,
    token: WorkerToken,
    config: SupervisorConfig,
    clock: Clock,
    fleet: Arc<Fleet>,
    starts: Arc<watch::Sender<Starts>>,
    stop: watch::Receiver<bool>,
}

impl Supervisor {
    /// Starts one worker per role; `command` makes the command of a role and an index within it.
    /// Returns at once: see [`Self::all_ready`]. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// No secret could be drawn.
    pub fn start(
        roles: &[Role],
        command: impl Fn(Role, usize) -> Command + Send + Sync + 'static,
        config: &SupervisorConfig,
        clock: Clock,
    ) -> Result<Self, SupervisorError> {
        let token = WorkerToken::draw().map_err(SupervisorError::Token)?;
        let fleet = Fleet::new(roles);
        let command: Arc<MakeCommand> = Arc::new(command);
        let (stop, stopped) = watch::channel(false);
        let (starts, started) = watch::channel(Starts::default());
        let (starts, mut tasks) = (Arc::new(starts), JoinSet::new());
        for (slot, role) in roles.iter().copied().enumerate() {
            let keeper = Keeper {
                slot,
                role,
                index: roles[..slot].iter().filter(|before| **before == role).count(),
                command: command.clone(),
                token: token.clone(),
                config: config.clone(),
                clock,
                fleet: fleet.clone(),
                starts: starts.clone(),
                stop: stopped.clone(),
            };
            tasks.spawn(keeper.keep());
        }
        Ok(Self { fleet, token, starts: started, stop, tasks })
    }

    /// The workers alive.
    #[must_use]
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// The secret of this front's workers.
    #[must_use]
    pub fn token(&self) -> &WorkerToken {
        &self.token
    }

    /// Waits until every worker has been ready once.
    ///
    /// # Errors
    /// The deadline passed, or a worker fails repeatedly.
    pub async fn all_ready(&self, deadline: Deadline) -> Result<(), SupervisorError> {
        let all = self.fleet.roles().len();
        let mut starts = self.starts.clone();
        let decided = starts.wait_for(|starts| starts.hopeless.is_some() || starts.ready.len() == all);
        let missing = match before(deadline, decided).await {
            Some(Ok(starts)) => match &starts.hopeless {
                None => return Ok(()),
                Some(why) => return Err(SupervisorError::Hopeless(why.clone())),
            },
            Some(Err(_)) | None => all - self.starts.borrow().ready.len(),
        };
        Err(SupervisorError::Missing { missing, all })
    }

    /// Ends all workers: SIGTERM, a grace period, SIGKILL. Dropping a supervisor kills them at
    /// once.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Keeper {
    fn name(&self) -> String {
        self.fleet.name(self.slot)
    }

    async fn keep(mut self) {
        let mut backoff = self.config.backoff_min;
        while !*self.stop.borrow() {
            let began_ns = self.clock.now_ns();
            match self.start().await {
                Ok(Some(mut process)) => {
                    let why = self.attend(&mut process).await;
                    self.fleet.retract(self.slot, &why);
                    let stopping = *self.stop.borrow();
                    if !stopping {
                        tracing::warn!(worker = self.name(), why, "a worker is gone");
                    }
                    process.end(if stopping { self.config.stop_grace } else { Duration::ZERO }).await;
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "a worker did not start");
                    self.fleet.retract(self.slot, &error.to_string());
                    self.note_failure(&error);
                }
            }
            if self.clock.since(began_ns) >= self.config.healthy_after {
                backoff = self.config.backoff_min;
            }
            // Ends early on stop. A closed channel means that the supervisor is gone, so the task
            // ends too.
            let pause = self.clock.after(backoff);
            if let Some(Err(_)) = before(pause, self.stop.wait_for(|stop| *stop)).await {
                return;
            }
            backoff = (backoff * 2).min(self.config.backoff_max);
        }
    }

    /// A worker that is ready and published; `None` if stopped meanwhile.
    async fn start(&mut self) -> Result<Option<Process>, SupervisorError> {
        let command = (self.command)(self.role, self.index);
        let mut stop = self.stop.clone();
        let starting = Process::start(self.name(), command, &self.token, &self.config, self.clock);
        let process = tokio::select! {
            started = starting => started?,
            _ = stop.wait_for(|stop| *stop) => return Ok(None),
        };
        tracing::info!(worker = self.name(), pid = process.id(), "a worker is ready");
        let mut tenants = self.fleet.tenants();
        self.give(&process, &tenants).await;
        self.fleet.publish(self.slot, process.engine().clone());
        // Tenants that were replaced meanwhile went to published workers only.
        while !Arc::ptr_eq(&tenants, &self.fleet.tenants()) {
            tenants = self.fleet.tenants();
            self.give(&process, &tenants).await;
        }
        self.starts.send_modify(|starts| {
            if !starts.ready.contains(&self.slot) {
                starts.ready.push(self.slot);
            }
        });
        Ok(Some(process))
    }

    /// Gives a worker its tenants. What it cannot have costs hits, no answers.
    async fn give(&self, process: &Process, tenants: &[Tenant]) {
        if tenants.is_empty() {
            return;
        }
        for trouble in process.engine().send_tenants(tenants).await {
            tracing::warn!(worker = self.name(), trouble, "a worker does not have a tenant as asked");
        }
    }

    /// Returns when the worker has failed, with the reason.
    async fn attend(&mut self, process: &mut Process) -> String {
        let mut silent = 0;
        loop {
            tokio::select! {
                status = process.ended() => return status,
                _ = self.stop.wait_for(|stop| *stop) => return "stopped".to_owned(),
                () = sleep_until(self.clock.after(self.config.health_interval)) => {}
            }
            silent = if process.engine().is_healthy().await { 0 } else { silent + 1 };
            self.fleet.note_silence(self.slot, silent > 0);
            if silent >= self.config.health_failures_max {
                return format!("its socket did not answer {silent} times in a row");
            }
        }
    }

    fn note_failure(&self, error: &SupervisorError) {
        self.starts.send_modify(|starts| {
            let failures = starts.failures.entry(self.slot).or_default();
            *failures += 1;
            if *failures >= self.config.first_failures_max && !starts.ready.contains(&self.slot) {
                starts.hopeless.get_or_insert_with(|| error.to_string());
            }
        });
    }
}
