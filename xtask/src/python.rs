//! A Python environment in `target/venv` with exactly the packages of
//! `xtask/python-requirements.txt`.

use crate::package::{commit_time, licenses, metadata, sbom};
use crate::process::{make_folder, write};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const REQUIREMENTS: &str = "xtask/python-requirements.txt";

/// maturin puts the folder of this name into the wheel, if it exists, and installs the content of
/// `scripts` as commands, and that of `data` below the environment's folder.
const DATA: &str = "crates/py/cenote._native.data";

/// Builds wheels for older C libraries.
const PORTABLE: [&str; 2] = ["maturin==1.16.0", "ziglang==0.17.1"];
/// The C library of 2020 (Debian 11, Ubuntu 20.04).
const PORTABLE_FLAGS: [&str; 3] = ["--zig", "--compatibility", "manylinux_2_31"];

/// Makes the environment, or finds it up to date. Returns its interpreter as an absolute path.
///
/// # Errors
/// Python or its `venv` is missing, or the package index cannot be reached; the message says which.
pub fn prepare(root: &Path) -> Result<PathBuf, String> {
    environment(root, "target/venv", REQUIREMENTS, "openai, pytest, mypy.stubtest, maturin")
}

/// The same for another place and other packages, of which `modules` can be imported afterwards.
///
/// # Errors
/// As [`prepare`].
pub fn environment(root: &Path, place: &str, requirements: &str, modules: &str) -> Result<PathBuf, String> {
    let environment = root.join(place);
    let python = environment.join("bin/python");
    // Written last, so that an incomplete environment is made again.
    let stamp = environment.join("requirements-installed.txt");
    let file = root.join(requirements);
    let wanted = fs::read_to_string(&file).map_err(|error| format!("{requirements}: {error}"))?;
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) && imports(&python, modules) {
        return Ok(python);
    }
    if environment.exists() {
        fs::remove_dir_all(&environment).map_err(|error| format!("{}: {error}", environment.display()))?;
    }
    eprintln!("making a Python environment in {place}");
    succeed(Command::new("python3").args(["-m", "venv"]).arg(&environment), "python3 -m venv")?;
    let install =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "15"];
    succeed(
        Command::new(&python).args(install).arg("--requirement").arg(&file),
        "pip install (is the package index reachable?)",
    )?;
    if !imports(&python, modules) {
        return Err("the packages were installed but cannot be imported".to_owned());
    }
    fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(python)
}

/// Builds the package `cenote` in the development profile, installs it, and runs its tests and those
/// of its stubs.
///
/// # Errors
/// Names the failed step; its own output is above.
pub fn test_package(root: &Path, python: &Path) -> Result<(), String> {
    let wheel = build(root, python, python, "dev", &[], "dev", tested_command)?;
    test_wheel(root, python, &wheel)
}

/// Builds the package in the development profile and installs it; returns the folder of what is installed.
///
/// # Errors
/// Names the failed step; its own output is above.
pub fn installed(root: &Path) -> Result<PathBuf, String> {
    let python = prepare(root)?;
    let wheel = build(root, &python, &python, "dev", &[], "dev", tested_command)?;
    install(&python, &wheel)?;
    let mut place = Command::new(&python);
    place.args(["-c", "import sysconfig; print(sysconfig.get_path('platlib'))"]);
    let said = place.output().map_err(|error| format!("{}: {error}", python.display()))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&said.stdout).trim()))
}

fn install(python: &Path, wheel: &Path) -> Result<(), String> {
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--force-reinstall"];
    shown(Command::new(python).args(install).arg(wheel), "pip install of the package")
}

/// Libraries with which tests stand in for a GPU's driver and for NIXL, and the variables that name them.
const FAKES: [(&str, &str); 2] = [("fake_driver", "CENOTE_FAKE_DRIVER"), ("fake_nixl", "CENOTE_FAKE_NIXL")];

/// Builds the libraries of [`FAKES`] (`crates/device/fake`, `crates/reach/fake`); returns each with its
/// variable. The features are those of the tests' build, whose dependencies they use.
///
/// # Errors
/// cargo failed, its own output is above; or it put a library elsewhere.
pub fn fakes(root: &Path) -> Result<Vec<(&'static str, PathBuf)>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // `cargo test --example` would make test programs of them, and no libraries.
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--workspace"]).current_dir(root);
    FAKES.iter().for_each(|(name, _)| _ = build.args(["--example", *name]));
    shown(&mut build, "cargo build of the fake libraries")?;
    let file = |&(name, variable): &(&str, &'static str)| {
        let file = root.join(format!("target/debug/examples/lib{name}.so"));
        if file.is_file() { Ok((variable, file)) } else { Err(format!("cargo made no {}", file.display())) }
    };
    FAKES.iter().map(file).collect()
}

