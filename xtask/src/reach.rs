//! The tests of `crates/reach` and of the command that need NIXL, which comes as a wheel.

use crate::{apt, python};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One wheel: what it requires is needed by its Python part alone.
const WHEEL: &str = "nixl-cu12==1.5.1";
const FOLDER: &str = "target/reach";
/// Where the wheel has its interface for C.
const LIBRARY: &str = ".nixl_cu12.mesonpy.libs/libnixl_capi.so";

/// The tests, by package and test program, and the part of the program.
const TESTS: [(&str, &str, &str); 2] = [("cenote-reach", "reach", ""), ("cenote", "cli", "reach::")];
/// A process that tests start themselves.
const PROCESS: &str = "lan::process";
/// Begins a command that may change the links of its own network. Needs no rights, where users may have namespaces.
const APART: [&str; 8] = [
    "unshare",
    "--map-root-user",
    "--net",
    "--mount",
    "--",
    "sh",
    "-c",
    "mount -t tmpfs tmpfs /run && ip link set lo up && ip link add probe type bridge && ip link del probe && \
     tc qdisc replace dev lo root tbf rate 1gbit burst 1mb latency 200ms && tc qdisc del dev lo root && \
     iptables -A INPUT -m statistic --mode random --probability 0.5 -j ACCEPT && iptables -F INPUT && exec \"$@\"",
];

/// Installs NIXL below `target`, and runs the tests. Without a wheel for this machine they are skipped, and
/// without namespaces those with networks.
///
/// # Errors
/// Names the failed step; its own output is above.
pub fn run(root: &Path) -> Result<(), String> {
    let Some(library) = library(root)? else {
        eprintln!("SKIPPED: pip has no {WHEEL} for this machine, so nothing was tested with NIXL");
        return Ok(());
    };
    apt::install(apt::OF_NETWORKS)?;
    let is_apart = apart("true").output().is_ok_and(|output| output.status.success());
    if !is_apart {
        eprintln!("SKIPPED: the tests with networks; this machine refuses `{}`", APART[..4].join(" "));
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    for (package, name, part) in TESTS {
        let words = ["test", "-p", package, "--test", name];
        // Before, because there is no network within.
        python::shown(Command::new(&cargo).args(words).arg("--no-run").current_dir(root), "cargo test")?;
        let mut tests = if is_apart { apart(&cargo) } else { Command::new(&cargo) };
        tests.args(words).args(["--", "--ignored", "--test-threads", "1", "--skip", PROCESS]);
        if !part.is_empty() {
            tests.arg(part);
        }
        if is_apart {
            tests.env("CENOTE_TEST_LAN", "1");
        }
        python::shown(tests.current_dir(root).env("CENOTE_TEST_NIXL", &library), "cargo test")?;
    }
    Ok(())
}

/// A command in namespaces of its own.
fn apart(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(APART[0]);
    command.args(&APART[1..]).arg("sh").arg(program);
    command
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
