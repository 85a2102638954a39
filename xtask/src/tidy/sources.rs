//! Rules for Rust files: places of `unsafe`, no clock in policies, no overlong files.

use super::{Finding, SourceFile, Tree};
use crate::rust_text::{test_modules, words};

/// Crates that handle raw memory, foreign callers or vector instructions (ARCHITECTURE.md).
/// `crates/rtl` calls Verilated C++ models.
const UNSAFE_PLACES: [&str; 9] = [
    "crates/mem/",
    "crates/codec/",
    "crates/device/",
    "crates/capi/",
    "crates/py/",
    "crates/rtl/",
    "crates/predict/src/simd",
    "crates/reach/src/nixl",
    "crates/reach/fake/",
];
/// A crate with one such module cannot forbid `unsafe`, only deny it.
const UNSAFE_CORNERS: [&str; 2] = ["crates/predict/", "crates/reach/"];
const LINES_MAX: usize = 1000;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let rust_files = tree.files.iter().filter_map(|file| Some((file, file.blanked.as_deref()?)));
    rust_files
        .flat_map(|(file, blanked)| {
            [unsafe_words(file, blanked), crate_root(file, blanked), length(file), purity(file, blanked)]
        })
        .flatten()
        .collect()
}

fn unsafe_words(file: &SourceFile, blanked: &str) -> Vec<Finding> {
    if UNSAFE_PLACES.iter().any(|place| file.path.starts_with(place)) {
        return Vec::new();
    }
    let advice = "`unsafe` belongs to mem, codec, device, capi, py, rtl, predict's vectors and reach's nixl; call a safe function there";
    words(blanked, "unsafe").map(|at| file.finding_at(at, advice)).collect()
}

/// Root files of crates, which declare what they forbid: `src/lib.rs`, `src/main.rs` and
/// `src/bin/*.rs`.
fn crate_root(file: &SourceFile, blanked: &str) -> Vec<Finding> {
    let is_root =
        file.path.ends_with("src/lib.rs") || file.path.ends_with("src/main.rs") || file.path.contains("src/bin/");
    if !is_root || UNSAFE_PLACES.iter().any(|place| file.path.starts_with(place)) {
        return Vec::new();
    }
    let squeezed: String = blanked.split_whitespace().collect();
    let corner = UNSAFE_CORNERS.iter().any(|place| file.path.starts_with(place));
    if squeezed.contains("#![forbid(unsafe_code)]") || (corner && squeezed.contains("#![deny(unsafe_code)]")) {
        return Vec::new();
    }
    vec![file.finding(1, "the crate root lacks `#![forbid(unsafe_code)]`; add it below the module comment")]
}

fn is_test_file(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || part == "tests.rs")
}

fn length(file: &SourceFile) -> Vec<Finding> {
    let lines = file.text.lines().count();
    if lines <= LINES_MAX {
        return Vec::new();
    }
    vec![file.finding(LINES_MAX + 1, format!("{lines} lines are more than one thought; split the file"))]
}

/// Policies get time, chance and state as arguments, so that a simulator runs the same code.
fn purity(file: &SourceFile, blanked: &str) -> Vec<Finding> {
    if !file.path.starts_with("crates/policy/src/") || is_test_file(&file.path) {
        return Vec::new();
    }
    let modules = test_modules(blanked);
    let mut findings = Vec::new();
    let mut report = |at: usize, what: &str, instead: &str| {
        if !modules.iter().any(|module| module.contains(&at)) {
            findings.push(file.finding_at(at, format!("policies have no {what}; {instead}")));
        }
    };
    for (word, what, instead) in [
        ("Instant", "clock", "take `now` as an argument"),
        ("SystemTime", "clock", "take `now` as an argument"),
        ("SystemClock", "clock", "take `now` as an argument"),
        ("HashMap", "hash order", "use a BTreeMap or a Vec, so that runs repeat"),
        ("HashSet", "hash order", "use a BTreeSet or a Vec, so that runs repeat"),
        ("rand", "randomness of their own", "take a seeded `cenote_base::prng::Prng`"),
    ] {
        words(blanked, word).for_each(|at| report(at, what, instead));
    }
    for (module, what) in [
        ("thread", "threads"),
        ("fs", "files"),
        ("io", "I/O"),
        ("net", "network"),
        ("env", "environment"),
        ("process", "processes"),
    ] {
        let instead = "return an action and let the caller do it";
        for at in words(blanked, module).filter(|at| is_std_path(blanked, *at)) {
            report(at, what, instead);
        }
    }
    findings
}

