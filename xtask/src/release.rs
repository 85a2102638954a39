//! `cargo xtask release`: all artefacts of a version in one folder, with notes, licences, bills of materials
//! and checksums. Nothing is published from here.

use crate::package::{self, Kind, Order, licenses, metadata, sbom};
use crate::process::{make_empty, make_folder, names_in, output, read, read_lossy, write};
use crate::{deploy, install_c, python};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Artefacts by name, with the packages of the workspace that each links.
const LINKED: [(&str, &[&str]); 3] =
    [("command", &["cenote"]), ("wheel", &["cenote", "cenote-py"]), ("libcenote", &["cenote-capi"])];
const GIT_LIMIT: Duration = Duration::from_secs(60);
const SUMS: &str = "SHA256SUMS";
/// For a build of the benchmarks and their run.
const BENCH_LIMIT: Duration = Duration::from_secs(7200);

/// `cargo xtask release [--rehearse] [--here]`, or `--dry-run [--binary FILE]`.
///
/// All artefacts of the commit are built and tested in a clone of it, so that nothing beside the commit gets
/// into them; `--here` uses this checkout, which must then have no changes. A rehearsal takes its notes from
/// what is unreleased. A dry run makes what is cheap: packages of FILE or of the tests' command instead of a
/// build for older C libraries, and no wheel.
///
/// # Errors
/// The tree has changes, the changelog has no such version, or a step failed; the message names it.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    match arguments {
        ["--dry-run"] => make(root, Extent::Dry(None)),
        ["--dry-run", "--binary", file] => make(root, Extent::Dry(Some(PathBuf::from(file)))),
        flags if flags.iter().all(|flag| ["--rehearse", "--here"].contains(flag)) => {
            let extent = if flags.contains(&"--rehearse") { Extent::Rehearsal } else { Extent::Release };
            check_tree(root)?;
            notes_of(root, &extent)?;
            if flags.contains(&"--here") { make(root, extent) } else { make_in_a_clone(root, flags) }
        }
        _ => Err("give [--rehearse] [--here], or --dry-run [--binary FILE]".to_owned()),
    }
}

/// How much is made.
enum Extent {
    Release,
    /// All, with the notes of what is unreleased.
    Rehearsal,
    /// What is cheap, with this command if one is given.
    Dry(Option<PathBuf>),
}

/// Runs the same in a clone, and copies the artefacts.
fn make_in_a_clone(root: &Path, flags: &[&str]) -> Result<(), String> {
    let clone = root.join("target/release-clone");
    let commit = output(
        Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root),
        "git rev-parse",
        &root.join("target/release-commit.txt"),
        GIT_LIMIT,
    )?;
    if !clone.join(".git").exists() {
        make_empty(&clone)?;
        python::shown(Command::new("git").args(["clone", "--quiet"]).arg(root).arg(&clone), "git clone")?;
    }
    // What earlier builds left in its target folder is known to cargo by content.
    let git = |words: &[&str]| python::shown(Command::new("git").args(words).current_dir(&clone), "git in the clone");
    git(&["fetch", "--quiet", "origin", "HEAD"])?;
    git(&["checkout", "--quiet", "--force", "--detach", commit.trim()])?;
    git(&["clean", "-dfq"])?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut again = Command::new(cargo);
    again.args(["xtask", "release", "--here"]).args(flags).current_dir(&clone);
    python::shown(again.env_remove("CARGO_TARGET_DIR"), "the release in the clone")?;
    let (made, out) = (artefacts(&clone), artefacts(root));
    make_empty(&out)?;
    names_in(&made)?.iter().try_for_each(|name| copy_into(&made.join(name), &out))?;
    println!("{}", out.display());
    Ok(())
}

fn artefacts(root: &Path) -> PathBuf {
    root.join("target/release-artefacts").join(VERSION)
}

