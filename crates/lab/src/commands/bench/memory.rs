//! `cenote-lab bench memory`: the calls and optimizations of CXL-SpecKV §3.6: memory by handle,
//! requests in batches, polled completions, NUMA binding, huge pages.
//!
//! Each part measures what the machine itself needs for the same work in the same run.

use super::child::Child;
use super::regions::{Shape, fabrics};
use super::rows::{Row, Times, median};
use super::worker::{Begin, Job, Worker, bare_memory, clock, hash_of, nanoseconds, published};
use super::{Part, Setting, waking};
use cenote_base::prng::Prng;
use cenote_console::failure::Failure;
use cenote_mem::{Fabric, Flush, MapOptions, Mapped, Mapping, RegionSource, numa, rows};
use cenote_pool::{NewBlock, RowRef, RowShape};
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

pub const PARTS: &[Part] = &[
    Part { name: "calls", measure: calls },
    Part { name: "batches", measure: batches },
    Part { name: "waking", measure: waking::measure },
    Part { name: "pages", measure: pages },
];

/// CXL-SpecKV §3.6.1: latency of a call.
const CALL_GOAL_NS: f64 = 500.0;
/// Calls without a reading of the clock between them.
const RUN: usize = 16;
/// Requests of one call.
const BATCHES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const BLOCK_BYTES: u64 = 4096;
const ROW_BYTES: u64 = 512;
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);

fn calls(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut all = Vec::new();
    for (fabric, flush) in fabrics() {
        let region = setting.regions.make(&Shape::of(flush, 256 << 20))?;
        let times = Child::start(&region, 0)?.perform(&Job::Memory { rounds: setting.choose(20_000, 4_000) })?;
        let goals = [("allocate 64 B", 0), ("access", 1), ("free", 2), ("allocate 64 B, runs of 16", 3)];
        let of =
            |(name, at): (&str, usize)| Row::nanoseconds(format!("{fabric}: {name}"), &times[at]).at_most(CALL_GOAL_NS);
        all.extend(goals.map(of));
        let limits = [("lock and unlock", 4), ("publish a line", 5), ("private memory: allocate and free", 6)];
        all.extend(limits.map(|(name, at)| Row::nanoseconds(format!("{fabric}: limit ({name})"), &times[at])));
    }
    Ok(all)
}

/// Times of allocating, accessing, freeing; of allocating in runs; of a lock of both tiers, of
/// publishing a line, and of the C library's memory.
pub fn measure_calls(worker: &Worker, rounds: u64, begin: &mut Begin<'_>) -> Result<Vec<Times>, Failure> {
    let (pool, clock) = (&worker.pool, clock());
    let bare = bare_memory(1 << 20, pool.superblock().flush)?;
    let mut times = vec![Times::new(); 7];
    begin()?;
    for round in 0..rounds {
        let mut time =
            |at: usize, start: Instant, calls: usize| times[at].push((nanoseconds(start) - clock) / calls as f64);
        let start = Instant::now();
        let offset = pool.allocate(64)?;
        time(0, start, 1);
        let start = Instant::now();
        black_box(pool.fabric().load_line(offset));
        time(1, start, 1);
        let start = Instant::now();
        pool.free(offset)?;
        time(2, start, 1);
        if round % RUN as u64 == 0 {
            let start = Instant::now();
            let run = (0..RUN).map(|_| pool.allocate(64)).collect::<Result<Vec<u64>, _>>()?;
            time(3, start, RUN);
            run.into_iter().try_for_each(|offset| pool.free(offset))?;
        }
        let start = Instant::now();
        drop(pool.lock_user(0, LOCK_TIMEOUT)?);
        time(4, start, 1);
        let start = Instant::now();
        bare.publish_line(round % (bare.len() / 64) * 64, &[round; 8]);
        time(5, start, 1);
        let start = Instant::now();
        drop(black_box(Box::new([round; 8])));
        time(6, start, 1);
    }
    Ok(times)
}

fn batches(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut all = Vec::new();
    for (fabric, flush) in fabrics() {
        let region = setting.regions.make(&Shape { min_block_bytes: BLOCK_BYTES, ..Shape::of(flush, 512 << 20) })?;
        let times = Child::start(&region, 0)?.perform(&Job::Batches { rounds: setting.choose(400, 100) })?;
        for (kind, name) in ["publish 4 KiB", "look up", "gather 512 B"].into_iter().enumerate() {
            let of_kind = &times[kind * BATCHES.len()..][..BATCHES.len()];
            all.extend(BATCHES.iter().zip(of_kind).map(|(together, times)| {
                let gain = median(&of_kind[0]) / median(times);
                Row::nanoseconds(format!("{fabric}: {name}, {together} per call, each"), times).ratio(gain)
            }));
        }
    }
    Ok(all)
}

