//! `cenote-lab bench reach`: another process's region, read one-sidedly by NIXL, beside NIXL's own batches
//! of as many bytes. `UCX_TLS` chooses the transport of both processes.

use super::regions::Shape;
use super::rows::{Row, Times, median};
use super::{Part, Setting};
use crate::args::ReachShareChildArgs;
use cenote_base::{BlockHash, Clock, Deadline};
use cenote_console::args::RegionArgs;
use cenote_console::failure::Failure;
use cenote_console::{output, peers};
use cenote_mem::Flush;
use cenote_pool::{Hit, NamespaceRecord, NewBlock, Publish};
use cenote_reach::nixl::Nixl;
use cenote_reach::{Fetched, Key, Landing, Pace, Piece, Reader, Remote, Share, connect};
use cenote_store::Readable;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub const PARTS: &[Part] = &[Part { name: "reach", measure: rows }];

/// Bytes of payload of one timed read: with what belongs to its blocks, one batch.
const BATCH_BYTES: u64 = 7 << 20;
/// Blocks of a timed lookup.
const LOOKUP_BLOCKS: usize = 256;
const REGION_BYTES: u64 = 256 << 20;
/// Longest wait for the other process.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause of the sharing process between looks for readers.
const PAUSE: Duration = Duration::from_millis(1);

fn patience() -> Deadline {
    Clock::system().after(PATIENCE)
}

/// The process that shares the region, until it is dropped.
struct Sharing {
    process: std::process::Child,
    address: String,
    key: Key,
}

impl Sharing {
    fn start(region: &RegionArgs, library: Option<&Path>) -> Result<Self, Failure> {
        let executable = std::env::current_exe()
            .map_err(|error| Failure::new(format!("this program cannot find itself: {error}")))?;
        let mut command = Command::new(executable);
        command.args(["reach-share-child", "--region", &region.source()?.to_string()]);
        if let Some(library) = library {
            command.arg("--nixl").arg(library);
        }
        command.env_remove("CENOTE_FAULT").stdin(Stdio::piped()).stdout(Stdio::piped());
        let process = command.spawn().map_err(|error| Failure::new(format!("a child cannot be started: {error}")))?;
        let bytes: [u8; 32] = cenote_pool::random_bytes()?;
        let mut sharing = Self { process, address: String::new(), key: Key::new(bytes) };
        let words = sharing.process.stdin.as_mut().expect("it is piped");
        writeln!(words, "{}", hex::encode(bytes))?;
        let answers = sharing.process.stdout.take().expect("it is piped");
        BufReader::new(answers).read_line(&mut sharing.address)?;
        sharing.address.truncate(sharing.address.trim_end().len());
        if sharing.address.is_empty() {
            return Err(Failure::new("the sharing process ended early; its own words are above"));
        }
        Ok(sharing)
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        // It ends when its stdin closes.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Shares a region until stdin closes.
pub fn run_child(args: &ReachShareChildArgs) -> Result<(), Failure> {
    let mut words = BufReader::new(std::io::stdin());
    let (mut text, mut key) = (String::new(), [0; 32]);
    words.read_line(&mut text)?;
    hex::decode_to_slice(text.trim(), &mut key).map_err(|error| Failure::new(format!("no key: {error}")))?;
    let (source, nixl) = (args.region.source()?.clone(), peers::nixl(args.nixl.as_deref())?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let share = Arc::new(Share::new(source, nixl, Key::new(key), Clock::system()));
    share.follow().map_err(|error| Failure::new(error.to_string()))?;
    output::print(&listener.local_addr()?.to_string())?;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = words.read_to_end(&mut Vec::new());
            ended.store(true, Ordering::Relaxed);
        });
        share.serve(&listener, &(Arc::new(|_, _| ()) as _), || {
            std::thread::park_timeout(PAUSE);
            !ended.load(Ordering::Relaxed)
        });
    });
    Ok(())
}

