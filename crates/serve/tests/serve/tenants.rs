//! Tenants of a front, over the scripted engine.

use super::support::client::{Reply, client, read};
use super::support::fake::FakeEngine;
use super::support::script::MODEL;
use super::support::{TestServer, connect, soon, start_worker};
use cenote_base::Clock;
use cenote_base::{Engine, TenantKey};
use cenote_serve::{Disaggregated, DisaggregatedConfig, Fleet, HttpConfig, Role, TenantFile, TenantsSet, WorkerToken};
use serde_json::json;
use std::sync::Arc;
use std::sync::mpsc::channel;

const TWO: &str = "[metrics]\nkeys = [\"scrape\"]\n[tenant.red]\nkeys = [\"r\"]\nsalt = \"s\"\npriority = 2\n\
                   max_requests = 1\n[tenant.blue]\nkeys = [\"b\"]\nquota = \"2MiB\"\nkeep = \"1MiB\"\n";

fn file(text: &str) -> TenantFile {
    TenantFile::parse(text).expect("a sound file")
}

/// So many tenants, each with its part.
const fn all(tenants: usize) -> TenantsSet {
    TenantsSet { tenants, troubles: Vec::new() }
}

async fn server_of(engine: &FakeEngine) -> TestServer {
    let server = TestServer::start(engine.shared(), HttpConfig::default()).await;
    assert_eq!(server.state.set_tenants(file(TWO)), all(2));
    server
}

async fn get(server: &TestServer, path: &str, key: &str) -> Reply {
    let sent = client().get(server.url(path)).bearer_auth(key).send();
    read(soon("an answer", sent).await.expect("the server is there")).await
}

async fn complete(server: &TestServer, prompt: &str, key: &str) -> Reply {
    let body = json!({"model": MODEL, "prompt": prompt, "max_tokens": 5, "ignore_eos": true});
    let sent = client().post(server.url("/v1/completions")).bearer_auth(key).json(&body).send();
    read(soon("an answer", sent).await.expect("the server is there")).await
}

fn refusal(reply: &Reply) -> (u16, serde_json::Value) {
    (reply.status, reply.json()["error"]["code"].clone())
}

#[tokio::test]
async fn each_key_opens_what_is_its_own() {
    let server = server_of(&FakeEngine::new()).await;
    for (path, key, status) in [
        ("/health", "wrong", 200),
        ("/ready", "wrong", 200),
        ("/v1/models", "r", 200),
        ("/v1/models", "b", 200),
        ("/v1/models", "scrape", 401),
        ("/v1/models", "wrong", 401),
        ("/metrics", "scrape", 200),
        ("/metrics", "r", 403),
        ("/metrics", "wrong", 401),
    ] {
        assert_eq!(get(&server, path, key).await.status, status, "{path} {key}");
    }
    let refused = complete(&server, "x", "wrong").await;
    assert_eq!(refusal(&refused), (401, json!("invalid_api_key")));
    assert_eq!(refused.headers["www-authenticate"], "Bearer");
    let error = refused.json()["error"].clone();
    assert!(error["message"].is_string() && error["type"] == "invalid_request_error" && error["param"].is_null());
}

#[tokio::test]
async fn the_engine_gets_parts_and_each_request_its_tenant() {
    let engine = FakeEngine::new();
    let server = server_of(&engine).await;
    let mut parts: Vec<_> =
        engine.tenants().into_iter().map(|part| (part.name, part.quota_bytes, part.kept_bytes)).collect();
    parts.sort();
    assert_eq!(parts, [("blue".to_owned(), 2 << 20, 1 << 20), ("red".to_owned(), 0, 0)]);
    assert_eq!(complete(&server, "x", "r").await.status, 200);
    assert_eq!(complete(&server, "x", "b").await.status, 200);
    let seen: Vec<_> = engine.seen().borrow().iter().map(|request| (request.tenant, request.priority)).collect();
    assert_eq!(seen, [(Some(TenantKey::of_salt("s")), 2), (Some(TenantKey::of_name("blue")), 0)]);
}

#[tokio::test]
async fn a_tenant_has_as_many_requests_as_its_limit() {
    let engine = FakeEngine::gated();
    let server = server_of(&engine).await;
    let body = json!({"model": MODEL, "prompt": "x", "max_tokens": 5, "ignore_eos": true, "stream": true});
    let sent = client().post(server.url("/v1/completions")).bearer_auth("r").json(&body).send();
    let first = tokio::spawn(sent);
    let mut seen = engine.seen();
    soon("the first request", seen.wait_for(|seen| !seen.is_empty())).await.expect("the engine is there");
    let page = get(&server, "/metrics", "scrape").await.text;
    assert!(page.contains("cenote_tenant_requests_waiting{tenant=\"red\"} 1\n"), "{page}");
    let refused = complete(&server, "y", "r").await;
    assert_eq!(refusal(&refused), (429, json!("rate_limit_exceeded")));
    assert_eq!(refused.headers["retry-after"], "1");
    engine.let_out(1000);
    assert_eq!(complete(&server, "z", "b").await.status, 200, "another tenant has its own limit");
    let first = read(soon("the stream", first).await.expect("no panic").expect("the server is there")).await;
    assert!(first.is_done());
    assert_eq!(complete(&server, "y", "r").await.status, 200);
    let page = get(&server, "/metrics", "scrape").await.text;
    for line in [
        "cenote_tenant_requests_total{tenant=\"red\"} 2\n",
        "cenote_tenant_requests_refused_total{tenant=\"red\"} 1\n",
        "cenote_tenant_requests_waiting{tenant=\"red\"} 0\n",
        "cenote_tenant_generated_tokens_total{tenant=\"red\"} 10\n",
        "cenote_tenant_generated_tokens_total{tenant=\"blue\"} 5\n",
    ] {
        assert!(page.contains(line), "{line}{page}");
    }
}

