//! `cenote-lab bench cold`: L4 beside plain files, and the first token of a prompt whose blocks lie
//! there.

use super::rows::{Row, Times, median};
use super::ttft::Bench;
use super::{Part, Setting};
use crate::commands::cold_region::{ColdRegion, Shape};
use cenote_base::{BlockHash, Deadline, HashSeed};
use cenote_console::args::{EngineArgs, NewRegionArgs, WatchArgs};
use cenote_console::engine;
use cenote_console::failure::Failure;
use cenote_console::region::TemporaryRegion;
use cenote_store::cold::Settings;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const PARTS: &[Part] =
    &[Part { name: "cold-copies", measure: copies }, Part { name: "cold-ttft", measure: first_tokens }];

const BLOCK_BYTES: u64 = 512 << 10;
const PATIENCE: Duration = Duration::from_secs(60);
/// The first token of a prompt from L4 must take at most this part of computing it.
const TTFT_GOAL: f64 = 0.5;

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
        world.cold.settle(Deadline::after(PATIENCE));
        write.push(begin.elapsed().as_nanos() as f64);
        drop(world);
        let file = File::open(directory.path().join("plain"))?;
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
        let found = world.pool.peek(&hashes).len() as u64;
        if found < count * 95 / 100 {
            return Err(Failure::new(format!("{found} of {count} blocks came back")));
        }
    }
    let size = cenote_base::units::ByteSize(bytes);
    let row = |name: &str, times: &Times| Row::milliseconds(format!("{name} {size}"), times);
    Ok(vec![
        row("write a plain file", &plain_write),
        row("write behind", &write).ratio(median(&write) / median(&plain_write)),
        row("read a plain file", &plain_read),
        row("promote", &read).ratio(median(&read) / median(&plain_read)),
    ])
}

/// Time to first token of the demo model: computed, from L4 in a new region, and from that region.
fn first_tokens(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let directory = directory()?;
    let cold = Some(settings(directory.path())?);
    let engine = EngineArgs { cold: cold.clone(), ..EngineArgs::of_model(None)? };
    let (repeat, tokens) = (setting.choose(9, 3) as u32, 1500);
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
                if usage.cached_tokens < tokens * 95 / 100 {
                    return Err(Failure::new(format!("{} of {tokens} tokens came from L4", usage.cached_tokens)));
                }
                from_l4.push(first * 1e6);
                from_l3.push(bench.ask(&prompt, true)?.0 * 1e6);
            }
        }
    }
    let share = |times: &Times| median(times) / median(&computed);
    let (l4, l3) = (share(&from_l4), share(&from_l3));
    Ok(vec![
        Row::milliseconds(format!("ttft tokens={tokens} computed"), &computed),
        Row::milliseconds(format!("ttft tokens={tokens} from L4"), &from_l4).ratio_at_most(l4, TTFT_GOAL),
        Row::milliseconds(format!("ttft tokens={tokens} from L3"), &from_l3).ratio(l3),
    ])
}
