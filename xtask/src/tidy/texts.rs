//! Rules for all text: no paths of a particular machine, no unfinished parts.
//!
//! The needles are assembled from halves, so that this file does not match itself.

use super::{Finding, SourceFile, Tree};
use crate::rust_text::{is_word, words};

/// Tables and vocabularies may hold any word; they are data.
const DATA: [&str; 5] = [".json", ".jsonl", ".csv", ".lock", ".snap"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.files.iter().flat_map(|file| [machine_paths(file), unfinished(file)]).flatten().collect()
}

fn machine_paths(file: &SourceFile) -> Vec<Finding> {
    let text = &file.text;
    let home = ["/ho", "me/"].concat();
    let needles = [["/wo", "rk/"].concat(), ["/ro", "ot/"].concat(), ["/tmp/ba", "sh_jobs"].concat(), home.clone()];
    let mut findings = Vec::new();
    for needle in needles {
        for (at, _) in text.match_indices(&needle) {
            // `a/b/c` and `https://host/b/c` are other paths.
            let continues =
                text[..at].bytes().next_back().is_some_and(|byte| is_word(byte) || b".-~}/".contains(&byte));
            let rest = &text[at + needle.len()..];
            // A home directory has a name and content.
            let names_nobody = needle == home && !starts_with_name_and_slash(rest);
            if !continues && !names_nobody {
                let shown: String = text[at..].chars().take_while(|c| !c.is_whitespace()).take(40).collect();
                let advice = format!("`{shown}` is a path of one machine; write it relative, or take it as a setting");
                findings.push(file.finding_at(at, advice));
            }
        }
    }
    findings
}

fn starts_with_name_and_slash(rest: &str) -> bool {
    let name = rest.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || b"_-.<>$".contains(byte)).count();
    name > 0 && rest.as_bytes().get(name) == Some(&b'/')
}

fn unfinished(file: &SourceFile) -> Vec<Finding> {
    if DATA.iter().any(|ending| file.path.ends_with(ending)) {
        return Vec::new();
    }
    let markers = [["TO", "DO"].concat(), ["FIX", "ME"].concat(), "X".repeat(3)];
    let macros = [["to", "do!"].concat(), ["unimpl", "emented!"].concat()];
    let marked = markers.iter().flat_map(|word| words(&file.text, word).map(move |at| (at, word)));
    let called = macros.iter().flat_map(|call| {
        let found = file.text.match_indices(call.as_str()).map(|(at, _)| at);
        found.filter(|at| !file.text[..*at].bytes().next_back().is_some_and(is_word)).map(move |at| (at, call))
    });
    marked
        .chain(called)
        .map(|(at, word)| {
            file.finding_at(at, format!("`{word}` says that something is unfinished; finish it or say what holds"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn machine_paths_are_found() {
        for path in ["/wo+rk/main", "\"/ro+ot/.cache\"", "/ho+me/someone/x", "/ho+me/<user>/x", "(/tmp/ba+sh_jobs.0/1)"]
        {
            let text = format!("fine\nsee {}\n", path.replace('+', ""));
            assert_eq!(lines("notes/x.md", &text), [2], "{path}");
        }
        for path in
            ["frame/wo+rk/x", "https://host/ho+me/page/x", "/ho+me/ is", "target/ro+ot/x", "/wo+rks/x", "./wo+rk/x"]
        {
            assert!(lines("notes/x.md", &path.replace('+', "")).is_empty(), "{path}");
        }
    }

    #[test]
    fn unfinished_work_is_found() {
        for text in
            ["// TO+DO: later", "FIX+ME", "to+do!()", "unimpl+emented!(\"x\")", "core::to+do!()", "see XX+X here"]
        {
            assert_eq!(lines("crates/x/src/x.rs", &text.replace('+', "")), [1], "{text}");
        }
        for text in ["mktemp -d XX+XXXX", "a TO+DOS", "my_to+do!()", "the todo list"] {
            assert!(lines("crates/x/src/x.rs", &text.replace('+', "")).is_empty(), "{text}");
        }
        assert!(lines("models/x/tokenizer.json", &"{\"TO+DO\": 1}".replace('+', "")).is_empty());
    }
}
