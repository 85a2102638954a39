//! Helpers for tests of all crates, compiled with the feature `testing`.

use std::io::Write;

/// Prints that a test or a part of it is skipped, past the test harness's capture. Under `CI=1` a
/// missing dependency is a failure instead.
///
/// # Panics
/// The environment variable `CI` is set, and neither empty, `0` nor `false`.
pub fn skip(reason: &str) {
    let ci = std::env::var("CI").unwrap_or_default();
    assert!(matches!(ci.as_str(), "" | "0" | "false"), "skipped, which CI={ci} forbids: {reason}");
    let _ = writeln!(std::io::stderr().lock(), "SKIPPED: {reason}");
}
