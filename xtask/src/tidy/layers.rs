//! Imports go down only, between crates and between modules of a crate.
//!
//! Each manifest declares its own place in `[package.metadata.cenote]`: `floor` is a number, `roof`
//! or `yard`; `modules` lists a crate's top-level modules from the lowest to the highest. A crate
//! depends on lower floors only. A module imports only modules before it in the list.
//! docs/internals/imports.md shows both graphs, drawn from the imports by `cargo xtask diagrams`.

use super::{Finding, SourceFile, Tree};
use crate::rust_text::line_of;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

pub const DOCUMENT: &str = "docs/internals/imports.md";
const DRAW: &str = "`cargo xtask diagrams` draws it again";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Floor {
    Numbered(u8),
    Roof,
    /// Tools beside the house: they may use everything, nothing may depend on them.
    Yard,
}

impl Floor {
    fn parse(value: &toml::Value) -> Option<Self> {
        match value {
            toml::Value::Integer(floor) => u8::try_from(*floor).ok().map(Self::Numbered),
            toml::Value::String(name) if name == "roof" => Some(Self::Roof),
            toml::Value::String(name) if name == "yard" => Some(Self::Yard),
            _ => None,
        }
    }

    fn title(self) -> String {
        match self {
            Self::Numbered(floor) => format!("floor {floor}"),
            Self::Roof => "roof".to_owned(),
            Self::Yard => "yard".to_owned(),
        }
    }
}

/// A crate of the tree.
struct Package<'a> {
    manifest: &'a SourceFile,
    table: toml::Table,
}

impl Package<'_> {
    fn metadata(&self, key: &str) -> Option<&toml::Value> {
        self.table.get("package")?.get("metadata")?.get("cenote")?.get(key)
    }

    fn floor(&self) -> Option<Floor> {
        Floor::parse(self.metadata("floor")?)
    }

    /// Its top-level modules, the lowest first.
    fn modules(&self) -> Option<Vec<&str>> {
        self.metadata("modules")?.as_array()?.iter().map(toml::Value::as_str).collect()
    }

    fn source_folder(&self) -> String {
        self.manifest.path.replace("Cargo.toml", "src/")
    }
}

fn packages(tree: &Tree) -> BTreeMap<String, Package<'_>> {
    let manifests = tree.files.iter().filter(|file| file.path.ends_with("Cargo.toml"));
    let parsed = manifests.filter_map(|manifest| {
        let table: toml::Table = manifest.text.parse().ok()?;
        let name = table.get("package")?.get("name")?.as_str()?.to_owned();
        Some((name, Package { manifest, table }))
    });
    parsed.collect()
}

pub fn check(tree: &Tree) -> Vec<Finding> {
    let packages = packages(tree);
    let mut findings = check_crates(&packages);
    packages.values().for_each(|package| check_modules(tree, package, &mut findings));
    if let Some(document) = tree.files.iter().find(|file| file.path == DOCUMENT) {
        for (name, drawing) in drawings(tree, &packages) {
            match section(&document.text, &name) {
                Some((start, end)) if document.text[start..end] == drawing => {}
                Some((start, _)) => findings.push(document.finding_at(start, format!("stale diagram: {DRAW}"))),
                None => findings.push(document.finding(1, format!("no `{}` for the diagram", opening(&name)))),
            }
        }
    }
    findings
}

fn check_crates(packages: &BTreeMap<String, Package<'_>>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, package) in packages {
        let file = package.manifest;
        let Some(floor) = package.floor() else {
            let advice = format!("crate `{name}` has no floor; name it in [package.metadata.cenote]");
            findings.push(file.finding(line_of_key(file, "name"), advice));
            continue;
        };
        for Edge { key, dependency, for_tests } in edges(&package.table) {
            let problem = match packages.get(&dependency).map(Package::floor) {
                None if dependency.starts_with("cenote-") => Some("which is no crate of this tree".to_owned()),
                None => None,
                Some(None) => Some("which has no floor".to_owned()),
                Some(Some(below)) => problem(floor, below, for_tests),
            };
            if let Some(problem) = problem {
                let advice = format!("`{name}` depends on `{dependency}`, {problem}; move what is needed down a floor");
                findings.push(file.finding(line_of_key(file, &key), advice));
            }
        }
    }
    findings
}

