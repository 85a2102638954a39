//! `cargo xtask strangers`: the first minutes with one artefact, from an empty file system to a hit. The commands
//! are those of a page of the documentation; the output goes into that page, or is compared with it.

mod root;
mod transcript;

use crate::package::{Kind, Order};
use crate::process::{make_empty, make_folder, names_in, read_lossy, write};
use crate::python;
use root::Base;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use transcript::Step;

pub const PAGE: &str = "docs/guides/first-minutes.md";
const PLACE: &str = "target/strangers";
/// Before a command's output, and before its exit code.
const BEGIN: char = '\u{1e}';
const END: char = '\u{1f}';

/// One stranger.
struct Stranger {
    name: &'static str,
    heading: &'static str,
    /// The end of the artefact's name.
    artefact: &'static str,
    base: Base,
    /// For all commands; a build from source takes the longest.
    limit: Duration,
}

const STRANGERS: [Stranger; 4] = [
    stranger("wheel", "Wheel only", ".whl", Base::Debian, 900),
    stranger("deb", "Debian package only", ".deb", Base::Debian, 900),
    stranger("image", "Image only", ".oci.tar", Base::Image, 300),
    stranger("source", "Source only", "source.tar", Base::Toolchain, 7200),
];

const fn stranger(
    name: &'static str,
    heading: &'static str,
    artefact: &'static str,
    base: Base,
    seconds: u64,
) -> Stranger {
    Stranger { name, heading, artefact, base, limit: Duration::from_secs(seconds) }
}

/// `cargo xtask strangers [wheel|deb|image|source]… [--check] [--artefacts FOLDER]`: those strangers, or all.
/// Without a folder of artefacts they are built for release.
///
/// # Errors
/// A flag is unknown, an artefact cannot be made, a command failed, or with `--check` the page has other output.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let (mut names, mut is_check, mut artefacts) = (Vec::new(), false, None);
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        match *word {
            "--check" => is_check = true,
            "--artefacts" => {
                artefacts = Some(PathBuf::from(rest.next().ok_or("--artefacts: name a folder")?));
            }
            name if STRANGERS.iter().any(|one| one.name == name) => names.push(name),
            other => return Err(format!("strangers: `{other}` is none of wheel, deb, image, source, --check")),
        }
    }
    let chosen: Vec<&Stranger> = STRANGERS.iter().filter(|one| names.is_empty() || names.contains(&one.name)).collect();
    let artefacts = match artefacts {
        Some(folder) => folder,
        None => make(root, &chosen)?,
    };
    meet(root, &chosen, &artefacts, is_check)?.map_or(Ok(()), Err)
}

/// The stranger that needs no network and no long build, compared with the page: the image's. Returns what is
/// missing for that, if something is.
///
/// # Errors
/// A command failed, or the page has other output.
pub fn check_image(root: &Path, artefacts: &Path) -> Result<Option<String>, String> {
    let chosen: Vec<&Stranger> = STRANGERS.iter().filter(|one| one.base == Base::Image).collect();
    meet(root, &chosen, artefacts, true)
}

fn meet(root: &Path, chosen: &[&Stranger], artefacts: &Path, is_check: bool) -> Result<Option<String>, String> {
    let place = root.join(PLACE);
    make_folder(&place)?;
    for stranger in chosen {
        let page = read_lossy(&root.join(PAGE))?;
        let written = transcript::of_section(&page, stranger.heading)
            .ok_or_else(|| format!("{PAGE} has no transcript under `## {}`", stranger.heading))?;
        let artefact = find(artefacts, stranger.artefact)?;
        let fresh = match stranger.base.prepare(&place, &place.join(stranger.name), &artefact) {
            Ok(fresh) => fresh,
            Err(root::Failure::Missing(reason)) => return Ok(Some(format!("{}: {reason}", stranger.name))),
            Err(root::Failure::Failed(reason)) => return Err(format!("{}: {reason}", stranger.name)),
        };
        println!("{}: {} commands in {}", stranger.name, written.len(), fresh.folder().display());
        let printed = fresh.run(&script(&written), stranger.limit)?;
        let steps = outputs(&written, &printed).map_err(|reason| format!("{}: {reason}\n{printed}", stranger.name))?;
        fresh.remove()?;
        reaches_a_hit(&steps).map_err(|reason| format!("{}: {reason}", stranger.name))?;
        if is_check {
            compare(&written, &steps).map_err(|reason| format!("{PAGE}, {}: {reason}", stranger.heading))?;
        } else {
            let new = transcript::with(&page, stranger.heading, &steps).expect("it was found before");
            write(&root.join(PAGE), new)?;
        }
    }
    Ok(None)
}

/// A script of the commands with marks between them. It ends at the first that fails.
fn script(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        text += &format!("printf '{BEGIN}'\n{}\nstatus=$?; printf '{END}%s' $status\n", step.command);
        text += "[ $status = 0 ] || exit 0\n";
    }
    text
}

