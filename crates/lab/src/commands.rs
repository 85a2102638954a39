//! The subcommands, one file each.

mod bench;
mod choose;
mod client;
mod cold_region;
mod eval;
mod greedy;
mod live;
mod outliers;
mod plan;
mod random_model;
mod reproduce;
mod sim;
mod soak;
mod study;
mod torture;

use crate::args::{Cli, Commands};
use cenote_console::failure::Failure;
use cenote_console::program::{ProcessArgs, Program};
use cenote_console::settings::Part;
use cenote_console::{shell, stale};
use std::process::ExitCode;

impl Program for Cli {
    const SETTINGS: Part = Part::Lab;

    fn process(&self) -> &ProcessArgs {
        &self.process
    }

    /// Runs a subcommand. Regions that killed commands left are removed first, except by child
    /// processes.
    fn run(self) -> Result<ExitCode, Failure> {
        let is_child = matches!(
            self.command,
            Commands::BenchChild(_)
                | Commands::EngramLoadChild(_)
                | Commands::ReachShareChild(_)
                | Commands::TortureChild(_)
                | Commands::ColdChild(_)
                | Commands::ColdFullChild(_)
        );
        if !is_child {
            stale::sweep();
        }
        let done = |()| ExitCode::SUCCESS;
        match self.command {
            Commands::Eval(args) => eval::run(&args).map(done),
            Commands::Choose(args) => choose::run(&args).map(done),
            Commands::Outliers(args) => outliers::run(&args).map(done),
            Commands::RandomModel(args) => random_model::run(&args).map(done),
            Commands::Sim(args) => sim::run(&args).map(done),
            Commands::Plan(command) => plan::run(&command).map(done),
            Commands::Reproduce(args) => reproduce::run(&args).map(done),
            Commands::Study(command) => study::run(&command).map(done),
            Commands::Bench(command) => bench::run(&command).map(done),
            Commands::BenchChild(args) => bench::run_child(&args).map(done),
            Commands::EngramLoadChild(args) => bench::run_engram_load_child(&args).map(done),
            Commands::ReachShareChild(args) => bench::run_reach_share_child(&args).map(done),
            Commands::Soak(args) => soak::run(&args),
            Commands::Torture(args) => torture::run(&args),
            Commands::TortureChild(args) => torture::run_child(&args).map(done),
            Commands::ColdFullChild(args) => bench::run_cold_full_child(&args).map(done),
            Commands::ColdChild(args) => torture::run_cold_child(&args),
            Commands::Completions(args) => {
                shell::completions::<Self>(&args);
                Ok(ExitCode::SUCCESS)
            }
            Commands::Man(args) => shell::man::<Self>(&args).map(done),
        }
    }
}
