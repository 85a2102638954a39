//! Programs from Debian packages, unpacked into a folder. It needs no root and leaves the machine's own
//! packages alone: apt gets its own state, and `dpkg-deb` only unpacks, so nothing is started.

use crate::process::{make_empty, make_folder, names_in, output, read_lossy, run, write};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The release of most programs, whatever the machine itself runs.
pub const SUITE: &str = "trixie";
pub const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// What the tree is made of: the order, and a line for each archive.
const LIST: &str = "packages.txt";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// For one call of apt; the largest fetches some 40 MB.
const FETCH_LIMIT: Duration = Duration::from_secs(600);
const SHORT_LIMIT: Duration = Duration::from_secs(60);

/// A folder of unpacked packages.
pub struct Tree {
    pub folder: PathBuf,
    /// The last program's output.
    pub log: PathBuf,
}

impl Tree {
    /// Fetches these packages of a release, without those on which they depend, into `cache/debian`, unless
    /// they are there.
    ///
    /// # Errors
    /// Names the missing thing: apt, a Debian mirror in its sources, the network, a package, room on the
    /// disk.
    pub fn prepare(cache: &Path, suite: &str, packages: &[&str]) -> Result<Self, String> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(format!("the packages are of x86-64; this is {}", std::env::consts::ARCH));
        }
        let folder = cache.join("debian");
        let tree = Self { folder: folder.join("tools"), log: cache.join("last.log") };
        // Written last, so that an incomplete tree is made again.
        let stamp = folder.join(LIST);
        let recipe = format!("{suite}: {}\n", packages.join(" "));
        if !read_lossy(&stamp).is_ok_and(|text| text.starts_with(&recipe)) {
            make_empty(&folder)?;
            println!("fetching {} from Debian {suite}", packages.join(", "));
            let apt = Apt::new(&folder, suite, &tree.log)?;
            let unpacked = tree.unpack(&apt.download(packages)?)?;
            // The archives are not needed any more.
            fs::remove_dir_all(folder.join("apt")).map_err(|error| format!("removing the archives: {error}"))?;
            write(&stamp, recipe + &unpacked.join("\n"))?;
        }
        Ok(tree)
    }

    /// Unpacks all packages of a folder; returns their names.
    ///
    /// # Errors
    /// There is none, or `dpkg-deb` failed.
    pub fn unpack(&self, from: &Path) -> Result<Vec<String>, String> {
        make_folder(&self.folder)?;
        let packages: Vec<String> = names_in(from)?.into_iter().filter(|name| name.ends_with(".deb")).collect();
        if packages.is_empty() {
            return Err("apt fetched no package and told no error".to_owned());
        }
        for package in &packages {
            let mut command = Command::new("dpkg-deb");
            command.arg("--extract").arg(from.join(package)).arg(&self.folder);
            run(&mut command, &format!("dpkg-deb of {package}"), &self.log, SHORT_LIMIT)?;
        }
        Ok(packages)
    }

    /// Versions of the packages, by name.
    ///
    /// # Errors
    /// The tree's list is gone.
    pub fn versions(&self) -> Result<BTreeMap<String, String>, String> {
        Ok(versions(&read_lossy(&self.folder.with_file_name(LIST))?))
    }

    /// A program of the tree, with the tree's libraries: this machine's may be older.
    pub fn program(&self, name: &str) -> Command {
        self.loaded(&[], &self.folder.join("usr/bin").join(name))
    }

    /// The libraries that any program needs, from the tree, with the loader.
    ///
    /// # Errors
    /// The tree lacks a library; the message names it.
    pub fn libraries_of(&self, program: &Path) -> Result<Vec<PathBuf>, String> {
        let what = format!("listing the libraries of {}", program.display());
        let listed = output(&mut self.loaded(&["--list"], program), &what, &self.log, SHORT_LIMIT)?;
        let paths = listed.lines().filter_map(|line| line.split_once(" => ")?.1.split_whitespace().next());
        let paths: Vec<PathBuf> = paths.map(PathBuf::from).collect();
        match paths.iter().find(|path| !path.starts_with(&self.folder)) {
            Some(foreign) => Err(format!("{what}: no package brought {}", foreign.display())),
            None => Ok(paths),
        }
    }

    /// The tree's loader with `flags`, on a program.
    fn loaded(&self, flags: &[&str], program: &Path) -> Command {
        let libraries = self.folder.join(LIBRARIES);
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command.args(flags).arg("--library-path").arg(&libraries).arg(program);
        command
    }
}

/// apt with its own sources, lists and archives.
pub struct Apt {
    options: Vec<String>,
    suite: String,
    folder: PathBuf,
    log: PathBuf,
}

