//! A row: one line, and what opens below it.

use super::chart;
use super::mark::Mark;
use super::strip::strip;
use super::words::{self, claimed, claims, columns, computed, escaped, half, relation, short, what};
use crate::reproduce::report::number;
use crate::reproduce::row::Row;
use crate::reproduce::verdict::{Meaning, Verdict};
use std::fmt::Write;

/// Effect of a parameter that is worth a line.
const WORTH: f64 = 0.005;

/// Heads of the columns, above a paper's rows; they stay in sight.
pub(super) fn heads(paper: &str) -> String {
    format!(
        "<div class=\"heads\" aria-hidden=\"true\"><b>{}</b><span>verdict</span><span>what, and the row’s name</span>\
         <span>paper</span><span>here</span>\
         <span class=\"scale\"><i>÷10</i><i>÷2</i><i>paper</i><i>×2</i><i>×10</i></span></div>\n",
        escaped(paper)
    )
}

/// A row.
pub(super) fn html(row: &Row, seed: u64) -> String {
    let mark = Mark::of(row);
    let id = row.id;
    format!(
        "<details class=\"row {}\" id=\"{id}\"><summary><span class=\"badge\">{} {mark}{}</span>\
         <span class=\"what\">{} <a class=\"name\" href=\"#{id}\">{}</a></span>\
         <span class=\"value\"><b>{}</b>{}</span><span class=\"value\"><b>here</b>{}</span>{}</summary>\n{}</details>\n",
        mark.class(),
        mark.sign(),
        elsewhere(row),
        escaped(&what(row)),
        escaped(short(id)),
        if row.meaning == Meaning::Equal { "paper" } else { "bound" },
        escaped(&claimed(row)),
        ours(row),
        strip(row),
        more(row, seed)
    )
}

/// Verdicts at the settings of open parameters, beside the row's.
fn elsewhere(row: &Row) -> String {
    if row.elsewhere.is_empty() {
        return String::new();
    }
    let names: Vec<String> = row.elsewhere.iter().map(|verdict| Mark::from(*verdict).to_string()).collect();
    let signs: String = row.elsewhere.iter().map(|verdict| Mark::from(*verdict).sign()).collect();
    let or = if row.verdict == Verdict::DependsOn { "" } else { "or " };
    let title = format!("{} at settings of open parameters", names.join(", "));
    format!("<small title=\"{}\">{or}{signs}</small>", escaped(&title))
}

/// Our values, and those by the paper's own numbers where they judge the row.
fn ours(row: &Row) -> String {
    let own = escaped(&words::ours(row));
    if row.verdict == Verdict::NotTestable {
        return if own.is_empty() {
            "–".to_owned()
        } else {
            format!("<i title=\"of another design or measure\">{own}</i>")
        };
    }
    let judges = row.ours.is_empty() || row.verdict == Verdict::SelfContradictory;
    match row.implied.as_ref().filter(|_| judges) {
        Some(implied) => {
            let implied = escaped(&computed(row, implied));
            let space = if own.is_empty() { "" } else { "<br>" };
            format!("{own}{space}<em title=\"by the paper’s own numbers\">{implied}</em>")
        }
        None if own.is_empty() => "–".to_owned(),
        None => own,
    }
}

/// What opens: all values with all settings, a plot of a sweep, and how to run it.
fn more(row: &Row, seed: u64) -> String {
    let mut text = String::from("<div class=\"more\">");
    if !row.paper.is_empty() || !row.ours.is_empty() {
        text += &matrix(row);
    }
    text += &chart::sweep(row);
    let question = row.group.map_or_else(String::new, |letter| {
        format!("Its verdict was doubted: <a href=\"#question-{letter}\">question {letter}</a>.<br>")
    });
    let facts = facts(row);
    let _ = writeln!(text, "<p>{question}{facts}<code>cenote-lab reproduce {} --seed {seed}</code></p></div>", row.id);
    text
}