fn make(root: &Path, extent: Extent) -> Result<(), String> {
    let notes = notes_of(root, &extent)?;
    let (is_dry, binary) = match extent {
        Extent::Dry(binary) => (true, binary),
        Extent::Release | Extent::Rehearsal => (false, None),
    };
    let out = artefacts(root);
    make_empty(&out)?;
    let mut left_out = Vec::new();
    match deploy::deny(root)? {
        None => {}
        Some(reason) if is_dry => left_out.push(format!("licences, bans and sources of crates: {reason}")),
        Some(reason) => return Err(reason),
    }
    crates(root, !is_dry)?;
    let command = command(root, is_dry, binary)?;
    let debian = root.join("target/packages-debian");
    let kinds = [Kind::Deb, Kind::Image];
    Order { root, kinds: &kinds, binary: &command, debian: &debian, out: &out }.make()?;
    if is_dry {
        left_out.push("the wheel and libcenote, which take many minutes to build".to_owned());
        left_out.push("the table of benchmarks".to_owned());
        left_out.push("the tests of the packages: cargo xtask deploy".to_owned());
    } else {
        // Packages of the same command, so of the same bytes.
        if let Some(reason) = deploy::test(root, Some(&command), &[])? {
            return Err(format!("the tests of the packages: {reason}"));
        }
        copy_into(&python::portable_wheel(root)?, &out)?;
        libcenote(root, &out)?;
        benchmarks(root, &out)?;
    }
    collect(root, &out, notes)?;
    for name in names_in(&out)? {
        println!("{:>12}  {name}", read(&out.join(&name))?.len());
    }
    left_out.iter().for_each(|what| println!("left out: {what}"));
    println!("{}", out.display());
    Ok(())
}

/// The notes of this version, or of what is unreleased.
fn notes_of(root: &Path, extent: &Extent) -> Result<String, String> {
    let changelog = read_lossy(&root.join("CHANGELOG.md"))?;
    let heading = if matches!(extent, Extent::Release) { VERSION } else { "Unreleased" };
    notes(&changelog, heading).ok_or_else(|| {
        format!(
            "CHANGELOG.md has no section `## {heading}`; rename that of what is unreleased and commit it, or \
             rehearse with --rehearse"
        )
    })
}

/// Adds to a folder of artefacts what a rehearsal adds, or on the commit of a release what that adds.
///
/// # Errors
/// The changelog says nothing of either, or a file cannot be made.
pub fn collect_unreleased(root: &Path, out: &Path) -> Result<(), String> {
    let notes = notes_of(root, &Extent::Rehearsal).or_else(|_| notes_of(root, &Extent::Release))?;
    collect(root, out, notes)
}

/// Adds notes, licences, bills of materials and checksums to a folder of artefacts.
fn collect(root: &Path, out: &Path, notes: String) -> Result<(), String> {
    make_folder(out)?;
    write(&out.join("NOTES.md"), notes)?;
    for (name, packages) in LINKED {
        let crates = metadata::linked(root, packages)?;
        write(&out.join(format!("{name}.licenses.txt")), licenses::text(root, &crates)?)?;
        let main = packages.last().expect("each has one");
        write(&out.join(format!("{name}.cdx.json")), sbom::text(&crates, main, package::commit_time(root)))?;
    }
    let mut sums = String::new();
    for name in names_in(out)?.into_iter().filter(|name| name != SUMS) {
        let hash: String = Sha256::digest(read(&out.join(&name))?).iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(sums, "{hash}  {name}").expect("a string");
    }
    write(&out.join(SUMS), sums)
}

/// The section of a version, without its heading.
fn notes(changelog: &str, version: &str) -> Option<String> {
    let is_heading =
        |line: &str| line.strip_prefix("## ").is_some_and(|rest| rest.split_whitespace().next() == Some(version));
    let mut lines = changelog.lines().skip_while(|line| !is_heading(line));
    lines.next()?;
    let text: Vec<&str> = lines.take_while(|line| !line.starts_with("## ")).collect();
    Some(text.join("\n").trim().to_owned() + "\n").filter(|text| text.len() > 1)
}

