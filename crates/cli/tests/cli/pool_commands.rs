//! `cenote pool`: create, info, check, gc and destroy on intact regions.

use super::support::client::greedy;
use super::support::process::{Server, bare, cenote, own_region};
use super::support::region::Region;
use super::support::tokens;
use cenote_mem::MapOptions;
use cenote_pool::{AttachOptions, Pool, open_region};
use serde_json::{Value, json};
use std::io::BufRead;
use std::os::unix::fs::PermissionsExt;

#[tokio::test]
async fn a_region_is_created_listed_and_removed() {
    let region = Region::name_only();
    let create = ["pool", "create", "--region", &region.name, "--size", "32MiB"];
    let created = cenote(create.into_iter().chain(["--json", "--max-hosts", "4"])).ok().await.json();
    assert_eq!(created["region"], region.name.as_str(), "{created}");
    assert_eq!(created["region_bytes"], 32 << 20, "{created}");
    assert_eq!(created["max_hosts"], 4, "{created}");
    assert_eq!(region.files(), [region.path()], "nothing but the region itself has its name");
    let again = cenote(create).fails(&["exists already", "hint: `cenote pool info", "--force"]).await;
    assert!(again.err.contains(region.path().to_str().expect("UTF-8")), "{again:?}");

    let info = region.info().await;
    assert_eq!(info["region_bytes"], 32 << 20, "{info}");
    assert_eq!((&info["blocks_ready"], &info["namespaces"]), (&json!(0), &json!([])), "{info}");
    assert!(cenote(["pool", "info", "--region", &region.name]).ok().await.out.contains("chunks"));

    let report = region.expect_clean_and_idle().await;
    assert_eq!(report["ready"], 0, "{report}");
    let collected = region.run("gc").await;
    assert_eq!((collected.code, &collected.json()["blocks_freed"]), (Some(0), &json!(0)), "{collected:?}");

    let destroy = ["pool", "destroy", "--region", &region.name];
    let destroyed = cenote(destroy).ok().await;
    assert!(destroyed.err.contains("removed") && destroyed.out.is_empty(), "{destroyed:?}");
    assert!(region.files().is_empty());
    cenote(destroy).fails(&["no such region"]).await;
    region.run("info").await.err.contains("hint: cenote pool create").then_some(()).expect("advice");
}

#[tokio::test]
async fn a_region_without_space_says_how_much_there_is() {
    let region = Region::name_only();
    let create = ["pool", "create", "--region", &region.name, "--size", "60TiB"];
    let refused = cenote(create).fails(&["there is no space for 60 TiB", "hint: give a smaller size"]).await;
    assert!(refused.err.contains("iB are free"), "{refused:?}");
    assert!(region.files().is_empty());
}

/// No process is left and the host's memory is gone; the region may even be read-only.
#[tokio::test]
async fn a_dead_region_is_looked_at_without_a_change() {
    let region = Region::create("16MiB").await;
    region.run("gc").await.json();
    let uuid = region.info().await["uuid"].as_str().expect("a text").to_owned();
    std::fs::remove_file(format!("/dev/shm/cenote-{uuid}-h0")).expect("it is ours");
    std::fs::set_permissions(region.path(), PermissionsExt::from_mode(0o400)).expect("it is ours");
    let before = std::fs::read(region.path()).expect("a file");
    let records = region.run("history").await.json();
    let events: Vec<&str> = records.as_array().expect("an array").iter().filter_map(|r| r["event"].as_str()).collect();
    assert_eq!(events[..4], ["life_begun", "attached", "collected", "left"], "{records}");
    let people = cenote(["pool", "history", "--region", &region.name, "--host", "0"]).ok().await.out;
    assert!(people.contains("collected garbage: 0 blocks freed") && people.contains("20"), "{people}");
    let report = region.expect_clean_and_idle().await;
    assert_eq!((&report["pending"], &report["leaked_bytes"]), (&json!([]), &json!(0)), "{report}");
    let info = region.info().await;
    assert_eq!((&info["hosts"][0]["alive"], &info["hosts"][0]["workers"]), (&json!(false), &json!(0)), "{info}");
    let other = cenote(["pool", "history", "--region", &region.name, "--host", "1", "--json"]).ok().await.json();
    assert_eq!(other, json!([]));
    assert!(std::fs::read(region.path()).expect("a file") == before, "nothing is written");
    assert!(!std::path::Path::new(&format!("/dev/shm/cenote-{uuid}-h0")).exists(), "info joins nothing");
}

