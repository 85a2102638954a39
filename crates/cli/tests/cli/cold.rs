//! Blocks that outlive the region: a server is killed, its region removed, and the next server finds
//! its blocks on disk. Snapshots.

use super::support::client::greedy;
use super::support::process::{Server, cenote};
use super::support::region::{Region, remove};
use super::support::{tokens, until};
use cenote_base::testing::redis;
use std::path::Path;

const PROMPTS: u64 = 6;
const LENGTH: usize = 400;

fn flags<'a>(region: &'a str, cold: &'a str, workers: &[&'a str]) -> Vec<&'a str> {
    [&["--region", region, "--region-size", "256MiB", "--cold", cold], workers].concat()
}

async fn restarted(workers: &[&str]) {
    let directory = tempfile::tempdir().expect("a directory");
    let cold = format!("{},size=256MiB,deadline=60", directory.path().display());
    let region = Region::name_only();
    let server = Server::start(&flags(&region.name, &cold, workers)).await;
    let mut texts = Vec::new();
    for prompt in 0..PROMPTS {
        let answer = server.client.complete(&greedy(&tokens(prompt, LENGTH), 4)).await;
        assert_eq!(answer.cached_tokens, 0);
        texts.push(answer.text);
    }
    let info = region.info().await;
    let published = info["blocks_ready"].as_u64().expect("a number");
    assert!(published >= PROMPTS * LENGTH as u64 / 16, "{info}");
    // A few milliseconds of work may be in the queue when a process dies.
    until("the blocks are written", async || {
        let written = size_of(directory.path());
        (written >= published * block_bytes(&info)).then_some(())
    })
    .await;
    server.kill().await;
    // What the killed processes counted is still there.
    let info = info_with(&region.name, &cold).await;
    let of = |name: &str| info["counters"][format!("pool_cold_{name}_total")].as_u64().expect("a number");
    assert!(of("written") >= published && of("offered") >= of("written") && of("errors") == 0, "{info}");
    assert_eq!(info["cold"]["blocks"].as_u64(), Some(of("written")), "{info}");
    remove(&region.name);
    let server = Server::start(&flags(&region.name, &cold, workers)).await;
    let (mut cached, mut asked) = (0, 0);
    for prompt in 0..PROMPTS {
        let answer = server.client.complete(&greedy(&tokens(prompt, LENGTH), 4)).await;
        assert_eq!(answer.text, texts[prompt as usize], "prompt {prompt}");
        cached += answer.cached_tokens;
        asked += LENGTH as u64 / 16 * 16;
    }
    assert!(cached as f64 >= 0.95 * asked as f64, "{cached} of {asked} tokens came from the disk");
    // A server publishes its counters now and then.
    let hits = until("the server counts what the region counts", async || {
        let hits = server.client.metric("cenote_cold_hits_total").await as u64;
        let counted = info_with(&region.name, &cold).await["counters"]["pool_cold_hits_total"].as_u64();
        (counted == Some(hits) && hits >= cached / 16).then_some(hits)
    })
    .await;
    server.stop().await;
    let info = info_with(&region.name, &cold).await;
    assert_eq!(info["counters"]["pool_cold_hits_total"].as_u64(), Some(hits), "{info}");
    let shown = cenote(["pool", "info", "--region", &region.name, "--cold", &cold]).ok().await.out;
    assert!(shown.contains("from the cold tier") && shown.contains(&format!("{hits} in time")), "{shown}");
}

/// `pool info` with what the cold tier holds.
async fn info_with(region: &str, cold: &str) -> serde_json::Value {
    cenote(["pool", "info", "--json", "--region", region, "--cold", cold]).ok().await.json()
}

/// Bytes of one block, from the only model of the region.
fn block_bytes(info: &serde_json::Value) -> u64 {
    info["namespaces"][0]["block_bytes"].as_u64().expect("a number")
}

/// Bytes of the extents in a directory.
fn size_of(directory: &Path) -> u64 {
    let files = std::fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry"));
    let extents = files.filter(|file| file.path().extension().is_some_and(|end| end == "extent"));
    extents.map(|file| file.metadata().map_or(0, |data| data.len())).sum()
}

