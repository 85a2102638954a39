//! One policy code, two worlds: the simulator decides with the functions that serve.
//!
//! Three rules are checked. The simulator implements and names nothing that is a policy's, so no
//! copy hides behind another name or trait. Every decision listed here is called both in the
//! product and in the simulator. Policies depend on the ground floor only, so they reach no clock
//! or thread through a dependency either.

use super::{Finding, SourceFile, Tree};
use crate::rust_text::{is_word, test_modules, words};
use std::collections::BTreeSet;

const POLICY: &str = "crates/policy/src/";
const SIMULATOR: &str = "crates/serving-sim/src/";

/// A decision: its function, and its call in the product.
const DECISIONS: [(&str, &str); 27] = [
    ("Scheduler::new(", "crates/engine/src/"),
    ("PrefixSource for ", "crates/engine/src/"),
    (".victims(", "crates/pool/src/"),
    (".inserted(", "crates/pool/src/"),
    ("Watermark::", "crates/engine/src/"),
    ("SwapConfig {", "crates/engine/src/"),
    ("chunk_age(", "crates/pool/src/"),
    ("leaving_age(", "crates/pool/src/"),
    ("offers(", "crates/pool/src/"),
    ("is_worth_taking(", "crates/pool/src/"),
    ("taken_at_once(", "crates/pool/src/"),
    ("moved_word(", "crates/pool/src/"),
    ("report_pace(", "crates/pool/src/"),
    ("is_due(", "crates/pool/src/"),
    ("Transfers::new(", "crates/store/src/"),
    ("Staging::new(", "crates/engine/src/"),
    ("PageChoice::new(", "crates/engine/src/"),
    ("Planner::new(", "crates/engine/src/"),
    ("Thresholds::new(", "crates/engine/src/"),
    ("ThrottleLearner::new(", "crates/engine/src/"),
    ("WeightLearner::new(", "crates/lab/src/"),
    (".streamed(", "crates/engine/src/"),
    (".rung_of(", "crates/cold/src/"),
    (".worth_promoting(", "crates/cold/src/"),
    ("leaving_parts(", "crates/cold/src/"),
    ("asking_order(", "crates/reach/src/"),
    (".has_sought(", "crates/reach/src/"),
];

pub fn check(tree: &Tree) -> Vec<Finding> {
    [copies(tree), uncalled(tree), dependencies(tree)].into_iter().flatten().collect()
}

/// Rust files below a folder that are no tests, without comments and literals.
fn product<'a>(tree: &'a Tree, folder: &'a str) -> impl Iterator<Item = (&'a SourceFile, &'a str)> {
    let is_test = |path: &str| path.split('/').any(|part| part == "tests" || part == "tests.rs");
    let files = tree.files.iter().filter(move |file| file.path.starts_with(folder) && !is_test(&file.path));
    files.filter_map(|file| Some((file, file.blanked.as_deref()?)))
}

/// Names of types and traits that a file declares or implements.
fn declared(blanked: &str, for_others: bool) -> Vec<(usize, &str)> {
    let modules = test_modules(blanked);
    let mut found = Vec::new();
    for keyword in ["struct", "enum", "trait", "union"] {
        for at in words(blanked, keyword) {
            let before = blanked[..at].trim_end();
            let name: &str = blanked[at + keyword.len()..].trim_start();
            let end = name.bytes().position(|byte| !is_word(byte)).unwrap_or(name.len());
            let is_tested = modules.iter().any(|module| module.contains(&at));
            if end > 0 && !is_tested && (!for_others || before.ends_with("pub")) {
                found.push((at, &name[..end]));
            }
        }
    }
    found
}

fn copies(tree: &Tree) -> Vec<Finding> {
    let names: BTreeSet<&str> =
        product(tree, POLICY).flat_map(|(_, text)| declared(text, true)).map(|(_, name)| name).collect();
    let traits: BTreeSet<&str> = ["EvictionPolicy", "WatermarkController"].into();
    let mut findings = Vec::new();
    for (file, blanked) in product(tree, SIMULATOR) {
        for (at, name) in declared(blanked, false).into_iter().filter(|(_, name)| names.contains(name)) {
            let advice =
                format!("`{name}` is a policy's; use cenote_policy's, so that what is simulated is what serves");
            findings.push(file.finding_at(at, advice));
        }
        for name in &traits {
            let implemented =
                words(blanked, name).filter(|at| blanked[at + name.len()..].trim_start().starts_with("for "));
            for at in implemented {
                findings.push(
                    file.finding_at(at, format!("the simulator implements `{name}`; policies live in cenote_policy")),
                );
            }
        }
    }
    findings
}

