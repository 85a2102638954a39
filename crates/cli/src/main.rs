//! The `cenote` command: wires regions, engines and servers into processes. Lower crates decide;
//! this one has flags, messages and processes.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a command gives the machine's clock to what it starts")]

mod args;
mod commands;
mod findings;
mod gauges;
mod inventory;
mod observer;
mod rates;
mod snapshot;
mod watcher;

use std::process::ExitCode;

fn main() -> ExitCode {
    cenote_console::program::main::<args::Cli>()
}
