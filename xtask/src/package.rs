//! `cargo xtask package`: a Debian package and a container image with the command `cenote`.
//!
//! Both are made by hand, with `dpkg-deb` and `tar`, so they need neither root nor a container engine. Equal
//! inputs make equal files: all times are that of the commit.

mod deb;
mod files;
mod image;
pub mod licenses;
pub mod metadata;
pub mod sbom;

use crate::process::{make_empty, make_folder, output};
use crate::python;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// For one call of a packing program.
const LIMIT: Duration = Duration::from_secs(300);
/// One line about the product.
pub const DESCRIPTION: &str = "A shared, crash-proof KV-cache pool for LLM serving";
/// Programs and libraries of the image, and the packages that have the texts of their licences.
pub const IMAGE_PACKAGES: [&str; 6] =
    ["base-files", "busybox-static", "ca-certificates", "gcc-14-base", "libc6", "libgcc-s1"];

/// A kind of package.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Deb,
    Image,
}

/// An order of packages.
pub struct Order<'a> {
    pub root: &'a Path,
    pub kinds: &'a [Kind],
    /// The command `cenote`. Tests give one of the development profile.
    pub binary: &'a Path,
    /// Unpacked packages of Debian, for the image.
    pub debian: &'a Path,
    /// The folder of the results.
    pub out: &'a Path,
}

/// `cargo xtask package [deb|image] [--binary FILE] [--out FOLDER]`.
///
/// # Errors
/// A flag is unknown, or a step failed; the message names it.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut kinds = Vec::new();
    let (mut binary, mut out) = (None, root.join("target/packages"));
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        match (*word, rest.as_slice().first()) {
            ("deb", _) => kinds.push(Kind::Deb),
            ("image", _) => kinds.push(Kind::Image),
            ("--binary", Some(file)) => binary = Some(PathBuf::from(file)),
            ("--out", Some(folder)) => out = PathBuf::from(folder),
            _ => return Err(format!("package: `{word}` is none of deb, image, --binary FILE, --out FOLDER")),
        }
        if word.starts_with("--") {
            rest.next();
        }
    }
    if kinds.is_empty() {
        kinds = vec![Kind::Deb, Kind::Image];
    }
    let binary = match binary {
        Some(file) => file,
        None => {
            let file = root.join("target/packages-command/cenote");
            make_folder(file.parent().expect("it lies in a folder"))?;
            python::portable_command(root, &file)?;
            file
        }
    };
    let debian = root.join("target/packages-debian");
    let order = Order { root, kinds: &kinds, binary: &binary, debian: &debian, out: &out };
    for made in order.make()? {
        println!("{}", made.display());
    }
    Ok(())
}

impl Order<'_> {
    /// Makes the packages; returns their files.
    ///
    /// # Errors
    /// The binary does not run here, or a step failed; the message names it.
    pub fn make(&self) -> Result<Vec<PathBuf>, String> {
        make_folder(self.out)?;
        let binary = std::path::absolute(self.binary).map_err(|error| format!("the binary: {error}"))?;
        let out = std::path::absolute(self.out).map_err(|error| format!("the folder of results: {error}"))?;
        let work = Work {
            root: self.root.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            time: commit_time(self.root),
            folder: out.join("work"),
            binary,
            out,
        };
        make_empty(&work.folder)?;
        let texts = files::texts(&work)?;
        let mut made = Vec::new();
        if self.kinds.contains(&Kind::Deb) {
            made.push(deb::make(&work, &texts)?);
        }
        if self.kinds.contains(&Kind::Image) {
            let tree = crate::debian::Tree::prepare(self.debian, crate::debian::SUITE, &IMAGE_PACKAGES)?;
            made.push(image::make(&work, &texts, &tree)?);
        }
        std::fs::remove_dir_all(&work.folder).map_err(|error| format!("{}: {error}", work.folder.display()))?;
        Ok(made)
    }
}

/// Facts that both kinds share.
pub struct Work {
    root: PathBuf,
    version: String,
    /// Seconds since 1970, of the commit.
    time: u64,
    /// Scratch.
    folder: PathBuf,
    binary: PathBuf,
    out: PathBuf,
}

impl Work {
    /// Runs a packing program; returns what it prints.
    fn call(&self, command: &mut Command, what: &str) -> Result<String, String> {
        command.env("SOURCE_DATE_EPOCH", self.time.to_string()).env("LC_ALL", "C").env("TZ", "UTC");
        output(command, what, &self.folder.join("last.log"), LIMIT)
    }

    /// Packs a folder as a tar file whose bytes depend on its content alone.
    fn tar(&self, folder: &Path, to: &Path) -> Result<(), String> {
        let mut tar = Command::new("tar");
        tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=posix"]);
        // Names and times only: POSIX headers have the process's number otherwise.
        tar.arg("--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime");
        tar.arg(format!("--mtime=@{}", self.time)).arg("-C").arg(folder).arg("-cf").arg(to).arg(".");
        self.call(&mut tar, "tar").map(|_| ())
    }
}

/// The architecture as Debian and as containers name it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The time of the newest commit. 0 outside of a repository: some time is needed, and any is equal.
pub fn commit_time(root: &Path) -> u64 {
    let said = Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root).output();
    said.ok().and_then(|said| String::from_utf8_lossy(&said.stdout).trim().parse().ok()).unwrap_or(0)
}
