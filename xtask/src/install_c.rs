//! `cargo xtask install-c --prefix P`: builds libcenote and installs it for C programs.

#[path = "../../crates/capi/install.rs"]
mod install;

use std::path::{Path, PathBuf};
use std::process::Command;

pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let ["--prefix", prefix] = arguments else {
        return Err("give a folder: cargo xtask install-c --prefix /usr/local".to_owned());
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo).args(["build", "--release", "-p", "cenote-capi"]).current_dir(root).status();
    match built {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("cargo build --release -p cenote-capi: {status}")),
        Err(error) => return Err(format!("cargo: {error}")),
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    // The file for pkg-config must have a whole path.
    let prefix = std::path::absolute(prefix).map_err(|error| format!("{prefix}: {error}"))?;
    install::install(&target.join("release"), &root.join("crates/capi"), env!("CARGO_PKG_VERSION"), &prefix)
        .map_err(|error| format!("installing into {}: {error}", prefix.display()))?;
    println!("{}: installed; PKG_CONFIG_PATH={}/lib/pkgconfig", prefix.display(), prefix.display());
    Ok(())
}
