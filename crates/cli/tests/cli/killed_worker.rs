//! Decode workers die in the middle of streams, and clients notice nothing.

use super::support::client::{greedy, without_pool};
use super::support::process::{Server, signal};
use super::support::region::Region;
use super::support::{tokens, until};
use futures::future::join_all;
use rustix::process::Signal;

const KILLS: usize = 10;
/// More tokens than a worker can compute before it is killed.
const MAX_TOKENS: u32 = 500;

/// The decode worker, once it has joined the region, which it does before it loads its model.
async fn decode_worker(server: &Server, region: &Region) -> Option<u32> {
    let pid = region.workers("decode-0").await.pop()?;
    let health = server.client.health().await;
    health["process_ids"].as_array().expect("an array").contains(&pid.into()).then_some(pid)
}

async fn resumed(server: &Server) -> f64 {
    server.client.metric("cenote_router_resumed_total").await
}

/// There is one decode worker, so a kill hits every stream. The prefill worker, or the dead one's
/// successor, continues at the token after the last forwarded one.
#[tokio::test]
async fn ten_kills_in_a_row_change_no_answer() {
    let region = Region::create("256MiB").await;
    let server = Server::start(&["--region", &region.name, "--prefill", "1", "--decode", "1"]).await;
    let prompts = [tokens(1, 200), tokens(2, 90), tokens(3, 33)];
    let mut bodies = prompts.map(|prompt| greedy(&prompt, MAX_TOKENS));
    // A model this small repeats itself, and repetitions look alike. A sampled text does not
    // repeat, and its seed determines it as well.
    bodies[1]["temperature"] = 1.into();
    bodies[1]["seed"] = 11.into();
    let undisturbed =
        join_all(bodies.clone().map(async |body| server.client.complete(&without_pool(body)).await)).await;
    let (other, other_prompt) = (server.client.clone(), greedy(&tokens(4, 60), 8));
    let other_answer = other.complete(&without_pool(other_prompt.clone())).await.text;

    let mut killed = Vec::new();
    for round in 0..KILLS {
        let pid = until("a decode worker", async || decode_worker(&server, &region).await).await;
        assert!(!killed.contains(&pid), "{pid} was killed already");
        let resumed_before = resumed(&server).await;
        let mut streams = join_all(bodies.clone().map(|body| server.client.stream(body))).await;
        for stream in &mut streams {
            stream.read(2 + round).await;
        }
        signal(pid, Signal::KILL);
        killed.push(pid);
        let other = other.complete(&other_prompt);
        let (texts, other) = futures::join!(join_all(streams.into_iter().map(|stream| stream.rest())), other);
        for (text, undisturbed) in texts.iter().zip(&undisturbed) {
            assert_eq!(text, &undisturbed.text, "round {round}");
        }
        assert_eq!(other.text, other_answer, "round {round}");
        let interrupted = resumed(&server).await - resumed_before;
        assert!(interrupted >= bodies.len() as f64, "only {interrupted} streams were interrupted in round {round}");
        region.expect_clean().await;
    }
    assert_eq!(server.client.metric("cenote_router_lost_total").await, 0.0);
    server.stop().await;
    region.expect_clean_and_idle().await;
}
