//! The structure of the page.

use super::mark::Mark;
use super::*;
use crate::reproduce::row::{Measured, Printed, Sensitivity, join};
use crate::reproduce::{Draws, PAPERS, Paper};
use std::collections::{BTreeMap, BTreeSet};

/// A report of all rows, with what is measured of each.
fn report_of(measure: impl Fn(usize, &Printed) -> Measured) -> Report {
    let row = |(at, printed): (usize, &Printed)| {
        let measured = (!printed.is_arithmetic).then(|| measure(at, printed));
        join(printed, measured.as_ref())
    };
    let of = |paper: &&Paper| Reproduction {
        paper: paper.id,
        title: paper.title,
        is_whole: true,
        rows: paper.printed.iter().enumerate().map(row).collect(),
    };
    Report::new("0123456".to_owned(), Draws { seed: 1, runs: 2 }, PAPERS.iter().map(of).collect())
}

fn scaled(printed: &Printed, factor: f64, why: &'static str) -> Measured {
    Measured::new(printed.id, printed.values.iter().map(|value| value * factor).collect(), why)
}

/// All rows, with values that give each verdict.
fn report() -> Report {
    report_of(|at, printed| match at % 7 {
        0 => scaled(printed, 1.0, "as <printed>"),
        1 => scaled(printed, -1.0, "the other side"),
        2 => Measured::not_testable(printed.id, "no model"),
        3 => scaled(printed, 1.0, "an input").tied("an input"),
        4 => {
            let other = scaled(printed, -1.0, "").values.expect("values");
            let setting = Sensitivity::of("a rate", printed.values, &["half"], |_| other.clone());
            scaled(printed, 1.0, "more & more").sensitive(setting)
        }
        5 => Measured::combine(&[0.2, 1.8].map(|factor| scaled(printed, factor, "drawn"))),
        _ => scaled(printed, f64::INFINITY, "over nothing"),
    })
}

/// The same with values a tenth above the paper's.
fn near() -> Report {
    report_of(|_, printed| scaled(printed, 1.1, "as <printed>"))
}

/// Values of an attribute.
fn values<'a>(text: &'a str, attribute: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(attribute).skip(1).filter_map(|rest| rest.split('"').next())
}

/// Texts of headings, without their elements.
fn headings(page: &str) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for rest in page.split("<h").skip(1) {
        let Some(level) = rest.chars().next().and_then(|letter| letter.to_digit(10)) else { continue };
        let text = rest.split_once('>').and_then(|(_, rest)| rest.split("</h").next()).expect("it ends");
        let text = text.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text));
        found.push((level, text.collect::<String>()));
    }
    found
}

#[test]
fn each_row_has_an_anchor_and_each_link_leads_to_one() {
    let report = report();
    let page = html(&report, "cenote-lab reproduce all");
    let mut ids = BTreeSet::new();
    for id in values(&page, " id=\"") {
        assert!(ids.insert(id), "{id} is there twice");
    }
    let links: BTreeSet<&str> = values(&page, " href=\"#").collect();
    let dead: Vec<&&str> = links.iter().filter(|link| !ids.contains(*link)).collect();
    assert!(dead.is_empty(), "{dead:?}");
    for row in report.papers.iter().flat_map(|paper| &paper.rows) {
        assert!(ids.contains(row.id), "{}", row.id);
        // A list has it, beside the row's own name.
        let count = page.matches(&format!("href=\"#{}\"", row.id)).count();
        assert!(count >= 2, "{}: {count} links", row.id);
        let name = words::short(row.id);
        assert!(page.contains(&format!("href=\"#{}\">{name}</a>", row.id)), "{}: its name", row.id);
    }
}

#[test]
fn headings_stand_once_and_in_order() {
    let page = html(&report(), "cenote-lab reproduce all");
    let headings = headings(&page);
    assert_eq!(headings.iter().filter(|(level, _)| *level == 1).count(), 1);
    let mut seen = BTreeSet::new();
    for (_, text) in &headings {
        assert!(seen.insert(text.as_str()), "{text} is there twice");
    }
    for pair in headings.windows(2) {
        assert!(pair[1].0 <= pair[0].0 + 1, "{pair:?}");
    }
    let of = |paper: &str| -> Vec<&str> {
        headings.iter().filter_map(|(level, text)| text.strip_prefix(paper).filter(|_| *level == 3)).collect()
    };
    let speckv = of("CXL-SpecKV ");
    assert_eq!(speckv[..3], ["Abstract", "§1", "§3.1"]);
    let places: Vec<usize> = ["Eq. 6", "Table 3", "Table 4", "Table 8", "Figure 1", "Figure 3"]
        .iter()
        .map(|name| speckv.iter().position(|text| text == name).expect("a heading"))
        .collect();
    assert!(places.is_sorted(), "{speckv:?}");
    assert!(of("CPEN 511 ").contains(&"§V-B"));
}

