//! The PyPI `openai` client against this server: complete answers, streams, errors as its
//! exceptions.
//!
//! Needs a Python with the package; `CENOTE_TEST_PYTHON` names it.

use crate::support::fake::{FakeEngine, FakePool};
use crate::support::{TestServer, script, soon};
use cenote_base::{Clock, Engine};
use cenote_serve::{ApiKeys, Disaggregated, DisaggregatedConfig, Fleet, HttpConfig, Role};
use std::sync::Arc;
use tokio::process::Command;

async fn run_script(engine: Arc<dyn Engine>) {
    let Ok(python) = std::env::var("CENOTE_TEST_PYTHON") else {
        return cenote_base::testing::skip("the openai client, because CENOTE_TEST_PYTHON is not set");
    };
    let config = HttpConfig { api_keys: ApiKeys::default().with("sesame"), ..HttpConfig::default() };
    let server = TestServer::start(engine, config).await;
    let mut command = Command::new(python);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai_client.py"));
    command.args(["--base-url", &server.url("/v1"), "--model", script::MODEL, "--api-key", "sesame"]);
    let output = soon("the script", command.kill_on_drop(true).output()).await.expect("the interpreter starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert!(out.lines().count() > 10 && out.lines().all(|line| line.starts_with("ok ")), "{out}{err}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_engine() {
    run_script(FakeEngine::new().shared()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefill_and_decode_workers() {
    let pool = FakePool::default();
    let fleet = Fleet::new(&[Role::Prefill, Role::Decode]);
    for slot in 0..2 {
        fleet.publish(slot, FakeEngine::sharing(pool.clone(), 1_000_000).shared());
    }
    run_script(Arc::new(Disaggregated::new(fleet, DisaggregatedConfig::default(), Clock::stopped()))).await;
}