/// What the row depends on, fitted parameters, and why none has an effect.
fn facts(row: &Row) -> String {
    let mut facts = Vec::new();
    if let Some(by) = words::undecided(row) {
        facts.push(format!("The difference is {by}."));
    } else if !row.depends_on.is_empty() {
        facts.push(format!("The claim holds at some settings of {} and not at others.", row.depends_on.join(", ")));
    }
    if row.runs > 1 {
        facts.push(format!("Mean of {} runs with other seeds; intervals of 99 %.", row.runs));
    }
    if !row.tied.is_empty() {
        facts.push(format!("It could not come out otherwise: {}.", row.tied));
    }
    if !row.fitted.is_empty() {
        facts.push(format!("Fitted: {}.", row.fitted.join(", ")));
    }
    if !row.fixed.is_empty() {
        facts.push(format!("No open parameter has an effect: {}.", row.fixed));
    }
    let hardly: Vec<&str> =
        row.sensitivity.iter().filter(|one| one.effect < WORTH).map(|one| one.parameter.as_str()).collect();
    if !hardly.is_empty() {
        facts.push(format!("Hardly sensitive to {}.", hardly.join(", ")));
    }
    if facts.is_empty() { String::new() } else { escaped(&facts.join(" ")) + "<br>" }
}

/// All values, a column for each, with those of other settings.
fn matrix(row: &Row) -> String {
    let texts = |values: &[f64]| values.iter().map(|value| number(*value)).collect::<Vec<_>>();
    let mut out = String::from("<div class=\"scroll\"><table>\n");
    let mut line = |class: &str, tag: &str, head: &str, cells: &[String]| {
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        let _ = writeln!(out, "<tr{class}><th>{}</th>{cells}</tr>", escaped(head));
    };
    let columns = columns(row);
    let unit = if row.unit.is_empty() { String::new() } else { format!(", {}", row.unit) };
    if !columns.is_empty() {
        line("", "th", row.axis.unwrap_or_default(), &columns);
    }
    let claims: Vec<String> = claims(row).iter().map(|claim| format!("{}{claim}", relation(row))).collect();
    let name = if row.meaning == Meaning::Equal { "paper" } else { "bound" };
    if !claims.is_empty() {
        line(" class=\"claim\"", "td", &format!("{name}{unit}"), &claims);
    }
    let is_judged = row.verdict != Verdict::NotTestable;
    if !row.ours.is_empty() {
        let name = if is_judged { "here" } else { "here, another design or measure" };
        line(" class=\"ours\"", "td", &format!("{name}{unit}"), &texts(&row.ours));
    }
    if row.interval.is_some() {
        let halves: Vec<String> = (0..row.ours.len()).map(|at| half(row, at).unwrap_or_default()).collect();
        line("", "td", "±", &halves);
    }
    if let Some(implied) = &row.implied {
        line(" class=\"implied\"", "td", &format!("by its own numbers{unit}"), &texts(implied));
    }
    let compared = if row.ours.is_empty() { row.implied.as_deref().unwrap_or_default() } else { &row.ours };
    if is_judged && !compared.is_empty() {
        let name = if row.meaning == Meaning::Equal { "off by" } else { "margin" };
        let each: Vec<String> = (0..row.paper.len()).map(|at| distance(row, at, compared)).collect();
        line("", "td", name, &each);
    }
    for one in row.sensitivity.iter().filter(|one| one.effect >= WORTH) {
        for (setting, ours) in one.settings.iter().zip(&one.ours) {
            let aside = if one.is_aside { " (aside)" } else { "" };
            line(" class=\"setting\"", "td", &format!("{} = {setting}{aside}", one.parameter), &texts(ours));
        }
    }
    out + "</table></div>\n"
}

/// A value's difference from the paper's; for a bound, how far it stays on the allowed side.
fn distance(row: &Row, at: usize, compared: &[f64]) -> String {
    let (Some(&paper), Some(&ours)) = (row.paper.get(at), compared.get(at)) else { return String::new() };
    let nearest = row.ranges.get(at).map_or(paper, |&(least, most)| ours.clamp(least, most));
    let part = if nearest == ours { 0.0 } else { (ours - nearest) / nearest.abs() };
    let part = if row.meaning == Meaning::AtMost { -part } else { part };
    match part {
        part if !part.is_finite() => "–".to_owned(),
        part if part.abs() < 10.0 => format!("{:+.0}\u{a0}%", 100.0 * part + 0.0),
        part if part > 0.0 && row.meaning != Meaning::AtMost => format!("×{}", number(1.0 + part)),
        part => format!("{:+.0}×", part),
    }
}
