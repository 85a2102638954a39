//! Documents that texts refer to exist: relative links of Markdown files, and every document below
//! the documentation folder that any text names.

use super::{Finding, SourceFile, Tree};
use crate::rust_text::{is_word, line_of};

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for (at, document) in named_documents(&file.text) {
            if !tree.exists(document) {
                let advice = format!("`{document}` does not exist; write it or name another document");
                findings.push(file.finding_at(at, advice));
            }
        }
        if file.path.ends_with(".md") {
            findings.extend(dead_links(tree, file));
        }
    }
    findings
}

/// Documents named by their path from the root, as `// docs/…` comments do.
fn named_documents(text: &str) -> Vec<(usize, &str)> {
    let folder = "docs/";
    let is_path = |byte: u8| byte.is_ascii_alphanumeric() || b"_-/.".contains(&byte);
    let mut found = Vec::new();
    for (at, _) in text.match_indices(folder) {
        // A path below another folder or on another host is none of this tree.
        if text[..at].bytes().next_back().is_some_and(|byte| is_word(byte) || b"/.-".contains(&byte)) {
            continue;
        }
        let length = text[at..].bytes().take_while(|byte| is_path(*byte)).count();
        let Some(end) = text[at..at + length].find(".md") else { continue };
        let behind = text.as_bytes().get(at + end + 3).copied();
        if end > folder.len() && !behind.is_some_and(is_word) {
            found.push((at, &text[at..at + end + 3]));
        }
    }
    found
}

fn dead_links(tree: &Tree, file: &SourceFile) -> Vec<Finding> {
    let directory = file.path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let mut findings = Vec::new();
    for (line, target) in links(&file.text) {
        let path = target.split(['#', '?']).next().unwrap_or_default();
        let is_elsewhere = path.is_empty() || path.contains(':') || path.starts_with('/');
        if is_elsewhere {
            continue;
        }
        let alive = resolve(directory, path).is_some_and(|resolved| tree.exists(&resolved));
        if !alive {
            findings
                .push(file.finding(line, format!("the link to `{target}` is dead; point it at a file that exists")));
        }
    }
    findings
}

/// Targets of `[text](target)` and `[name]: target`, with their lines. Code is no link.
fn links(text: &str) -> Vec<(usize, String)> {
    let prose = without_code(text);
    let mut found = Vec::new();
    for (at, _) in prose.match_indices("](") {
        let rest = &prose[at + 2..];
        let target = rest.split([')', '\n']).next().unwrap_or_default();
        // A title may follow the target.
        let target = target.split_whitespace().next().unwrap_or_default();
        found.push((line_of(&prose, at), target.trim_matches(['<', '>']).to_owned()));
    }
    for (index, line) in prose.lines().enumerate() {
        let definition = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]:"));
        if let Some((_, target)) = definition {
            let target = target.split_whitespace().next().unwrap_or_default();
            found.push((index + 1, target.trim_matches(['<', '>']).to_owned()));
        }
    }
    found
}

/// Markdown with fenced blocks and `code` blanked, line by line.
fn without_code(text: &str) -> String {
    let mut fenced = false;
    let mut kept = String::with_capacity(text.len());
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        if !fenced && !fence {
            // Every second piece between backquotes is code.
            let outside = line.split('`').step_by(2).collect::<Vec<_>>().join(" ");
            kept.push_str(&outside);
        }
        fenced ^= fence;
        kept.push('\n');
    }
    kept
}

/// `directory` and `path` as one path from the root; `None` above the root.
fn resolve(directory: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => (),
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let text = text.replace('+', "");
        let tree =
            Tree::of(&[("do+cs/here.md".replace('+', "").as_str(), &text), ("README.md", ""), ("a/b/c.png", "")]);
        check(&tree).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn dead_links_are_found() {
        for dead in ["[x](nowhere.md)", "[x]: nowhere", "![x](../a/b/d.png)", "[x](../../out)", "a\n[x](no \"title\")"]
        {
            assert_eq!(lines(dead).len(), 1, "{dead}");
        }
        for alive in [
            "[x](here.md#part) [y](#part) [z](https://host/x.md) [w](mailto:a@b)",
            "![x](../a/b/c.png) [y](../README.md \"title\") [z](..) [w](../a/)",
            "```\n[x](nowhere)\n```\nand `[x](nowhere)`",
            "[x]: ../README.md",
        ] {
            assert!(lines(alive).is_empty(), "{alive}");
        }
    }

    #[test]
    fn named_documents_exist() {
        assert_eq!(lines("x\nsee do+cs/gone.md#part"), [2]);
        assert_eq!(lines("(do+cs/deep/gone.md)"), [1]);
        for fine in
            ["see do+cs/here.md, and", "https://host/do+cs/x.md", "other/do+cs/x.md", "do+cs/x.mdx", "do+cs/ is"]
        {
            assert!(lines(fine).is_empty(), "{fine}");
        }
    }
}
