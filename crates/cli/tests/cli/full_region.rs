//! Lack of room: a full region, an engine with little memory, a region that is removed.

use super::support::client::{greedy, without_pool};
use super::support::process::{Server, cenote};
use super::support::region::Region;
use super::support::{tokens, until};
use futures::future::join_all;
use serde_json::Value;

const PROMPTS: u64 = 24;

fn prompts(length: usize) -> Vec<Value> {
    (0..PROMPTS).map(|seed| greedy(&tokens(1000 + seed, length), 6)).collect()
}

#[tokio::test]
async fn a_full_region_evicts_and_every_prompt_is_answered() {
    let region = Region::create("24MiB").await;
    let server = Server::start(&["--region", &region.name]).await;
    let bodies = prompts(400);
    // Blocks that requests use at once may leave no room, and are then not published. So the second
    // half comes in order: its blocks and those of a region without room need more than there is.
    let (at_once, in_order) = bodies.split_at(bodies.len() / 2);
    let mut answers = join_all(at_once.iter().map(|body| server.client.complete(body))).await;
    for body in in_order {
        answers.push(server.client.complete(body).await);
    }
    // An engine publishes its counters periodically.
    until("an eviction", async || (server.client.metric("cenote_pool_evicted_total").await > 0.0).then_some(())).await;
    region.expect_clean_and_idle().await;
    // The last prompts are still there, the first are not; both are answered as before.
    for (body, answer) in bodies.iter().zip(&answers).rev().step_by(5) {
        assert_eq!(server.client.complete(body).await.text, answer.text);
        assert_eq!(server.client.complete(&without_pool(body.clone())).await.text, answer.text);
    }
    server.stop().await;
    region.expect_clean_and_idle().await;
}

/// L1 holds one prompt of the longest kind: the requests must take turns, and one that can never
/// fit is refused before it waits.
#[tokio::test]
async fn an_engine_with_little_memory_queues_and_refuses_impossible_requests() {
    let region = Region::create("128MiB").await;
    for flags in [&[][..], &["--prefill", "1", "--decode", "1"]] {
        let server = Server::start(&[&["--region", &region.name, "--kv-size", "2MiB"], flags].concat()).await;
        let blocks = server.client.metric("cenote_kv_blocks").await;
        assert!(blocks > 0.0);
        let bodies = prompts(300);
        let answers = join_all(bodies.iter().map(|body| server.client.complete(body))).await;
        assert!(answers.iter().all(|answer| !answer.text.is_empty()));
        let (status, answer) = server.client.send("/v1/completions", greedy(&tokens(1, 900), 6).to_string()).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &Value::from("prompt")), "{answer}");
        let (status, answer) = server.client.send("/v1/completions", greedy(&tokens(1, 300), 3000).to_string()).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &Value::from("max_tokens")), "{answer}");
        server.stop().await;
    }
    let too_small = ["serve", "--port", "0", "--no-pool", "--kv-size", "1KiB"];
    cenote(too_small).fails(&["do not hold one block"]).await;
    region.expect_clean_and_idle().await;
}

/// Removing a region ends its sharing only: processes that have it mapped keep it.
#[tokio::test]
async fn servers_answer_on_when_their_region_is_removed() {
    for flags in [&[][..], &["--prefill", "1", "--decode", "1"]] {
        let region = Region::create("64MiB").await;
        let server = Server::start(&[&["--region", &region.name], flags].concat()).await;
        let body = greedy(&tokens(1, 100), 8);
        let before = server.client.complete(&body).await;
        let refused = cenote(["pool", "destroy", "--region", &region.name]).fails(&["uses it"]).await;
        assert!(refused.err.contains("--force"), "{refused:?}");
        assert!(region.path().exists());
        cenote(["pool", "destroy", "--region", &region.name, "--force"]).ok().await;
        assert!(!region.path().exists());
        assert_eq!(server.client.complete(&body).await.text, before.text);
        let fresh = greedy(&tokens(2, 100), 8);
        let answer = server.client.complete(&fresh).await;
        assert_eq!(answer.text, server.client.complete(&without_pool(fresh)).await.text);
        server.stop().await;
    }
}
