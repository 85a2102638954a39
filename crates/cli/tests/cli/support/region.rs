//! Regions that are removed with their test.

use super::process::{Outcome, cenote, cenote_program};
use super::{say, until};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A region in shared memory.
pub struct Region {
    pub name: String,
}

impl Region {
    /// An unused name.
    pub fn name_only() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        Self { name: format!("shm:cenote-test-cli-{}-{number}", std::process::id()) }
    }

    /// A region of this size, with an empty pool.
    pub async fn create(size: &str) -> Self {
        let region = Self::name_only();
        cenote(["pool", "create", "--region", &region.name, "--size", size]).ok().await;
        region
    }

    /// The path of its bytes.
    pub fn path(&self) -> PathBuf {
        Path::new("/dev/shm").join(self.name.strip_prefix("shm:").expect("it is in shared memory"))
    }

    /// All files in shared memory with a name that starts with this region's.
    pub fn files(&self) -> Vec<PathBuf> {
        let entries =
            std::fs::read_dir("/dev/shm").expect("shared memory").map(|entry| entry.expect("an entry").path());
        let own = self.path().into_os_string().into_string().expect("the name is ASCII");
        entries.filter(|path| path.to_string_lossy().starts_with(&own)).collect()
    }

    /// `cenote pool WHAT --json` on it.
    pub async fn run(&self, what: &str) -> Outcome {
        cenote(["pool", what, "--region", &self.name, "--json"]).run().await
    }

    pub async fn info(&self) -> Value {
        let outcome = self.run("info").await;
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        outcome.json()
    }

    /// Checks it, every payload included. Returns the report.
    pub async fn expect_clean(&self) -> Value {
        self.expect(|_| true).await
    }

    /// Checks it when no process uses it any more: then nothing is reserved or pinned either.
    pub async fn expect_clean_and_idle(&self) -> Value {
        self.expect(|report| report["reserved"] == 0 && report["pinned"] == 0).await
    }

    /// Checks it until it has neither leaks nor damage and is as it should be. A process that is slow
    /// in the middle of a change looks like a leak, but a leak stays.
    async fn expect(&self, is_good: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        until("a region without leaks and damage", async || {
            let outcome = self.run("check").await;
            let report = outcome.json();
            let none = Value::Array(Vec::new());
            if report["leaks"] == none && report["damage"] == none && is_good(&report) {
                assert_eq!(outcome.code, Some(0), "{outcome:?}");
                return Some(report);
            }
            if report != last {
                say(&report.to_string());
                last = report;
            }
            None
        })
        .await
    }

    /// Process ids of the live workers with this name.
    pub async fn workers(&self, name: &str) -> Vec<u32> {
        let info = self.info().await;
        let workers = info["workers"].as_array().expect("an array").iter();
        let named = workers.filter(|worker| worker["name"] == name && worker["alive"] == true);
        named.map(|worker| worker["pid"].as_u64().expect("a number") as u32).collect()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        remove(&self.name);
        self.files().iter().for_each(|file| drop(std::fs::remove_file(file)));
    }
}

/// Removes a region and the host's memory for it, if it exists.
pub fn remove(name: &str) {
    let _ = Command::new(cenote_program())
        .args(["pool", "destroy", "--force", "--region", name])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}
