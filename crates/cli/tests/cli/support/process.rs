//! `cenote` and `cenote-lab` as child processes, one that ends by itself or one that serves.

use super::client::Client;
use super::{ends, repository, soon};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// A command that is not running yet. Its environment has only those `CENOTE_` variables that a
/// test sets.
pub struct Cenote(Command);

/// `cenote` with these arguments and the demo model.
pub fn cenote<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Cenote {
    bare(arguments).env("CENOTE_MODEL", repository("models/demo"))
}

/// `cenote` without a model.
pub fn bare<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Cenote {
    start(cenote_program(), arguments)
}

/// The path of `cenote`.
pub fn cenote_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| program("cenote", option_env!("CARGO_BIN_EXE_cenote")))
}

/// `cenote-lab` with these arguments and the demo model.
pub fn lab<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Cenote {
    bare_lab(arguments).env("CENOTE_MODEL", repository("models/demo"))
}

/// `cenote-lab` without a model.
pub fn bare_lab<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Cenote {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    start(PROGRAM.get_or_init(|| program("cenote-lab", option_env!("CARGO_BIN_EXE_cenote-lab"))), arguments)
}

/// The path of a binary: of this package, as Cargo built it, or of the other package, built now.
///
/// The other one is built as `cargo test --workspace` builds it, with the same features of all
/// dependencies, so that after such a run nothing is left to build. `cargo xtask ci` has built both
/// before the tests, and says so by a variable.
fn program(name: &str, of_this_package: Option<&str>) -> PathBuf {
    if let Some(path) = of_this_package {
        return PathBuf::from(path);
    }
    // target/PROFILE/deps/TEST
    let test = std::env::current_exe().expect("the test's path");
    let folder = test.ancestors().nth(2).expect("the folder of the profile");
    if std::env::var_os("CENOTE_TEST_BUILT").is_some() {
        return folder.join(name);
    }
    let profile = folder.file_name().and_then(|name| name.to_str()).expect("a profile");
    let profile = if profile == "debug" { "dev" } else { profile };
    let built = std::process::Command::new(env!("CARGO"))
        .args(["test", "--no-run", "--quiet", "--workspace", "--manifest-path"])
        .arg(repository("Cargo.toml"))
        .args(["--test", if name == "cenote" { "cli" } else { "lab" }, "--profile", profile])
        .arg("--target-dir")
        .arg(folder.parent().expect("the target folder"))
        .status();
    assert!(built.is_ok_and(|status| status.success()), "cargo cannot build {name}");
    folder.join(name)
}

fn start<'a>(program: &Path, arguments: impl IntoIterator<Item = &'a str>) -> Cenote {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CENOTE_") || name == "COLUMNS" {
            command.env_remove(name);
        }
    }
    Cenote(command)
}

impl Cenote {
    pub fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    pub fn current_dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.0.current_dir(dir);
        self
    }

    /// Starts it by another command, of which these are the first words.
    pub fn behind(self, prefix: &[String]) -> Self {
        let inner = self.0.as_std();
        let mut command = Command::new(&prefix[0]);
        command.args(&prefix[1..]).arg(inner.get_program()).args(inner.get_args());
        command.stdin(Stdio::null()).kill_on_drop(true);
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Self(command)
    }

    /// Starts it and discards its output.
    pub fn spawn(mut self) -> Child {
        self.0.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts")
    }

    /// Runs it to its end at this terminal; `words` gets its stderr.
    pub async fn run_at(mut self, terminal: File, words: Stdio) {
        let shown = format!("{:?}", self.0.as_std().get_args().collect::<Vec<_>>());
        self.0.stdout(terminal).stderr(words);
        let mut child = self.0.spawn().expect("the program starts");
        // The command holds the terminal, too, and its reader waits until all holders have ended.
        drop(self);
        ends(&shown, child.wait()).await.expect("it is our child");
    }

    /// Runs it to its end.
    pub async fn run(mut self) -> Outcome {
        let shown = format!("{:?}", self.0.as_std().get_args().collect::<Vec<_>>());
        let output = ends(&shown, self.0.output()).await.expect("the program starts");
        let text = |bytes| String::from_utf8(bytes).expect("the program writes UTF-8");
        let outcome = Outcome { shown, code: output.status.code(), out: text(output.stdout), err: text(output.stderr) };
        assert!(!outcome.err.contains("panicked"), "{outcome:?}");
        outcome
    }

    /// Runs it to its end, which must be a success.
    pub async fn ok(self) -> Outcome {
        let outcome = self.run().await;
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        outcome
    }

    /// Runs it to its end, which must be a failure that prints all of `facts`.
    pub async fn fails(self, facts: &[&str]) -> Outcome {
        let outcome = self.run().await;
        assert!(outcome.code.is_some_and(|code| code != 0), "{outcome:?}");
        assert!(outcome.err.contains("error: "), "{outcome:?}");
        facts.iter().for_each(|fact| assert!(outcome.err.contains(fact), "`{fact}` is not said: {outcome:?}"));
        outcome
    }
}