#[tokio::test]
async fn a_killed_servers_blocks_are_on_disk() {
    restarted(&[]).await;
}

#[tokio::test]
async fn and_those_of_killed_workers() {
    restarted(&["--prefill", "1", "--decode", "1"]).await;
}

/// What one server has published is a hit for another one with an empty region.
async fn shared_through(place: &str) -> (Server, Server) {
    let cold = format!("{place},deadline=60");
    let regions = [Region::name_only(), Region::name_only()];
    let one = Server::start(&flags(&regions[0].name, &cold, &[])).await;
    let mut texts = Vec::new();
    for prompt in 0..PROMPTS {
        let answer = one.client.complete(&greedy(&tokens(prompt, LENGTH), 4)).await;
        assert_eq!(answer.cached_tokens, 0);
        texts.push(answer.text);
    }
    let published = regions[0].info().await["blocks_ready"].as_u64().expect("a number");
    assert!(published >= PROMPTS * LENGTH as u64 / 16, "{published} blocks");
    until("the blocks are written", async || {
        (one.client.metric("cenote_cold_written_total").await as u64 >= published).then_some(())
    })
    .await;
    let other = Server::start(&flags(&regions[1].name, &cold, &[])).await;
    let (mut cached, mut asked) = (0, 0);
    for prompt in 0..PROMPTS {
        let answer = other.client.complete(&greedy(&tokens(prompt, LENGTH), 4)).await;
        assert_eq!(answer.text, texts[prompt as usize], "prompt {prompt}");
        cached += answer.cached_tokens;
        asked += LENGTH as u64 / 16 * 16;
    }
    assert!(cached as f64 >= 0.95 * asked as f64, "{cached} of {asked} tokens came from the place");
    assert_eq!(other.client.metric("cenote_cold_errors_total").await as u64, 0);
    (one, other)
}

#[tokio::test]
async fn two_servers_share_blocks_through_redis_and_go_on_without_it() {
    let Some(mut server) = redis::Server::start(&["--requirepass", "opensesame"]) else { return };
    let place = format!("redis+unix://:opensesame@{}", server.socket().display());
    let (one, other) = shared_through(&place).await;
    let shown = cenote(["pool", "cold", "--cold", &place]).ok().await.out;
    assert!(shown.contains("maxmemory") && !shown.contains("opensesame"), "{shown}");
    cenote(["pool", "cold", "--cold", &place, "--size", "1GiB"]).fails(&["maxmemory"]).await;
    server.kill();
    // New prompts are computed: nothing waits for a server that is down.
    let prompt = greedy(&tokens(99, LENGTH), 4);
    let texts = [one.client.complete(&prompt).await.text, other.client.complete(&prompt).await.text];
    assert_eq!(texts[0], texts[1]);
    until("the loss is counted", async || {
        (one.client.metric("cenote_cold_errors_total").await as u64 > 0).then_some(())
    })
    .await;
    let words = one.words();
    assert!(words.contains("the cold tier failed") && !words.contains("opensesame"), "{words}");
    one.stop().await;
    other.stop().await;
    cenote(["pool", "cold", "--cold", &place]).fails(&["redis+unix://"]).await;
}

#[tokio::test]
async fn two_servers_share_blocks_through_a_cluster() {
    let Some(cluster) = redis::Cluster::start(3) else { return };
    let (one, other) = shared_through(&cluster.url()).await;
    for node in &cluster.nodes {
        assert!(node.ask(&["DBSIZE"]).parse::<u64>().expect("a number") > 10, "blocks are on all nodes");
    }
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_disk_that_cannot_be_used_does_not_end_serving() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let region = Region::create("256MiB").await;
    // A file is no directory, and stays none.
    let cold = file.path().display().to_string();
    let server = Server::start(&["--region", &region.name, "--cold", &cold]).await;
    assert!(server.words().contains("serving starts without it"), "{}", server.words());
    let body = greedy(&tokens(1, 100), 3);
    let first = server.client.complete(&body).await;
    assert_eq!(server.client.complete(&body).await.text, first.text);
    assert_eq!(server.client.metric("cenote_cold_open").await as u64, 0);
    server.stop().await;
}

