//! `cargo xtask steady`: the tests again and again beside busy processes. A test whose outcome depends
//! on time fails here sooner or later.
//!
//! Each run's result and slowest tests are kept in a log, so that a command that was ended continues.

use crate::ci::{INCREMENTAL, nextest};
use crate::python;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const USAGE: &str = "usage: cargo xtask steady [--runs N] [--busy N] [--log FILE] [PACKAGE…]";

struct Plan {
    runs: usize,
    busy: usize,
    log: String,
    packages: Vec<String>,
}

fn parse(arguments: &[&str]) -> Result<Plan, String> {
    let mut plan = Plan { runs: 10, busy: 4, log: "target/steady.log".to_owned(), packages: Vec::new() };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"));
        let number = |text: &str| text.parse::<usize>().map_err(|_| format!("`{text}` is no number\n{USAGE}"));
        match *word {
            "--runs" => plan.runs = number(value()?)?,
            "--busy" => plan.busy = number(value()?)?,
            "--log" => plan.log = (*value()?).to_owned(),
            flag if flag.starts_with('-') => return Err(format!("there is no flag `{flag}`\n{USAGE}")),
            package => plan.packages.push(package.to_owned()),
        }
    }
    Ok(plan)
}

/// Processes that compute until this value is dropped, or this process ends.
struct Busy(Vec<Child>);

impl Busy {
    fn start(count: usize) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
        let mut busy = Self(Vec::new());
        for _ in 0..count {
            // Each ends with its input, which this process holds.
            let child = Command::new(&program).arg("busy").stdin(Stdio::piped()).spawn();
            busy.0.push(child.map_err(|error| format!("a busy process cannot be started: {error}"))?);
        }
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Computes until the standard input ends: the body of a busy process.
pub fn busy() -> ! {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    loop {
        std::hint::spin_loop();
    }
}

/// Runs the tests `--runs` times beside `--busy` processes. Runs that the log has are not repeated.
///
/// # Errors
/// A run failed: the log has which; or the command line is wrong.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let plan = parse(arguments)?;
    // As `cargo xtask ci` builds, so that its build is used.
    if std::env::var_os(INCREMENTAL).is_none() {
        let program = std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
        let status = Command::new(program).arg("steady").args(arguments).env(INCREMENTAL, "0").status();
        let status = status.map_err(|error| format!("the runs cannot be started: {error}"))?;
        return if status.success() { Ok(()) } else { Err(format!("the runs failed ({status})")) };
    }
    let commit = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root).output();
    let commit = commit.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    let head = format!("commit {commit}, {} busy, packages [{}]", plan.busy, plan.packages.join(" "));
    let path = root.join(&plan.log);
    let old = fs::read_to_string(&path).unwrap_or_default();
    let of_this = |line: &&str| line.starts_with("run ") && line.ends_with(&head);
    let done = old.lines().filter(of_this).count();
    let mut failed = old.lines().filter(of_this).filter(|line| line.contains("FAILED")).count();
    if done > 0 {
        println!("{}: {done} runs of this commit are in it, {failed} of them failed", path.display());
    }
    let tools = nextest::install()?;
    let python = python::prepare(root)?;
    let variables = [("CENOTE_TEST_PYTHON", python.display().to_string())];
    let packages: Vec<&str> = plan.packages.iter().map(String::as_str).collect();
    let tests = nextest::Run { root, packages: &packages, variables: &variables, tools: tools.as_deref() };
    tests.build()?;
    for number in done + 1..=plan.runs {
        let busy = Busy::start(plan.busy)?;
        let start = Instant::now();
        let outcome = tests.run();
        drop(busy);
        let word = if outcome.failure.is_none() { "passed" } else { "FAILED" };
        let mut entry = format!("run {number}: {word} in {:.0} s, {head}\n", start.elapsed().as_secs_f64());
        match &outcome.failure {
            None => entry += &outcome.report.list(),
            Some(reason) => writeln!(entry, "  {reason}").expect("a string"),
        }
        failed += usize::from(outcome.failure.is_some());
        print!("{entry}");
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&path);
        let written = file
            .as_mut()
            .map_err(|error| error.to_string())
            .and_then(|file| file.write_all(entry.as_bytes()).map_err(|error| error.to_string()));
        written.map_err(|error| format!("{}: {error}", path.display()))?;
    }
    println!("{} of {} runs passed; {} has each", plan.runs.max(done) - failed, plan.runs.max(done), path.display());
    if failed == 0 { Ok(()) } else { Err(format!("{failed} runs failed")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_packages_are_told_apart() {
        let Ok(plan) = parse(&["--runs", "3", "cenote-pool", "--busy", "0"]) else { panic!("it is right") };
        assert_eq!((plan.runs, plan.busy, plan.packages), (3, 0, vec!["cenote-pool".to_owned()]));
        for wrong in [&["--runs"][..], &["--runs", "x"], &["--other"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
