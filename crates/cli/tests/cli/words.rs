//! What people read: `--help` of every command, and errors whose words are stable. The words themselves
//! are in `snapshots/`; `INSTA_UPDATE=always` writes them anew.

use super::support::process::bare;
use insta::assert_snapshot;

async fn help(command: &str) -> String {
    let outcome = bare(command.split_whitespace().chain(["--help"])).ok().await;
    assert_eq!(outcome.err, "");
    assert!(outcome.out.lines().all(|line| line.chars().count() <= 100), "{}", outcome.out);
    outcome.out
}

#[tokio::test]
async fn every_command_explains_itself() {
    for command in [
        "",
        "demo",
        "serve",
        "generate",
        "pool",
        "pool create",
        "pool info",
        "pool check",
        "pool history",
        "pool events",
        "pool gc",
        "pool quota",
        "pool diff",
        "pool fence",
        "pool manage",
        "pool destroy",
        "doctor",
        "bench",
        "bench ttft",
        "bench pool",
        "bench index",
        "bench lock",
        "bench alloc",
        "bench all",
        "bench codec",
        "bench trace",
        "profile",
        "eval",
        "choose",
        "outliers",
        "sim",
        "study",
        "study watermark",
        "study swap",
        "study engine",
        "torture",
        "completions",
        "man",
    ] {
        let name = format!("help {command}").trim_end().replace(' ', "_");
        assert_snapshot!(name, help(command).await);
    }
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
        "bench ttft --hits 2 --model no-such-model",
        "sim",
        "sim --trace no-such-file.jsonl",
        "sim --load cpen --pool much",
        "sim --load cpen --pool-link string",
        "sim --load cpen --eviction clock",
        "sim --load cpen --watermark high",
        "torture --processes 1 --hosts 2",
        "torture --hosts 2 --flush none",
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
async fn the_version_is_told() {
    assert_eq!(bare(["--version"]).ok().await.out, concat!("cenote ", env!("CARGO_PKG_VERSION"), "\n"));
}

/// `cenote doctor | head -1` ended in a panic and a backtrace.
#[test]
fn a_reader_that_goes_away_is_no_failure() {
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