/// Whether the word at `at` is `std::word` or part of a `use std::{…}`.
fn is_std_path(blanked: &str, at: usize) -> bool {
    let before = blanked[..at].trim_end();
    if before.ends_with("std::") {
        return true;
    }
    let statement: String = before.rsplit(';').next().unwrap_or_default().split_whitespace().collect();
    statement.find("usestd::{").is_some_and(|start| !statement[start..].contains('}')) && before.ends_with(['{', ','])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let mut lines: Vec<_> = check(&Tree::of(&[(path, text)])).iter().map(|finding| finding.line).collect();
        lines.sort_unstable();
        lines
    }

    #[test]
    fn unsafe_is_found_outside_its_places() {
        let text =
            "// unsafe\nfn f() { \"unsafe\"; unsafe_code; }\nunsafe fn g() {}\n#[unsafe(no_mangle)]\nfn h() {}\n";
        assert_eq!(lines("crates/pool/src/x.rs", text), [3, 4]);
        assert_eq!(lines("crates/pool/tests/x.rs", text), [3, 4]);
        assert!(lines("crates/mem/src/x.rs", text).is_empty());
        assert!(lines("crates/predict/src/simd/avx2.rs", text).is_empty());
        assert_eq!(lines("crates/predict/src/x.rs", text), [3, 4]);
    }

    #[test]
    fn crate_roots_forbid_unsafe() {
        assert_eq!(lines("crates/pool/src/lib.rs", "//! #![forbid(unsafe_code)]\n"), [1]);
        assert!(lines("crates/pool/src/lib.rs", "//! x\n#![forbid(unsafe_code)]\n").is_empty());
        assert_eq!(lines("crates/pool/src/main.rs", "#![deny(unsafe_code)]\n"), [1]);
        assert!(lines("crates/predict/src/lib.rs", "#![deny(unsafe_code)]\n").is_empty());
        assert!(lines("crates/mem/src/lib.rs", "").is_empty());
        assert!(lines("crates/pool/src/other.rs", "").is_empty());
    }

    #[test]
    fn files_end() {
        assert!(lines("crates/cli/src/x.rs", &"\n".repeat(1000)).is_empty());
        assert_eq!(lines("crates/cli/src/x.rs", &"\n".repeat(1001)), [1001]);
    }

    #[test]
    fn policies_are_pure() {
        for impure in [
            "use std::time::Instant;",
            "let now = SystemTime::now();",
            "std::thread::spawn(f);",
            "use std::{cmp, fs};",
            "use std::{collections::VecDeque, io};",
            "fn f() -> std::io::Result<()> { g() }",
            "use std::net::TcpStream;",
            "std::env::var(name)",
            "cenote_base::SystemClock::new()",
            "let x: HashMap<u8, u8>;",
            "use std::collections::HashSet;",
            "rand::random()",
        ] {
            assert_eq!(lines("crates/policy/src/x.rs", impure), [1], "{impure}");
            assert!(lines("crates/store/src/x.rs", impure).is_empty(), "{impure}");
            let tests = format!("#[cfg(test)]\nmod tests {{ {impure} }}");
            assert!(lines("crates/policy/src/x.rs", &tests).is_empty(), "{impure}");
        }
        for pure in [
            "// an Instant, a HashMap",
            "use std::{cmp, mem};\nlet io = fs + net;",
            "fn f(io: u8, brand: u8) { instant() }",
            "use std::collections::BTreeMap; struct S { thread: u8, io: u8 }",
            "use std::{cmp, mem};\nstruct S { a: u8, io: u8 }",
        ] {
            assert!(lines("crates/policy/src/x.rs", pure).is_empty(), "{pure}");
        }
    }
}