/// A release is made of a commit, not of what lies in a folder.
fn check_tree(root: &Path) -> Result<(), String> {
    let said = Command::new("git").args(["status", "--porcelain"]).current_dir(root).output();
    let said = said.map_err(|error| format!("git: {error}"))?;
    if !said.status.success() {
        return Err(format!("git status: {}", String::from_utf8_lossy(&said.stderr).trim()));
    }
    let changed = String::from_utf8_lossy(&said.stdout).lines().count();
    if changed == 0 { Ok(()) } else { Err(format!("{changed} files differ from the commit; commit or stash them")) }
}

fn command(root: &Path, is_dry: bool, binary: Option<PathBuf>) -> Result<PathBuf, String> {
    if let Some(file) = binary {
        return Ok(file);
    }
    let file = root.join("target/packages-command/cenote");
    make_folder(file.parent().expect("it lies in a folder"))?;
    if is_dry { python::tested_command(root, &file) } else { python::portable_command(root, &file) }.map(|()| file)
}

/// Tries to publish the command's crates: `cargo install cenote` needs them in an index. With `builds` each is
/// built from its package alone. Nothing is uploaded.
///
/// # Errors
/// cargo failed; its own output is above.
pub fn crates(root: &Path, builds: bool) -> Result<(), String> {
    let mut publish = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    publish.args(["publish", "--workspace", "--dry-run", "--allow-dirty", "--quiet"]).current_dir(root);
    if !builds {
        publish.arg("--no-verify");
    }
    python::shown(&mut publish, "cargo publish --dry-run")
}

/// libcenote, its header and its file for pkg-config in one archive.
fn libcenote(root: &Path, out: &Path) -> Result<(), String> {
    let prefix = out.join("libcenote");
    install_c::run(root, &["--prefix", &prefix.display().to_string()])?;
    let licenses = licenses::text(root, &metadata::linked(root, &["cenote-capi"])?)?;
    let texts = prefix.join("share/doc/cenote");
    make_folder(&texts)?;
    write(&texts.join("third-party-licenses.txt"), licenses)?;
    let archive = format!("libcenote-{VERSION}-{}.tar.gz", package::architecture());
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "-czf"]).arg(out.join(archive));
    python::shown(tar.arg("-C").arg(out).arg("libcenote"), "tar of libcenote")?;
    std::fs::remove_dir_all(&prefix).map_err(|error| format!("{}: {error}", prefix.display()))
}

/// Times to the first token of this commit on this machine.
fn benchmarks(root: &Path, out: &Path) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut bench = Command::new(cargo);
    bench.args(["run", "--release", "--quiet", "-p", "cenote-lab", "--", "bench", "ttft", "--lengths", "512,1792"]);
    bench.args(["--hits", "0,1"]).current_dir(root);
    let table = output(&mut bench, "cenote-lab bench ttft", &root.join("target/benchmarks.txt"), BENCH_LIMIT)?;
    write(&out.join("BENCHMARKS.txt"), table)
}

fn copy_into(file: &Path, folder: &Path) -> Result<(), String> {
    let to = folder.join(file.file_name().unwrap_or_default());
    std::fs::copy(file, &to).map(|_| ()).map_err(|error| format!("{}: {error}", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_the_section_of_the_version() {
        let changelog =
            "# Changes\n\n## Unreleased\n\n- new\n\n## 0.2.0 (2026-12-01)\n\n**Added**\n\n- x\n\n## 0.1.0\n\n- y\n";
        assert_eq!(notes(changelog, "0.2.0").as_deref(), Some("**Added**\n\n- x\n"));
        assert_eq!(notes(changelog, "0.1.0").as_deref(), Some("- y\n"));
        assert_eq!(notes(changelog, "0.2"), None);
        assert_eq!(notes("## 0.3.0\n\n## 0.2.0\n- x", "0.3.0"), None, "an empty section is none");
        let own = read_lossy(&crate::repository().join("CHANGELOG.md")).expect("it is there");
        assert!(notes(&own, "Unreleased").is_some() || notes(&own, VERSION).is_some());
    }
}