#[tokio::test]
async fn a_key_that_was_taken_out_opens_nothing_whatever_the_engine_says() {
    let engine = FakeEngine::new();
    let server = server_of(&engine).await;
    let set = server.state.set_tenants(file("[tenant.red]\nkeys = [\"new\"]\nquota = 1\n"));
    assert_eq!(set, TenantsSet { tenants: 1, troubles: vec!["red".to_owned()] });
    assert_eq!((complete(&server, "x", "r").await.status, complete(&server, "x", "new").await.status), (401, 200));
    assert_eq!(server.state.set_tenants(file("[tenant.red]\nkeys = [\"newer\"]\n")), all(1));
    assert_eq!((complete(&server, "x", "new").await.status, complete(&server, "x", "newer").await.status), (401, 200));
}

/// A key that has leaked opened its tenant until a worker that hangs had let its deadline pass.
#[tokio::test]
async fn a_key_that_was_taken_out_waits_for_no_engine() {
    let engine = FakeEngine::new();
    let server = server_of(&engine).await;
    let (go, wait) = channel::<()>();
    let (holds, is_held) = channel();
    let hung = std::thread::spawn(move || {
        engine.without_tenants(|| {
            let _ = holds.send(());
            let _ = wait.recv();
        });
    });
    is_held.recv().expect("the engine hangs");
    let state = Arc::clone(&server.state);
    let text = "[tenant.red]\nkeys = [\"new\"]\nsalt = \"s\"\n[tenant.blue]\nkeys = [\"b\"]\n";
    let set = tokio::task::spawn_blocking(move || state.set_tenants(file(text)));
    soon("the key's end", async { while get(&server, "/v1/models", "r").await.status != 401 {} }).await;
    let statuses = [("/metrics", "scrape"), ("/v1/models", "b"), ("/v1/models", "new")];
    for ((path, key), status) in statuses.into_iter().zip([401, 200, 401]) {
        assert_eq!(get(&server, path, key).await.status, status, "{path} {key}");
    }
    drop(go);
    assert_eq!(soon("the tenants", set).await.expect("no panic"), all(2));
    assert_eq!(get(&server, "/v1/models", "new").await.status, 200);
    hung.join().expect("no panic");
}

#[tokio::test]
async fn each_prompt_and_choice_takes_a_place() {
    let server = server_of(&FakeEngine::new()).await;
    let ask = async |key: &str, body: serde_json::Value| {
        let sent = client().post(server.url("/v1/completions")).bearer_auth(key).json(&body).send();
        read(soon("an answer", sent).await.expect("the server is there")).await.status
    };
    let two = json!({"model": MODEL, "prompt": ["x", "y"], "max_tokens": 5, "ignore_eos": true});
    assert_eq!((ask("r", two.clone()).await, ask("b", two).await), (429, 200));
    let choices = json!({"model": MODEL, "prompt": "x", "n": 2, "max_tokens": 5, "ignore_eos": true});
    assert_eq!(ask("r", choices).await, 429);
    assert_eq!(complete(&server, "x", "r").await.status, 200);
}

/// On threads of their own, because an engine behind a socket blocks its caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_get_tenants_over_their_socket() {
    let (engine, token) = (FakeEngine::new(), WorkerToken::draw().expect("the system has a generator"));
    let worker = connect(start_worker(engine.shared(), &token).await, &token).await.expect("it is there");
    let fleet = Fleet::new(&[Role::Whole]);
    fleet.publish(0, Arc::new(worker));
    let front = Arc::new(Disaggregated::new(fleet.clone(), DisaggregatedConfig::default(), Clock::stopped()));
    let server = TestServer::start(front.clone() as Arc<dyn Engine>, HttpConfig::default()).await;
    let state = server.state.clone();
    let set = tokio::task::spawn_blocking(move || state.set_tenants(file(TWO)));
    assert_eq!(soon("the tenants", set).await.expect("no panic"), all(2));
    assert_eq!(engine.tenants().len(), 2);
    assert_eq!(*fleet.tenants(), engine.tenants(), "for workers that start later");
    assert_eq!(complete(&server, "x", "r").await.status, 200);
    assert_eq!(engine.seen().borrow()[0].tenant, Some(TenantKey::of_salt("s")));
}
