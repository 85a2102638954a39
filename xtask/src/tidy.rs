//! Rules of the source tree that no compiler checks. Each finding states its place, the problem,
//! and the fix.

mod fabrics;
mod inputs;
mod layers;
mod links;
mod one_policy;
mod opens;
mod sources;
mod texts;
mod waits;

pub use links::INDEX;

use crate::rust_text;
use std::fmt;
use std::path::Path;
use std::process::Command;

/// A finding.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    path: String,
    line: usize,
    advice: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.advice)
    }
}

/// A text file of the tree, by its path from the root.
pub struct SourceFile {
    path: String,
    text: String,
    /// Of Rust files: the text without comments and literals.
    blanked: Option<String>,
}

impl SourceFile {
    fn new(path: &str, text: &str) -> Self {
        let blanked = path.ends_with(".rs").then(|| rust_text::blank_out(text));
        Self { path: path.to_owned(), text: text.to_owned(), blanked }
    }

    fn finding(&self, line: usize, advice: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, advice: advice.into() }
    }

    /// A finding at a byte of the text.
    fn finding_at(&self, at: usize, advice: impl Into<String>) -> Finding {
        self.finding(rust_text::line_of(&self.text, at), advice)
    }
}

/// The files that are tracked or would be.
pub struct Tree {
    files: Vec<SourceFile>,
    /// Every path, of binary files too.
    paths: Vec<String>,
}

impl Tree {
    fn read(root: &Path) -> Result<Self, String> {
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .map_err(|error| format!("git cannot be run: {error}"))?;
        if !listed.status.success() {
            return Err(format!("git ls-files failed: {}", String::from_utf8_lossy(&listed.stderr).trim()));
        }
        let names = String::from_utf8_lossy(&listed.stdout).into_owned();
        let (mut files, mut paths) = (Vec::new(), Vec::new());
        for path in names.split('\0').filter(|path| !path.is_empty()) {
            // A file may be deleted and still tracked.
            let Ok(bytes) = std::fs::read(root.join(path)) else { continue };
            paths.push(path.to_owned());
            // What a link leads to is checked where it lies.
            if let Ok(text) = String::from_utf8(bytes)
                && !text.contains('\0')
                && !root.join(path).is_symlink()
            {
                files.push(SourceFile::new(path, &text));
            }
        }
        Ok(Self { files, paths })
    }

    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Self {
        let files: Vec<_> = files.iter().map(|(path, text)| SourceFile::new(path, text)).collect();
        let paths = files.iter().map(|file| file.path.clone()).collect();
        Self { files, paths }
    }

    /// Whether a file or a directory has this path.
    fn exists(&self, path: &str) -> bool {
        let inside =
            |file: &String| file.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        path.is_empty() || self.paths.iter().any(inside)
    }
}

/// Checks the whole tree.
///
/// # Errors
/// There are findings, which were printed, or the tree cannot be read.
pub fn run(root: &Path) -> Result<(), String> {
    let tree = Tree::read(root)?;
    let mut findings = check(&tree);
    findings.sort();
    findings.dedup();
    findings.iter().for_each(|finding| println!("{finding}"));
    match findings.len() {
        0 => {
            println!("tidy: {} files, nothing to change", tree.files.len());
            Ok(())
        }
        count => Err(format!("tidy: {count} {} to change", if count == 1 { "place" } else { "places" })),
    }
}

/// Draws the diagrams of docs/internals/imports.md from the imports.
///
/// # Errors
/// The tree cannot be read, or the document has no place for a diagram.
pub fn draw(root: &Path) -> Result<(), String> {
    let text = layers::redrawn(&Tree::read(root)?)?;
    std::fs::write(root.join(layers::DOCUMENT), text).map_err(|error| format!("{}: {error}", layers::DOCUMENT))
}

fn check(tree: &Tree) -> Vec<Finding> {
    let checks = [
        fabrics::check,
        inputs::check,
        layers::check,
        one_policy::check,
        opens::check,
        sources::check,
        waits::check,
        texts::check,
        links::check,
    ];
    checks.into_iter().flat_map(|check| check(tree)).collect()
}
