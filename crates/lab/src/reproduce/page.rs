//! The HTML page of all rows: one file without scripts or external resources.
//!
//! A row is one line that opens: verdict, name, the paper's values, ours, and a strip that draws ours over the
//! paper's. Rows of a table or figure stand together, above one paragraph with their reasons.

mod chart;
mod group;
mod line;
mod mark;
mod overview;
mod sources;
mod strip;
mod words;

use super::Reproduction;
use super::report::Report;
use group::Group;
use std::fmt::Write;
use words::escaped;

const TITLE: &str = "Five papers, recomputed";
const STYLE: &str = include_str!("page/style.css");

/// The page. `command` is the command line that made it.
#[must_use]
pub fn html(report: &Report, command: &str) -> String {
    let mut body = overview::head(report, command);
    body += &overview::verdicts(report);
    body += &overview::contents(report);
    body += &overview::reading();
    body += &overview::lists(report);
    body += &overview::questions(report);
    for paper in &report.papers {
        body += &section(paper, report.seed);
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>{TITLE}</title>\n\
         <style>\n{STYLE}</style>\n<body>\n{body}</body>\n</html>\n"
    )
}

/// The part of a paper.
fn section(paper: &Reproduction, seed: u64) -> String {
    let source = sources::of(paper.paper);
    let mut text = format!("<section class=\"paper\" id=\"{}\">\n<h2>{}</h2>\n", paper.paper, escaped(source.name));
    let place = match source.link {
        Some(link) => format!("<a href=\"{link}\">{}</a>", escaped(source.place)),
        None => escaped(source.place),
    };
    let _ = writeln!(text, "<p class=\"title\"><cite>{}</cite> {}, {place}.</p>", escaped(paper.title), source.authors);
    let counts = mark::counts(&paper.rows);
    let counts = counts.iter().filter(|(_, count)| *count > 0);
    let tally: String = counts
        .map(|(mark, count)| {
            format!(
                "<a class=\"{}\" href=\"#{}\">{} {count} {}</a> ",
                mark.class(),
                mark.list_of(paper.paper),
                mark.sign(),
                mark
            )
        })
        .collect();
    let _ = writeln!(text, "<p class=\"tally\">{tally}</p>");
    let groups = Group::all(paper, source.name);
    text += &group::distributions(&groups);
    text += &line::heads(source.name);
    for group in &groups {
        text += &group.html(seed);
    }
    text + "</section>\n"
}

#[cfg(test)]
mod tests;
