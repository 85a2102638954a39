//! `cenote pool explain`: which blocks of a prompt are there, and why the others are not.

use super::support::client::greedy;
use super::support::process::{Server, cenote};
use super::support::region::Region;
use super::support::{tokens, until};
use serde_json::Value;
use std::path::PathBuf;
use tempfile::TempDir;

/// A region, a server on it, and files of prompts.
struct Asked {
    region: Region,
    folder: TempDir,
}

impl Asked {
    async fn create() -> Self {
        Self { region: Region::create("256MiB").await, folder: TempDir::new().expect("a folder") }
    }

    async fn server(&self, flags: &[&str]) -> Server {
        Server::start(&[&["--region", &self.region.name], flags].concat()).await
    }

    /// Computes a prompt of twelve blocks and waits until they are there.
    async fn store(&self, server: &Server, prompt: u64, salt: Option<&str>) {
        let before = self.blocks_stored().await;
        let mut body = greedy(&tokens(prompt, 200), 1);
        if let Some(salt) = salt {
            body["cache_salt"] = salt.into();
        }
        server.client.complete(&body).await;
        until("the prompt's blocks", async || (self.blocks_stored().await >= before + 12).then_some(())).await;
    }

    async fn blocks_stored(&self) -> u64 {
        self.region.info().await["counters"]["pool_published_total"].as_u64().expect("a counter")
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).expect("the folder is writable");
        path
    }

    async fn explain(&self, prompt: u64, flags: &[&str]) -> (Value, String) {
        let path = self.file("prompt", &format!("{:?}", tokens(prompt, 200)));
        let base = ["pool", "explain", "--region", &self.region.name, "--tokens", path.to_str().expect("ASCII")];
        let text = cenote(base.iter().chain(flags).copied()).ok().await.out;
        let json = cenote(base.iter().chain(flags).copied().chain(["--json"])).ok().await.json();
        let blocks = json["blocks"].as_array().expect("a list");
        assert_eq!((json["tokens"].as_u64(), blocks.len()), (Some(200), 12), "{json}");
        // On one line, as the summary is.
        (json, text.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

fn states(json: &Value) -> Vec<&str> {
    json["blocks"].as_array().expect("a list").iter().map(|block| block["state"].as_str().expect("a text")).collect()
}

#[tokio::test]
async fn a_dead_pool_tells_what_it_has_and_what_it_never_had() {
    let asked = Asked::create().await;
    let none = ["pool", "explain", "--region", &asked.region.name, "--tokens", "-"];
    cenote(none).fails(&["no model has used the region", "hint: "]).await;
    let server = asked.server(&[]).await;
    asked.store(&server, 1, None).await;
    asked.store(&server, 2, Some("red")).await;
    server.stop().await;

    let (json, text) = asked.explain(1, &[]).await;
    assert_eq!(states(&json), ["present"; 12]);
    assert_eq!((json["prefix_blocks"].as_u64(), json["summary"].as_str()), (Some(12), Some("all 12 blocks are here")));
    assert!(text.starts_with("all 12 blocks are here") && text.contains("0-11 here on host 0"), "{text}");
    assert!(json["blocks"][3]["bytes"].as_u64() > Some(0) && json["blocks"][3]["host"] == 0, "{json}");

    let (json, text) = asked.explain(3, &[]).await;
    assert_eq!(states(&json), ["never_seen"; 12]);
    assert!(text.contains("never stored under this model and these salts"), "{text}");
    assert_eq!(json["removals"]["noted"], 0, "{json}");

    // By the names of its blocks.
    let (json, _) = asked.explain(1, &[]).await;
    let names: Vec<&str> =
        json["blocks"].as_array().expect("a list").iter().filter_map(|b| b["name"].as_str()).collect();
    let path = asked.file("names", &names[2..5].join("\n"));
    let by_name =
        ["pool", "explain", "--region", &asked.region.name, "--names", path.to_str().expect("ASCII"), "--json"];
    let by_name = cenote(by_name).ok().await.json();
    assert_eq!((states(&by_name), &by_name["tokens"]), (vec!["present"; 3], &Value::Null));

    // With its salt, without it, and with another one.
    let (json, _) = asked.explain(2, &["--cache-salt", "red"]).await;
    assert_eq!(states(&json), ["present"; 12]);
    let (json, _) = asked.explain(2, &[]).await;
    assert_eq!(states(&json), ["never_seen"; 12], "salts of others are no business of this request");
    let (json, text) = asked.explain(1, &["--cache-salt", "blue"]).await;
    assert_eq!(states(&json), ["other_salt"; 12]);
    assert!(text.contains("for requests without these salts"), "{text}");
}

#[tokio::test]
async fn another_setting_is_named_with_the_facts_that_differ() {
    let asked = Asked::create().await;
    let server = asked.server(&[]).await;
    asked.store(&server, 1, None).await;
    server.stop().await;
    asked.server(&["--tenant-salt", "a secret"]).await.stop().await;
    let (json, text) = asked.explain(1, &[]).await;
    assert_eq!((states(&json), &json["model"]["id"]), (vec!["other_model"; 12], &1.into()), "the newest is asked");
    assert_eq!(
        (&json["blocks"][0]["id"], &json["blocks"][0]["differs"]),
        (&0.into(), &serde_json::json!(["tenant salt"]))
    );
    assert!(
        text.contains("under model 0 (demo), which differs in: tenant salt") && !text.contains("a secret"),
        "{text}"
    );
    let (json, _) = asked.explain(1, &["--model", "0"]).await;
    assert_eq!(states(&json), ["present"; 12]);
}

#[tokio::test]
async fn what_left_is_told_with_its_cause() {
    let asked = Asked::create().await;
    let server = asked.server(&[]).await;
    asked.store(&server, 1, None).await;
    let used = asked.region.info().await["namespaces"][0]["used_bytes"].as_u64().expect("a number").to_string();
    cenote(["pool", "quota", "--region", &asked.region.name, "demo", &used]).ok().await;
    // The server learns of the limit at its next tick.
    until("the first prompt to leave", async || {
        server.client.complete(&greedy(&tokens(2, 200), 1)).await;
        let (json, _) = asked.explain(1, &[]).await;
        states(&json).contains(&"removed").then_some(())
    })
    .await;
    let (json, text) = asked.explain(1, &[]).await;
    let gone =
        json["blocks"].as_array().expect("a list").iter().find(|block| block["state"] == "removed").expect("one");
    assert_eq!((&gone["cause"], &gone["host"]), (&"quota".into(), &0.into()), "{json}");
    assert!(gone["pid"].as_u64() > Some(0) && gone["together"].as_u64() > Some(0), "{json}");
    assert!(text.contains("because its model was over its quota"), "{text}");
    server.stop().await;
}

#[tokio::test]
async fn wrong_files_are_named() {
    let asked = Asked::create().await;
    asked.server(&[]).await.stop().await;
    let region = &asked.region.name;
    let bad = asked.file("bad", "1, 2, three");
    let bad = bad.to_str().expect("ASCII");
    cenote(["pool", "explain", "--region", region, "--tokens", bad])
        .fails(&["--tokens: `three` is no token's number"])
        .await;
    cenote(["pool", "explain", "--region", region, "--names", bad])
        .fails(&["--names: `1,` is no name of a block"])
        .await;
    cenote(["pool", "explain", "--region", region, "--tokens", "/nowhere"]).fails(&["/nowhere"]).await;
    let few = asked.file("few", "[1, 2]");
    let few = ["pool", "explain", "--region", region, "--tokens", few.to_str().expect("ASCII")];
    assert!(cenote(few).ok().await.out.contains("2 tokens fill no block of 16 tokens"));
}

/// The log of a server that has ended, and a request's id, tell what a request lacked and what became of it.
#[tokio::test]
async fn a_request_of_a_log_is_explained_by_its_id() {
    let asked = Asked::create().await;
    let server = asked.server(&["--log-misses", "--log", "warn,misses=info"]).await;
    let ask = async |id: &str, prompt: u64| {
        let client = server.client.with_request_id(id);
        client.complete(&greedy(&tokens(prompt, 200), 1)).await;
    };
    let line = async |id: &str| {
        let request = format!("request={id:?}");
        until("the line of a miss", async || server.words().contains(&request).then_some(())).await;
    };
    ask("first \"one\"", 1).await;
    line("first \"one\"").await;
    until("the prompt's blocks", async || (asked.blocks_stored().await >= 12).then_some(())).await;
    // Others push the first prompt out, under a quota of its size.
    let used = asked.region.info().await["namespaces"][0]["used_bytes"].as_u64().expect("a number").to_string();
    cenote(["pool", "quota", "--region", &asked.region.name, "demo", &used]).ok().await;
    until("the first prompt to leave", async || {
        ask("other", 2).await;
        states(&asked.explain(1, &[]).await.0).iter().all(|state| *state == "removed").then_some(())
    })
    .await;
    ask("second", 1).await;
    line("second").await;
    let log = asked.file("log", &server.words());
    server.stop().await;

    let log = log.to_str().expect("ASCII");
    let flags = ["pool", "explain", "--region", &asked.region.name, "--log-file", log, "--request"];
    let explain = async |id: &str| {
        let json = cenote(flags.into_iter().chain([id, "--json"])).ok().await.json();
        let text = cenote(flags.into_iter().chain([id])).ok().await.out;
        (json["misses"].clone(), text.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let (misses, text) = explain("first \"one\"").await;
    let miss = &misses[0];
    assert_eq!(
        (&miss["blocks"], &miss["found"], &miss["model"], &miss["label"]),
        (&12.into(), &0.into(), &0.into(), &"demo".into())
    );
    assert!(matches!(miss["reason"].as_str(), Some("unknown" | "later")), "{misses}");
    assert!(
        text.contains("found 0 of its 12 blocks. It lacked block 0: ") && text.contains("Since then: it"),
        "{text}"
    );
    let (misses, text) = explain("second").await;
    let miss = &misses[0];
    assert_eq!((&miss["reason"], &miss["found"]), (&"quota".into(), &0.into()), "{misses}");
    assert!(text.contains("it had been evicted, because its model or tenant was over its quota"), "{text}");
    // The request itself has stored the block again.
    assert_eq!(miss["now"]["state"], "present", "{misses}");
    assert!(text.contains("after the request, and is here"), "{text}");

    let none = cenote(flags.into_iter().chain(["absent"]));
    none.fails(&["none of its", "lines has `absent`", "hint: it has", "misses of other requests"]).await;
    let empty = asked.file("empty", "2026-11-27T04:46:33Z INFO access: request{id=\"third\"}: answered\n");
    let of_empty = ["pool", "explain", "--region", &asked.region.name, "--log-file", empty.to_str().expect("ASCII")];
    let said = cenote(of_empty.into_iter().chain(["--request", "third"]));
    said.fails(&["1 of its 1 lines have `third`, and none tells of a miss", "`cenote serve --log-misses`"]).await;
    let cut = asked.file("cut", "2026-11-27T04:46:33Z INFO misses: a hit ends early request=\"third\" blocks=12 fou");
    let of_cut = ["pool", "explain", "--region", &asked.region.name, "--log-file", cut.to_str().expect("ASCII")];
    let said = cenote(of_cut.into_iter().chain(["--request", "third"]));
    said.fails(&["line 1 has the id, but not the form of a miss"]).await;
    let without = cenote(["pool", "explain", "--region", &asked.region.name, "--request", "third"]);
    assert!(without.run().await.err.contains("--log-file"));
}
