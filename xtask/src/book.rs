//! `cargo xtask book`: the documentation as a site with search, in `target/book`. Its contents are those of the
//! index of the documentation. Afterwards all links of all pages lead somewhere. With `--interfaces` it also has the
//! pages of rustdoc and of pdoc.

mod interfaces;

use crate::markdown::{links, resolve};
use crate::process::{make_empty, make_folder, names_in, read, read_lossy, shown, write};
use crate::python;
use crate::tidy::INDEX;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const REQUIREMENTS: &str = "xtask/book-requirements.txt";
const START: &str = "README.md";
const LIMIT: Duration = Duration::from_secs(120);
/// Without the preprocessor that names `README.md` `index.md`, links to it hold as they are. Examples run nowhere:
/// a page loads nothing from elsewhere.
const SETTINGS: &str = "[book]\ntitle = \"Cenote\"\nlanguage = \"en\"\n\n[build]\nuse-default-preprocessors = false\n\n\
    [output.html.fold]\nenable = true\n\n[output.html.playground]\nrunnable = false\ncopyable = true\n\n\
    [output.html.print]\nenable = false\n\n[output.html.search]\nlimit-results = 30\n";

/// Builds the book and checks it. Returns what is missing for that, if something is.
///
/// # Errors
/// mdBook failed, or a link leads nowhere; the message has each.
pub fn build(root: &Path, has_interfaces: bool) -> Result<Option<String>, String> {
    let python = match python::environment(root, "target/book-tools", REQUIREMENTS, "venv") {
        Ok(python) => python,
        Err(reason) => return Ok(Some(reason)),
    };
    let (source, book) = (root.join("target/book-source"), root.join("target/book"));
    make_empty(&source)?;
    make_empty(&book)?;
    write(&source.join("book.toml"), SETTINGS)?;
    let pages = pages(root)?;
    for path in &pages {
        let to = source.join("src").join(path);
        make_folder(to.parent().expect("it lies in a folder"))?;
        write(&to, read(&root.join(path))?)?;
    }
    let mut summary = summary(&read_lossy(&root.join(INDEX))?, &pages);
    if has_interfaces {
        summary += interfaces::ENTRY;
        interfaces::add(root, &python, &source.join("src"))?;
    }
    write(&source.join("src/SUMMARY.md"), summary)?;
    let mut mdbook = Command::new(python.with_file_name("mdbook"));
    mdbook.arg("build").arg("--dest-dir").arg(&book).arg(&source).env("RUST_LOG", "warn");
    shown(&mut mdbook, "mdbook build", LIMIT)?;
    let dead = dead_links(&book)?;
    if !dead.is_empty() {
        return Err(format!("{} links lead nowhere:\n{}", dead.len(), dead.join("\n")));
    }
    let has_search = names_in(&book)?.iter().any(|name| name.starts_with("searchindex"));
    if has_search { Ok(None) } else { Err("the book has no index for its search".to_owned()) }
}

/// `cargo xtask book [--interfaces]`.
///
/// # Errors
/// As [`build`]; or its tools are missing.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let has_interfaces = match arguments {
        [] => false,
        ["--interfaces"] => true,
        _ => return Err("give nothing, or --interfaces".to_owned()),
    };
    build(root, has_interfaces)?.map_or(Ok(()), Err)?;
    println!("{}", root.join("target/book/index.html").display());
    Ok(())
}

/// Files of the book: what can be reached by links from the first page, sources too.
fn pages(root: &Path) -> Result<BTreeSet<String>, String> {
    let (mut open, mut found) = (vec![START.to_owned(), INDEX.to_owned()], BTreeSet::new());
    while let Some(path) = open.pop() {
        if !root.join(&path).is_file() || !found.insert(path.clone()) || !path.ends_with(".md") {
            continue;
        }
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
        let text = read_lossy(&root.join(&path))?;
        let targets = links(&text).into_iter().map(|(_, target)| target).filter(|target| !target.contains(':'));
        let paths = targets.filter_map(|target| resolve(&folder, target.split(['#', '?']).next()?));
        open.extend(paths);
    }
    Ok(found)
}

