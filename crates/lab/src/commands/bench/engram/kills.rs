//! Loaders that are killed: after each death the region has no table or a whole one, and the next
//! loader goes on.

use super::super::Setting;
use super::super::regions::Shape;
use super::super::rows::{Row, Times};
use super::ROW_BYTES;
use super::pattern::{Pattern, join};
use crate::args::EngramLoadChildArgs;
use cenote_base::Clock;
use cenote_base::prng::Prng;
use cenote_console::args::RegionArgs;
use cenote_console::failure::Failure;
use cenote_console::region::HostPool;
use cenote_mem::Flush;
use cenote_tables::{LoadOptions, Progress, TableError, check, drop_table, list, load};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const NAME: &str = "killed";
const TABLE_BYTES: u64 = 8 << 20;
const EXTENT_BYTES: u64 = 256 << 10;
/// Longest wait for a loader that ends.
const PATIENCE: Duration = Duration::from_secs(60);
/// A whole load says about so many steps.
const STEPS: u64 = TABLE_BYTES / EXTENT_BYTES / 2;

fn pattern() -> Pattern {
    Pattern::new("f16", ROW_BYTES, TABLE_BYTES / ROW_BYTES)
}

fn options(progress: &(dyn Fn(Progress) + Sync)) -> LoadOptions<'_> {
    LoadOptions {
        progress,
        extent_bytes: EXTENT_BYTES,
        journal_bytes: 2 * EXTENT_BYTES,
        ..LoadOptions::waiting(Clock::system().after(PATIENCE))
    }
}

/// Loads the table, and says each step.
pub fn run_child(args: &EngramLoadChildArgs) -> Result<(), Failure> {
    let pool = join(&args.region, 0)?;
    let say = |_| {
        let mut out = std::io::stdout().lock();
        // A bench that is gone reads nothing more.
        let _ = writeln!(out, "step").and_then(|()| out.flush());
    };
    load(&pool, NAME, &pattern(), &options(&say))?;
    Ok(())
}

fn start(region: &RegionArgs) -> Result<Child, Failure> {
    let source = region.source()?.to_string();
    let child = Command::new(std::env::current_exe()?)
        .args(["engram-load-child", "--region", &source])
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()?;
    Ok(child)
}

/// Kills after so many steps; returns whether the loader was done before.
fn kill_after(mut child: Child, steps: u64) -> Result<bool, Failure> {
    let said = BufReader::new(child.stdout.take().expect("it is piped"));
    said.lines().take(steps as usize).for_each(drop);
    child.kill()?;
    Ok(child.wait()?.success())
}

/// What a death has left.
enum Left {
    Nothing,
    Whole,
    /// A bug.
    Part(String),
}

fn left(pool: &HostPool) -> Left {
    pool.tick();
    match check(pool, NAME) {
        Ok(checked) if checked.is_whole => Left::Whole,
        Ok(checked) => Left::Part(format!("damaged extents: {:?}", checked.damaged)),
        Err(TableError::Missing(_)) => Left::Nothing,
        Err(error) => Left::Part(error.to_string()),
    }
}

pub fn measure(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let kills = setting.choose(500, 50);
    let shape = Shape { chunk_bytes: 2 << 20, sparse: true, ..Shape::of(Flush::None, 64 << 20) };
    let region = setting.regions.make(&shape)?;
    let pool = join(&region, 0)?;
    let mut prng = Prng::new(3);
    let (mut deaths, mut good, mut wholes, mut resumed, mut recoveries) = (0, 0, 0, 0, Times::new());
    while deaths < kills {
        let was_done = kill_after(start(&region)?, prng.below(STEPS + 2))?;
        deaths += u64::from(!was_done);
        match left(&pool) {
            Left::Part(what) => return Err(Failure::new(format!("death {deaths}: {what}"))),
            Left::Nothing => {
                resumed += u64::from(list(&pool).first().is_some_and(|table| table.extents > 0));
            }
            Left::Whole => {
                wholes += 1;
                // Each whole table goes, and nothing stays of all the loads before it.
                drop_table(&pool, NAME, Clock::system().after(PATIENCE))?;
                nothing_stays(&pool)?;
            }
        }
        good += u64::from(!was_done);
    }
    let begun = Instant::now();
    load(&pool, NAME, &pattern(), &options(&|_| {}))?;
    recoveries.push(begun.elapsed().as_nanos() as f64);
    if !check(&pool, NAME)?.is_whole {
        return Err(Failure::new("the last table is damaged"));
    }
    drop_table(&pool, NAME, Clock::system().after(PATIENCE))?;
    nothing_stays(&pool)?;
    let name = format!(
        "{kills} kills during loading: no table or a whole one ({wholes} whole, {resumed} interrupted ones with extents); \
         the last load"
    );
    Ok(vec![Row::milliseconds(name, &recoveries).ratio_at_least(good as f64 / deaths as f64, 1.0)])
}

fn nothing_stays(pool: &HostPool) -> Result<(), Failure> {
    let (pieces, tables) = (pool.info().memory.pieces, list(pool).len());
    match (pieces, tables) {
        (0, 0) => Ok(()),
        _ => Err(Failure::new(format!("{pieces} pieces of memory and {tables} tables stayed"))),
    }
}
