//! `cenote-lab torture --cold KILLS`: processes write to one directory of L4 and read each other's
//! blocks, while they are killed at random instants. Then a new process reads everything that the
//! directory lists. No byte may be wrong.
//!
//! A block's number decides its name and its bytes, so every reader knows what is right. Each child
//! has a small region of its own, as after a reboot.

use crate::args::{ColdChildArgs, TortureArgs};
use cenote_base::prng::Prng;
use cenote_base::{BlockHash, Deadline, HashSeed};
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_mem::{Coherent, MapOptions, Mapping, RegionSource};
use cenote_pool::{
    AttachOptions, Namespace, NamespaceRecord, NewBlock, Pool, PoolConfig, Publish, ReadOutcome, Superblock,
};
use cenote_store::cold::{ColdTier, Settings, seed_of};
use serde::Serialize;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BLOCK_BYTES: u64 = 16 << 10;
const REGION_BYTES: u64 = 8 << 20;
/// So small that extents are reclaimed all the time.
const COLD_BYTES: u64 = 24 << 20;
/// Numbers that the children draw from: more than fit into the directory.
const NUMBERS: u64 = 4096;
/// Blocks of a child's turn.
const TURN: u64 = 32;
/// Time that a child works until it is killed, in microseconds.
const LIFE_US: std::ops::Range<u64> = 500..60_000;
const PATIENCE: Duration = Duration::from_secs(30);
/// Exit code of a child that read a wrong byte.
const WRONG: u8 = 3;

/// What a run found.
#[derive(Debug, Default, Serialize)]
struct Report {
    directory: String,
    seed: u64,
    kills: u64,
    /// Blocks that the directory lists at the end.
    listed: u64,
    /// Those of them that were read whole, all with the right bytes.
    read: u64,
    /// Damaged records that readers met at the end.
    damaged: u64,
    wrong_bytes: u64,
    failed_children: u64,
    seconds: f64,
    pass: bool,
}

pub fn run(args: &TortureArgs, kills: u64) -> Result<ExitCode, Failure> {
    let seed = args.seed.unwrap_or_else(|| std::process::id().into());
    let directory = TemporaryDirectory::new()?;
    let (mut prng, begin) = (Prng::at(seed, 1), Instant::now());
    let mut report = Report { directory: directory.0.display().to_string(), seed, ..Report::default() };
    let bar = output::progress("torture", kills);
    // Two children at any time: each kill hits a writer that another process follows.
    let mut children = vec![Life::start(&directory.0, seed, 0)?, Life::start(&directory.0, seed, 1)?];
    while report.kills < kills {
        let next = Life::start(&directory.0, seed, report.kills + 2)?;
        let mut oldest = std::mem::replace(&mut children[(report.kills % 2) as usize], next);
        oldest.ready()?;
        let pause = LIFE_US.start + prng.below(LIFE_US.end - LIFE_US.start);
        spin(Duration::from_micros(pause));
        match oldest.kill()? {
            None => report.kills += 1,
            Some(code) => {
                report.kills += 1;
                report.failed_children += 1;
                report.wrong_bytes += u64::from(code == Some(WRONG.into()));
            }
        }
        bar.inc(1);
    }
    for child in &mut children {
        child.kill()?;
    }
    bar.finish_and_clear();
    read_all(&directory.0, seed, &mut report)?;
    report.seconds = begin.elapsed().as_secs_f64();
    report.pass = report.wrong_bytes == 0 && report.failed_children == 0 && report.listed > 0 && report.read > 0;
    args.output.show(&report, || {
        output::facts(&[
            ("kills", report.kills.to_string()),
            ("blocks listed", report.listed.to_string()),
            ("read whole", report.read.to_string()),
            ("damaged records", report.damaged.to_string()),
            ("wrong bytes", report.wrong_bytes.to_string()),
            ("failed children", report.failed_children.to_string()),
            ("seconds", format!("{:.1}", report.seconds)),
        ])
    })?;
    if report.pass {
        return Ok(ExitCode::SUCCESS);
    }
    output::report_failure(&Failure::new("the cold tier failed").hint(format!("--seed {seed} starts alike")));
    Ok(ExitCode::from(WRONG))
}

/// Waits for a part of a child's life. A timer is too coarse for instants inside a write.
fn spin(pause: Duration) {
    let end = Instant::now() + pause;
    while Instant::now() < end {
        std::thread::yield_now();
    }
}

/// The directory of a run, removed at its end.
struct TemporaryDirectory(std::path::PathBuf);

impl TemporaryDirectory {
    fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("cenote-torture-cold-{}", std::process::id()));
        let made = std::fs::create_dir_all(&path).map(|()| Self(path.clone()));
        made.map_err(|error| Failure::new(format!("{}: cannot make the directory: {error}", path.display())))
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A child process.
struct Life {
    process: Child,
    lines: BufReader<ChildStdout>,
}

