//! Reports: a table for the terminal, and Markdown between markers.

use super::row::{Power, Row};
use super::verdict::{Meaning, Verdict};
use super::{Draws, PAPER_COUNT, Reproduction};
use serde::Serialize;
use std::fmt::Write;

/// All rows, with what they were computed from.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Commit of the sources.
    pub commit: String,
    /// Seed of loads and drawn values.
    pub seed: u64,
    /// Runs of the rows that it changes.
    pub runs: u64,
    /// Number of rows of each verdict, in the order of [`Verdict::ALL`].
    pub counts: Vec<(Verdict, usize)>,
    /// Number of reproduced rows that are the paper's own arithmetic: no model computed them.
    pub arithmetic: usize,
    /// Number of reproduced rows that could not come out otherwise.
    pub tied: usize,
    /// The papers.
    pub papers: Vec<Reproduction>,
}

impl Report {
    /// Counts verdicts.
    #[must_use]
    pub fn new(commit: String, draws: Draws, papers: Vec<Reproduction>) -> Self {
        let rows = || papers.iter().flat_map(|paper| &paper.rows);
        let counts = counts(&rows());
        let [arithmetic, tied] = [Power::Arithmetic, Power::Tied].map(|power| reproduced(rows(), power));
        Self { commit, seed: draws.seed, runs: draws.runs, counts, arithmetic, tied, papers }
    }

    /// Verdicts with their numbers, in words.
    #[must_use]
    pub fn counted(&self) -> String {
        counted(&self.counts, self.arithmetic, self.tied)
    }
}

fn counts<'a>(rows: &(impl Iterator<Item = &'a Row> + Clone)) -> Vec<(Verdict, usize)> {
    Verdict::ALL.map(|verdict| (verdict, rows.clone().filter(|row| row.verdict == verdict).count())).to_vec()
}

/// Rows that are reproduced by this only.
fn reproduced<'a>(rows: impl Iterator<Item = &'a Row>, power: Power) -> usize {
    rows.filter(|row| row.verdict == Verdict::Reproduced && row.power == power).count()
}

/// The verdicts of a paper's rows with their numbers, in words.
#[must_use]
pub fn counted_of(paper: &Reproduction) -> String {
    let [arithmetic, tied] = [Power::Arithmetic, Power::Tied].map(|power| reproduced(paper.rows.iter(), power));
    counted(&counts(&paper.rows.iter()), arithmetic, tied)
}

fn counted(counts: &[(Verdict, usize)], arithmetic: usize, tied: usize) -> String {
    let own = |verdict: Verdict| {
        let parts = [(arithmetic, "the paper's own arithmetic"), (tied, "could not come out otherwise")];
        let parts: Vec<String> =
            parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
        if verdict == Verdict::Reproduced && !parts.is_empty() {
            format!(" (of them {})", parts.join(", "))
        } else {
            String::new()
        }
    };
    let parts = counts.iter().map(|&(verdict, count)| format!("{count} {verdict}{}", own(verdict)));
    parts.collect::<Vec<_>>().join(", ")
}

/// A value with four significant digits at most.
#[must_use]
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "unbounded".to_owned();
    }
    let magnitude = if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 };
    let text = format!("{value:.*}", (3 - magnitude).clamp(0, 6) as usize);
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let (whole, rest) = digits.split_once('.').map_or((digits, ""), |(whole, rest)| (whole, rest));
    if whole.len() < 5 {
        return text.to_owned();
    }
    let first = whole.len() % 3;
    let groups = (first..whole.len()).step_by(3).map(|at| &whole[at..at + 3]);
    let groups: Vec<&str> = std::iter::once(&whole[..first]).filter(|part| !part.is_empty()).chain(groups).collect();
    format!("{sign}{}{}{rest}", groups.join(","), if rest.is_empty() { "" } else { "." })
}

fn numbers(values: &[f64]) -> String {
    values.iter().map(|value| number(*value)).collect::<Vec<_>>().join(", ")
}

fn unit(row: &Row) -> String {
    if row.unit.is_empty() { String::new() } else { format!(" {}", row.unit) }
}

/// The paper's values.
#[must_use]
pub fn claimed(row: &Row) -> String {
    let bound = match row.meaning {
        Meaning::Equal => "",
        Meaning::AtMost => "≤ ",
        Meaning::AtLeast => "≥ ",
    };
    let ranges: Vec<String> =
        row.ranges.iter().map(|(least, most)| format!("{} to {}", number(*least), number(*most))).collect();
    let values = if ranges.is_empty() { numbers(row.paper) } else { ranges.join(", ") };
    format!("{bound}{values}{}", unit(row))
}

/// Our values, and those that follow from the paper's other numbers.
#[must_use]
pub fn ours(row: &Row) -> String {
    let half = |at: usize| row.interval.as_ref().map(|interval| (interval.high[at] - interval.low[at]) / 2.0);
    let value = |(at, value): (usize, &f64)| match half(at) {
        Some(half) if half > 0.0 => format!("{} ± {}", number(*value), rounded(half)),
        _ => number(*value),
    };
    let values = || row.ours.iter().enumerate().map(value).collect::<Vec<_>>().join(", ");
    let own = (!row.ours.is_empty()).then(|| format!("{}{}", values(), unit(row)));
    let implied = row.implied.as_ref().filter(|_| own.is_none() || row.verdict == Verdict::SelfContradictory);
    let implied = implied.map(|implied| format!("{}{} by its own numbers", numbers(implied), unit(row)));
    own.into_iter().chain(implied).collect::<Vec<_>>().join("; ")
}

