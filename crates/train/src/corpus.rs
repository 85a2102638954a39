//! Collects freely licensed documentation text: the Markdown files and doc comments of the crates
//! listed in a `Cargo.lock`, from the sources that Cargo unpacked on this machine.
//!
//! Documents follow the order of the lock file, then of the file names, so equal sources give equal
//! bytes. Excluded are crates without a plain MIT or Apache-2.0 licence, change logs and duplicate
//! texts.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, read_text};

/// One documentation file of one crate: a line of the corpus file, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// The crate's name.
    pub name: String,
    /// The crate's version.
    pub version: String,
    /// The crate's licence, an SPDX expression.
    pub licence: String,
    /// Path of the file inside the crate.
    pub file: String,
    /// The text, Markdown.
    pub text: String,
}

#[derive(Deserialize)]
struct Lock {
    #[serde(default)]
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Manifest {
    package: Package,
}

#[derive(Deserialize)]
struct Package {
    license: Option<String>,
}

/// The folders with Cargo's unpacked crates: every folder of `$CARGO_HOME/registry/src`, or of
/// `~/.cargo/registry/src`.
pub fn source_folders() -> Result<Vec<PathBuf>> {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let Some(home) = home else {
        return Err(Error::Flag("neither CARGO_HOME nor HOME is set; name the folder with --sources".into()));
    };
    entries(&home.join("registry").join("src"))
}

/// Collects the documents of every locked crate found under `sources`, at most `bytes_max` bytes of
/// text per crate.
pub fn gather(lock: &Path, sources: &[PathBuf], bytes_max: usize) -> Result<Vec<Document>> {
    let parsed: Lock = toml::from_str(&read_text(lock)?).map_err(|error| Error::content(lock, error))?;
    let mut seen = HashSet::new();
    let mut documents = Vec::new();
    for locked in parsed.package.iter().filter(|locked| locked.source.is_some()) {
        let folder_name = format!("{}-{}", locked.name, locked.version);
        let Some(folder) = sources.iter().map(|source| source.join(&folder_name)).find(|folder| folder.is_dir()) else {
            continue; // A crate for another platform, which Cargo has not unpacked.
        };
        let manifest_path = folder.join("Cargo.toml");
        let manifest: Manifest =
            toml::from_str(&read_text(&manifest_path)?).map_err(|error| Error::content(&manifest_path, error))?;
        let Some(licence) = manifest.package.license.filter(|licence| is_free(licence)) else { continue };
        let mut bytes_left = bytes_max;
        for path in documentation_files(&folder)? {
            let Ok(raw) = std::fs::read_to_string(&path) else { continue }; // Not UTF-8: a fixture.
            let text = if path.extension().is_some_and(|extension| extension == "rs") {
                doc_comments(&raw)
            } else {
                without_badges(&raw)
            };
            if text.len() < 200 || text.len() > bytes_left || !seen.insert(text.clone()) {
                continue;
            }
            bytes_left -= text.len();
            let file = path.strip_prefix(&folder).unwrap_or(&path).display().to_string();
            let (name, version) = (locked.name.clone(), locked.version.clone());
            documents.push(Document { name, version, licence: licence.clone(), file, text });
        }
    }
    if documents.is_empty() {
        return Err(Error::content(lock, "none of its crates is unpacked in the source folders; run cargo fetch"));
    }
    Ok(documents)
}

/// Reads a corpus file written by [`gather`] and [`to_lines`].
pub fn read(path: &Path) -> Result<Vec<Document>> {
    let parse = |(number, line)| {
        serde_json::from_str(line).map_err(|error| Error::content(path, format!("line {}: {error}", number + 1)))
    };
    read_text(path)?.lines().enumerate().map(parse).collect()
}

/// The content of the corpus file: one JSON object per line.
pub fn to_lines(documents: &[Document]) -> Result<String> {
    let mut lines = String::new();
    for document in documents {
        lines += &serde_json::to_string(document).map_err(|error| Error::Flag(error.to_string()))?;
        lines.push('\n');
    }
    Ok(lines)
}

/// Whether the SPDX expression offers MIT or Apache-2.0. `AND` adds obligations, so it is refused.
fn is_free(licence: &str) -> bool {
    let mut words = licence.split(|character: char| !(character.is_alphanumeric() || "-.".contains(character)));
    !licence.contains(" AND ") && words.any(|word| word == "MIT" || word == "Apache-2.0")
}

/// Markdown files at the crate's root and in `docs`, then Rust sources under `src`.
fn documentation_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut markdown = Vec::new();
    let mut rust = Vec::new();
    for entry in entries(folder)? {
        if entry.is_file() {
            markdown.push(entry);
        }
    }
    walk(&folder.join("docs"), &mut markdown)?;
    walk(&folder.join("src"), &mut rust)?;
    markdown.retain(|path| is_prose(path));
    rust.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    markdown.extend(rust);
    Ok(markdown)
}

