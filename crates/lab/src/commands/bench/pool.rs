//! `cenote-lab bench pool`: publishing and reading blocks, beside plain copies of as many bytes;
//! pins; attaching.

use super::child::Child;
use super::regions::{Shape, fabrics, other_host};
use super::rows::{Row, Times, median};
use super::worker::Job;
use super::{Part, Setting};
use cenote_base::units::ByteSize;
use cenote_console::args::RegionArgs;
use cenote_console::failure::Failure;
use cenote_mem::Flush;
use std::time::Instant;

const COPY_GOAL: f64 = 0.90;
/// Goal for a block that this host has read before, or writes, if lines are flushed.
const FLUSHED_GOAL: f64 = 0.85;
/// Blocks of one call, and the goal for them if lines are flushed.
const TOGETHER: u64 = 16;
const TOGETHER_GOAL: f64 = 0.92;
/// Goal with the drop of stale lines of an older use in the reader's caches.
const SWEPT_GOAL: f64 = 0.70;
const LINE_GOAL_NS: f64 = 150.0;
const PIN_GOAL_NS: f64 = 50.0;
const ATTACH_GOAL_MS: f64 = 100.0;

pub const PARTS: &[Part] = &[
    Part { name: "copies", measure: all_copies },
    Part { name: "together", measure: all_together },
    Part { name: "pins", measure: pins },
    Part { name: "lines", measure: lines },
    Part { name: "attach", measure: attaching },
];

fn all_copies(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for (fabric, flush) in fabrics() {
        for block_bytes in [256 << 10, 1 << 20, 4 << 20] {
            rows.extend(copies(setting, fabric, flush, block_bytes)?);
        }
    }
    Ok(rows)
}

fn all_together(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for (fabric, flush) in fabrics() {
        rows.extend(together(setting, fabric, flush, 256 << 10)?);
    }
    Ok(rows)
}

/// A row of block operations, and one of the faster of the two plain copies: the limit.
fn beside(name: &str, times: &[Times], goal: f64) -> [Row; 2] {
    let (limit, way) =
        if median(&times[1]) < median(&times[2]) { (&times[1], "memcpy") } else { (&times[2], "around") };
    [
        Row::microseconds(name, &times[0]).ratio_at_least(median(limit) / median(&times[0]), goal),
        Row::microseconds(format!("{name}: limit ({way})"), limit),
    ]
}

/// A region for copies, and the `ahead` and `count` of its blocks.
fn room_for_copies(setting: &Setting, flush: Flush, block_bytes: u64) -> (Shape, u64, u64) {
    let bytes = setting.choose(384 << 20, 192 << 20);
    let shape = Shape { chunk_bytes: 16 << 20, min_block_bytes: 64 << 10, ..Shape::of(flush, bytes) };
    // Between two uses of a place, this many other bytes pass through the caches, so that nothing
    // of the first use is left in them.
    let ahead = 2 * shape.chunk_bytes;
    // Leave a chunk's worth to control structures.
    (shape, ahead, (bytes - shape.chunk_bytes - 2 * ahead) / block_bytes)
}

/// Several blocks in one call, per block.
fn together(setting: &Setting, fabric: &str, flush: Flush, block_bytes: u64) -> Result<[Row; 2], Failure> {
    let (shape, ahead, count) = room_for_copies(setting, flush, block_bytes);
    let mut times = vec![Times::new(); 3];
    // A region has room for few calls.
    for _ in 0..setting.choose(8, 4) {
        let region = setting.regions.make(&shape)?;
        let put = Child::start(&region, 0)?.perform(&Job::Put { block_bytes, together: TOGETHER, count, ahead })?;
        times.iter_mut().zip(put).for_each(|(all, more)| all.extend(more));
    }
    let goal = if flush.is_coherent() { COPY_GOAL } else { TOGETHER_GOAL };
    Ok(beside(&format!("{fabric}: put {}, {TOGETHER} per call", ByteSize(block_bytes)), &times, goal))
}

