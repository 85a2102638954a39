//! What the result of a step depends on: files of the tree, tools, and the machine's instructions.
//!
//! A package's inputs are the folders of its own crate and of all crates that it is built from, the
//! files that every build or test may read ([`COMMON`]), and what its manifest names in
//! `[package.metadata.cenote] inputs`. `cargo xtask tidy` refuses a test that reads other files.

use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Files and folders that count for every package.
pub const COMMON: [&str; 14] = [
    ".cargo",
    ".config",
    "Cargo.lock",
    "Cargo.toml",
    "clippy.toml",
    "fuzz/src",
    "models",
    "rtl/cycles.json",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "xtask/python-requirements.txt",
    "xtask/src/apart.rs",
    "xtask/src/ci",
    "xtask/src/ci.rs",
];
/// Real inputs beside the repository; tests skip without them.
const BESIDE: &str = "../shared/data";

/// A package of the repository.
struct Package {
    /// Folder below the root.
    folder: String,
    /// Names of the packages of this repository that it depends on, for its tests too.
    uses: BTreeSet<String>,
    /// Further files and folders.
    inputs: Vec<String>,
    /// Whether it belongs to the main workspace.
    is_member: bool,
    /// Whether a library of it is for other programs than those in Rust.
    is_foreign: bool,
    /// Whether an index of crates gets it.
    is_published: bool,
}

/// All packages by name.
pub struct Packages(BTreeMap<String, Package>);

impl Packages {
    /// Reads the manifests.
    ///
    /// # Errors
    /// A manifest cannot be read or parsed; the message names it.
    pub fn read(root: &Path) -> Result<Self, String> {
        let folders = fs::read_dir(root.join("crates")).map_err(|error| format!("crates: {error}"))?;
        let folders = folders.flatten().map(|entry| format!("crates/{}", entry.file_name().to_string_lossy()));
        let mut manifests = Vec::new();
        for path in folders.chain(["xtask".to_owned()]).map(|folder| format!("{folder}/Cargo.toml")) {
            if root.join(&path).is_file() {
                let text = fs::read_to_string(root.join(&path)).map_err(|error| format!("{path}: {error}"))?;
                manifests.push((path, text));
            }
        }
        Self::parse(manifests.iter().map(|(path, text)| (path.as_str(), text.as_str())))
    }

    /// Reads manifests, by path and text. Those without a package are left out.
    ///
    /// # Errors
    /// A manifest cannot be parsed; the message names it.
    pub fn parse<'a>(manifests: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Self, String> {
        let mut packages = BTreeMap::new();
        for (path, text) in manifests {
            let table: toml::Table = text.parse().map_err(|error| format!("{path}: {error}"))?;
            let Some(package) = table.get("package") else { continue };
            let name = package.get("name").and_then(toml::Value::as_str);
            let name = name.ok_or_else(|| format!("{path}: a package without a name"))?.to_owned();
            let inputs = package.get("metadata").and_then(|metadata| metadata.get("cenote")?.get("inputs")?.as_array());
            let inputs = inputs.into_iter().flatten().filter_map(|input| input.as_str().map(str::to_owned)).collect();
            let sections = ["dependencies", "dev-dependencies", "build-dependencies"];
            let named =
                sections.iter().filter_map(|section| table.get(*section)?.as_table()).flat_map(toml::Table::keys);
            let uses = named.filter(|key| key.starts_with("cenote-")).cloned().collect();
            let folder = path.strip_suffix("/Cargo.toml").unwrap_or_default().to_owned();
            let is_member = !table.contains_key("workspace");
            let is_foreign = table.get("lib").is_some_and(|lib| lib.get("crate-type").is_some());
            let is_published = package.get("publish").and_then(toml::Value::as_bool).unwrap_or(false);
            packages.insert(name, Package { folder, uses, inputs, is_member, is_foreign, is_published });
        }
        Ok(Self(packages))
    }

    /// Names of the members whose documentation may have examples in Rust. Cargo refuses to look for some
    /// in programs.
    pub fn libraries(&self, root: &Path) -> impl Iterator<Item = &str> {
        let is_library = move |package: &Package| {
            package.is_member && !package.is_foreign && root.join(&package.folder).join("src/lib.rs").is_file()
        };
        self.0.iter().filter(move |(_, package)| is_library(package)).map(|(name, _)| name.as_str())
    }

    /// A package's folder below the root; empty for an unknown one.
    pub fn folder(&self, name: &str) -> &str {
        self.0.get(name).map_or("", |package| &package.folder)
    }

    /// Whether an index of crates gets a package.
    pub fn is_published(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|package| package.is_published)
    }

    /// Names of the members of the main workspace.
    pub fn members(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, package)| package.is_member).map(|(name, _)| name.as_str())
    }

    /// Files and folders that a package's checks read: its own, and those of all that it is built from.
    pub fn inputs(&self, name: &str) -> BTreeSet<String> {
        let (mut open, mut seen, mut inputs) = (vec![name], BTreeSet::new(), BTreeSet::new());
        while let Some(name) = open.pop() {
            let Some(package) = self.0.get(name).filter(|_| seen.insert(name)) else { continue };
            inputs.insert(package.folder.clone());
            inputs.extend(package.inputs.iter().cloned());
            open.extend(package.uses.iter().map(String::as_str));
        }
        inputs.extend(COMMON.map(str::to_owned));
        inputs
    }
}