/// Puts the command that the tests use at `target`, without debug symbols. It is built as they
/// build it, because another selection of packages gives dependencies other features, and all of
/// them would be built again.
pub fn tested_command(root: &Path, target: &Path) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = ["test", "--no-run", "--quiet", "--workspace", "--test", "cli"];
    shown(Command::new(cargo).args(build).current_dir(root), "cargo test --no-run")?;
    let strip = Command::new("strip").arg("-o").arg(target).arg(root.join("target/debug/cenote")).output();
    match strip {
        Ok(said) if said.status.success() => Ok(()),
        Ok(said) => Err(format!("strip: {}", String::from_utf8_lossy(&said.stderr))),
        Err(error) => Err(format!("strip (from binutils) cannot be run: {error}")),
    }
}

fn test_wheel(root: &Path, python: &Path, wheel: &Path) -> Result<(), String> {
    let folder = root.join("crates/py");
    let fakes = fakes(root)?;
    let wheels = wheel.parent().expect("it lies in a folder");
    install(python, wheel)?;
    let tests = ["-m", "pytest", "--quiet", "-rs", "-p", "no:cacheprovider", "tests"];
    // Those need an engine, in an environment of its own.
    let engines = ["--ignore", "tests/vllm", "--ignore", "tests/sglang"];
    let mut pytest = Command::new(python);
    pytest.args(tests).args(engines).envs(fakes).current_dir(&folder);
    shown(&mut pytest, "pytest")?;
    let stubs = ["-m", "mypy.stubtest", "--concise", "--allowlist"];
    let allowed = folder.join("tests/stubtest-allowed.txt");
    // In another folder: that of the package holds no compiled part.
    let stubs = Command::new(python).args(stubs).arg(allowed).arg("cenote._native").current_dir(wheels).status();
    match stubs {
        Ok(status) if status.success() => Ok(()),
        _ => Err("stubtest: the stubs and the compiled part of the package differ".to_owned()),
    }
}

/// Builds a wheel for machines with an older C library than this one's, and tests it here. Returns
/// it.
///
/// # Errors
/// Names the failed step; its own output is above. maturin refuses a binary that needs a newer
/// library than the wheel's name says.
pub fn portable_wheel(root: &Path) -> Result<PathBuf, String> {
    let python = prepare(root)?;
    let builder = portable_builder(root)?;
    let command = |root: &Path, target: &Path| packed_command(root, &builder, &python, &PORTABLE_FLAGS, target);
    let wheel = build(root, &builder, &python, "release", &PORTABLE_FLAGS, "portable", command)?;
    test_wheel(root, &python, &wheel)?;
    Ok(wheel)
}

/// Builds wheel and command for Arm, on any machine; returns both. The linker brings the C library's symbols.
///
/// # Errors
/// The compiler's library for Arm is missing, or a step failed; its own output is above.
pub fn arm_wheel(root: &Path) -> Result<(PathBuf, PathBuf), String> {
    const FLAGS: [&str; 2] = ["--target", crate::arm::TARGET];
    let python = prepare(root)?;
    let builder = portable_builder(root)?;
    let flags = [&PORTABLE_FLAGS[..], &FLAGS].concat();
    let kept = root.join("target/wheels/cenote-arm");
    let command = |root: &Path, target: &Path| {
        packed_command(root, &builder, &python, &flags, target)?;
        fs::copy(target, &kept).map(|_| ()).map_err(|error| format!("{}: {error}", kept.display()))
    };
    let wheel = build(root, &builder, &python, "release", &flags, "arm", command)?;
    Ok((wheel, kept))
}

/// Puts the command at `target`, built as for [`portable_wheel`].
///
/// # Errors
/// Names the failed step; its own output is above.
pub fn portable_command(root: &Path, target: &Path) -> Result<(), String> {
    let python = prepare(root)?;
    packed_command(root, &portable_builder(root)?, &python, &PORTABLE_FLAGS, target)
}

/// An environment with a linker for older C libraries; returns its interpreter.
fn portable_builder(root: &Path) -> Result<PathBuf, String> {
    let environment = root.join("target/wheel");
    let builder = environment.join("bin/python");
    if !Command::new(&builder).args(["-c", "import maturin, ziglang"]).output().is_ok_and(|said| said.status.success())
    {
        eprintln!("making an environment with a linker in target/wheel; that downloads about 100 MB");
        succeed(Command::new("python3").args(["-m", "venv"]).arg(&environment), "python3 -m venv")?;
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        succeed(Command::new(&builder).args(install).args(PORTABLE), "pip install (is the package index reachable?)")?;
    }
    Ok(builder)
}

/// Builds the package as its users get it, with the command `cenote` in it; returns the wheel.
///
/// # Errors
/// maturin failed; its own output is above.
pub fn build_wheel(root: &Path, python: &Path) -> Result<PathBuf, String> {
    let command = |root: &Path, target: &Path| packed_command(root, python, python, &[], target);
    build(root, python, python, "release", &[], "release", command)
}