impl Apt {
    /// Reads the lists of a release and of its backports into a new folder `apt`.
    ///
    /// # Errors
    /// This is no Debian machine, or no mirror answers.
    pub fn new(folder: &Path, suite: &str, log: &Path) -> Result<Self, String> {
        let folder = folder.join("apt");
        for part in ["state/lists/partial", "cache/archives/partial", "parts"] {
            make_folder(&folder.join(part))?;
        }
        let mirror = mirror_of_machine(log)?;
        if !Path::new(KEYRING).exists() {
            return Err(format!("{KEYRING} is missing; install the package debian-archive-keyring"));
        }
        let source = |suite: &str| format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n");
        write(&folder.join("sources.list"), source(suite) + &source(&format!("{suite}-backports")))?;
        // An empty status: no package counts as installed, so that every library is fetched as
        // well.
        write(&folder.join("status"), "")?;
        let place = |option: &str, part: &str| format!("{option}={}", folder.join(part).display());
        let options = vec![
            place("Dir::State", "state"),
            place("Dir::State::status", "status"),
            place("Dir::Cache", "cache"),
            place("Dir::Etc::sourcelist", "sources.list"),
            place("Dir::Etc::sourceparts", "parts"),
            "APT::Architecture=amd64".to_owned(),
            "APT::Architectures=amd64".to_owned(),
            // apt's own user may not be allowed to write here.
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Retries=1".to_owned(),
            "Acquire::http::Timeout=30".to_owned(),
            // Otherwise a mirror that does not answer is a warning, and the lists are empty.
            "APT::Update::Error-Mode=any".to_owned(),
        ];
        let apt = Self { options, suite: suite.to_owned(), folder, log: log.to_owned() };
        apt.run(&apt.folder, "apt-get", &["update"], FETCH_LIMIT)?;
        Ok(apt)
    }

    /// Fetches these packages and all on which they depend, from backports where they have them; returns
    /// the folder of the archives.
    ///
    /// # Errors
    /// A package is missing, or the mirror does not answer.
    pub fn fetch_all(&self, packages: &[&str]) -> Result<PathBuf, String> {
        let backports = format!("{}-backports", self.suite);
        let install =
            ["install", "--yes", "--download-only", "--no-install-recommends", "--target-release", &backports];
        self.run(&self.folder, "apt-get", &[&install[..], packages].concat(), FETCH_LIMIT)?;
        Ok(self.folder.join("cache/archives"))
    }

    /// Fetches these packages alone; returns the folder of the archives.
    ///
    /// # Errors
    /// As [`Self::fetch_all`].
    pub fn download(&self, packages: &[&str]) -> Result<PathBuf, String> {
        let place = self.folder.join("downloaded");
        make_empty(&place)?;
        self.run(&place, "apt-get", &[&["download"], packages].concat(), FETCH_LIMIT)?;
        Ok(place)
    }

    /// What apt tells of a package's dependencies.
    ///
    /// # Errors
    /// apt failed.
    pub fn depends(&self, package: &str) -> Result<String, String> {
        self.run(&self.folder, "apt-cache", &["depends", package], SHORT_LIMIT)
    }

    fn run(&self, place: &Path, program: &str, arguments: &[&str], limit: Duration) -> Result<String, String> {
        let mut command = Command::new(program);
        command.args(self.options.iter().flat_map(|option| ["-o", option]));
        command.args(arguments).current_dir(place).env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        let what = format!("{program} {}", arguments.first().unwrap_or(&""));
        output(&mut command, &what, &self.log, limit)
    }
}

/// This machine's mirror of Debian.
///
/// # Errors
/// This is no Debian machine, or it has none.
pub fn mirror_of_machine(log: &Path) -> Result<String, String> {
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Identifier: Packages"]);
    let listed = output(&mut command, "apt-get (this task needs a Debian machine)", log, SHORT_LIMIT)?;
    mirror(&listed).map(str::to_owned).ok_or_else(|| "apt has no Debian mirror among its sources".to_owned())
}

/// Archives are named `NAME_VERSION_ARCHITECTURE.deb`.
fn versions(listed: &str) -> BTreeMap<String, String> {
    let of_archive = |line: &str| {
        let (name, rest) = line.strip_suffix(".deb")?.split_once('_')?;
        Some((name.to_owned(), rest.rsplit_once('_')?.0.replace("%3a", ":")))
    };
    listed.lines().filter_map(of_archive).collect()
}

/// This machine's mirror of Debian itself, from lines of a place and a suite.
fn mirror(listed: &str) -> Option<&str> {
    const SUITES: [&str; 9] =
        ["bullseye", "bookworm", "trixie", "forky", "duke", "oldstable", "stable", "testing", "sid"];
    listed.lines().find_map(|line| {
        let (place, suite) = line.trim().split_once(' ')?;
        // Security updates have their own place.
        SUITES.contains(&suite).then_some(place)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_tell_the_versions() {
        let found = versions("trixie: a libc6\na_1%3a1.37.0-6+b9_amd64.deb\nlibc6_2.41-12+deb13u5_amd64.deb");
        let expected = [("a", "1:1.37.0-6+b9"), ("libc6", "2.41-12+deb13u5")];
        assert_eq!(found, expected.map(|(name, version)| (name.to_owned(), version.to_owned())).into());
    }

    #[test]
    fn the_mirror_is_debians_own() {
        let listed = "https://x/security bookworm-security\nhttps://x/tools stable-tools\nhttps://y/debian bookworm\n";
        assert_eq!(mirror(listed), Some("https://y/debian"));
        assert_eq!(mirror("https://y/ubuntu noble\n"), None);
        assert_eq!(mirror(""), None);
    }
}
