//! An empty file system for a stranger: Debian by debootstrap, or the content of the image. Commands run in it
//! with namespaces of their own, so that nothing outlives them.

use crate::debian::{self, Tree};
use crate::process::{make_empty, make_folder, output, read, read_lossy, run, write};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// For debootstrap, which fetches some 50 MB.
const BASE_LIMIT: Duration = Duration::from_secs(900);
const COPY_LIMIT: Duration = Duration::from_secs(300);
/// Mounts what programs need, and enters.
const ENTER: &str = r#"
set -e
root=$1 toolchain=$2 home=$3 certificates=$4
ip link set lo up
mkdir -p "$root/proc" "$root/dev/shm" "$root/tmp"
mount -t proc proc "$root/proc"
mount -t tmpfs -o size=2g,mode=1777 shm "$root/dev/shm"
for device in null zero full random urandom; do
    [ -e "$root/dev/$device" ] || touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
if [ -n "$toolchain" ]; then
    mkdir -p "$root/opt/rust"
    mount --bind "$toolchain" "$root/opt/rust"
    path=/opt/rust/bin:$path
fi
exec env -i PATH="$path" HOME="$home" LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$certificates" \
    chroot "$root" /bin/sh /stranger.sh
"#;

/// What a stranger has before the artefact comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The smallest Debian that has apt.
    Debian,
    /// The same with this machine's Rust toolchain.
    Toolchain,
    /// Nothing.
    Image,
}

/// Why there is no file system.
pub enum Failure {
    /// This machine lacks something.
    Missing(String),
    Failed(String),
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

/// A file system, and what is mounted into it.
pub struct Fresh {
    folder: PathBuf,
    /// Empty: none.
    toolchain: PathBuf,
    home: &'static str,
    /// Whether it has a network of its own, with nothing else in it.
    is_alone: bool,
    log: PathBuf,
}

impl Base {
    /// Makes a file system in `folder`, with the artefact in it.
    pub fn prepare(self, place: &Path, folder: &Path, artefact: &Path) -> Result<Fresh, Failure> {
        if let Some(reason) = missing(self) {
            return Err(Failure::Missing(reason));
        }
        let log = place.join("last.log");
        let mut fresh = Fresh {
            folder: folder.to_owned(),
            toolchain: PathBuf::new(),
            home: "/",
            is_alone: self == Self::Image,
            log,
        };
        make_empty(folder)?;
        if self == Self::Image {
            unpack_image(artefact, &place.join("layers"), &fresh)?;
            return Ok(fresh);
        }
        let base = debian_base(place, &fresh.log)?;
        let mut copy = Command::new("cp");
        copy.args(["-a", "--reflink=auto"]).arg(base.join(".")).arg(folder);
        run(&mut copy, "cp of the base", &fresh.log, COPY_LIMIT)?;
        // Names are looked up as on this machine.
        copy_file(Path::new("/etc/resolv.conf"), &folder.join("etc/resolv.conf"))?;
        fresh.home = "/root";
        let home = folder.join("root");
        if self == Self::Toolchain {
            fresh.untar(artefact, &home)?;
            fresh.toolchain = PathBuf::from(crate::ci::inputs::version("rustc", &["--print", "sysroot"]).trim());
        } else {
            copy_file(artefact, &home.join(artefact.file_name().unwrap_or_default()))?;
        }
        Ok(fresh)
    }
}

impl Fresh {
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs a script; returns all that it prints.
    ///
    /// # Errors
    /// The namespaces cannot be made, or it does not end within `limit`.
    pub fn run(&self, script: &str, limit: Duration) -> Result<String, String> {
        write(&self.folder.join("stranger.sh"), format!("exec 2>&1\ncd\n{script}"))?;
        let mut enter = Command::new("unshare");
        enter.args(["--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts"]);
        if self.is_alone {
            enter.arg("--net");
        }
        enter.args(["sh", "-c", ENTER, "enter"]);
        enter.arg(&self.folder).arg(&self.toolchain).arg(self.home).arg(self.certificates()?);
        output(&mut enter, "the commands in a root of their own", &self.log, limit)
    }