fn rows(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let nixl = match peers::nixl(setting.nixl.as_deref()) {
        Ok(nixl) => nixl,
        Err(error) => {
            output::say(&format!("SKIPPED: nothing is measured: {error}"));
            return Ok(Vec::new());
        }
    };
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
    let pool = region.attach("bench")?;
    let namespace = pool.namespace(&NamespaceRecord {
        fingerprint: [5; 32],
        label: "bench".to_owned(),
        block_bytes,
        block_tokens: 16,
        num_layers: 1,
    })?;
    let blocks = (REGION_BYTES / 2 / block_bytes) as usize;
    let names: Vec<BlockHash> = (0..blocks).map(|number| namespace.hasher.alias(&number.to_le_bytes())).collect();
    let payload = vec![7; block_bytes as usize];
    for (depth, &name) in (0..).zip(&names) {
        let outcome = pool.publish(&NewBlock::new(&namespace, name, depth), &[&payload]);
        if outcome != Publish::Published {
            return Err(Failure::new(format!("a put ended with {outcome:?}")));
        }
    }
    let sharing = Sharing::start(&region, setting.nixl.as_deref())?;
    let seed = pool.superblock().config.seed;
    let connected = |end: &str| {
        let name = format!("cenote-bench-{}-{number}-{end}", std::process::id());
        connect(nixl, &sharing.address, &sharing.key, &seed, &name, patience()).map_err(|error| failed(&error))
    };
    let mut reader = Reader::open(connected("reader")?, &seed, None, patience()).map_err(|error| failed(&error))?;
    let mut bare = connected("bare")?;
    let in_batch = (BATCH_BYTES / block_bytes) as usize;
    let all = reader.find(&names, Pace::by(patience())).map_err(|error| failed(&error))?;
    if all.len() != blocks {
        return Err(Failure::new(format!("{} of {blocks} blocks were found", all.len())));
    }
    let (mut line, mut lookup, mut read, mut batch) = (Times::new(), Times::new(), Times::new(), Times::new());
    for round in 0..setting.choose(200, 20) as usize {
        line.push(timed(|| bare.read(&[Piece { at: 0, length: 64 }], Landing::Lines, patience()))?.0);
        lookup.push(timed(|| reader.find(&names[..LOOKUP_BLOCKS.min(blocks)], Pace::by(patience())))?.0);
        // The batch is of other blocks, so that neither finds what the other one left in caches.
        let turn = |round: usize| &all[round * in_batch % (blocks - in_batch)..][..in_batch];
        read.push(fetched(&mut reader, &namespace, turn(2 * round))?);
        let piece = |hit: &Hit| Piece { at: reader.outline().payload(hit).0, length: block_bytes as usize };
        let pieces: Vec<Piece> = turn(2 * round + 1).iter().map(piece).collect();
        batch.push(timed(|| bare.read(&pieces, Landing::Payloads, patience()))?.0);
    }
    let size = format!("{} KiB", block_bytes >> 10);
    let bytes = in_batch as u64 * block_bytes;
    Ok(vec![
        Row::microseconds(format!("NIXL's own read of 64 B ({size} blocks)"), &line),
        Row::microseconds(format!("lookup of {} blocks of {size}", LOOKUP_BLOCKS.min(blocks)), &lookup),
        Row::rate(format!("NIXL's own batch of {in_batch} x {size}"), bytes, &batch),
        Row::rate(format!("read and verify {in_batch} blocks of {size}"), bytes, &read)
            .ratio(median(&batch) / median(&read)),
    ])
}

fn failed(error: &cenote_reach::ReadError) -> Failure {
    Failure::new(format!("the peer cannot be read: {error}"))
}

/// Nanoseconds of a read, and what it returned.
fn timed<T>(read: impl FnOnce() -> Result<T, cenote_reach::ReadError>) -> Result<(f64, T), Failure> {
    let start = Instant::now();
    let outcome = read();
    let time = start.elapsed().as_nanos() as f64;
    Ok((time, outcome.map_err(|error| failed(&error))?))
}

/// Nanoseconds of a fetch, each block of which must be whole.
fn fetched(
    reader: &mut Reader<Box<dyn Remote>>,
    namespace: &cenote_pool::Namespace,
    hits: &[Hit],
) -> Result<f64, Failure> {
    let mut whole = 0;
    let each = |_: &Hit, fetched: Fetched<'_>| whole += usize::from(matches!(fetched, Fetched::Whole { .. }));
    let (time, ()) = timed(|| reader.fetch((namespace, &Readable::default()), hits, Pace::by(patience()), each))?;
    if whole == hits.len() {
        Ok(time)
    } else {
        Err(Failure::new(format!("{whole} of {} blocks were whole", hits.len())))
    }
}
