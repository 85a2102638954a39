//! Packages that are workspaces of their own: Dynamo's router pins a version of tokio, and the training
//! program needs packages that nothing else does.

use crate::ci::cargo;
use std::path::Path;

/// The crate for Dynamo's router.
pub const DYNAMO: &str = "crates/dynamo/Cargo.toml";
/// The program that trains the demo models.
pub const TRAIN: &str = "crates/train/Cargo.toml";

/// Formats, lints and tests one of them in the main workspace's folder, so that packages of equal
/// versions and features are compiled once.
///
/// # Errors
/// Names the check that failed; its own output is above.
pub fn check(root: &Path, manifest: &str) -> Result<(), String> {
    let folder = ("CARGO_TARGET_DIR", root.join("target").display().to_string());
    let variables = if std::env::var_os(folder.0).is_none() { vec![folder] } else { Vec::new() };
    let strict = ["clippy", "--manifest-path", manifest, "--all-targets", "--quiet", "--", "-D", "warnings"];
    cargo(root, &["fmt", "--manifest-path", manifest, "--check"], &[])?;
    cargo(root, &strict, &variables)?;
    cargo(root, &["test", "--manifest-path", manifest], &variables)
}