/// The largest relative difference.
#[must_use]
pub fn deviation(row: &Row) -> String {
    match row.deviation {
        Some(part) if part.abs() < 10.0 => format!("{:+.0} %", 100.0 * part),
        Some(part) => format!("×{}", number(1.0 + part)),
        None => String::new(),
    }
}

/// Half of an interval, to two digits.
pub(super) fn rounded(half: f64) -> String {
    let unit = 10_f64.powf(half.log10().floor() - 1.0);
    number((half / unit).round() * unit)
}

/// The verdict, and others over the range of open parameters.
#[must_use]
pub fn verdict(row: &Row) -> String {
    if row.verdict == Verdict::DependsOn {
        return format!("depends on {}", row.depends_on.join(", "));
    }
    if row.verdict == Verdict::Undecided {
        let by = if row.interval.is_some() { "chance" } else { "rounding" };
        return format!("undecided: within {by}");
    }
    if row.elsewhere.is_empty() {
        return row.verdict.to_string();
    }
    let others: Vec<String> = row.elsewhere.iter().map(ToString::to_string).collect();
    format!("{} (elsewhere in the range: {})", row.verdict, others.join(", "))
}

/// The parameters with the largest effects.
fn sensitive(row: &Row) -> String {
    if !row.fixed.is_empty() {
        return format!("none: {}", row.fixed);
    }
    if !row.sensitivity.is_empty() && row.sensitivity.iter().all(|one| one.effect < 0.005) {
        let names: Vec<&str> = row.sensitivity.iter().map(|one| one.parameter.as_str()).collect();
        return format!("hardly to {}", names.join(", "));
    }
    let each = row.sensitivity.iter().filter(|one| one.effect >= 0.005).take(2);
    let text = |one: &super::row::Sensitivity| {
        let settings = one.settings.iter().zip(&one.ours);
        let settings: Vec<String> = settings.map(|(at, ours)| format!("{at}: {}", numbers(ours))).collect();
        format!("{} ({})", one.parameter, settings.join("; "))
    };
    each.map(text).collect::<Vec<_>>().join(", ")
}

/// Reasons and fitted parameters.
fn reasons(row: &Row) -> String {
    let fitted = (!row.fitted.is_empty()).then(|| format!("fitted: {}", row.fitted.join(", ")));
    let why = (!row.why.is_empty()).then(|| row.why.to_owned());
    let tied = (!row.tied.is_empty()).then(|| format!("could not come out otherwise: {}", row.tied));
    why.into_iter().chain(fitted).chain(tied).collect::<Vec<_>>().join("; ")
}

fn what(row: &Row) -> String {
    let over = row.axis.map(|axis| format!(" over {axis} {}", numbers(row.at)));
    let names = (!row.names.is_empty()).then(|| format!(": {}", row.names.join(", ")));
    format!("{}{}{}", row.what, over.unwrap_or_default(), names.unwrap_or_default())
}

/// The line of a row in the document.
#[must_use]
pub fn markdown_line(row: &Row) -> String {
    let cells = [
        format!("`{}`", row.id.split_once('.').map_or(row.id, |(_, rest)| rest)),
        what(row),
        claimed(row),
        ours(row),
        deviation(row),
        verdict(row),
        reasons(row),
        sensitive(row),
    ];
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |", cells.join(" | ")).replace("|  |", "| |").replace("|  |", "| |")
}

/// The section of a paper in the document, without its markers.
#[must_use]
pub fn markdown(paper: &Reproduction) -> String {
    let mut text = format!(
        "{} rows: {}.\n\n| row | what | paper | here | off by | verdict | why | sensitive to |\n\
         |---|---|---|---|---|---|---|---|\n",
        paper.rows.len(),
        counted_of(paper)
    );
    for row in &paper.rows {
        let _ = writeln!(text, "{}", markdown_line(row));
    }
    text
}

fn section(document: &str, name: &str, text: &str) -> Result<String, String> {
    const END: &str = "<!-- end -->";
    let marker = format!("<!-- generated: reproduce {name} -->\n");
    let start = document.find(&marker).ok_or_else(|| marker.trim_end().to_owned())? + marker.len();
    let len = document[start..].find(END).ok_or_else(|| END.to_owned())?;
    Ok([&document[..start], text, &document[start + len..]].concat())
}

/// Replaces the sections of whole papers in a document, and those of groups and counts if all papers are
/// whole. Each lies between
/// `<!-- generated: reproduce ID -->` and `<!-- end -->`.
///
/// # Errors
/// Returns the marker that the document lacks.
pub fn replaced(document: &str, report: &Report) -> Result<String, String> {
    let mut document = document.to_owned();
    for paper in report.papers.iter().filter(|paper| paper.is_whole) {
        document = section(&document, paper.paper, &markdown(paper))?;
    }
    let all = report.papers.len() == PAPER_COUNT && report.papers.iter().all(|paper| paper.is_whole);
    if all {
        let sections =
            [("groups", super::groups::markdown(&report.papers)), ("counts", super::groups::counts(&report.papers))];
        for (name, text) in sections {
            document = section(&document, name, &text)?;
        }
    }
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.123_456, "0.1235"),
            (94.7, "94.7"),
            (1_549.0, "1549"),
            (230_400.0, "230,400"),
            (-1_234_567.0, "-1,234,567"),
            (1.0, "1"),
            (f64::INFINITY, "unbounded"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
