//! One process of a bench at its region, and the jobs it can do. Whatever is published or read is so through the
//! pool, and a block that does not come back whole ends the bench.

use super::rows::Times;
use crate::args::{RegionArgs, WatchArgs};
use crate::failure::Failure;
use crate::region::HostPool;
use cenote_base::BlockHash;
use cenote_base::prng::Prng;
use cenote_mem::{Fabric, Flush, MapOptions, Mapped, Mapping, Offset, RegionSource};
use cenote_pool::{Hit, Namespace, NamespaceRecord, Publish, ReadOutcome};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Blocks of a prompt.
pub const PROMPT: u64 = 64;
/// Private memory that blocks are copied from and to in turn, as an engine's own KV memory: in no cache.
const PRIVATE_BYTES: u64 = 128 << 20;
/// Memory beside the region that plain copies go to and come from: no cache holds a good part of it.
const BARE_BYTES: u64 = 256 << 20;
/// Where single lines are published: as large as the control areas of a small region.
const LINES_BYTES: u64 = 4 << 20;
/// Operations between two looks at the clock, where one would cost as much as the operation.
const BATCH: usize = 16;
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);

/// What a process is told to do. Blocks have numbers, from which hash and first bytes follow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Job {
    /// Publishes blocks: publishing, `memcpy` in, copy around the cache in.
    Put { block_bytes: u64, first: u64, count: u64 },
    /// Reads blocks: reading, `memcpy` out, copy around the cache out.
    Get { block_bytes: u64, first: u64, count: u64 },
    /// Publishes blocks without copies beside it.
    Publish { block_bytes: u64, first: u64, count: u64 },
    /// Looks up prompts among those that blocks 0 to `blocks` make up, and reads a block of each.
    Lookup { blocks: u64, rounds: u64, seed: u64 },
    /// Pins and unpins blocks.
    Pin { blocks: u64, rounds: u64 },
    /// Publishes single lines of bare memory.
    Line { rounds: u64 },
    /// Takes and gives back a lock for users.
    Lock { rounds: u64 },
}

pub struct Party {
    pool: HostPool,
    bare: Option<Mapped>,
}

/// The hash of a block. Its words are mixed, as those of a chain hash are.
pub fn hash_of(block: u64) -> BlockHash {
    let mut prng = Prng::new(block);
    BlockHash::from_words([prng.next_u64(), prng.next_u64()])
}

fn nanoseconds(since: Instant) -> f64 {
    since.elapsed().as_nanos() as f64
}

/// What asking for the time costs.
fn clock() -> f64 {
    let times = (0..1000).map(|_| nanoseconds(Instant::now())).collect();
    super::rows::median(&times)
}

impl Party {
    pub fn join(region: &RegionArgs) -> Result<Self, Failure> {
        // Nobody beats these hosts' hearts, so nobody may hold them dead either.
        let patient = WatchArgs { host_timeout: Duration::from_secs(3600), ..WatchArgs::default() };
        Ok(Self { pool: region.attach_watching("bench", &patient)?, bare: None })
    }

    pub fn perform(&mut self, job: &Job) -> Result<Vec<Times>, Failure> {
        match *job {
            Job::Put { block_bytes, first, count } => self.put(block_bytes, first, count),
            Job::Get { block_bytes, first, count } => self.get(block_bytes, first, count),
            Job::Publish { block_bytes, first, count } => Ok(vec![self.publish(block_bytes, first, count)?]),
            Job::Lookup { blocks, rounds, seed } => Ok(vec![self.lookup(blocks, rounds, seed)?]),
            Job::Pin { blocks, rounds } => Ok(vec![self.pin(blocks, rounds)?]),
            Job::Line { rounds } => Ok(vec![self.line(rounds)?]),
            Job::Lock { rounds } => Ok(vec![self.lock(rounds)?]),
        }
    }

    fn namespace(&self, block_bytes: u64) -> Result<Namespace, Failure> {
        let mut fingerprint = [0; 32];
        fingerprint[..8].copy_from_slice(&block_bytes.to_le_bytes());
        let label = format!("bench {block_bytes}");
        let record = NamespaceRecord { fingerprint, label, block_bytes, block_tokens: 16, num_layers: 1 };
        Ok(self.pool.namespace(&record)?)
    }

