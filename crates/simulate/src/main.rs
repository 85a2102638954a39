//! `cenote-simulate`: runs the pool on the cache-line model. `cargo xtask simulate` starts it.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool talks")]

mod campaign;
mod fills;
mod follow;
mod limits;
mod oracle;
mod run;
mod scenario;

use cenote_pool::Design;
use clap::Parser;
use std::process::ExitCode;

/// Runs the pool's code on a model of hosts with private caches, under seeded schedules and deaths.
#[derive(Parser)]
#[command(name = "cargo xtask simulate")]
pub struct Args {
    /// How many seeds to run; by default 200, or as many as notice everything with --mutate.
    #[arg(long)]
    seeds: Option<u64>,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Runs this one seed, with what came before a failure.
    #[arg(long)]
    repeat: Option<u64>,
    /// The pool's design: cenote, or plain (without deaths).
    #[arg(long, default_value = "cenote", value_parser = parse_design)]
    design: Design,
    /// Leaves out one effect: FILE:LINE:COLUMN=flush, =fence or =invalidation.
    #[arg(long)]
    without: Option<cenote_weakmem::Mutation>,
    /// Turns the world against the pool at FILE:LINE:COLUMN; with --without, that is where it does.
    #[arg(long)]
    focus: Option<cenote_weakmem::Place>,
    /// Many die at this fault point, or are held up at it where hosts are taken for dead.
    #[arg(long, value_parser = run::parse_point)]
    deadly: Option<&'static str>,
    /// Makes one deliberate mistake (needs the feature `sabotage`).
    #[arg(long)]
    sabotage: Option<String>,
    /// Leaves out every flush, fence and invalidation in turn, and makes every deliberate mistake: each must be
    /// noticed by some seed.
    #[arg(long)]
    mutate: bool,
    /// Tells all that a failing seed violated, and its shape.
    #[arg(long, short)]
    verbose: bool,
    /// Only mutations whose text contains this, or one of these.
    #[arg(long)]
    only: Vec<String>,
}

fn parse_design(text: &str) -> Result<Design, String> {
    Design::ALL.into_iter().find(|design| design.name() == text).ok_or_else(|| format!("no design is called `{text}`"))
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Err(reason) = campaign::sabotage(args.sabotage.as_deref()) {
        eprintln!("error: {reason}");
        return ExitCode::from(2);
    }
    if let Some(seed) = args.repeat {
        return campaign::repeat(seed, &args);
    }
    // Deaths are panics that are caught, and panics of the code under test are reported with their seed.
    std::panic::set_hook(Box::new(|_| {}));
    if args.mutate { campaign::mutate(&args) } else { campaign::explore(&args) }
}
