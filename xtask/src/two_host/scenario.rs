//! A scenario: the programs of two hosts, the death of one, and the expected results.

use super::debian::Debian;
use super::guest::{Guest, Pool};
use super::image::Images;
use crate::process::{GLANCE, make_empty, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// A first build compiles all dependencies of the program.
const BUILD_LIMIT: Duration = Duration::from_secs(1200);
/// A guest powers off at once after its result.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(10);
const TAIL_LINES: usize = 30;

/// An example of this workspace that runs in the guests.
pub struct Program {
    pub package: &'static str,
    pub name: &'static str,
}

/// Limit of all waits in it: the guests' own, and the whole.
pub struct Scenario {
    /// Also the folder of its logs.
    pub name: &'static str,
    /// Its claim, for the table.
    pub shows: &'static str,
    pub program: Program,
    /// The program's arguments on host A and on host B, separated by blanks.
    pub arguments: [&'static str; 2],
    /// Virtual processors per host. With one, locked instructions are atomic in their own host
    /// only.
    pub cpus: u32,
    /// MiB of shared memory, a multiple of 256.
    pub pool_mib: u32,
    /// When host A's log contains this, A's QEMU gets SIGKILL. `None`: no host is killed.
    pub kill_a_at: Option<&'static str>,
    /// Texts that the logs of host A and host B must contain.
    pub wanted: [&'static [&'static str]; 2],
    /// Text in host B's log without which the scenario is inconclusive.
    pub hoped_of_b: Option<&'static str>,
    pub limit: Duration,
}

/// Result of a scenario.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Inconclusive(String),
    Failed(String),
}

impl Program {
    /// Builds it without shared libraries, which the guests do not have, and returns its path.
    pub fn build(&self, root: &Path, cache: &Path) -> Result<PathBuf, String> {
        let folder = cache.join("build");
        let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(program);
        command.args(["build", "--release", "--target", TARGET, "--package", self.package, "--example", self.name]);
        command.arg("--target-dir").arg(&folder).current_dir(root);
        command.env("RUSTFLAGS", "-C target-feature=+crt-static").env_remove("CARGO_ENCODED_RUSTFLAGS");
        run(&mut command, &format!("building {}", self.name), &cache.join("build.log"), BUILD_LIMIT)?;
        Ok(folder.join(TARGET).join("release/examples").join(self.name))
    }
}

impl Scenario {
    /// Runs it; both logs are in a folder of its name afterwards.
    ///
    /// # Errors
    /// It could not be run at all.
    pub fn run(&self, debian: &Debian, images: &Images, initramfs: &Path, cache: &Path) -> Result<Verdict, String> {
        let folder = cache.join(self.name);
        make_empty(&folder)?;
        let pool = Pool::new(self.pool_mib)?;
        let start = |name: &str, arguments: &str| {
            let job = format!("{} {arguments}", self.program.name);
            Guest::start(debian, images, initramfs, &pool, self.cpus, name, &job, &folder)
        };
        let mut hosts = [start("A", self.arguments[0])?, start("B", self.arguments[1])?];
        let mut run = Run { scenario: self, killed: false };
        let ended = run.follow(&mut hosts);
        let said = [hosts[0].said()?, hosts[1].said()?];
        let verdict = match ended {
            Ok(()) => run.judge(&said),
            Err(reason) => Verdict::Failed(reason),
        };
        if matches!(verdict, Verdict::Failed(_)) {
            for (name, said) in ["A", "B"].iter().zip(&said) {
                println!("  the end of what host {name} said:");
                let lines: Vec<&str> = said.lines().collect();
                lines[lines.len().saturating_sub(TAIL_LINES)..].iter().for_each(|line| println!("  {name}| {line}"));
            }
        }
        Ok(verdict)
    }
}

struct Run<'a> {
    scenario: &'a Scenario,
    killed: bool,
}