    fn find(&self, block: u64) -> Result<Hit, Failure> {
        let hit = self.pool.lookup(&[hash_of(block)]).pop();
        hit.ok_or_else(|| Failure::new(format!("block {block} is not to be found")))
    }

    /// Reads a block into the start of `to` and fails unless it is what was published.
    fn read(&self, block: u64, hit: &Hit, to: &mut [u8]) -> Result<(), Failure> {
        let outcome = self.pool.read(hit, &mut [to]);
        if outcome != ReadOutcome::Whole || to[..8] != block.to_le_bytes() {
            return Err(Failure::new(format!("block {block} came back wrong: {outcome:?}")));
        }
        Ok(())
    }

    fn publish_one(&self, namespace: &Namespace, block: u64, bytes: &mut [u8]) -> Result<f64, Failure> {
        bytes[..8].copy_from_slice(&block.to_le_bytes());
        let hash = hash_of(block);
        let start = Instant::now();
        let outcome = self.pool.publish(namespace, hash, (block % PROMPT) as u32, &[bytes]);
        let time = nanoseconds(start);
        match outcome {
            Publish::Published => Ok(time),
            other => Err(Failure::new(format!("block {block} could not be published: {other:?}"))),
        }
    }

    fn put(&mut self, block_bytes: u64, first: u64, count: u64) -> Result<Vec<Times>, Failure> {
        let namespace = self.namespace(block_bytes)?;
        self.beside_copies(block_bytes, first, count, true, |party, block, bytes| {
            party.publish_one(&namespace, block, bytes)
        })
    }

    fn get(&mut self, block_bytes: u64, first: u64, count: u64) -> Result<Vec<Times>, Failure> {
        self.beside_copies(block_bytes, first, count, false, |party, block, bytes| {
            let hit = party.find(block)?;
            let start = Instant::now();
            party.read(block, &hit, bytes)?;
            Ok(nanoseconds(start))
        })
    }

    /// Times an operation on blocks, and plain copies of as many bytes. They take turns, so that a busy machine and
    /// what the one before leaves in the caches are fair to all.
    fn beside_copies(
        &mut self,
        block_bytes: u64,
        first: u64,
        count: u64,
        inwards: bool,
        operation: impl Fn(&Self, u64, &mut [u8]) -> Result<f64, Failure>,
    ) -> Result<Vec<Times>, Failure> {
        let bare = match self.bare.take() {
            Some(bare) => bare,
            None => filled(bare_memory(BARE_BYTES, Flush::None)?),
        };
        let mut private = Private::new(block_bytes);
        self.touch_region();
        let mut times = vec![Times::new(); 3];
        for turn in 0..count {
            for step in 0..3 {
                // Another place each time: what the last copy left in the caches is not there for this one.
                let at = (turn * 3 + step) * 7919 % (BARE_BYTES / block_bytes) * block_bytes;
                let way = (turn + step) % 3;
                let bytes = private.next();
                times[way as usize].push(if way == 0 {
                    operation(self, first + turn, bytes)?
                } else {
                    let start = Instant::now();
                    match (inwards, way) {
                        (true, 1) => bare.copy_plain_in(at, bytes),
                        (true, _) => bare.copy_around_in(at, bytes),
                        (false, 1) => bare.copy_plain_out(at, bytes),
                        (false, _) => bare.copy_around_out(at, bytes),
                    }
                    black_box(bytes);
                    nanoseconds(start)
                });
            }
        }
        self.bare = Some(bare);
        Ok(times)
    }

    /// Has the kernel map every page of the region into this process, which is not measured.
    fn touch_region(&self) {
        let fabric = self.pool.fabric();
        black_box((0..fabric.len()).step_by(4096).map(|at| fabric.load(Offset::new(at))).max());
    }

    fn publish(&self, block_bytes: u64, first: u64, count: u64) -> Result<Times, Failure> {
        let (namespace, clock) = (self.namespace(block_bytes)?, clock());
        let mut bytes = vec![0; block_bytes as usize];
        (first..first + count).map(|block| Ok(self.publish_one(&namespace, block, &mut bytes)? - clock)).collect()
    }

