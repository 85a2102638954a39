//! Product code opens files through `cenote_mem::files` alone, which never waits for a pipe, checks the
//! kind, and where a file is obeyed its owner.
//!
//! Files of the kernel, named by a literal, are open to all code, as are tests. A comment `tidy:` with a
//! reason, on the line or above it, permits a place. Outputs that a user names are no part of this rule:
//! they are written as a shell's `>` writes them.

use super::waits::{Mark, mark};
use super::{Finding, SourceFile, Tree};
use crate::rust_text::{test_modules, words};

/// The helper, and the places that open regions and host memory with checks of their own, or read what
/// the kernel says about the machine.
const PLACES: [&str; 10] = [
    "crates/mem/src/cpu.rs",
    "crates/mem/src/files.rs",
    "crates/mem/src/files/",
    "crates/mem/src/host/file.rs",
    "crates/mem/src/host/slot.rs",
    "crates/mem/src/numa.rs",
    "crates/mem/src/region/dax.rs",
    "crates/mem/src/region/fresh.rs",
    "crates/mem/src/region/map.rs",
    "crates/mem/src/region/obtain.rs",
];
/// Crates that no product needs.
const YARD: [&str; 3] = ["crates/memcheck/", "crates/rtl/", "crates/train/"];
/// Paths of the kernel, where no user can make a name.
const KERNEL: [&str; 3] = ["\"/proc/", "\"/sys/", "\"/dev/urandom\""];

/// A type or module, and its functions that open a file to be read.
const OPENS: [(&str, &[&str]); 3] = [
    ("File", &["open", "options"]),
    ("OpenOptions", &["new"]),
    ("fs", &["read", "read_to_string", "copy", "open", "openat", "openat2"]),
];
/// Most permitted places of the tree.
const MARKS_MAX: usize = 6;

const ADVICE: &str = "another user may have made a pipe, a link or a file of this name; \
                      open it with `cenote_mem::files` (`open_input`, or `open_own` for what is obeyed)";

pub fn check(tree: &Tree) -> Vec<Finding> {
    let (mut findings, mut marks) = (Vec::new(), Vec::new());
    for file in tree.files.iter().filter(|file| is_product(&file.path)) {
        let Some(blanked) = &file.blanked else { continue };
        for at in opens(file, blanked) {
            match mark(&file.text, at) {
                Some(Mark::Reason) => marks.push(file.finding_at(at, "")),
                Some(Mark::Bare) => findings.push(file.finding_at(at, "the mark `tidy:` gives no reason; add it")),
                None => findings.push(file.finding_at(at, ADVICE)),
            }
        }
    }
    if let Some(last) = marks.get(MARKS_MAX) {
        let advice = format!("more than {MARKS_MAX} opens have a mark `tidy:`; use `cenote_mem::files`");
        findings.push(Finding { advice, path: last.path.clone(), line: last.line });
    }
    findings
}

fn is_product(path: &str) -> bool {
    let is_source = path.starts_with("crates/") && path.split('/').nth(2) == Some("src");
    let is_test = path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "testing.rs"));
    let is_in = |places: &[&str]| places.iter().any(|place| path.starts_with(place));
    is_source && !is_test && !is_in(&PLACES) && !is_in(&YARD)
}

/// Calls that open a file, outside of tests, whose argument is no path of the kernel.
fn opens<'a>(file: &'a SourceFile, blanked: &'a str) -> impl Iterator<Item = usize> + 'a {
    let modules = test_modules(blanked);
    let calls = OPENS.iter().flat_map(move |(owner, functions)| {
        words(blanked, owner).filter_map(move |at| {
            let rest = blanked[at + owner.len()..].strip_prefix("::")?;
            let name = functions.iter().find(|name| {
                rest.strip_prefix(**name).is_some_and(|after| !after.starts_with(|next: char| is_part(next)))
            })?;
            Some((at, at + owner.len() + "::".len() + name.len()))
        })
    });
    let outside = calls.filter(move |(at, _)| !modules.iter().any(|module| module.contains(at)));
    outside.filter(|(_, end)| !names_the_kernel(&file.text[*end..])).map(|(at, _)| at)
}

const fn is_part(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// Whether a call's text, from its parenthesis on, begins with a literal path of the kernel.
fn names_the_kernel(call: &str) -> bool {
    let squeezed: String = call.chars().filter(|letter| !letter.is_whitespace()).take(40).collect();
    let Some(argument) = squeezed.strip_prefix('(') else { return false };
    let argument = argument.trim_start_matches("format!(").trim_start_matches('&');
    KERNEL.iter().any(|path| argument.starts_with(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let mut lines: Vec<_> = check(&Tree::of(&[(path, text)])).iter().map(|finding| finding.line).collect();
        lines.sort_unstable();
        lines
    }

    const PRODUCT: &str = "crates/console/src/x.rs";

    #[test]
    fn opens_of_product_code_are_found() {
        for open in [
            "let file = File::open(path)?;",
            "std::fs::File::open(&path)",
            "std::fs::File::options().read(true)",
            "OpenOptions::new()",
            "tokio::fs::OpenOptions::new()",
            "std::fs::read(path)",
            "fs::read_to_string(\"cenote.toml\")",
            "std::fs::copy(from, to)",
            "rustix::fs::open(path, flags, mode)",
            "rustix::fs::openat(folder, path, flags, mode)",
            "paths.map(std::fs::File::open)",
            "File::open(format!(\"{folder}/x\"))",
            "// tidy:\nFile::open(path)",
        ] {
            assert_eq!(lines(PRODUCT, open), [1 + open.matches('\n').count()], "{open}");
            for path in ["crates/mem/src/files.rs", "crates/mem/src/region/map.rs", "crates/rtl/src/x.rs"] {
                assert!(lines(path, open).is_empty(), "{path}: {open}");
            }
            for path in ["crates/cli/tests/cli/x.rs", "crates/store/src/snapshot/tests.rs", "xtask/src/main.rs"] {
                assert!(lines(path, open).is_empty(), "{path}: {open}");
            }
            assert!(!lines("crates/mem/src/registry.rs", open).is_empty(), "{open}");
            let tests = format!("#[cfg(test)]\nmod tests {{ {open} }}");
            assert!(lines(PRODUCT, &tests).is_empty(), "{open}");
        }
    }

    #[test]
    fn other_calls_and_files_of_the_kernel_are_left_alone() {
        for fine in [
            "files::open_input(path)?",
            "TensorFile::open(path)",
            "Mapping::open(source, &options)",
            "// File::open(path)",
            "let text = \"File::open(path)\";",
            "std::fs::read_dir(path)",
            "std::fs::read_link(path)",
            "std::fs::File::create_new(&path)",
            "std::fs::read_to_string(\"/proc/self/status\")",
            "std::fs::read_to_string(\n    \"/sys/kernel/x\",\n)",
            "std::fs::read(format!(\"/proc/{}/stat\", pid))",
            "File::open(\"/dev/urandom\")",
            "let text = std::fs::read(path); // tidy: a file of /sys",
        ] {
            assert!(lines(PRODUCT, fine).is_empty(), "{fine}");
        }
        assert_eq!(lines(PRODUCT, "File::open(\"/dev/shm/x\")"), [1], "any user makes names there");
    }

    #[test]
    fn marks_are_few() {
        let text = "File::open(path); // tidy: a reason\n".repeat(MARKS_MAX + 1);
        assert_eq!(lines(PRODUCT, &text), [MARKS_MAX + 1]);
    }
}
