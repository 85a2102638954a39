//! `cenote-lab bench gather`: random rows of pinned blocks in one call, as sparse attention reads
//! them, beside the same gather from private memory.
//!
//! Two private memories are the limits: one of base pages, as the region here has them, and one of
//! transparent huge pages, if the C library can. Each call of each way has rows of its own, all of
//! a memory larger than the caches.

use super::child::Child;
use super::regions::{Shape, fabrics, other_host};
use super::rows::{Row, Times, median};
use super::worker::{Begin, Job, Worker, bare_memory, clock, hash_of, nanoseconds, published, shuffled};
use super::{Part, Setting};
use cenote_base::prng::Prng;
use cenote_console::failure::Failure;
use cenote_mem::{Fabric, Flush, Mapped, rows};
use cenote_pool::{NewBlock, PinnedRows, RowRef, RowShape};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

pub const PARTS: &[Part] = &[Part { name: "rows", measure }];

/// HiSparse's top-k: rows of one call.
const ROWS: u64 = 2048;
const ROW_BYTES: [u64; 5] = [128, 256, 512, 1024, 4096];
const BLOCK_BYTES: u64 = 1 << 20;
const GOAL: f64 = 0.90;
/// Rows of which a call is short, so that its own cost is not small beside them, have no goal.
const GOAL_BYTES_MIN: u64 = 512;
/// Each so many bytes of a block name the block and their place in it.
const STAMP_EVERY: u64 = 64;

fn measure(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut all = Vec::new();
    let blocks = setting.choose(384, 128);
    for (fabric, flush) in fabrics() {
        let bytes = (blocks + 32) * BLOCK_BYTES;
        let region = setting.regions.make(&Shape { min_block_bytes: BLOCK_BYTES, ..Shape::of(flush, bytes) })?;
        let mut owner = Child::start(&region, 0)?;
        owner.perform(&Job::Stamp { block_bytes: BLOCK_BYTES, count: blocks })?;
        let mut reader = Child::start(&region, other_host(flush))?;
        for row_bytes in ROW_BYTES {
            let calls = setting.choose(400, 100);
            let times = reader.perform(&Job::Gather { block_bytes: BLOCK_BYTES, blocks, row_bytes, calls })?;
            all.extend(beside(fabric, row_bytes, &times));
        }
    }
    Ok(all)
}

/// Rows for one length: the pool, its rate, and both limits.
fn beside(fabric: &str, row_bytes: u64, times: &[Times]) -> [Row; 4] {
    let name = format!("{fabric}: gather {ROWS} rows of {row_bytes} B");
    let ratio = |limit: &Times| median(limit) / median(&times[0]);
    let row = Row::nanoseconds(format!("{name}, per row"), &times[0]);
    let row = if row_bytes >= GOAL_BYTES_MIN {
        row.ratio_at_least(ratio(&times[1]), GOAL)
    } else {
        row.ratio(ratio(&times[1]))
    };
    [
        row,
        Row::rate(format!("{name}: rate"), row_bytes, &times[0]),
        Row::nanoseconds(format!("{name}: limit (private)"), &times[1]),
        Row::nanoseconds(format!("{name}: limit (private, huge pages)"), &times[2]).ratio(ratio(&times[2])),
    ]
}

/// What the bytes at `at` of a block begin with.
const fn stamp(block: u64, at: u64) -> u64 {
    block << 32 | at
}

/// Publishes blocks whose rows name themselves.
pub fn publish_stamped(worker: &Worker, block_bytes: u64, count: u64) -> Result<(), Failure> {
    let namespace = worker.namespace(block_bytes)?;
    let mut bytes = vec![0; block_bytes as usize];
    for block in 0..count {
        stamp_all(&mut bytes, block);
        published(block, worker.pool.publish(&NewBlock::new(&namespace, hash_of(block), 0), &[&bytes]))?;
    }
    Ok(())
}