/// The problem of an edge from floor `own` to floor `other`.
fn problem(own: Floor, other: Floor, for_tests: bool) -> Option<String> {
    match (own, other) {
        (Floor::Yard, _) => None,
        (_, Floor::Yard) => Some("a tool of the yard, on which nothing may depend".to_owned()),
        // A test may combine siblings, as the pool's tests use the memory model.
        (own, other) if other < own || (other == own && for_tests) => None,
        (own, other) if other == own => Some("a sibling on its own floor".to_owned()),
        _ => Some("which is on a higher floor".to_owned()),
    }
}

/// An import of one top-level module by another.
struct Import<'a> {
    file: &'a SourceFile,
    at: usize,
    from: &'a str,
    to: &'a str,
}

/// Every `crate::module` in the sources of a package, outside its root file.
fn imports<'a>(tree: &'a Tree, package: &Package<'_>) -> Vec<Import<'a>> {
    let folder = package.source_folder();
    let mut imports = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.starts_with(&folder)) {
        let (Some(text), Some(from)) = (&file.blanked, module_of(&file.path[folder.len()..])) else { continue };
        for (at, _) in text.match_indices("crate::") {
            let rest = &text[at + "crate::".len()..];
            let is_word = at > 0 && text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            // The root re-exports types; a module of the crate has a lower-case name.
            if !is_word && rest[..end].starts_with(|c: char| c.is_lowercase()) {
                imports.push(Import { file, at, from, to: &rest[..end] });
            }
        }
    }
    imports
}

/// The top-level module of a source file; `None` for the root.
fn module_of(path: &str) -> Option<&str> {
    let first = path.split('/').next()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (!matches!(name, "lib" | "main")).then_some(name)
}

fn check_modules(tree: &Tree, package: &Package<'_>, findings: &mut Vec<Finding>) {
    let Some(order) = package.modules() else { return };
    let place = |module: &str| order.iter().position(|known| *known == module);
    for Import { file, at, from, to } in imports(tree, package) {
        match (place(from), place(to)) {
            (None, _) => findings.push(file.finding_at(at, unlisted(from, package))),
            (Some(own), Some(other)) if other > own => {
                let advice = format!("module `{from}` imports `{to}`, which is above it; move what is needed down");
                findings.push(file.finding_at(at, advice));
            }
            // A function or macro of the root, or a module below.
            _ => {}
        }
    }
}

fn unlisted(module: &str, package: &Package<'_>) -> String {
    format!("module `{module}` has no place in `modules` of {}", package.manifest.path)
}

/// The generated sections of the document, by name.
fn drawings(tree: &Tree, packages: &BTreeMap<String, Package<'_>>) -> Vec<(String, String)> {
    let mut drawings = vec![("crates".to_owned(), draw_crates(packages))];
    for (name, package) in packages {
        if let Some(order) = package.modules() {
            let edges = imports(tree, package).into_iter().map(|import| (import.from.to_owned(), import.to.to_owned()));
            let edges = edges.filter(|(from, to)| from != to && order.contains(&to.as_str())).collect();
            let nodes: Vec<String> = order.iter().rev().map(|module| (*module).to_owned()).collect();
            let name = name.trim_start_matches("cenote-");
            drawings.push((format!("modules of {name}"), fenced(&flowchart(&[(None, nodes)], &reduced(&edges)))));
        }
    }
    drawings
}

fn draw_crates(packages: &BTreeMap<String, Package<'_>>) -> String {
    let short = |name: &str| name.trim_start_matches("cenote-").to_owned();
    let mut floors: BTreeMap<Floor, Vec<String>> = BTreeMap::new();
    let mut all = BTreeSet::new();
    for (name, package) in packages {
        let Some(floor) = package.floor().filter(|floor| *floor != Floor::Yard) else { continue };
        floors.entry(floor).or_default().push(short(name));
        let below = edges(&package.table).into_iter().filter(|edge| !edge.for_tests);
        let below = below.filter(|edge| packages.contains_key(&edge.dependency));
        all.extend(below.map(|edge| (short(name), short(&edge.dependency))));
    }
    let groups: Vec<_> = floors.into_iter().rev().map(|(floor, names)| (Some(floor.title()), names)).collect();
    fenced(&flowchart(&groups, &reduced(&all)))
}

