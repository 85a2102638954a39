//! Real worker processes, killed for real.
//!
//! The worker is this test binary, run with one ignored test that serves a fake engine. Every
//! worker kills itself with SIGKILL after a few events, so each death occurs at a known event.

use crate::support::client::client;
use crate::support::fake::FakeEngine;
use crate::support::requests::{answer_of, collect, submit, text_request, undisturbed};
use crate::support::script::MODEL;
use crate::support::{PATIENCE, TestServer, soon};
use cenote_base::{Clock, Engine};
use cenote_serve::{
    Disaggregated, DisaggregatedConfig, HttpConfig, Role, Supervisor, SupervisorConfig, SupervisorError, WorkerConfig,
    WorkerToken, parent_gone, run_worker,
};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
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
            engine.die_after(life);
            // A dying worker loses its last output if the socket does not have it yet.
            engine.pace(Duration::from_millis(2));
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
        run_worker(engine.shared(), token, WorkerConfig::default(), end).await.expect("the parent reads");
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

fn quick() -> SupervisorConfig {
    let (backoff_min, backoff_max) = (Duration::from_millis(1), Duration::from_millis(5));
    SupervisorConfig { backoff_min, backoff_max, ready_timeout: PATIENCE, ..SupervisorConfig::default() }
}

fn router(supervisor: &Supervisor) -> Disaggregated {
    let (backoff_min, backoff_max) = (Duration::from_millis(1), Duration::from_millis(5));
    let config = DisaggregatedConfig { backoff_min, backoff_max, ..DisaggregatedConfig::default() };
    Disaggregated::new(supervisor.fleet().clone(), config)
}

fn is_alive(process: u32) -> bool {
    test_kill_process(Pid::from_raw(process.cast_signed()).expect("a process id")).is_ok()
}

#[tokio::test]
async fn one_stream_survives_ten_kills_of_the_only_worker() {
    let supervisor = Supervisor::start(&[Role::Whole], |_, _| worker(Some(5)), &quick()).expect("random");
    let router = router(&supervisor);
    let request = crate::support::requests::request(1, cenote_base::engine::Prompt::Tokens(vec![7, 8, 9]), 52);
    assert_eq!(answer_of(&router, request.clone()).await, undisturbed(&request));
    assert!(router.stats().values["router_resumed_total"] >= 10.0);
    supervisor.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_survive_workers_that_die_all_the_time() {
    let roles = [Role::Prefill, Role::Decode, Role::Decode];
    let life = |role| if role == Role::Prefill { 9 } else { 61 };
    let supervisor = Supervisor::start(&roles, move |role, _| worker(Some(life(role))), &quick()).expect("random");
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
    supervisor.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_is_replaced_and_the_front_never_stops_answering() {
    let roles = [Role::Prefill, Role::Decode];
    let supervisor = Supervisor::start(&roles, |_, _| worker(None), &quick()).expect("random");
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
    supervisor.shutdown().await;
    assert!(last.iter().all(|process| !is_alive(*process)), "workers outlive their supervisor");
    assert_eq!((server.get("/health").await.status, server.get("/ready").await.status), (503, 503));
}

#[tokio::test]
async fn a_stopped_worker_is_found_out_and_replaced() {
    let mut config = quick();
    config.health_interval = Duration::from_millis(20);
    config.health_failures_max = 2;
    config.remote.call_timeout = Duration::from_millis(200);
    let supervisor = Supervisor::start(&[Role::Whole], |_, _| worker(None), &config).expect("random");
    supervisor.all_ready(Clock::system().after(PATIENCE)).await.expect("workers start");
    let process = supervisor.fleet().describe().process_ids[0];
    let mut changes = supervisor.fleet().changes();
    kill_process(Pid::from_raw(process.cast_signed()).expect("a process id"), Signal::STOP).expect("it is ours");
    let is_replaced = || supervisor.fleet().describe().process_ids.first().is_some_and(|id| *id != process);
    let replaced = async {
        while !is_replaced() {
            changes.changed().await.expect("the fleet is there");
        }
    };
    soon("the next worker", replaced).await;
    assert!(!is_alive(process));
    supervisor.shutdown().await;
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
    let supervisor = Supervisor::start(&[Role::Whole], command, &quick()).expect("random");
    let error = soon("the verdict", supervisor.all_ready(Clock::system().after(PATIENCE))).await;
    let message = error.expect_err("it cannot start").to_string();
    assert!(message.contains("whole-0") && message.contains('3'), "{message}");
    soon("more tries", tried.wait_for(|tries| *tries > 4)).await.expect("the supervisor lives");
    supervisor.shutdown().await;

    let missing = |_, _| Command::new("/nonexistent/cenote");
    let supervisor = Supervisor::start(&[Role::Decode], missing, &quick()).expect("random");
    let error = soon("the verdict", supervisor.all_ready(Clock::system().after(PATIENCE))).await;
    assert!(matches!(error, Err(SupervisorError::Hopeless(_))), "{error:?}");
    supervisor.shutdown().await;
}

#[tokio::test]
async fn a_worker_that_never_says_ready_has_a_deadline() {
    let config = SupervisorConfig { ready_timeout: Duration::from_millis(30), ..quick() };
    let mute = |_, _| {
        let mut command = Command::new("sh");
        command.args(["-c", "read forever"]);
        command
    };
    let supervisor = Supervisor::start(&[Role::Whole], mute, &config).expect("random");
    let error = soon("the verdict", supervisor.all_ready(Clock::system().after(PATIENCE))).await;
    assert!(error.expect_err("it says nothing").to_string().contains("not ready within"));
    supervisor.shutdown().await;
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
    let address = crate::support::start_worker(engine.shared(), &token, WorkerConfig::default()).await;
    let remote = cenote_serve::RemoteEngine::connect(address, &token, cenote_serve::RemoteConfig::default()).await;
    let fleet = cenote_serve::Fleet::new(&[Role::Whole]);
    fleet.publish(0, Arc::new(remote.expect("it answers")));
    let router = Disaggregated::new(fleet, DisaggregatedConfig::default());
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
    let supervisor = Supervisor::start(&[Role::Whole], |_, _| worker(None), &quick()).expect("random");
    supervisor.all_ready(Clock::system().after(PATIENCE)).await.expect("workers start");
    let router = router(&supervisor);
    supervisor.shutdown().await;
    let late = cenote_base::Request { timeout_ms: 50, ..text_request(1, 5) };
    let events = collect(&mut submit(&router, late).expect("it is taken")).await;
    assert!(crate::support::requests::failure(&events).message.contains("time is up"));
}
