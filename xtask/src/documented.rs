//! `cargo xtask documented`: the commands that README, guides and evidence print, checked with the programs of
//! this tree. A flag that a program does not have is refused; the commands of the guides run, with the demo model.

mod play;
mod shell;

use crate::process::{make_empty, make_folder, names_in, read_lossy};
use crate::python;
use shell::Documented;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

const PLACE: &str = "target/documented";
/// Programs of this tree that pages name.
const PROGRAMS: [&str; 2] = ["cenote", "cenote-lab"];

/// Checks all pages, and runs the commands of README and guides; with arguments those of the pages with one of
/// them in the name.
///
/// # Errors
/// A program cannot be built, or commands are wrong: each with its page and line.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // As the tests build them, so that nothing is left to build after the tests.
    let build = ["test", "--no-run", "--quiet", "--workspace", "--test", "cli", "--test", "lab"];
    python::shown(Command::new(cargo).args(build).current_dir(root), "cargo test --no-run")?;
    let place = root.join(PLACE);
    make_empty(&place)?;
    let programs = place.join("bin");
    make_folder(&programs)?;
    for program in PROGRAMS {
        let built = target_folder(root).join("debug").join(program);
        std::os::unix::fs::symlink(&built, programs.join(program)).map_err(|error| format!("{program}: {error}"))?;
    }
    let mut wrong = Vec::new();
    let (mut commands, mut played) = (0, 0);
    let mut help = Help { programs: programs.clone(), texts: BTreeMap::new() };
    let mut play = play::Play::new(root, &programs, &place);
    for page in pages(root)? {
        if !arguments.is_empty() && !arguments.iter().any(|word| page.contains(word)) {
            continue;
        }
        let blocks = shell::blocks(&page, &read_lossy(&root.join(&page))?)?;
        let mut is_lab_built = false;
        for command in blocks.iter().flatten() {
            commands += 1;
            if command.text.starts_with('-') {
                wrong.push(format!("{}: the line above does not end with a backslash", command.place()));
            }
            // `cargo build` alone builds the command that users install.
            is_lab_built |= command.text.contains("-p cenote-lab");
            if command.text.starts_with("target/release/cenote-lab") && !is_lab_built {
                wrong.push(format!(
                    "{}: no command above builds it: cargo build --release -p cenote-lab",
                    command.place()
                ));
                is_lab_built = true;
            }
            help.check(command).unwrap_or_else(|reason| wrong.push(format!("{}: {reason}", command.place())));
        }
        if !page.starts_with("docs/evidence/") {
            for block in &blocks {
                played += play.run(block, &mut wrong)?;
            }
        }
    }
    if arguments.is_empty() {
        wrong.extend(play.unused());
    }
    println!("{commands} commands of this tree are printed; {played} of README and guides ran");
    if wrong.is_empty() { Ok(()) } else { Err(format!("the documents are wrong:\n  {}", wrong.join("\n  "))) }
}

fn target_folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}

/// README, the guides and the evidence.
fn pages(root: &Path) -> Result<Vec<String>, String> {
    let mut pages = vec!["README.md".to_owned()];
    for folder in ["docs/guides", "docs/evidence"] {
        let names = names_in(&root.join(folder))?;
        pages.extend(names.iter().filter(|name| name.ends_with(".md")).map(|name| format!("{folder}/{name}")));
    }
    Ok(pages)
}

/// Help texts of commands, each asked for once.
struct Help {
    programs: PathBuf,
    texts: BTreeMap<Vec<String>, Option<String>>,
}

impl Help {
    /// Refuses a subcommand or flag that the program does not have.
    fn check(&mut self, command: &Documented) -> Result<(), String> {
        let Some(words) = command.of_program(&PROGRAMS) else { return check_task(command) };
        let program = words[0].rsplit('/').next().unwrap_or_default();
        let mut path = vec![program.to_owned()];
        let mut text = self.text(&path).ok_or_else(|| format!("`{} --help` fails", words[0]))?;
        for word in words[1..].iter().take_while(|word| !word.starts_with('-')) {
            // What stands here is an argument.
            if !text.contains("\nCommands:") {
                break;
            }
            path.push(word.clone());
            let Some(more) = self.text(&path) else { return Err(format!("there is no command `{}`", path.join(" "))) };
            text = more;
        }
        let known: BTreeSet<&str> = flags(&text).collect();
        let unknown = words[1..].iter().filter_map(|word| {
            let flag = word.strip_prefix("--")?.split('=').next()?;
            (!known.contains(flag)).then(|| format!("`{}` has no flag --{flag}", path.join(" ")))
        });
        unknown.take(1).next().map_or(Ok(()), Err)
    }

    fn text(&mut self, path: &[String]) -> Option<String> {
        let programs = &self.programs;
        let ask = || {
            let asked = Command::new(programs.join(&path[0])).args(&path[1..]).arg("--help").output().ok()?;
            asked.status.success().then(|| String::from_utf8_lossy(&asked.stdout).into_owned())
        };
        self.texts.entry(path.to_vec()).or_insert_with(ask).clone()
    }
}

/// Names after `--` in the lines of a help text that begin with a flag.
fn flags(text: &str) -> impl Iterator<Item = &str> {
    let end = |rest: &str| rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(rest.len());
    let lines = text.lines().filter(|line| line.trim_start().starts_with('-'));
    lines.filter_map(move |line| line.split_once("--").map(|(_, rest)| &rest[..end(rest)]))
}

/// A `cargo xtask` command names a task.
fn check_task(command: &Documented) -> Result<(), String> {
    let Some(words) = command.of_program(&["cargo"]) else { return Ok(()) };
    let Some(task) = words.get(2).filter(|_| words[1] == "xtask") else { return Ok(()) };
    let is_known = crate::USAGE.lines().any(|line| line.strip_prefix("  ").is_some_and(|line| line.starts_with(task)));
    if is_known { Ok(()) } else { Err(format!("there is no task `{task}`")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_from_a_help_text() {
        let found: Vec<&str> =
            flags("  -r, --region <REGION>  A region\n      --host-slot[=N]\n  as with --other\n").collect();
        assert_eq!(found, ["region", "host-slot"]);
    }
}
