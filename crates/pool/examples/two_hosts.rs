//! Two hosts share one pool without coherence between them: its locks, its blocks, and the death of
//! one host.
//!
//! `two_hosts REGION a|b TEST[=HOW]…` runs one host; the other one runs the same tests as `b`. The
//! region is all zero at the start. `cargo xtask two-host` runs both in two virtual machines that
//! share a CXL memory device. On one machine, two processes and a tmpfs file suffice: `truncate -s
//! 256M /dev/shm/two_hosts`, then `two_hosts shm:two_hosts a …` beside `two_hosts shm:two_hosts b
//! …`, then `rm /dev/shm/two_hosts`.
//!
//! Tests: `lock=N` (a counter under a lock of the pool, N times each), `blocks=N` (each publishes N
//! blocks and reads the other's), `churn=N` (N rounds of publishing, evicting, reading and pinning
//! at the same time), `capacity=PERCENT` (`a` fills the region and goes idle, then `b` publishes as
//! many blocks as that part of the region holds and finds them), `recency=N` (`a` publishes N times
//! what the region holds while `b` uses one block, which stays), `takeover=POINT` (`a` is killed at that fault point of a publish while
//! another thread of it holds a lock; `b` detects it, repairs, and uses `a`'s blocks and space).
#![allow(clippy::disallowed_methods, reason = "real machines with their own clocks")]
#![allow(clippy::print_stdout, reason = "a command line tool talks")]

use cenote_base::fault::{self, Plan, Point};
use cenote_base::prng::Prng;
use cenote_base::time::Clock;
use cenote_base::{BlockHash, HashSeed, HostId};
use cenote_mem::{Fabric, Flush, Flushed, MapOptions, Mapping, Offset, RegionSource};
use cenote_pool::{
    AttachOptions, Counter, Hit, Namespace, NamespaceRecord, NewBlock, Pin, PoolConfig, PoolError, Publish,
    ReadOutcome, Superblock,
};
use std::collections::{BTreeSet, VecDeque};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

type Pool = cenote_pool::Pool<Flushed>;

/// Longest wait for the other host's next step. Guests' clocks may run fast.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time without a heartbeat after which a host counts as dead. Long enough for a guest that waits
/// for a processor.
const HOST_TIMEOUT: Duration = Duration::from_secs(5);
const QUARANTINE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(250);
/// Longest wait for a lock of a living host; a timeout is a failure.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

const BLOCK_BYTES: usize = 4096;
const CHUNK_BYTES: u64 = 4 << 20;
/// Few blocks per chunk, much smaller than their slots, so that a device of any size is soon full.
const SLOTS_PER_CHUNK: u64 = 16;

/// The lock of the counter, and the one that a host dies with.
const COUNT_LOCK: u16 = 0;
const DEATH_LOCK: u16 = 1;

/// Lines at the end of the superblock's page, which the pool does not use.
const fn spare(line: u64) -> u64 {
    4096 - 64 * (line + 1)
}
/// Two words that are equal except during an update under the lock. A death in between leaves them
/// different.
const fn counter(lock: u16) -> u64 {
    spare(2 * lock as u64)
}
const fn mirror(lock: u16) -> u64 {
    spare(2 * lock as u64 + 1)
}
/// Lines that only host `side` writes.
const fn phase(side: u64) -> u64 {
    spare(8 + side)
}
const fn pulse(side: u64) -> u64 {
    spare(10 + side)
}
/// Number of finished blocks that the other host may request.
const fn finished(side: u64) -> u64 {
    spare(12 + side)
}

/// Block `number` of a host's set.
fn hash(side: u64, set: u64, number: u64) -> BlockHash {
    let mut prng = Prng::at(set << 1 | side, number);
    BlockHash::from_words([prng.next_u64(), prng.next_u64()])
}

