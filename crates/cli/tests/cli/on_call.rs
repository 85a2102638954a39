//! Faults as an operator meets them: the health of a server, `doctor --region` and `pool history` name
//! each.

use super::support::client::greedy;
use super::support::process::{Server, cenote, signal};
use super::support::region::Region;
use super::support::{tokens, until};
use cenote_mem::Flush;
use rustix::process::Signal;
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;

fn open(region: &Region) -> File {
    File::options().read(true).write(true).open(region.path()).expect("it is ours")
}

/// The kinds of the doctor's findings, with its whole report. It exits with 2 if there is any.
async fn diagnosed(region: &Region, flags: &[&str]) -> (Vec<String>, Value) {
    let doctor = ["doctor", "--region", &region.name, "--every", "0.2", "--json"];
    let outcome = cenote(doctor.iter().chain(flags).copied()).run().await;
    let report = outcome.json();
    let findings = report["findings"].as_array().expect("an array");
    assert_eq!(outcome.code, Some(if findings.is_empty() { 0 } else { 2 }), "{outcome:?}");
    let word = |finding: &Value, field: &str| finding[field].as_str().expect("a text").to_owned();
    for finding in findings {
        assert!(["what", "why", "next"].iter().all(|field| !word(finding, field).is_empty()), "{finding}");
    }
    (findings.iter().map(|finding| word(finding, "kind")).collect(), report)
}

async fn expect_reason(server: &Server, words: &str) {
    until(words, async || {
        let health = server.client.health().await;
        let is_named =
            health["reasons"].as_array().expect("an array").iter().any(|reason| reason.to_string().contains(words));
        (is_named && health["status"] == "degraded").then_some(())
    })
    .await;
}

/// Flips a byte in each 4 KiB of payloads.
async fn damage_all_payloads(region: &Region) {
    let info = region.info().await;
    let number = |at: &str| info[at].as_u64().expect("a number");
    let file = open(region);
    for at in (number("region_bytes") - number("data_bytes")..number("region_bytes")).step_by(4096) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("it is there");
        if byte != [0] {
            file.write_all_at(&[byte[0] ^ 0x55], at).expect("it is ours");
        }
    }
}

/// Earlier, one block a request healed: 0, 16, 32 … 176 of 1,056 tokens in twelve requests; and nothing
/// named the damage.
#[tokio::test]
async fn damage_is_named_and_heals_with_the_first_request() {
    let region = Region::create("64MiB").await;
    let server = Server::start(&["--region", &region.name]).await;
    let body = greedy(&tokens(5, 1071), 2);
    let first = server.client.complete(&body).await;
    let warm = server.client.complete(&body).await;
    assert_eq!((first.cached_tokens, warm.cached_tokens), (0, 1056));
    assert_eq!(diagnosed(&region, &[]).await.0, [""; 0]);
    damage_all_payloads(&region).await;
    let computed = server.client.complete(&body).await;
    let healed = server.client.complete(&body).await;
    assert_eq!((computed.cached_tokens, healed.cached_tokens), (0, 1056), "the first request healed all blocks");
    assert_eq!((&computed.text, &healed.text), (&first.text, &first.text));
    expect_reason(&server, "damaged in the last ten minutes").await;
    let (kinds, report) = diagnosed(&region, &[]).await;
    assert_eq!(kinds, ["damage"], "{report}");
    assert!(report["findings"][0]["what"].as_str().expect("a text").starts_with("67 blocks were damaged"), "{report}");
    let history = cenote(["pool", "history", "--region", &region.name]).ok().await.out;
    assert!(history.contains("which had not its checksum, and 66 before it"), "{history}");
    server.stop().await;
    region.expect_clean_and_idle().await;
}

/// Earlier, `/health` said `ok`, and no command told of processes that use a region without a name.
#[tokio::test]
async fn a_region_without_its_name_is_named() {
    let region = Region::create("64MiB").await;
    let server = Server::start(&["--region", &region.name]).await;
    std::fs::remove_file(region.path()).expect("it is ours");
    expect_reason(&server, "is gone: no other process can join").await;
    assert_eq!(diagnosed(&region, &[]).await.0, ["region gone"]);
    let again = Region { name: region.name.clone() };
    cenote(["pool", "create", "--region", &again.name, "--size", "32MiB"]).ok().await;
    expect_reason(&server, "is another file now").await;
    assert_eq!(diagnosed(&region, &[]).await.0, ["region replaced"]);
    server.stop().await;
    assert_eq!(diagnosed(&region, &[]).await.0, [""; 0]);
}

