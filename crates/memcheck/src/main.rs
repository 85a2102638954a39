//! `cenote-memcheck` runs the pool on the cache-line model. `cargo xtask simulate` starts it.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool prints its results")]

mod campaign;
mod fills;
mod follow;
mod ledger;
mod limits;
mod memory;
mod mutations;
mod namespaces;
mod objects;
mod oracle;
mod remote;
mod rows;
mod run;
mod sample;
mod scenario;
mod shape;

use cenote_base::fault::{Mistake, Point};
use cenote_pool::Design;
use clap::Parser;
use std::process::ExitCode;

/// Runs the pool's code on a model of hosts with private caches, under seeded schedules and
/// crashes.
#[derive(Parser)]
#[command(name = "cargo xtask simulate")]
pub struct Args {
    /// Number of seeds to run. Default: 200; 2000 with --mutate.
    #[arg(long)]
    seeds: Option<u64>,
    /// First seed to run.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run this one seed and print its trace.
    #[arg(long)]
    repeat: Option<u64>,
    /// Design of the pool: cenote, or plain (which runs without crashes).
    #[arg(long, default_value = "cenote", value_parser = parse_design)]
    design: Design,
    /// Leave out one effect: FILE:LINE:COLUMN=flush, =fence or =invalidation.
    #[arg(long)]
    without: Option<cenote_memmodel::Mutation>,
    /// Add delays, crashes and early fetches at FILE:LINE:COLUMN. Default with --without: its
    /// place.
    #[arg(long)]
    focus: Option<cenote_memmodel::Place>,
    /// Raise the rate of crashes and delays at this fault point.
    #[arg(long, value_parser = run::parse_point)]
    deadly: Option<Point>,
    /// Enable one deliberate mistake of the pool (needs the feature `sabotage`).
    #[arg(long)]
    sabotage: Option<Mistake>,
    /// Leave out every flush, fence and invalidation in turn, and enable every deliberate mistake
    /// in turn. Some seed must detect each.
    #[arg(long)]
    mutate: bool,
    /// Print all violations of a failing seed, and its shape.
    #[arg(long, short)]
    verbose: bool,
    /// With --mutate: try only mutations with this text in their description. May be repeated.
    #[arg(long)]
    only: Vec<String>,
    /// With --mutate: try this many mutations; --key chooses them. Eight of ten must be detected.
    #[arg(long, requires = "mutate")]
    sample: Option<usize>,
    /// With --mutate: try the ten mutations of `STANDING`. Each must be detected.
    #[arg(long, requires = "mutate", conflicts_with = "sample")]
    standing: bool,
    /// With --mutate: append each result to this file, and do not repeat those that it has of this build.
    #[arg(long, requires = "mutate")]
    log: Option<std::path::PathBuf>,
    /// Text that chooses the mutations of --sample, such as a commit's hash.
    #[arg(long, default_value = "")]
    key: String,
}

fn parse_design(text: &str) -> Result<Design, String> {
    Design::ALL
        .into_iter()
        .find(|design| design.name() == text)
        .ok_or_else(|| format!("unknown design `{text}`; use cenote or plain"))
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Err(reason) = mutations::sabotage(args.sabotage) {
        eprintln!("error: {reason}");
        return ExitCode::from(2);
    }
    if let Some(seed) = args.repeat {
        return campaign::repeat(seed, &args);
    }
    // Simulated crashes are caught panics. The report shows other panics with their seed.
    std::panic::set_hook(Box::new(|_| {}));
    if args.mutate { mutations::mutate(&args) } else { campaign::explore(&args) }
}
