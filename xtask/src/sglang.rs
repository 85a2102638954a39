//! Tests with SGLang's own classes, on the processor, in an environment of their own.

use crate::{python, vllm};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TESTS: &str = "crates/py/tests/sglang";
const ENVIRONMENT: &str = "target/sglang";

/// Runs the tests with SGLang in the environment for them. `arguments` go to pytest.
///
/// # Errors
/// Names the failed step; its own output is above.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let environment = environment(root)?;
    let binaries = environment.join("bin");
    let mut tests = Command::new(binaries.join("python"));
    tests.args(["-m", "pytest", "-p", "no:cacheprovider"]).args(arguments).current_dir(root.join(TESTS));
    // SGLang compiles its hashes on first use, with the environment's ninja, into the environment.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(binaries).chain(std::env::split_paths(&path));
    tests.env("PATH", std::env::join_paths(folders).map_err(|error| format!("PATH: {error}"))?);
    tests.env("TORCH_EXTENSIONS_DIR", environment.join("extensions"));
    python::shown(&mut tests, "pytest")
}

/// Makes the environment in `target/sglang`, or finds it up to date, and installs the package as
/// its users get it.
fn environment(root: &Path) -> Result<PathBuf, String> {
    let builder = python::prepare(root)?;
    let environment = root.join(ENVIRONMENT);
    let requirements = root.join(TESTS).join("requirements.txt");
    let wanted = fs::read_to_string(&requirements).map_err(|error| format!("{}: {error}", requirements.display()))?;
    // Written last, so that an incomplete environment is made again.
    let stamp = environment.join("requirements-installed.txt");
    if !fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        eprintln!("making an environment with SGLang in {ENVIRONMENT}; that downloads about 3 GB");
        if environment.exists() {
            fs::remove_dir_all(&environment).map_err(|error| format!("{}: {error}", environment.display()))?;
        }
        python::shown(Command::new(&builder).args(["-m", "venv"]).arg(&environment), "python -m venv")?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv"];
        python::shown(Command::new(environment.join("bin/python")).args(pip), "pip install uv")?;
        // All of them are named, because SGLang requires kernels and compilers that only a GPU
        // needs.
        let mut install = vllm::uv(&environment);
        install.arg("--no-deps").arg("--requirement").arg(&requirements);
        python::shown(&mut install, "installing SGLang")?;
        fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))?;
    }
    let wheel = python::build_wheel(root, &builder)?;
    python::shown(vllm::uv(&environment).args(["--reinstall", "--no-deps"]).arg(wheel), "installing the package")?;
    Ok(environment)
}
