//! `cenote-lab bench cold`: L4 beside plain files, and the first token of a prompt whose blocks lie
//! there.

use super::rows::{Row, Times, median};
use super::ttft::Bench;
use super::{Part, Setting};
use crate::args::ColdFullChildArgs;
use crate::commands::cold_region::{ColdRegion, Shape};
use cenote_base::{BlockHash, Clock, Engine, HashSeed};
use cenote_console::args::{EngineArgs, NewRegionArgs, WatchArgs};
use cenote_console::engine;
use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_console::region::TemporaryRegion;
use cenote_store::cold::Settings;
use cenote_store::snapshot;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const PARTS: &[Part] = &[
    Part { name: "cold-copies", measure: copies },
    Part { name: "cold-ttft", measure: first_tokens },
    Part { name: "cold-full", measure: full_disk },
    Part { name: "cold-snapshot", measure: snapshots },
];

const BLOCK_BYTES: u64 = 512 << 10;
const PATIENCE: Duration = Duration::from_secs(60);
/// The first token of a prompt from L4 must take at most this part of computing it.
const TTFT_GOAL: f64 = 0.5;
/// A new region must find this part of the blocks.
const FOUND_GOAL: f64 = 0.95;
/// The first token of a computed prompt beside a full disk, against the same without a cold tier.
const FULL_GOAL: f64 = 1.15;
/// Tokens of a prompt.
const TOKENS: u32 = 1500;

/// A directory in the working directory's file system: the system's temporary directory may be
/// memory.
fn directory() -> Result<TempDir, Failure> {
    Ok(tempfile::Builder::new().prefix(".cenote-bench-cold-").tempdir_in(std::env::current_dir()?)?)
}

fn settings(directory: &Path) -> Result<Settings, Failure> {
    Ok(format!("{},size=4GiB,deadline=60", directory.display()).parse()?)
}

/// A region with room for so many bytes of blocks.
fn region(directory: &Path, bytes: u64) -> Result<ColdRegion, Failure> {
    let shape =
        Shape { region_bytes: bytes + (64 << 20), chunk_bytes: 2 << 20, block_bytes: BLOCK_BYTES, prefault: true };
    ColdRegion::open(&settings(directory)?, HashSeed([1; 32]), shape)
}

/// Gigabytes per second of writing behind and of promotion, beside one thread that writes and reads
/// a plain file of the same bytes.
fn copies(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let count = setting.choose(512, 64);
    let bytes = count * BLOCK_BYTES;
    let payload: Vec<u8> = (0..BLOCK_BYTES).map(|at| ((at * 31) >> 3) as u8).collect();
    let (mut plain_write, mut plain_read, mut write, mut read) = (vec![], vec![], vec![], vec![]);
    let mut least_found = count;
    for _ in 0..3 {
        let directory = directory()?;
        let begin = Instant::now();
        let file = File::create_new(directory.path().join("plain"))?;
        (0..count).try_for_each(|number| file.write_all_at(&payload, number * BLOCK_BYTES))?;
        file.sync_data()?;
        plain_write.push(begin.elapsed().as_nanos() as f64);
        let world = region(directory.path(), bytes)?;
        let hashes: Vec<BlockHash> = (0..count).map(|number| world.hash(number)).collect();
        if !(0..count).all(|number| world.publish(number, &payload)) {
            return Err(Failure::new("the region has no room for the blocks"));
        }
        let begin = Instant::now();
        world.cold.offer(&world.namespace, hashes.iter().copied());
        world.cold.settle(Clock::system().after(PATIENCE));
        write.push(begin.elapsed().as_nanos() as f64);
        drop(world);
        let file = input::open(directory.path().join("plain")).map_err(Failure::new)?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        let begin = Instant::now();
        let mut buffer = vec![0; BLOCK_BYTES as usize];
        (0..count).try_for_each(|number| file.read_exact_at(&mut buffer, number * BLOCK_BYTES))?;
        plain_read.push(begin.elapsed().as_nanos() as f64);
        let world = region(directory.path(), bytes)?;
        let begin = Instant::now();
        if let Some(promotion) = world.cold.promote(&world.namespace, &hashes) {
            promotion.wait();
        }
        read.push(begin.elapsed().as_nanos() as f64);
        least_found = least_found.min(world.pool.peek(&hashes).len() as u64);
    }
    let size = cenote_base::units::ByteSize(bytes);
    let row = |name: &str, times: &Times| Row::milliseconds(format!("{name} {size}"), times);
    Ok(vec![
        row("write a plain file", &plain_write),
        row("write behind", &write).ratio(median(&write) / median(&plain_write)),
        row("read a plain file", &plain_read),
        row("promote", &read).ratio(median(&read) / median(&plain_read)),
        found(&format!("blocks found of {count}"), least_found, count),
    ])
}

