//! Programs and a kernel from Debian packages, unpacked into a folder. It needs no root and leaves
//! the machine's own packages alone: apt gets its own state, and `dpkg-deb` only unpacks.

use super::process::{make_empty, make_folder, names_in, output, read_lossy, run, write};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The release of the programs, whatever the machine itself runs.
const SUITE: &str = "trixie";
/// The first QEMU that maps a CXL memory device as memory; older ones emulate every access, and not
/// atomically.
const QEMU_MIN: u32 = 11;
const PACKAGES: [&str; 5] = ["qemu-system-x86", "cxl", "busybox-static", "zstd", "xz-utils"];
const KERNEL: &str = "linux-image-cloud-amd64";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// For one call of apt; the largest fetches some 40 MB.
const FETCH_LIMIT: Duration = Duration::from_secs(600);
const SHORT_LIMIT: Duration = Duration::from_secs(60);

/// Trees of unpacked packages.
pub struct Debian {
    /// QEMU, its firmware, the guests' tools, and their libraries.
    pub tools: PathBuf,
    pub kernel: PathBuf,
    log: PathBuf,
}

impl Debian {
    /// Fetches and unpacks missing packages.
    ///
    /// # Errors
    /// Names the missing thing: apt, a Debian mirror in its sources, the network, a package, room
    /// on the disk.
    pub fn prepare(cache: &Path) -> Result<Self, String> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(format!("QEMU for the guests is an x86-64 program; this is {}", std::env::consts::ARCH));
        }
        let folder = cache.join("debian");
        let debian = Self { tools: folder.join("tools"), kernel: folder.join("kernel"), log: cache.join("last.log") };
        // Written last, so that an incomplete tree is made again.
        let stamp = folder.join("packages.txt");
        let recipe = format!("{SUITE}: {} {KERNEL}\n", PACKAGES.join(" "));
        if !read_lossy(&stamp).is_ok_and(|text| text.starts_with(&recipe)) {
            make_empty(&folder)?;
            println!("fetching QEMU, a kernel and tools from Debian {SUITE} into target/two-host (about 90 MB)");
            let packages = debian.fetch(&folder)?;
            println!("unpacked {} packages", packages.len());
            write(&stamp, recipe + &packages.join("\n"))?;
        }
        debian.check_version()?;
        Ok(debian)
    }

    fn fetch(&self, folder: &Path) -> Result<Vec<String>, String> {
        let apt = Apt::new(folder, &self.log)?;
        apt.run("apt-get", &["update"], FETCH_LIMIT)?;
        let backports = format!("{SUITE}-backports");
        let install =
            ["install", "--yes", "--download-only", "--no-install-recommends", "--target-release", &backports];
        apt.run("apt-get", &[&install[..], &PACKAGES].concat(), FETCH_LIMIT)?;
        let archives = folder.join("apt/cache/archives");
        let mut packages = self.unpack(&archives, &self.tools)?;
        // Only the kernel, without the programs that would install it.
        let kernel = dependency(&apt.run("apt-cache", &["depends", KERNEL], SHORT_LIMIT)?)
            .ok_or_else(|| format!("apt tells no kernel on which {KERNEL} depends"))?;
        let place = folder.join("apt/kernel");
        make_empty(&place)?;
        apt.run_in(&place, "apt-get", &["download", &kernel], FETCH_LIMIT)?;
        packages.extend(self.unpack(&place, &self.kernel)?);
        // 80 MB that are not needed any more.
        fs::remove_dir_all(folder.join("apt")).map_err(|error| format!("removing the archives: {error}"))?;
        Ok(packages)
    }

    fn unpack(&self, from: &Path, to: &Path) -> Result<Vec<String>, String> {
        make_folder(to)?;
        let packages: Vec<String> = names_in(from)?.into_iter().filter(|name| name.ends_with(".deb")).collect();
        if packages.is_empty() {
            return Err("apt fetched no package and told no error".to_owned());
        }
        for package in &packages {
            let mut command = Command::new("dpkg-deb");
            command.arg("--extract").arg(from.join(package)).arg(to);
            run(&mut command, &format!("dpkg-deb of {package}"), &self.log, SHORT_LIMIT)?;
        }
        Ok(packages)
    }

    fn check_version(&self) -> Result<(), String> {
        let mut command = self.program("qemu-system-x86_64");
        let said = output(command.arg("--version"), "QEMU", &self.log, SHORT_LIMIT)?;
        match qemu_major(&said) {
            Some(major) if major >= QEMU_MIN => Ok(()),
            _ => Err(format!(
                "QEMU {QEMU_MIN} or later is needed, and {SUITE}-backports has `{}`",
                said.lines().next().unwrap_or_default()
            )),
        }
    }

    /// A program of the tree, with the tree's libraries: this machine's may be older.
    pub fn program(&self, name: &str) -> Command {
        let libraries = self.tools.join(LIBRARIES);
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(&libraries).arg(self.tools.join("usr/bin").join(name));
        command.env("QEMU_MODULE_DIR", libraries.join("qemu"));
        command
    }

    /// Runs a program of the tree as a filter on files.
    pub fn filter(&self, name: &str, arguments: &[&str], from: &Path, to: &Path) -> Result<(), String> {
        let mut command = self.program(name);
        run(command.args(arguments).arg(from), name, to, SHORT_LIMIT)
    }

    /// The libraries of a program of the tree, with the loader.
    pub fn libraries_of(&self, name: &str) -> Result<Vec<PathBuf>, String> {
        let libraries = self.tools.join(LIBRARIES);
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command.arg("--list").arg("--library-path").arg(&libraries).arg(self.tools.join("usr/bin").join(name));
        let listed = output(&mut command, &format!("listing the libraries of {name}"), &self.log, SHORT_LIMIT)?;
        let paths = listed.lines().filter_map(|line| line.split_once(" => ")?.1.split_whitespace().next());
        let paths: Vec<PathBuf> = paths.map(PathBuf::from).collect();
        match paths.iter().find(|path| !path.starts_with(&self.tools)) {
            Some(foreign) => Err(format!("{name} needs {}, which no package brought", foreign.display())),
            None => Ok(paths),
        }
    }
}

