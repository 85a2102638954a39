//! `cenote-lab torture --cold KILLS`: processes write to one directory of L4 and read each other's
//! blocks, while they are killed at random instants. Then a new process reads everything that the
//! directory lists. No byte may be wrong.
//!
//! A block's number decides its name and its bytes, so every reader knows what is right. Each child
//! has a small region of its own, as after a reboot.

use crate::args::{ColdChildArgs, TortureArgs};
use crate::commands::cold_region::{ColdRegion, Shape};
use cenote_base::prng::Prng;
use cenote_base::{BlockHash, HashSeed};
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_pool::ReadOutcome;
use cenote_store::cold::Settings;
use serde::Serialize;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const BLOCK_BYTES: u64 = 16 << 10;
/// A child's region: so small that promoted blocks evict each other.
const REGION_BYTES: u64 = 8 << 20;
/// Region of the process that reads at the end. It holds all blocks, so each listed one is read.
const LAST_REGION_BYTES: u64 = 128 << 20;
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
pub struct Report {
    directory: String,
    seed: u64,
    pub kills: u64,
    /// Blocks that the directory lists at the end.
    pub listed: u64,
    /// Those of them that were read whole, all with the right bytes.
    pub read: u64,
    /// Listed blocks that could not be read: damaged, or gone.
    missed: u64,
    pub wrong_bytes: u64,
    failed_children: u64,
    pub seconds: f64,
    pub pass: bool,
}

/// Kills so many writers of a new directory, and reads what they left.
pub fn torment(seed: u64, kills: u64) -> Result<Report, Failure> {
    let directory = tempfile::Builder::new().prefix("cenote-torture-cold-").tempdir()?;
    let (mut prng, begin) = (Prng::at(seed, 1), Instant::now());
    let mut report = Report { directory: directory.path().display().to_string(), seed, ..Report::default() };
    let bar = output::progress("torture", kills);
    // Two children at any time: each kill hits a writer that another process follows.
    let mut children = vec![Life::start(directory.path(), seed, 0)?, Life::start(directory.path(), seed, 1)?];
    while report.kills < kills {
        let next = Life::start(directory.path(), seed, report.kills + 2)?;
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
    read_all(directory.path(), seed, &mut report)?;
    report.seconds = begin.elapsed().as_secs_f64();
    // A process that is killed, unlike a machine that loses power, leaves only lines of whole records.
    let all_read = report.listed > 0 && report.read == report.listed && report.missed == 0;
    report.pass = report.wrong_bytes == 0 && report.failed_children == 0 && all_read;
    Ok(report)
}

pub fn run(args: &TortureArgs, kills: u64) -> Result<ExitCode, Failure> {
    let seed = args.seed.unwrap_or_else(|| std::process::id().into());
    let report = torment(seed, kills)?;
    args.output.show(&report, || {
        output::facts(&[
            ("kills", report.kills.to_string()),
            ("blocks listed", report.listed.to_string()),
            ("read whole", report.read.to_string()),
            ("listed and not read", report.missed.to_string()),
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

/// A small region with L4 below it.
struct World {
    region: ColdRegion,
    seed: u64,
}

impl World {
    fn open(directory: &Path, seed: u64, region_bytes: u64) -> Result<Self, Failure> {
        let settings: Settings = format!("{},size={COLD_BYTES},deadline=10", directory.display()).parse()?;
        let shape = Shape { region_bytes, chunk_bytes: 256 << 10, block_bytes: BLOCK_BYTES, prefault: false };
        Ok(Self { region: ColdRegion::open(&settings, HashSeed([seed as u8; 32]), shape)?, seed })
    }

    fn hashes(&self, numbers: impl IntoIterator<Item = u64>) -> Vec<BlockHash> {
        numbers.into_iter().map(|number| self.region.hash(number)).collect()
    }

    /// Waits for those of the blocks that L4 lists.
    fn promote(&self, hashes: &[BlockHash]) {
        if let Some(promotion) = self.region.cold.promote_any(&self.region.namespace, hashes) {
            promotion.wait();
        }
    }

    /// Publishes a block. It is offered to L4 if the region has it.
    fn put(&self, number: u64) {
        if self.region.publish(number, &payload(self.seed, number)) {
            self.region.cold.offer(&self.region.namespace, [self.region.hash(number)]);
        }
    }

    /// Reads a block from the region; `None`: a miss.
    fn is_right(&self, number: u64) -> Option<bool> {
        let hit = *self.region.pool.peek(&[self.region.hash(number)]).first()?;
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        let whole = self.region.pool.read(&hit, &mut [&mut bytes]) == ReadOutcome::Whole;
        whole.then(|| bytes == payload(self.seed, number))
    }
}

/// Reads blocks of others and writes own ones, until it is killed.
pub fn run_child(args: &ColdChildArgs) -> Result<ExitCode, Failure> {
    let world = World::open(&args.directory, args.seed, REGION_BYTES)?;
    let mut prng = Prng::at(args.seed, 1_000_000 + args.life);
    writeln!(std::io::stdout(), "ready")?;
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let numbers: Vec<u64> = (0..TURN).map(|_| prng.below(NUMBERS)).collect();
        world.promote(&world.hashes(numbers.iter().copied()));
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
    let world = World::open(directory, seed, LAST_REGION_BYTES)?;
    for first in (0..NUMBERS).step_by(TURN as usize) {
        let numbers = first..first + TURN;
        let hashes = world.hashes(numbers.clone());
        let (cold, namespace) = (&world.region.cold, &world.region.namespace);
        report.listed += hashes.iter().filter(|hash| cold.count(namespace, &[**hash]) == 1).count() as u64;
        world.promote(&hashes);
        for number in numbers {
            match world.is_right(number) {
                Some(true) => report.read += 1,
                Some(false) => report.wrong_bytes += 1,
                None => {}
            }
        }
    }
    report.missed = world.region.cold.stats()["cold_misses_total"] as u64;
    Ok(())
}
