//! Where the keys of sealed regions come from: a file that only its users can read, or a command,
//! such as the client of a key store.

use crate::files;
use cenote_base::seal::SealKeys;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use zeroize::Zeroizing;

/// Longest text of keys.
const BYTES_MAX: u64 = 64 << 10;
/// Longest wait for a command.
const COMMAND_MAX: Duration = Duration::from_secs(30);

/// A source of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file with one key a line.
    File(PathBuf),
    /// A command for `sh -c`, which prints what such a file has.
    Command(String),
}

impl KeySource {
    /// The source that `CENOTE_SEAL_KEY_FILE` or `CENOTE_SEAL_KEY_COMMAND` names.
    #[must_use]
    pub fn of_environment() -> Option<Self> {
        let given = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let file = given("CENOTE_SEAL_KEY_FILE").map(|path| Self::File(path.into()));
        file.or_else(|| given("CENOTE_SEAL_KEY_COMMAND").map(|text| Self::Command(text.to_string_lossy().into_owned())))
    }

    /// Reads the keys.
    ///
    /// # Errors
    /// The source cannot be read, other users can read or write the file, the command fails or takes
    /// longer than 30 seconds, or the text is no list of keys. No error shows a part of a key.
    pub fn read(&self) -> io::Result<SealKeys> {
        let (name, text) = match self {
            Self::File(path) => (path.display().to_string(), from_file(path, BYTES_MAX)?),
            Self::Command(command) => (format!("the key command `{command}`"), from_command(command)?),
        };
        SealKeys::parse(&text).map_err(|error| io::Error::other(format!("{name}: {error}")))
    }
}

/// The text of a file with a secret.
///
/// # Errors
/// It cannot be read, has more than `bytes_max` bytes, or other users can read or write it.
pub fn secret_text(path: &Path, bytes_max: u64) -> io::Result<Zeroizing<String>> {
    from_file(path, bytes_max)
}

/// The name may be a link, as mounted secrets are.
fn from_file(path: &Path, bytes_max: u64) -> io::Result<Zeroizing<String>> {
    let named = |fact: &dyn std::fmt::Display| io::Error::other(format!("{}: {fact}", path.display()));
    let file = files::open_input(path)?;
    files::check_own(&file, path)?;
    if file.metadata()?.mode() & 0o007 != 0 {
        return Err(named(&"every user can read this file; take that right away, as in `chmod o= FILE`"));
    }
    read(file, bytes_max).map_err(|error| named(&error))
}

fn from_command(command: &str) -> io::Result<Zeroizing<String>> {
    let named = |fact: &dyn std::fmt::Display| io::Error::other(format!("the key command `{command}`: {fact}"));
    let (text, status) = run(command, COMMAND_MAX).map_err(|error| named(&error))?;
    if status.success() { Ok(text) } else { Err(named(&status)) }
}

/// Runs a command to its end, or ends it and all that it started.
fn run(command: &str, most: Duration) -> io::Result<(Zeroizing<String>, ExitStatus)> {
    let mut shell = Command::new("sh");
    let started = shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn();
    let mut child = started?;
    let group = rustix::process::Pid::from_child(&child);
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let text = read(child.stdout.take().expect("it is a pipe"), BYTES_MAX);
        let ended = child.wait();
        sender.send(text.and_then(|text| Ok((text, ended?))))
    });
    receiver.recv_timeout(most).unwrap_or_else(|_| {
        // The thread collects it.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        Err(io::Error::other(format!("it has not ended within {} seconds", most.as_secs())))
    })
}

fn read(from: impl Read, bytes_max: u64) -> io::Result<Zeroizing<String>> {
    let mut text = Zeroizing::new(String::new());
    from.take(bytes_max + 1).read_to_string(&mut text)?;
    if text.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("more than {bytes_max} bytes are no list of keys")));
    }
    Ok(text)
}

/// Whether this processor has instructions for AES. Without them a seal takes many times as long as
/// the copy.
#[must_use]
pub fn processor_has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[allow(unreachable_code, reason = "other architectures")]
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    #[test]
    fn a_key_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        std::fs::write(&path, KEY).expect("it is written");
        let source = KeySource::File(path.clone());
        for (mode, is_good) in [(0o600, true), (0o440, true), (0o604, false), (0o660, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
            let read = source.read();
            assert_eq!(read.is_ok(), is_good, "mode {mode:o}: {read:?}");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
        std::fs::write(&path, &KEY[1..]).expect("it is written");
        let error = source.read().expect_err("63 digits").to_string();
        assert!(error.contains("line 1") && !error.contains(&KEY[4..20]), "{error}");
    }

    #[test]
    fn a_key_command_prints_keys_or_says_what_failed() {
        let read = |command: String| KeySource::Command(command).read();
        assert!(read(format!("echo {KEY}")).is_ok());
        for (command, fact) in [("exit 3", "exit status: 3"), ("echo no", "line 1"), ("true", "no key")] {
            let error = read(command.to_owned()).expect_err(command).to_string();
            assert!(error.contains(fact) && error.contains(command), "{error}");
        }
        // It closes its output and goes on.
        let endless = run("exec >&-; tail -f /dev/null", Duration::from_millis(1));
        assert!(endless.expect_err("it does not end").to_string().contains("has not ended"));
        let error = read("head -c 100000 /dev/zero".to_owned()).expect_err("too long").to_string();
        assert!(error.contains("more than"), "{error}");
    }
}
