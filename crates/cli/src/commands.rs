//! The commands, one file each.

mod bench;
mod choose;
mod demo;
mod doctor;
mod engine;
mod eval;
mod events;
mod generate;
mod live;
mod outliers;
mod pool;
mod profile;
mod serve;
mod sim;
mod study;
mod torture;
mod worker;

use crate::args::Commands;
use crate::failure::Failure;
use std::process::ExitCode;

/// Runs a command.
pub fn run(command: Commands) -> Result<ExitCode, Failure> {
    let done = |()| ExitCode::SUCCESS;
    match command {
        Commands::Demo(args) => demo::run(&args),
        Commands::Serve(args) => serve::run(&args).map(done),
        Commands::Generate(args) => generate::run(&args).map(done),
        Commands::Pool(command) => pool::run(command),
        Commands::Doctor(args) => doctor::run(&args).map(done),
        Commands::Profile(args) => profile::run(&args).map(done),
        Commands::Eval(args) => eval::run(&args).map(done),
        Commands::Choose(args) => choose::run(&args).map(done),
        Commands::Outliers(args) => outliers::run(&args).map(done),
        Commands::Sim(args) => sim::run(&args).map(done),
        Commands::Study(command) => study::run(&command).map(done),
        Commands::Bench(command) => bench::run(&command).map(done),
        Commands::BenchChild(args) => bench::run_child(&args).map(done),
        Commands::Torture(args) => torture::run(&args),
        Commands::TortureChild(args) => torture::run_child(&args).map(done),
        Commands::Worker(args) => worker::run(&args).map(done),
    }
}