impl Life {
    fn start(directory: &Path, seed: u64, life: u64) -> Result<Self, Failure> {
        let program = std::env::current_exe()?;
        let mut process = Command::new(program)
            .arg("cold-child")
            .arg("--directory")
            .arg(directory)
            .args(["--seed", &seed.to_string(), "--life", &life.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(process.stdout.take().expect("piped"));
        Ok(Self { process, lines })
    }

    /// Waits until the child works.
    fn ready(&mut self) -> Result<(), Failure> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        Ok(())
    }

    /// Kills the child. Returns its exit code if it had ended by itself.
    fn kill(&mut self) -> Result<Option<Option<i32>>, Failure> {
        if let Some(status) = self.process.try_wait()? {
            return Ok(Some(status.code()));
        }
        self.process.kill()?;
        let status = self.process.wait()?;
        Ok(status.code().map(Some))
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The bytes of a block.
fn payload(seed: u64, number: u64) -> Vec<u8> {
    let mut prng = Prng::at(seed, number + 1);
    (0..BLOCK_BYTES / 8).flat_map(|_| prng.next_u64().to_le_bytes()).collect()
}

/// A region of this process with L4 below it.
struct World {
    pool: Pool<Arc<Coherent>>,
    namespace: Namespace,
    cold: Arc<ColdTier>,
    seed: u64,
}

impl World {
    fn open(directory: &Path, seed: u64) -> Result<Self, Failure> {
        let settings: Settings = format!("{},size={COLD_BYTES},deadline=10", directory.display()).parse()?;
        let own = HashSeed([seed as u8; 32]);
        let config = PoolConfig {
            chunk_bytes: 256 << 10,
            max_hosts: 1,
            workers_per_host: 2,
            hazard_lines_per_worker: 2,
            ..PoolConfig::new(seed_of(&settings.place, &own)?, [7; 16])
        };
        let mapping = Mapping::create(&RegionSource::Anon, REGION_BYTES, 0o600, &MapOptions::default())?;
        let fabric = Arc::new(Coherent::new(mapping));
        Superblock::format(&fabric, &config)?;
        let pool = Pool::attach(fabric, &AttachOptions { private: true, ..AttachOptions::named("torture") })?;
        let namespace = pool.namespace(&NamespaceRecord {
            fingerprint: [5; 32],
            label: "torture".to_owned(),
            block_bytes: BLOCK_BYTES,
            block_tokens: 16,
            num_layers: 1,
        })?;
        let cold = ColdTier::start(pool.clone(), &settings)?;
        cold.open(&namespace);
        if !cold.wait_open(Deadline::after(PATIENCE)) {
            return Err(Failure::new(format!("the cold tier does not open: {:?}", cold.last_error())));
        }
        Ok(Self { pool, namespace, cold, seed })
    }

    fn hash(&self, number: u64) -> BlockHash {
        self.namespace.hasher.alias(&number.to_le_bytes())
    }

    /// Publishes a block. It is offered to L4 if the region has it.
    fn put(&self, number: u64) {
        let hash = self.hash(number);
        let published =
            self.pool.publish(&NewBlock::new(&self.namespace, hash, number as u32), &[&payload(self.seed, number)]);
        if matches!(published, Publish::Published | Publish::Duplicate) {
            self.cold.offer(&self.namespace, [hash]);
        }
    }

    /// Reads a block from the region; `None`: a miss.
    fn is_right(&self, number: u64) -> Option<bool> {
        let hit = *self.pool.peek(&[self.hash(number)]).first()?;
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        let whole = self.pool.read(&hit, &mut [&mut bytes]) == ReadOutcome::Whole;
        whole.then(|| bytes == payload(self.seed, number))
    }
}

/// Reads blocks of others and writes own ones, until it is killed.
pub fn run_child(args: &ColdChildArgs) -> Result<ExitCode, Failure> {
    let world = World::open(&args.directory, args.seed)?;
    let mut prng = Prng::at(args.seed, 1_000_000 + args.life);
    writeln!(std::io::stdout(), "ready")?;
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let numbers: Vec<u64> = (0..TURN).map(|_| prng.below(NUMBERS)).collect();
        let hashes: Vec<BlockHash> = numbers.iter().map(|&number| world.hash(number)).collect();
        if let Some(promotion) = world.cold.promote_any(&world.namespace, &hashes) {
            promotion.wait();
        }
        if numbers.iter().any(|&number| world.is_right(number) == Some(false)) {
            return Ok(ExitCode::from(WRONG));
        }
        numbers.iter().for_each(|&number| world.put(number));
    }
    // The parent is gone.
    Ok(ExitCode::from(1))
}

/// Reads everything that the directory lists, as a process after a reboot.
fn read_all(directory: &Path, seed: u64, report: &mut Report) -> Result<(), Failure> {
    let world = World::open(directory, seed)?;
    for first in (0..NUMBERS).step_by(TURN as usize) {
        let numbers = first..first + TURN;
        let hashes: Vec<BlockHash> = numbers.clone().map(|number| world.hash(number)).collect();
        let listed = hashes.iter().filter(|hash| world.cold.count(&world.namespace, &[**hash]) == 1).count();
        report.listed += listed as u64;
        if let Some(promotion) = world.cold.promote_any(&world.namespace, &hashes) {
            promotion.wait();
        }
        for number in numbers {
            match world.is_right(number) {
                Some(true) => report.read += 1,
                Some(false) => report.wrong_bytes += 1,
                None => {}
            }
        }
    }
    report.damaged = world.cold.stats()["cold_errors_damaged_total"] as u64;
    Ok(())
}
