//! The `cenote` command: wires regions, engines and servers into processes. Everything that decides is
//! below; here are flags, messages and processes.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod failure;
mod inventory;
mod output;
mod region;
mod settings;
mod signals;
mod stale;

use clap::FromArgMatches;
use failure::Failure;
use std::process::ExitCode;

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
    let command = settings::command_with_file()?;
    let matches = command.get_matches();
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