#[tokio::test]
async fn every_report_can_go_to_a_file() {
    let region = Region::create("16MiB").await;
    let dir = tempfile::tempdir().expect("a directory");
    for (command, key) in [("info", "uuid"), ("check", "leaks"), ("gc", "blocks_freed")] {
        let file = dir.path().join(command);
        let file = file.to_str().expect("UTF-8");
        let outcome = cenote(["pool", command, "--region", &region.name, "--json", file]).ok().await;
        assert!(!outcome.out.starts_with('{') && outcome.out.lines().count() > 3, "a table is printed: {outcome:?}");
        let written = std::fs::read_to_string(file).expect("the file is there");
        let report: Value = serde_json::from_str(&written).expect("JSON");
        assert!(report.get(key).is_some(), "{report}");
    }
}

#[tokio::test]
async fn a_region_with_blocks_is_kept_without_force() {
    let region = Region::create("64MiB").await;
    let server = Server::start(&["--region", &region.name]).await;
    server.client.complete(&greedy(&tokens(1, 200), 2)).await;
    let info = region.info().await;
    assert_eq!(info["namespaces"][0]["label"], "demo", "{info}");
    assert_eq!(info["blocks_ready"], 12, "200 tokens are twelve whole blocks: {info}");
    assert_eq!(region.workers("serve").await, [server.pid]);
    let people = cenote(["pool", "info", "--region", &region.name]).ok().await.out;
    assert!(["demo", "serve", "pool_published_total"].iter().all(|word| people.contains(word)), "{people}");
    server.stop().await;

    let report = region.expect_clean_and_idle().await;
    assert_eq!((&report["ready"], &report["payloads_verified"]), (&json!(12), &json!(12)), "{report}");
    let quick = cenote(["pool", "check", "--quick", "--json", "--region", &region.name]).ok().await.json();
    assert_eq!((&quick["ready"], &quick["payloads_verified"]), (&json!(12), &json!(0)), "{quick}");
    assert_eq!(region.run("gc").await.json()["blocks_freed"], 0);
    assert_eq!(region.info().await["blocks_ready"], 12, "gc takes nothing that can be found");

    let host_memory = |info: &Value| {
        let uuid = info["uuid"].as_str().expect("a text");
        std::path::PathBuf::from(format!("/dev/shm/cenote-{uuid}-h0"))
    };
    assert!(host_memory(&info).exists());
    let create = |size| cenote(["pool", "create", "--region", &region.name, "--size", size, "--force"]);
    create("65MiB").fails(&["68157440 are wanted"]).await;
    assert_eq!(region.info().await["blocks_ready"], 12, "what cannot be made anew is left as it is");
    create("64MiB").ok().await;
    assert!(!host_memory(&info).exists(), "the old pool's memory on this host is left");
    assert_eq!(region.info().await["blocks_ready"], 0);
    region.expect_clean_and_idle().await;
}

