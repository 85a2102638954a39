//! Tools of tests that come as Debian packages.

use std::env;
use std::process::Command;

/// A program, the argument that makes it print its version, and its package.
type Tool = (&'static str, &'static str, &'static str);

/// For the tests of the RTL.
pub const OF_RTL: &[Tool] = &[("verilator", "--version", "verilator"), ("yosys", "-V", "yosys")];
/// For the tests of the page of `cenote ui`.
pub const OF_PAGE: &[Tool] = &[("chromium", "--version", "chromium"), ("chromedriver", "--version", "chromium-driver")];

/// For the tests with hosts in network namespaces.
pub const OF_NETWORKS: &[Tool] =
    &[("ip", "-V", "iproute2"), ("iptables", "--version", "iptables"), ("nsenter", "--version", "util-linux")];

/// Installs what is missing, if this user may install packages.
///
/// # Errors
/// A tool is missing, and cannot be installed, under `CI=1`. Elsewhere the tests that need it are
/// skipped visibly.
pub fn install(tools: &[Tool]) -> Result<(), String> {
    let missing = tools.iter().filter(|(tool, argument, _)| !is_there(tool, argument));
    let missing: Vec<&str> = missing.map(|(_, _, package)| *package).collect();
    if missing.is_empty() {
        let names: Vec<&str> = tools.iter().map(|(tool, ..)| *tool).collect();
        println!("{} are installed", names.join(" and "));
        return Ok(());
    }
    let apt = |arguments: &[&str]| {
        let status = Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive").status();
        status.is_ok_and(|status| status.success())
    };
    let install = [&["install", "-y", "--no-install-recommends"], missing.as_slice()].concat();
    if apt(&install) || (apt(&["update"]) && apt(&install)) {
        return Ok(());
    }
    let notice = format!("{} cannot be installed with apt-get", missing.join(" and "));
    if matches!(env::var("CI").as_deref(), Ok("1" | "true")) {
        return Err(format!("{notice}; CI forbids skips"));
    }
    println!("SKIPPED: the tests that need them, because {notice}");
    Ok(())
}

pub fn is_there(tool: impl AsRef<std::ffi::OsStr>, argument: &str) -> bool {
    Command::new(tool).arg(argument).output().is_ok_and(|output| output.status.success())
}
