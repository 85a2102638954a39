//! A worker process of a bench, and its jobs. Blocks are published and read through the pool, and a
//! block that does not come back whole ends the bench.

use super::bare::{Flat, Table, TwoLevels};
use super::rows::Times;
use super::{gather, memory};
use cenote_base::BlockHash;
use cenote_base::prng::Prng;
use cenote_console::args::{RegionArgs, WatchArgs};
use cenote_console::failure::Failure;
use cenote_console::region::HostPool;
use cenote_mem::{Fabric, Flush, MapOptions, Mapped, Mapping, Offset, RegionSource};
use cenote_pool::{Hit, Namespace, NamespaceRecord, NewBlock, Pin, Publish, ReadOutcome};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Blocks of a prompt.
pub const PROMPT: u64 = 64;
/// Private memory that blocks are copied from and to in turn, like an engine's KV memory: in no
/// cache.
const PRIVATE_BYTES: u64 = 128 << 20;
/// Area of single lines: as large as the control areas of a small region.
const LINES_BYTES: u64 = 4 << 20;
/// Operations per reading of the clock, if reading it costs as much as the operation.
const BATCH: usize = 16;
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);

/// Lookups in one table before the next takes its turn.
const TABLE_ROUNDS: u64 = 500;

/// A job of a worker. Blocks have numbers, which determine their hashes and first bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Job {
    /// Publishes `count` blocks, `together` in one call: publishing, `memcpy` in, copy around the
    /// cache in, per block. Copies go `ahead` and twice `ahead` bytes after the block, which must
    /// be within the region.
    Put { block_bytes: u64, together: u64, count: u64, ahead: u64 },
    /// Reads blocks by three methods: reading, `memcpy`, copy around the cache. Each block uses one
    /// method, and another one in another `pass`.
    Get { block_bytes: u64, first: u64, count: u64, pass: u64 },
    /// Publishes blocks without copies.
    Publish { block_bytes: u64, first: u64, count: u64 },
    /// The same, untimed.
    Fill { block_bytes: u64, first: u64, count: u64 },
    /// Looks up prompts of blocks 0 to `blocks`, and reads a block of each.
    Lookup { blocks: u64, rounds: u64, seed: u64 },
    /// The same, alternating with bare tables of as many entries: of two levels, flat.
    LookupBesideBare { blocks: u64, rounds: u64, seed: u64 },
    /// Pins and unpins blocks.
    Pin { blocks: u64, rounds: u64 },
    /// Publishes single lines of plain memory.
    Line { rounds: u64 },
    /// Takes and releases a user lock: the time of each turn, and of all together.
    Lock { rounds: u64 },
    /// Publishes blocks whose rows name themselves, untimed.
    Stamp { block_bytes: u64, count: u64 },
    /// Allocates, accesses and frees memory, beside what the machine needs for its parts.
    Memory { rounds: u64 },
    /// Publishes, looks up and gathers in calls of 1 to 64 requests: nanoseconds of each request.
    Batches { rounds: u64 },
    /// Gathers random rows of all blocks, and as many from private memory of two kinds of pages:
    /// nanoseconds per row by each way.
    Gather { block_bytes: u64, blocks: u64, row_bytes: u64, calls: u64 },
}

/// Called when the measurement is prepared; returns when it must start.
pub type Begin<'a> = dyn FnMut() -> Result<(), Failure> + 'a;

pub struct Worker {
    pub pool: HostPool,
}

/// The hash of a block. Its words are mixed like those of a chain hash.
pub fn hash_of(block: u64) -> BlockHash {
    let mut prng = Prng::new(block);
    BlockHash::from_words([prng.next_u64(), prng.next_u64()])
}

pub fn nanoseconds(since: Instant) -> f64 {
    since.elapsed().as_nanos() as f64
}

/// Cost of reading the clock.
pub fn clock() -> f64 {
    let times = (0..1000).map(|_| nanoseconds(Instant::now())).collect();
    super::rows::median(&times)
}

impl Worker {
    pub fn join(region: &RegionArgs) -> Result<Self, Failure> {
        // These hosts have no heartbeat, so none may be declared dead.
        let patient = WatchArgs { host_timeout: Duration::from_secs(3600), ..WatchArgs::default() };
        Ok(Self { pool: region.attach_watching("bench", &patient)? })
    }

