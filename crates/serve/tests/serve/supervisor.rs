//! Real worker processes, killed for real.
//!
//! The worker is this test binary, run with one ignored test that serves a fake engine. Every
//! worker kills itself with SIGKILL after a few events, so each death occurs at a known event.

use crate::support::client::client;
use crate::support::fake::FakeEngine;
use crate::support::requests::{answer_of, collect, submit, text_request, undisturbed};
use crate::support::script::MODEL;
use crate::support::time::TestTime;
use crate::support::{TestServer, connect, patient, soon, start_worker};
use cenote_base::testing::PATIENCE;
use cenote_base::{Clock, Engine, Health};
use cenote_serve::{
    Disaggregated, DisaggregatedConfig, HttpConfig, Role, Supervisor, SupervisorConfig, SupervisorError, WorkerConfig,
    WorkerToken, parent_gone, run_worker,
};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, test_kill_process, waitid};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;

/// Events until the worker dies; if unset, it lives.
const LIFE: &str = "CENOTE_TEST_WORKER_LIFE";

/// The worker process. Does nothing if it was not started as one.
#[test]
#[ignore = "a process of the other tests, not a test"]
fn worker_process() {
    let Ok(token) = WorkerToken::from_environment() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let engine = FakeEngine::new();
        if let Some(life) = std::env::var(LIFE).ok().and_then(|life| life.parse().ok()) {
            // With one thread for tasks, the sockets have all output when the worker dies.
            engine.die_after(life);
        }
        let mut death = engine.death();
        tokio::spawn(async move {
            if death.wait_for(|dead| *dead).await.is_ok() {
                let _ = kill_process(rustix::process::getpid(), Signal::KILL);
            }
        });
        let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).expect("signals");
        let end = async move {
            tokio::select! {
                _ = term.recv() => {}
                () = parent_gone() => {}
            }
        };
        let config = WorkerConfig { head_timeout: PATIENCE, ..WorkerConfig::default() };
        run_worker(engine.shared(), token, config, Clock::system(), end).await.expect("the parent reads");
    });
}

fn worker(life: Option<u32>) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--quiet", "--nocapture", "--ignored", "--exact", "supervisor::worker_process"]);
    if let Some(life) = life {
        command.env(LIFE, life.to_string());
    }
    command
}

/// Dead workers are replaced at once.
fn quick() -> SupervisorConfig {
    let none = Duration::ZERO;
    SupervisorConfig { backoff_min: none, backoff_max: none, remote: patient(), ..SupervisorConfig::default() }
}

/// A supervisor without timeouts: its clock stands.
fn supervise(
    roles: &[Role],
    command: impl Fn(Role, usize) -> Command + Send + Sync + 'static,
) -> Result<Supervisor, SupervisorError> {
    Supervisor::start(roles, command, &quick(), Clock::stopped())
}

/// A router that tries a worker again only after it has been replaced. Its tries have no limit: every
/// life of a worker advances some request, but the order of arrival may starve another one.
fn router(supervisor: &Supervisor) -> Disaggregated {
    let max = u32::MAX;
    let config =
        DisaggregatedConfig { failures_in_a_row_max: max, failures_max: max, ..DisaggregatedConfig::default() };
    Disaggregated::new(supervisor.fleet().clone(), config, Clock::stopped())
}

async fn end(supervisor: Supervisor) {
    soon("the workers' end", supervisor.shutdown()).await;
}