/// Gigabytes per second of a snapshot and of its restoration into another region, beside one thread that
/// writes and reads a plain file of the same bytes.
fn snapshots(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let count = setting.choose(2048, 64);
    let bytes = count * BLOCK_BYTES;
    let payload: Vec<u8> = (0..BLOCK_BYTES).map(|at| ((at * 31) >> 3) as u8).collect();
    let (mut plain_write, mut plain_read, mut save, mut restore) = (vec![], vec![], vec![], vec![]);
    let mut least_found = count;
    let failed = |error: snapshot::SnapshotError| Failure::new(error.to_string());
    for _ in 0..3 {
        let directory = directory()?;
        let (plain, path) = (directory.path().join("plain"), directory.path().join("snapshot"));
        let world = region(directory.path(), bytes)?;
        if !(0..count).all(|number| world.publish(number, &payload)) {
            return Err(Failure::new("the region has no room for the blocks"));
        }
        let begin = Instant::now();
        let file = File::create_new(&plain)?;
        (0..count).try_for_each(|number| file.write_all_at(&payload, number * BLOCK_BYTES))?;
        file.sync_data()?;
        plain_write.push(begin.elapsed().as_nanos() as f64);
        let begin = Instant::now();
        snapshot::save(&world.pool, &path).map_err(failed)?;
        save.push(begin.elapsed().as_nanos() as f64);
        let hashes: Vec<BlockHash> = (0..count).map(|number| world.hash(number)).collect();
        drop(world);
        let world = region(directory.path(), bytes)?;
        let file = input::open(&plain).map_err(Failure::new)?;
        let saved = input::open(&path).map_err(Failure::new)?;
        for file in [&file, &saved] {
            rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
        let begin = Instant::now();
        let mut buffer = vec![0; BLOCK_BYTES as usize];
        (0..count).try_for_each(|number| file.read_exact_at(&mut buffer, number * BLOCK_BYTES))?;
        plain_read.push(begin.elapsed().as_nanos() as f64);
        let begin = Instant::now();
        snapshot::restore(&world.pool, &path).map_err(failed)?;
        restore.push(begin.elapsed().as_nanos() as f64);
        least_found = least_found.min(world.pool.peek(&hashes).len() as u64);
    }
    let size = cenote_base::units::ByteSize(bytes);
    let row = |name: &str, times: &Times| Row::milliseconds(format!("{name} {size}"), times);
    Ok(vec![
        row("write a plain file", &plain_write),
        row("snapshot", &save).ratio(median(&save) / median(&plain_write)),
        row("read a plain file", &plain_read),
        row("restore", &restore).ratio(median(&restore) / median(&plain_read)),
        found(&format!("blocks restored of {count}"), least_found, count),
    ])
}

/// The part of blocks or tokens that a new region found.
pub fn found(name: &str, found: u64, all: u64) -> Row {
    let share = found as f64 / all as f64;
    Row { unit: "", ..Row::nanoseconds(name, &vec![found as f64]) }.ratio_at_least(share, FOUND_GOAL)
}

/// Time to first token of the demo model: computed, from L4 in a new region, and from that region.
fn first_tokens(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let directory = directory()?;
    first_tokens_from(setting, &settings(directory.path())?, "L4")
}

/// The same from a place, which rows call `name`.
pub fn first_tokens_from(setting: &Setting, place: &Settings, name: &str) -> Result<Vec<Row>, Failure> {
    let cold = Some(place.clone());
    let engine = EngineArgs { cold: cold.clone(), ..EngineArgs::of_model(None)? };
    let (repeat, tokens) = (setting.choose(9, 3) as u32, TOKENS);
    let mut least_found = u64::MAX;
    let (mut computed, mut from_l4, mut from_l3): (Times, Times, Times) = (vec![], vec![], vec![]);
    for round in 0..repeat {
        let prompt: Vec<u32> = (0..tokens).map(|at| 100 + (at * 7 + round * 13) % 150).collect();
        let new = NewRegionArgs { cold: cold.clone(), ..NewRegionArgs::of_size(256 << 20) };
        // The first region ends with its engine, as in a reboot.
        for life in 0..2 {
            let region = TemporaryRegion::make("bench-cold", &new)?;
            let running = engine::start(&engine, Some(region.args()), &WatchArgs::default(), "bench")?;
            let mut bench = Bench::new(running);
            bench.ask(&[0; 32], false)?;
            let (first, usage) = bench.ask(&prompt, true)?;
            if life == 0 {
                computed.push(first * 1e6);
            } else {
                least_found = least_found.min(u64::from(usage.cached_tokens));
                from_l4.push(first * 1e6);
                from_l3.push(bench.ask(&prompt, true)?.0 * 1e6);
            }
        }
    }
    let share = |times: &Times| median(times) / median(&computed);
    let (l4, l3) = (share(&from_l4), share(&from_l3));
    Ok(vec![
        Row::milliseconds(format!("ttft tokens={tokens} computed"), &computed),
        Row::milliseconds(format!("ttft tokens={tokens} from {name}"), &from_l4).ratio_at_most(l4, TTFT_GOAL),
        Row::milliseconds(format!("ttft tokens={tokens} from L3"), &from_l3).ratio(l3),
        // The last block is not full, and the last token is always computed.
        found(&format!("tokens found of {tokens}"), least_found, tokens.into()),
    ])
}

/// Script that runs `$0` with a file system of 8 MiB at `$1`. Only this process and its children see
/// it.
const SMALL_DISK: &str =
    r#"mount -t tmpfs -o size=8m none "$1" && exec "$0" cold-full-child --directory "$1" --repeat "$2""#;

/// Time to first token beside a disk that is full, against the same without a cold tier.
fn full_disk(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mount = tempfile::tempdir()?;
    let ran = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", SMALL_DISK])
        .arg(std::env::current_exe()?)
        .arg(mount.path())
        .arg(setting.choose(15, 5).to_string())
        .stderr(Stdio::inherit())
        .output()?;
    if !ran.status.success() {
        return Err(Failure::new("no small file system, or serving beside it failed")
            .hint("unshare(1) needs user namespaces; leave this part out with --only"));
    }
    let FullDisk { without, full, failed } = serde_json::from_slice(&ran.stdout)?;
    if failed == 0 {
        return Err(Failure::new("the disk was not full"));
    }
    let ratio = median(&full) / median(&without);
    Ok(vec![
        Row::milliseconds(format!("ttft tokens={TOKENS} without L4"), &without),
        Row::milliseconds(format!("ttft tokens={TOKENS} beside a full disk"), &full).ratio_at_most(ratio, FULL_GOAL),
    ])
}

/// Times to first token, in nanoseconds.
#[derive(Default, Deserialize, Serialize)]
struct FullDisk {
    without: Times,
    full: Times,
    /// Blocks that did not fit.
    failed: u64,
}

/// Serves new prompts with a directory on a small file system as cold tier, and without one, in turn.
pub fn run_full_child(args: &ColdFullChildArgs) -> Result<(), Failure> {
    let cold = Some(settings(&args.directory)?);
    let mut times = FullDisk::default();
    let start = |purpose: &str, cold: Option<Settings>| {
        let new = NewRegionArgs { cold: cold.clone(), ..NewRegionArgs::of_size(256 << 20) };
        let region = TemporaryRegion::make(purpose, &new)?;
        let engine = EngineArgs { cold, ..EngineArgs::of_model(None)? };
        let running = engine::start(&engine, Some(region.args()), &WatchArgs::default(), "bench")?;
        let mut bench = Bench::new(running);
        bench.ask(&[0; 32], false)?;
        Ok::<_, Failure>((region, bench))
    };
    let (_region, mut without) = start("bench-without", None)?;
    let (_other_region, mut full) = start("bench-full", cold)?;
    let prompt = |round: u32| -> Vec<u32> { (0..TOKENS).map(|at| 100 + (at * 7 + round * 13) % 150).collect() };
    // Fills the disk: a prompt has some mebibytes of blocks.
    let failed = |bench: &Bench| bench.running.engine.stats().values.get("cold_dropped_failed_total").copied();
    let deadline = Clock::system().after(PATIENCE);
    let mut round = 0;
    while failed(&full).unwrap_or(0.0) == 0.0 {
        if deadline.passed() {
            return Err(Failure::new("the disk does not become full"));
        }
        full.ask(&prompt(round), true)?;
        round += 1;
    }
    for round in round..round + args.repeat {
        times.without.push(without.ask(&prompt(round), true)?.0 * 1e6);
        times.full.push(full.ask(&prompt(round), true)?.0 * 1e6);
    }
    times.failed = failed(&full).unwrap_or(0.0) as u64;
    Ok(serde_json::to_writer(std::io::stdout(), &times)?)
}
