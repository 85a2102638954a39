//! Rows of one table, figure, equation or section of a paper.

use super::chart;
use super::line;
use super::words::{escaped, heading, last, order, prose, table_of, undecided};
use crate::reproduce::Reproduction;
use crate::reproduce::row::Row;

/// Rows that stand together.
pub(super) struct Group<'a> {
    /// Name and anchor, as in `speckv.table3`.
    pub id: String,
    /// Name of its table, as in `Table 3`.
    pub heading: String,
    paper: &'static str,
    rows: Vec<&'a Row>,
}

impl<'a> Group<'a> {
    /// The groups of a paper by kind and number.
    pub fn all(paper: &'a Reproduction, name: &'static str) -> Vec<Self> {
        let mut tables: Vec<&str> = paper.rows.iter().map(|row| table_of(row.id)).collect();
        tables.sort_by_cached_key(|table| (order(table), (*table).to_owned()));
        tables.dedup();
        let of = |table: &str| Self {
            id: format!("{}.{table}", paper.paper),
            heading: heading(table),
            paper: name,
            rows: paper.rows.iter().filter(|row| table_of(row.id) == table).collect(),
        };
        tables.into_iter().map(of).collect()
    }

    /// Its heading, rows and reasons.
    pub fn html(&self, seed: u64) -> String {
        let rows: String = self.rows.iter().map(|row| line::html(row, seed)).collect();
        format!(
            "<section class=\"group\" id=\"{}\">\n<h3><a href=\"#{0}\"><small>{}</small> {}</a></h3>\n\
             <div class=\"rows\">\n{rows}{}</div>\n</section>\n",
            self.id,
            escaped(self.paper),
            escaped(&self.heading),
            self.reasons()
        )
    }

    /// One paragraph: each reason once, with the rows that have it, and what verdicts depend on.
    fn reasons(&self) -> String {
        let mut reasons: Vec<(String, Vec<&Row>)> = Vec::new();
        let mut add = |why: String, row: &'a Row| {
            if why.is_empty() {
                return;
            }
            match reasons.iter_mut().find(|(other, _)| *other == why) {
                Some((_, rows)) => rows.push(row),
                None => reasons.push((why, vec![row])),
            }
        };
        for row in &self.rows {
            add(row.why.to_owned(), row);
        }
        for row in &self.rows {
            match undecided(row) {
                Some(by) => add(by.to_owned(), row),
                None if row.depends_on.is_empty() => {}
                None => add(format!("depends on {}", row.depends_on.join(", ")), row),
            }
        }
        let text = |(why, rows): &(String, Vec<&Row>)| {
            if rows.len() == self.rows.len() {
                return format!("{}.", prose(&capital(why)));
            }
            let names: Vec<&str> = rows.iter().map(|row| last(row.id)).collect();
            format!("<b>{}:</b> {}.", escaped(&names.join(", ")), prose(why))
        };
        let texts: Vec<String> = reasons.iter().map(text).collect();
        if texts.is_empty() { String::new() } else { format!("<p class=\"why\">{}</p>\n", texts.join(" ")) }
    }
}

/// With a capital letter, unless a name of one letter or one in code begins it.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    match (letters.next(), text.chars().nth(1)) {
        (Some(first), Some(second)) if second.is_alphabetic() => first.to_uppercase().chain(letters).collect(),
        _ => text.to_owned(),
    }
}

/// The distributions of a paper, side by side.
pub(super) fn distributions(groups: &[Group<'_>]) -> String {
    let rows = groups.iter().flat_map(|group| &group.rows);
    let plots: String = rows
        .flat_map(|row| row.distributions.iter().map(|distributions| chart::cumulative(row, distributions)))
        .collect();
    if plots.is_empty() { plots } else { format!("<div class=\"gallery\">\n{plots}</div>\n") }
}
