//! Texts of the page: values in few characters, and headings.

use crate::reproduce::report::{number, rounded};
use crate::reproduce::row::Row;
use crate::reproduce::verdict::{Meaning, Verdict};

pub(super) use crate::plot::escaped;

/// Values of a sweep that stand in one line beside others, and named ones.
const FEW: usize = 3;
const NAMED: usize = 5;

/// `table3` of `speckv.table3.hit-rate`.
pub(super) fn table_of(id: &str) -> &str {
    id.split('.').nth(1).unwrap_or(id)
}

/// `table3.hit-rate` of `speckv.table3.hit-rate`, as the document has it.
pub(super) fn short(id: &str) -> &str {
    id.split_once('.').map_or(id, |(_, rest)| rest)
}

/// `hit-rate` of `speckv.table3.hit-rate`.
pub(super) fn last(id: &str) -> &str {
    id.splitn(3, '.').last().unwrap_or(id)
}

/// The kind of a table's name, and its numbers: `s` and `3-4-2` of `s3-4-2`.
fn parts(table: &str) -> (&str, &str) {
    table.split_at(table.find(|letter: char| letter.is_ascii_digit()).unwrap_or(table.len()))
}

/// `Table 3` of `table3`, `§3.4.2` of `s3-4-2`, `§V-B` of `s5-b`.
pub(super) fn heading(table: &str) -> String {
    let (kind, number) = parts(table);
    match kind {
        "table" => format!("Table {number}"),
        "figure" => format!("Figure {number}"),
        "eq" => format!("Eq. {number}"),
        "algorithm" => format!("Algorithm {number}"),
        "s" => format!("§{}", section(number)),
        "abstract" => "Abstract".to_owned(),
        _ => table.to_owned(),
    }
}

/// A report with lettered parts numbers its sections in Roman.
fn section(number: &str) -> String {
    const ROMAN: [&str; 10] = ["0", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"];
    match number.split_once('-') {
        Some((whole, part)) if part.chars().all(|letter| letter.is_ascii_alphabetic()) => {
            let roman = whole.parse().ok().and_then(|whole: usize| ROMAN.get(whole));
            format!("{}-{}", roman.map_or(whole, |roman| *roman), part.to_uppercase())
        }
        _ => number.replace('-', "."),
    }
}

/// The order of headings in a paper: abstract, sections, equations, algorithms, tables, figures, by their numbers.
pub(super) fn order(table: &str) -> (usize, Vec<u32>) {
    let (kind, number) = parts(table);
    let kinds = ["abstract", "s", "eq", "algorithm", "table", "figure"];
    let rank = kinds.iter().position(|one| *one == kind).unwrap_or(kinds.len());
    (rank, number.split('-').map(|part| part.parse().unwrap_or(0)).collect())
}

/// The unit after a value. It stays on the value's line.
pub(super) fn unit(row: &Row) -> String {
    if row.unit.is_empty() { String::new() } else { format!("\u{a0}{}", row.unit.replace(' ', "\u{a0}")) }
}

/// Values in a line: all of a few, one of equal ones, the ends of a sweep.
pub(super) fn values(row: &Row, texts: &[String]) -> String {
    let unit = unit(row);
    match texts {
        [] => String::new(),
        [one] => one.clone() + &unit,
        [first, rest @ ..] if rest.iter().all(|one| one == first) => format!("{first}{unit}\u{a0}each"),
        [first, .., last] if texts.len() > FEW && row.axis.is_some() => format!("{first}\u{a0}… {last}{unit}"),
        _ if texts.len() > NAMED => format!("{} values{unit}", texts.len()),
        _ => texts.join(" · ") + &unit,
    }
}

/// `≥ ` before a bound. A bound at no effect stands for a word, such as "higher".
pub(super) fn relation(row: &Row) -> &'static str {
    let is_word = row.paper.iter().all(|value| *value == 1.0);
    match row.meaning {
        Meaning::Equal => "",
        Meaning::AtMost if is_word => "<\u{a0}",
        Meaning::AtLeast if is_word => ">\u{a0}",
        Meaning::AtMost => "≤\u{a0}",
        Meaning::AtLeast => "≥\u{a0}",
    }
}

/// The paper's values or ranges, one by one.
pub(super) fn claims(row: &Row) -> Vec<String> {
    if row.ranges.is_empty() {
        return row.paper.iter().map(|value| number(*value)).collect();
    }
    row.ranges.iter().map(|(least, most)| format!("{}–{}", number(*least), number(*most))).collect()
}

/// The paper's values in a line.
pub(super) fn claimed(row: &Row) -> String {
    match claims(row) {
        none if none.is_empty() => "–".to_owned(),
        texts => format!("{}{}", relation(row), values(row, &texts)),
    }
}

/// Numbers in a line.
pub(super) fn computed(row: &Row, numbers: &[f64]) -> String {
    values(row, &numbers.iter().map(|value| number(*value)).collect::<Vec<_>>())
}

/// Our values in a line; one value has half of its interval.
pub(super) fn ours(row: &Row) -> String {
    match (&row.ours[..], half(row, 0)) {
        ([one], Some(half)) => values(row, &[format!("{}\u{a0}±\u{a0}{half}", number(*one))]),
        (ours, _) => computed(row, ours),
    }
}

/// Half of a value's interval; `None` if seeds do not change it.
pub(super) fn half(row: &Row, at: usize) -> Option<String> {
    let interval = row.interval.as_ref()?;
    let half = (interval.high.get(at)? - interval.low.get(at)?) / 2.0;
    (half > 0.0).then(|| rounded(half))
}

/// What a row is, with the ends of its axis or the names of its values.
pub(super) fn what(row: &Row) -> String {
    let over = match (row.axis, row.at) {
        (Some(axis), [first, .., last]) => format!(" over {axis} {}\u{a0}…\u{a0}{}", number(*first), number(*last)),
        (Some(axis), _) => format!(" over {axis}"),
        (None, _) => String::new(),
    };
    let names = match row.names {
        [] => String::new(),
        [first, .., last] if row.names.len() > NAMED => format!(": {first}\u{a0}… {last}"),
        names => format!(": {}", names.join(", ")),
    };
    format!("{}{over}{names}", row.what)
}

/// The names of a row's values.
pub(super) fn columns(row: &Row) -> Vec<String> {
    if !row.at.is_empty() {
        return row.at.iter().map(|at| number(*at)).collect();
    }
    row.names.iter().map(|name| (*name).to_owned()).collect()
}

/// Text with its words in backticks as code, for a page.
pub(super) fn prose(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(at, part)| match at % 2 {
        1 => format!("<code>{}</code>", escaped(part)),
        _ => escaped(part),
    });
    parts.collect()
}

/// Why a row is undecided, if it is.
pub(super) fn undecided(row: &Row) -> Option<&'static str> {
    let by = if row.interval.is_some() { "within chance" } else { "within rounding" };
    (row.verdict == Verdict::Undecided).then_some(by)
}
