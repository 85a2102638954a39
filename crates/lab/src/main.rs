//! The `cenote-lab` command: benchmarks, studies, simulations and torture of the product.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "commands are a rim: they take the machine's clocks")]

mod args;
mod commands;

use std::process::ExitCode;

fn main() -> ExitCode {
    cenote_console::program::main::<args::Cli>()
}