/// The contents: the first page, then the parts of the index with their rows, then the other pages.
fn summary(index: &str, pages: &BTreeSet<String>) -> String {
    let mut out = format!("# Cenote\n\n[Cenote]({START})\n[All pages]({INDEX})\n");
    let mut listed: BTreeSet<String> = [START, INDEX].map(str::to_owned).into();
    let folder = INDEX.rsplit_once('/').map_or("", |(folder, _)| folder);
    for line in index.lines() {
        if let Some(part) = line.strip_prefix("## ") {
            let _ = write!(out, "\n# {part}\n\n");
        }
        // A row begins with its page.
        let row = line.strip_prefix("| [").and_then(|rest| rest.split_once("]("));
        let Some((name, Some(target))) = row.map(|(name, rest)| (name, rest.split(')').next())) else { continue };
        let Some(path) = resolve(folder, target).filter(|path| pages.contains(path)) else { continue };
        if listed.insert(path.clone()) {
            let _ = writeln!(out, "- [{name}]({path})");
        }
    }
    out += "\n# More\n\n";
    for path in pages.iter().filter(|path| path.ends_with(".md") && !listed.contains(*path)) {
        let _ =
            writeln!(out, "- [{}]({path})", path.trim_end_matches(".md").trim_end_matches("/README").to_lowercase());
    }
    out
}

/// Links of all pages to files or parts that the book does not have.
fn dead_links(book: &Path) -> Result<Vec<String>, String> {
    let mut pages = BTreeMap::new();
    collect(book, book, &mut pages)?;
    let ids: BTreeMap<&String, BTreeSet<&str>> =
        pages.iter().map(|(path, text)| (path, values(text, " id=\"").collect())).collect();
    let mut dead = Vec::new();
    // The page for unknown addresses may be shown at any of them, so its links begin at the site's root.
    for (path, text) in pages.iter().filter(|(path, _)| *path != "404.html") {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for target in values(text, " href=\"").chain(values(text, " src=\"")) {
            let (file, part) = target.split_once('#').unwrap_or((target, ""));
            if file.contains(':') || file.starts_with("//") {
                continue;
            }
            let file = if file.is_empty() { Some(path.clone()) } else { resolve(folder, file) };
            let is_there = file.as_ref().is_some_and(|file| match ids.get(file) {
                Some(ids) => part.is_empty() || ids.contains(part),
                None => book.join(file).exists(),
            });
            if !is_there {
                dead.push(format!("{path}: {target}"));
            }
        }
    }
    dead.sort();
    dead.dedup();
    Ok(dead)
}

/// All pages below a folder, by path.
fn collect(book: &Path, folder: &Path, pages: &mut BTreeMap<String, String>) -> Result<(), String> {
    for name in names_in(folder)? {
        let path: PathBuf = folder.join(&name);
        if path.is_dir() {
            collect(book, &path, pages)?;
        } else if name.ends_with(".html") {
            let short = path.strip_prefix(book).expect("it lies in the book").display().to_string();
            pages.insert(short, read_lossy(&path)?);
        }
    }
    Ok(())
}

/// Values of an attribute.
fn values<'a>(text: &'a str, attribute: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(attribute).skip(1).filter_map(|rest| rest.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;

    #[test]
    fn contents_are_those_of_the_index_and_what_else_is_linked() {
        let index =
            "# All\n\n## Use it\n\n| page | for |\n|---|---|\n| [start](guides/start.md) | x |\n| [c](../C.md) | |\n";
        let pages = [START, INDEX, "docs/guides/start.md", "C.md", "LICENSE", "models/demo/README.md"];
        let made = summary(index, &pages.map(str::to_owned).into());
        let rows: Vec<&str> = made.lines().filter(|line| line.starts_with("- ") || line.starts_with("# ")).collect();
        let expected = [
            "# Cenote",
            "# Use it",
            "- [start](docs/guides/start.md)",
            "- [c](C.md)",
            "# More",
            "- [models/demo](models/demo/README.md)",
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn the_book_of_the_tree_has_all_of_its_documentation() {
        let root = crate::repository();
        let found = pages(&root).expect("the tree can be read");
        for folder in ["guides", "internals", "evidence"] {
            for name in names_in(&root.join("docs").join(folder)).expect("it is there") {
                assert!(found.contains(&format!("docs/{folder}/{name}")) || !name.ends_with(".md"), "{name}");
            }
        }
        for page in ["ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"] {
            assert!(found.contains(page), "{page}");
        }
    }

    #[test]
    fn dead_links_of_a_book_are_found() {
        let book = std::env::temp_dir().join(format!("cenote-book-{}", std::process::id()));
        make_folder(&book.join("a")).expect("a folder");
        let one = "<h1 id=\"part\">x</h1><a href=\"a/two.html#other\"></a><a href=\"#part\"></a><img src=\"x.svg\">";
        process::write(&book.join("one.html"), one).expect("a file");
        process::write(&book.join("x.svg"), "").expect("a file");
        process::write(&book.join("a/two.html"), "<a href=\"../one.html#gone\"></a><a href=\"b.html\"></a>")
            .expect("a file");
        let dead = dead_links(&book).expect("it can be read");
        assert_eq!(dead, ["a/two.html: ../one.html#gone", "a/two.html: b.html", "one.html: a/two.html#other"]);
        std::fs::remove_dir_all(book).expect("it was made");
    }
}
