//! The crate for Dynamo's router, which is a workspace of its own: format, clippy, tests.

use std::path::Path;
use std::process::Command;

const CRATE: &str = "crates/dynamo";

/// Runs all checks of the crate.
///
/// # Errors
/// Names the check that failed; its own output is above.
pub fn run(root: &Path) -> Result<(), String> {
    let strict = ["clippy", "--all-targets", "--quiet", "--", "-D", "warnings"];
    [&["fmt", "--check"][..], &strict, &["test"]].into_iter().try_for_each(|arguments| cargo(root, arguments))
}

fn cargo(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root.join(CRATE));
    if std::env::var_os("CARGO_TARGET_DIR").is_none() {
        // Beside the artifacts of the main workspace, where `cargo clean` and backups expect them.
        command.env("CARGO_TARGET_DIR", root.join("target/dynamo"));
    }
    let status = command.status().map_err(|error| format!("cargo cannot be run: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo {} in {CRATE} failed ({status})", arguments.join(" "))) }
}