/// A region's blocks, and its stores and evictions while a follower polls.
#[tokio::test]
async fn blocks_are_followed() {
    let region = Region::name_only();
    cenote(["pool", "create", "--region", &region.name, "--size", "64MiB", "--events", "64"]).ok().await;
    let snapshot = async || {
        let told = cenote(["pool", "events", "--for", "0", "--region", &region.name]).ok().await.out;
        told.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")).collect::<Vec<_>>()
    };
    let empty = snapshot().await;
    assert_eq!((empty.len(), &empty[0]["event"], &empty[0]["reason"]), (1, &json!("resync"), &json!("begun")));
    let server = Server::start(&["--region", &region.name]).await;
    let name = region.name.clone();
    let follow = cenote(["pool", "events", "--for", "20", "--region", &name]);
    let complete = async {
        server.client.complete(&greedy(&tokens(1, 200), 2)).await;
        server.stop().await;
    };
    let (followed, ()) = tokio::join!(follow.ok(), complete);
    let lines: Vec<Value> = followed.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let stored: Vec<&Value> = lines.iter().filter(|line| line["event"] == "stored").collect();
    assert_eq!(stored.len(), 12, "200 tokens are twelve whole blocks: {lines:?}");
    for (depth, line) in stored.iter().enumerate() {
        let what = (&line["model"], &line["block_tokens"], &line["depth"]);
        assert_eq!(what, (&json!("demo"), &json!(16), &json!(depth)), "{line}");
    }
    let known = snapshot().await;
    let hashes =
        |lines: &[&Value]| lines.iter().map(|line| line["hash"].to_string()).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(hashes(&known[1..].iter().collect::<Vec<_>>()), hashes(&stored), "a later reader gets the same");
    let silent = Region::name_only();
    cenote(["pool", "create", "--region", &silent.name, "--size", "16MiB"]).ok().await;
    cenote(["pool", "events", "--for", "0", "--region", &silent.name]).fails(&["keeps no events", "--events"]).await;
    cenote(["pool", "create", "--region", "shm:x", "--size", "16MiB", "--events", "7"])
        .fails(&["7 events per host"])
        .await;
}

