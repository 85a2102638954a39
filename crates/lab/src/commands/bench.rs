//! `cenote-lab bench`: the pool's speed against the machine's limits, in the same run.
//!
//! `ttft` and `trace` measure a whole engine, `sessions` servers, `codec` only codecs, `predict` only predictors of tokens. The others measure the pool alone: this
//! process and its children share a region, and every timed block is published, found and read
//! through the pool, so its checksum and generation were verified.

mod alloc;
mod bare;
mod blocks;
mod child;
mod codec;
mod cold;
mod cold_server;
mod engram;
mod gather;
mod index;
mod lock;
mod memory;
mod pool;
mod predict;
mod reach;
mod regions;
mod rows;
mod seal;
mod sessions;
mod tiers;
mod trace;
mod ttft;
mod waking;
mod worker;

pub use child::run as run_child;
pub use cold::run_full_child as run_cold_full_child;
pub use engram::run_load_child as run_engram_load_child;
pub use reach::run_child as run_reach_share_child;

use crate::args::{BenchCommands, BenchCoreArgs};
use cenote_console::args::DesignArg;
use cenote_console::failure::Failure;
use cenote_console::output;
use regions::Regions;
use rows::{Row, rows_table};
use serde::Serialize;
use std::path::PathBuf;

#[derive(Serialize)]
struct Report {
    quick: bool,
    /// The kernel of payload copies.
    kernel: &'static str,
    rows: Vec<Row>,
}

/// Settings of a bench: its regions, and whether it is short.
struct Setting {
    regions: Regions,
    quick: bool,
    /// NIXL's library, if one is named.
    nixl: Option<PathBuf>,
    /// A Python with Mooncake's package, if one is named.
    mooncake: Option<PathBuf>,
    /// URL of a Redis or Valkey server, if one is named.
    server: Option<String>,
}

/// What some benches measure beside Cenote, if it is named: see [`Setting`].
#[derive(Default)]
struct Beside {
    nixl: Option<PathBuf>,
    mooncake: Option<PathBuf>,
    server: Option<String>,
}

impl Setting {
    /// `full`, or `short` in a quick run.
    const fn choose(&self, full: u64, short: u64) -> u64 {
        if self.quick { short } else { full }
    }
}

/// Benches of the pool: their names for `--only`, and their functions.
struct Part {
    name: &'static str,
    measure: fn(&Setting) -> Result<Vec<Row>, Failure>,
}

/// Those of `bench all`: they need memory only.
const IN_MEMORY: [&str; 4] = ["pool", "index", "lock", "alloc"];

const BENCHES: [(&str, &[Part]); 11] = [
    ("pool", pool::PARTS),
    ("index", index::PARTS),
    ("lock", lock::PARTS),
    ("alloc", alloc::PARTS),
    ("gather", gather::PARTS),
    ("memory", memory::PARTS),
    ("cold", cold::PARTS),
    ("cold", cold_server::PARTS),
    ("engram", engram::PARTS),
    ("seal", seal::PARTS),
    ("reach", reach::PARTS),
];

pub fn run(command: &BenchCommands) -> Result<(), Failure> {
    match command {
        BenchCommands::Ttft(args) => ttft::run(args),
        BenchCommands::Trace(args) => trace::run(args),
        BenchCommands::Sessions(args) => sessions::run(args),
        BenchCommands::Codec(args) => codec::run(args),
        BenchCommands::Predict(args) => predict::run(args),
        BenchCommands::Tiers(args) => tiers::run(args),
        BenchCommands::Pool(args) => core(&["pool"], &[DesignArg::Cenote], args),
        BenchCommands::Index(args) => core(&["index"], &[DesignArg::Cenote], args),
        BenchCommands::Lock(args) => core(&["lock"], &[DesignArg::Cenote], args),
        BenchCommands::Alloc(args) => core(&["alloc"], &[DesignArg::Cenote], args),
        BenchCommands::Gather(args) => core(&["gather"], &[DesignArg::Cenote], args),
        BenchCommands::Memory(args) => core(&["memory"], &[DesignArg::Cenote], args),
        BenchCommands::Cold(args) => {
            let beside = Beside { server: args.server.clone(), ..Beside::default() };
            core_with(&["cold"], &[DesignArg::Cenote], &args.core, beside)
        }
        BenchCommands::Engram(args) => core(&["engram"], &[DesignArg::Cenote], args),
        BenchCommands::Seal(args) => core(&["seal"], &[DesignArg::Cenote], args),
        BenchCommands::Reach(args) => {
            let (nixl, mooncake) = (args.nixl.clone(), args.mooncake.clone());
            let beside = Beside { nixl, mooncake, ..Beside::default() };
            core_with(&["reach"], &[DesignArg::Cenote], &args.core, beside)
        }
        BenchCommands::All(args) => core(&IN_MEMORY, &[DesignArg::Cenote, DesignArg::Plain], args),
    }
}

/// Runs these benches in the requested designs, or else in `usual`.
fn core(names: &[&str], usual: &[DesignArg], args: &BenchCoreArgs) -> Result<(), Failure> {
    core_with(names, usual, args, Beside::default())
}

/// As [`core`], beside what is named.
fn core_with(names: &[&str], usual: &[DesignArg], args: &BenchCoreArgs, beside: Beside) -> Result<(), Failure> {
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
    let Beside { nixl, mooncake, server } = beside;
    let mut setting = Setting { regions: Regions::until_signal()?, quick: args.quick, nixl, mooncake, server };
    let designs = if args.design.is_empty() { usual } else { &args.design };
    let progress = output::progress("measuring", (parts.len() * designs.len()) as u64);
    let mut rows = Vec::new();
    for &design in designs {
        setting.regions.design = design;
        for &(bench, part) in &parts {
            // Only rows of our design have goals; others are for comparison.
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
