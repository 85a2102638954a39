//! The PyPI `openai` client against real servers: complete answers, chat, streams, errors as its
//! exceptions.
//!
//! Needs a Python with the package; `CENOTE_TEST_PYTHON` names it.

use super::support::process::Server;
use super::support::{MODEL, repository, soon};
use cenote_base::testing::skip;
use tokio::process::Command;

async fn run_script(flags: &[&str]) {
    let Ok(python) = std::env::var("CENOTE_TEST_PYTHON") else {
        return skip("the openai client against cenote serve, because CENOTE_TEST_PYTHON is not set");
    };
    let server = Server::start(&[flags, &["--region-size", "256MiB", "--api-key", "sesame"]].concat()).await;
    let mut command = Command::new(python);
    command.arg(repository("crates/serve/tests/openai_client.py"));
    command.args(["--base-url", &format!("{}/v1", server.url), "--model", MODEL, "--api-key", "sesame"]);
    let output = soon("the script", command.kill_on_drop(true).output()).await.expect("the interpreter starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert!(out.lines().count() > 10 && out.lines().all(|line| line.starts_with("ok ")), "{out}{err}");
    server.stop().await;
}

#[tokio::test]
async fn one_process() {
    run_script(&[]).await;
}

#[tokio::test]
async fn prefill_and_decode_workers() {
    run_script(&["--prefill", "1", "--decode", "1"]).await;
}