/// The steps with what they printed.
fn outputs(steps: &[Step], printed: &str) -> Result<Vec<Step>, String> {
    let pieces: Vec<&str> = printed.split(BEGIN).skip(1).collect();
    let mut done = Vec::new();
    for (step, piece) in steps.iter().zip(pieces) {
        let (output, code) = piece.split_once(END).ok_or_else(|| format!("`{}` did not end", step.command))?;
        if code.trim() != "0" {
            return Err(format!("`{}` ended with {}: {}", step.command, code.trim(), output.trim()));
        }
        done.push(Step { command: step.command.clone(), output: output.to_owned() });
    }
    if done.len() == steps.len() { Ok(done) } else { Err(format!("only {} commands ran", done.len())) }
}

/// The first request finds nothing in the region, and the second one does.
fn reaches_a_hit(steps: &[Step]) -> Result<(), String> {
    let counts = steps.iter().filter_map(|step| step.output.trim().strip_prefix("\"cached_tokens\":")?.parse().ok());
    match counts.collect::<Vec<u64>>()[..] {
        [0, second] if second > 0 => Ok(()),
        ref other => Err(format!("cached tokens of the two requests: {other:?}")),
    }
}

fn compare(written: &[Step], done: &[Step]) -> Result<(), String> {
    match written.iter().zip(done).find(|(written, done)| written != done) {
        None => Ok(()),
        Some((written, done)) => Err(format!(
            "`{}` printed {:?}, not {:?}; `cargo xtask strangers` writes what is printed",
            written.command, done.output, written.output
        )),
    }
}

/// The artefact in a folder whose name ends so.
fn find(folder: &Path, end: &str) -> Result<PathBuf, String> {
    let names = names_in(folder)?;
    let name = names.iter().find(|name| name.ends_with(end));
    name.map(|name| folder.join(name)).ok_or_else(|| format!("{} has no file *{end}", folder.display()))
}

/// Makes the artefacts of these strangers for release.
fn make(root: &Path, chosen: &[&Stranger]) -> Result<PathBuf, String> {
    let out = root.join(PLACE).join("artefacts");
    make_empty(&out)?;
    let wants = |name: &str| chosen.iter().any(|one| one.name == name);
    if wants("deb") || wants("image") {
        let command = root.join("target/packages-command/cenote");
        make_folder(command.parent().expect("it lies in a folder"))?;
        python::portable_command(root, &command)?;
        let debian = root.join("target/packages-debian");
        Order { root, kinds: &[Kind::Deb, Kind::Image], binary: &command, debian: &debian, out: &out }.make()?;
    }
    if wants("wheel") {
        let wheel = python::portable_wheel(root)?;
        std::fs::copy(&wheel, out.join(wheel.file_name().unwrap_or_default()))
            .map_err(|error| format!("{}: {error}", wheel.display()))?;
    }
    if wants("source") {
        let mut archive = Command::new("git");
        archive.args(["archive", "--format=tar", "--prefix=cenote/", "--output"]).arg(out.join("cenote-source.tar"));
        python::shown(archive.arg("HEAD").current_dir(root), "git archive")?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> String {
        read_lossy(&crate::repository().join(PAGE)).expect("it is there")
    }

    #[test]
    fn each_transcript_of_the_page_reaches_a_hit() {
        for stranger in &STRANGERS {
            let steps = transcript::of_section(&page(), stranger.heading).expect("a transcript");
            reaches_a_hit(&steps).unwrap_or_else(|reason| panic!("{}: {reason}", stranger.name));
        }
    }

    /// A stranger has read the page on installing, and no more.
    #[test]
    fn strangers_install_as_the_page_on_installing_says() {
        let install = read_lossy(&crate::repository().join("docs/guides/install.md")).expect("it is there");
        for (heading, commands) in [
            ("Wheel only", ["pip install", "cenote-*.whl"]),
            ("Debian package only", ["install", "cenote_*.deb"]),
            ("Image only", ["localhost/cenote:", "--entrypoint /bin/sh"]),
            ("Source only", ["cargo install", "--locked --path"]),
        ] {
            let page = page();
            let (_, section) = page.split_once(&format!("## {heading}\n")).expect("a section");
            let section = section.split("\n## ").next().expect("a section");
            for part in commands {
                assert!(section.contains(part) && install.contains(part), "{heading}: {part}");
            }
        }
    }

    #[test]
    fn a_failed_command_ends_the_transcript() {
        let step = |command: &str, output: &str| Step { command: command.to_owned(), output: output.to_owned() };
        let steps = [step("a", ""), step("b", "")];
        let printed = format!("noise{BEGIN}1\n{END}0{BEGIN}{END}0");
        assert_eq!(outputs(&steps, &printed), Ok(vec![step("a", "1\n"), step("b", "")]));
        let failed = format!("{BEGIN}1\n{END}0{BEGIN}broken\n{END}2");
        assert_eq!(outputs(&steps, &failed), Err("`b` ended with 2: broken".to_owned()));
        assert!(outputs(&steps, &format!("{BEGIN}1\n{END}0")).is_err());
        assert!(compare(&steps, &outputs(&steps, &printed).expect("both ran")).is_err());
        assert!(reaches_a_hit(&[step("", "\"cached_tokens\":0\n"), step("", "\"cached_tokens\":16\n")]).is_ok());
        assert!(reaches_a_hit(&[step("", "\"cached_tokens\":0\n"), step("", "\"cached_tokens\":0\n")]).is_err());
    }
}