/// Time of each request in calls of each size: publishing, looking up, gathering a row.
pub fn measure_batches(worker: &Worker, rounds: u64, begin: &mut Begin<'_>) -> Result<Vec<Times>, Failure> {
    let (pool, clock, mut prng) = (&worker.pool, clock(), Prng::new(7));
    let namespace = worker.namespace(BLOCK_BYTES)?;
    let payload = vec![0x5a; BLOCK_BYTES as usize];
    let parts: [&[u8]; 1] = [&payload];
    let (mut next, mut times) = (0..u64::MAX, vec![Times::new(); 3 * BATCHES.len()]);
    begin()?;
    for _ in 0..rounds {
        for (size, &together) in BATCHES.iter().enumerate() {
            let mut time = |kind: usize, start: Instant| {
                times[kind * BATCHES.len() + size].push((nanoseconds(start) - clock) / together as f64);
            };
            let numbers: Vec<u64> = next.by_ref().take(together).collect();
            let new: Vec<(NewBlock<'_>, &[&[u8]])> =
                numbers.iter().map(|&block| (NewBlock::new(&namespace, hash_of(block), 0), &parts[..])).collect();
            let start = Instant::now();
            let outcomes = pool.publish_all(&new);
            time(0, start);
            numbers.iter().zip(outcomes).try_for_each(|(&block, outcome)| published(block, outcome))?;
            let hashes: Vec<_> = numbers.iter().map(|&block| hash_of(block)).collect();
            let start = Instant::now();
            let hits = pool.lookup(&hashes);
            time(1, start);
            let set = pool.pin_rows(&hits);
            if hits.len() != together || !set.verify().is_empty() {
                return Err(Failure::new("a block that was just published is lost"));
            }
            let mut row = |block| RowRef { block, row: prng.below(BLOCK_BYTES / ROW_BYTES) as u32 };
            let list: Vec<RowRef> = (0..together as u32).map(&mut row).collect();
            let mut to = vec![0; list.len() * ROW_BYTES as usize];
            let start = Instant::now();
            let whole = set.gather(&list, &RowShape::packed(0, ROW_BYTES), black_box(&mut to))?.is_whole();
            time(2, start);
            whole.then_some(()).ok_or_else(|| Failure::new("a pinned block was lost"))?;
        }
    }
    Ok(times)
}

/// Random rows of memory in base pages and in huge pages, and of a thread near the memory.
fn pages(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let bytes = setting.choose(512 << 20, 128 << 20);
    let map = |huge_pages: bool| -> Result<Mapped, Failure> {
        let options = MapOptions { huge_pages, prefault: true, ..MapOptions::default() };
        let source = RegionSource::Shm(format!("cenote-bench-pages-{}-{huge_pages}", std::process::id()));
        let mapping = Mapping::create(&source, bytes, 0o600, &options)?;
        Mapping::remove(&source)?;
        Ok(Mapped::new(mapping, Flush::None)?)
    };
    let (base, huge) = (map(false)?, map(true)?);
    let granted = huge.mapping().obtained().transparent_huge || huge.mapping().obtained().page_bytes > 4096;
    let private = vec![1; bytes as usize];
    let (calls, mut times) = (setting.choose(300, 60), vec![Times::new(); 3]);
    let gather = |times: &mut [Times], seed: u64| {
        let (mut prng, clock, mut to) = (Prng::new(seed), clock(), vec![0; 2048 * ROW_BYTES as usize]);
        for call in 0..calls as usize {
            let starts: Vec<u64> = (0..2048).map(|_| prng.below(bytes / ROW_BYTES) * ROW_BYTES).collect();
            let start = Instant::now();
            match call % times.len() {
                0 => base.copy_rows(&starts, ROW_BYTES as usize, black_box(&mut to)),
                1 => huge.copy_rows(&starts, ROW_BYTES as usize, black_box(&mut to)),
                _ => rows::copy(&private, &starts, ROW_BYTES as usize, black_box(&mut to)),
            }
            times[call % times.len()].push((nanoseconds(start) - clock) / 2048.0);
        }
    };
    gather(&mut times, 1);
    let ratio = |times: &Times, to: &Times| median(to) / median(times);
    let what = if granted { "huge pages" } else { "huge pages asked for, none granted" };
    let mut all = vec![
        Row::nanoseconds("row of 512 B: base pages", &times[0]),
        Row::nanoseconds(format!("row of 512 B: {what}"), &times[1]).ratio(ratio(&times[1], &times[0])),
        Row::nanoseconds("row of 512 B: limit (private memory)", &times[2]).ratio(ratio(&times[2], &times[0])),
    ];
    let nodes = numa::nodes(Path::new("/")).len();
    let place = numa::stay_near(base.mapping());
    let mut near = vec![Times::new(); 3];
    gather(&mut near, 2);
    let name =
        if nodes > 1 { format!("bound, {nodes} nodes ({place:?})") } else { "one node, nothing to bind".to_owned() };
    all.push(Row::nanoseconds(format!("row of 512 B: {name}"), &near[0]).ratio(ratio(&near[0], &times[0])));
    Ok(all)
}