/// Hashes of the tree's files, each read once.
pub struct Tree {
    /// Path below the root, and hash of the content.
    files: BTreeMap<String, [u8; 32]>,
    machine: String,
}

impl Tree {
    /// Reads all files that Git tracks or does not ignore, and the real inputs beside the repository.
    ///
    /// # Errors
    /// Git is missing or the folder is no repository: then no step can be skipped.
    pub fn read(root: &Path) -> Result<Self, String> {
        let list = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .map_err(|error| format!("git cannot be run: {error}"))?;
        if !list.status.success() {
            return Err("this folder is no Git repository".to_owned());
        }
        let list = String::from_utf8(list.stdout).map_err(|_| "a path is not UTF-8".to_owned())?;
        let mut files = BTreeMap::new();
        let mut add = |name: String, path: &Path| {
            // A deleted file counts as missing.
            if let Ok(content) = fs::read(path) {
                files.insert(name, Sha256::digest(content).into());
            }
        };
        for name in list.split('\0').filter(|name| !name.is_empty()) {
            add(name.to_owned(), &root.join(name));
        }
        for entry in fs::read_dir(root.join(BESIDE)).into_iter().flatten().flatten() {
            add(format!("{BESIDE}/{}", entry.file_name().to_string_lossy()), &entry.path());
        }
        Ok(Self { files, machine: machine() })
    }

    /// Paths of all pages in Markdown.
    pub fn pages(&self) -> BTreeSet<String> {
        self.files.keys().filter(|path| path.ends_with(".md")).cloned().collect()
    }

    /// A key of a step: its name, its inputs, the versions of its tools, and this machine. Equal keys
    /// have equal results.
    pub fn key(&self, step: &str, inputs: &BTreeSet<String>, tools: &[String]) -> String {
        let mut hash = Sha256::new();
        for text in [step, &self.machine].into_iter().chain(tools.iter().map(String::as_str)) {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        let beside = format!("{BESIDE}/");
        let is_input = |name: &str| {
            let below = |input: &String| {
                name == input || name.strip_prefix(input.as_str()).is_some_and(|rest| rest.starts_with('/'))
            };
            name.starts_with(&beside) || inputs.iter().any(below)
        };
        for (name, content) in self.files.iter().filter(|(name, _)| is_input(name)) {
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name);
            hash.update(content);
        }
        hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// What a program prints of its version; empty without it.
pub fn version(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success());
    output.map_or_else(String::new, |output| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The compilers, the processor's instructions (kernels are chosen by them), and the variables that
/// change what tests do.
fn machine() -> String {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = processor.lines().find(|line| line.starts_with("flags")).unwrap_or_default().to_owned();
    let mut facts = vec![version("rustc", &["-vV"]), version("cc", &["--version"]), version("python3", &["-V"]), flags];
    let counts = |name: &str| {
        name == "CI" || name.starts_with("CENOTE_") || name.starts_with("RUST") || name.starts_with("PROPTEST_")
    };
    let mut variables: Vec<String> =
        std::env::vars().filter(|(name, _)| counts(name)).map(|(name, value)| format!("{name}={value}")).collect();
    variables.sort();
    facts.extend(variables);
    facts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, u8)]) -> Tree {
        let files = files.iter().map(|(name, content)| ((*name).to_owned(), [*content; 32])).collect();
        Tree { files, machine: String::new() }
    }

    #[test]
    fn a_key_changes_with_its_inputs_and_with_nothing_else() {
        let inputs: BTreeSet<String> = ["a".to_owned(), "b/c.rs".to_owned()].into();
        let key = |files: &[(&str, u8)]| tree(files).key("step", &inputs, &[]);
        let first = key(&[("a/x", 1), ("b/c.rs", 2), ("ab/x", 3)]);
        assert_eq!(first, key(&[("a/x", 1), ("b/c.rs", 2), ("ab/x", 4), ("b/d.rs", 5)]));
        assert_ne!(first, key(&[("a/x", 2), ("b/c.rs", 2)]), "content");
        assert_ne!(first, key(&[("a/y", 1), ("b/c.rs", 2)]), "name");
        assert_ne!(first, key(&[("a/x", 1), ("a/y", 1), ("b/c.rs", 2)]), "a new file");
        assert_ne!(first, key(&[("a/x", 1), ("b/c.rs", 2), ("../shared/data/t", 1)]), "real inputs");
        let whole = tree(&[("a/x", 1), ("b/c.rs", 2)]);
        assert_ne!(whole.key("step", &inputs, &[]), whole.key("other", &inputs, &[]));
        assert_ne!(whole.key("step", &inputs, &[]), whole.key("step", &inputs, &["version 2".to_owned()]));
    }

    #[test]
    fn packages_name_what_they_are_built_from() {
        let root = crate::repository();
        let packages = Packages::read(&root).expect("the manifests are whole");
        let inputs = packages.inputs("cenote-store");
        for input in ["crates/store", "crates/pool", "crates/base", "Cargo.lock"] {
            assert!(inputs.contains(input), "{input}");
        }
        assert!(!inputs.contains("crates/engine"));
        let members: Vec<&str> = packages.members().collect();
        assert!(members.contains(&"cenote") && members.contains(&"xtask"));
        assert!(!members.contains(&"cenote-dynamo") && !members.contains(&"cenote-train"));
    }
}
