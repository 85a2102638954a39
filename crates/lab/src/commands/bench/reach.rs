//! `cenote-lab bench reach`: another process's region, read one-sidedly by NIXL, beside NIXL's own batches
//! of as many bytes, and a prompt's first token. `UCX_TLS` chooses the transport of both processes.

mod prompts;
mod sharing;

use super::blocks::Blocks;
use super::regions::Shape;
use super::rows::{Row, Times, median};
use super::{Part, Setting};
use cenote_base::{BlockHash, Deadline};
use cenote_console::failure::Failure;
use cenote_console::{output, peers};
use cenote_mem::Flush;
use cenote_pool::Hit;
use cenote_reach::nixl::Nixl;
use cenote_reach::{Fetched, Landing, Pace, Piece, ReadError, Reader, Remote, connect};
use cenote_store::Readable;
pub use sharing::run_child;
use sharing::{Sharing, own_cpu_ns, patience};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

pub const PARTS: &[Part] = &[Part { name: "batches", measure: rows }, Part { name: "prompts", measure: prompts::rows }];

/// Bytes of payload of one timed read: with what belongs to its blocks, one batch.
const BATCH_BYTES: u64 = 7 << 20;
/// Blocks of a timed lookup.
const LOOKUP_BLOCKS: usize = 256;
const REGION_BYTES: u64 = 256 << 20;
/// Goal: least part of NIXL's own rate.
const RATE_GOAL: f64 = 0.85;
/// Goal: most processor time of the owner, as a part of the reader's, where the owner's processor is not needed.
const OWNER_GOAL: f64 = 0.01;

/// A peer that counts what is read.
struct Counted {
    remote: Box<dyn Remote>,
    bytes: Arc<AtomicU64>,
}

impl Remote for Counted {
    fn region_bytes(&self) -> u64 {
        self.remote.region_bytes()
    }

    fn read(&mut self, pieces: &[Piece], landing: Landing, deadline: Deadline) -> Result<(), ReadError> {
        let sum: usize = pieces.iter().map(|piece| piece.length).sum();
        self.bytes.fetch_add(sum as u64, Ordering::Relaxed);
        self.remote.read(pieces, landing, deadline)
    }

    fn landed(&mut self, landing: Landing) -> &mut [u8] {
        self.remote.landed(landing)
    }
}

/// Whether reads need the owner's processor: UCX emulates them over TCP.
fn is_emulated() -> bool {
    std::env::var("UCX_TLS").is_ok_and(|transports| transports.contains("tcp"))
}

/// NIXL, or nothing is measured.
fn opened(setting: &Setting) -> Option<Arc<Nixl>> {
    let nixl = peers::nixl(setting.nixl.as_deref());
    nixl.inspect_err(|error| output::say(&format!("SKIPPED: nothing is measured: {error}"))).ok()
}

fn rows(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let Some(nixl) = opened(setting) else { return Ok(Vec::new()) };
    let mut rows = Vec::new();
    for (number, block_bytes) in [64 << 10, 1 << 20].into_iter().enumerate() {
        rows.extend(of_size(setting, &nixl, number, block_bytes)?);
    }
    Ok(rows)
}