impl Run<'_> {
    /// Waits until both hosts have ended, and kills host A in the middle if requested.
    fn follow(&mut self, hosts: &mut [Guest; 2]) -> Result<(), String> {
        let start = Instant::now();
        let mut told: [Option<Instant>; 2] = [None; 2];
        let mut ended = [false; 2];
        while ended != [true; 2] {
            if start.elapsed() > self.scenario.limit {
                return Err(format!("no end within {} s", self.scenario.limit.as_secs()));
            }
            for (index, host) in hosts.iter_mut().enumerate() {
                if ended[index] {
                    continue;
                }
                let name = ["A", "B"][index];
                // Ask first, so that all output is there when it has ended.
                ended[index] = host.has_ended()?;
                let said = host.said()?;
                if index == 0
                    && !ended[index]
                    && let Some(line) = self.scenario.kill_a_at
                    && said.contains(line)
                {
                    host.kill()?;
                    println!("  host A killed after {:.1} s, at `{line}`", host.seconds());
                    (self.killed, ended[index]) = (true, true);
                    continue;
                }
                match result_code(&said) {
                    Some(0) => (),
                    // The other one would only wait for it.
                    Some(code) => return Err(format!("host {name} ended with {code}")),
                    None if ended[index] => return Err(format!("host {name} ended without a result")),
                    None => continue,
                }
                if told[index].is_none() {
                    told[index] = Some(Instant::now());
                    tell_clock(name, &said, host.seconds());
                }
                if told[index].is_some_and(|at| at.elapsed() > POWER_OFF_LIMIT) {
                    return Err(format!("host {name} told its result and did not power off"));
                }
            }
            sleep(GLANCE);
        }
        Ok(())
    }

    fn judge(&self, said: &[String; 2]) -> Verdict {
        if let (Some(line), false) = (self.scenario.kill_a_at, self.killed) {
            return Verdict::Failed(format!("host A ended by itself, without `{line}`"));
        }
        for ((name, said), wanted) in ["A", "B"].iter().zip(said).zip(self.scenario.wanted) {
            if let Some(missing) = wanted.iter().find(|wanted| !said.contains(**wanted)) {
                return Verdict::Failed(format!("host {name} did not say `{missing}`"));
            }
        }
        match self.scenario.hoped_of_b {
            Some(hoped) if !said[1].contains(hoped) => Verdict::Inconclusive(format!("host B did not say `{hoped}`")),
            _ => Verdict::Passed,
        }
    }
}

/// The number after `### RC` on a whole line.
fn result_code(said: &str) -> Option<i32> {
    let (_, rest) = said.split_once("### RC ")?;
    rest.split_once('\n')?.0.trim().parse().ok()
}

/// Timeouts in the guests mean little if their clocks differ from this machine's.
fn tell_clock(name: &str, said: &str, seconds: f64) {
    let uptime = said.split_once("### UPTIME ").and_then(|(_, rest)| rest.lines().next()?.trim().parse::<f64>().ok());
    if let Some(uptime) = uptime {
        let note = if uptime > 1.25 * seconds { ": ITS CLOCK RUNS FAST" } else { "" };
        println!("  host {name} ended after {seconds:.1} s, {uptime:.1} s by its own clock{note}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCENARIO: Scenario = Scenario {
        name: "x",
        shows: "",
        program: Program { package: "p", name: "x" },
        arguments: ["a", "b"],
        cpus: 2,
        pool_mib: 256,
        kill_a_at: None,
        wanted: [&["a: done"], &["b: done"]],
        hoped_of_b: Some("LOST"),
        limit: Duration::ZERO,
    };

    fn judged(kill_a_at: Option<&'static str>, killed: bool, said: [&str; 2]) -> Verdict {
        let scenario = Scenario { kill_a_at, ..SCENARIO };
        Run { scenario: &scenario, killed }.judge(&said.map(str::to_owned))
    }

    #[test]
    fn a_verdict_needs_all_that_is_wanted() {
        assert_eq!(judged(None, false, ["a: done\n", "LOST 3\nb: done\n"]), Verdict::Passed);
        assert!(matches!(judged(None, false, ["a: done\n", "b: done\n"]), Verdict::Inconclusive(_)));
        assert!(matches!(judged(None, false, ["", "LOST\nb: done\n"]), Verdict::Failed(_)));
        assert!(matches!(judged(None, false, ["a: done", "LOST"]), Verdict::Failed(_)));
        assert_eq!(judged(Some("lock"), true, ["a: done\n", "LOST 3\nb: done\n"]), Verdict::Passed);
        assert!(matches!(judged(Some("lock"), false, ["a: done\n", "LOST 3\nb: done\n"]), Verdict::Failed(_)));
    }

    #[test]
    fn a_result_is_a_whole_line() {
        assert_eq!(result_code("x\n### RC 0\ny"), Some(0));
        assert_eq!(result_code("x\n### RC 13"), None);
        assert_eq!(result_code("x\n### RC 137\n"), Some(137));
        assert_eq!(result_code("x\n"), None);
    }
}
