//! Salts of requests and of API keys keep the KV of tenants apart, in one process and over workers.

use super::support::client::{Client, greedy};
use super::support::process::{Server, cenote};
use super::support::tokens;
use serde_json::Value;
use std::io::Write;

/// A file with these keys.
fn keys(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("it takes the keys");
    file
}

fn salted(body: &Value, salt: &str) -> Value {
    let mut body = body.clone();
    body["cache_salt"] = salt.into();
    body
}

/// Cached tokens of these requests, in turn. All answers must be the same.
async fn cached(asked: &[(&Client, &Value)]) -> Vec<u64> {
    let (mut counts, mut texts) = (Vec::new(), Vec::new());
    for (client, body) in asked {
        let answer = client.complete(body).await;
        counts.push(answer.cached_tokens);
        texts.push(answer.text);
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "a salt changes names, not answers: {texts:?}");
    counts
}

async fn keep_apart(flags: &[&str]) {
    let file = keys("# two tenants and two keys without a salt\nred-1 red\nred-2\tred\nblue-1 blue\nplain-1\n");
    let path = file.path().to_str().expect("its path is text");
    let own = ["--region-size", "256MiB", "--api-key-file", path, "--api-key", "plain-2"];
    let server = Server::start(&[flags, &own].concat()).await;
    let client = |key| server.client.with_key(key);
    let (red, red_too, blue) = (client("red-1"), client("red-2"), client("blue-1"));
    let (plain, plain_too) = (client("plain-1"), client("plain-2"));
    let (status, refused) = client("red").send("/v1/completions", greedy(&tokens(1, 20), 1).to_string()).await;
    assert_eq!((status, &refused["error"]["code"]), (401, &"invalid_api_key".into()), "a salt is no key");

    let body = greedy(&tokens(3, 100), 3);
    let asked = [(&red, &body), (&red_too, &body), (&blue, &body), (&plain, &body), (&plain_too, &body)];
    assert_eq!(cached(&asked).await, [0, 96, 0, 0, 96]);
    // A request's own salt, alone and with a key's. Knowing another tenant's salt gives no access.
    let own = salted(&body, "red");
    let asked = [(&plain, &own), (&plain_too, &own), (&red, &own), (&red_too, &own), (&blue, &own), (&red, &body)];
    assert_eq!(cached(&asked).await, [0, 96, 0, 96, 0, 96]);
    let (status, refused) = plain.send("/v1/completions", salted(&body, "").to_string()).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &"cache_salt".into()));
    server.stop().await;
}

#[tokio::test]
async fn in_one_process() {
    keep_apart(&[]).await;
}

#[tokio::test]
async fn over_prefill_and_decode_workers() {
    keep_apart(&["--prefill", "1", "--decode", "1"]).await;
}

#[tokio::test]
async fn a_wrong_file_of_keys_is_refused() {
    let file = keys("one salt\ntwo salt more\n");
    let path = file.path().to_str().expect("its path is text");
    let said = ["--api-key-file", path, "line 2 has more than a key and a salt"];
    cenote(["serve", "--port", "0", "--no-pool", "--api-key-file", path]).fails(&said).await;
    cenote(["serve", "--port", "0", "--no-pool", "--api-key-file", "/nowhere/keys"]).fails(&["/nowhere/keys"]).await;
}
