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
