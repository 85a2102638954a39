//! Hostile clients: many, slow, silent, or with large bodies. Meanwhile a legitimate request
//! succeeds.

use crate::support;
use crate::support::client::{client, read};
use crate::support::fake::FakeEngine;
use crate::support::requests::{answer_of, text_request, undisturbed};
use crate::support::script::MODEL;
use crate::support::time::TestTime;
use crate::support::{TestServer, soon};
use cenote_serve::{Grace, HttpConfig, WorkerConfig, WorkerToken, serve_worker};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const COMPLETIONS: &str = "/v1/completions";
const MIB: usize = 1 << 20;
/// A header whose answer says that the server reads the body.
const CONTINUE: &str = "expect: 100-continue\r\n";

fn body(stream: bool) -> Value {
    json!({"model": MODEL, "prompt": "legitimate", "max_tokens": 9, "ignore_eos": true, "stream": stream})
}

async fn a_request_passes(server: &TestServer) {
    let reply = server.post(COMPLETIONS, &body(true)).await;
    assert!(reply.status == 200 && reply.is_done(), "{} {}", reply.status, reply.text);
}

async fn metric(server: &TestServer, name: &str) -> f64 {
    let text = server.get("/metrics").await.text;
    let family = name.split('{').next().expect("a name");
    assert!(text.contains(&format!("# HELP {family} ")), "{name} has no help: {text}");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}: {text}")).parse().expect("a number")
}

async fn connect(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut socket = soon("a connection", TcpStream::connect(address)).await.expect("the listener is there");
    soon("room in the socket", socket.write_all(bytes)).await.expect("the socket is new");
    socket
}

/// Waits until the server has read the head that ends with [`CONTINUE`] and waits for the body.
async fn until_continued(socket: &mut TcpStream) {
    let expected = b"HTTP/1.1 100 Continue\r\n\r\n";
    let mut answer = [0; 25];
    soon("the server to read the head", socket.read_exact(&mut answer)).await.expect("an answer");
    assert_eq!(&answer, expected);
}

/// The server's bytes until it closes.
async fn until_closed(socket: &mut TcpStream) -> String {
    let mut text = Vec::new();
    // A reset closes the connection as well.
    let _ = soon("the server to close", socket.read_to_end(&mut text)).await;
    String::from_utf8_lossy(&text).into_owned()
}

