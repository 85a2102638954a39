//! Salts of requests, of API keys and of tenants keep KV apart, in one process and over workers. A file of
//! tenants sets limits, and is read again on SIGHUP.

use super::support::client::{Client, greedy};
use super::support::process::{Server, cenote, signal};
use super::support::{tokens, until};
use rustix::process::Signal;
use serde_json::Value;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

/// A file with these keys or tenants, that only this user can read.
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

/// Replaces the content of a file, and tells the server.
fn rewrite(file: &tempfile::NamedTempFile, text: &str, server: &Server) {
    std::fs::write(file.path(), text).expect("it takes the tenants");
    signal(server.pid, Signal::HUP);
}

/// Status of a request of one token.
async fn status(client: &Client) -> u16 {
    client.send("/v1/completions", greedy(&tokens(1, 20), 1).to_string()).await.0
}

async fn until_it_says(server: &Server, words: &str) {
    until(words, async || server.words().contains(words).then_some(())).await;
}

const THREE: &str = "[metrics]\nkeys = [\"scrape\"]\n[tenant.red]\nkeys = [\"red-1\", \"red-2\"]\n\
                     [tenant.blue]\nkeys = [\"blue-1\"]\nsalt = \"s\"\n[tenant.navy]\nkeys = [\"navy-1\"]\nsalt = \"s\"\n";