/// Edges without those that a longer path implies.
fn reduced(edges: &BTreeSet<(String, String)>) -> BTreeSet<(String, String)> {
    let next = |from: &str| -> Vec<&String> { edges.iter().filter(|(f, _)| f == from).map(|(_, to)| to).collect() };
    let reaches = |from: &str, to: &str| {
        let mut seen = BTreeSet::new();
        let mut open: Vec<&String> = next(from).into_iter().filter(|step| *step != to).collect();
        while let Some(step) = open.pop() {
            if step == to {
                return true;
            }
            if seen.insert(step) {
                open.extend(next(step));
            }
        }
        false
    };
    edges.iter().filter(|(from, to)| !reaches(from, to)).cloned().collect()
}

/// A Mermaid flowchart: nodes in groups from the top, and edges.
fn flowchart(groups: &[(Option<String>, Vec<String>)], edges: &BTreeSet<(String, String)>) -> String {
    let mut text = "flowchart TD\n".to_owned();
    for (title, nodes) in groups {
        let indent = if title.is_some() { "    " } else { "  " };
        if let Some(title) = title {
            writeln!(text, "  subgraph {}[{title}]", title.replace(' ', "_")).expect("a string");
        }
        nodes.iter().for_each(|node| writeln!(text, "{indent}{node}").expect("a string"));
        if title.is_some() {
            text.push_str("  end\n");
        }
    }
    edges.iter().for_each(|(from, to)| writeln!(text, "  {from} --> {to}").expect("a string"));
    text
}

fn fenced(diagram: &str) -> String {
    format!("\n```mermaid\n{diagram}```\n")
}

fn opening(name: &str) -> String {
    format!("<!-- generated: {name} -->")
}

/// Place of a generated section, between its markers.
fn section(text: &str, name: &str) -> Option<(usize, usize)> {
    let start = text.find(&opening(name))? + opening(name).len();
    let end = start + text[start..].find("<!-- end -->")?;
    Some((start, end))
}

/// Draws the diagrams of the document again. Returns its text.
///
/// # Errors
/// The tree has no document, or the document has no place for a diagram.
pub fn redrawn(tree: &Tree) -> Result<String, String> {
    let document = tree.files.iter().find(|file| file.path == DOCUMENT).ok_or(format!("there is no {DOCUMENT}"))?;
    let mut text = document.text.clone();
    for (name, drawing) in drawings(tree, &packages(tree)) {
        let (start, end) = section(&text, &name).ok_or_else(|| format!("{DOCUMENT} has no `{}`", opening(&name)))?;
        text.replace_range(start..end, &drawing);
    }
    Ok(text)
}

struct Edge {
    /// As written in the manifest.
    key: String,
    /// The package's name.
    dependency: String,
    for_tests: bool,
}

fn edges(table: &toml::Table) -> Vec<Edge> {
    let mut tables = vec![table];
    let targets = table.get("target").and_then(toml::Value::as_table);
    tables.extend(targets.into_iter().flat_map(|targets| targets.values().filter_map(toml::Value::as_table)));
    let mut edges = Vec::new();
    for table in tables {
        for (kind, for_tests) in [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)] {
            for (key, value) in table.get(kind).and_then(toml::Value::as_table).into_iter().flatten() {
                let renamed = value.get("package").and_then(toml::Value::as_str);
                edges.push(Edge { key: key.clone(), dependency: renamed.unwrap_or(key).to_owned(), for_tests });
            }
        }
    }
    edges
}

