//! A running server beside the simulator: `cenote-lab study server` times it from outside.

use super::support::process::{Server, bare_lab};

#[tokio::test]
async fn a_running_server_is_compared_with_the_simulator() {
    let server = Server::start(&["--no-pool"]).await;
    let blocks = format!("{}", server.client.metric("cenote_kv_blocks").await);
    let study = ["study", "server", "--url", &server.url, "--requests", "8", "--max-num-seqs", "4", "--json"];
    // Only vLLM reports its blocks where the command looks for them.
    bare_lab(study).fails(&["/metrics", "--kv-blocks"]).await;
    let compared = bare_lab(study.into_iter().chain(["--kv-blocks", &blocks])).ok().await.json();
    let rows = compared["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2, "{compared}");
    for row in rows {
        let positive = |name: &str| row[name].as_f64().is_some_and(|value| value > 0.0);
        let all = ["ttft_mean_ms", "ttft_mean_ms_simulated", "throughput_tokens_per_s"];
        assert!(all.iter().all(|name| positive(name)), "{row}");
    }
    server.stop().await;
    bare_lab(["study", "server", "--url", "http://127.0.0.1:1", "--kv-blocks", "8"]).fails(&["127.0.0.1:1"]).await;
}
