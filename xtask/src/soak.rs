//! `cargo xtask soak`: builds both commands for release, and runs `cenote-lab soak` with them.

use std::path::Path;
use std::process::Command;

/// Passes the arguments on; the folder of the run is `target/soak` unless they name one.
///
/// # Errors
/// A build failed, or the soak found something; its own output is above.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let cargo = || Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let mut build = cargo();
    build.args(["build", "--release", "--quiet", "--package", "cenote", "--package", "cenote-lab"]);
    crate::python::shown(build.current_dir(root), "cargo build of both commands")?;
    let mut soak = cargo();
    soak.args(["run", "--release", "--quiet", "--package", "cenote-lab", "--", "soak"]);
    if !arguments.iter().any(|argument| argument.starts_with("--resume")) {
        soak.args(["--resume", "target/soak"]);
    }
    crate::python::shown(soak.args(arguments).current_dir(root), "cenote-lab soak")
}
