//! Edits of JSON texts: most leave valid JSON with another number, name or structure.

use super::super::edit::number;
use super::super::input::Input;
use std::ops::Range;

const ODD: [&str; 16] = [
    "null",
    "true",
    "\"\"",
    "[]",
    "{}",
    "-1",
    "0.5",
    "1e999",
    "18446744073709551616",
    "[[1]]",
    "\"x\"",
    "[0,0]",
    "[1,2,3]",
    "\"F8_E4M3\"",
    "\"BF16\"",
    "{\"a\":{}}",
];

/// The places of numbers and of strings in a text.
fn tokens(text: &[u8]) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
    let (mut numbers, mut strings) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < text.len() {
        let from = at;
        at += 1;
        if text[from] == b'"' {
            while at < text.len() && text[at] != b'"' {
                at += 1;
            }
            at = (at + 1).min(text.len());
            strings.push(from..at);
        } else if text[from].is_ascii_digit() {
            while at < text.len() && text[at].is_ascii_digit() {
                at += 1;
            }
            numbers.push(from..at);
        }
    }
    (numbers, strings)
}

fn pick(input: &mut Input<'_>, places: &[Range<usize>]) -> Range<usize> {
    places.get(input.below(places.len().max(1) as u64) as usize).cloned().unwrap_or(0..0)
}

/// Changes a text once.
pub fn change(input: &mut Input<'_>, text: &mut Vec<u8>) {
    let (numbers, strings) = tokens(text);
    let kept = text.clone();
    let (at, new): (Range<usize>, Vec<u8>) = match input.byte() % 16 {
        0..=3 => (pick(input, &numbers), number(input).to_string().into_bytes()),
        4 | 5 => {
            let at = pick(input, &numbers);
            let old: u64 = std::str::from_utf8(&kept[at.clone()]).ok().and_then(|old| old.parse().ok()).unwrap_or(0);
            let by = input.below(9);
            let new = if input.chance(128) { old.wrapping_sub(by) } else { old.wrapping_add(by) };
            (at, new.to_string().into_bytes())
        }
        6 | 7 => {
            let (at, other) = (pick(input, &numbers), pick(input, &numbers));
            (at, kept[other].to_vec())
        }
        8..=10 => {
            let (at, other) = (pick(input, &strings), pick(input, &strings));
            (at, kept[other].to_vec())
        }
        11 => (pick(input, &numbers), ODD[input.below(16) as usize].into()),
        12 => (pick(input, &strings), ODD[input.below(16) as usize].into()),
        13 => {
            let depth = 1 + input.below(300) as usize;
            (pick(input, &numbers), ["[".repeat(depth), "]".repeat(depth)].concat().into_bytes())
        }
        14 => {
            // A list of a number, as long as lists may be.
            let (at, count) = (pick(input, &numbers), 1 + input.below(5000) as usize);
            let old = String::from_utf8_lossy(&kept[at.clone()]).into_owned();
            (at, vec![old; count].join(",").into_bytes())
        }
        _ => {
            let (at, length) = (input.below(kept.len() as u64 + 1) as usize, input.below(20) as usize);
            (at..(at + length).min(kept.len()), Vec::new())
        }
    };
    text.splice(at, new);
}
