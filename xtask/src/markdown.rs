//! What a page in Markdown links to, and what can be linked in it.

use crate::rust_text::line_of;
use std::collections::{BTreeMap, BTreeSet};

/// Targets of `[text](target)` and `[name]: target`, with their lines. Code is no link.
pub fn links(text: &str) -> Vec<(usize, String)> {
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
    let mut kept = String::with_capacity(text.len());
    for (is_code, line) in lines(text) {
        if !is_code {
            // Every second piece between backquotes is code.
            let outside = line.split('`').step_by(2).collect::<Vec<_>>().join(" ");
            kept.push_str(&outside);
        }
        kept.push('\n');
    }
    kept
}

/// The lines, and whether each is in a fenced block or one of its fences.
fn lines(text: &str) -> impl Iterator<Item = (bool, &str)> {
    let mut fenced = false;
    text.lines().map(move |line| {
        let fence = line.trim_start().starts_with("```");
        let is_code = fenced || fence;
        fenced ^= fence;
        (is_code, line)
    })
}

/// Fenced blocks of a language: the line of each block's first line, and its text.
pub fn blocks<'a>(text: &'a str, language: &str) -> Vec<(usize, &'a str)> {
    let fence = format!("```{language}\n");
    let mut found = Vec::new();
    for (at, _) in text.match_indices(&fence).filter(|(at, _)| *at == 0 || text[..*at].ends_with('\n')) {
        let from = at + fence.len();
        let length = text[from..].find("\n```").map_or(text.len() - from, |end| end + 1);
        found.push((line_of(text, from), &text[from..from + length]));
    }
    found
}

/// Names of a page's headings, as viewers and the book make them, where an equal one gets a number; and ids that
/// the page sets itself.
pub fn anchors(text: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for (is_code, line) in lines(text) {
        if !is_code {
            found.extend(line.split("<a id=\"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
        let title = line.trim_start_matches('#');
        let level = line.len() - title.len();
        if is_code || !(1..=6).contains(&level) || !title.starts_with(' ') {
            continue;
        }
        let name = anchor(title.trim());
        let count = counts.entry(name.clone()).or_default();
        found.insert(if *count == 0 { name } else { format!("{name}-{count}") });
        *count += 1;
    }
    found
}

fn anchor(title: &str) -> String {
    // Of a link, the text counts.
    let mut shown = String::new();
    let mut rest = title;
    while let Some((before, target)) = rest.split_once("](") {
        shown += before;
        rest = target.split_once(')').map_or("", |(_, after)| after);
    }
    let kept = (shown + rest).to_lowercase();
    let kept = kept.chars().map(|letter| if letter == ' ' { '-' } else { letter });
    kept.filter(|letter| letter.is_alphanumeric() || "-_".contains(*letter)).collect()
}

/// `directory` and `path` as one path from the root; `None` above the root.
pub fn resolve(directory: &str, path: &str) -> Option<String> {
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

    #[test]
    fn headings_are_named_as_viewers_name_them() {
        let text = "# The `Pool`, [in](x.md) short\n## Limits\n## Limits\n```sh\n# no heading\n```\n#none\n### a_b — c\n<a id=\"own\"></a>x\n";
        let found: Vec<String> = anchors(text).into_iter().collect();
        assert_eq!(found, ["a_b--c", "limits", "limits-1", "own", "the-pool-in-short"]);
    }
}
