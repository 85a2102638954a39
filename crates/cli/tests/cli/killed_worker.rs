//! Decode workers die in the middle of streams, and clients do not notice.

use super::support::client::{greedy, without_pool};
use super::support::process::{Server, signal};
use super::support::region::Region;
use super::support::{tokens, until};
use futures::future::join_all;
use rustix::process::Signal;

const KILLS: usize = 10;
/// So many that no worker is through with them before it is killed.
const MAX_TOKENS: u32 = 300;

/// There is one decode worker, so a kill meets every stream. It waits for the worker's successor, which
/// takes the streams up at the token after the last one that was forwarded.
#[tokio::test]
async fn ten_kills_in_a_row_change_no_answer() {
    let region = Region::create("256MiB").await;
    let server = Server::start(&["--region", &region.name, "--prefill", "1", "--decode", "1"]).await;
    let prompts = [tokens(1, 200), tokens(2, 90), tokens(3, 33)];
    let bodies = prompts.map(|prompt| greedy(&prompt, MAX_TOKENS));
    let undisturbed =
        join_all(bodies.clone().map(async |body| server.client.complete(&without_pool(body)).await)).await;
    let (other, other_prompt) = (server.client.clone(), greedy(&tokens(4, 60), 8));
    let other_answer = other.complete(&without_pool(other_prompt.clone())).await.text;

    let mut killed = Vec::new();
    for round in 0..KILLS {
        let pid = until("a decode worker", async || region.workers("decode-0").await.pop()).await;
        assert!(!killed.contains(&pid), "{pid} was killed already");
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
        region.expect_clean().await;
    }
    let resumed = server.client.metric("cenote_router_resumed_total").await;
    assert!(resumed >= (KILLS * bodies.len()) as f64, "only {resumed} streams were interrupted");
    assert_eq!(server.client.metric("cenote_router_lost_total").await, 0.0);
    server.stop().await;
    region.expect_clean_and_idle().await;
}