fn line_of_key(file: &SourceFile, key: &str) -> usize {
    let has_key = |line: &str| {
        let rest = line.trim_start().trim_start_matches('"').strip_prefix(key);
        rest.is_some_and(|rest| rest.starts_with(['.', ' ', '=', '"']))
    };
    let at = file.text.split_inclusive('\n').scan(0, |at, line| {
        let start = *at;
        *at += line.len();
        Some((start, line))
    });
    at.into_iter().find(|(_, line)| has_key(line)).map_or(1, |(start, _)| line_of(&file.text, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(name: &str, metadata: &str, rest: &str) -> String {
        format!("[package]\nname = \"{name}\"\n[package.metadata.cenote]\n{metadata}\n{rest}\n")
    }

    fn findings(own: &str, other: &str, dependencies: &str) -> Vec<Finding> {
        let own = manifest("cenote-own", &format!("floor = {own}"), dependencies);
        let other = manifest("cenote-other", &format!("floor = {other}"), "");
        check(&Tree::of(&[("crates/own/Cargo.toml", &own), ("crates/other/Cargo.toml", &other)]))
    }

    #[test]
    fn crates_depend_on_lower_floors_only() {
        let plain = "[dependencies]\ncenote-other.workspace = true\nserde = \"1\"";
        let test = "[dev-dependencies]\ncenote-other.workspace = true";
        for (own, other, dependencies, bad) in [
            ("2", "1", plain, false),
            ("1", "2", plain, true),
            ("1", "1", plain, true),
            ("1", "1", test, false),
            ("1", "2", test, true),
            ("\"roof\"", "5", plain, false),
            ("5", "\"roof\"", plain, true),
            ("\"yard\"", "\"roof\"", plain, false),
            ("\"roof\"", "\"yard\"", plain, true),
            ("1", "2", "[build-dependencies]\ncenote-other.workspace = true", true),
            ("1", "2", "[target.'cfg(unix)'.dependencies]\ncenote-other.workspace = true", true),
            ("1", "2", "[dependencies]\nsmall = { package = \"cenote-other\", path = \"x\" }", true),
            ("1", "0", "[dependencies]\ncenote-unheard = \"1\"", true),
            ("\"attic\"", "0", "", true),
        ] {
            assert_eq!(!findings(own, other, dependencies).is_empty(), bad, "{own} on {other}: {dependencies}");
        }
    }

    #[test]
    fn a_finding_names_the_line() {
        let found = findings("1", "2", "[dependencies]\nserde = \"1\"\ncenote-other.workspace = true");
        assert_eq!(found[0].line, 7);
        assert!(found[0].to_string().starts_with("crates/own/Cargo.toml:7: `cenote-own` depends on `cenote-other`"));
    }

    #[test]
    fn modules_import_lower_modules_only() {
        let own = manifest("cenote-own", "floor = 1\nmodules = [\"low\", \"high\"]", "");
        let lines = |path: &str, text: &str| -> Vec<usize> {
            let found = check(&Tree::of(&[("crates/own/Cargo.toml", &own), (path, text)]));
            found.into_iter().map(|finding| finding.line).collect()
        };
        let none: [usize; 0] = [];
        assert_eq!(lines("crates/own/src/high/x.rs", "use crate::low::Thing;\nuse crate::Root;\n"), none);
        assert_eq!(lines("crates/own/src/low.rs", "//! crate::high\n\nuse crate::high::Thing;\n"), [3]);
        assert_eq!(lines("crates/own/src/other.rs", "use crate::low::Thing;\n"), [1], "it is not in the list");
        assert_eq!(lines("crates/own/src/lib.rs", "pub use crate::high::Thing;\n"), none);
    }

    #[test]
    fn a_stale_diagram_is_found_and_redrawn() {
        let own = manifest("cenote-own", "floor = 1\nmodules = [\"low\", \"high\"]", "");
        let stale = format!("{}<!-- end -->\n{}\nold\n<!-- end -->\n", opening("crates"), opening("modules of own"));
        let sources = [("crates/own/Cargo.toml", own.as_str()), ("crates/own/src/high.rs", "use crate::low::X;")];
        let tree = |document: &str| Tree::of(&[sources[0], sources[1], (DOCUMENT, document)]);
        assert_eq!(check(&tree(&stale)).len(), 2);
        let fresh = redrawn(&tree(&stale)).expect("it has places");
        assert!(fresh.contains("  high --> low\n"), "{fresh}");
        assert!(check(&tree(&fresh)).is_empty());
    }

    #[test]
    fn edges_that_a_path_implies_are_left_out() {
        let edge = |from: &str, to: &str| (from.to_owned(), to.to_owned());
        let edges = BTreeSet::from([edge("a", "b"), edge("b", "c"), edge("a", "c")]);
        assert_eq!(reduced(&edges), BTreeSet::from([edge("a", "b"), edge("b", "c")]));
    }
}