/// The output of a command.
#[derive(Debug)]
#[allow(dead_code, reason = "all of it is for assertion messages too")]
pub struct Outcome {
    pub shown: String,
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Outcome {
    /// Its stdout, which must be JSON and nothing else.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A running `cenote serve`, killed with its test.
pub struct Server {
    child: Child,
    pub pid: u32,
    pub client: Client,
    pub url: String,
    /// Its stderr.
    words: File,
}

impl Server {
    /// Starts a server with these flags, and waits until it prints its address. Each process gets
    /// one core, because tests and servers run in parallel on few cores.
    pub async fn start(flags: &[&str]) -> Self {
        Self::start_with(flags, &[]).await
    }

    /// As [`Self::start`], with these variables.
    pub async fn start_with(flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let command = cenote(["serve", "--port", "0", "--threads", "1"].iter().chain(flags).copied());
        Self::of(command, variables).await
    }

    /// Starts a command that prints its address, and serves until it gets a signal.
    pub async fn of(command: Cenote, variables: &[(&str, &str)]) -> Self {
        let words = tempfile::tempfile().expect("a file for the server's words");
        let Cenote(mut command) = variables.iter().fold(command, |command, (name, value)| command.env(name, value));
        command.stdout(Stdio::piped()).stderr(words.try_clone().expect("a descriptor"));
        let mut child = command.spawn().expect("the server starts");
        let pid = child.id().expect("it was just started");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let first = soon("the server's address", lines.next_line()).await.expect("its stdout is readable");
        let mut server = Self { child, pid, client: Client::new(""), url: String::new(), words };
        let Some(url) = first else { panic!("it ended without an address: {}", server.words()) };
        server.client = Client::new(&url);
        server.url = url;
        server
    }

    /// Its stderr so far.
    pub fn words(&self) -> String {
        let mut text = vec![0; self.words.metadata().map_or(0, |status| status.len() as usize)];
        let length = self.words.read_at(&mut text, 0).unwrap_or(0);
        String::from_utf8_lossy(&text[..length]).into_owned()
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        signal(self.pid, Signal::TERM);
    }

    /// Waits for its end, which must be a success.
    pub async fn ended(mut self) {
        let status = soon("the server's end", self.child.wait()).await.expect("it is our child");
        assert!(status.success(), "{status}: {}", self.words());
    }

    /// Kills it and waits for its end. Its own region stays.
    pub async fn kill(mut self) {
        soon("the server's end", self.child.kill()).await.expect("it is our child");
    }

    /// Ends it and waits for that.
    pub async fn stop(self) {
        self.terminate();
        self.ended().await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let words = self.words();
        if std::thread::panicking() {
            super::say(&format!("the server {} said:\n{words}", self.url));
        } else {
            assert!(!words.contains("panicked"), "{words}");
        }
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.start_kill();
            // A killed server cannot remove its own region.
            super::region::remove(&own_region("serve", self.pid));
        }
    }
}

/// The region that a command creates for itself.
pub fn own_region(purpose: &str, pid: u32) -> String {
    let namespace = std::fs::metadata("/proc/self/ns/pid").expect("this machine has /proc").ino();
    format!("shm:cenote-{purpose}-{pid}-{namespace}")
}

/// Sends a signal to a process that is known to live.
pub fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, signal).expect("the process is there");
}
