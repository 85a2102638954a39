//! An engine behind the worker protocol is the same engine.

use crate::support::fake::FakeEngine;
use crate::support::requests::{answer_of, collect, failure, request, submit, text_request, undisturbed};
use crate::support::time::TestTime;
use crate::support::{connect, patient, soon, start_worker, start_worker_at};
use cenote_base::engine::{ErrorKind, Event, Phase, Prompt};
use cenote_base::testing::PATIENCE;
use cenote_base::{Clock, Engine, RequestId};
use cenote_serve::{RemoteConfig, RemoteEngine, WorkerConfig, WorkerToken};
use std::sync::Arc;
use std::time::Duration;

async fn connected(engine: &FakeEngine) -> RemoteEngine {
    let token = WorkerToken::draw().expect("the system has a generator");
    let address = start_worker(engine.shared(), &token).await;
    connect(address, &token).await.expect("the worker answers")
}

#[tokio::test]
async fn events_descriptions_and_statistics_come_through_unchanged() {
    let engine = FakeEngine::new();
    let remote = connected(&engine).await;
    assert_eq!(remote.describe(), engine.describe());
    assert!(remote.is_healthy().await);
    let long = request(1, Prompt::Tokens((1..200).collect()), 50);
    assert_eq!(answer_of(&remote, long.clone()).await, undisturbed(&long));
    let prefill = cenote_base::Request { phase: Phase::Prefill, ..text_request(2, 9) };
    assert_eq!(answer_of(&remote, prefill.clone()).await, undisturbed(&prefill));
    let invalid = request(3, Prompt::Tokens((0..300).collect()), 5);
    assert_eq!(answer_of(&remote, invalid.clone()).await, undisturbed(&invalid));
    let remote = Arc::new(remote);
    let asked = remote.clone();
    let stats = soon("statistics", tokio::task::spawn_blocking(move || asked.stats())).await.expect("no panic");
    assert_eq!(stats, engine.stats());
}

#[tokio::test]
async fn a_refusal_is_passed_on() {
    let remote = connected(&FakeEngine::new()).await;
    let events = answer_of(&remote, request(1, Prompt::Text("!overloaded".into()), 5)).await;
    let error = failure(&events);
    assert_eq!((error.kind, error.retry_after_ms), (ErrorKind::Overloaded, Some(1500)));
}

#[tokio::test]
async fn an_abort_reaches_the_worker_and_ends_the_request() {
    let engine = FakeEngine::gated();
    let remote = connected(&engine).await;
    engine.let_out(2);
    let mut events = submit(&remote, text_request(5, 20)).expect("it is taken");
    soon("a token", events.recv()).await.expect("a token");
    remote.abort(RequestId(5));
    remote.abort(RequestId(99));
    assert_eq!(failure(&collect(&mut events).await).kind, ErrorKind::Aborted);
    soon("the worker's abort", engine.aborted().wait_for(|ids| ids.contains(&RequestId(5)))).await.expect("it lives");
}

#[tokio::test]
async fn a_listener_that_leaves_ends_the_request() {
    let engine = FakeEngine::gated();
    let remote = connected(&engine).await;
    engine.let_out(2);
    let mut events = submit(&remote, text_request(5, 20)).expect("it is taken");
    soon("a token", events.recv()).await.expect("a token");
    drop(events);
    engine.let_out(2);
    soon("the worker's abort", engine.aborted().wait_for(|ids| ids.contains(&RequestId(5)))).await.expect("it lives");
}

