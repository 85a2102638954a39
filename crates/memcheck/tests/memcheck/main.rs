//! The command on the pool of this tree.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::Command;

/// A pool without one of its flushes, fences or invalidations gives a wrong byte to some seed.
#[test]
fn the_standing_mutations_are_detected() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_cenote-memcheck"));
    let output = command.args(["--mutate", "--standing"]).current_dir(root).output();
    let output = output.expect("the command starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.lines().filter(|line| line.starts_with("noticed ")).count(), 10, "{text}");
}

/// A remote reader without one of its three checks takes a block that was not published so.
#[test]
#[cfg(debug_assertions)]
fn mistakes_of_a_remote_reader_are_detected() {
    for mistake in ["remote.checksum-skipped", "remote.namespace-skipped", "remote.recheck-skipped"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cenote-memcheck"));
        let output = command.args(["--sabotage", mistake, "--first", "3", "--seeds", "50"]).output();
        let output = output.expect("the command starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(10), "{mistake}: {text}");
        assert!(text.contains("a remote reader took"), "{mistake}: {text}");
    }
}
