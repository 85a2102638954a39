//! Coverage-guided fuzzing of hostile regions, files and object stores: runs each target of `fuzz/` for
//! a while, one after the other.
//!
//! On a stable compiler cargo-fuzz works without a sanitizer: the coverage instrumentation is a
//! stable flag of the compiler. The pool's fabric checks bounds, the build profile checks overflow
//! and assertions, and targets that read files bound the memory that an input takes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const SECONDS: u64 = 300;
/// An input that takes longer is a finding. Inputs take milliseconds.
const INPUT_SECONDS_MAX: u64 = 10;
/// Longest input. The longest sequence of calls needs fewer bytes.
const INPUT_BYTES_MAX: u64 = 768;
const USAGE: &str = "usage: cargo xtask fuzz [--seconds N] [target…]";

/// Runs the named targets, or all of them.
///
/// # Errors
/// A tool is missing, a target does not build, or an input was found that breaks the pool.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let all = targets(root)?;
    let (seconds, wanted) = parse(arguments, &all)?;
    let there = Command::new("cargo").args(["fuzz", "--version"]).output().is_ok_and(|output| output.status.success());
    if !there {
        return Err(
            "cargo-fuzz is missing; `cargo install cargo-fuzz` brings it. It needs a C++ compiler too".to_owned()
        );
    }
    let mut broken = Vec::new();
    for target in &wanted {
        println!("\n== {target}: {seconds} s");
        let start = Instant::now();
        if !fuzz(root, target, seconds)? {
            broken.push(target.as_str());
        }
        println!("== {target}: {:.1} s", start.elapsed().as_secs_f64());
    }
    if broken.is_empty() {
        println!("\nfuzz: no finding in {} targets", wanted.len());
        return Ok(());
    }
    Err(format!(
        "{} found something or did not build; inputs that were found lie in fuzz/artifacts, and \
         `cargo fuzz run --sanitizer=none TARGET FILE` repeats one",
        broken.join(", ")
    ))
}

fn fuzz(root: &Path, target: &str, seconds: u64) -> Result<bool, String> {
    let status = Command::new("cargo")
        .args(["fuzz", "run", "--sanitizer=none", target, "--"])
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        // Long sequences of calls find what short ones cannot, so they are tried from the start.
        .args(["-len_control=0", "-print_final_stats=1"])
        .current_dir(root)
        .status()
        .map_err(|error| format!("cargo cannot be run: {error}"))?;
    Ok(status.success())
}

/// The targets: every file of `fuzz/fuzz_targets`.
fn targets(root: &Path) -> Result<Vec<String>, String> {
    let folder = root.join("fuzz/fuzz_targets");
    let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| Some(entry.path().file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    Ok(names)
}

fn parse(arguments: &[&str], all: &[String]) -> Result<(u64, Vec<String>), String> {
    let (mut seconds, mut wanted) = (SECONDS, Vec::new());
    let mut arguments = arguments.iter();
    while let Some(&argument) = arguments.next() {
        if argument == "--seconds" {
            let value = arguments.next().and_then(|value| value.parse().ok()).filter(|&value| value > 0);
            seconds = value.ok_or_else(|| format!("--seconds needs a number above zero\n{USAGE}"))?;
        } else if all.iter().any(|target| target == argument) {
            wanted.push(argument.to_owned());
        } else {
            return Err(format!("there is no target `{argument}`; there are {}\n{USAGE}", all.join(", ")));
        }
    }
    Ok((seconds, if wanted.is_empty() { all.to_vec() } else { wanted }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_a_time_and_names() {
        let all = ["attach".to_owned(), "region".to_owned()];
        let parsed = |arguments: &[&str]| parse(arguments, &all);
        assert_eq!(parsed(&[]), Ok((SECONDS, all.to_vec())));
        assert_eq!(parsed(&["--seconds", "7", "region"]), Ok((7, vec!["region".to_owned()])));
        for wrong in [&["--seconds"][..], &["--seconds", "0"], &["--seconds", "x"], &["hosts"]] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }
}
