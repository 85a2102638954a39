//! Packages that are workspaces of their own: Dynamo's router pins a version of tokio, the training
//! program needs packages that nothing else does, and the fuzz targets need another compiler.

use crate::ci::cargo;
use std::path::Path;

/// The crate for Dynamo's router.
pub const DYNAMO: &str = "crates/dynamo/Cargo.toml";
/// The program that trains the demo models.
pub const TRAIN: &str = "crates/train/Cargo.toml";

/// The fuzz targets.
const FUZZ: &str = "fuzz/Cargo.toml";
/// All workspaces beside the main one.
pub const MANIFESTS: [&str; 3] = [DYNAMO, TRAIN, FUZZ];

/// Checks the format of one of them.
///
/// # Errors
/// A file is not formatted; cargo's own output is above.
pub fn check_format(root: &Path, manifest: &str) -> Result<(), String> {
    cargo(root, &["fmt", "--manifest-path", manifest, "--check"], &[])
}

/// Lints and tests one of them in the main workspace's folder, so that packages of equal
/// versions and features are compiled once.
///
/// # Errors
/// Names the check that failed; its own output is above.
pub fn check(root: &Path, manifest: &str) -> Result<(), String> {
    let folder = ("CARGO_TARGET_DIR", root.join("target").display().to_string());
    let variables = if std::env::var_os(folder.0).is_none() { vec![folder] } else { Vec::new() };
    let strict = ["clippy", "--manifest-path", manifest, "--all-targets", "--quiet", "--", "-D", "warnings"];
    cargo(root, &strict, &variables)?;
    cargo(root, &["test", "--manifest-path", manifest], &variables)
}