#[test]
fn numbers_of_the_first_table_are_those_of_the_rows() {
    let report = report();
    let page = html(&report, "cenote-lab reproduce all");
    let table = page.split("<table class=\"verdicts\">").nth(1).and_then(|rest| rest.split("</table>").next());
    let links: BTreeMap<String, usize> = table
        .expect("a table")
        .split(" href=\"#")
        .skip(1)
        .filter_map(|rest| {
            let (target, rest) = rest.split_once("\">")?;
            Some((target.to_owned(), rest.split('<').next()?.parse().ok()?))
        })
        .collect();
    let mut sum = 0;
    for paper in &report.papers {
        for (mark, count) in mark::counts(&paper.rows) {
            let list = mark.list_of(paper.paper);
            assert_eq!(links.get(&list).copied().unwrap_or(0), count, "{list}");
            if count > 0 {
                let part = page.split(&format!("<div id=\"{list}\">")).nth(1).expect("a list");
                assert_eq!(part.split("</div>").next().expect("it ends").matches("<li>").count(), count, "{list}");
                // As many rows have the verdict's class.
                let section = page.split(&format!("<section class=\"paper\" id=\"{}\">", paper.paper)).nth(1);
                let section = section.and_then(|rest| rest.split("<section class=\"paper\"").next()).expect("a part");
                let class = format!("<details class=\"row {}\"", mark.class());
                assert_eq!(section.matches(&class).count(), count, "{list}");
            }
            sum += count;
        }
    }
    assert_eq!(sum, report.papers.iter().map(|paper| paper.rows.len()).sum::<usize>());
    for mark in Mark::ALL {
        assert!(links.contains_key(mark.list()), "no row is {mark}");
    }
}

#[test]
fn a_bound_is_no_value_of_the_paper() {
    let page = html(&near(), "cenote-lab reproduce all");
    let row = |id: &str| {
        let row = page.split(&format!(" id=\"{id}\"><summary>")).nth(1).expect("a row");
        row.split("</details>").next().expect("it ends").to_owned()
    };
    let bound = row("tract.figure7.all-nixl");
    assert!(bound.contains("<b>bound</b>>\u{a0}1") && bound.contains("margin") && bound.contains("below the bound"));
    assert!(!bound.contains("off by") && !bound.contains(">paper<"), "{bound}");
    let value = row("speckv.table3.hit-rate");
    assert!(value.contains("<b>paper</b>94.7") && value.contains("off by") && !value.contains("margin"), "{value}");
    let arithmetic = row("speckv.table8.batch");
    assert!(arithmetic.contains("by its own numbers") && arithmetic.contains("27.54"), "{arithmetic}");
    let sweep = row("speckv.table8.hit-rate");
    assert!(sweep.contains("<figure"), "{sweep}");
}

#[test]
fn a_reason_that_rows_share_stands_once() {
    let page = html(&near(), "cenote-lab reproduce all");
    let group = page.split("id=\"speckv.table3\">").nth(1).and_then(|rest| rest.split("</section>").next());
    let group = group.expect("a group");
    assert_eq!(group.matches("as &lt;printed").count(), 1, "{group}");
    assert_eq!(group.matches("class=\"why\"").count(), 1);
}

#[test]
fn the_page_needs_nothing_else_and_follows_the_reader() {
    let page = html(&report(), "cenote-lab reproduce all --seed 1 --html papers.html");
    for part in ["prefers-color-scheme: dark", "name=\"viewport\"", "reproduce all --seed 1 --html papers.html"] {
        assert!(page.contains(part), "{part}");
    }
    for part in ["<script", " src=", "@import", "url("] {
        assert!(!page.contains(part), "{part}");
    }
    let (_, body) = page.split_once("</style>").expect("a style");
    for place in [" d=\"", " cx=\"", " cy=\"", " x=\"", " y=\"", " width=\""] {
        for value in values(body, place) {
            assert!(!value.contains("NaN") && !value.contains("inf"), "{place}{value}");
        }
    }
    for link in values(body, " href=\"http") {
        assert!(link.starts_with("s://doi.org/") || link.starts_with("s://arxiv.org/"), "{link}");
    }
}
