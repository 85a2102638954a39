//! Ends of servers and streams: SIGTERM drains, and the request of a client that leaves frees its
//! blocks.

use super::support::client::greedy;
use super::support::process::Server;
use super::support::{tokens, until};
use std::path::Path;
use tokio::net::TcpStream;

const BOTH: [&[&str]; 2] = [&[], &["--prefill", "1", "--decode", "1"]];

#[tokio::test]
async fn sigterm_lets_streams_finish_and_takes_no_more() {
    for flags in BOTH {
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
        let address = server.url.strip_prefix("http://").expect("a URL");
        until("the socket's end", async || TcpStream::connect(address).await.err()).await;
        assert!(region.exists(), "the stream was over too early to tell anything");
        assert_eq!(stream.rest().await, whole);
        server.ended().await;
        assert!(!region.exists(), "{} is left", region.display());
    }
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_blocks() {
    for flags in BOTH {
        let server = Server::start(&[&["--region-size", "64MiB"], flags].concat()).await;
        let free = async || server.client.metric("cenote_kv_blocks_free").await;
        let total = server.client.metric("cenote_kv_blocks").await;
        let mut stream = server.client.stream(greedy(&tokens(1, 500), 3000)).await;
        stream.read(2).await;
        until("the stream to hold blocks", async || (free().await < total).then_some(())).await;
        drop(stream);
        until("its blocks", async || (free().await == total).then_some(())).await;
        assert_eq!(server.client.metric("cenote_http_requests_running").await, 0.0);
        server.stop().await;
    }
}
