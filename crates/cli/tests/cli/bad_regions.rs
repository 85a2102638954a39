//! Files that are no regions, and regions that cannot be created: the error names the file and the
//! fact, and nothing stays behind.

use super::support::process::{Server, cenote};
use super::support::region::Region;
use std::fs;
use std::os::unix::fs::FileExt;

/// Words of the superblock (docs/internals/format.md#superblock).
const VERSION_AT: u64 = 8;
const LAYOUT_AT: u64 = 16;
const SEED_AT: u64 = 96;

/// Every command that opens a region refuses this one, names it and prints `fact`.
async fn refused(name: &str, fact: &str) {
    let file = name.strip_prefix("shm:").unwrap_or(name);
    for command in [&["pool", "info"][..], &["pool", "check", "--json"], &["pool", "gc"], &["pool", "destroy"]] {
        cenote(command.iter().copied().chain(["--region", name])).fails(&[file, fact]).await;
    }
    let generate = ["generate", "--prompt", "x", "--max-tokens", "1", "--region", name];
    cenote(generate).fails(&[file, fact]).await;
    for workers in [&[][..], &["--prefill", "1", "--decode", "1"]] {
        let serve = ["serve", "--port", "0", "--region", name, "--region-size", "32MiB"];
        cenote(serve.iter().chain(workers).copied()).fails(&[file, fact]).await;
    }
}

#[tokio::test]
async fn files_that_are_no_regions_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, bytes, fact) in [
        ("empty", Vec::new(), "it is empty"),
        ("garbage", b"This is a letter.".repeat(4096), "this is not a Cenote region"),
        ("odd", vec![7; 5000], "not whole pages"),
        ("zeros", vec![0; 1 << 20], "the region is empty or its creation never finished"),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, &bytes).expect(name);
        refused(path.to_str().expect("UTF-8"), fact).await;
        assert_eq!(fs::read(&path).expect(name), bytes, "{name} was changed");
    }
    refused(dir.path().to_str().expect("UTF-8"), "it is a directory").await;
}

#[tokio::test]
async fn regions_that_do_not_hold_are_refused() {
    for (at, fact) in [
        (0, "this is not a Cenote region"),
        (VERSION_AT, "format version"),
        (LAYOUT_AT, "another build made the region"),
        (SEED_AT, "the superblock's check word is wrong"),
    ] {
        let region = Region::create("8MiB").await;
        let file = fs::OpenOptions::new().read(true).write(true).open(region.path()).expect("it is ours");
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("it is long enough");
        file.write_all_at(&[byte[0] ^ 0x40], at).expect("it is ours");
        refused(&region.name, fact).await;
        cenote(["pool", "destroy", "--force", "--region", &region.name]).ok().await;
        assert!(region.files().is_empty());
    }
    let region = Region::create("8MiB").await;
    let file = fs::OpenOptions::new().write(true).open(region.path()).expect("it is ours");
    file.set_len(4 << 20).expect("it is ours");
    refused(&region.name, "the region is 4 MiB long, but its superblock says 8 MiB").await;
}

#[tokio::test]
async fn a_failed_creation_leaves_nothing_behind() {
    let region = Region::name_only();
    for (flags, fact) in [
        (&["--size", "1MiB"][..], "1 MiB"),
        (&["--size", "4KiB"], "4 KiB"),
        (&["--size", "0"], "0"),
        (&["--size", "60TiB"], "no space for"),
        (&["--size", "64MiB", "--chunk-size", "3MiB"], "chunk size 3145728 is not a power of two"),
        (&["--size", "64MiB", "--chunk-size", "64MiB"], "64 MiB"),
        (&["--size", "64MiB", "--min-block", "32"], "smallest block 32 is not a power of two"),
        (&[], "a new region needs a size"),
    ] {
        let create = ["pool", "create", "--region", &region.name];
        cenote(create.iter().chain(flags).copied()).fails(&[fact]).await;
        assert!(region.files().is_empty(), "{flags:?} left {:?}", region.files());
    }
    let nowhere = ["pool", "create", "--region", "no-such-dir/region", "--size", "8MiB"];
    cenote(nowhere).fails(&["no-such-dir/region", "mkdir -p no-such-dir"]).await;
    // A server that would create its region, but not of this size.
    let serve = ["serve", "--port", "0", "--region", &region.name, "--region-size", "1MiB"];
    cenote(serve).fails(&["1 MiB"]).await;
    assert!(region.files().is_empty());
}

#[tokio::test]
async fn an_ineffective_size_is_reported() {
    let region = Region::create("64MiB").await;
    for (size, is_told) in [("32MiB", true), ("64MiB", false)] {
        let server = Server::start(&["--region", &region.name, "--region-size", size]).await;
        let told = format!("--region-size 32 MiB has no effect: {} exists already and has 64 MiB", region.name);
        assert_eq!(server.words().contains(&told), is_told, "{}", server.words());
        server.stop().await;
    }
}

#[tokio::test]
async fn a_block_larger_than_a_chunk_is_refused() {
    let region = Region::name_only();
    let create = ["pool", "create", "--region", &region.name, "--size", "16MiB", "--chunk-size", "64KiB"];
    cenote(create).ok().await;
    let large_blocks = ["generate", "--prompt", "x", "--block-tokens", "64", "--region", &region.name];
    cenote(large_blocks).fails(&["create the region with a larger chunk size"]).await;
    region.expect_clean_and_idle().await;
}

#[tokio::test]
async fn a_command_that_is_killed_while_it_joins_leaves_a_sound_region() {
    let region = Region::create("8MiB").await;
    let gc = ["pool", "gc", "--region", &region.name];
    let killed = cenote(gc).env("CENOTE_FAULT", "join.registered:1").run().await;
    assert_eq!(killed.code, None, "it died at the point: {killed:?}");
    region.expect_clean_and_idle().await;
}
