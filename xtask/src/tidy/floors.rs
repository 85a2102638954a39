//! The house of DESIGN.md: a crate depends on lower floors only; siblings do not know each other.

use super::{Finding, SourceFile, Tree};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Floor {
    Numbered(u8),
    Roof,
    /// Tools beside the house: they may use everything, nothing may use them.
    Yard,
}

const HOUSE: &[(&str, Floor)] = &[
    ("cenote-base", Floor::Numbered(0)),
    ("cenote-mem", Floor::Numbered(1)),
    ("cenote-codec", Floor::Numbered(1)),
    ("cenote-policy", Floor::Numbered(1)),
    ("cenote-predict", Floor::Numbered(1)),
    ("cenote-pool", Floor::Numbered(2)),
    ("cenote-weakmem", Floor::Numbered(2)),
    ("cenote-store", Floor::Numbered(3)),
    ("cenote-engine", Floor::Numbered(4)),
    ("cenote-serve", Floor::Numbered(4)),
    ("cenote-sim", Floor::Numbered(4)),
    ("cenote-study", Floor::Numbered(5)),
    ("cenote-cli", Floor::Roof),
    ("cenote-py", Floor::Roof),
    ("cenote-capi", Floor::Roof),
    ("cenote-simulate", Floor::Yard),
    ("cenote-train", Floor::Yard),
    ("cenote-fuzz", Floor::Yard),
    ("cenote-bench", Floor::Yard),
    ("xtask", Floor::Yard),
];

fn floor_of(name: &str) -> Option<Floor> {
    HOUSE.iter().find(|(known, _)| *known == name).map(|(_, floor)| *floor)
}

pub fn check(tree: &Tree) -> Vec<Finding> {
    let manifests: Vec<(&SourceFile, toml::Table)> = tree
        .files
        .iter()
        .filter(|file| file.path.ends_with("Cargo.toml"))
        .filter_map(|file| Some((file, file.text.parse().ok()?)))
        .collect();
    let packages: BTreeMap<&str, &SourceFile> =
        manifests.iter().filter_map(|(file, table)| Some((name(table)?, *file))).collect();
    let mut findings = Vec::new();
    for (file, table) in &manifests {
        let Some(name) = name(table) else { continue };
        let Some(floor) = floor_of(name) else {
            let advice =
                format!("crate `{name}` has no floor; give it one in xtask/src/tidy/floors.rs and in the design");
            findings.push(file.finding(line_of_key(file, "name"), advice));
            continue;
        };
        for Edge { key, dependency, for_tests } in edges(table) {
            if !packages.contains_key(dependency.as_str()) && !dependency.starts_with("cenote-") {
                continue;
            }
            let problem = match floor_of(&dependency) {
                None => Some("which has no floor".to_owned()),
                Some(below) => problem(floor, below, for_tests),
            };
            if let Some(problem) = problem {
                let advice = format!("`{name}` depends on `{dependency}`, {problem}; move what is needed down a floor");
                findings.push(file.finding(line_of_key(file, &key), advice));
            }
        }
    }
    findings
}

/// What is wrong with an edge from floor `own` to floor `other`.
fn problem(own: Floor, other: Floor, for_tests: bool) -> Option<String> {
    match (own, other) {
        (Floor::Yard, _) => None,
        (_, Floor::Yard) => Some("a tool of the yard, on which nothing may depend".to_owned()),
        // A test may bring siblings together, as the pool and the memory model it is tested on.
        (own, other) if other < own || (other == own && for_tests) => None,
        (own, other) if other == own => Some("a sibling on its own floor".to_owned()),
        _ => Some("which is on a higher floor".to_owned()),
    }
}

struct Edge {
    /// As written in the manifest.
    key: String,
    /// The package's name.
    dependency: String,
    for_tests: bool,
}

fn name(table: &toml::Table) -> Option<&str> {
    table.get("package")?.get("name")?.as_str()
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
    file.text.lines().position(has_key).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate with these dependencies beside an empty crate of every other name.
    fn findings(name: &str, dependencies: &str) -> Vec<Finding> {
        let text = format!("[package]\nname = \"{name}\"\n\n{dependencies}\n");
        check(&Tree::of(&[("crates/x/Cargo.toml", &text)]))
    }

    #[test]
    fn edges_go_down_only() {
        for (name, dependencies, bad) in [
            ("cenote-pool", "[dependencies]\ncenote-mem.workspace = true\nserde = \"1\"", false),
            ("cenote-mem", "[dependencies]\ncenote-pool.workspace = true", true),
            ("cenote-mem", "[dependencies]\ncenote-policy = { path = \"../policy\" }", true),
            ("cenote-mem", "[build-dependencies]\ncenote-store.workspace = true", true),
            ("cenote-mem", "[target.'cfg(unix)'.dependencies]\ncenote-store.workspace = true", true),
            ("cenote-mem", "[dependencies]\nsmall = { package = \"cenote-store\", path = \"x\" }", true),
            ("cenote-pool", "[dev-dependencies]\ncenote-weakmem.workspace = true", false),
            ("cenote-pool", "[dependencies]\ncenote-weakmem.workspace = true", true),
            ("cenote-pool", "[dev-dependencies]\ncenote-store.workspace = true", true),
            ("cenote-cli", "[dependencies]\ncenote-serve.workspace = true\ncenote-base.workspace = true", false),
            ("cenote-cli", "[dependencies]\ncenote-train.workspace = true", true),
            ("cenote-cli", "[dependencies]\ncenote-unheard = \"1\"", true),
            ("cenote-train", "[dependencies]\ncenote-cli.workspace = true", false),
            ("cenote-unheard", "", true),
        ] {
            assert_eq!(!findings(name, dependencies).is_empty(), bad, "{name}: {dependencies}");
        }
    }

    #[test]
    fn a_finding_names_the_line() {
        let found = findings("cenote-mem", "[dependencies]\nserde = \"1\"\ncenote-pool.workspace = true");
        assert_eq!(found[0].line, 6);
        assert!(found[0].to_string().starts_with("crates/x/Cargo.toml:6: `cenote-mem` depends on `cenote-pool`"));
    }
}