fn head(length: &str) -> String {
    format!("POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{length}\r\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_idle_connections_lock_nobody_out() {
    let config = HttpConfig { connections_max: 64, ..HttpConfig::default() };
    let server = TestServer::start(FakeEngine::new().shared(), config).await;
    let mut idle = Vec::new();
    for number in 0..3000 {
        idle.push(connect(server.address, b"").await);
        if number % 500 == 499 {
            a_request_passes(&server).await;
        }
    }
    let open = metric(&server, "cenote_http_connections").await;
    assert!(open <= 64.0, "{open} connections are open");
    assert!(metric(&server, "cenote_http_connections_evicted_total").await >= 2900.0);
    assert_eq!(until_closed(&mut idle[0]).await, "", "the oldest has left");
}

#[tokio::test]
async fn above_the_cap_of_working_connections_there_is_a_503() {
    let engine = FakeEngine::gated();
    let (time, config) = (TestTime::start(), HttpConfig { connections_max: 2, ..HttpConfig::default() });
    let server = TestServer::start_at(time.clock(), engine.shared(), config).await;
    // Two long answers, one of them a stream.
    let running = [true, false].map(|stream| {
        let url = server.url(COMPLETIONS);
        tokio::spawn(async move { client().post(url).json(&body(stream)).send().await.expect("an answer") })
    });
    soon("both requests", engine.seen().wait_for(|seen| seen.len() == 2)).await.expect("it lives");
    for _ in 0..3 {
        let refused = server.post(COMPLETIONS, &body(false)).await;
        assert_eq!((refused.status, refused.json()["error"]["code"].clone()), (503, json!("overloaded")));
        assert_eq!(refused.headers["connection"], "close");
        assert!(refused.headers.contains_key("retry-after"));
    }
    // Connections without a request are answered and closed as well.
    let mut silent = connect(server.address, b"").await;
    let linger = Duration::from_secs(1);
    let text = time.pass_until("the refusal", linger, until_closed(&mut silent)).await;
    assert!(text.starts_with("HTTP/1.1 503"), "{text}");
    engine.let_out(1000);
    for running in running {
        let reply = read(soon("an answer", running).await.expect("the client does not panic")).await;
        assert_eq!(reply.status, 200, "a newcomer cut a running answer: {}", reply.text);
    }
    a_request_passes(&server).await;
    assert_eq!(metric(&server, "cenote_http_connections_refused_total").await, 4.0);
}

#[tokio::test]
async fn slow_heads_and_idle_connections_have_a_deadline_and_long_answers_have_none() {
    const HEAD_TIMEOUT: Duration = Duration::from_secs(20);
    const LAST: Duration = Duration::from_millis(1);
    let (engine, time) = (FakeEngine::gated(), TestTime::start());
    let config = HttpConfig { head_timeout: HEAD_TIMEOUT, ..HttpConfig::default() };
    let server = TestServer::start_at(time.clock(), engine.shared(), config).await;
    // No byte, part of a head, and an answer without a further request.
    for bytes in ["", "GET /health HT", "GET /health HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let mut socket = connect(server.address, bytes.as_bytes()).await;
        time.awaited(HEAD_TIMEOUT).await;
        time.advance(HEAD_TIMEOUT - LAST);
        time.awaited(LAST).await;
        time.advance(LAST);
        let text = until_closed(&mut socket).await;
        assert_eq!(text.is_empty(), !bytes.ends_with("\r\n\r\n"), "{text}");
    }
    // One byte at a time does not extend the deadline.
    let mut dripping = connect(server.address, b"").await;
    for drops in 0..20 {
        time.awaited(HEAD_TIMEOUT - drops * Duration::from_secs(1)).await;
        soon("room in the socket", dripping.write_all(b"G")).await.expect("the connection is open");
        time.advance(Duration::from_secs(1));
    }
    until_closed(&mut dripping).await;

    engine.let_out(1);
    let mut answer = server.open(COMPLETIONS, &body(true)).await;
    let request_timeout = HttpConfig::default().request_timeout + Duration::from_secs(2);
    time.advance(3 * HEAD_TIMEOUT);
    time.awaited(request_timeout - 3 * HEAD_TIMEOUT).await;
    engine.let_out(100);
    let mut text = Vec::new();
    while let Some(piece) = soon("the rest", answer.chunk()).await.expect("the answer is whole") {
        text.extend_from_slice(&piece);
    }
    assert!(String::from_utf8_lossy(&text).ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn slow_bodies_have_a_deadline_and_take_no_places() {
    let (time, body_timeout) = (TestTime::start(), Duration::from_secs(2));
    let config = HttpConfig { body_timeout, requests_max: 4, ..HttpConfig::default() };
    let server = TestServer::start_at(time.clock(), FakeEngine::new().shared(), config).await;
    let mut slow = Vec::new();
    for _ in 0..100 {
        let head = head(&format!("content-length: 1000\r\n{CONTINUE}")) + "{";
        slow.push(connect(server.address, head.as_bytes()).await);
    }
    for socket in &mut slow {
        until_continued(socket).await;
    }
    a_request_passes(&server).await;
    time.advance(body_timeout);
    for socket in &mut slow {
        let text = until_closed(socket).await;
        assert!(text.starts_with("HTTP/1.1 408"), "{text}");
    }
    a_request_passes(&server).await;
    assert_eq!(metric(&server, "cenote_http_requests_refused_total{bound=\"time\"}").await, 100.0);
}

#[tokio::test]
async fn a_giant_length_is_refused_by_its_head() {
    let server = TestServer::start(FakeEngine::new().shared(), HttpConfig::default()).await;
    for (length, expected) in [("40000000", "413"), ("99999999999", "413"), ("18446744073709551615", "4")] {
        let head = head(&format!("content-length: {length}\r\n"));
        let mut socket = connect(server.address, head.as_bytes()).await;
        let mut status = [0; 12];
        soon("an answer to the head alone", socket.read_exact(&mut status)).await.expect("an answer");
        // hyper itself refuses the last one.
        let status = String::from_utf8_lossy(&status[9..]).into_owned();
        assert!(status.starts_with(expected), "{length}: {status}");
        a_request_passes(&server).await;
    }
    let refused = metric(&server, "cenote_http_requests_refused_total{bound=\"length\"}").await;
    assert_eq!(refused, 2.0);
}

#[tokio::test]
async fn a_full_server_refuses_before_it_reads_a_body() {
    let engine = FakeEngine::gated();
    let (time, config) = (TestTime::start(), HttpConfig { requests_max: 1, ..HttpConfig::default() });
    let server = TestServer::start_at(time.clock(), engine.shared(), config).await;
    engine.let_out(3);
    let _running = server.open(COMPLETIONS, &body(true)).await;
    // The body never ends; its limits of time and size are far away. A refused body has a second.
    let mut endless = connect(server.address, (head("content-length: 4000000\r\n") + "{").as_bytes()).await;
    let discard_time = Duration::from_secs(1);
    time.awaited(discard_time).await;
    time.advance(discard_time);
    let mut status = [0; 12];
    soon("a refusal", endless.read_exact(&mut status)).await.expect("an answer");
    assert_eq!(&status, b"HTTP/1.1 503");
    assert_eq!(metric(&server, "cenote_http_requests_refused_total{bound=\"requests\"}").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_at_once_stay_within_their_memory() {
    const EACH: usize = 8 * MIB - 1024;
    let config = HttpConfig { body_bytes_total: 32 * MIB, ..HttpConfig::default() };
    let server = TestServer::start(FakeEngine::new().shared(), config).await;
    let start = head(&format!("content-length: {}\r\n", EACH + 1)) + "{\"prompt\": \"";
    let filler = vec![b'x'; MIB];
    let before = resident_bytes();
    // 48 times 8 MiB, each without its last byte: none exceeds a limit of its own.
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..48 {
        let (start, filler, address) = (start.clone(), filler.clone(), server.address);
        senders.spawn(async move {
            let mut socket = connect(address, start.as_bytes()).await;
            let mut left = EACH - (start.len() - start.find("{\"").expect("the body's start"));
            while left > 0 {
                let piece = left.min(MIB);
                soon("room", socket.write_all(&filler[..piece])).await.expect("the server takes it in");
                left -= piece;
            }
            socket
        });
    }
    let mut sockets = Vec::new();
    while let Some(socket) = soon("the senders", senders.join_next()).await {
        sockets.push(socket.expect("no sender panics"));
        let held = metric(&server, "cenote_http_body_bytes").await;
        assert!(held <= 32.0 * MIB as f64, "{held} bytes of bodies are held");
    }
    a_request_passes(&server).await;
    let grown = resident_bytes().saturating_sub(before);
    // The senders' own padding is part of it.
    assert!(grown < (32 * 2 + 48 + 64) * MIB, "{grown} bytes more for 384 MiB of bodies");
    for socket in &mut sockets {
        socket.write_all(b"\"").await.expect("the connection is kept");
    }
    let mut answers = Vec::new();
    for mut socket in sockets {
        let mut status = [0; 12];
        soon("an answer", socket.read_exact(&mut status)).await.expect("an answer");
        answers.push(String::from_utf8_lossy(&status[9..]).into_owned());
    }
    let count = |status: &str| answers.iter().filter(|answer| *answer == status).count();
    // Three complete bodies fit, and perhaps a fourth; they are not JSON. The others were refused
    // because of the budget.
    assert!((3..=4).contains(&count("400")) && count("400") + count("503") == 48, "{answers:?}");
    assert_eq!(metric(&server, "cenote_http_body_bytes").await, 0.0);
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the kernel tells");
    line.trim().trim_end_matches("kB").trim().parse::<usize>().expect("a number") << 10
}

#[tokio::test]
async fn half_open_connections_are_closed() {
    let server = TestServer::start(FakeEngine::new().shared(), HttpConfig::default()).await;
    for bytes in [String::new(), "POST /v1".to_owned(), head("content-length: 1000\r\n") + "{\"prompt"] {
        let mut socket = connect(server.address, bytes.as_bytes()).await;
        socket.shutdown().await.expect("its own half");
        until_closed(&mut socket).await;
        a_request_passes(&server).await;
    }
}

#[tokio::test]
async fn a_server_under_attack_still_shuts_down() {
    let (time, close) = (TestTime::start(), Duration::from_millis(200));
    let grace = Grace { close, ..Grace::default() };
    let mut server =
        TestServer::start_with(time.clock(), FakeEngine::new().shared(), HttpConfig::default(), grace).await;
    let mut attackers = Vec::new();
    for number in 0..200 {
        let bytes = [String::new(), "GET /".to_owned(), head("content-length: 1000\r\n") + "{"];
        attackers.push(connect(server.address, bytes[number % 3].as_bytes()).await);
    }
    let slow = head(&format!("content-length: 1000\r\n{CONTINUE}"));
    let mut last = connect(server.address, slow.as_bytes()).await;
    until_continued(&mut last).await;
    a_request_passes(&server).await;
    server.stop();
    // The slow bodies outlast the drain.
    time.awaited(close).await;
    time.advance(close);
    assert!(server.ended().await, "nothing was running");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_a_worker_port_harms_no_request() {
    const HEAD_TIMEOUT: Duration = Duration::from_secs(20);
    let time = TestTime::start();
    let token = WorkerToken::draw().expect("random");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
    let address = listener.local_addr().expect("it is bound");
    let config = WorkerConfig {
        connections_max: 16,
        head_timeout: HEAD_TIMEOUT,
        body_bytes_max: MIB,
        ..WorkerConfig::default()
    };
    let engine = FakeEngine::new();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopped = async move {
        let _ = stopped.await;
    };
    let served = tokio::spawn(serve_worker(listener, engine.shared(), token.clone(), config, time.clock(), stopped));
    let mut prng = cenote_base::prng::Prng::new(5);
    let mut attackers = Vec::new();
    for number in 0..200_u64 {
        let garbage: Vec<u8> = (0..prng.below(2000)).map(|_| prng.below(256) as u8).collect();
        attackers.push(connect(address, if number % 2 == 0 { &garbage } else { b"" }).await);
        if number % 20 == 0 {
            // The listener takes connections in order, so no attacker that waits there evicts this one.
            let remote = support::connect(address, &token).await.expect("it answers");
            let request = text_request(number, 9);
            assert_eq!(answer_of(&remote, request.clone()).await, undisturbed(&request));
        }
    }
    // A caller with the secret must not make the worker read more than the limit either.
    let secret = token.expose();
    let long = format!("POST /engine/submit HTTP/1.1\r\nhost: x\r\nx-cenote-worker-token: {secret}\r\n");
    let mut giant = connect(address, format!("{long}content-length: 99999999999\r\n\r\n").as_bytes()).await;
    let text = until_closed(&mut giant).await;
    assert!(text.starts_with("HTTP/1.1 413"), "{text}");
    let mut slow = connect(address, format!("{long}content-length: 1000\r\n{CONTINUE}\r\n{{").as_bytes()).await;
    until_continued(&mut slow).await;
    time.advance(HEAD_TIMEOUT);
    let text = until_closed(&mut slow).await;
    assert!(text.starts_with("HTTP/1.1 408"), "{text}");
    for mut attacker in attackers {
        time.pass_until("the server to close", HEAD_TIMEOUT, until_closed(&mut attacker)).await;
    }
    let remote = support::connect(address, &token).await.expect("it answers");
    let stats = cenote_base::Engine::stats(&remote);
    assert!(stats.values["worker_connections"] <= 16.0 && stats.values["worker_connections_evicted_total"] > 0.0);
    drop(stop);
    assert!(soon("the worker's end", served).await.expect("it does not panic"));
}

#[tokio::test]
async fn a_large_body_above_the_limit_still_reads_its_413() {
    let server = TestServer::start(FakeEngine::new().shared(), HttpConfig::default()).await;
    let sent = client().post(server.url(COMPLETIONS)).header("content-type", "application/json");
    let reply = read(sent.body(vec![b' '; 9 * MIB]).send().await.expect("an answer")).await;
    assert_eq!(reply.status, 413);
}