#[tokio::test]
async fn a_cold_tier_that_is_not_there_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let absent = directory.path().join("absent");
    let region = Region::create("64MiB").await;
    let cold = absent.to_str().expect("its path is text");
    cenote(["pool", "info", "--region", &region.name, "--cold", cold]).fails(&["absent", "gone"]).await;
    assert!(!absent.exists(), "looking makes nothing");
    cenote(["demo", "--cold", cold]).fails(&["the demo's prompts must be new", "CENOTE_COLD"]).await;
}

/// One process with a smaller limit emptied a tier that others shared.
#[tokio::test]
async fn only_a_command_makes_a_limit_smaller() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().to_str().expect("its path is text").to_owned();
    let region = Region::name_only();
    let create = ["pool", "create", "--region", &region.name, "--size", "64MiB", "--cold"];
    cenote([&create[..], &[&format!("{place},size=64MiB")]].concat()).ok().await;
    let limit = async |setting: &str, more: &[&str]| {
        let shown = cenote([&["pool", "cold", "--json", "--cold", setting], more].concat()).ok().await.json();
        shown["bytes_max"].as_u64().expect("a number")
    };
    let small = format!("{place},size=8MiB");
    let server = Server::start(&["--region", &region.name, "--cold", &small]).await;
    server.client.complete(&greedy(&tokens(1, LENGTH), 1)).await;
    server.stop().await;
    assert_eq!(limit(&small, &[]).await, 64 << 20);
    assert_eq!(limit(&place, &["--size", "8MiB"]).await, 8 << 20);
    assert_eq!(limit(&place, &[]).await, 8 << 20);
    cenote(["pool", "cold", "--cold", &place, "--size", "4KiB"]).fails(&["--size", "4 KiB"]).await;
    cenote(["pool", "cold", "--cold", &format!("{place}/absent")]).fails(&["absent"]).await;
}

/// A directory of another user answered prompts, and a pipe as its identity kept commands waiting.
#[tokio::test]
async fn a_planted_cold_tier_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().to_str().expect("its path is text");
    let region = Region::name_only();
    let create = ["pool", "create", "--region", &region.name, "--size", "64MiB", "--cold", place];
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).expect("it is ours");
    cenote(create).fails(&["other users can write the folder", "chmod go-w"]).await;
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).expect("it is ours");
    let made = std::process::Command::new("mkfifo").arg(directory.path().join("tier")).status();
    assert!(made.expect("it runs").success());
    cenote(create).fails(&["tier", "no regular file"]).await;
}

#[tokio::test]
async fn a_snapshot_brings_a_region_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("kv.snapshot");
    let path = path.to_str().expect("its path is text");
    let region = Region::name_only();
    let own = ["--region", &region.name, "--region-size", "256MiB"];
    let server = Server::start(&own).await;
    let body = greedy(&tokens(3, LENGTH), 3);
    let first = server.client.complete(&body).await;
    let saved = cenote(["pool", "snapshot", "--json", "--region", &region.name, path]).ok().await.json();
    assert!(saved["blocks"].as_u64() >= Some(LENGTH as u64 / 16), "{saved}");
    cenote(["pool", "restore", "--region", &region.name, path]).fails(&[&region.name]).await;
    server.stop().await;
    remove(&region.name);
    let restored = cenote(["pool", "restore", "--json", "--region", &region.name, path]).ok().await.json();
    assert_eq!((&restored["blocks"], &restored["damaged"]), (&saved["blocks"], &0.into()), "{restored}");
    region.expect_clean().await;
    let server = Server::start(&own[..2]).await;
    let again = server.client.complete(&body).await;
    // The last token is always computed.
    assert_eq!((again.text, again.cached_tokens), (first.text, (LENGTH as u64 - 1) / 16 * 16));
    server.stop().await;
}

