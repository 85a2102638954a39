//! Helpers for tests of all crates, compiled with the feature `testing`.

pub mod redis;

use crate::time::{Clock, TimeSource, nanoseconds};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The longest wait of a test for something that must happen. A test that reaches it has failed; no
/// test passes because less time passed.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Time that passes when a test says so.
#[derive(Debug)]
pub struct ManualTime {
    now_ns: AtomicU64,
    /// When 0 of this time was, in nanoseconds since 1970.
    unix_ns: u64,
}

impl ManualTime {
    /// New time, at zero of a day in 2026. It lives as long as the process, as clocks do.
    #[must_use]
    pub fn start() -> &'static Self {
        Box::leak(Box::new(Self { now_ns: AtomicU64::new(0), unix_ns: 1_790_000_000_000_000_000 }))
    }

    /// Its clock.
    #[must_use]
    pub fn clock(&'static self) -> Clock {
        Clock::of(self)
    }

    /// Lets time pass. Threads that wait for this time look at it within a millisecond.
    pub fn advance(&self, by: Duration) {
        self.now_ns.fetch_add(nanoseconds(by), Ordering::SeqCst);
    }
}

impl TimeSource for ManualTime {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::SeqCst)
    }

    fn unix(&self) -> Duration {
        Duration::from_nanos(self.unix_ns + self.now_ns())
    }

    fn block_for(&self, ahead: Duration) -> Duration {
        ahead.min(Duration::from_millis(1))
    }

    fn spin_until(&self, at_ns: u64) {
        self.now_ns.fetch_max(at_ns, Ordering::SeqCst);
    }
}

/// Looks until `found` returns something.
///
/// # Panics
/// It has not within [`PATIENCE`]; the message has `what`.
pub fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = Clock::system().after(PATIENCE);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(!end.passed(), "waited {PATIENCE:?} for: {what}");
        // Between looks the processor belongs to what the test waits for.
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// A real input in the folder `../shared` beside the repository, or in the folder that `CENOTE_SHARED`
/// names. Prints that a test is skipped without it.
///
/// # Panics
/// As [`skip`], if it is not there.
pub fn beside(file: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let path = std::env::var_os("CENOTE_SHARED").map_or_else(beside, PathBuf::from).join(file);
    if path.exists() {
        return Some(path);
    }
    // The key of the test command's results has these files, so it counts a test without them as passed.
    leave_out(&format!(" without {}", path.display()));
    None
}

/// Prints that a test or a part of it is skipped, past the test harness's capture. Under `CI=1` a
/// missing dependency is a failure instead.
///
/// # Panics
/// The environment variable `CI` is set, and neither empty, `0` nor `false`.
pub fn skip(reason: &str) {
    leave_out(&format!(": {reason}"));
}

fn leave_out(reason: &str) {
    let ci = std::env::var("CI").unwrap_or_default();
    assert!(matches!(ci.as_str(), "" | "0" | "false"), "skipped, which CI={ci} forbids{reason}");
    let _ = writeln!(std::io::stderr().lock(), "SKIPPED{reason}");
}
