//! All checks, the cheapest first.

use crate::{dynamo, python, rtl, tidy};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Cargo's switch for what a second build of a changed tree needs. This one builds once: it takes less
/// time and some gigabytes less without.
const INCREMENTAL: &str = "CARGO_INCREMENTAL";

/// Runs every check and stops at the first that fails.
///
/// # Errors
/// Names the step that failed; its own output is above.
pub fn run(root: &Path) -> Result<(), String> {
    if std::env::var_os(INCREMENTAL).is_none() {
        // For all builds alike, also those that maturin starts: a build of another kind begins anew.
        let program = std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
        let again = Command::new(program).arg("ci").env(INCREMENTAL, "0").current_dir(root).status();
        let status = again.map_err(|error| format!("the checks cannot be run: {error}"))?;
        return if status.success() { Ok(()) } else { Err(format!("a check failed ({status})")) };
    }
    let mut steps = Steps { done: 0, start: Instant::now() };
    steps.run("format", || cargo(root, &["fmt", "--all", "--check"], &[]))?;
    steps.run("tidy", || tidy::run(root))?;
    steps.run("tools of the RTL", || rtl::install(root))?;
    steps.run("lint of the RTL", || rtl::lint(root).map(|_| ()))?;
    steps.run("clippy", || {
        cargo(root, &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"], &[])
    })?;
    steps.run("documentation", || {
        let strict = ("RUSTDOCFLAGS", "-D warnings".to_owned());
        cargo(root, &["doc", "--workspace", "--no-deps", "--quiet"], &[strict])
    })?;
    let python = steps.run("Python environment", || Ok(python::prepare(root)))?;
    let skipped = python.as_ref().err().map(|reason| {
        format!("SKIPPED: the tests of the Python package and those with the PyPI client `openai`, because there is no Python for them: {reason}")
    });
    if let (Some(notice), Ok("1" | "true")) = (&skipped, std::env::var("CI").as_deref()) {
        return Err(format!("{notice}; CI forbids skips"));
    }
    if let Some(notice) = &skipped {
        println!("{notice}");
    }
    let variable = python.as_ref().ok().map(|path| ("CENOTE_TEST_PYTHON", path.display().to_string()));
    steps.run("tests", || cargo(root, &["test", "--workspace"], variable.as_slice()))?;
    steps.run("crate for Dynamo's router", || dynamo::run(root))?;
    // After the tests, whose build of the command goes into the package.
    if let Ok(python) = &python {
        steps.run("Python package", || python::test_package(root, python))?;
    }
    let key = commit(root);
    println!("\nmutations of commit {key}:");
    steps.run("ten mutations of the pool", || {
        let simulate = ["run", "--quiet", "--release", "--package", "cenote-memcheck", "--"];
        cargo(root, &[&simulate[..], &["--mutate", "--sample", "10", "--key", &key]].concat(), &[])
    })?;
    println!("\nci: all passed in {:.1} s", steps.start.elapsed().as_secs_f64());
    // Repeated, because the first message is far above by now.
    if let Some(notice) = &skipped {
        println!("{notice}");
    }
    Ok(())
}

struct Steps {
    done: usize,
    start: Instant,
}

impl Steps {
    /// Runs one step under a heading, and prints its time.
    fn run<T>(&mut self, name: &str, step: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        const COUNT: usize = 11;
        self.done += 1;
        println!("\n== {}/{COUNT} {name}", self.done);
        let start = Instant::now();
        let result = step();
        let word = if result.is_ok() { "done" } else { "FAILED" };
        println!("== {}/{COUNT} {name}: {word} in {:.1} s", self.done, start.elapsed().as_secs_f64());
        result.map_err(|reason| format!("step `{name}`: {reason}"))
    }
}

/// The hash of the checked-out commit; without Git, the same key for all runs.
fn commit(root: &Path) -> String {
    let output = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root).output();
    let hash = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    hash.and_then(|hash| String::from_utf8(hash).ok()).map_or_else(|| "none".to_owned(), |hash| hash.trim().to_owned())
}

/// The cargo that started this task; its output is passed through.
fn cargo(root: &Path, arguments: &[&str], variables: &[(&str, String)]) -> Result<(), String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(program)
        .args(arguments)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .current_dir(root)
        .status()
        .map_err(|error| format!("cargo cannot be run: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo {} failed ({status})", arguments.join(" "))) }
}
