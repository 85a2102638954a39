//! Decode workers die in the middle of streams, and clients notice nothing.

use super::support::client::{greedy, without_pool};
use super::support::process::Server;
use super::support::region::Region;
use super::support::{tokens, until};
use futures::future::join_all;

const KILLS: usize = 10;
/// The step of its life at which each decode worker kills itself.
const LAST_STEP: u64 = 60;
/// A decode worker reaches its last step before any stream of this length can end. All that it
/// computes before the streams has fewer steps.
const MAX_TOKENS: u32 = 200;

/// The decode worker, once it has joined the region and the router can send requests to it.
async fn decode_worker(server: &Server, region: &Region) -> Option<u32> {
    let pid = region.workers("decode-0").await.pop()?;
    let health = server.client.health().await;
    let pids = health["process_ids"].as_array().expect("an array");
    (pids.len() == 2 && pids.contains(&pid.into())).then_some(pid)
}

async fn resumed(server: &Server) -> f64 {
    server.client.metric("cenote_router_resumed_total").await
}

/// There is one decode worker, so its death interrupts every stream that it has. The prefill worker,
/// or the dead one's successor, continues at the token after the last forwarded one.
#[tokio::test]
async fn ten_kills_in_a_row_change_no_answer() {
    let prompts = [tokens(1, 200), tokens(2, 90), tokens(3, 33)];
    let mut bodies = prompts.map(|prompt| greedy(&prompt, MAX_TOKENS));
    // A model this small repeats itself, and repetitions look alike. A sampled text does not
    // repeat, and its seed determines it as well.
    bodies[1]["temperature"] = 1.into();
    bodies[1]["seed"] = 11.into();
    let other = greedy(&tokens(4, 60), 8);
    let alone = Server::start(&["--no-pool"]).await;
    let undisturbed = join_all(bodies.clone().map(async |body| alone.client.complete(&body).await)).await;
    let other_answer = alone.client.complete(&other).await.text;
    alone.stop().await;

    let region = Region::create("256MiB").await;
    let flags = ["--region", &region.name, "--prefill", "1", "--decode", "1"];
    let fault = format!("engine.step:{LAST_STEP}");
    let server = Server::start_with(&flags, &[("CENOTE_FAULT_DECODE", &fault)]).await;
    let mut killed = Vec::new();
    for round in 0..KILLS {
        let pid = until("the next decode worker", async || {
            decode_worker(&server, &region).await.filter(|pid| !killed.contains(pid))
        })
        .await;
        let resumed_before = resumed(&server).await;
        // Steps before the streams, so that each round interrupts them at another token.
        server.client.complete(&without_pool(greedy(&tokens(5, 20), 1 + 2 * round as u32))).await;
        let streams = bodies.clone().map(async |body| server.client.stream(body).await.rest().await);
        let (texts, other) = futures::join!(join_all(streams), server.client.complete(&other));
        for (text, undisturbed) in texts.iter().zip(&undisturbed) {
            assert_eq!(text, &undisturbed.text, "round {round}");
        }
        assert_eq!(other.text, other_answer, "round {round}");
        assert!(resumed(&server).await > resumed_before, "no stream was interrupted in round {round}");
        killed.push(pid);
        region.expect_clean().await;
    }
    assert_eq!(server.client.metric("cenote_router_lost_total").await, 0.0);
    assert!(server.client.metric("cenote_worker_restarts_total").await >= (KILLS - 1) as f64);
    server.stop().await;
    region.expect_clean_and_idle().await;
}