/// apt with its own sources, lists and archives.
struct Apt {
    options: Vec<String>,
    folder: PathBuf,
    log: PathBuf,
}

impl Apt {
    fn new(folder: &Path, log: &Path) -> Result<Self, String> {
        let folder = folder.join("apt");
        for part in ["state/lists/partial", "cache/archives/partial", "parts"] {
            make_folder(&folder.join(part))?;
        }
        let mut command = Command::new("apt-get");
        command.args(["indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Identifier: Packages"]);
        let listed = output(&mut command, "apt-get (this task needs a Debian machine)", log, SHORT_LIMIT)?;
        let mirror = mirror(&listed).ok_or("apt has no Debian mirror among its sources")?;
        if !Path::new(KEYRING).exists() {
            return Err(format!("{KEYRING} is missing; install the package debian-archive-keyring"));
        }
        let source = |suite: &str| format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n");
        write(&folder.join("sources.list"), source(SUITE) + &source(&format!("{SUITE}-backports")))?;
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
        Ok(Self { options, folder, log: log.to_owned() })
    }

    fn run(&self, program: &str, arguments: &[&str], limit: Duration) -> Result<String, String> {
        self.run_in(&self.folder, program, arguments, limit)
    }

    fn run_in(&self, place: &Path, program: &str, arguments: &[&str], limit: Duration) -> Result<String, String> {
        let mut command = Command::new(program);
        command.args(self.options.iter().flat_map(|option| ["-o", option]));
        command.args(arguments).current_dir(place).env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        let what = format!("{program} {}", arguments.first().unwrap_or(&""));
        output(&mut command, &what, &self.log, limit)
    }
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

/// The first package on which the one that `apt-cache depends` describes depends.
fn dependency(described: &str) -> Option<String> {
    described.lines().find_map(|line| Some(line.trim().strip_prefix("Depends: ")?.to_owned()))
}

fn qemu_major(said: &str) -> Option<u32> {
    said.split_once("version ")?.1.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_debians_own() {
        let listed = "https://x/security bookworm-security\nhttps://x/tools stable-tools\nhttps://y/debian bookworm\n";
        assert_eq!(mirror(listed), Some("https://y/debian"));
        assert_eq!(mirror("https://y/ubuntu noble\n"), None);
        assert_eq!(mirror(""), None);
    }

    #[test]
    fn words_of_programs_are_understood() {
        let described = "linux-image-cloud-amd64\n  Depends: linux-image-6.12.1+deb13-cloud-amd64\n  Suggests: x\n";
        assert_eq!(dependency(described).as_deref(), Some("linux-image-6.12.1+deb13-cloud-amd64"));
        assert_eq!(dependency("linux-image-cloud-amd64\n"), None);
        assert_eq!(qemu_major("QEMU emulator version 11.1.3 (Debian 1:11.1.3)\nCopyright"), Some(11));
        assert_eq!(qemu_major("what?"), None);
    }
}