/// Earlier, `cenote pool events | head -1` did not end before the next event.
#[tokio::test]
async fn commands_that_follow_end_with_their_reader() {
    let region = Region::name_only();
    cenote(["pool", "create", "--region", &region.name, "--size", "16MiB", "--events", "64"]).ok().await;
    // A process joins, which is the first record.
    cenote(["pool", "gc", "--region", &region.name]).ok().await;
    for command in [&["pool", "events"][..], &["pool", "history", "-f"], &["stat"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_cenote"))
            .args(command)
            .args(["--region", &region.name])
            .stdout(writer)
            .spawn()
            .expect("the command runs");
        let mut lines = std::io::BufReader::new(reader).lines();
        lines.next().expect("a line of the start").expect("text");
        drop(lines);
        assert!(child.wait().expect("its end").success(), "{command:?}");
    }
}

/// A follower of a removed region went on with its memory, and reported blocks that no new process finds.
#[tokio::test]
async fn events_of_a_region_that_another_replaced_end() {
    let (region, other) = (Region::name_only(), Region::name_only());
    let create = |name: &str| {
        let name = name.to_owned();
        async move { cenote(["pool", "create", "--region", &name, "--size", "16MiB", "--events", "64"]).ok().await }
    };
    create(&region.name).await;
    let follow =
        cenote(["pool", "events", "--region", &region.name]).fails(&["removed or made anew", "run the command again"]);
    tokio::pin!(follow);
    // The follower may begin before or after the first replacement.
    loop {
        let replace = async {
            create(&other.name).await;
            std::fs::rename(other.path(), region.path()).expect("both lie in shared memory");
        };
        tokio::select! {
            ended = &mut follow => break drop(ended),
            () = replace => {}
        }
    }
}

#[tokio::test]
async fn host_memory_of_a_removed_region_is_swept() {
    let region = Region::create("8MiB").await;
    region.run("gc").await.json();
    let uuid = region.info().await["uuid"].as_str().expect("a text").to_owned();
    let memory = std::path::PathBuf::from(format!("/dev/shm/cenote-{uuid}-h0"));
    let next = Region::create("8MiB").await;
    assert!(memory.exists(), "its region is there");
    std::fs::remove_file(region.path()).expect("it is ours");
    cenote(["pool", "create", "--region", &next.name, "--size", "8MiB", "--force"]).ok().await;
    assert!(!memory.exists());
}

#[tokio::test]
async fn a_model_over_its_quota_keeps_serving() {
    let region = Region::create("64MiB").await;
    let server = Server::start(&["--region", &region.name]).await;
    server.client.complete(&greedy(&tokens(1, 200), 2)).await;
    let model = async || region.info().await["namespaces"][0].clone();
    let before = model().await;
    let block = before["block_bytes"].as_u64().expect("a number");
    assert_eq!((&before["used_bytes"], &before["quota_bytes"]), (&json!(12 * block), &json!(0)));
    let quota = |namespace: &str, bytes: &str| cenote(["pool", "quota", "--region", &region.name, namespace, bytes]);
    let facts = ["`nobody` does not name one of its models", "hint: its models are: 0 (demo, "];
    quota("nobody", "1GiB").fails(&facts).await;
    quota("demo", "lots").fails(&["`lots` is not a size"]).await;
    let five = 5 * block;
    assert!(quota("demo", &five.to_string()).ok().await.err.contains("demo may take"));
    let prompt = greedy(&tokens(2, 200), 2);
    let answer = server.client.complete(&prompt).await;
    let after = model().await;
    assert_eq!((&after["used_bytes"], &after["quota_bytes"]), (&json!(five), &json!(five)));
    assert_eq!(server.client.complete(&prompt).await.text, answer.text);
    // No block fits a limit below one block; a refusal is no error of the engine's.
    quota("0", "100").ok().await;
    let refused = server.client.complete(&greedy(&tokens(3, 200), 2)).await;
    assert_eq!(refused.cached_tokens, 0);
    let info = region.info().await;
    assert!(info["counters"]["pool_quota_refused_total"].as_u64() > Some(0), "{info}");
    let people = cenote(["pool", "info", "--region", &region.name]).ok().await.out;
    assert!(people.contains("quota") && people.contains("100 B"), "{people}");
    region.expect_clean().await;
    server.stop().await;
    region.expect_clean_and_idle().await;
}

/// A payload's byte is turned in the file: `check` tells and exits with 2, `gc` takes the block
/// out.
#[tokio::test]
async fn a_rotten_payload_is_found_and_taken_out() {
    let region = Region::create("64MiB").await;
    let prompt = greedy(&tokens(1, 200), 2);
    let server = Server::start(&["--region", &region.name]).await;
    let answer = server.client.complete(&prompt).await;
    let mut bytes = std::fs::read(region.path()).expect("the region is a file");
    // The last byte that is not zero is in the payload of some block.
    let last = bytes.iter().rposition(|&byte| byte != 0).expect("there are blocks");
    bytes[last] ^= 1;
    std::os::unix::fs::FileExt::write_at(
        &std::fs::OpenOptions::new().write(true).open(region.path()).expect("it is ours"),
        &bytes[last..=last],
        last as u64,
    )
    .expect("it is written");
    let outcome = region.run("check").await;
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert_eq!(outcome.json()["damage"].as_array().map(Vec::len), Some(1), "{outcome:?}");
    assert!(outcome.err.contains("hint: cenote pool gc"), "{outcome:?}");
    let people = cenote(["pool", "check", "--region", &region.name]).run().await.out;
    assert!(people.contains("means: reads of it are misses") && people.contains("repair: cenote pool gc"), "{people}");
    assert_eq!(server.client.complete(&prompt).await.text, answer.text, "a rotten block is a miss");
    assert_eq!(region.run("gc").await.code, Some(0));
    region.expect_clean().await;
    server.stop().await;
}

/// A killed server leaves its region and its host memory. Both are shown as orphans, and the next
/// command removes them.
#[tokio::test]
async fn orphans_of_a_killed_server_are_listed_and_removed() {
    let server = Server::start(&["--region-size", "64MiB"]).await;
    let name = own_region("serve", server.pid);
    let listed = async || -> Option<Value> {
        let list = bare(["pool", "list", "--json"]).ok().await.json();
        list.as_array().expect("an array").iter().find(|found| found["region"] == name.as_str()).cloned()
    };
    let found = listed().await.expect("the server's region is listed");
    assert_eq!((&found["state"], &found["users"][0]["pid"]), (&"in_use".into(), &server.pid.into()), "{found}");
    assert!(found["memory_bytes"].as_u64() >= Some(64 << 20), "{found}");
    let uuid = bare(["pool", "info", "--json", "--region", &name]).ok().await.json()["uuid"].clone();
    let left = || {
        let files = std::fs::read_dir("/dev/shm").expect("shared memory").flatten();
        let names: Vec<String> = files.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        let uuid = uuid.as_str().expect("a text");
        names.iter().filter(|file| name.ends_with(file.as_str()) || file.contains(uuid)).count()
    };
    assert_eq!(left(), 2, "the region and its host memory");

    server.kill().await;
    // The next command may be another test's.
    if let Some(found) = listed().await {
        assert_eq!(found["state"], "orphan", "{found}");
        let table = bare(["pool", "list"]).ok().await;
        let doctor = bare(["doctor", "--json"]).ok().await.json();
        assert!(left() == 0 || table.out.contains("orphan") && doctor["orphans"].to_string().contains(&name));
    }
    let region = Region::create("16MiB").await;
    assert_eq!(left(), 0, "making a region removes what was left");
    region.expect_clean_and_idle().await;
}

/// Memory outlives the process that allocated it, so what nothing leads to is listed by its maker
/// and freed on request only.
#[tokio::test]
async fn memory_of_a_dead_program_is_listed_and_freed_on_request() {
    let region = Region::create("16MiB").await;
    {
        let source = region.name.parse().expect("a region");
        let fabric = open_region(&source, &MapOptions::default()).expect("it is there");
        let pool = Pool::attach(fabric, &AttachOptions::named("program")).expect("a slot is free");
        for bytes in [100, 5_000, 100_000] {
            pool.allocate(bytes).expect("there is room");
        }
        let named = pool.allocate(64).expect("there is room");
        pool.name_memory("root", named).expect("the table has room");
        pool.allocate_lock().expect("one is free");
    }
    region.run("gc").await.json();
    let info = region.info().await;
    let memory = &info["memory"];
    assert_eq!((&memory["pieces"], &memory["named_pieces"], &info["locks_given"]), (&json!(3), &json!(1), &json!(1)));
    assert_eq!(memory["makers"][0]["alive"], false, "{info}");
    let maker = memory["makers"][0]["maker"].as_str().expect("a text").to_owned();
    let shown = cenote(["pool", "info", "--region", &region.name]).ok().await;
    assert!(shown.out.contains("3 pieces without a name") && shown.out.contains(&maker), "{}", shown.out);
    let report = region.run("check").await.json();
    assert_eq!(report["memory_of_users"], *memory, "{report}");

    let gc = ["pool", "gc", "--region", &region.name, "--json", "--free-memory"];
    cenote(gc.into_iter().chain(["worker 3"])).fails(&["host.slot.epoch"]).await;
    let freed = cenote(gc.into_iter().chain([maker.as_str()])).ok().await.json();
    assert_eq!(freed["memory_freed"]["pieces"], 3, "{freed}");
    assert_eq!(cenote(gc.into_iter().chain(["dead"])).ok().await.json()["memory_freed"]["pieces"], 0);
    let info = region.info().await;
    assert_eq!((&info["memory"]["pieces"], &info["memory"]["named_pieces"]), (&json!(0), &json!(1)), "{info}");
}
