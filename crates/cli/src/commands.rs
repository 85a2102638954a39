//! The subcommands, one file each.

mod demo;
mod diff;
mod doctor;
mod engram;
mod events;
mod explain;
mod generate;
mod history;
mod list;
mod metrics;
mod plan;
mod pool;
mod profile;
mod record;
mod serve;
mod share;
mod snapshot;
mod stat;
mod top;
mod ui;
mod whatif;
mod worker;

use crate::args::{Cli, Commands, PoolCommands};
use cenote_console::failure::Failure;
use cenote_console::program::{ProcessArgs, Program};
use cenote_console::settings::Part;
use cenote_console::{shell, stale};
use std::process::ExitCode;

impl Program for Cli {
    const SETTINGS: Part = Part::Product;

    fn process(&self) -> &ProcessArgs {
        &self.process
    }

    /// Runs a subcommand. Regions that killed commands left are removed first, except by commands
    /// that list or observe them and by workers.
    fn run(self) -> Result<ExitCode, Failure> {
        let looks = matches!(
            self.command,
            Commands::Doctor(_)
                | Commands::Top(_)
                | Commands::Stat(_)
                | Commands::Ui(_)
                | Commands::Pool(PoolCommands::List(_))
        );
        if !looks && !matches!(self.command, Commands::Worker(_)) {
            stale::sweep();
        }
        let done = |()| ExitCode::SUCCESS;
        match self.command {
            Commands::Demo(args) => demo::run(&args),
            Commands::Serve(args) => serve::run(&args).map(done),
            Commands::Generate(args) => generate::run(&args).map(done),
            Commands::Pool(command) => pool::run(command),
            Commands::Engram(command) => engram::run(&command),
            Commands::Plan(command) => plan::run(&command).map(done),
            Commands::Top(args) => top::run(&args).map(done),
            Commands::Stat(args) => stat::run(&args).map(done),
            Commands::Ui(args) => ui::run(&args).map(done),
            Commands::Record(args) => record::run(&args).map(done),
            Commands::Doctor(args) => doctor::run(&args),
            Commands::Profile(args) => profile::run(&args).map(done),
            Commands::Completions(args) => {
                shell::completions::<Self>(&args);
                Ok(ExitCode::SUCCESS)
            }
            Commands::Man(args) => shell::man::<Self>(&args).map(done),
            Commands::Worker(args) => worker::run(&args).map(done),
        }
    }
}
