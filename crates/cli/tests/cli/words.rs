//! `--help` of every command by its structure, and the texts of errors as a snapshot, which
//! `INSTA_UPDATE=always` rewrites.

use super::support::help::expect_pages;
use super::support::process::{bare, cenote};
use insta::assert_snapshot;

#[tokio::test]
async fn every_command_explains_itself() {
    assert!(expect_pages(|line| bare(line.split_whitespace())).await > 20);
}

#[tokio::test]
async fn errors_name_the_thing_and_the_fact() {
    let mut said = String::new();
    for line in [
        "pool info",
        "pool info --region shm:",
        "pool info --region shm:cenote-test-no-such",
        "pool create --region shm:cenote-test-no-such",
        "pool create --region shm:cenote-test-no-such --size many",
        "pool create --region shm:cenote-test-no-such --size -1",
        "pool create --region shm:cenote-test-no-such --size -1GiB",
        "pool create --region shm:cenote-test-no-such --size 1MiB",
        "pool create --region shm:cenote-test-no-such --size 64MiB --chunk-size 3MiB",
        "pool create --region shm:cenote-test-no-such --size 64MiB --mode 44",
        "pool create --region shm:cenote-test-no-such --size 64MiB --flush clean",
        "pool info --region shm:cenote-test-no-such --host-slot 64",
        "pool destroy --region shm:cenote-test-no-such",
        "pool destroy --region anon",
        "pool info --region /dev/dax99.0",
        "pool create --region /dev/dax99.0",
        "serve --region shm:cenote-test-no-such --model no-such-model",
        "serve --no-pool --model no-such-model --port 0",
        "serve --no-pool --prefill 1",
        "serve --port 100000",
        "generate --prompt x --model no-such-model",
        "generate --prompt x --dtype f16",
        "serve --host-timeout 0",
        "doctor --log =",
        "doctor --config no-such-file.toml",
        "sing",
    ] {
        let outcome = bare(line.split(' ')).current_dir("/").run().await;
        assert_eq!(outcome.out, "", "{outcome:?}");
        let code = outcome.code.expect("it ends by itself");
        assert_ne!(code, 0, "{outcome:?}");
        said.push_str(&format!("$ cenote {line}\n{}exit code {code}\n\n", outcome.err));
    }
    assert_snapshot!(said);
}

#[tokio::test]
async fn the_version_is_printed() {
    assert_eq!(bare(["--version"]).ok().await.out, concat!("cenote ", env!("CARGO_PKG_VERSION"), "\n"));
}

/// A size with a unit that people read in two ways, and numbers of processes and threads that do nothing.
#[tokio::test]
async fn arguments_that_mean_nothing_are_refused() {
    cenote(["pool", "create", "--region", "shm:x", "--size", "4GB"]).fails(&["units of 1000 or of 1024", "GiB"]).await;
    cenote(["serve", "--decode", "0"]).fails(&["--decode"]).await;
    cenote(["serve", "--mover-threads", "0"]).fails(&["--mover-threads"]).await;
}

/// Earlier, `cenote doctor | head -1` ended with a panic and a backtrace.
#[test]
fn a_closed_output_is_no_failure() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let outcome = std::process::Command::new(env!("CARGO_BIN_EXE_cenote"))
        .arg("doctor")
        .stdout(writer)
        .output()
        .expect("the command runs");
    let words = String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.status.success() && !words.contains("panicked"), "{}: {words}", outcome.status);
}
