//! The commands, one file each.

mod bench;
mod choose;
mod demo;
mod diff;
mod doctor;
mod engine;
mod eval;
mod events;
mod generate;
mod list;
mod live;
mod outliers;
mod pool;
mod profile;
mod serve;
mod shell;
mod sim;
mod study;
mod torture;
mod worker;

use crate::args::{Commands, PoolCommands};
use crate::failure::Failure;
use crate::stale;
use std::process::ExitCode;

/// Runs a command. What killed commands have left goes first, unless the command is there to show it, or is a part of
/// another.
pub fn run(command: Commands) -> Result<ExitCode, Failure> {
    let only_shows = matches!(command, Commands::Doctor(_) | Commands::Pool(PoolCommands::List(_)));
    if !only_shows && !matches!(command, Commands::BenchChild(_) | Commands::TortureChild(_) | Commands::Worker(_)) {
        stale::sweep();
    }
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
        Commands::Completions(args) => {
            shell::completions(&args);
            Ok(ExitCode::SUCCESS)
        }
        Commands::Man(args) => shell::man(&args).map(done),
        Commands::Torture(args) => torture::run(&args),
        Commands::TortureChild(args) => torture::run_child(&args).map(done),
        Commands::Worker(args) => worker::run(&args).map(done),
    }
}
