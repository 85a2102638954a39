//! QEMU, a kernel and the guests' tools from Debian packages.

use crate::debian::{Apt, SUITE, Tree};
use crate::process::{make_empty, output, read_lossy, run, write};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The first QEMU that maps a CXL memory device as memory; older ones emulate every access, and not
/// atomically.
const QEMU_MIN: u32 = 11;
const PACKAGES: [&str; 5] = ["qemu-system-x86", "cxl", "busybox-static", "zstd", "xz-utils"];
const KERNEL: &str = "linux-image-cloud-amd64";
const SHORT_LIMIT: Duration = Duration::from_secs(60);

/// Trees of unpacked packages.
pub struct Debian {
    /// QEMU, its firmware, the guests' tools, and their libraries.
    pub tools: Tree,
    pub kernel: Tree,
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
        let tree = |name: &str| Tree { folder: folder.join(name), log: cache.join("last.log") };
        let debian = Self { tools: tree("tools"), kernel: tree("kernel") };
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
        let apt = Apt::new(folder, SUITE, &self.tools.log)?;
        let mut packages = self.tools.unpack(&apt.fetch_all(&PACKAGES)?)?;
        // Only the kernel, without the programs that would install it.
        let kernel = dependency(&apt.depends(KERNEL)?)
            .ok_or_else(|| format!("apt tells no kernel on which {KERNEL} depends"))?;
        packages.extend(self.kernel.unpack(&apt.download(&[&kernel])?)?);
        // 80 MB that are not needed any more.
        fs::remove_dir_all(folder.join("apt")).map_err(|error| format!("removing the archives: {error}"))?;
        Ok(packages)
    }

    fn check_version(&self) -> Result<(), String> {
        let mut command = self.program("qemu-system-x86_64");
        let said = output(command.arg("--version"), "QEMU", &self.tools.log, SHORT_LIMIT)?;
        match qemu_major(&said) {
            Some(major) if major >= QEMU_MIN => Ok(()),
            _ => Err(format!(
                "QEMU {QEMU_MIN} or later is needed, and {SUITE}-backports has `{}`",
                said.lines().next().unwrap_or_default()
            )),
        }
    }

    /// A program of the tools.
    pub fn program(&self, name: &str) -> Command {
        let mut command = self.tools.program(name);
        command.env("QEMU_MODULE_DIR", self.tools.folder.join("usr/lib/x86_64-linux-gnu/qemu"));
        command
    }

    /// Runs a program of the tools as a filter on files.
    pub fn filter(&self, name: &str, arguments: &[&str], from: &Path, to: &Path) -> Result<(), String> {
        run(self.program(name).args(arguments).arg(from), name, to, SHORT_LIMIT)
    }

    /// A file of the tools' programs.
    pub fn tool(&self, name: &str) -> PathBuf {
        self.tools.folder.join("usr/bin").join(name)
    }
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
    fn words_of_programs_are_understood() {
        let described = "linux-image-cloud-amd64\n  Depends: linux-image-6.12.1+deb13-cloud-amd64\n  Suggests: x\n";
        assert_eq!(dependency(described).as_deref(), Some("linux-image-6.12.1+deb13-cloud-amd64"));
        assert_eq!(dependency("linux-image-cloud-amd64\n"), None);
        assert_eq!(qemu_major("QEMU emulator version 11.1.3 (Debian 1:11.1.3)\nCopyright"), Some(11));
        assert_eq!(qemu_major("what?"), None);
    }
}