    pub fn perform(&self, job: &Job, begin: &mut Begin<'_>) -> Result<Vec<Times>, Failure> {
        match *job {
            Job::Put { block_bytes, together, count, ahead } => self.put(block_bytes, together, count, ahead, begin),
            Job::Get { block_bytes, first, count, pass } => self.get(block_bytes, first, count, pass, begin),
            Job::Publish { block_bytes, first, count } => Ok(vec![self.publish(block_bytes, first, count, begin)?]),
            Job::Fill { block_bytes, first, count } => {
                self.publish(block_bytes, first, count, begin)?;
                Ok(Vec::new())
            }
            Job::Lookup { blocks, rounds, seed } => Ok(vec![self.lookup(blocks, rounds, seed, begin)?]),
            Job::LookupBesideBare { blocks, rounds, seed } => self.lookup_beside_bare(blocks, rounds, seed, begin),
            Job::Pin { blocks, rounds } => Ok(vec![self.pin(blocks, rounds, begin)?]),
            Job::Line { rounds } => Ok(vec![self.line(rounds, begin)?]),
            Job::Lock { rounds } => self.lock(rounds, begin),
            Job::Stamp { block_bytes, count } => {
                begin()?;
                gather::publish_stamped(self, block_bytes, count)?;
                Ok(Vec::new())
            }
            Job::Memory { rounds } => memory::measure_calls(self, rounds, begin),
            Job::Batches { rounds } => memory::measure_batches(self, rounds, begin),
            Job::Gather { block_bytes, blocks, row_bytes, calls } => {
                gather::measure_job(self, [block_bytes, blocks, row_bytes, calls], begin)
            }
        }
    }

    pub fn namespace(&self, block_bytes: u64) -> Result<Namespace, Failure> {
        let mut fingerprint = [0; 32];
        fingerprint[..8].copy_from_slice(&block_bytes.to_le_bytes());
        let label = format!("bench {block_bytes}");
        let record = NamespaceRecord { fingerprint, label, block_bytes, block_tokens: 16, num_layers: 1 };
        Ok(self.pool.namespace(&record)?)
    }

    pub fn find(&self, block: u64) -> Result<Hit, Failure> {
        let hit = self.pool.lookup(&[hash_of(block)]).pop();
        hit.ok_or_else(|| Failure::new(format!("block {block} is not to be found")))
    }

    fn publish_one(&self, namespace: &Namespace, block: u64, bytes: &mut [u8]) -> Result<f64, Failure> {
        bytes[..8].copy_from_slice(&block.to_le_bytes());
        let new = NewBlock::new(namespace, hash_of(block), (block % PROMPT) as u32);
        let start = Instant::now();
        let outcome = self.pool.publish(&new, &[bytes]);
        let time = nanoseconds(start);
        published(block, outcome)?;
        Ok(time)
    }

