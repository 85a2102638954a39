//! A crate's sources name no file of the repository that the test command does not count as their
//! input: a test that passed would not run again when that file changes. Sources of a published crate compile
//! no file from outside of its folder, which an index does not get.

use super::{Finding, SourceFile, Tree};
use crate::ci::inputs::{COMMON, Packages};
use std::collections::BTreeSet;

/// Text before a path that is relative to its source file.
const BESIDE_FILE: [&str; 4] = ["include_str!(\"", "include_bytes!(\"", "include!(\"", "path = \""];
/// Text before a path that is relative to the crate's folder.
const BELOW_CRATE: [&str; 2] = ["join(\"../", "CARGO_MANIFEST_DIR\"), \"/../"];
/// Text before a path that is relative to the repository.
const BELOW_ROOT: [&str; 1] = ["repository(\""];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let manifests = tree.files.iter().filter(|file| file.path.ends_with("Cargo.toml"));
    let packages = match Packages::parse(manifests.map(|file| (file.path.as_str(), file.text.as_str()))) {
        Ok(packages) => packages,
        // Cargo reports a manifest that it cannot read.
        Err(_) => return Vec::new(),
    };
    let members: Vec<(&str, &str)> = packages.members().map(|name| (name, packages.folder(name))).collect();
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".rs")) {
        let below = |folder: &str| file.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
        let Some((name, folder)) = members.iter().find(|(_, folder)| below(folder)) else { continue };
        let inputs = packages.inputs(name);
        let lies_in_sources = file.path[folder.len()..].starts_with("/src/");
        for (at, path) in if lies_in_sources && packages.is_published(name) { compiled(file) } else { Vec::new() } {
            let lies_within = path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
            if tree.exists(&path) && !lies_within {
                let advice = format!(
                    "`{path}` is no part of the published crate `{name}`; put a symbolic link to it into its folder"
                );
                findings.push(file.finding_at(at, advice));
            }
        }
        for (at, path) in named(file, folder) {
            if tree.exists(&path) && !path.is_empty() && !covers(&inputs, &path) {
                let advice = format!(
                    "`{path}` is no input of `{name}`, so its tests would not run when that changes; name it in [package.metadata.cenote] inputs"
                );
                findings.push(file.finding_at(at, advice));
            }
        }
    }
    findings
}

/// Whether a path is one of the inputs, or lies below one.
fn covers(inputs: &BTreeSet<String>, path: &str) -> bool {
    let below = |input: &str| path == input || path.strip_prefix(input).is_some_and(|rest| rest.starts_with('/'));
    inputs.iter().any(|input| below(input)) || COMMON.iter().any(|input| below(input))
}

/// The paths that a source file names, from the root.
fn named(file: &SourceFile, folder: &str) -> Vec<(usize, String)> {
    let mut found = compiled(file);
    found.extend(paths(file, &BELOW_CRATE, folder));
    found.extend(paths(file, &BELOW_ROOT, ""));
    found
}

/// Those that are compiled with it.
fn compiled(file: &SourceFile) -> Vec<(usize, String)> {
    paths(file, &BESIDE_FILE, file.path.rsplit_once('/').map_or("", |(here, _)| here))
}

/// Paths after one of these texts, relative to a folder.
fn paths(file: &SourceFile, heads: &[&str], base: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for head in heads {
        for (at, _) in file.text.match_indices(head) {
            let start = at + head.rfind('"').map_or(0, |quote| quote + 1);
            let rest = &file.text[start..];
            let text = &rest[..rest.find('"').unwrap_or(0)];
            found.extend(resolve(base, text.trim_start_matches('/')).map(|path| (at, path)));
        }
    }
    found
}

/// A path from the root; `None`: it leaves the repository.
fn resolve(base: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = base.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, more: &str) -> Vec<usize> {
        let manifest = format!("[package]\nname = \"cenote-x\"\n[package.metadata.cenote]\nfloor = 0\n{more}");
        let tree = Tree::of(&[
            ("crates/x/Cargo.toml", &manifest),
            ("crates/x/src/lib.rs", text),
            ("crates/x/own.txt", ""),
            ("crates/y/other.txt", ""),
            ("bench/page.txt", ""),
            ("models/m.bin", ""),
        ]);
        check(&tree).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_published_crate_compiles_its_own_files_only() {
        let found = |text: &str, publish: &str| {
            let manifest = format!("[package]\nname = \"cenote-x\"\npublish = {publish}\n");
            let files = [("crates/x/Cargo.toml", &*manifest), ("crates/x/src/lib.rs", text), ("models/m.bin", "")];
            check(&Tree::of(&files)).len()
        };
        assert_eq!(found("include_bytes!(\"../../../models/m.bin\")", "true"), 1);
        assert_eq!(found("include_bytes!(\"../../../models/m.bin\")", "false"), 0);
        assert_eq!(found("include_bytes!(\"../models/m.bin\")", "true"), 0);
    }

    #[test]
    fn a_file_of_another_crate_is_an_input_by_name_only() {
        for text in [
            "include_str!(\"../../y/other.txt\")",
            "#[path = \"../../y/other.txt\"]\nmod other;",
            "repository(\"bench/page.txt\")",
            "Path::new(env!(\"CARGO_MANIFEST_DIR\")).join(\"../../bench/page.txt\")",
            "concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/../../bench/page.txt\")",
        ] {
            assert_eq!(lines(text, ""), [1], "{text}");
            assert!(lines(text, "inputs = [\"bench/page.txt\", \"crates/y\"]").is_empty(), "{text}");
        }
        for text in [
            "include_str!(\"../own.txt\")",
            "repository(\"models/m.bin\")",
            "concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/../../../shared\")",
            "repository(\"bench/missing.txt\")",
        ] {
            assert!(lines(text, "").is_empty(), "{text}");
        }
    }
}
