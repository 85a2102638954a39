//! A Python environment in `target/venv` with exactly the packages of `xtask/python-requirements.txt`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const REQUIREMENTS: &str = "xtask/python-requirements.txt";

/// Makes the environment, or finds it as it should be. Returns its interpreter as an absolute path.
///
/// # Errors
/// Python or its `venv` is missing, or the package index cannot be reached; the message says which.
pub fn prepare(root: &Path) -> Result<PathBuf, String> {
    let environment = root.join("target/venv");
    let python = environment.join("bin/python");
    // Written last, so that an environment half made is made anew.
    let stamp = environment.join("requirements-installed.txt");
    let requirements = root.join(REQUIREMENTS);
    let wanted = fs::read_to_string(&requirements).map_err(|error| format!("{REQUIREMENTS}: {error}"))?;
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) && imports(&python) {
        return Ok(python);
    }
    if environment.exists() {
        fs::remove_dir_all(&environment).map_err(|error| format!("{}: {error}", environment.display()))?;
    }
    eprintln!("making a Python environment in target/venv");
    succeed(Command::new("python3").args(["-m", "venv"]).arg(&environment), "python3 -m venv")?;
    let install =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "15"];
    succeed(
        Command::new(&python).args(install).arg("--requirement").arg(&requirements),
        "pip install (is the package index reachable?)",
    )?;
    if !imports(&python) {
        return Err("the packages were installed but `import openai` fails".to_owned());
    }
    fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(python)
}

fn imports(python: &Path) -> bool {
    Command::new(python).args(["-c", "import openai"]).output().is_ok_and(|output| output.status.success())
}

fn succeed(command: &mut Command, what: &str) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{what} cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    // Both streams, because venv complains on one and pip on the other; the last line says the most.
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it said nothing");
    Err(format!("{what} failed: {last}"))
}