    /// Nanoseconds per block.
    fn lookup(&self, blocks: u64, rounds: u64, seed: u64) -> Result<Times, Failure> {
        let (mut prng, clock) = (Prng::new(seed), clock());
        let mut times = Times::new();
        let mut bytes = [0; 64];
        // The kernel maps what is used into this process first, which is not measured.
        for first in (0..blocks).step_by(PROMPT as usize) {
            let hashes: Vec<BlockHash> = (first..first + PROMPT).map(hash_of).collect();
            if self.pool.lookup(&hashes).len() as u64 != PROMPT {
                return Err(Failure::new(format!("block {first} or one behind it is not to be found")));
            }
        }
        for _ in 0..rounds {
            let first = prng.below(blocks / PROMPT) * PROMPT;
            let hashes: Vec<BlockHash> = (first..first + PROMPT).map(hash_of).collect();
            let start = Instant::now();
            let hits = black_box(self.pool.lookup(&hashes));
            times.push((nanoseconds(start) - clock) / PROMPT as f64);
            if hits.len() as u64 != PROMPT {
                return Err(Failure::new(format!("{} of {PROMPT} blocks were found", hits.len())));
            }
            let one = prng.below(PROMPT);
            self.read(first + one, &hits[one as usize], &mut bytes)?;
        }
        Ok(times)
    }

    fn pin(&self, blocks: u64, rounds: u64) -> Result<Times, Failure> {
        let hits = (0..blocks).map(|block| self.find(block)).collect::<Result<Vec<_>, _>>()?;
        let clock = clock();
        let mut times = Times::new();
        for hits in hits.chunks_exact(BATCH).cycle().take(rounds as usize) {
            let start = Instant::now();
            let pinned = hits.iter().filter(|hit| self.pool.pin(hit).is_some()).count();
            times.push((nanoseconds(start) - clock) / BATCH as f64);
            if pinned != BATCH {
                return Err(Failure::new("a block that nobody evicts could not be pinned"));
            }
        }
        Ok(times)
    }

    fn line(&self, rounds: u64) -> Result<Times, Failure> {
        let bare = bare_memory(LINES_BYTES, self.pool.superblock().flush)?;
        let clock = clock();
        let lines = bare.len() / 64;
        let publish = |turn: u64| {
            let start = Instant::now();
            bare.publish_line(turn * 1_000_003 % lines * 64, &[turn; 8]);
            nanoseconds(start) - clock
        };
        Ok((0..rounds).map(publish).collect())
    }

    fn lock(&self, rounds: u64) -> Result<Times, Failure> {
        let clock = clock();
        let turn = |_| {
            let start = Instant::now();
            drop(self.pool.lock_user(0, LOCK_TIMEOUT)?);
            Ok(nanoseconds(start) - clock)
        };
        (0..rounds).map(turn).collect()
    }
}

/// Shared memory as a region's, all of it touched, that nobody else knows of.
pub fn bare_memory(bytes: u64, flush: Flush) -> Result<Mapped, Failure> {
    let source = RegionSource::Shm(format!("cenote-bench-bare-{}", std::process::id()));
    let options = MapOptions { prefault: true, ..MapOptions::default() };
    let mapping = Mapping::create(&source, bytes, 0o600, &options)?;
    Mapping::remove(&source)?;
    Ok(Mapped::new(mapping, flush)?)
}

/// The same, with something in it: machines are quicker with zeros that nobody wrote.
fn filled(memory: Mapped) -> Mapped {
    let filler: Vec<u8> = (0..1 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    (0..memory.len()).step_by(1 << 20).for_each(|at| memory.copy_around_in(at, &filler));
    memory
}

/// Private buffers in turn, off the region's pages by half a page: some processors' `memcpy` is several times slower
/// when source and destination lie at nearly the same place of their pages, and that is not measured here.
struct Private {
    memory: Vec<u8>,
    block: usize,
    start: usize,
    turn: usize,
}

impl Private {
    fn new(block_bytes: u64) -> Self {
        let memory = vec![0x5a; PRIVATE_BYTES as usize + (8 << 10)];
        let start = memory.as_ptr().addr().wrapping_neg() % 4096 + 2048;
        Self { memory, block: block_bytes as usize, start, turn: 0 }
    }

    fn next(&mut self) -> &mut [u8] {
        self.turn = (self.turn + 1) % (PRIVATE_BYTES as usize / self.block);
        &mut self.memory[self.start + self.turn * self.block..][..self.block]
    }
}