/// Blocks of one size. Lookups, reads and NIXL's batches take turns.
fn of_size(setting: &Setting, nixl: &Arc<Nixl>, number: usize, block_bytes: u64) -> Result<Vec<Row>, Failure> {
    let shape = Shape { min_block_bytes: 64 << 10, max_hosts: 1, ..Shape::of(Flush::None, REGION_BYTES) };
    let region = setting.regions.make(&shape)?;
    let blocks = Blocks::of(region.attach("bench")?, block_bytes)?;
    let count = (REGION_BYTES / 2 / block_bytes) as usize;
    let names: Vec<BlockHash> = (0..count as u64).map(|number| blocks.name(number)).collect();
    let payload = vec![7; block_bytes as usize];
    (0..count as u64).try_for_each(|number| blocks.put(number, &payload))?;
    let sharing = Sharing::start(&region, setting.nixl.as_deref())?;
    let seed = blocks.pool.superblock().config.seed;
    let connected = |end: &str| {
        let name = format!("cenote-bench-{}-{number}-{end}", std::process::id());
        connect(nixl, &sharing.address, &sharing.key(), &seed, &name, patience()).map_err(|error| failed(&error))
    };
    let read_bytes = Arc::<AtomicU64>::default();
    let remote = Counted { remote: connected("reader")?, bytes: Arc::clone(&read_bytes) };
    let mut reader = Reader::open(remote, &seed, None, patience()).map_err(|error| failed(&error))?;
    let mut bare = connected("bare")?;
    let in_batch = (BATCH_BYTES / block_bytes) as usize;
    let all = reader.find(&names, Pace::by(patience())).map_err(|error| failed(&error))?;
    if all.len() != count {
        return Err(Failure::new(format!("{} of {count} blocks were found", all.len())));
    }
    let (mut line, mut lookup, mut read, mut batch) = (Times::new(), Times::new(), Times::new(), Times::new());
    // The batch is of other blocks, so that neither finds what the other one left in caches.
    let turn = |round: usize| &all[round * in_batch % (count - in_batch)..][..in_batch];
    let rounds = setting.choose(200, 20) as usize;
    for round in 0..rounds {
        line.push(timed(|| bare.read(&[Piece { at: 0, length: 64 }], Landing::Lines, patience()))?.0);
        lookup.push(timed(|| reader.find(&names[..LOOKUP_BLOCKS.min(count)], Pace::by(patience())))?.0);
        read.push(fetched(&mut reader, &blocks, turn(2 * round))?);
        let piece = |hit: &Hit| Piece { at: reader.outline().payload(hit).0, length: block_bytes as usize };
        let pieces: Vec<Piece> = turn(2 * round + 1).iter().map(piece).collect();
        batch.push(timed(|| bare.read(&pieces, Landing::Payloads, patience()))?.0);
    }
    // Reads alone, for processor time and bytes.
    drop(bare);
    let before = (own_cpu_ns(), sharing.cpu_ns()?, read_bytes.load(Ordering::Relaxed));
    for round in 0..rounds {
        fetched(&mut reader, &blocks, turn(round))?;
    }
    let (own, owner) = (own_cpu_ns() - before.0, sharing.cpu_ns()? - before.1);
    let moved = (read_bytes.load(Ordering::Relaxed) - before.2) as f64;
    let size = format!("{} KiB", block_bytes >> 10);
    let bytes = in_batch as u64 * block_bytes;
    let each = |total: f64| vec![total / rounds as f64];
    let owner_row = Row::microseconds(format!("the owner's processor time for {in_batch} x {size}"), &each(owner));
    Ok(vec![
        Row::microseconds(format!("NIXL's own read of 64 B ({size} blocks)"), &line),
        Row::microseconds(format!("lookup of {} blocks of {size}", LOOKUP_BLOCKS.min(count)), &lookup),
        Row::rate(format!("NIXL's own batch of {in_batch} x {size}"), bytes, &batch),
        Row::rate(format!("read and verify {in_batch} blocks of {size}"), bytes, &read)
            .ratio_at_least(median(&batch) / median(&read), RATE_GOAL),
        Row::kilobytes(format!("bytes read for {in_batch} x {size}, to their payload"), &each(moved))
            .ratio(moved / (rounds as u64 * bytes) as f64),
        Row::microseconds(format!("the reader's processor time for {in_batch} x {size}"), &each(own)),
        match is_emulated() {
            true => owner_row.ratio(owner / own),
            false => owner_row.ratio_at_most(owner / own, OWNER_GOAL),
        },
    ])
}

fn failed(error: &ReadError) -> Failure {
    Failure::new(format!("the peer cannot be read: {error}"))
}

/// Nanoseconds of a read, and what it returned.
fn timed<T>(read: impl FnOnce() -> Result<T, ReadError>) -> Result<(f64, T), Failure> {
    let start = Instant::now();
    let outcome = read();
    let time = start.elapsed().as_nanos() as f64;
    Ok((time, outcome.map_err(|error| failed(&error))?))
}

/// Nanoseconds of a fetch, each block of which must be whole.
fn fetched(
    reader: &mut Reader<Counted>,
    blocks: &Blocks<Arc<cenote_mem::Mapped>>,
    hits: &[Hit],
) -> Result<f64, Failure> {
    let mut whole = 0;
    let each = |_: &Hit, fetched: Fetched<'_>| whole += usize::from(matches!(fetched, Fetched::Whole { .. }));
    let (time, ()) =
        timed(|| reader.fetch((&blocks.namespace, &Readable::default()), hits, Pace::by(patience()), each))?;
    if whole == hits.len() {
        Ok(time)
    } else {
        Err(Failure::new(format!("{whole} of {} blocks were whole", hits.len())))
    }
}
