//! Python source as tidiness checks need it: text without comments and strings.

use crate::rust_text::is_word;

/// The same text with comments and the content of strings replaced by blanks, byte for byte, so that
/// positions and lines stay. Quotes stay: a blanked string is still an argument. Unfinished strings
/// of one line end with it.
pub fn blank_out(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut kept = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let (from, end) = match bytes[at] {
            b'#' => (at, line_end(bytes, at)),
            b'"' | b'\'' => string_at(bytes, at),
            _ => {
                at += 1;
                continue;
            }
        };
        kept[from..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        at = if bytes[at] == b'#' { end } else { (end + (from - at)).min(bytes.len()) };
    }
    String::from_utf8(kept).expect("whole strings and comments were replaced")
}

fn line_end(bytes: &[u8], from: usize) -> usize {
    bytes[from..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |length| from + length)
}

/// Start and end of the content of the string whose first quote is at `open`.
fn string_at(bytes: &[u8], open: usize) -> (usize, usize) {
    let quote = bytes[open];
    let is_long = bytes[open..].starts_with(&[quote; 3]);
    let width = if is_long { 3 } else { 1 };
    let from = open + width;
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            // In a raw string, too, a backslash keeps a quote from ending it.
            b'\\' => at += 2,
            b'\n' if !is_long => return (from, at),
            found if found == quote && bytes[at..].starts_with(&[quote; 3][..width]) => return (from, at),
            _ => at += 1,
        }
    }
    (from.min(bytes.len()), bytes.len())
}

/// Whether a text is a number as Python and Rust write it, such as `10_000`, `0.5`, `1e-9` or `30.0`.
pub fn is_number(text: &str) -> bool {
    let text = text.trim();
    let is_part = |(at, byte): (usize, u8)| match byte {
        b'-' | b'+' => text[..at].ends_with(['e', 'E']),
        _ => is_word(byte) || byte == b'.',
    };
    text.starts_with(|first: char| first.is_ascii_digit()) && text.bytes().enumerate().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_comments_become_blanks() {
        for (text, wanted) in [
            ("a # b 'c'\nd", "a        \nd"),
            ("f('x', \"y#\") # z", "f(' ', \"  \")    "),
            ("'''a\n'b''' c", "''' \n  ''' c"),
            (r#""\"" x"#, r#""  " x"#),
            (r"r'\' y", r"r'    "),
            ("'open\nnext", "'    \nnext"),
            ("'' z", "'' z"),
            ("\"\"\"é\"\"\" z", "\"\"\"  \"\"\" z"),
            ("f'{x}' y", "f'   ' y"),
        ] {
            assert_eq!(blank_out(text), wanted, "{text}");
            assert_eq!(blank_out(text).len(), text.len(), "{text}");
        }
    }

    #[test]
    fn numbers_are_known() {
        for text in ["0", "10", "10_000", "0.5", "1e-9", " 30.0 ", "5u64"] {
            assert!(is_number(text), "{text}");
        }
        for text in ["", "x", "PATIENCE", "2 * PATIENCE", "a.b", "\"1\"", "1 + n", "1-n"] {
            assert!(!is_number(text), "{text}");
        }
    }
}
