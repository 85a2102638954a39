//! `cenote-lab bench`: how near the pool comes to what the machine can do, in the same run.
//!
//! `ttft` measures a whole engine, `codec` only codecs. The others measure the pool alone: this
//! process and children of its own share a region, and every block that is timed is published,
//! found and read through the pool, so its checksum and generation were right.

mod alloc;
mod bare;
mod child;
mod codec;
mod index;
mod lock;
mod party;
mod pool;
mod regions;
mod rows;
mod trace;
mod ttft;

pub use child::run as run_child;

use crate::args::{BenchCommands, BenchCoreArgs};
use cenote_console::args::DesignArg;
use cenote_console::failure::Failure;
use cenote_console::output;
use regions::Regions;
use rows::{Row, rows_table};
use serde::Serialize;

#[derive(Serialize)]
struct Report {
    quick: bool,
    /// The kernel of payload copies.
    kernel: &'static str,
    rows: Vec<Row>,
}

/// What a bench is given: where its regions come from, and whether it is to be short.
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

/// What can be measured alone: its name for `--only`, and how.
struct Part {
    name: &'static str,
    measure: fn(&Setting) -> Result<Vec<Row>, Failure>,
}

const BENCHES: [(&str, &[Part]); 4] =
    [("pool", pool::PARTS), ("index", index::PARTS), ("lock", lock::PARTS), ("alloc", alloc::PARTS)];

pub fn run(command: &BenchCommands) -> Result<(), Failure> {
    match command {
        BenchCommands::Ttft(args) => ttft::run(args),
        BenchCommands::Trace(args) => trace::run(args),
        BenchCommands::Codec(args) => codec::run(args),
        BenchCommands::Pool(args) => core(&["pool"], &[DesignArg::Cenote], args),
        BenchCommands::Index(args) => core(&["index"], &[DesignArg::Cenote], args),
        BenchCommands::Lock(args) => core(&["lock"], &[DesignArg::Cenote], args),
        BenchCommands::Alloc(args) => core(&["alloc"], &[DesignArg::Cenote], args),
        BenchCommands::All(args) => core(&BENCHES.map(|(name, _)| name), &[DesignArg::Cenote, DesignArg::Plain], args),
    }
}

/// Measures what these benches have, in the designs that were asked for, or else in `usual`.
fn core(names: &[&str], usual: &[DesignArg], args: &BenchCoreArgs) -> Result<(), Failure> {
    let parts = BENCHES.iter().filter(|(bench, _)| names.contains(bench)).flat_map(|(bench, parts)| {
        let wanted = |part: &&Part| args.only.is_empty() || args.only.iter().any(|only| only == part.name);
        parts.iter().filter(wanted).map(move |part| (*bench, part))
    });
    let parts: Vec<(&str, &Part)> = parts.collect();
    if parts.is_empty() {
        let all = BENCHES.iter().filter(|(bench, _)| names.contains(bench)).flat_map(|(_, parts)| parts.iter());
        let all: Vec<&str> = all.map(|part| part.name).collect();
        return Err(Failure::new("--only: there is no such part").hint(format!("parts: {}", all.join(", "))));
    }
    let mut setting = Setting { regions: Regions::until_signal()?, quick: args.quick };
    let designs = if args.design.is_empty() { usual } else { &args.design };
    let progress = output::progress("measuring", (parts.len() * designs.len()) as u64);
    let mut rows = Vec::new();
    for &design in designs {
        setting.regions.design = design;
        for &(bench, part) in &parts {
            // Goals are ours; what stands beside is for comparison.
            let goals = |row: Row| if design == DesignArg::Cenote { row } else { Row { goal: None, met: None, ..row } };
            let of = |row| Row { bench, design: design.kind().name(), ..goals(row) };
            rows.extend((part.measure)(&setting)?.into_iter().map(of));
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    let report = Report { quick: args.quick, kernel: cenote_mem::checksum::Level::chosen().name(), rows };
    args.output.show(&report, || rows_table(&report.rows))
}
