//! A server with too little memory for all requests swaps, and its answers do not change.

use super::support::client::{Answer, Client, greedy, without_pool};
use super::support::process::{Server, bare_lab};
use super::support::{tokens, until};
use futures::future::join_all;
use serde_json::Value;

const REQUESTS: usize = 24;
const MAX_TOKENS: u32 = 40;

async fn ask_all(client: &Client, bodies: &[Value]) -> Vec<String> {
    let answers: Vec<Answer> = join_all(bodies.iter().map(|body| client.complete(body))).await;
    answers.into_iter().map(|answer| answer.text).collect()
}

#[tokio::test]
async fn answers_under_pressure_are_those_with_room_for_all() {
    let dir = tempfile::tempdir().expect("a directory");
    let trace = dir.path().join("swaps.jsonl");
    let trace_flag = trace.to_str().expect("UTF-8").to_owned();
    let bodies: Vec<Value> = (0..REQUESTS).map(|n| greedy(&tokens(n as u64, 20 + 3 * n), MAX_TOKENS)).collect();
    let ample = Server::start(&["--region-size", "64MiB"]).await;
    // A block of the demo model has 64 KiB: these are 40 of them, and eight requests fill those.
    let small = Server::start(&[
        "--region-size",
        "64MiB",
        "--kv-size",
        "2560KiB",
        "--swap",
        "16MiB",
        "--always-swap",
        "--watermark",
        "opt:3",
        "--swap-trace",
        &trace_flag,
    ])
    .await;
    let alone: Vec<Value> = bodies.iter().cloned().map(without_pool).collect();
    let expected = ask_all(&ample.client, &alone).await;
    // Requests that arrive one by one, on a busy machine, need no swap. Then they are asked again.
    let swaps = until("a swap", async || {
        assert_eq!(ask_all(&small.client, &bodies).await, expected);
        let swaps = small.client.metric("cenote_swaps_total").await;
        (swaps > 0.0).then_some(swaps)
    })
    .await;
    small.stop().await;
    ample.stop().await;
    let text = std::fs::read_to_string(&trace).expect("the trace is there");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    let count = |direction: &str| lines.iter().filter(|line| line["direction"] == direction).count();
    assert!(count("out") >= swaps as usize && count("out") == count("in"), "{text}");
    let learned = bare_lab(["study", "swap", "--json", "--trace", &trace_flag]).ok().await.json();
    assert_eq!((learned["traces"].as_u64(), learned["swap_ins"].as_f64()), (Some(1), Some(count("in") as f64)));
}

#[tokio::test]
async fn without_a_region_there_is_nothing_to_swap_to() {
    let outcome = super::support::process::cenote(["serve", "--no-pool", "--swap", "1MiB", "--port", "0"]);
    outcome.fails(&["--swap 1 MiB", "region"]).await;
}
