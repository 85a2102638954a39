//! Programs with time limits.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Pause of a polling loop.
pub const GLANCE: Duration = Duration::from_millis(20);

/// Runs a program to its end and returns its standard output.
///
/// # Errors
/// As [`run`].
pub fn output(command: &mut Command, what: &str, log: &Path, limit: Duration) -> Result<String, String> {
    run(command, what, log, limit)?;
    read_lossy(log)
}

/// Runs a program to its end, with its standard output into the file `to`.
///
/// # Errors
/// It cannot be started, does not end within `limit`, or fails; then the message ends with its last
/// output.
pub fn run(command: &mut Command, what: &str, to: &Path, limit: Duration) -> Result<(), String> {
    let complaints = to.with_extension("err");
    let (out, err) = (create(to)?, create(&complaints)?);
    let status = ended(command.stdin(Stdio::null()).stdout(out).stderr(err), what, limit)?;
    if status.success() {
        return Ok(());
    }
    let said = read_lossy(&complaints)? + "\n" + &read_lossy(to)?;
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it said nothing");
    // apt's errors stand before its warnings.
    let error = said.lines().find(|line| line.starts_with("E: ")).unwrap_or(last);
    Err(format!("{what} failed ({status}): {error}"))
}

/// Runs a program to its end with visible output.
///
/// # Errors
/// It cannot be started, does not end within `limit`, or fails.
pub fn shown(command: &mut Command, what: &str, limit: Duration) -> Result<(), String> {
    let status = ended(command, what, limit)?;
    if status.success() { Ok(()) } else { Err(format!("{what} failed ({status})")) }
}

fn ended(command: &mut Command, what: &str, limit: Duration) -> Result<ExitStatus, String> {
    let mut child = command.spawn().map_err(|error| format!("{what} cannot be run: {error}"))?;
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if start.elapsed() < limit => sleep(GLANCE),
            other => {
                // It may have just ended by itself.
                let _ = child.kill();
                let _ = child.wait();
                return Err(match other {
                    Err(error) => format!("{what} cannot be waited for: {error}"),
                    Ok(_) => format!("{what} did not end within {} s", limit.as_secs()),
                });
            }
        }
    }
}

pub fn create(path: &Path) -> Result<File, String> {
    File::create(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// A text file of another program, without the carriage returns of a serial line.
pub fn read_lossy(path: &Path) -> Result<String, String> {
    Ok(String::from_utf8_lossy(&read(path)?).replace('\r', ""))
}

pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<(), String> {
    fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
}

pub fn make_folder(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Makes an empty folder.
pub fn make_empty(path: &Path) -> Result<(), String> {
    if path.exists() {
        fs::remove_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    make_folder(path)
}

/// Names in a folder, sorted.
pub fn names_in(path: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut names: Vec<String> =
        entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
    names.sort();
    Ok(names)
}
