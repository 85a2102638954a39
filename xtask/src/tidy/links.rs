//! Documents that texts refer to exist, with the part that they name: links of Markdown files, and every
//! document below the documentation folder that any text names. The index of that folder lists all of it.

use super::{Finding, SourceFile, Tree};
use crate::markdown::{anchors, links, resolve};
use crate::rust_text::is_word;
use std::collections::{BTreeMap, BTreeSet};

/// The index of all pages, from which the book's contents are made.
pub const INDEX: &str = "docs/README.md";

/// The anchors of each page, by path.
type Anchors<'a> = BTreeMap<&'a str, BTreeSet<String>>;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let pages = tree.files.iter().filter(|file| file.path.ends_with(".md"));
    let anchors: Anchors<'_> = pages.map(|file| (file.path.as_str(), anchors(&file.text))).collect();
    let mut findings = Vec::new();
    for file in &tree.files {
        for (at, document, anchor) in named_documents(&file.text) {
            if !tree.exists(document) {
                let advice = format!("`{document}` does not exist; write it or name another document");
                findings.push(file.finding_at(at, advice));
            } else if !has_anchor(&anchors, document, anchor) {
                findings.push(
                    file.finding_at(at, format!("`{document}` has no heading `#{anchor}`; name one that it has")),
                );
            }
        }
        if file.path.ends_with(".md") {
            findings.extend(dead_links(tree, &anchors, file));
        }
    }
    findings.extend(unlisted(tree));
    findings
}

/// Pages of the documentation that its index does not list: neither a reader nor the book finds them.
fn unlisted(tree: &Tree) -> Vec<Finding> {
    let Some(index) = tree.files.iter().find(|file| file.path == INDEX) else { return Vec::new() };
    let (folder, _) = INDEX.rsplit_once('/').expect("it lies in a folder");
    let listed: BTreeSet<String> =
        links(&index.text).iter().filter_map(|(_, target)| resolve(folder, target.split('#').next()?)).collect();
    let is_page =
        |file: &&SourceFile| file.path.starts_with("docs/") && file.path.ends_with(".md") && file.path != INDEX;
    let missing = tree.files.iter().filter(is_page).filter(|file| !listed.contains(&file.path));
    missing.map(|file| file.finding(1, format!("{INDEX} does not list this page; add a row"))).collect()
}

/// Whether a file has a part. Only those of pages are known.
fn has_anchor(anchors: &Anchors<'_>, path: &str, anchor: &str) -> bool {
    anchor.is_empty() || anchors.get(path).is_none_or(|known| known.contains(anchor))
}

/// Documents named by their path from the root, as `// docs/…` comments do, each with the part after `#`.
fn named_documents(text: &str) -> Vec<(usize, &str, &str)> {
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
            let anchor = text[at + end + 3..].strip_prefix('#').unwrap_or_default();
            let length = anchor.bytes().take_while(|byte| is_word(*byte) || *byte == b'-').count();
            found.push((at, &text[at..at + end + 3], &anchor[..length]));
        }
    }
    found
}

fn dead_links(tree: &Tree, anchors: &Anchors<'_>, file: &SourceFile) -> Vec<Finding> {
    let directory = file.path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let mut findings = Vec::new();
    for (line, target) in links(&file.text) {
        let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
        let path = path.split('?').next().unwrap_or_default();
        if path.contains(':') || path.starts_with('/') {
            continue;
        }
        let resolved = if path.is_empty() { Some(file.path.clone()) } else { resolve(directory, path) };
        match resolved.filter(|resolved| tree.exists(resolved)) {
            None => {
                let advice = format!("the link to `{target}` is dead; point it at a file that exists");
                findings.push(file.finding(line, advice));
            }
            Some(resolved) if !has_anchor(anchors, &resolved, anchor) => {
                let advice = format!("the link to `{target}` is dead; {resolved} has no such heading");
                findings.push(file.finding(line, advice));
            }
            Some(_) => {}
        }
    }
    findings
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
        for dead in [
            "[x](#part)",
            "# A part\n[x](here.md#part)",
            "[x](nowhere.md)",
            "[x]: nowhere",
            "![x](../a/b/d.png)",
            "[x](../../out)",
            "a\n[x](no \"title\")",
        ] {
            assert_eq!(lines(dead).len(), 1, "{dead}");
        }
        for alive in [
            "# A `part`, or two\n[x](here.md#a-part-or-two) [y](#a-part-or-two) [z](https://host/x.md) [w](mailto:a@b)",
            "![x](../a/b/c.png) [y](../README.md \"title\") [z](..) [w](../a/)",
            "```\n[x](nowhere)\n```\nand `[x](nowhere)`",
            "[x]: ../README.md",
        ] {
            assert!(lines(alive).is_empty(), "{alive}");
        }
    }

    #[test]
    fn the_index_lists_all_pages() {
        let index = "do+cs/README.md".replace('+', "");
        let page = |name: &str| format!("do+cs/{name}").replace('+', "");
        let (one, other) = (page("a/one.md"), page("b/other.md"));
        let tree = Tree::of(&[(&index, "[one](a/one.md#x)"), (&one, "# x"), (&other, "")]);
        let found: Vec<String> = check(&tree).into_iter().map(|finding| finding.path).collect();
        assert_eq!(found, [other]);
    }

    #[test]
    fn named_documents_exist() {
        assert_eq!(lines("x\nsee do+cs/gone.md#part"), [2]);
        assert_eq!(lines("(do+cs/deep/gone.md)"), [1]);
        assert_eq!(lines("# A part\nsee do+cs/here.md#part, and do+cs/here.md#a-part."), [2]);
        for fine in
            ["see do+cs/here.md, and", "https://host/do+cs/x.md", "other/do+cs/x.md", "do+cs/x.mdx", "do+cs/ is"]
        {
            assert!(lines(fine).is_empty(), "{fine}");
        }
    }
}