/// The only valid payload of this block.
fn content(hash: BlockHash) -> Vec<u8> {
    let [low, high] = hash.words();
    let mut prng = Prng::at(low, high);
    (0..BLOCK_BYTES / 8).flat_map(|_| prng.next_u64().to_le_bytes()).collect()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let side = arguments.get(1).cloned().unwrap_or_default();
    match run(&arguments) {
        Ok(()) => {
            println!("two_hosts {side}: all passed");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            println!("two_hosts {side}: FAILED: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), String> {
    let [region, side, tests @ ..] = arguments else {
        return Err("usage: two_hosts REGION a|b TEST[=HOW]…".to_owned());
    };
    let me = match side.as_str() {
        "a" => 0,
        "b" => 1,
        other => return Err(format!("`{other}` is no host; there are a and b")),
    };
    let fabric = open(region)?;
    println!("two_hosts {side}: {region} has {} MiB, flushed by {}", fabric.len() >> 20, fabric.flush());
    let superblock = if me == 0 { format(&fabric)? } else { wait_for_format(&fabric)? };
    let outcome = Host::attach(fabric, me).and_then(|mut host| host.run(side, tests));
    // Two hosts on one machine would leave two files. Processes that have them open keep them.
    cenote_pool::remove_host_memory(&superblock).map_err(|error| error.to_string())?;
    outcome
}

fn open(region: &str) -> Result<Flushed, String> {
    let source: RegionSource = region.parse().map_err(|error| format!("{error}"))?;
    let mapping = Mapping::open(&source, &MapOptions::default()).map_err(|error| error.to_string())?;
    let weakly_ordered = Flush::available().into_iter().find(|flush| *flush == Flush::ClflushOpt);
    let flush = weakly_ordered.or(Flush::best()).ok_or("this processor has no flush instruction")?;
    Flushed::new(mapping, flush).map_err(|error| error.to_string())
}

fn format(fabric: &Flushed) -> Result<Superblock, String> {
    // The other host would take an old pool for the new one.
    match Superblock::read(fabric) {
        Err(PoolError::Unfinished) => {}
        _ => return Err("the region is not fresh: it is not zero".to_owned()),
    }
    // A unique name of host-local memory: other runs may be active on this machine.
    let now = Clock::system().unix();
    let uuid = (now.as_nanos() << 32 | u128::from(std::process::id())).to_le_bytes();
    let config = PoolConfig {
        chunk_bytes: CHUNK_BYTES,
        min_block_bytes: CHUNK_BYTES / SLOTS_PER_CHUNK,
        max_hosts: 3,
        workers_per_host: 4,
        hazard_lines_per_worker: 2,
        created: now.as_secs(),
        ..PoolConfig::new(HashSeed([7; 32]), uuid)
    };
    Superblock::format(fabric, &config).map_err(|error| error.to_string())
}

fn wait_for_format(fabric: &Flushed) -> Result<Superblock, String> {
    let deadline = Clock::system().after(PATIENCE);
    loop {
        match Superblock::read(fabric) {
            Ok(superblock) => return Ok(superblock),
            Err(PoolError::Unfinished) if !deadline.passed() => thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(format!("waiting for host a's format: {error}")),
        }
    }
}

/// Results of reads.
#[derive(Default)]
struct Tally {
    whole: u64,
    stale: u64,
    missing: u64,
}

/// The thread that sends this host's heartbeats.
struct Ticker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    fn start(pool: &Pool, me: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (pool, stopped) = (pool.clone(), Arc::clone(&stop));
        let beat = move || {
            for pulses in 1_u64.. {
                pool.tick();
                tell(pool.fabric(), pulse(me), pulses);
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                thread::sleep(TICK);
            }
        };
        Self { stop, thread: Some(thread::spawn(beat)) }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic of the thread was printed already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn tell(fabric: &Flushed, line: u64, value: u64) {
    fabric.publish_word(Offset::new(line), value);
}

fn asked(fabric: &Flushed, line: u64) -> u64 {
    fabric.refresh(&[line]);
    fabric.load(Offset::new(line))
}

/// A line under a lock: the value, its last writer, and words that are inconsistent if the other
/// host was inside as well.
fn guarded_words(value: u64, writer: u64) -> [u64; 8] {
    std::array::from_fn(|word| match word {
        1 => writer,
        _ => value * (1 + word as u64),
    })
}

fn guarded(fabric: &Flushed, line: u64) -> Result<(u64, u64), String> {
    fabric.refresh(&[line]);
    let words = fabric.load_line(line);
    if words == guarded_words(words[0], words[1]) {
        Ok((words[0], words[1]))
    } else {
        Err(format!("the line under the lock is torn: {words:?}"))
    }
}

/// One of the two hosts. The ticker stops before the pool is left.
struct Host {
    _ticker: Ticker,
    pool: Pool,
    namespace: Namespace,
    me: u64,
    step: u64,
}

impl Host {
    fn attach(fabric: Flushed, me: u64) -> Result<Self, String> {
        if asked(&fabric, phase(me)) != 0 {
            return Err("the region is not fresh: this host has been here before".to_owned());
        }
        let options = AttachOptions {
            host: HostId(u8::try_from(me).expect("0 or 1")),
            lock_timeout: LOCK_TIMEOUT,
            host_timeout: HOST_TIMEOUT,
            quarantine: QUARANTINE,
            ..AttachOptions::named("two_hosts")
        };
        let pool = Pool::attach(fabric, &options).map_err(|error| format!("attaching: {error}"))?;
        let ticker = Ticker::start(&pool, me);
        let record = NamespaceRecord {
            fingerprint: [1; 32],
            label: "two_hosts".to_owned(),
            block_bytes: BLOCK_BYTES as u64,
            block_tokens: 16,
            num_layers: 1,
        };
        let namespace = pool.namespace(&record).map_err(|error| format!("the namespace: {error}"))?;
        Ok(Self { _ticker: ticker, pool, namespace, me, step: 0 })
    }

    fn run(&mut self, side: &str, tests: &[String]) -> Result<(), String> {
        self.meet("the other host's greeting")?;
        println!("two_hosts {side}: both hosts are attached, {} chunks", self.pool.info().num_chunks);
        for test in tests {
            let (name, how) = test.split_once('=').unwrap_or((test, "1"));
            let count = || how.parse::<u64>().map_err(|error| format!("`{test}`: {error}"));
            let start = Instant::now();
            let outcome = match name {
                "lock" => self.lock(count()?),
                "blocks" => self.blocks(count()?),
                "churn" => self.churn(count()?),
                "capacity" => self.capacity(count()?),
                "recency" => self.recency(count()?),
                "takeover" if self.me == 0 => self.die_in_a_publish(parse_point(how)?),
                "takeover" => self.take_over(parse_point(how)?),
                other => Err(format!("there is no test `{other}`")),
            }
            .map_err(|reason| format!("{name}: {reason}; counters {:?}", self.counters()))?;
            println!("two_hosts {side}: {name}: {outcome}; {:.1} s", start.elapsed().as_secs_f64());
        }
        Ok(())
    }

    const fn other(&self) -> u64 {
        1 - self.me
    }

    fn fabric(&self) -> &Flushed {
        self.pool.fabric()
    }

    /// The pool's counters, except reads and writes.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        let told = [
            Counter::LockTimeouts,
            Counter::LocksAbandoned,
            Counter::HostsDeclaredDead,
            Counter::ChunksShared,
            Counter::ChunksAdopted,
            Counter::NoRoom,
            Counter::Damaged,
        ];
        told.into_iter().map(|counter| (counter.name(), self.pool.counter(counter))).collect()
    }

    /// Both hosts reach this point before either continues.
    fn meet(&mut self, what: &str) -> Result<(), String> {
        self.step += 1;
        tell(self.fabric(), phase(self.me), self.step);
        self.wait_for(self.step, what)
    }

    fn wait_for(&self, step: u64, what: &str) -> Result<(), String> {
        let deadline = Clock::system().after(PATIENCE);
        let mut looks = 0_u32;
        while asked(self.fabric(), phase(self.other())) < step {
            if deadline.passed() {
                return Err(format!("waited {} s for {what}", PATIENCE.as_secs()));
            }
            looks += 1;
            // Spin first, for a close meeting; later the other host may need this processor.
            if looks > 1000 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// While both live, no host was declared dead and no lock timed out.
    fn expect_peace(&self) -> Result<(), String> {
        let dead = self.pool.counter(Counter::HostsDeclaredDead);
        let late = self.pool.counter(Counter::LockTimeouts);
        if (dead, late) == (0, 0) { Ok(()) } else { Err(format!("{dead} hosts taken for dead, {late} locks late")) }
    }

    /// No leak and no damage in this host's part of the region.
    fn check(&self) -> Result<String, String> {
        let report = self.pool.check(true).map_err(|error| format!("check: {error}"))?;
        if !report.is_clean() || report.reserved > 0 {
            return Err(format!("check finds {report:?}"));
        }
        Ok(format!("check clean: {} chunks, {} payloads verified", report.chunks, report.payloads_verified))
    }

    fn write_guarded(&self, line: u64, value: u64) {
        self.fabric().publish_line(line, &guarded_words(value, self.me));
    }

    fn lock(&mut self, count: u64) -> Result<String, String> {
        let (start, _) = guarded(self.fabric(), counter(COUNT_LOCK))?;
        self.meet("the start of the lock test")?;
        let mut changes = 0_u64;
        for _ in 0..count {
            let held = self.pool.lock_user(COUNT_LOCK, LOCK_TIMEOUT).map_err(|error| error.to_string())?;
            if held.abandoned() {
                return Err("a lock of the living is told to be abandoned".to_owned());
            }
            let (value, writer) = guarded(self.fabric(), counter(COUNT_LOCK))?;
            let (mirrored, _) = guarded(self.fabric(), mirror(COUNT_LOCK))?;
            if value != mirrored {
                return Err(format!("under the lock the counter is {value} and its mirror {mirrored}"));
            }
            changes += u64::from(writer != self.me);
            self.write_guarded(counter(COUNT_LOCK), value + 1);
            self.write_guarded(mirror(COUNT_LOCK), value + 1);
            drop(held);
        }
        self.meet("the end of the lock test")?;
        let (value, _) = guarded(self.fabric(), counter(COUNT_LOCK))?;
        let (got, expected) = (value - start, 2 * count);
        if got != expected {
            return Err(format!("the counter is {got}, not {expected}"));
        }
        self.expect_peace()?;
        Ok(format!("counter {got} exact; {changes} entries after the other host"))
    }

    fn publish(&self, hash: BlockHash) -> Publish {
        let bytes = content(hash);
        let (left, right) = bytes.split_at(BLOCK_BYTES / 2);
        self.pool.publish(&NewBlock::new(&self.namespace, hash, 0), &[left, right])
    }

    fn look_up(&self, hash: BlockHash) -> Option<Hit> {
        self.pool.lookup(&[hash]).pop()
    }

    /// Reads a hit of this or an earlier lookup. A whole block must have the right bytes, and no
    /// block may be damaged.
    fn read(&self, hit: Option<&Hit>, tally: &mut Tally) -> Result<(), String> {
        let Some(hit) = hit else {
            tally.missing += 1;
            return Ok(());
        };
        let mut bytes = vec![0; BLOCK_BYTES];
        match self.pool.read(hit, &mut [&mut bytes]) {
            ReadOutcome::Whole if bytes != content(hit.hash) => Err(format!("whole with WRONG BYTES: {hit:?}")),
            ReadOutcome::Whole => {
                tally.whole += 1;
                Ok(())
            }
            ReadOutcome::Stale => {
                tally.stale += 1;
                Ok(())
            }
            ReadOutcome::Damaged => Err(format!("DAMAGED: {hit:?}")),
        }
    }

    /// Blocks `0..count` of a set, all of which must be whole.
    fn read_all(&self, side: u64, set: u64, count: u64) -> Result<(), String> {
        let mut tally = Tally::default();
        for number in 0..count {
            self.read(self.look_up(hash(side, set, number)).as_ref(), &mut tally)?;
        }
        let Tally { whole, stale, missing } = tally;
        let all = whole == count;
        if all { Ok(()) } else { Err(format!("of {count} blocks {missing} are missing and {stale} stale")) }
    }

    fn publish_all(&self, set: u64, count: u64) -> Result<(), String> {
        for number in 0..count {
            let outcome = self.publish(hash(self.me, set, number));
            if outcome != Publish::Published {
                return Err(format!("publishing block {number}: {outcome:?}"));
            }
        }
        Ok(())
    }

    fn blocks(&mut self, count: u64) -> Result<String, String> {
        const SET: u64 = 1;
        self.meet("the start of the blocks")?;
        self.publish_all(SET, count)?;
        self.meet("the other host's blocks")?;
        self.read_all(self.other(), SET, count)?;
        let hits: Vec<Hit> = (0..count).filter_map(|number| self.look_up(hash(self.other(), SET, number))).collect();
        self.meet("the other host's reading")?;
        let evicted = self.pool.evict(usize::try_from(count).unwrap_or(usize::MAX));
        if evicted as u64 != count {
            return Err(format!("{evicted} of {count} blocks could be evicted"));
        }
        self.meet("the other host's evictions")?;
        let mut tally = Tally::default();
        // An old hit of an evicted block is as unreadable as a new one.
        for hit in &hits {
            self.read(Some(hit), &mut tally)?;
            self.read(self.look_up(hit.hash).as_ref(), &mut tally)?;
        }
        if tally.whole > 0 {
            return Err(format!("{} blocks were whole after their eviction", tally.whole));
        }
        self.meet("the end of the blocks")?;
        self.expect_peace()?;
        Ok(format!("{count} each way whole, after eviction {} stale and {} missing", tally.stale, tally.missing))
    }

    /// Publishes, evicts, reads and pins while the other host does the same, so slots are reused
    /// while it reads.
    fn churn(&mut self, rounds: u64) -> Result<String, String> {
        const SET: u64 = 2;
        const UNIVERSE: u64 = 512;
        const FRESH: u64 = 24;
        const LOOKS: u64 = 32;
        /// Rounds for which hits and pins are kept.
        const KEPT: usize = 6;
        let mut prng = Prng::new(self.me);
        let (mut tally, mut pins_held, mut published) = (Tally::default(), 0_u64, 0_u64);
        let mut kept: VecDeque<(Vec<Hit>, Option<Pin<Flushed>>)> = VecDeque::new();
        let put_off = self.pool.counter(Counter::EvictionsPinned);
        for round in 0..rounds {
            // No host runs so far ahead that the other is alone.
            if round % 16 == 0 {
                self.meet("the other host's next rounds")?;
            }
            let mut new = 0;
            for _ in 0..FRESH {
                match self.publish(hash(self.me, SET, prng.below(UNIVERSE))) {
                    Publish::Published => new += 1,
                    Publish::Duplicate => {}
                    refused => return Err(format!("{refused:?} in round {round}")),
                }
            }
            published += new as u64;
            if round >= 8 {
                self.pool.evict(new);
            }
            let hits: Vec<Hit> =
                (0..LOOKS).filter_map(|_| self.look_up(hash(self.other(), SET, prng.below(UNIVERSE)))).collect();
            for hit in &hits {
                self.read(Some(hit), &mut tally)?;
            }
            tally.missing += LOOKS - hits.len() as u64;
            let pin = hits.first().and_then(|hit| self.pool.pin(hit));
            kept.push_back((hits, pin));
            if kept.len() > KEPT {
                let (hits, pin) = kept.pop_front().expect("more than none");
                for hit in &hits {
                    self.read(Some(hit), &mut tally)?;
                }
                if let Some(pin) = pin {
                    self.use_in_place(&pin)?;
                    pins_held += 1;
                }
            }
        }
        drop(kept);
        self.meet("the end of the churn")?;
        let put_off = self.pool.counter(Counter::EvictionsPinned) - put_off;
        let checked = self.check()?;
        self.meet("the other host's check")?;
        self.expect_peace()?;
        if pins_held == 0 || tally.stale == 0 {
            return Err("the hosts did not meet: no pin was held, or no read was stale".to_owned());
        }
        let Tally { whole, stale, missing } = tally;
        Ok(format!(
            "{published} published; reads: {whole} whole, {stale} stale, 0 damaged, {missing} not found; {pins_held} \
             blocks pinned for {KEPT} rounds and unchanged, {put_off} evictions put off for pins; {checked}"
        ))
    }

    /// A pinned block may be used in place: its bytes are right without any check.
    fn use_in_place(&self, pin: &Pin<Flushed>) -> Result<(), String> {
        let mut bytes = vec![0; BLOCK_BYTES];
        self.fabric().read_payload(pin.extent().expect("it is not encrypted").0, &mut [&mut bytes], 0);
        let hit = pin.hit();
        if bytes == content(hit.hash) { Ok(()) } else { Err(format!("it CHANGED WHILE PINNED: {hit:?}")) }
    }
}

/// One pool: space and recency that hosts share.
impl Host {
    /// Blocks that the region holds.
    fn room(&self) -> u64 {
        self.pool.info().num_chunks * SLOTS_PER_CHUNK
    }

    /// Looks for a block of a set and publishes it if it is not there.
    fn request(&self, set: u64, number: u64) -> Result<(), String> {
        let hash = hash(self.me, set, number);
        if self.look_up(hash).is_some() {
            return Ok(());
        }
        match self.publish(hash) {
            Publish::Published => Ok(()),
            refused => Err(format!("block {number}: {refused:?}")),
        }
    }

    /// Waits until a host has ticked so often since now.
    fn wait_for_ticks(&self, side: u64, ticks: u64) -> Result<(), String> {
        let goal = asked(self.fabric(), pulse(side)) + ticks;
        let deadline = Clock::system().after(PATIENCE);
        while asked(self.fabric(), pulse(side)) < goal {
            if deadline.passed() {
                return Err(format!("host {side} did not tick {ticks} times in {} s", PATIENCE.as_secs()));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn capacity(&mut self, percent: u64) -> Result<String, String> {
        const SET: u64 = 6;
        let (fill, fit) = (self.room() * 6 / 5, self.room() * percent / 100);
        if self.me == 0 {
            (0..fill).try_for_each(|number| self.request(SET, number))?;
        }
        self.meet("a full region")?;
        let mut outcome = format!("filled with {fill} blocks");
        if self.me == 1 {
            // Host a becomes idle and offers its chunks; then this host hears of them.
            self.wait_for_ticks(self.other(), 16)?;
            self.wait_for_ticks(self.me, 2)?;
            (0..fit).try_for_each(|number| self.request(SET, number))?;
            let found = (0..fit).filter(|&number| self.look_up(hash(self.me, SET, number)).is_some()).count() as u64;
            let moved = self.pool.counter(Counter::ChunksShared);
            if found * 100 < fit * 95 {
                return Err(format!("it finds {found} of {fit} blocks, {moved} chunks moved"));
            }
            outcome = format!("found {found} of {fit} blocks; {moved} chunks moved");
        }
        self.meet("the end of the capacity test")?;
        let checked = self.check()?;
        self.meet("the other host's check")?;
        self.expect_peace()?;
        Ok(format!("{outcome}; {checked}"))
    }

    fn recency(&mut self, times: u64) -> Result<String, String> {
        const SET: u64 = 7;
        const COLD_AT_ONCE: u64 = 20;
        if self.me == 0 {
            self.request(SET, 0)?;
        }
        let rounds = times * self.room() / COLD_AT_ONCE;
        let hot = hash(0, SET, 0);
        let mut found = 0;
        for round in 0..rounds {
            // Hosts hear of each other's lookups at ticks. In use, many ticks pass while a host evicts
            // as much as a region holds.
            if round % 2 == 0 {
                self.wait_for_ticks(self.me, 1)?;
            }
            self.meet("the other host's cold blocks")?;
            if self.me == 0 {
                (0..COLD_AT_ONCE).try_for_each(|cold| self.request(SET, 1 + round * COLD_AT_ONCE + cold))?;
            } else {
                found += u64::from(self.look_up(hot).is_some());
            }
        }
        self.meet("the end of the recency test")?;
        self.expect_peace()?;
        let evicted = self.pool.counter(Counter::Evicted);
        if self.me == 0 {
            return Ok(format!("{evicted} blocks evicted"));
        }
        let often = found * 100 >= rounds * 95;
        let outcome = format!("found the hot block {found} of {rounds} times");
        if often { Ok(outcome) } else { Err(outcome) }
    }
}

/// The death of host a: its blocks before and at the death, and those of b that it pins.
const DEATH_SET: u64 = 3;
const DEATH_BLOCKS: u64 = 200;
const PINNED_SET: u64 = 4;
const PINNED_BLOCKS: u64 = 8;
/// Blocks that a publishes while b waits for the lock; a dies in the last one.
const LAST_WORDS: u64 = 6;
/// Blocks that b publishes afterwards.
const AFTER_SET: u64 = 5;

impl Host {
    /// Dies in the middle of a publish with a lock held, which guards half an update, and with
    /// blocks pinned.
    fn die_in_a_publish(&mut self, point: Point) -> Result<String, String> {
        self.publish_all(DEATH_SET, DEATH_BLOCKS)?;
        tell(self.fabric(), finished(self.me), DEATH_BLOCKS);
        self.meet("the start of the takeover")?;
        let hits = (0..PINNED_BLOCKS).filter_map(|number| self.look_up(hash(self.other(), PINNED_SET, number)));
        let pins: Vec<Pin<Flushed>> = hits.filter_map(|hit| self.pool.pin(&hit)).collect();
        if pins.len() as u64 != PINNED_BLOCKS {
            return Err(format!("{} of {PINNED_BLOCKS} blocks could be pinned", pins.len()));
        }
        let (pool, me) = (self.pool.clone(), self.me);
        let (half, halves) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let held = pool.lock_user(DEATH_LOCK, LOCK_TIMEOUT).map_err(|error| error.to_string());
            let value = guarded(pool.fabric(), counter(DEATH_LOCK)).map(|(value, _)| value);
            if held.is_ok() {
                let half = guarded_words(value.clone().unwrap_or(0) + 1, me);
                pool.fabric().publish_line(counter(DEATH_LOCK), &half);
            }
            let _ = half.send(held.as_ref().map(drop).map_err(Clone::clone).and(value.map(drop)));
            thread::sleep(2 * PATIENCE);
        });
        halves.recv().map_err(|error| error.to_string())??;
        self.meet("the other host to try the lock and its evictions")?;
        self.meet("the other host's reading")?;
        self.wait_for(self.step + 1, "the other host to come for the lock")?;
        fault::arm(Plan { point, pass: LAST_WORDS }, |_| {
            println!("two_hosts a: holds the lock mid-publish");
            thread::sleep(PATIENCE);
            println!("two_hosts a: FAILED: this host was not killed");
            std::process::exit(1);
        });
        for number in DEATH_BLOCKS..DEATH_BLOCKS + LAST_WORDS {
            let outcome = self.publish(hash(self.me, DEATH_SET, number));
            if outcome != Publish::Published {
                return Err(format!("publishing block {number}: {outcome:?}"));
            }
            tell(self.fabric(), finished(self.me), number + 1);
        }
        Err(format!("no publish came by the point `{point}`"))
    }

    fn take_over(&mut self, point: Point) -> Result<String, String> {
        self.publish_all(PINNED_SET, PINNED_BLOCKS)?;
        self.meet("the start of the takeover")?;
        self.meet("the other host to take the lock and pin blocks")?;
        if self.pool.lock_user(DEATH_LOCK, TICK).is_ok() {
            return Err("two hosts hold one lock".to_owned());
        }
        let evicted = self.pool.evict(PINNED_BLOCKS as usize);
        if evicted > 0 {
            return Err(format!("{evicted} blocks left although the other host pins them"));
        }
        self.read_all(self.me, PINNED_SET, PINNED_BLOCKS)?;
        self.read_all(self.other(), DEATH_SET, DEATH_BLOCKS)?;
        self.meet("the other host to go on")?;
        if self.pool.counter(Counter::HostsDeclaredDead) > 0 {
            return Err("a living host was taken for dead".to_owned());
        }
        println!("two_hosts b: waits for the lock of a living host");
        tell(self.fabric(), phase(self.me), self.step + 1);
        let start = Instant::now();
        let held = self.pool.lock_user(DEATH_LOCK, PATIENCE).map_err(|error| error.to_string())?;
        let waited = start.elapsed().as_secs_f64();
        let abandoned = held.abandoned();
        self.mend_update()?;
        drop(held);
        if !abandoned || self.pool.counter(Counter::HostsDeclaredDead) != 1 {
            return Err(format!("got the lock, told of its holder's death: {abandoned}"));
        }
        let beat = asked(self.fabric(), pulse(self.other()));
        thread::sleep(4 * TICK);
        if asked(self.fabric(), pulse(self.other())) != beat {
            return Err("the lock of a living host was taken over".to_owned());
        }
        println!(
            "two_hosts b: the heart stopped at {beat}; the lock is taken over after {waited:.1} s, half an update \
             mended"
        );
        self.inherit(point)
    }

    /// Finishes the update that the dead host began under the lock, which the caller holds.
    fn mend_update(&self) -> Result<(), String> {
        let (value, writer) = guarded(self.fabric(), counter(DEATH_LOCK))?;
        let (mirrored, _) = guarded(self.fabric(), mirror(DEATH_LOCK))?;
        if (value, writer) != (mirrored + 1, self.other()) {
            return Err(format!("the dead host left counter {value} of host {writer} and mirror {mirrored}"));
        }
        self.write_guarded(mirror(DEATH_LOCK), value);
        Ok(())
    }

    /// Every block that host a finished can still be read, and its space is used again.
    fn inherit(&self, point: Point) -> Result<String, String> {
        let late = self.pool.counter(Counter::LockTimeouts);
        let dead = self.other();
        let done = asked(self.fabric(), finished(dead));
        if done != DEATH_BLOCKS + LAST_WORDS - 1 {
            return Err(format!("the dead host had finished {done} blocks"));
        }
        self.read_all(dead, DEATH_SET, done).map_err(|reason| format!("after the death {reason}"))?;
        // A block is readable when its descriptor is written; the index leads to it then, or once
        // its chunk is adopted.
        let half_done = hash(dead, DEATH_SET, done);
        let is_there = |there: bool, when: &str| match (self.look_up(half_done), there) {
            (Some(hit), true) => self.read(Some(&hit), &mut Tally::default()),
            (None, false) => Ok(()),
            (found, _) => Err(format!("{when} the half published block is {found:?}")),
        };
        is_there(point == Point::PublishIndexed, "after the death")?;
        let chunk = |hit: &Hit| hit.block.0 / SLOTS_PER_CHUNK;
        let hits = (0..done).filter_map(|number| self.look_up(hash(dead, DEATH_SET, number)));
        let chunks: BTreeSet<u64> = hits.map(|hit| chunk(&hit)).collect();
        // Pins of a dead host hold nothing.
        let evicted = self.pool.evict(PINNED_BLOCKS as usize);
        if evicted as u64 != PINNED_BLOCKS {
            return Err(format!("{evicted} of {PINNED_BLOCKS} blocks that the dead host pinned could leave"));
        }
        let deadline = Clock::system().after(PATIENCE);
        let mut published = 0;
        let mut publish = || {
            let hash = hash(self.me, AFTER_SET, published);
            let outcome = self.publish(hash);
            published += 1;
            if outcome != Publish::Published || deadline.passed() {
                return Err(format!("publishing block {published} after the death: {outcome:?}"));
            }
            let hit = self.look_up(hash).ok_or_else(|| format!("block {published} after the death is not found"))?;
            self.read(Some(&hit), &mut Tally::default())?;
            Ok(hit)
        };
        let mut alone = 0_u64;
        while self.pool.counter(Counter::ChunksAdopted) == 0 {
            publish()?;
            alone += 1;
        }
        // The adopted chunks have a free slot or two, so no block had to leave yet.
        let becomes_readable = [Point::PublishReady, Point::IndexCounted, Point::PublishIndexed].contains(&point);
        is_there(becomes_readable, "after the adoption")?;
        self.read_all(dead, DEATH_SET, done).map_err(|reason| format!("after the adoption {reason}"))?;
        let mut reused = 0_u64;
        while reused < DEATH_BLOCKS / 2 {
            reused += u64::from(chunks.contains(&chunk(&publish()?)));
        }
        println!(
            "two_hosts b: {} chunks adopted after {alone} blocks; {reused} new blocks in them, {published} in all",
            self.pool.counter(Counter::ChunksAdopted)
        );
        let checked = self.check()?;
        self.pool.gc().map_err(|error| format!("gc: {error}"))?;
        self.check().map_err(|reason| format!("after gc: {reason}"))?;
        for lock in [COUNT_LOCK, DEATH_LOCK] {
            let held = self.pool.lock_user(lock, LOCK_TIMEOUT).map_err(|error| error.to_string())?;
            if held.abandoned() {
                return Err(format!("lock {lock} is told to be abandoned once more"));
            }
        }
        if self.pool.counter(Counter::LockTimeouts) > late {
            return Err("a lock was late after the takeover".to_owned());
        }
        println!("two_hosts b: recovered");
        let abandoned = self.pool.counter(Counter::LocksAbandoned);
        Ok(format!("{done} blocks of the dead host were whole; {abandoned} locks repaired; {checked}"))
    }
}

fn parse_point(name: &str) -> Result<Point, String> {
    name.parse().map_err(|error: fault::UnknownName| error.to_string())
}