    /// Publishes blocks from `first` on in one call; `bytes` are their payloads. Returns the time
    /// of the call.
    fn publish_together(&self, namespace: &Namespace, first: u64, bytes: &mut [u8]) -> Result<f64, Failure> {
        let block_bytes = namespace.block_bytes as usize;
        for (block, bytes) in (first..).zip(bytes.chunks_exact_mut(block_bytes)) {
            bytes[..8].copy_from_slice(&block.to_le_bytes());
        }
        let parts: Vec<[&[u8]; 1]> = bytes.chunks_exact(block_bytes).map(|bytes| [bytes]).collect();
        let new = |block: u64| NewBlock::new(namespace, hash_of(block), (block % PROMPT) as u32);
        let blocks: Vec<(NewBlock<'_>, &[&[u8]])> =
            (first..).map(new).zip(&parts).map(|(new, parts)| (new, parts.as_slice())).collect();
        let start = Instant::now();
        let outcomes = self.pool.publish_all(&blocks);
        let time = nanoseconds(start);
        (first..).zip(outcomes).try_for_each(|(block, outcome)| published(block, outcome))?;
        Ok(time)
    }

    /// Publishing and plain copies alternate, so that load from other programs affects all. All
    /// copy from private memory to the same places, none of them cached, because the choice of
    /// physical pages changes the copying time by a quarter.
    fn put(
        &self,
        block_bytes: u64,
        together: u64,
        count: u64,
        ahead: u64,
        begin: &mut Begin<'_>,
    ) -> Result<Vec<Times>, Failure> {
        let (namespace, fabric) = (self.namespace(block_bytes)?, self.pool.fabric());
        self.touch_region();
        self.touch_data();
        let mut private = Private::new(block_bytes * together);
        self.publish_one(&namespace, 0, &mut private.next()[..block_bytes as usize])?;
        let base = self.place_of(0)?;
        let mut times = vec![Times::new(); 3];
        let mut prng = Prng::new(together);
        let calls = (count - 1) / together;
        begin()?;
        for call in 0..calls {
            // Write-backs of one method slow the next, so their order is random.
            for way in shuffled(&mut prng) {
                let (bytes, first) = (private.next(), 1 + call * together);
                let time = match way {
                    0 if together == 1 => self.publish_one(&namespace, first, bytes)?,
                    0 => self.publish_together(&namespace, first, bytes)?,
                    _ => {
                        let at = base + first * block_bytes + way as u64 * ahead;
                        let start = Instant::now();
                        for (at, bytes) in (at..).step_by(block_bytes as usize).zip(bytes.chunks(block_bytes as usize))
                        {
                            if way == 1 { fabric.copy_plain_in(at, bytes) } else { fabric.copy_around_in(at, bytes) }
                        }
                        nanoseconds(start)
                    }
                };
                times[way].push(time / together as f64);
            }
        }
        // A fresh region assigns its places in order; otherwise the copies went elsewhere.
        let (last, wanted) = (self.place_of(calls * together)?, base + calls * together * block_bytes);
        if last != wanted {
            return Err(Failure::new(format!("the last block is at {last} instead of {wanted}")));
        }
        Ok(times)
    }

    /// Offset of a block's payload.
    fn place_of(&self, block: u64) -> Result<u64, Failure> {
        let pin = self.pinned(block)?;
        let extent = pin.extent().ok_or_else(|| Failure::new("an encrypted block has no place to copy from"))?;
        Ok(extent.0)
    }

    /// A pinned block.
    fn pinned(&self, block: u64) -> Result<Pin<Arc<Mapped>>, Failure> {
        let pin = self.pool.pin(&self.find(block)?);
        pin.ok_or_else(|| Failure::new(format!("block {block} cannot be pinned")))
    }

    /// Reading and plain copies alternate. All copy from uncached blocks of the region to private
    /// memory.
    fn get(
        &self,
        block_bytes: u64,
        first: u64,
        count: u64,
        pass: u64,
        begin: &mut Begin<'_>,
    ) -> Result<Vec<Times>, Failure> {
        let fabric = self.pool.fabric();
        self.touch_region();
        let mut private = Private::new(block_bytes);
        let mut times = vec![Times::new(); 3];
        begin()?;
        for turn in 0..count {
            // Three blocks in a row use the three methods in random order, and other ones in each
            // pass.
            let order = shuffled(&mut Prng::new(turn / 3));
            let (block, way, bytes) = (first + turn, order[((turn + pass) % 3) as usize], private.next());
            // A block that is copied without the pool must stay in its place.
            let pin = self.pinned(block)?;
            let hit = *pin.hit();
            if way == 0 {
                drop(pin);
                let start = Instant::now();
                let outcome = self.pool.read(&hit, &mut [bytes]);
                times[0].push(nanoseconds(start));
                whole(block, outcome, bytes)?;
                continue;
            }
            let (at, _) = pin.extent().ok_or_else(|| Failure::new("an encrypted block has no place to copy from"))?;
            let start = Instant::now();
            if way == 1 {
                fabric.copy_plain_out(at, bytes)
            } else {
                fabric.copy_around_out(at, bytes)
            }
            times[way].push(nanoseconds(start));
            whole(block, ReadOutcome::Whole, black_box(bytes))?;
        }
        Ok(times)
    }

    /// Makes the kernel map every page of the region into this process, which is not measured.
    fn touch_region(&self) {
        let fabric = self.pool.fabric();
        black_box((0..fabric.len()).step_by(4096).map(|at| fabric.load(Offset::new(at))).max());
    }

    /// The same for writing, where blocks will be: at the first store to a page the processor marks
    /// it, which takes as long as a dozen stores. No block is published yet.
    fn touch_data(&self) {
        let fabric = self.pool.fabric();
        for at in (fabric.len() / 16..fabric.len()).step_by(4096) {
            fabric.store(Offset::new(at), fabric.load(Offset::new(at)));
        }
    }

    fn publish(&self, block_bytes: u64, first: u64, count: u64, begin: &mut Begin<'_>) -> Result<Times, Failure> {
        let (namespace, clock) = (self.namespace(block_bytes)?, clock());
        let mut bytes = vec![0; block_bytes as usize];
        begin()?;
        (first..first + count).map(|block| Ok(self.publish_one(&namespace, block, &mut bytes)? - clock)).collect()
    }

    /// Looks every block up once, so that the kernel maps the used pages into this process, which
    /// is not measured.
    fn know_all(&self, blocks: u64) -> Result<(), Failure> {
        for first in (0..blocks).step_by(PROMPT as usize) {
            if self.pool.lookup(&prompt(first)).len() as u64 != PROMPT {
                return Err(Failure::new(format!("block {first} or one behind it is not to be found")));
            }
        }
        Ok(())
    }

    /// Nanoseconds per block.
    fn lookup(&self, blocks: u64, rounds: u64, seed: u64, begin: &mut Begin<'_>) -> Result<Times, Failure> {
        let (mut prng, clock) = (Prng::new(seed), clock());
        self.know_all(blocks)?;
        begin()?;
        (0..rounds).map(|_| self.look_up_one(&mut prng, blocks, clock)).collect()
    }

    /// Looks a prompt up and reads one of its blocks. Returns nanoseconds per block of the lookup.
    fn look_up_one(&self, prng: &mut Prng, blocks: u64, clock: f64) -> Result<f64, Failure> {
        let first = prng.below(blocks / PROMPT) * PROMPT;
        let hashes = prompt(first);
        let start = Instant::now();
        let hits = black_box(self.pool.lookup(&hashes));
        let time = (nanoseconds(start) - clock) / PROMPT as f64;
        if hits.len() as u64 != PROMPT {
            return Err(Failure::new(format!("{} of {PROMPT} blocks were found", hits.len())));
        }
        let (one, mut bytes) = (prng.below(PROMPT), [0; 64]);
        let outcome = self.pool.read(&hits[one as usize], &mut [&mut bytes]);
        whole(first + one, outcome, &bytes)?;
        Ok(time)
    }

    fn lookup_beside_bare(
        &self,
        blocks: u64,
        rounds: u64,
        seed: u64,
        begin: &mut Begin<'_>,
    ) -> Result<Vec<Times>, Failure> {
        let (mut prng, clock) = (Prng::new(seed), clock());
        let config = &self.pool.superblock().config;
        let descriptors = self.pool.info().num_chunks * (config.chunk_bytes / config.min_block_bytes);
        // As many buckets as the region has.
        let buckets = (descriptors * 2).div_ceil(7).next_power_of_two();
        let (two_levels, flat) = (TwoLevels::new(buckets, blocks)?, Flat::new(blocks)?);
        for block in 0..blocks {
            two_levels.insert(hash_of(block), block);
            flat.insert(hash_of(block), block);
        }
        self.know_all(blocks)?;
        let mut times = vec![Times::new(); 3];
        begin()?;
        for _ in 0..rounds.div_ceil(TABLE_ROUNDS) {
            for _ in 0..TABLE_ROUNDS {
                times[0].push(self.look_up_one(&mut prng, blocks, clock)?);
            }
            times[1].extend(probe(&two_levels, &mut prng, blocks, clock)?);
            times[2].extend(probe(&flat, &mut prng, blocks, clock)?);
        }
        Ok(times)
    }

    fn pin(&self, blocks: u64, rounds: u64, begin: &mut Begin<'_>) -> Result<Times, Failure> {
        let hits = (0..blocks).map(|block| self.find(block)).collect::<Result<Vec<_>, _>>()?;
        let clock = clock();
        begin()?;
        let mut times = Times::new();
        for hits in hits.chunks_exact(BATCH).cycle().take(rounds as usize) {
            let start = Instant::now();
            let pinned = hits.iter().filter(|hit| self.pool.pin(hit).is_some()).count();
            times.push((nanoseconds(start) - clock) / BATCH as f64);
            if pinned != BATCH {
                return Err(Failure::new("a block could not be pinned although none is evicted"));
            }
        }
        Ok(times)
    }

    fn line(&self, rounds: u64, begin: &mut Begin<'_>) -> Result<Times, Failure> {
        let bare = bare_memory(LINES_BYTES, self.pool.superblock().flush)?;
        let clock = clock();
        let lines = bare.len() / 64;
        let publish = |turn: u64| {
            let start = Instant::now();
            bare.publish_line(turn * 1_000_003 % lines * 64, &[turn; 8]);
            nanoseconds(start) - clock
        };
        begin()?;
        Ok((0..rounds).map(publish).collect())
    }

    fn lock(&self, rounds: u64, begin: &mut Begin<'_>) -> Result<Vec<Times>, Failure> {
        let clock = clock();
        let turn = |_| {
            let start = Instant::now();
            drop(self.pool.lock_user(0, LOCK_TIMEOUT)?);
            Ok(nanoseconds(start) - clock)
        };
        begin()?;
        let start = Instant::now();
        let turns: Result<Times, Failure> = (0..rounds).map(turn).collect();
        Ok(vec![turns?, vec![nanoseconds(start)]])
    }
}

/// Fails unless a block was published.
pub fn published(block: u64, outcome: Publish) -> Result<(), Failure> {
    match outcome {
        Publish::Published => Ok(()),
        other => Err(Failure::new(format!("block {block} could not be published: {other:?}"))),
    }
}

/// Fails unless a block came back as published.
fn whole(block: u64, outcome: ReadOutcome, bytes: &[u8]) -> Result<(), Failure> {
    if outcome != ReadOutcome::Whole || bytes[..8] != block.to_le_bytes() {
        return Err(Failure::new(format!("block {block} came back wrong: {outcome:?}")));
    }
    Ok(())
}

/// Three methods in random order.
pub fn shuffled(prng: &mut Prng) -> [usize; 3] {
    let mut ways = [0, 1, 2];
    ways.swap(0, prng.below(3) as usize);
    ways.swap(1, 1 + prng.below(2) as usize);
    ways
}

fn prompt(first: u64) -> Vec<BlockHash> {
    (first..first + PROMPT).map(hash_of).collect()
}

/// Nanoseconds per block of prompts in a bare table.
fn probe(table: &impl Table, prng: &mut Prng, blocks: u64, clock: f64) -> Result<Times, Failure> {
    let mut values = Vec::with_capacity(PROMPT as usize);
    let mut one = |_| {
        let first = prng.below(blocks / PROMPT) * PROMPT;
        let hashes = prompt(first);
        let start = Instant::now();
        let found = table.probe(&hashes, black_box(&mut values));
        let time = (nanoseconds(start) - clock) / PROMPT as f64;
        let right = found as u64 == PROMPT && values.iter().copied().eq(first..first + PROMPT);
        right.then_some(time).ok_or_else(|| Failure::new("a bare table lost an entry"))
    };
    (0..TABLE_ROUNDS).map(&mut one).collect()
}

/// Shared memory like a region's, touched, and used by this process only.
pub fn bare_memory(bytes: u64, flush: Flush) -> Result<Mapped, Failure> {
    let source = RegionSource::Shm(format!("cenote-bench-bare-{}", std::process::id()));
    let options = MapOptions { prefault: true, ..MapOptions::default() };
    let mapping = Mapping::create(&source, bytes, 0o600, &options)?;
    Mapping::remove(&source)?;
    Ok(Mapped::new(mapping, flush)?)
}

/// Private buffers in turn, half a page away from the region's page offsets. Some processors'
/// `memcpy` is several times slower if source and destination have nearly the same page offset,
/// which is not measured here.
struct Private {
    memory: Vec<u8>,
    block: usize,
    start: usize,
    turn: usize,
}

impl Private {
    /// Created after the region was touched, so that touching them evicts the region from the
    /// caches.
    fn new(block_bytes: u64) -> Self {
        let memory = vec![0x5a; PRIVATE_BYTES as usize + (8 << 10)];
        black_box(memory.iter().step_by(64).map(|&byte| u64::from(byte)).sum::<u64>());
        let start = memory.as_ptr().addr().wrapping_neg() % 4096 + 2048;
        Self { memory, block: block_bytes as usize, start, turn: 0 }
    }

    fn next(&mut self) -> &mut [u8] {
        self.turn = (self.turn + 1) % (PRIVATE_BYTES as usize / self.block);
        &mut self.memory[self.start + self.turn * self.block..][..self.block]
    }
}