fn is_prose(path: &Path) -> bool {
    const REFUSED: [&str; 7] = ["change", "release", "history", "contribut", "code_of_conduct", "security", "licen"];
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    name.ends_with(".md") && !REFUSED.iter().any(|refused| name.starts_with(refused))
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    if folder.is_dir() {
        for entry in entries(folder)? {
            if entry.is_dir() {
                walk(&entry, found)?;
            } else {
                found.push(entry);
            }
        }
    }
    Ok(())
}

/// A folder's entries in name order; the operating system guarantees no order.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let listed = std::fs::read_dir(folder).map_err(Error::io(folder))?;
    let mut paths =
        listed.map(|entry| entry.map(|entry| entry.path()).map_err(Error::io(folder))).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// The `//!` and `///` comments of a Rust source; an empty line separates two comments.
fn doc_comments(source: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for line in source.lines() {
        let line = line.trim_start();
        let comment =
            line.strip_prefix("//!").or_else(|| line.strip_prefix("///").filter(|rest| !rest.starts_with('/')));
        if let Some(comment) = comment {
            text += comment.strip_prefix(' ').unwrap_or(comment).trim_end();
            text.push('\n');
        } else if inside {
            text.push('\n');
        }
        inside = comment.is_some();
    }
    text
}

/// Drops lines that hold only badges, images, HTML or link targets: they are noise to a small
/// model.
fn without_badges(markdown: &str) -> String {
    let noise = |line: &str| {
        let line = line.trim_start();
        line.starts_with("[![")
            || line.starts_with("![")
            || line.starts_with('<')
            || (line.starts_with('[') && line.contains("]: "))
    };
    markdown.lines().filter(|line| !noise(line)).flat_map(|line| [line.trim_end(), "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_choice_of_mit_or_apache_is_free() {
        assert!(is_free("MIT OR Apache-2.0") && is_free("MIT/Apache-2.0") && is_free("Unlicense OR MIT"));
        assert!(!is_free("Unicode-3.0") && !is_free("(MIT OR Apache-2.0) AND Unicode-3.0") && !is_free("LIMITED"));
    }

    #[test]
    fn doc_comments_are_extracted_without_code() {
        let source = "//! A crate.\n\n/// Adds.\n/// Twice.\nfn add() {} // no\n//// banner\n/// Next.\nstruct S;\n";
        assert_eq!(doc_comments(source), "A crate.\n\nAdds.\nTwice.\n\nNext.\n\n");
    }

    #[test]
    fn a_locked_crate_is_gathered_once_and_without_change_logs() {
        let root = tempfile::tempdir().unwrap();
        let crate_folder = root.path().join("demo-1.0.0");
        std::fs::create_dir_all(crate_folder.join("src")).unwrap();
        let prose = "A sentence about the crate. ".repeat(20);
        std::fs::write(crate_folder.join("Cargo.toml"), "[package]\nname = \"demo\"\nlicense = \"MIT\"\n").unwrap();
        for name in ["README.md", "COPY.md", "CHANGELOG.md"] {
            std::fs::write(crate_folder.join(name), &prose).unwrap();
        }
        let lock = root.path().join("Cargo.lock");
        let package = "[[package]]\nname = \"demo\"\nversion = \"1.0.0\"\nsource = \"registry\"\n";
        std::fs::write(&lock, package).unwrap();
        let documents = gather(&lock, &[root.path().to_owned()], 10_000).unwrap();
        assert_eq!(documents.iter().map(|document| document.file.as_str()).collect::<Vec<_>>(), ["COPY.md"]);
    }
}