#[tokio::test]
async fn a_superblock_that_was_overwritten_is_named() {
    let region = Region::create("64MiB").await;
    let server = Server::start(&["--region", &region.name]).await;
    open(&region).write_all_at(&[0xff; 128], 0).expect("it is ours");
    expect_reason(&server, "superblock").await;
    assert_eq!(diagnosed(&region, &[]).await.0, ["superblock changed"]);
    server.stop().await;
    cenote(["doctor", "--region", &region.name]).fails(&["not a Cenote region"]).await;
}

#[tokio::test]
async fn a_stopped_and_a_dead_process_are_named() {
    let region = Region::create("64MiB").await;
    let server = Server::start(&["--region", &region.name]).await;
    signal(server.pid, Signal::STOP);
    let (kinds, report) = until("the stopped process", async || {
        let found = diagnosed(&region, &[]).await;
        (!found.0.is_empty()).then_some(found)
    })
    .await;
    assert_eq!(kinds, ["worker silent"], "{report}");
    assert!(report["findings"][0]["next"].as_str().expect("a text").contains(&format!("kill -CONT {}", server.pid)));
    signal(server.pid, Signal::CONT);
    server.kill().await;
    let (kinds, report) = diagnosed(&region, &[]).await;
    assert!(!kinds.is_empty() && kinds.iter().all(|kind| kind == "worker dead"), "{report}");
    cenote(["pool", "gc", "--region", &region.name]).ok().await;
    assert_eq!(diagnosed(&region, &[]).await.0, [""; 0]);
}

#[tokio::test]
async fn a_dead_host_and_a_model_at_its_quota_are_named() {
    if Flush::best().is_none() {
        super::support::say("not tested: this processor has no flush instruction that is known");
        return;
    }
    let region = Region::name_only();
    let create = ["pool", "create", "--region", &region.name, "--size", "64MiB", "--max-hosts", "2", "--flush", "auto"];
    cenote(create).ok().await;
    let prompt = "A cenote is a natural pit, or sinkhole, that exposes the groundwater below. ".repeat(4);
    let generate = ["generate", "--prompt", &prompt, "--max-tokens", "2", "--region", &region.name, "--host-slot", "1"];
    cenote(generate).ok().await;
    cenote(["pool", "gc", "--region", &region.name]).ok().await;
    cenote(["pool", "fence", "--region", &region.name, "--dead-host", "1"]).ok().await;
    let (kinds, report) = diagnosed(&region, &[]).await;
    assert_eq!(kinds, ["host dead"], "{report}");
    let used = region.info().await["namespaces"][0]["used_bytes"].as_u64().expect("a number");
    cenote(["pool", "quota", "--region", &region.name, "0", &used.max(1).to_string()]).run().await;
    let (kinds, report) = diagnosed(&region, &[]).await;
    assert!(kinds.contains(&"quota".to_owned()) == (used > 0), "{report}");
}

#[tokio::test]
async fn a_cold_tier_that_is_closed_is_named() {
    let region = Region::create("64MiB").await;
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("no-directory");
    std::fs::write(&file, "a file").expect("it is written");
    let place = file.to_str().expect("UTF-8");
    let server = Server::start(&["--region", &region.name, "--cold", place]).await;
    expect_reason(&server, "the cold tier in").await;
    let (kinds, report) = diagnosed(&region, &["--cold", place]).await;
    assert_eq!(kinds, ["cold tier closed"], "{report}");
    assert_eq!(diagnosed(&region, &[]).await.0, ["cold tier"], "its errors are counted in the region");
    server.stop().await;
}

#[tokio::test]
async fn the_access_log_has_a_line_of_json_for_each_request() {
    let server = Server::start(&["--no-pool", "--log", "warn,access=info", "--log-format", "json"]).await;
    let body = greedy(&tokens(5, 40), 3);
    server.client.complete(&body).await;
    let (status, _) = server.client.send("/v1/completions", "{}").await;
    assert_eq!(status, 400);
    let lines = until("two lines", async || {
        let words = server.words();
        let lines: Vec<Value> = words.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (lines.len() == 2).then_some(lines)
    })
    .await;
    let (generated, refused) = (&lines[0], &lines[1]);
    assert_eq!((&generated["target"], &generated["message"]), (&"access".into(), &"generated".into()), "{generated}");
    assert_eq!((&generated["prompt_tokens"], &generated["completion_tokens"]), (&40.into(), &3.into()), "{generated}");
    assert_eq!((&generated["complete"], &generated["cached_tokens"]), (&true.into(), &0.into()), "{generated}");
    assert_eq!(generated["span"]["endpoint"], "/v1/completions", "{generated}");
    assert_eq!((&refused["message"], &refused["status"]), (&"answered".into(), &400.into()), "{refused}");
    assert!(lines.iter().all(|line| line["timestamp"].is_string() && line["span"]["id"].is_string()), "{lines:?}");
    server.stop().await;
}
