//! The tests of `crates/reach` and of the command that need NIXL, which comes as a wheel.

use crate::python;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One wheel: what it requires is needed by its Python part alone.
const WHEEL: &str = "nixl-cu12==1.5.1";
const FOLDER: &str = "target/reach";
/// Where the wheel has its interface for C.
const LIBRARY: &str = ".nixl_cu12.mesonpy.libs/libnixl_capi.so";

/// Installs NIXL below `target`, and runs the tests. Without a wheel for this machine they are skipped.
///
/// # Errors
/// Names the failed step; its own output is above.
pub fn run(root: &Path) -> Result<(), String> {
    let Some(library) = library(root)? else {
        eprintln!("SKIPPED: pip has no {WHEEL} for this machine, so nothing was tested with NIXL");
        return Ok(());
    };
    for (package, name) in [("cenote-reach", "reach"), ("cenote-cli", "cli")] {
        let mut tests = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        tests.args(["test", "-p", package, "--test", name, "--", "--ignored", "--test-threads", "1"]);
        if name == "cli" {
            tests.arg("reach::");
        }
        python::shown(tests.current_dir(root).env("CENOTE_TEST_NIXL", &library), "cargo test")?;
    }
    Ok(())
}

fn library(root: &Path) -> Result<Option<PathBuf>, String> {
    let folder = root.join(FOLDER).join(WHEEL);
    let library = folder.join(LIBRARY);
    if library.is_file() {
        return Ok(Some(library));
    }
    let python = python::prepare(root)?;
    eprintln!("installing {WHEEL} in {FOLDER}; that downloads 70 MB");
    let mut install = Command::new(python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade"]);
    install.arg("--target").arg(&folder).arg(WHEEL);
    let installed = python::shown(&mut install, "pip install").is_ok();
    Ok(Some(library).filter(|library| installed && library.is_file()))
}
