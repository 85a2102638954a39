//! The `cenote` command: wires regions, engines and servers into processes. Everything that decides is
//! below; here are flags, messages and processes.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod facts;
mod failure;
mod inventory;
mod output;
mod region;
mod settings;
mod signals;
mod stale;
mod usage;

use clap::FromArgMatches;
use failure::Failure;
use std::process::ExitCode;

/// Exit code of a wrong command line, as clap has it.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(failure) => {
            output::report_failure(&failure);
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode, Failure> {
    let (command, file) = settings::command_with_file()?;
    let mut command = usage::with_negative_values(command);
    let matches = match command.try_get_matches_from_mut(std::env::args_os()) {
        Ok(matches) => matches,
        Err(error) => {
            let arguments: Vec<String> = std::env::args().skip(1).collect();
            match usage::explain(&error, &command, &arguments, file.as_deref()) {
                None => error.exit(),
                Some(failure) => {
                    output::report_failure(&failure);
                    return Ok(ExitCode::from(USAGE));
                }
            }
        }
    };
    let cli = args::Cli::from_arg_matches(&matches).map_err(|error| Failure::new(error.to_string()))?;
    output::start_logging(&cli.log)?;
    arm_fault();
    commands::run(cli.command)
}

/// `CENOTE_FAULT=point:count` makes this process kill itself at a named point: tests of recovery use it.
fn arm_fault() {
    if let Ok(plan) = std::env::var("CENOTE_FAULT")
        && let Some((name, count)) = plan.rsplit_once(':')
        && let Ok(count) = count.parse()
    {
        cenote_base::fault::arm(name, count, |_| {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        });
    }
}
