//! Requests and servers that end early: clients leave, deadlines pass, SIGTERM arrives.

use crate::support::client::client;
use crate::support::fake::FakeEngine;
use crate::support::script::MODEL;
use crate::support::time::TestTime;
use crate::support::{TestServer, soon};
use cenote_serve::{Grace, HttpConfig};
use serde_json::{Value, json};
use std::time::Duration;

const COMPLETIONS: &str = "/v1/completions";

fn body(prompt: &str, stream: bool) -> Value {
    json!({"model": MODEL, "prompt": prompt, "max_tokens": 50, "seed": 1, "ignore_eos": true, "stream": stream})
}

/// Waits until the engine has received this many requests.
async fn seen(engine: &FakeEngine, count: usize) {
    soon("the engine to see requests", engine.seen().wait_for(|seen| seen.len() >= count)).await.expect("it lives");
}

async fn aborted(engine: &FakeEngine, count: usize) {
    soon("the engine to abort", engine.aborted().wait_for(|ids| ids.len() >= count)).await.expect("it lives");
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_frees_its_request() {
    let engine = FakeEngine::gated();
    let server = TestServer::start(engine.shared(), HttpConfig::default()).await;
    engine.let_out(4);
    let mut answer = server.open(COMPLETIONS, &body("stream", true)).await;
    soon("a first chunk", answer.chunk()).await.expect("a chunk").expect("not the end");
    drop(answer);
    aborted(&engine, 1).await;
    assert_eq!(server.state.running(), 0);
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_token_frees_its_request() {
    let engine = FakeEngine::gated();
    let server = TestServer::start(engine.shared(), HttpConfig::default()).await;
    for (count, stream) in [(1, false), (2, true)] {
        let url = server.url(COMPLETIONS);
        let waiting = tokio::spawn(async move { client().post(url).json(&body("wait", stream)).send().await });
        seen(&engine, count).await;
        waiting.abort();
        aborted(&engine, count).await;
    }
}

#[tokio::test]
async fn an_engine_that_says_nothing_costs_a_deadline() {
    let config = HttpConfig { request_timeout: Duration::from_millis(50), ..HttpConfig::default() };
    let (engine, time) = (FakeEngine::new(), TestTime::start());
    let server = TestServer::start_at(time.clock(), engine.shared(), config).await;
    let body_of_hang = body("!hang", false);
    let (late, ()) = tokio::join!(server.post(COMPLETIONS, &body_of_hang), async {
        // The engine's own deadline is two seconds earlier.
        let patience = Duration::from_millis(2050);
        time.awaited(patience).await;
        time.advance(patience);
    });
    assert_eq!((late.status, late.json()["error"]["code"].clone()), (504, json!("deadline_exceeded")));
    aborted(&engine, 1).await;
    // The engine gets the same time limit, and a client may only shorten it.
    let sent =
        client().post(server.url(COMPLETIONS)).header("x-cenote-timeout-ms", "20").json(&body("a", false)).send();
    assert_eq!(soon("an answer", sent).await.expect("the server is there").status(), 200);
    let times: Vec<_> = engine.seen().borrow().iter().map(|request| request.timeout_ms).collect();
    assert_eq!(times, [50, 20]);
}

#[tokio::test]
async fn too_many_requests_get_retry_after() {
    let engine = FakeEngine::gated();
    let config = HttpConfig { requests_max: 1, ..HttpConfig::default() };
    let server = TestServer::start(engine.shared(), config).await;
    engine.let_out(3);
    let mut first = server.open(COMPLETIONS, &body("first", true)).await;
    let refused = server.post(COMPLETIONS, &body("second", false)).await;
    assert_eq!((refused.status, refused.headers.contains_key("retry-after")), (503, true));
    engine.let_out(1000);
    while soon("the rest", first.chunk()).await.expect("chunks").is_some() {}
    assert_eq!(server.post(COMPLETIONS, &body("third", false)).await.status, 200);
}

#[tokio::test]
async fn silence_is_filled_with_comments() {
    let engine = FakeEngine::gated();
    let (time, keep_alive) = (TestTime::start(), Duration::from_secs(10));
    let config = HttpConfig { keep_alive, ..HttpConfig::default() };
    let server = TestServer::start_at(time.clock(), engine.shared(), config).await;
    engine.let_out(1);
    let mut answer = server.open(COMPLETIONS, &body("quiet", true)).await;
    let mut next = async || {
        let piece = soon("an event", answer.chunk()).await.expect("a piece").expect("not the end");
        String::from_utf8(piece.to_vec()).expect("pieces are whole events")
    };
    time.awaited(keep_alive).await;
    time.advance(keep_alive);
    let mut text = String::new();
    while !text.contains(":\n\n") {
        text += &next().await;
    }
    time.awaited(keep_alive).await;
    time.advance(keep_alive);
    assert_eq!(next().await, ":\n\n", "one comment for each interval");
    // An event begins a new interval.
    time.awaited(keep_alive).await;
    time.advance(keep_alive / 2);
    engine.let_out(6);
    assert!(next().await.starts_with("data: "));
    time.awaited(keep_alive).await;
}

#[tokio::test]
async fn a_drain_lets_streams_finish_and_takes_no_more() {
    let engine = FakeEngine::gated();
    let mut server = TestServer::start(engine.shared(), HttpConfig::default()).await;
    engine.let_out(4);
    let mut answer = server.open(COMPLETIONS, &body("last", true)).await;
    server.stop();
    soon("the drain", engine.is_draining().wait_for(|draining| *draining)).await.expect("it lives");
    // Earlier, the listener was closed at once, so that no probe could see the drain.
    let health = server.get("/health").await;
    assert_eq!((health.status, health.json()["status"].clone()), (200, json!("draining")));
    let ready = server.get("/ready").await;
    assert_eq!((ready.status, ready.headers["connection"].to_str().ok()), (503, Some("close")));
    assert_eq!(server.post(COMPLETIONS, &body("late", false)).await.status, 503);
    engine.let_out(1000);
    let mut text = Vec::new();
    while let Some(piece) = soon("the rest", answer.chunk()).await.expect("the stream is whole") {
        text.extend_from_slice(&piece);
    }
    assert!(String::from_utf8_lossy(&text).ends_with("data: [DONE]\n\n"));
    let health = server.url("/health");
    assert!(server.ended().await);
    assert!(client().get(health).send().await.is_err(), "connections are still accepted");
}

#[tokio::test]
async fn health_says_that_the_server_drains() {
    let engine = FakeEngine::new();
    let server = TestServer::start(engine.shared(), HttpConfig::default()).await;
    assert_eq!(server.get("/health").await.json()["status"], "ok");
    assert_eq!(server.get("/ready").await.status, 200);
    server.state.start_draining();
    let health = server.get("/health").await;
    assert_eq!((health.status, health.json()["status"].clone()), (200, json!("draining")));
    let ready = server.get("/ready").await;
    assert_eq!((ready.status, ready.json()["status"].clone()), (503, json!("draining")));
    assert_eq!(server.post(COMPLETIONS, &body("late", false)).await.status, 503);
}

#[tokio::test]
async fn a_drain_that_takes_too_long_aborts_and_says_so() {
    let engine = FakeEngine::gated();
    let (time, grace) = (TestTime::start(), Grace { drain: Duration::from_secs(7), ..Grace::default() });
    let mut server = TestServer::start_with(time.clock(), engine.shared(), HttpConfig::default(), grace).await;
    engine.let_out(4);
    let mut answer = server.open(COMPLETIONS, &body("stuck", true)).await;
    server.stop();
    time.awaited(grace.drain).await;
    assert_eq!(engine.running(), 1);
    time.advance(grace.drain);
    let mut text = Vec::new();
    while let Some(piece) = soon("the rest", answer.chunk()).await.expect("the stream ends well") {
        text.extend_from_slice(&piece);
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.contains("\"error\"") && !text.contains("[DONE]"), "{text}");
    assert!(!server.ended().await);
    aborted(&engine, 1).await;
}
