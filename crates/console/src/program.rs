//! Frame of a program: settings, flags, logging, and the exit code.

use crate::failure::Failure;
use crate::output::LogFormat;
use crate::{args, output, settings, usage};
use cenote_base::fault::{self, Plan};
use clap::{Args, Parser};
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit code for an invalid command line, as clap's.
const USAGE: u8 = 2;

/// Flags of every command.
#[derive(Args, Debug)]
pub struct ProcessArgs {
    /// Settings file, of this user or root alone [default: ./cenote.toml if it exists]
    #[arg(long, global = true, value_name = "FILE", env = "CENOTE_CONFIG")]
    pub config: Option<PathBuf>,
    /// What to log to stderr, as in `info` or `cenote_serve=debug`
    #[arg(long, global = true, value_name = "FILTER", env = "CENOTE_LOG", default_value = "warn")]
    pub log: String,
    /// Form of log lines
    #[arg(long, global = true, value_enum, value_name = "FORM", env = "CENOTE_LOG_FORMAT", default_value_t)]
    pub log_format: LogFormat,
}

/// A command with subcommands.
pub trait Program: Parser {
    /// The part of the settings file for this program.
    const SETTINGS: settings::Part;

    /// The flags of every command.
    fn process(&self) -> &ProcessArgs;

    /// Runs the subcommand.
    ///
    /// # Errors
    /// The subcommand failed; the failure is for the user.
    fn run(self) -> Result<ExitCode, Failure>;
}

/// Parses the command line of `P`, runs it and reports a failure on stderr.
pub fn main<P: Program>() -> ExitCode {
    parse_and_run::<P>().unwrap_or_else(|failure| {
        output::report_failure(&failure);
        ExitCode::FAILURE
    })
}

fn parse_and_run<P: Program>() -> Result<ExitCode, Failure> {
    let (command, file) = settings::command_with_file(args::with_headings(P::command()), P::SETTINGS)?;
    let mut command = usage::with_negative_values(command);
    let matches = match command.try_get_matches_from_mut(std::env::args_os()) {
        Ok(matches) => matches,
        Err(error) => {
            let arguments: Vec<String> = std::env::args().skip(1).collect();
            match usage::explain(&error, &command, &arguments, file.as_ref().map(|file| file.path.as_path())) {
                None => error.exit(),
                Some(failure) => {
                    output::report_failure(&failure);
                    return Ok(ExitCode::from(USAGE));
                }
            }
        }
    };
    let program = P::from_arg_matches(&matches).map_err(|error| Failure::new(error.to_string()))?;
    let ProcessArgs { log, log_format, .. } = program.process();
    output::start_logging(log, *log_format)?;
    arm_fault()?;
    if let Some(file) = file.filter(|file| !file.named) {
        let path = std::path::absolute(&file.path).unwrap_or(file.path);
        output::say(&format!("note: settings of {}", path.display()));
    }
    program.run()
}

/// `CENOTE_FAULT=point:count` makes this process kill itself at a fault point, for tests of
/// recovery.
fn arm_fault() -> Result<(), Failure> {
    let Ok(plan) = std::env::var("CENOTE_FAULT") else { return Ok(()) };
    let plan: Plan = plan.parse().map_err(|error| Failure::new(format!("CENOTE_FAULT: {error}")))?;
    fault::arm(plan, |_| {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    });
    Ok(())
}