#[tokio::test]
async fn a_dead_worker_is_unavailable_after_its_last_event() {
    let engine = FakeEngine::new();
    let remote = connected(&engine).await;
    engine.die_after(3);
    let events = answer_of(&remote, text_request(1, 20)).await;
    assert_eq!(events[..3], undisturbed(&text_request(1, 20))[..3]);
    assert_eq!((events.len(), failure(&events).kind), (4, ErrorKind::Unavailable));
    assert_eq!(failure(&answer_of(&remote, text_request(2, 20)).await).kind, ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_worker_that_cannot_be_reached_is_unavailable() {
    let engine = FakeEngine::new();
    let token = WorkerToken::draw().expect("the system has a generator");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let router = cenote_serve::worker_router(engine.shared(), token.clone(), WorkerConfig::default(), Clock::stopped());
    let served = tokio::spawn(async move { axum::serve(listener, router).await });
    let remote = connect(address, &token).await.expect("the worker answers");
    // The listener closes, and a second engine has no pooled connection either.
    served.abort();
    let _ = served.await;
    assert!(connect(address, &token).await.is_err());
    drop(engine);
    drop(remote);
}

#[tokio::test]
async fn a_silent_worker_is_unavailable_and_a_slow_one_is_not() {
    const IDLE: Duration = Duration::from_secs(10);
    const HEARTBEAT: Duration = Duration::from_secs(1);
    const NEARLY: Duration = Duration::from_millis(9_999);
    // Time of the front and of the worker, so that the worker is as silent as the test says.
    let (front, worker) = (TestTime::start(), TestTime::start());
    let token = WorkerToken::draw().expect("the system has a generator");
    let config = WorkerConfig { heartbeat: HEARTBEAT, ..WorkerConfig::default() };
    let engine = FakeEngine::gated();
    let address = start_worker_at(worker.clock(), engine.shared(), &token, config).await;
    let config = RemoteConfig { idle_timeout: IDLE, ..patient() };
    let remote = RemoteEngine::connect(address, &token, config, front.clock()).await.expect("the worker answers");

    let mut events = submit(&remote, text_request(1, 5)).expect("it is taken");
    worker.awaited(HEARTBEAT).await;
    front.awaited(IDLE).await;
    front.advance(NEARLY);
    front.awaited(IDLE - NEARLY).await;
    front.advance(IDLE - NEARLY);
    let error = collect(&mut events).await;
    assert_eq!(failure(&error).kind, ErrorKind::Unavailable);
    assert!(failure(&error).message.contains("no line for 10 s"), "{error:?}");
    soon("the worker's abort", engine.aborted().wait_for(|ids| !ids.is_empty())).await.expect("it lives");

    // Heartbeats keep a silent request alive; only its own deadline ends it.
    let slow = cenote_base::Request { timeout_ms: 50_000, ..text_request(2, 5) };
    let mut events = submit(&remote, slow).expect("it is taken");
    for _ in 0..5 {
        worker.awaited(HEARTBEAT).await;
        front.awaited(IDLE).await;
        front.advance(NEARLY);
        worker.advance(HEARTBEAT);
    }
    // The front waits half a second longer than the request's 50 seconds.
    let left = Duration::from_millis(50_500) - 5 * NEARLY;
    front.awaited(left).await;
    front.advance(left);
    assert_eq!(failure(&collect(&mut events).await).kind, ErrorKind::DeadlineExceeded);
}

#[tokio::test]
async fn a_call_that_is_not_answered_has_a_timeout() {
    let time = TestTime::start();
    let token = WorkerToken::draw().expect("the system has a generator");
    // The kernel takes connections that this listener never accepts.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let connecting = RemoteEngine::connect(address, &token, patient(), time.clock());
    let call_timeout = patient().call_timeout;
    let (connected, ()) = tokio::join!(soon("the timeout", connecting), async {
        time.awaited(call_timeout).await;
        time.advance(call_timeout);
    });
    let error = connected.err().expect("it is not answered").to_string();
    assert!(error.contains("no answer to describe within 2 s"), "{error}");
}

#[tokio::test]
async fn a_worker_answers_only_callers_with_the_secret() {
    let (token, other) = (WorkerToken::draw().expect("random"), WorkerToken::draw().expect("random"));
    let address = start_worker(FakeEngine::new().shared(), &token).await;
    assert!(connect(address, &other).await.is_err());
    for path in ["health", "describe", "stats"] {
        let answer = crate::support::client::client().get(format!("http://{address}/engine/{path}")).send().await;
        assert_eq!(answer.expect("the worker is there").status(), 401, "{path}");
    }
    let submit =
        crate::support::client::client().post(format!("http://{address}/engine/submit")).json(&text_request(1, 1));
    assert_eq!(submit.send().await.expect("the worker is there").status(), 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_waits_in_the_worker_and_refuses_here() {
    let engine = FakeEngine::gated();
    let remote = Arc::new(connected(&engine).await);
    let mut events = submit(&*remote, text_request(1, 5)).expect("it is taken");
    engine.let_out(1);
    soon("a token", events.recv()).await.expect("a token");
    let draining = remote.clone();
    let drained = tokio::task::spawn_blocking(move || draining.drain(Clock::system().after(PATIENCE)));
    soon("the drain", engine.is_draining().wait_for(|draining| *draining)).await.expect("it lives");
    assert!(submit(&*remote, text_request(2, 5)).is_err());
    engine.let_out(100);
    assert!(soon("the drain's end", drained).await.expect("no panic"));
    assert!(matches!(collect(&mut events).await.last(), Some(Event::Finished { .. })));
}
