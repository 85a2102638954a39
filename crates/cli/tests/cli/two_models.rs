//! Different models share a region and never a block.

use super::support::client::{Client, greedy, without_pool};
use super::support::process::Server;
use super::support::region::Region;
use super::support::tokens;
use serde_json::Value;

/// One prompt, and an engine's answers to it alone, cold and warm.
async fn ask(client: &Client, body: &Value) -> [String; 3] {
    let alone = client.complete(&without_pool(body.clone())).await;
    let cold = client.complete(body).await;
    assert_eq!(cold.cached_tokens, 0, "another namespace's blocks were taken");
    let warm = client.complete(body).await;
    assert!(warm.cached_tokens >= 96, "its own blocks were not found");
    [alone.text, cold.text, warm.text]
}

/// The fixtures of the engine have no tokenizer, so the models differ in element type and in
/// tenant.
#[tokio::test]
async fn two_element_types_and_two_tenants_share_no_block() {
    let region = Region::create("128MiB").await;
    let kinds = [&["--dtype", "f32"][..], &["--dtype", "bf16"], &["--dtype", "f32", "--tenant-salt", "other"]];
    let mut servers = Vec::new();
    for flags in kinds {
        servers.push(Server::start(&[&["--region", &region.name], flags].concat()).await);
    }
    let body = greedy(&tokens(5, 100), 12);
    let mut said = Vec::new();
    for server in &servers {
        let [alone, cold, warm] = ask(&server.client, &body).await;
        assert_eq!((&cold, &warm), (&alone, &alone));
        said.push(alone);
    }
    assert_eq!(said[0], said[2], "a salt separates blocks, not answers");
    // After the others have published theirs, each still finds its own.
    for (server, said) in servers.iter().zip(&said) {
        assert_eq!(&server.client.complete(&body).await.text, said);
    }
    let info = region.info().await;
    let namespaces = info["namespaces"].as_array().expect("an array");
    let field = |name: &'static str| namespaces.iter().map(move |row| row[name].clone()).collect::<Vec<_>>();
    assert_eq!(namespaces.len(), 3, "{info}");
    let fingerprints = field("fingerprint");
    assert!(fingerprints.iter().enumerate().all(|(n, own)| !fingerprints[..n].contains(own)), "{info}");
    assert!(field("blocks").iter().all(|blocks| *blocks == 6), "100 tokens are six whole blocks: {info}");
    let bytes: Vec<u64> = field("block_bytes").iter().filter_map(Value::as_u64).collect();
    assert_eq!((bytes[0], bytes[0]), (bytes[1] * 2, bytes[2]), "f32, bf16, f32: {info}");
    for server in servers {
        server.stop().await;
    }
    region.expect_clean_and_idle().await;
}
