//! The crates that a program links, from `cargo metadata`.

use crate::process::read_lossy;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A crate.
pub struct Crate {
    pub name: String,
    pub version: String,
    /// An SPDX expression. Every crate has one: `cargo deny` checks it.
    pub license: String,
    pub repository: Option<String>,
    pub authors: Vec<String>,
    /// Of its archive; none: it belongs to this workspace.
    pub checksum: Option<String>,
    pub folder: PathBuf,
    /// Names and versions of what it links.
    pub uses: BTreeSet<(String, String)>,
}

impl Crate {
    pub fn is_ours(&self) -> bool {
        self.checksum.is_none()
    }
}

/// The crates that these packages of the workspace link, they themselves included, by name and version.
/// Crates that only tests or build scripts use are no part of a program.
///
/// # Errors
/// Cargo failed, or its words are not understood.
pub fn linked(root: &Path, packages: &[&str]) -> Result<Vec<Crate>, String> {
    let host = crate::ci::inputs::version("rustc", &["-vV"]);
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc tells no host")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", host]).current_dir(root);
    let said = command.output().map_err(|error| format!("cargo metadata: {error}"))?;
    if !said.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&said.stderr).trim()));
    }
    let metadata: Value = serde_json::from_slice(&said.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    closure(&metadata, packages, &checksums(&read_lossy(&root.join("Cargo.lock"))?))
}

fn closure(
    metadata: &Value,
    packages: &[&str],
    checksums: &BTreeMap<(String, String), String>,
) -> Result<Vec<Crate>, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let by_id: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|package| (text(&package["id"]), package)).collect();
    let nodes: BTreeMap<String, Value> =
        list(&metadata["resolve"]["nodes"]).into_iter().map(|node| (text(&node["id"]), node)).collect();
    let key = |id: &str| by_id.get(id).map(|package| (text(&package["name"]), text(&package["version"])));

    let is_wanted = |package: &Value| packages.contains(&package["name"].as_str().unwrap_or_default());
    let mut open: Vec<String> =
        by_id.iter().filter(|(_, package)| is_wanted(package)).map(|(id, _)| id.clone()).collect();
    if open.len() != packages.len() {
        return Err(format!("cargo metadata: {} of {} packages are in it", open.len(), packages.len()));
    }
    let mut found = BTreeMap::new();
    while let Some(id) = open.pop() {
        let (Some(package), Some(name)) = (by_id.get(&id), key(&id)) else { continue };
        if found.contains_key(&name) {
            continue;
        }
        let is_linked = |dependency: &Value| list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
        let uses: Vec<String> = nodes.get(&id).map_or_else(Vec::new, |node| {
            list(&node["deps"]).iter().filter(|one| is_linked(one)).map(|one| text(&one["pkg"])).collect()
        });
        let folder = PathBuf::from(text(&package["manifest_path"])).parent().map(Path::to_owned).unwrap_or_default();
        let made = Crate {
            license: text(&package["license"]),
            repository: package["repository"].as_str().map(str::to_owned),
            authors: list(&package["authors"]).iter().map(text).collect(),
            checksum: checksums.get(&name).cloned(),
            folder,
            uses: uses.iter().filter_map(|id| key(id)).collect(),
            name: name.0.clone(),
            version: name.1.clone(),
        };
        found.insert(name, made);
        open.extend(uses);
    }
    Ok(found.into_values().collect())
}

/// Checksums of archives by name and version, from the lock file.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let table: toml::Table = lock.parse().unwrap_or_default();
    let packages = table.get("package").and_then(toml::Value::as_array).into_iter().flatten();
    let text = |package: &toml::Value, key: &str| package.get(key).and_then(toml::Value::as_str).map(str::to_owned);
    packages
        .filter_map(|package| Some(((text(package, "name")?, text(package, "version")?), text(package, "checksum")?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_only_builds_and_tests_use_is_not_linked() {
        let package = |name: &str| json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT", "manifest_path": "/x/Cargo.toml"});
        let uses = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package("a"), package("b"), package("c"), package("d"), package("e")],
            "resolve": {"nodes": [
                {"id": "a", "deps": [uses("b", Value::Null), uses("c", json!("dev")), uses("d", json!("build"))]},
                {"id": "b", "deps": [uses("e", Value::Null)]},
            ]},
        });
        let lock = "[[package]]\nname = \"e\"\nversion = \"1.0.0\"\nchecksum = \"00ff\"";
        let crates = closure(&metadata, &["a"], &checksums(lock)).expect("it is whole");
        let names: Vec<&str> = crates.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "e"]);
        assert!(crates[0].is_ours() && !crates[2].is_ours());
        assert!(crates[0].uses.contains(&("b".to_owned(), "1.0.0".to_owned())));
        assert!(closure(&metadata, &["gone"], &checksums(lock)).is_err());
    }
}
