//! `cenote-lab bench cold`: L4 beside plain files, and the first token of a prompt whose blocks lie
//! there.

use super::rows::{Row, Times, median};
use super::ttft::Bench;
use super::{Part, Setting};
use cenote_base::{BlockHash, Deadline, HashSeed};
use cenote_console::args::{EngineArgs, NewRegionArgs, WatchArgs};
use cenote_console::engine;
use cenote_console::failure::Failure;
use cenote_console::region::TemporaryRegion;
use cenote_mem::{Coherent, MapOptions, Mapping, RegionSource};
use cenote_pool::{AttachOptions, Namespace, NamespaceRecord, NewBlock, Pool, PoolConfig, Superblock};
use cenote_store::cold::{ColdTier, Settings, seed_of};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const PARTS: &[Part] =
    &[Part { name: "cold-copies", measure: copies }, Part { name: "cold-ttft", measure: first_tokens }];

const BLOCK_BYTES: u64 = 512 << 10;
const PATIENCE: Duration = Duration::from_secs(60);
/// The first token of a prompt from L4 must take at most this part of computing it.
const TTFT_GOAL: f64 = 0.5;

/// A directory in the working directory's file system, removed when this value is dropped: the
/// system's temporary directory may be memory.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Self, Failure> {
        let path = std::env::current_dir()?.join(format!(".cenote-bench-cold-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn settings(directory: &Path) -> Result<Settings, Failure> {
    Ok(format!("{},size=4GiB,deadline=60", directory.display()).parse()?)
}

/// A region of this process with L4 below it.
struct World {
    pool: Pool<Arc<Coherent>>,
    namespace: Namespace,
    cold: Arc<ColdTier>,
}

impl World {
    fn open(directory: &Path, bytes: u64) -> Result<Self, Failure> {
        let settings = settings(directory)?;
        let config = PoolConfig::new(seed_of(&settings.place, &HashSeed([1; 32]))?, [2; 16]);
        let options = MapOptions { prefault: true, ..MapOptions::default() };
        let mapping = Mapping::create(&RegionSource::Anon, bytes + (64 << 20), 0o600, &options)?;
        let fabric = Arc::new(Coherent::new(mapping));
        Superblock::format(&fabric, &PoolConfig { max_hosts: 1, workers_per_host: 2, ..config })?;
        let pool = Pool::attach(fabric, &AttachOptions { private: true, ..AttachOptions::named("bench") })?;
        let namespace = pool.namespace(&NamespaceRecord {
            fingerprint: [5; 32],
            label: "bench".to_owned(),
            block_bytes: BLOCK_BYTES,
            block_tokens: 16,
            num_layers: 1,
        })?;
        let cold = ColdTier::start(pool.clone(), &settings)?;
        cold.open(&namespace);
        if !cold.wait_open(Deadline::after(PATIENCE)) {
            return Err(Failure::new(format!("the cold tier does not open: {:?}", cold.last_error())));
        }
        Ok(Self { pool, namespace, cold })
    }
}

/// Gigabytes per second of writing behind and of promotion, beside one thread that writes and reads
/// a plain file of the same bytes.
fn copies(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let count = setting.choose(512, 64);
    let bytes = count * BLOCK_BYTES;
    let payload: Vec<u8> = (0..BLOCK_BYTES).map(|at| ((at * 31) >> 3) as u8).collect();
    let (mut plain_write, mut plain_read, mut write, mut read) = (vec![], vec![], vec![], vec![]);
    for _ in 0..3 {
        let directory = Directory::new()?;
        let begin = Instant::now();
        let file = File::create_new(directory.0.join("plain"))?;
        (0..count).try_for_each(|number| file.write_all_at(&payload, number * BLOCK_BYTES))?;
        file.sync_data()?;
        plain_write.push(begin.elapsed().as_nanos() as f64);
        let world = World::open(&directory.0, bytes)?;
        let hashes: Vec<BlockHash> =
            (0..count).map(|number| world.namespace.hasher.alias(&number.to_le_bytes())).collect();
        for (depth, &hash) in (0..).zip(&hashes) {
            world.pool.publish(&NewBlock::new(&world.namespace, hash, depth), &[&payload]);
        }
        let begin = Instant::now();
        world.cold.offer(&world.namespace, hashes.iter().copied());
        world.cold.settle(Deadline::after(PATIENCE));
        write.push(begin.elapsed().as_nanos() as f64);
        drop(world);
        let file = File::open(directory.0.join("plain"))?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        let begin = Instant::now();
        let mut buffer = vec![0; BLOCK_BYTES as usize];
        (0..count).try_for_each(|number| file.read_exact_at(&mut buffer, number * BLOCK_BYTES))?;
        plain_read.push(begin.elapsed().as_nanos() as f64);
        let world = World::open(&directory.0, bytes)?;
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
    let directory = Directory::new()?;
    let cold = Some(settings(&directory.0)?);
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
