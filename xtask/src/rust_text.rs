//! Rust source as tidiness checks need it: text without comments and literals, words, test modules.

use std::ops::Range;

/// The same text with comments, strings and character literals replaced by blanks, byte for byte,
/// so that positions and lines stay. Unfinished literals extend to the end.
pub fn blank_out(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut kept = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => find(bytes, at, b"\n"),
            b'/' if bytes[at..].starts_with(b"/*") => end_of_block_comment(bytes, at),
            b'"' => end_of_string(bytes, at + 1),
            b'\'' => end_of_character(bytes, at),
            b'r' if !is_word(before(bytes, at)) || matches!(before(bytes, at), b'b' | b'c') => {
                end_of_raw_string(bytes, at)
            }
            _ => at,
        };
        if end == at {
            at += 1;
        } else {
            kept[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
            at = end;
        }
    }
    String::from_utf8(kept).expect("whole literals and comments were replaced")
}

fn before(bytes: &[u8], at: usize) -> u8 {
    at.checked_sub(1).map_or(b' ', |previous| bytes[previous])
}

/// Whether a byte can be part of an identifier. Letters beyond ASCII count.
pub const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn find(bytes: &[u8], from: usize, needle: &[u8]) -> usize {
    let found = bytes[from..].windows(needle.len()).position(|window| window == needle);
    found.map_or(bytes.len(), |position| from + position)
}

fn end_of_block_comment(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            (at, depth) = (at + 2, depth + 1);
        } else if bytes[at..].starts_with(b"*/") {
            (at, depth) = (at + 2, depth - 1);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn end_of_string(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// `'x'` and `'\n'` are characters; `'a` alone is a lifetime and stays.
fn end_of_character(bytes: &[u8], start: usize) -> usize {
    let rest = std::str::from_utf8(&bytes[start + 1..]).unwrap_or_default();
    let mut characters = rest.char_indices();
    match characters.next() {
        Some((_, '\\')) => {
            // The escaped character itself may be a quote.
            let from = (start + 3).min(bytes.len());
            (find(bytes, from, b"'") + 1).min(bytes.len())
        }
        Some(_) => match characters.next() {
            Some((position, '\'')) => start + 1 + position + 1,
            _ => start,
        },
        None => start,
    }
}

/// `r"…"` and `r#"…"#`; `start` itself if neither begins.
fn end_of_raw_string(bytes: &[u8], start: usize) -> usize {
    let hashes = bytes[start + 1..].iter().take_while(|byte| **byte == b'#').count();
    if bytes.get(start + 1 + hashes) != Some(&b'"') {
        return start;
    }
    let mut closing = vec![b'"'];
    closing.resize(1 + hashes, b'#');
    (find(bytes, start + 2 + hashes, &closing) + closing.len()).min(bytes.len())
}

/// Positions of `word` as a whole word.
pub fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let bytes = text.as_bytes();
        !is_word(before(bytes, *at)) && !bytes.get(at + word.len()).copied().is_some_and(is_word)
    })
}

/// The line of a position, counted from 1.
pub fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count()
}

/// The bodies of `mod x { … }` under an attribute `#[cfg(test)]` or `#[cfg(all(test, …))]`.
/// `blanked` is what [`blank_out`] gave.
pub fn test_modules(blanked: &str) -> Vec<Range<usize>> {
    let mut modules = Vec::new();
    for (at, _) in blanked.match_indices("#[cfg(") {
        let Some(length) = blanked[at..].find(']') else { continue };
        let condition: String = blanked[at..at + length].split_whitespace().collect();
        if words(&condition, "test").next().is_none() || condition.contains("not(test") {
            continue;
        }
        // Other attributes and a visibility may be between.
        let rest = &blanked[at + length..];
        let Some(open) = rest.find('{') else { continue };
        let is_module = words(&rest[..open], "mod").next().is_some() && !rest[..open].contains(';');
        if is_module {
            let start = at + length + open;
            modules.push(start..end_of_braces(blanked, start));
        }
    }
    modules
}

fn end_of_braces(blanked: &str, start: usize) -> usize {
    let mut depth = 0;
    for (position, byte) in blanked.as_bytes()[start..].iter().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return start + position + 1,
            b'}' => depth -= 1,
            _ => (),
        }
    }
    blanked.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_comments_become_blanks() {
        for (text, wanted) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("x\"y", z)"#, "f(      , z)"),
            ("r\"\\\" s", "r\"\\\" s".replace("r\"\\\"", "    ").as_str()),
            ("r##\"a\"#b\"## c", "            c"),
            ("br\"ab\" c", "b      c"),
            ("for\"x\"", "for   "),
            ("'a' 'b: &'static '\\'' '\\\\' x", "    'b: &'static           x"),
            ("'é' y", "     y"),
            ("r#type \"open", "r#type      "),
            ("c\"x\" b'q'", "c    b   "),
        ] {
            assert_eq!(blank_out(text), wanted, "{text}");
            assert_eq!(blank_out(text).len(), text.len(), "{text}");
        }
    }

    #[test]
    fn words_stand_alone() {
        assert_eq!(words("rand brand rand_x x::rand", "rand").collect::<Vec<_>>(), [0, 21]);
        assert_eq!(line_of("a\nb\nc", 4), 3);
    }

    #[test]
    fn test_modules_are_found_with_their_braces() {
        let text = "mod a { x } #[cfg(test)]\nmod tests { fn f() { y } } z #[cfg(not(test))] mod b { w } \
                    #[cfg(all(test, unix))] #[allow(x)] pub mod c { v } #[cfg(test)] mod tests; struct S { u }";
        let found: Vec<&str> = test_modules(text).into_iter().map(|range| &text[range]).collect();
        assert_eq!(found, ["{ fn f() { y } }", "{ v }"]);
    }
}
