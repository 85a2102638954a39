//! `cenote bench`: how near the pool comes to what the machine can do, in the same run.
//!
//! `ttft` measures a whole engine. The others measure the pool alone: this process and children of its own share
//! a region, and every block that is timed is published, found and read through the pool, so its checksum and
//! generation were right.

mod alloc;
mod child;
mod index;
mod lock;
mod party;
mod pool;
mod regions;
mod rows;
mod ttft;

pub use child::run as run_child;
pub use ttft::{COLD_GOAL, percentiles};

use crate::args::{BenchCommands, BenchCoreArgs};
use crate::failure::Failure;
use crate::output;
use regions::Regions;
use rows::{Row, rows_table};
use serde::Serialize;

#[derive(Serialize)]
struct Report {
    bench: &'static str,
    quick: bool,
    /// The kernel of payload copies.
    kernel: &'static str,
    rows: Vec<Row>,
}

/// What a bench is given: where its regions are kept, and whether it is to be short.
struct Setting {
    regions: Regions,
    quick: bool,
}

impl Setting {
    /// `full`, or `short` in a quick run.
    const fn choose(&self, full: u64, short: u64) -> u64 {
        if self.quick { short } else { full }
    }
}

pub fn run(command: &BenchCommands) -> Result<(), Failure> {
    match command {
        BenchCommands::Ttft(args) => ttft::run(args),
        BenchCommands::Pool(args) => core("pool", args, pool::rows),
        BenchCommands::Index(args) => core("index", args, index::rows),
        BenchCommands::Lock(args) => core("lock", args, lock::rows),
        BenchCommands::Alloc(args) => core("alloc", args, alloc::rows),
    }
}

fn core(
    bench: &'static str,
    args: &BenchCoreArgs,
    measure: impl FnOnce(&Setting) -> Result<Vec<Row>, Failure>,
) -> Result<(), Failure> {
    let spinner = output::spinner("measuring");
    let setting = Setting { regions: Regions::until_signal()?, quick: args.quick };
    let rows = measure(&setting)?;
    spinner.finish_and_clear();
    let report = Report { bench, quick: args.quick, kernel: cenote_mem::checksum::Level::chosen().name(), rows };
    args.output.show(&report, || rows_table(&report.rows))
}