fn stamp_all(bytes: &mut [u8], block: u64) {
    for (place, bytes) in (0..).zip(bytes.chunks_exact_mut(STAMP_EVERY as usize)) {
        bytes[..8].copy_from_slice(&stamp(block, place * STAMP_EVERY).to_le_bytes());
    }
}

/// Fails unless each row is there and names itself.
fn check(list: &[RowRef], row_bytes: u64, to: &[u8]) -> Result<(), Failure> {
    let is_right = |(row, bytes): (&RowRef, &[u8])| {
        bytes[..8] == stamp(row.block.into(), u64::from(row.row) * row_bytes).to_le_bytes()
    };
    let rows = list.iter().zip(to.chunks_exact(row_bytes as usize));
    rows.into_iter().all(is_right).then_some(()).ok_or_else(|| Failure::new("a gathered row is another one"))
}

/// The blocks of a worker's region, and as many bytes of private memory of both kinds.
struct Sources {
    set: PinnedRows<Arc<Mapped>>,
    /// Shared memory that only this process has: base pages, as anonymous memory by default.
    plain: Mapped,
    huge: Vec<u8>,
    block_bytes: u64,
}

impl Sources {
    fn new(worker: &Worker, block_bytes: u64, blocks: u64) -> Result<Self, Failure> {
        let hits = (0..blocks).map(|block| worker.find(block)).collect::<Result<Vec<_>, _>>()?;
        let set = worker.pool.pin_rows(&hits);
        if let missed @ 1.. = set.verify().len() {
            return Err(Failure::new(format!("{missed} of {blocks} blocks could not be pinned and verified")));
        }
        let plain = bare_memory(blocks * block_bytes, Flush::None)?;
        let mut huge = vec![0; (blocks * block_bytes) as usize];
        for (block, bytes) in (0..).zip(huge.chunks_exact_mut(block_bytes as usize)) {
            stamp_all(bytes, block);
            plain.copy_plain_in(block * block_bytes, bytes);
        }
        Ok(Self { set, plain, huge, block_bytes })
    }

    /// Nanoseconds of one gather by a way: 0 from the pool, 1 from private base pages, 2 from
    /// private huge pages.
    fn gather(&self, way: usize, list: &[RowRef], row_bytes: u64, to: &mut [u8]) -> Result<f64, Failure> {
        let shape = RowShape::packed(0, row_bytes);
        let start_of = |row: &RowRef| u64::from(row.block) * self.block_bytes + u64::from(row.row) * row_bytes;
        let starts: Vec<u64> = list.iter().map(start_of).collect();
        let start = Instant::now();
        match way {
            0 if !self.set.gather(list, &shape, black_box(to))?.is_whole() => {
                return Err(Failure::new("a pinned block was lost"));
            }
            0 => {}
            1 => self.plain.copy_rows(&starts, row_bytes as usize, black_box(to)),
            _ => rows::copy(&self.huge, &starts, row_bytes as usize, black_box(to)),
        }
        let time = nanoseconds(start);
        check(list, row_bytes, to)?;
        Ok(time)
    }
}

/// Gathers by each way in turn, in random order. Returns nanoseconds per row by each way.
pub fn measure_job(
    worker: &Worker,
    [block_bytes, blocks, row_bytes, calls]: [u64; 4],
    begin: &mut Begin<'_>,
) -> Result<Vec<Times>, Failure> {
    let (sources, clock) = (Sources::new(worker, block_bytes, blocks)?, clock());
    let mut prng = Prng::new(row_bytes);
    let mut to = vec![0; (ROWS * row_bytes) as usize];
    let mut times = vec![Times::new(); 3];
    begin()?;
    for _ in 0..calls {
        for way in shuffled(&mut prng) {
            let mut draw = |below| prng.below(below) as u32;
            let list: Vec<RowRef> =
                (0..ROWS).map(|_| RowRef { block: draw(blocks), row: draw(block_bytes / row_bytes) }).collect();
            times[way].push((sources.gather(way, &list, row_bytes, &mut to)? - clock) / ROWS as f64);
        }
    }
    Ok(times)
}