fn uncalled(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !tree.exists("crates/serving-sim/src/lib.rs") {
        return findings;
    }
    for (call, folder) in DECISIONS {
        for place in [folder, SIMULATOR] {
            let is_called = product(tree, place).any(|(_, text)| text.contains(call));
            // In the simulator, `Watermark` comes from a setup, which names its type.
            let is_named = call == "Watermark::"
                && product(tree, place).any(|(_, text)| words(text, "Watermark").next().is_some());
            if !is_called && !is_named {
                let advice =
                    format!("`{call}` is not called below {place}: the product and the simulator must decide alike");
                findings.push(Finding { path: format!("{place}lib.rs"), line: 1, advice });
            }
        }
    }
    findings
}

fn dependencies(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.files.iter().find(|file| file.path == "crates/policy/Cargo.toml") else { return Vec::new() };
    let Ok(table) = file.text.parse::<toml::Table>() else { return Vec::new() };
    let names = table.get("dependencies").and_then(toml::Value::as_table).into_iter().flatten().map(|(name, _)| name);
    let others = names.filter(|name| *name != "cenote-base");
    let advice =
        |name: &String| format!("policies depend on cenote-base only, and `{name}` may reach a clock or a thread");
    others.map(|name| file.finding(1, advice(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(ToString::to_string).collect()
    }

    const POLICY_FILE: (&str, &str) =
        ("crates/policy/src/x.rs", "pub struct Lru; pub trait EvictionPolicy {} struct Own;");

    #[test]
    fn a_copy_of_a_policy_is_found() {
        for (text, bad) in [
            ("struct Lru;", true),
            ("pub enum Lru {}", true),
            ("impl EvictionPolicy for Mine {}", true),
            ("struct Own; // struct Lru", false),
            ("use cenote_policy::Lru; fn f(x: Lru) {}", false),
            ("fn f(policy: &dyn EvictionPolicy) {}", false),
            ("#[cfg(test)]\nmod tests { struct Lru; }", false),
        ] {
            let found = findings(&[POLICY_FILE, ("crates/serving-sim/src/x.rs", text)]);
            assert_eq!(!found.is_empty(), bad, "{text}: {found:?}");
        }
        assert!(findings(&[POLICY_FILE, ("crates/serving-sim/src/x/tests.rs", "struct Lru;")]).is_empty());
    }

    #[test]
    fn a_decision_that_only_one_world_asks_for_is_found() {
        let below = |folder: &str| {
            let calls = DECISIONS.iter().filter(|(call, of)| *of == folder && call.ends_with('('));
            let calls: String =
                calls.map(|(call, _)| format!("{}{call}c); ", if call.starts_with('.') { "p" } else { "" })).collect();
            format!("fn g() {{ {calls} }}")
        };
        let named = "fn f() { Watermark::share(1); SwapConfig { x } } impl PrefixSource for M {}";
        let engine = &format!("{named} {}", below("crates/engine/src/"));
        let [pool, store, cold, lab, reach] =
            &["crates/pool/src/", "crates/store/src/", "crates/cold/src/", "crates/lab/src/", "crates/reach/src/"]
                .map(below);
        let sim = format!("{engine} {pool} {store} {cold} {lab} {reach}");
        let tree = |sim: &str| {
            findings(&[
                ("crates/engine/src/x.rs", engine),
                ("crates/pool/src/x.rs", pool),
                ("crates/store/src/x.rs", store),
                ("crates/cold/src/x.rs", cold),
                ("crates/lab/src/x.rs", lab),
                ("crates/reach/src/x.rs", reach),
                ("crates/serving-sim/src/lib.rs", sim),
            ])
        };
        assert_eq!(tree(&sim), Vec::<String>::new());
        let found = tree(&sim.replace("p.victims(c)", "mine(c)"));
        assert!(
            found.len() == 1 && found[0].contains("`.victims(` is not called below crates/serving-sim/src/"),
            "{found:?}"
        );
    }

    #[test]
    fn policies_lean_on_the_ground_only() {
        let manifest = |dependency: &str| {
            let text = format!(
                "[package]\nname = \"cenote-policy\"\n[dependencies]\ncenote-base.workspace = true\n{dependency}"
            );
            findings(&[("crates/policy/Cargo.toml", &text)])
        };
        assert!(manifest("").is_empty());
        assert!(manifest("tokio = \"1\"")[0].contains("`tokio`"));
    }
}