    /// The variable that names this machine's certificates, if it has its own.
    fn certificates(&self) -> Result<String, String> {
        let Some(file) = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from).filter(|file| file.is_file()) else {
            return Ok("LC_ALL=C.UTF-8".to_owned());
        };
        copy_file(&file, &self.folder.join("certificates.crt"))?;
        Ok("CARGO_HTTP_CAINFO=/certificates.crt".to_owned())
    }

    fn untar(&self, archive: &Path, to: &Path) -> Result<(), String> {
        make_folder(to)?;
        let mut unpack = Command::new("tar");
        unpack.arg("-xf").arg(archive).arg("-C").arg(to);
        run(&mut unpack, &format!("tar of {}", archive.display()), &self.log, COPY_LIMIT)
    }

    /// Removes the file system. Mounts have ended with their namespace.
    pub fn remove(self) -> Result<(), String> {
        fs::remove_dir_all(&self.folder).map_err(|error| format!("{}: {error}", self.folder.display()))
    }
}

/// What keeps commands from a root and a network of their own here, if something does.
fn missing(base: Base) -> Option<String> {
    let mut probe = Command::new("unshare");
    let probe = match base {
        Base::Image => probe.args(["--mount", "--pid", "--fork", "--net", "sh", "-c", "ip link set lo up"]).output(),
        _ => probe.args(["--mount", "--pid", "--fork", "true"]).output(),
    };
    match probe {
        Ok(said) if said.status.success() => None,
        Ok(said) => Some(format!("a root of its own: {}", String::from_utf8_lossy(&said.stderr).trim())),
        Err(error) => Some(format!("a root of its own: unshare: {error}")),
    }
}

fn copy_file(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(|_| ()).map_err(|error| format!("{}: {error}", from.display()))
}

/// A Debian of its smallest packages, made once.
fn debian_base(place: &Path, log: &Path) -> Result<PathBuf, Failure> {
    let (base, stamp) = (place.join("debian-base"), place.join("debian-base.txt"));
    if read_lossy(&stamp).is_ok_and(|suite| suite == debian::SUITE) {
        return Ok(base);
    }
    let missing = |reason: String| Failure::Missing(format!("debootstrap: {reason}"));
    let tools = Tree::prepare(&place.join("programs"), debian::SUITE, &["debootstrap"]).map_err(missing)?;
    let mirror = debian::mirror_of_machine(log).map_err(missing)?;
    make_empty(&base)?;
    println!("making a root of Debian {} with debootstrap", debian::SUITE);
    let mut make = Command::new("sh");
    make.arg(tools.folder.join("usr/sbin/debootstrap")).arg("--variant=minbase");
    make.arg(format!("--keyring={}", debian::KEYRING)).arg(debian::SUITE).arg(&base).arg(mirror);
    make.env("DEBOOTSTRAP_DIR", tools.folder.join("usr/share/debootstrap"));
    run(&mut make, "debootstrap", log, BASE_LIMIT).map_err(Failure::Missing)?;
    write(&stamp, debian::SUITE)?;
    Ok(base)
}

/// Puts the layers of an image into a root.
fn unpack_image(image: &Path, scratch: &Path, fresh: &Fresh) -> Result<(), String> {
    make_empty(scratch)?;
    fresh.untar(image, scratch)?;
    let json = |path: &Path| -> Result<Value, String> {
        serde_json::from_slice(&read(path)?).map_err(|error| format!("{}: {error}", path.display()))
    };
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap_or_default().replace(':', "/");
        scratch.join("blobs").join(digest)
    };
    let manifest = json(&blob(&json(&scratch.join("index.json"))?["manifests"][0]))?;
    let layers = manifest["layers"].as_array().cloned().unwrap_or_default();
    layers.iter().try_for_each(|layer| fresh.untar(&blob(layer), &fresh.folder))?;
    fs::remove_dir_all(scratch).map_err(|error| format!("{}: {error}", scratch.display()))
}
