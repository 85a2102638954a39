//! A front's settings in its worker processes.

use super::support::process::{Server, cenote};
use std::os::unix::fs::PermissionsExt;

const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const SALT: &str = "a salt that is secret";
const WORKERS: [&str; 6] = ["--prefill", "1", "--decode", "1", "--region-size", "128MiB"];

/// The words of a process: `cmdline` or `environ`.
fn words(pid: u64, of: &str) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/{of}")).expect("our process");
    String::from_utf8_lossy(&bytes).replace('\0', "\n")
}

/// Earlier, `--spill`, `--near-size`, `--sparse-pages` and others ended in the front, silently.
#[tokio::test]
async fn workers_obey_the_settings_of_their_front() {
    let spill = ["--spill", "8MiB", "--mover-threads", "2", "--near-size", "4MiB"];
    let server = Server::start(&[&WORKERS[..], &spill].concat()).await;
    assert!(server.client.metric("cenote_spill_blocks").await > 0.0);
    assert_eq!(server.client.metric("cenote_near_kv_hits_total").await, 0.0, "a near memory counts");
    server.stop().await;

    let sparse = ["--sparse-pages", "3", "--sparse-hot-pages", "7", "--sparse-predictor", "last"];
    let server = Server::start(&[&WORKERS[..], &sparse].concat()).await;
    assert_eq!(server.client.metric("cenote_sparse_steps_total").await, 0.0, "a sparse engine counts");
    server.stop().await;

    let tables = ["serve", "--port", "0", "--engram-tables", "no-such-table"];
    let refused = cenote([&tables, &WORKERS[..]].concat()).run().await;
    assert!(refused.code == Some(1) && refused.err.contains("--engram-tables no-such-table"), "{refused:?}");
}

/// Other users can read the command lines of all processes.
#[tokio::test]
async fn no_secret_is_on_the_command_line_of_a_worker() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = folder.path().join("keys");
    std::fs::write(&keys, KEY).expect("it is written");
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
    let command = format!("cat {} # the password of a key store", keys.display());
    let secrets = [("CENOTE_SEAL_KEY_COMMAND", command.as_str()), ("CENOTE_TENANT_SALT", SALT)];
    let server = Server::start_with(&[&WORKERS[..], &["--seal", "mac"]].concat(), &secrets).await;
    let health = server.client.health().await;
    let pids = health["process_ids"].as_array().expect("an array");
    assert_eq!(pids.len(), 2, "{health}");
    for pid in pids.iter().map(|pid| pid.as_u64().expect("a number")) {
        let (line, environment) = (words(pid, "cmdline"), words(pid, "environ"));
        assert!(line.contains("worker\n--role\n"), "{line}");
        assert!(!line.contains(SALT) && !line.contains("password") && !line.contains(KEY), "{line}");
        assert!(environment.contains("CENOTE_WORKER_SETTINGS={"), "the settings are in a variable");
        assert!(!environment.contains(KEY), "a worker reads the keys itself");
    }
    server.stop().await;
}