fn build(
    root: &Path,
    builder: &Path,
    python: &Path,
    profile: &str,
    flags: &[&str],
    folder: &str,
    command: impl FnOnce(&Path, &Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let wheels = root.join("target/wheels").join(folder);
    let scripts = Scripts::make(root)?;
    command(root, &scripts.0.join("cenote"))?;
    legal(root, &root.join(DATA).join("data/share/doc/cenote"))?;
    maturin(root, builder, python, "crates/py", profile, flags, &wheels)
}

/// Licences and bill of materials of all that the wheel links.
fn legal(root: &Path, folder: &Path) -> Result<(), String> {
    let crates = metadata::linked(root, &["cenote", "cenote-py"])?;
    make_folder(folder)?;
    write(&folder.join("third-party-licenses.txt"), licenses::text(root, &crates)?)?;
    write(&folder.join("sbom.cdx.json"), sbom::text(&crates, "cenote-py", commit_time(root)))
}

/// Builds the command as maturin builds a wheel, so that it runs on the same machines.
fn packed_command(root: &Path, builder: &Path, python: &Path, flags: &[&str], target: &Path) -> Result<(), String> {
    let folder = root.join("target/wheels/command");
    let flags = [&["--bindings", "bin", "--strip"], flags].concat();
    let wheel = maturin(root, builder, python, "crates/cli", "release", &flags, &folder)?;
    unpack_command(python, &wheel, &folder, target)
}

/// The folder whose content maturin puts beside the interpreter; removed when the wheel is made, so
/// that a later wheel has no old command.
struct Scripts(PathBuf);

impl Scripts {
    fn make(root: &Path) -> Result<Self, String> {
        let scripts = Self(root.join(DATA).join("scripts"));
        scripts.remove()?;
        fs::create_dir_all(&scripts.0).map_err(|error| format!("{}: {error}", scripts.0.display()))?;
        Ok(scripts)
    }

    fn remove(&self) -> Result<(), String> {
        let data = self.0.parent().expect("it lies in the data folder");
        match fs::remove_dir_all(data) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(format!("{}: {error}", data.display())),
            _ => Ok(()),
        }
    }
}

impl Drop for Scripts {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("{error}");
        }
    }
}

/// Takes the command out of the wheel that maturin has made of it.
fn unpack_command(python: &Path, wheel: &Path, folder: &Path, target: &Path) -> Result<(), String> {
    let unpacked = folder.join("unpacked");
    succeed(Command::new(python).args(["-m", "zipfile", "-e"]).arg(wheel).arg(&unpacked), "unpacking the command")?;
    let mut entries = fs::read_dir(&unpacked).map_err(|error| format!("{}: {error}", unpacked.display()))?;
    let found = entries.find_map(|entry| Some(entry.ok()?.path().join("scripts/cenote")).filter(|path| path.is_file()));
    let found = found.ok_or_else(|| format!("{}: there is no scripts/cenote in it", wheel.display()))?;
    let executable = fs::Permissions::from_mode(0o755);
    fs::copy(&found, target)
        .and_then(|_| fs::set_permissions(target, executable))
        .map_err(|error| format!("{}: {error}", target.display()))
}

/// Makes a wheel of a package of the workspace in a folder that is empty or does not exist; returns
/// it.
fn maturin(
    root: &Path,
    builder: &Path,
    python: &Path,
    package: &str,
    profile: &str,
    flags: &[&str],
    wheels: &Path,
) -> Result<PathBuf, String> {
    if wheels.exists() {
        fs::remove_dir_all(wheels).map_err(|error| format!("{}: {error}", wheels.display()))?;
    }
    let mut build = Command::new(builder);
    // maturin searches the path of its interpreter for a linker that is a Python package.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = builder.parent().map(Path::to_owned).into_iter().chain(std::env::split_paths(&path));
    build.env("PATH", std::env::join_paths(folders).map_err(|error| format!("PATH: {error}"))?);
    build.args(["-m", "maturin", "build", "--quiet", "--profile", profile]).args(flags).arg("--manifest-path");
    build.arg(root.join(package).join("Cargo.toml")).arg("--out").arg(wheels);
    // This machine's interpreter says nothing of another processor's; the stable interface needs none.
    if !flags.contains(&"--target") {
        build.arg("--interpreter").arg(python);
    }
    shown(&mut build, &format!("maturin build of {package}"))?;
    let wheel = fs::read_dir(wheels).ok().and_then(|mut all| all.next()).and_then(Result::ok);
    Ok(wheel.ok_or("maturin made no wheel")?.path())
}

/// Runs a command with visible output.
///
/// # Errors
/// It cannot be run, or it failed.
pub fn shown(command: &mut Command, what: &str) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{what} cannot be run: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{what} failed ({status})")) }
}

fn imports(python: &Path, modules: &str) -> bool {
    let import = format!("import {modules}");
    Command::new(python).args(["-c", &import]).output().is_ok_and(|output| output.status.success())
}

fn succeed(command: &mut Command, what: &str) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{what} cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    // Both streams, because venv reports errors on one and pip on the other; the last line says the
    // most.
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it said nothing");
    Err(format!("{what} failed: {last}"))
}
