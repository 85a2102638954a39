//! The `cenote-lab` command: benchmarks, studies, simulations and torture of the product.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "benchmarks measure this machine; the library's studies take no clock")]

mod args;
mod commands;

use std::process::ExitCode;

fn main() -> ExitCode {
    cenote_console::program::main::<args::Cli>()
}
