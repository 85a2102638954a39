//! Ends of servers and streams: SIGTERM drains, and the request of a client that leaves frees its
//! blocks.

use super::support::client::greedy;
use super::support::process::Server;
use super::support::{tokens, until};
use std::path::Path;

/// Tokens of a stream that its client leaves.
const LONG: u32 = 3000;

const BOTH: [&[&str]; 2] = [&[], &["--prefill", "1", "--decode", "1"]];

/// Ends a server in the middle of a stream. Returns whether the drain was seen while the
/// stream went on: on a busy machine, it may be over before the look.
async fn finishes_a_stream(flags: &[&str]) -> bool {
    let server = Server::start(&[&["--region-size", "64MiB"], flags].concat()).await;
    let health = server.client.health().await;
    let name = health["region"].as_str().expect("a region").strip_prefix("shm:").expect("it is in shared memory");
    let region = Path::new("/dev/shm").join(name);
    assert!(region.exists());
    let body = greedy(&tokens(1, 50), 600);
    let whole = server.client.complete(&body).await.text;
    let mut stream = server.client.stream(body).await;
    stream.read(3).await;
    server.terminate();
    let goes_on = until("the drain", async || match server.client.try_health().await {
        Some(health) => (health["status"] == "draining").then_some(true),
        None => Some(false),
    })
    .await;
    assert_eq!(stream.rest().await, whole);
    server.ended().await;
    assert!(!region.exists(), "{} is left", region.display());
    goes_on
}

#[tokio::test]
async fn sigterm_lets_streams_finish_and_takes_no_more() {
    for flags in BOTH {
        until("a stream that goes on", async || finishes_a_stream(flags).await.then_some(())).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_blocks() {
    for flags in BOTH {
        let server = Server::start(&[&["--region-size", "64MiB"], flags].concat()).await;
        let metric = async |name: &str| server.client.metric(name).await;
        let (free, generated) = ("cenote_kv_blocks_free", "cenote_generation_tokens_total");
        let total = metric("cenote_kv_blocks").await;
        // On a busy machine, a stream may be over before a look, or before its client leaves.
        until("a stream that is not computed to its end", async || {
            let before = metric(generated).await;
            let mut stream = server.client.stream(greedy(&tokens(1, 500), LONG)).await;
            // The engine renews its counters some times a second: a stream of a known prompt is ahead of them.
            while metric(free).await == total {
                if !stream.next().await {
                    return None;
                }
            }
            drop(stream);
            until("its blocks", async || (metric(free).await == total).then_some(())).await;
            (metric(generated).await - before < LONG.into()).then_some(())
        })
        .await;
        assert_eq!(metric("cenote_http_requests_running").await, 0.0);
        server.stop().await;
    }
}