#[tokio::test]
async fn a_damaged_snapshot_is_restored_in_part() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("kv.snapshot");
    let text = path.to_str().expect("its path is text");
    let region = Region::create("64MiB").await;
    cenote(["pool", "snapshot", "--region", &region.name, text]).ok().await;
    let bytes = std::fs::read(&path).expect("it is there");
    std::fs::write(&path, &bytes[..bytes.len() - 4096]).expect("it is written");
    remove(&region.name);
    let outcome = cenote(["pool", "restore", "--region", &region.name, text]).run().await;
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    std::fs::write(&path, b"no snapshot").expect("it is written");
    remove(&region.name);
    cenote(["pool", "restore", "--region", &region.name, text]).fails(&["no snapshot"]).await;
}

/// Kills of `snapshot` and `restore` at chosen points.
#[tokio::test]
async fn killed_snapshots_and_restorations_lose_nothing() {
    use std::os::unix::fs::{MetadataExt, chown};
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("kv.snapshot");
    let path = file.to_str().expect("its path is text");
    let region = Region::name_only();
    let name = region.name.as_str();
    let sharing = || {
        let status = std::fs::metadata(region.path()).expect("a file");
        (status.mode() & 0o777, status.gid())
    };
    let own = ["--region", name, "--size", "64MiB", "--mode", "640"];
    cenote(["pool", "create"].into_iter().chain(own)).ok().await;
    if rustix::process::geteuid().is_root() {
        chown(region.path(), None, Some(54_321)).expect("root gives files to any group");
    }
    let before = sharing();
    let generate = ["generate", "--region", name, "--prompt", &"A cenote is a natural pit. ".repeat(20)];
    cenote(generate.into_iter().chain(["--max-tokens", "1"])).ok().await;
    let save = || cenote(["pool", "snapshot", "--json", "--region", name, path]);
    let restore = || cenote(["pool", "restore", "--json", "--region", name, path]);
    let saved = save().ok().await.json();
    assert!(saved["blocks"].as_u64() > Some(3), "{saved}");
    let good = std::fs::read(&file).expect("it is there");
    let killed = async |command: super::support::process::Cenote, fault: &str| {
        let outcome = command.env("CENOTE_FAULT", fault).run().await;
        assert_eq!(outcome.code, None, "{fault}: {outcome:?}");
    };
    let unchanged = || {
        assert!(std::fs::read(&file).expect("it is there") == good);
        let names: Vec<_> = std::fs::read_dir(directory.path()).expect("a directory").collect();
        assert_eq!(names.len(), 1, "{names:?}");
    };
    killed(save(), "read.copied:3").await;
    unchanged();

    // Killed before it is marked, a region has no name.
    remove(name);
    killed(restore(), "object.written:1").await;
    assert!(!region.path().exists());

    killed(restore(), "publish.ready:3").await;
    assert_eq!(region.info().await["restoring"], path);
    let listed = cenote(["pool", "list", "--json"]).ok().await.json();
    let listed = listed.as_array().expect("a list").iter().find(|row| row["region"] == name).expect("it is there");
    assert_eq!(listed["state"], "restoring");
    save().fails(&["is being restored", "pool restore"]).await;
    unchanged();
    let outcome = cenote(generate.into_iter().chain(["--max-tokens", "1"])).ok().await;
    assert!(outcome.err.contains("it is being restored from"), "{outcome:?}");
    let restored = restore().ok().await.json();
    assert_eq!((&restored["blocks"], &restored["is_whole"]), (&saved["blocks"], &true.into()), "{restored}");
    assert_eq!(region.info().await["restoring"], serde_json::Value::Null);
    assert_eq!((sharing(), before.0), (before, 0o640), "mode and group are as before");
    region.expect_clean().await;
    restore().fails(&[name, "cenote pool destroy"]).await;
    remove(name);
    restore_with_mode(&region, path).await;
}

async fn restore_with_mode(region: &Region, path: &str) {
    use std::os::unix::fs::PermissionsExt;
    cenote(["pool", "restore", "--region", &region.name, "--mode", "600", path]).ok().await;
    assert_eq!(std::fs::metadata(region.path()).expect("a file").permissions().mode() & 0o777, 0o600);
}
