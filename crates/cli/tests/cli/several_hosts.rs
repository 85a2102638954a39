//! Regions for several hosts. This machine plays each of them in turn, one per command.

use super::support::process::{cenote, signal};
use super::support::region::Region;
use super::support::{say, soon, until};
use cenote_mem::Flush;
use rustix::process::Signal;
use serde_json::json;
use std::os::unix::fs::FileExt;

/// A region that hosts share with this processor's best instruction; `None` if it has none.
async fn shared(flags: &[&str]) -> Option<(Region, Flush)> {
    let Some(flush) = Flush::best() else {
        say("not tested: this processor has no flush instruction that is known");
        return None;
    };
    let region = Region::name_only();
    let create = ["pool", "create", "--region", &region.name, "--size", "64MiB", "--max-hosts", "3", "--flush", "auto"];
    cenote(create.iter().chain(flags).copied()).ok().await;
    Some((region, flush))
}

#[tokio::test]
async fn one_host_finds_blocks_of_another() {
    let Some((region, flush)) = shared(&[]).await else { return };
    let prompt = "A cenote is a natural pit, or sinkhole, that exposes the groundwater below. ".repeat(4);
    let generate = ["generate", "--prompt", &prompt, "--max-tokens", "2", "--json", "--region", &region.name];
    let cold = cenote(generate).ok().await.json();
    let warm = cenote(generate).env("CENOTE_HOST_SLOT", "2").ok().await.json();
    assert_eq!(cold["usage"]["cached_tokens"], 0, "{cold}");
    assert!(warm["usage"]["cached_tokens"].as_u64() > Some(0), "{warm}");
    assert_eq!(warm["tokens"], cold["tokens"], "the same text, wherever its KV comes from");

    let info = cenote(["pool", "info", "--json", "--region", &region.name, "--host-slot", "1"]).ok().await.json();
    assert_eq!((&info["flush"], &info["fabric"]), (&json!(flush.name()), &json!("flushed")), "{info}");
    assert_eq!((&info["hosts_lock"], &info["max_hosts"]), (&json!("bakery"), &json!(3)), "{info}");
    assert_eq!(info["host"], 1, "{info}");
    let hosts = info["hosts"].as_array().expect("an array");
    let known = |row: &serde_json::Value| (row["host"].clone(), row["alive"].clone(), row["workers"].clone());
    let rows: Vec<_> = hosts.iter().map(known).collect();
    // No worker is left, and `info` does not join.
    assert_eq!(rows, [(json!(0), json!(false), json!(0)), (json!(2), json!(false), json!(0))], "{info}");
    assert!(hosts[0]["chunks"].as_u64() > Some(0), "{info}");
    let people = cenote(["pool", "info", "--region", &region.name]).ok().await.out;
    assert!(people.contains(&format!("up to 3, flushed with {flush}, locks of kind bakery")), "{people}");
    for host in ["0", "1", "2"] {
        cenote(["pool", "check", "--region", &region.name, "--host-slot", host]).ok().await;
    }
}

#[tokio::test]
async fn the_settings_file_says_which_host_this_is() {
    let Some((region, _)) = shared(&[]).await else { return };
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("cenote.toml"), "host-slot = 2\n").expect("it is written");
    let info = cenote(["pool", "info", "--json", "--region", &region.name]).current_dir(dir.path()).ok().await.json();
    assert_eq!(info["host"], 2, "{info}");
    let info = ["pool", "info", "--region", &region.name, "--host-slot", "3"];
    cenote(info).fails(&["host 3: the region has host slots 0 to 2"]).await;
    let alone = Region::create("8MiB").await;
    let info = ["pool", "info", "--region", &alone.name, "--host-slot", "1"];
    cenote(info).fails(&["host 1: this region is shared by the processes of one host"]).await;
}

#[tokio::test]
async fn a_host_is_fenced_by_its_number() {
    let Some((region, _)) = shared(&[]).await else { return };
    cenote(["pool", "gc", "--region", &region.name, "--host-slot", "1"]).ok().await;
    let fence = |host| cenote(["pool", "fence", "--region", &region.name, "--dead-host", host]);
    assert!(fence("1").ok().await.err.contains("host 1 is declared dead"));
    fence("0").fails(&["host 0: it is the one that asks"]).await;
    fence("2").fails(&["host 2: it never attached"]).await;
    let info = cenote(["pool", "info", "--json", "--region", &region.name]).ok().await.json();
    assert_eq!(info["counters"]["pool_hosts_declared_dead_total"], 1, "{info}");
    assert_eq!((&info["hosts"][1]["host"], &info["hosts"][1]["marked_dead"]), (&json!(1), &json!(true)), "{info}");
    // A dead host that returns begins a new life.
    cenote(["pool", "gc", "--region", &region.name, "--host-slot", "1"]).ok().await;
    let info = cenote(["pool", "info", "--json", "--region", &region.name]).ok().await.json();
    let second = &info["hosts"][1];
    assert_eq!((&second["incarnation"], &second["marked_dead"]), (&json!(2), &json!(false)), "{info}");
}

/// Computes the superblock's check word (docs/internals/format.md#superblock).
fn check_word(superblock: &[u8]) -> u64 {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    superblock.chunks_exact(8).take(23).map(word).fold(0x243f_6a88_85a3_08d3, |sum, word| {
        let mixed = (sum ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ (mixed >> 32)
    })
}

#[tokio::test]
async fn an_instruction_that_this_processor_lacks_is_named() {
    let lacking = if cfg!(target_arch = "aarch64") { Flush::Clwb } else { Flush::DcCivac };
    let fact = format!("this processor lacks the flush instruction {lacking}");
    let region = Region::name_only();
    let create = ["pool", "create", "--region", &region.name, "--size", "8MiB", "--flush", lacking.name()];
    cenote(create).fails(&[&fact]).await;
    assert!(region.files().is_empty());

    // A region from another machine.
    let region = Region::create("8MiB").await;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(region.path()).expect("it is ours");
    let mut superblock = [0; 192];
    file.read_exact_at(&mut superblock, 0).expect("it is longer");
    superblock[88] = lacking as u8;
    let check = check_word(&superblock);
    superblock[184..].copy_from_slice(&check.to_le_bytes());
    file.write_all_at(&superblock, 0).expect("it is written");
    cenote(["pool", "info", "--region", &region.name]).fails(&[&region.name, &fact]).await;
}

#[tokio::test]
async fn a_manager_grants_the_locks_of_its_region() {
    let alone = Region::create("8MiB").await;
    cenote(["pool", "manage", "--region", &alone.name]).fails(&["need no manager"]).await;
    let Some((region, _)) = shared(&["--hosts-lock", "manager"]).await else { return };
    let mut manager = cenote(["pool", "manage", "--region", &region.name]).spawn();
    let gc = async || {
        let gc = cenote(["pool", "gc", "--json", "--region", &region.name, "--host-slot", "1"]).run().await;
        (gc.code == Some(0)).then_some(())
    };
    until("a lock", gc).await;
    let info = cenote(["pool", "info", "--json", "--region", &region.name, "--host-slot", "1"]).ok().await.json();
    assert_eq!(info["hosts_lock"], "manager", "{info}");
    signal(manager.id().expect("it runs"), Signal::TERM);
    assert!(soon("the manager's end", manager.wait()).await.expect("it is our child").success());
}