fn is_alive(process: u32) -> bool {
    test_kill_process(Pid::from_raw(process.cast_signed()).expect("a process id")).is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stream_survives_ten_kills_of_the_only_worker() {
    let supervisor = supervise(&[Role::Whole], |_, _| worker(Some(5))).expect("random");
    let router = router(&supervisor);
    let request = crate::support::requests::request(1, cenote_base::engine::Prompt::Tokens(vec![7, 8, 9]), 52);
    assert_eq!(answer_of(&router, request.clone()).await, undisturbed(&request));
    assert!(router.stats().values["router_resumed_total"] >= 10.0);
    end(supervisor).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_survive_workers_that_die_all_the_time() {
    let roles = [Role::Prefill, Role::Decode, Role::Decode];
    let life = |role| if role == Role::Prefill { 9 } else { 61 };
    let supervisor = supervise(&roles, move |role, _| worker(Some(life(role)))).expect("random");
    let router = Arc::new(router(&supervisor));
    let streams = (0..12).map(|id| {
        let router = router.clone();
        async move {
            let mut request = text_request(id, 24);
            request.sampling.stop = vec!["drop che".into()];
            assert_eq!(answer_of(&*router, request.clone()).await, undisturbed(&request), "request {id}");
        }
    });
    futures::future::join_all(streams).await;
    assert!(router.stats().values["router_resumed_total"] > 0.0);
    end(supervisor).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_is_replaced_and_the_front_never_stops_answering() {
    let roles = [Role::Prefill, Role::Decode];
    let supervisor = supervise(&roles, |_, _| worker(None)).expect("random");
    supervisor.all_ready(Clock::system().after(PATIENCE)).await.expect("workers start");
    let server = TestServer::start(Arc::new(router(&supervisor)), HttpConfig::default()).await;
    let processes = async || {
        let health = server.get("/health").await.json();
        let ids = health["process_ids"].as_array().expect("process ids").clone();
        ids.iter().filter_map(Value::as_u64).map(|id| id as u32).collect::<Vec<_>>()
    };
    for round in 0..10 {
        let before = processes().await;
        let [_, decode] = before[..] else { panic!("two workers are alive, not {before:?}") };
        let mut changes = supervisor.fleet().changes();
        kill_process(Pid::from_raw(decode.cast_signed()).expect("a process id"), Signal::KILL).expect("it is ours");
        let body = json!({"model": MODEL, "prompt": format!("round {round}"), "max_tokens": 9, "stream": true});
        let reply = server.post("/v1/completions", &body).await;
        assert!(reply.status == 200 && reply.is_done(), "{}", reply.text);
        // Gone and back again.
        let is_replaced = || {
            let alive = supervisor.fleet().describe().process_ids;
            alive.len() == 2 && !alive.contains(&decode)
        };
        let replaced = async {
            while !is_replaced() {
                changes.changed().await.expect("the fleet is there");
            }
        };
        soon("the next worker", replaced).await;
        assert!(!is_alive(decode));
    }
    assert_eq!(supervisor.fleet().stats().values["worker_restarts_total"], 10.0);
    let last = processes().await;
    end(supervisor).await;
    assert!(last.iter().all(|process| !is_alive(*process)), "workers outlive their supervisor");
    assert_eq!((server.get("/health").await.status, server.get("/ready").await.status), (503, 503));
}

#[tokio::test]
async fn a_stopped_worker_is_found_out_and_replaced() {
    let time = TestTime::start();
    let mut config = quick();
    config.health_failures_max = 2;
    config.health_interval = Duration::from_secs(5);
    let (interval, call_timeout) = (config.health_interval, config.remote.call_timeout);
    let supervisor = Supervisor::start(&[Role::Whole], |_, _| worker(None), &config, time.clock()).expect("random");
    supervisor.all_ready(Clock::system().after(PATIENCE)).await.expect("workers start");
    let process = supervisor.fleet().describe().process_ids[0];
    let pid = Pid::from_raw(process.cast_signed()).expect("a process id");
    let stop = async || {
        kill_process(pid, Signal::STOP).expect("it is ours");
        // A thread that the signal has not reached yet would still answer.
        let stopped = move || waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED);
        soon("the stop", tokio::task::spawn_blocking(stopped)).await.expect("no panic").expect("it is a child");
    };
    let a_check_fails = async || {
        time.awaited(interval).await;
        time.advance(interval);
        time.awaited(call_timeout).await;
        time.advance(call_timeout);
    };
    stop().await;
    a_check_fails().await;
    time.awaited(interval).await;
    // Earlier, health was good until the worker was replaced.
    let reasons = supervisor.fleet().health().reasons().join("; ");
    assert!(reasons.starts_with("whole-0: it does not answer"), "{reasons}");
    // It answers again, so the count begins at zero.
    kill_process(pid, Signal::CONT).expect("it is ours");
    time.advance(interval);
    time.awaited(interval).await;
    assert_eq!(supervisor.fleet().health(), Health::Ok);
    stop().await;
    a_check_fails().await;
    time.awaited(interval).await;
    assert_eq!(supervisor.fleet().describe().process_ids, [process], "one failed check is no reason");
    let mut changes = supervisor.fleet().changes();
    a_check_fails().await;
    let is_replaced = || supervisor.fleet().describe().process_ids.first().is_some_and(|id| *id != process);
    let replaced = async {
        while !is_replaced() {
            changes.changed().await.expect("the fleet is there");
        }
    };
    soon("the next worker", replaced).await;
    assert!(!is_alive(process));
    end(supervisor).await;
}

#[tokio::test]
async fn workers_that_cannot_start_are_reported_and_retried() {
    let (tries, mut tried) = tokio::sync::watch::channel(0);
    let command = move |_, _| {
        tries.send_modify(|tries| *tries += 1);
        let mut command = Command::new("sh");
        command.args(["-c", "echo no model here; exit 3"]);
        command
    };
    let (time, config) = (TestTime::start(), SupervisorConfig::default());
    let pauses = async |doublings: std::ops::Range<u32>| {
        for doubling in doublings {
            let pause = config.backoff_min * (1 << doubling);
            time.awaited(pause).await;
            time.advance(pause);
        }
    };
    let supervisor = Supervisor::start(&[Role::Whole], command, &config, time.clock()).expect("random");
    pauses(0..2).await;
    let error = soon("the verdict", supervisor.all_ready(Clock::system().after(PATIENCE))).await;
    let message = error.expect_err("it cannot start").to_string();
    assert!(message.contains("whole-0") && message.contains('3'), "{message}");
    pauses(2..4).await;
    soon("more tries", tried.wait_for(|tries| *tries > 4)).await.expect("the supervisor lives");
    end(supervisor).await;

    let missing = |_, _| Command::new("/nonexistent/cenote");
    let supervisor = Supervisor::start(&[Role::Decode], missing, &config, time.clock()).expect("random");
    pauses(0..2).await;
    let error = soon("the verdict", supervisor.all_ready(Clock::system().after(PATIENCE))).await;
    assert!(matches!(error, Err(SupervisorError::Hopeless(_))), "{error:?}");
    end(supervisor).await;
}

#[tokio::test]
async fn a_worker_that_never_says_ready_has_a_deadline() {
    let mute = |_, _| {
        let mut command = Command::new("sh");
        command.args(["-c", "read forever"]);
        command
    };
    let (time, config) = (TestTime::start(), quick());
    let supervisor = Supervisor::start(&[Role::Whole], mute, &config, time.clock()).expect("random");
    let verdict = supervisor.all_ready(Clock::system().after(PATIENCE));
    let error = time.pass_until("the verdict", config.ready_timeout, verdict).await;
    assert!(error.expect_err("it says nothing").to_string().contains("not ready within"));
    end(supervisor).await;
}

#[tokio::test]
async fn a_worker_ends_with_its_parent() {
    let token = WorkerToken::draw().expect("random");
    let mut command = worker(None);
    command.env(WorkerToken::ENVIRONMENT, token.expose());
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().expect("this binary starts");
    // When a parent dies, its end of the pipe closes; nothing else happens.
    drop(child.stdin.take());
    soon("the worker's end", child.wait()).await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_frees_its_blocks_in_the_worker() {
    let engine = FakeEngine::gated();
    let token = WorkerToken::draw().expect("random");
    let address = start_worker(engine.shared(), &token).await;
    let fleet = cenote_serve::Fleet::new(&[Role::Whole]);
    fleet.publish(0, Arc::new(connect(address, &token).await.expect("it answers")));
    let router = Disaggregated::new(fleet, DisaggregatedConfig::default(), Clock::stopped());
    let server = TestServer::start(Arc::new(router), HttpConfig::default()).await;
    engine.let_out(4);
    let body = json!({"model": MODEL, "prompt": "bye", "max_tokens": 50, "ignore_eos": true, "stream": true});
    let mut answer = client().post(server.url("/v1/completions")).json(&body).send().await.expect("an answer");
    soon("a chunk", answer.chunk()).await.expect("a chunk");
    drop(answer);
    soon("the worker's abort", engine.aborted().wait_for(|ids| !ids.is_empty())).await.expect("it lives");
}

#[tokio::test]
async fn a_request_of_no_worker_ends_with_the_supervisor() {
    let supervisor = supervise(&[Role::Whole], |_, _| worker(None)).expect("random");
    supervisor.all_ready(Clock::system().after(PATIENCE)).await.expect("workers start");
    let time = TestTime::start();
    let router = Disaggregated::new(supervisor.fleet().clone(), DisaggregatedConfig::default(), time.clock());
    end(supervisor).await;
    let (pause, timeout) = (DisaggregatedConfig::default().backoff_min, Duration::from_secs(5));
    let late = cenote_base::Request { timeout_ms: 5000, ..text_request(1, 5) };
    let mut events = submit(&router, late).expect("it is taken");
    for wait in [pause, timeout - pause] {
        time.awaited(wait).await;
        time.advance(wait);
    }
    let events = collect(&mut events).await;
    assert!(crate::support::requests::failure(&events).message.contains("time is up"));
}
