//! `cargo xtask simulate`: the pool on the cache-line model (crates/memcheck). Passes the exit code
//! on, which identifies the checker that failed.

use std::path::Path;
use std::process::{Command, ExitCode};

/// Builds the simulation in release mode and runs it with these arguments.
pub fn run(root: &Path, arguments: &[&str]) -> ExitCode {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(["run", "--quiet", "--release", "--package", "cenote-memcheck"]);
    // Deliberate mistakes are compiled in only if one is requested.
    if arguments.iter().any(|argument| *argument == "--mutate" || argument.starts_with("--sabotage")) {
        command.args(["--features", "sabotage", "--target-dir"]).arg(root.join("target/sabotage"));
    }
    match command.arg("--").args(arguments).current_dir(root).status() {
        Ok(status) => ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
        Err(error) => {
            eprintln!("error: cargo cannot be run: {error}");
            ExitCode::FAILURE
        }
    }
}
