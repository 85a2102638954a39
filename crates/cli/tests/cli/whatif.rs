//! `cenote pool whatif` and `cenote record`: what the record of requests tells.

use super::support::client::{Client, greedy};
use super::support::process::{Server, cenote};
use super::support::region::Region;
use super::support::{tokens, until};
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

/// Prompts of twelve blocks and eight tokens: four different ones, each three times.
async fn ask(client: &Client) {
    for _ in 0..3 {
        for prompt in 0..4 {
            client.complete(&greedy(&tokens(prompt, 200), 5)).await;
        }
    }
}

/// The lines of a trace: lengths, and numbers of blocks.
fn trace(text: &str) -> Vec<(u64, u64, Vec<u64>)> {
    let mut before = 0;
    let line = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("a line of JSON");
        let number = |name: &str| line[name].as_u64().unwrap_or_else(|| panic!("{name}: {line}"));
        assert!(number("timestamp") >= before, "in order: {line}");
        before = number("timestamp");
        let ids = line["hash_ids"].as_array().expect("a list").iter().map(|id| id.as_u64().expect("a number"));
        (number("input_length"), number("output_length"), ids.collect())
    };
    text.lines().map(line).collect()
}

/// Whether these are the requests of [`ask`].
fn expect_trace(lines: &[(u64, u64, Vec<u64>)]) {
    assert_eq!(lines.len(), 12, "each request once: {lines:?}");
    for (at, (input, output, ids)) in lines.iter().enumerate() {
        assert_eq!((*input, *output, ids.len()), (200, 5, 13), "twelve full blocks and one of eight tokens");
        assert_eq!(ids[..12], lines[at % 4].2[..12], "equal prompts have equal blocks");
        assert!(at < 4 || ids[12] != lines[at % 4].2[12], "an unfinished block is no other's");
    }
    assert_eq!(lines[0].2, (0..13).collect::<Vec<_>>(), "numbers begin at 0");
    assert_eq!(lines[1].2[..12], (13..25).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_dead_pool_tells_what_other_sizes_would_have_had() {
    let region = Region::name_only();
    // So many lines that the rate stays.
    cenote(["pool", "create", "--region", &region.name, "--size", "64MiB", "--requests", "2048"]).ok().await;
    let base = ["pool", "whatif", "--region", &region.name];
    cenote(base).fails(&["no engine has recorded a request yet", "hint: "]).await;
    let record = ["record", "--region", &region.name];
    cenote(record).fails(&["no engine has recorded a request yet"]).await;
    let server = Server::start(&["--region", &region.name]).await;
    ask(&server.client).await;
    server.stop().await;

    let json = cenote(base.into_iter().chain(["--warm", "0", "--json"])).ok().await.json();
    let of_record = |name: &str| json["record"][name].as_u64();
    assert_eq!((of_record("requests"), of_record("blocks"), of_record("one_in")), (Some(12), Some(144), Some(1)));
    assert_eq!((of_record("sampled"), of_record("different"), of_record("torn")), (Some(144), Some(48), Some(0)));
    let rows = json["rows"].as_array().expect("a list");
    assert_eq!(rows.len(), 16, "four sizes, four policies");
    for row in rows {
        // 48 blocks are computed, and all fit.
        let hits = row["hit_rate"].as_f64().expect("a share");
        assert!((hits - 2.0 / 3.0).abs() < 1e-9 && row["was_full"] == false && row["error"] == 0.0, "{row}");
        assert!(row["ttft_ms"].as_f64() > Some(0.0), "this host's engine has measured its rate: {json}");
    }
    assert!(json["measured"]["prefill_tokens_per_s"].as_f64() > Some(0.0), "{json}");
    assert!(json["measured"]["load_bytes_per_s"].as_f64() > Some(0.0), "{json}");
    let text = cenote(base.into_iter().chain(["--prefill-rate", "1000", "--policies", "lru"])).ok().await.out;
    // On one line, wherever the terminal wraps.
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("all blocks, 48 different") && text.contains("1000 tokens/s, given"), "{text}");
    assert!(text.contains("too short to fill this size") && !text.contains("sieve"), "{text}");

    // A region of fewer blocks than the prompts have hits less, and a cold tier makes up for it.
    let bytes = json["bytes"].as_f64().expect("a number");
    let few = format!("{}", 24.0 * 64.0 * 1024.0 / bytes);
    let small = base.into_iter().chain(["--warm", "0", "--sizes", &few, "--policies", "lru", "--json"]);
    let small = cenote(small).ok().await.json();
    let row = &small["rows"][0];
    assert!(row["hit_rate"].as_f64() < Some(0.5) && row["was_full"] == true, "{small}");
    assert!((row["hit_rate_with_cold"].as_f64().expect("a share") - 2.0 / 3.0).abs() < 1e-9, "{small}");

    // The ceiling counts the same blocks.
    let info = region.info().await;
    let day = &info["windows"][2];
    assert_eq!((day["requests"].as_u64(), day["blocks"].as_u64()), (Some(12), Some(144)), "{info}");
    let ceiling = day["ceiling"].as_f64().expect("a share");
    assert!((ceiling - 2.0 / 3.0).abs() < 0.03, "{day}");
    let text = cenote(["pool", "info", "--region", &region.name]).ok().await.out;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("hit-rate ceiling") && text.contains("of 144 blocks in 1 day"), "{text}");
    let page = cenote(["pool", "metrics", "--region", &region.name]).ok().await.out;
    assert!(page.contains("cenote_region_hit_ceiling_1d{region="), "{page}");

    expect_trace(&trace(&cenote(record).ok().await.out));
}

#[tokio::test]
async fn a_recorder_writes_the_requests_that_come_while_it_runs() {
    let region = Region::create("64MiB").await;
    let server = Server::start(&["--region", &region.name]).await;
    server.client.complete(&greedy(&tokens(90, 200), 2)).await;
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("trace.jsonl");
    let out = path.to_str().expect("ASCII");
    let mut recorder = cenote(["record", "--region", &region.name, "--follow", "-o", out]).spawn();
    let there = |path: &Path| path.exists().then_some(());
    until("the recorder to begin", async || there(&path)).await;
    ask(&server.client).await;
    server.stop().await;
    // The last request's answer has ended; its end is a signal.
    let pid = recorder.id().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)).expect("it runs");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is our child");
    assert!(recorder.wait().await.expect("it is our child").success());
    expect_trace(&trace(&std::fs::read_to_string(&path).expect("a trace")));
    let info = region.info().await;
    assert!(info["workers"].as_array().expect("a list").iter().all(|worker| worker["alive"] != true), "{info}");
}

#[tokio::test]
async fn a_region_without_a_record_says_so() {
    let region = Region::name_only();
    cenote(["pool", "create", "--region", &region.name, "--size", "64MiB", "--requests", "0"]).ok().await;
    for command in [&["pool", "whatif"][..], &["record"], &["record", "--seconds", "1"]] {
        let facts = ["keeps no record of requests", "hint: `cenote pool create --requests`"];
        cenote(command.iter().copied().chain(["--region", &region.name])).fails(&facts).await;
    }
    let info = region.info().await;
    assert_eq!(info["windows"], serde_json::json!([]));
    cenote(["pool", "create", "--region", &Region::name_only().name, "--size", "64MiB", "--requests", "3"])
        .fails(&["3 lines per host for the record of requests"])
        .await;
    cenote(["pool", "whatif", "--region", &region.name, "--sizes", "0"]).fails(&["`0` is no positive number"]).await;
}