fn copies(setting: &Setting, fabric: &str, flush: Flush, block_bytes: u64) -> Result<Vec<Row>, Failure> {
    let (shape, ahead, count) = room_for_copies(setting, flush, block_bytes);
    let region = setting.regions.make(&shape)?;
    let (mut writer, mut reader) = (Child::start(&region, 0)?, Child::start(&region, other_host(flush))?);
    let size = ByteSize(block_bytes);
    let put = writer.perform(&Job::Put { block_bytes, together: 1, count, ahead })?;
    let mut get = |pass| reader.perform(&Job::Get { block_bytes, first: 0, count, pass });
    let first = get(0)?;
    // Every block once by every method.
    let mut again = get(1)?;
    for pass in [2, 3] {
        again.iter_mut().zip(get(pass)?).for_each(|(all, more)| all.extend(more));
    }
    let (goal, swept) = if flush.is_coherent() { (COPY_GOAL, COPY_GOAL) } else { (FLUSHED_GOAL, SWEPT_GOAL) };
    let mut rows = Vec::new();
    rows.extend(beside(&format!("{fabric}: put {size}"), &put, goal));
    rows.extend(beside(&format!("{fabric}: get {size}, first"), &first, swept));
    rows.extend(beside(&format!("{fabric}: get {size}, again"), &again, goal));
    Ok(rows)
}

fn pins(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for (fabric, flush) in fabrics() {
        let region = setting.regions.make(&Shape::of(flush, 64 << 20))?;
        let mut child = Child::start(&region, 0)?;
        child.perform(&Job::Fill { block_bytes: 64, first: 0, count: 64 })?;
        let times = child.perform(&Job::Pin { blocks: 64, rounds: setting.choose(20_000, 5_000) })?;
        let row = Row::nanoseconds(format!("{fabric}: pin and unpin"), &times[0]);
        rows.push(if flush.is_coherent() { row.at_most(PIN_GOAL_NS) } else { row });
    }
    Ok(rows)
}

fn lines(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for (fabric, flush) in fabrics() {
        let region = setting.regions.make(&Shape::of(flush, 64 << 20))?;
        let times = Child::start(&region, 0)?.perform(&Job::Line { rounds: setting.choose(20_000, 5_000) })?;
        let row = Row::nanoseconds(format!("{fabric}: publish a line"), &times[0]);
        rows.push(if flush.is_coherent() { row } else { row.at_most(LINE_GOAL_NS) });
    }
    Ok(rows)
}

fn attaching(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for (fabric, flush) in fabrics() {
        rows.extend(attaching_to(setting, fabric, flush)?);
    }
    Ok(rows)
}

/// Times of joining a region full of entries: for one more process of the host that wrote them, and
/// for the first process of a new host. Blocks have one line, so that only pages with control
/// structures and a few of each chunk take memory.
fn attaching_to(setting: &Setting, fabric: &str, flush: Flush) -> Result<Vec<Row>, Failure> {
    let bytes = setting.choose(16 << 30, 1 << 30);
    let shape = Shape { sparse: true, ..Shape::of(flush, bytes) };
    let region = setting.regions.make(&shape)?;
    let mut owner = Child::start(&region, 0)?;
    // Each chunk has a descriptor for each of its smallest blocks; control areas take a small part
    // of the region.
    let entries = bytes / shape.min_block_bytes / 64 * 63;
    owner.perform(&Job::Fill { block_bytes: 64, first: 0, count: entries })?;
    let name = format!("{fabric}: attach to {}, {entries} entries", ByteSize(bytes));
    let again = (0..setting.choose(20, 10)).map(|_| attach(&region)).collect::<Result<Times, _>>()?;
    let mut rows = vec![Row::milliseconds(format!("{name}, host known"), &again).at_most(ATTACH_GOAL_MS)];
    if !flush.is_coherent() {
        let other = RegionArgs { host_slot: other_host(flush), ..region };
        rows.push(Row::milliseconds(format!("{name}, host new"), &vec![attach(&other)?]).at_most(ATTACH_GOAL_MS));
    }
    Ok(rows)
}

fn attach(region: &RegionArgs) -> Result<f64, Failure> {
    let start = Instant::now();
    let pool = region.attach("bench")?;
    let time = start.elapsed().as_nanos() as f64;
    drop(pool);
    Ok(time)
}