async fn have_parts_of_their_own(flags: &[&str]) {
    let file = keys(THREE);
    let path = file.path().to_str().expect("its path is text");
    let server = Server::start(&[flags, &["--region-size", "256MiB", "--tenants", path]].concat()).await;
    let client = |key| server.client.with_key(key);
    let (red, red_too, blue, navy) = (client("red-1"), client("red-2"), client("blue-1"), client("navy-1"));
    let body = greedy(&tokens(3, 100), 3);
    let asked = [(&red, &body), (&red_too, &body), (&blue, &body), (&navy, &body), (&red, &body)];
    assert_eq!(cached(&asked).await, [0, 96, 0, 96, 96]);
    // A client's own salt stays within its tenant, also if it is the salt or the name of another.
    let (own, name) = (salted(&body, "s"), salted(&body, "red"));
    let asked = [(&red, &own), (&blue, &own), (&blue, &name), (&red, &own), (&navy, &name), (&red, &name)];
    assert_eq!(cached(&asked).await, [0, 0, 0, 96, 96, 0]);

    let (wrong, refused) = client("red").send("/v1/completions", body.to_string()).await;
    assert_eq!((wrong, &refused["error"]["code"]), (401, &"invalid_api_key".into()));
    let metrics = client("scrape").metrics().await;
    for line in [
        "cenote_tenant_requests_total{tenant=\"red\"} 6\n",
        "cenote_tenant_cached_tokens_total{tenant=\"red\"} 288\n",
        "cenote_tenant_prompt_tokens_total{tenant=\"navy\"} 200\n",
        "cenote_tenant_requests_refused_total{tenant=\"other\"} 1\n",
    ] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }

    // A new tenant has its part, a removed one has no key, and the others have what they had.
    let two =
        "[tenant.red]\nkeys = [\"red-3\"]\n[tenant.pink]\nkeys = [\"pink-1\"]\nquota = \"8MiB\"\nkeep = \"4MiB\"\n";
    rewrite(&file, two, &server);
    let (red_new, pink) = (client("red-3"), client("pink-1"));
    until("the new key", async || (status(&red_new).await == 200).then_some(())).await;
    for old in [&red, &red_too, &blue] {
        assert_eq!(status(old).await, 401);
    }
    assert_eq!(cached(&[(&red_new, &body), (&pink, &body), (&pink, &body)]).await, [96, 0, 96]);

    // A worker that starts later has them, too.
    let pids = |health: &Value| health["process_ids"].as_array().expect("a list").clone();
    let before = pids(&server.client.health().await);
    if before.len() > 1 {
        for pid in &before {
            signal(u32::try_from(pid.as_u64().expect("an id")).expect("an id"), Signal::KILL);
        }
        until("other workers", async || {
            let now = pids(&server.client.health().await);
            (now.len() == before.len() && now.iter().all(|pid| !before.contains(pid))).then_some(())
        })
        .await;
        let fresh = greedy(&tokens(4, 100), 3);
        assert_eq!(cached(&[(&pink, &fresh), (&pink, &fresh), (&red_new, &fresh)]).await, [0, 96, 0]);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_file_of_tenants_gives_each_its_part() {
    have_parts_of_their_own(&[]).await;
}

#[tokio::test]
async fn a_file_of_tenants_reaches_all_workers() {
    have_parts_of_their_own(&["--prefill", "1", "--decode", "1"]).await;
}

/// What the region keeps for a tenant stays while another floods; when the file keeps nothing any more, it
/// does not.
#[tokio::test]
async fn a_flood_leaves_a_tenant_what_is_kept_for_it() {
    let of = |kept: &str| format!("[tenant.flood]\nkeys = [\"f\"]\n[tenant.calm]\nkeys = [\"c\"]\n{kept}");
    // A quarter of the region.
    let file = keys(&of("keep = \"6MiB\"\n"));
    let path = file.path().to_str().expect("its path is text");
    let server = Server::start(&["--region-size", "24MiB", "--tenants", path]).await;
    let (flood, calm) = (server.client.with_key("f"), server.client.with_key("c"));
    let few: Vec<Value> = (0..3).map(|seed| greedy(&tokens(100 + seed, 400), 1)).collect();
    let hits = async |client: &Client| {
        let mut sum = 0;
        for body in &few {
            sum += client.complete(body).await.cached_tokens;
        }
        sum
    };
    // 20 prompts of 25 blocks of 64 KiB exceed the region.
    let flooding = async |first: u64| {
        for seed in first..first + 20 {
            flood.complete(&greedy(&tokens(seed, 400), 1)).await;
        }
    };
    assert_eq!(hits(&calm).await, 0);
    let alone = hits(&calm).await;
    assert_eq!(alone, 3 * 384, "all but the last block of three prompts");
    flooding(1000).await;
    let beside = hits(&calm).await;
    assert!(beside * 100 >= alone * 95, "{beside} of {alone} cached tokens");

    rewrite(&file, &of(""), &server);
    until_it_says(&server, "read the tenants again: 2").await;
    flooding(2000).await;
    let after = hits(&calm).await;
    assert!(after * 100 < alone * 50, "{after} of {alone} cached tokens, without `keep`");
    server.stop().await;
}

#[tokio::test]
async fn a_wrong_file_changes_nothing_and_refused_limits_no_key() {
    let file = keys(THREE);
    let path = file.path().to_str().expect("its path is text");
    let server = Server::start(&["--region-size", "64MiB", "--tenants", path]).await;
    let blue = server.client.with_key("blue-1");
    assert_eq!(status(&blue).await, 200);
    rewrite(&file, "[tenant.red]\nkeys = [\"s3cret\"]\nquota = \"many\"\n", &server);
    until_it_says(&server, "line 3: tenant.red.quota").await;
    assert_eq!((status(&blue).await, status(&server.client.with_key("s3cret")).await), (200, 401));
    // More than the region may keep: the keys count all the same.
    rewrite(&file, "[tenant.blue]\nkeys = [\"new\"]\nsalt = \"s\"\nkeep = \"60MiB\"\n", &server);
    until_it_says(&server, "tenant `blue`").await;
    until_it_says(&server, "read the tenants again: 1").await;
    assert_eq!((status(&blue).await, status(&server.client.with_key("new")).await), (401, 200));
    let new = server.client.with_key("new");
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o644)).expect("it is ours");
    rewrite(&file, THREE, &server);
    until_it_says(&server, "every user can read").await;
    assert_eq!(status(&new).await, 200);
    assert!(!server.words().contains("s3cret"));
    server.stop().await;
    let start = ["serve", "--port", "0", "--no-pool", "--tenants", path];
    cenote(start).fails(&["--tenants", path, "every user can read"]).await;
}

#[tokio::test]
async fn a_server_without_tenants_survives_sighup() {
    let server = Server::start(&["--no-pool"]).await;
    signal(server.pid, Signal::HUP);
    until_it_says(&server, "SIGHUP: there is no file to read again").await;
    assert_eq!(status(&server.client).await, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_wrong_file_of_tenants_is_refused() {
    let file = keys("[tenant.red]\nkeys = [\"k\"]\nquota = \"1GiB\"\n");
    let path = file.path().to_str().expect("its path is text");
    let start = ["serve", "--port", "0", "--no-pool", "--tenants", path];
    cenote(start).fails(&["--tenants", path, "tenant `red`: without a region"]).await;
    std::fs::write(file.path(), "[tenant.red]\nkey = [\"k\"]\n").expect("it takes the tenants");
    cenote(start).fails(&[path, "line 2: tenant.red.key: no such setting"]).await;
    cenote(["serve", "--tenants", path, "--api-key", "k"]).fails(&["--tenants", "--api-key"]).await;
}
