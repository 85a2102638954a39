//! A degraded engine keeps serving and reports it: over HTTP, in the metrics, in the log, through
//! workers.

use crate::support::fake::FakeEngine;
use crate::support::script::MODEL;
use crate::support::time::TestTime;
use crate::support::{TestServer, connect, start_worker};
use cenote_base::{Clock, Engine, Health};
use cenote_serve::{Disaggregated, DisaggregatedConfig, Fleet, HttpConfig, Role, WorkerToken};
use serde_json::{Value, json};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const DAMAGED: &str = "the region is damaged";

async fn health(server: &TestServer) -> (u16, Value, Value) {
    let reply = server.get("/health").await;
    let body = reply.json();
    (reply.status, body["status"].clone(), body["reasons"].clone())
}

async fn gauge(server: &TestServer) -> String {
    let text = server.get("/metrics").await.text;
    assert!(text.contains("# HELP cenote_degraded "), "{text}");
    let line = text.lines().find(|line| line.starts_with("cenote_degraded ")).expect("the gauge is there");
    line.to_owned()
}

#[tokio::test]
async fn a_degraded_engine_reports_200_and_keeps_serving() {
    let engine = FakeEngine::new();
    let server = TestServer::start(engine.shared(), HttpConfig::default()).await;
    assert_eq!(health(&server).await, (200, json!("ok"), json!([])));
    assert_eq!(gauge(&server).await, "cenote_degraded 0");
    engine.set_health(Health::degraded(DAMAGED));
    // The metrics are right without a request for the health.
    assert_eq!(gauge(&server).await, "cenote_degraded 1");
    assert_eq!(health(&server).await, (200, json!("degraded"), json!([DAMAGED])));
    let body = json!({"model": MODEL, "prompt": "still here", "max_tokens": 3});
    assert_eq!(server.post("/v1/completions", &body).await.status, 200);
    engine.set_health(Health::Ok);
    assert_eq!(health(&server).await, (200, json!("ok"), json!([])));
    assert_eq!(gauge(&server).await, "cenote_degraded 0");
}

#[tokio::test]
async fn a_draining_server_is_draining_first() {
    let engine = FakeEngine::new();
    engine.set_health(Health::degraded(DAMAGED));
    let server = TestServer::start(engine.shared(), HttpConfig::default()).await;
    server.state.start_draining();
    assert_eq!(health(&server).await, (200, json!("draining"), json!([DAMAGED])), "it ends by itself");
    assert_eq!(server.get("/ready").await.status, 503);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_degraded_worker_is_named_through_socket_fleet_and_router() {
    let token = WorkerToken::draw().expect("random");
    let fleet = Fleet::new(&[Role::Prefill, Role::Decode, Role::Decode]);
    let (mut engines, mut remotes) = (Vec::new(), Vec::new());
    for slot in 0..3 {
        let engine = FakeEngine::new();
        let address = start_worker(engine.shared(), &token).await;
        let remote = connect(address, &token).await.expect("it answers");
        let remote = Arc::new(remote);
        fleet.publish(slot, remote.clone());
        engines.push(engine);
        remotes.push(remote);
    }
    let router = Disaggregated::new(fleet.clone(), DisaggregatedConfig::default(), Clock::stopped());
    let server = TestServer::start(Arc::new(router), HttpConfig::default()).await;
    assert_eq!(health(&server).await, (200, json!("ok"), json!([])));
    engines[2].set_health(Health::degraded(DAMAGED));
    // As the supervisor does periodically.
    assert!(remotes[2].is_healthy().await);
    assert_eq!(health(&server).await, (200, json!("degraded"), json!([format!("decode-1: {DAMAGED}")])));
    fleet.retract(2, "killed by signal 9");
    let missing = "decode-1: not running: killed by signal 9";
    assert_eq!(health(&server).await, (200, json!("degraded"), json!([missing])));
    engines[2].set_health(Health::Ok);
    assert!(remotes[2].is_healthy().await);
    fleet.publish(2, remotes[2].clone());
    assert_eq!(health(&server).await, (200, json!("ok"), json!([])), "another one has taken its place");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_starts_degraded_is_known_at_once() {
    let token = WorkerToken::draw().expect("random");
    let engine = FakeEngine::new();
    engine.set_health(Health::degraded(DAMAGED));
    let address = start_worker(engine.shared(), &token).await;
    let remote = connect(address, &token).await.expect("it answers");
    assert_eq!(remote.health(), Health::degraded(DAMAGED));
}

/// Collects log lines about degradation.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("cenote_serve")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                self.0 += &format!("{}={value:?} ", field.name());
            }
        }
        let mut text = Text(format!("{} ", event.metadata().level()));
        event.record(&mut text);
        if text.0.contains("degraded") {
            self.0.lock().expect("no test panics with the lock").push(text.0);
        }
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn each_change_is_logged_once() {
    let log = Log::default();
    let engine = FakeEngine::new();
    let server = TestServer::start(engine.shared(), HttpConfig::default()).await;
    let _guard = tracing::subscriber::set_default(log.clone());
    for _ in 0..3 {
        health(&server).await;
    }
    engine.set_health(Health::degraded(DAMAGED));
    for _ in 0..3 {
        health(&server).await;
        gauge(&server).await;
    }
    engine.set_health(Health::Ok);
    for _ in 0..3 {
        health(&server).await;
    }
    let lines = log.0.lock().expect("no test panics with the lock").clone();
    let [first, second] = &lines[..] else { panic!("two changes, but {lines:?}") };
    assert!(first.starts_with("WARN") && first.contains(DAMAGED), "{first}");
    assert!(second.starts_with("INFO"), "{second}");
}

#[tokio::test]
async fn a_change_is_logged_without_a_request() {
    const PERIOD: Duration = Duration::from_secs(1);
    let (log, engine, time) = (Log::default(), FakeEngine::new(), TestTime::start());
    let _guard = tracing::subscriber::set_default(log.clone());
    let _server = TestServer::start_at(time.clock(), engine.shared(), HttpConfig::default()).await;
    time.awaited(PERIOD).await;
    engine.set_health(Health::degraded(DAMAGED));
    time.advance(PERIOD);
    time.awaited(PERIOD).await;
    let lines = || log.0.lock().expect("no test panics with the lock").clone();
    assert!(matches!(&lines()[..], [line] if line.starts_with("WARN") && line.contains(DAMAGED)), "{:?}", lines());
    // While it lasts, the line comes again every 30 seconds.
    for second in 1..=61 {
        time.advance(PERIOD);
        time.awaited(PERIOD).await;
        assert_eq!(lines().len(), 1 + second / 30, "after {second} s: {:?}", lines());
    }
}
