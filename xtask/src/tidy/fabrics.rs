//! One set of constants of fabrics: a link's latency is a number in `serving-sim/src/hardware` only, each
//! with its source. Two sets once made one document contradict another.

use super::{Finding, Tree};
use crate::rust_text::{test_modules, words};

/// Where links are described, and where they are used.
const HOME: &str = "crates/serving-sim/src/hardware";
const USERS: [&str; 4] = ["crates/cli/src/", "crates/lab/src/", "crates/plan/src/", "crates/serving-sim/src/"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let is_test = |path: &str| path.split('/').any(|part| part == "tests" || part == "tests.rs");
    let is_user = |path: &str| USERS.iter().any(|user| path.starts_with(user)) && !path.starts_with(HOME);
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| is_user(&file.path) && !is_test(&file.path)) {
        let Some(blanked) = &file.blanked else { continue };
        let tests = test_modules(blanked);
        for at in words(blanked, "latency_ns") {
            let value = blanked[at + "latency_ns".len()..].trim_start().strip_prefix(':').map(str::trim_start);
            let is_number = value.is_some_and(|value| value.starts_with(|first: char| matches!(first, '1'..='9')));
            if is_number && !tests.iter().any(|module| module.contains(&at)) {
                findings.push(file.finding_at(at, format!("a link's latency belongs into {HOME}, with its source")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_home_of_a_link_is_found() {
        for (path, text, is_found) in [
            ("crates/lab/src/x.rs", "Link { latency_ns: 640, ..A }", true),
            ("crates/plan/src/x.rs", "Link { latency_ns: 2_300.0 }", true),
            ("crates/lab/src/x.rs", "Link { latency_ns: 0 }", false),
            ("crates/lab/src/x.rs", "Link { latency_ns: NIAGARA.latency_ns }", false),
            ("crates/lab/src/x.rs", "struct Link { latency_ns: u64 } // latency_ns: 9", false),
            ("crates/lab/src/x.rs", "#[cfg(test)]\nmod tests { const A: L = L { latency_ns: 9 }; }", false),
            ("crates/lab/src/x/tests.rs", "Link { latency_ns: 640 }", false),
            ("crates/serving-sim/src/hardware/cxl.rs", "Link { latency_ns: 640 }", false),
            ("crates/mem/src/x.rs", "Link { latency_ns: 640 }", false),
        ] {
            let found = check(&Tree::of(&[(path, text)]));
            assert_eq!(!found.is_empty(), is_found, "{path}: {text}: {found:?}");
        }
    }
}
