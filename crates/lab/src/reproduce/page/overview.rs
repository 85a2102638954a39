//! What stands above the papers: the command, verdicts by paper, contents, how to read a row, and lists.

use super::group::Group;
use super::mark::{Mark, counts};
use super::sources;
use super::strip::sample;
use super::words::{claimed, computed, escaped, heading, order, prose, table_of};
use crate::reproduce::groups::{self, GROUPS};
use crate::reproduce::report::Report;
use crate::reproduce::row::Row;
use crate::reproduce::verdict::Meaning;
use std::fmt::Write;

/// Title and command.
pub(super) fn head(report: &Report, command: &str) -> String {
    let rows: usize = report.papers.iter().map(|paper| paper.rows.len()).sum();
    format!(
        "<header>\n<h1>{}</h1>\n<p class=\"lead\">What five papers print about KV caches beyond the GPU, beside what \
         Cenote’s own policies, codecs and circuits give on modelled hardware: {rows} rows, each with a verdict that a \
         program computed. The models never see a printed value.</p>\n\
         <pre><code>cargo build --release -p cenote-lab\n{}</code></pre>\n\
         <p class=\"made\">Commit <code>{}</code>, seed {}, {}. The same commit and seed give the same bytes.</p>\n</header>\n",
        super::TITLE,
        escaped(command),
        escaped(&report.commit),
        report.seed,
        if report.runs > 1 { format!("{} runs of what a seed changes", report.runs) } else { "one run".to_owned() }
    )
}

/// The first table: verdicts by paper. Each number leads to its rows.
pub(super) fn verdicts(report: &Report) -> String {
    let mut out = String::from(
        "<h2 id=\"verdicts\">Verdicts</h2>\n<div class=\"scroll\"><table class=\"verdicts\">\n<tr><th>paper</th><th>rows</th>",
    );
    for mark in Mark::ALL {
        let _ = write!(out, "<th class=\"{}\">{}<span> {mark}</span></th>", mark.class(), mark.sign());
    }
    out += "<th class=\"share\">share</th></tr>\n";
    for paper in &report.papers {
        let counts = counts(&paper.rows);
        let _ = write!(
            out,
            "<tr><th><a href=\"#{}\">{}</a></th><td>{}</td>",
            paper.paper,
            escaped(sources::of(paper.paper).name),
            paper.rows.len()
        );
        for (mark, count) in counts {
            out += &cell(mark, count, &mark.list_of(paper.paper));
        }
        let _ = writeln!(out, "<td class=\"share\">{}</td></tr>", bar(&counts));
    }
    let rows = report.papers.iter().flat_map(|paper| &paper.rows);
    let counts = counts(rows.clone());
    let _ = write!(out, "<tr class=\"all\"><th>all</th><td>{}</td>", rows.count());
    for (mark, count) in counts {
        out += &cell(mark, count, mark.list());
    }
    let _ = writeln!(out, "<td class=\"share\">{}</td></tr>\n</table></div>", bar(&counts));
    out
}

fn cell(mark: Mark, count: usize, list: &str) -> String {
    match count {
        0 => "<td class=\"none\">0</td>".to_owned(),
        _ => format!("<td class=\"{}\"><a href=\"#{list}\">{count}</a></td>", mark.class()),
    }
}

/// Shares of the verdicts as a bar.
fn bar(counts: &[(Mark, usize)]) -> String {
    let parts = counts.iter().filter(|(_, count)| *count > 0);
    let parts: String = parts
        .map(|(mark, count)| {
            format!("<i class=\"{}\" style=\"flex-grow:{count}\" title=\"{mark}: {count}\"></i>", mark.class())
        })
        .collect();
    format!("<span class=\"bar\" aria-hidden=\"true\">{parts}</span>")
}

/// The groups of each paper.
pub(super) fn contents(report: &Report) -> String {
    let mut out =
        String::from("<nav aria-label=\"contents\">\n<h2 id=\"contents\">Contents</h2>\n<dl class=\"contents\">\n");
    for paper in &report.papers {
        let name = sources::of(paper.paper).name;
        let links: Vec<String> = Group::all(paper, name)
            .iter()
            .map(|group| format!("<a href=\"#{}\">{}</a>", group.id, escaped(&group.heading)))
            .collect();
        let _ =
            writeln!(out, "<dt><a href=\"#{}\">{}</a></dt><dd>{}</dd>", paper.paper, escaped(name), links.join(" "));
    }
    out + "</dl>\n</nav>\n"
}

/// What signs and strips mean, and that the readings are ours.
pub(super) fn reading() -> String {
    let mut out =
        String::from("<h2 id=\"reading\">How to read a row</h2>\n<div class=\"reading\">\n<dl class=\"marks\">\n");
    for mark in Mark::ALL {
        let _ = writeln!(
            out,
            "<dt class=\"{}\"><span class=\"badge\">{} {mark}</span></dt><dd>{}</dd>",
            mark.class(),
            mark.sign(),
            mark.meaning()
        );
    }
    out += "</dl>\n<dl class=\"strips\">\n";
    let mut strip = |mark: Mark, strip: String, text: &str| {
        let _ = writeln!(out, "<dt class=\"{}\">{strip}</dt><dd>{text}</dd>", mark.class());
    };
    strip(
        Mark::Reproduced,
        sample(Meaning::Equal, 1.06, Some((0.62, 1.6)), false),
        "The disc is our value over the paper’s, from ÷10 to ×10; the band is ±15 %. The thin line reaches over the \
         settings of open parameters, the thick one over chance.",
    );
    strip(
        Mark::Contradicted,
        sample(Meaning::AtLeast, 0.62, None, false),
        "A bound: the tinted side is allowed. This value lies on the other.",
    );
    strip(
        Mark::SelfContradictory,
        sample(Meaning::Equal, 3.6, None, true),
        "A diamond follows from other numbers of the paper.",
    );
    out += "</dl>\n<div class=\"notes\">\n<p>A row opens: all values, every setting that was tried, a plot of a sweep, and the command that \
            computes the row alone. Signs beside a verdict are those at other settings of open parameters.</p>\n\
            <p><b>The readings are ours.</b> Cenote’s developers alone decided them: they read the papers, filled in what a \
            text leaves open, and wrote the reasons below the rows. No author of a paper has seen or agreed to them. A verdict \
            says what these models give, not what the authors measured on their machines.</p>\n</div>\n</div>\n";
    out
}

/// Rows by verdict: what is contradicted, and the others folded.
pub(super) fn lists(report: &Report) -> String {
    let list = |mark: Mark| {
        let rows = report.papers.iter().map(|paper| {
            let mut rows: Vec<&Row> = paper.rows.iter().filter(|row| Mark::of(row) == mark).collect();
            rows.sort_by_cached_key(|row| order(table_of(row.id)));
            (paper.paper, rows)
        });
        rows.filter(|(_, rows)| !rows.is_empty()).map(|(paper, rows)| part(mark, paper, &rows)).collect::<String>()
    };
    let is = Mark::Contradicted;
    let mut out = format!(
        "<h2 id=\"{}\">What is contradicted</h2>\n<div class=\"list {}\">\n{}</div>\n<h2 id=\"lists\">Other verdicts</h2>\n\
         <div class=\"folded\">\n",
        is.list(),
        is.class(),
        list(is)
    );
    for mark in Mark::ALL.into_iter().filter(|mark| *mark != is) {
        let list = list(mark);
        let count = list.matches("<li>").count();
        if count > 0 {
            let _ = writeln!(
                out,
                "<details class=\"list {}\" id=\"{}\"><summary><span class=\"badge\">{} {mark}</span> {count} rows</summary>\n\
                 {list}</details>",
                mark.class(),
                mark.list(),
                mark.sign()
            );
        }
    }
    out + "</div>\n"
}

/// The rows of a paper with one verdict.
fn part(mark: Mark, paper: &str, rows: &[&Row]) -> String {
    let entries: String = rows.iter().map(|row| format!("<li>{}</li>\n", entry(row))).collect();
    format!(
        "<div id=\"{}\"><p>{}</p>\n<ul>\n{entries}</ul></div>\n",
        mark.list_of(paper),
        escaped(sources::of(paper).name)
    )
}

/// A row in a list.
fn entry(row: &Row) -> String {
    let shown = if row.ours.is_empty() { row.implied.as_deref().unwrap_or_default() } else { &row.ours };
    let values = match (row.paper.len(), shown.len()) {
        (1, 1) => format!(" <i>{} → {}</i>", escaped(&claimed(row)), escaped(&computed(row, shown))),
        _ => String::new(),
    };
    format!(
        "<a href=\"#{}\"><b>{}</b> <span>{}</span>{values}</a>",
        row.id,
        escaped(&heading(table_of(row.id))),
        escaped(row.what)
    )
}

/// Questions of an audit, with what settled each.
pub(super) fn questions(report: &Report) -> String {
    let rows = |group: &groups::Group| -> Vec<&Row> {
        let all = report.papers.iter().flat_map(|paper| &paper.rows);
        all.filter(|row| group.rows.contains(&row.id)).collect()
    };
    let part = |group: &groups::Group| {
        let rows = rows(group);
        let link = |row: &&Row| {
            let mark = Mark::of(row);
            format!("<a class=\"{}\" href=\"#{}\">{} {}</a>", mark.class(), row.id, mark.sign(), escaped(row.id))
        };
        let links: Vec<String> = rows.iter().map(link).collect();
        let signs: String = rows.iter().map(|row| Mark::of(row).sign()).collect();
        format!(
            "<details class=\"question\" id=\"question-{}\"><summary><b>{0}</b> {} <small>{signs}</small></summary>\n<p>{}</p>\n\
             <p class=\"tally\">{}</p></details>\n",
            group.letter,
            prose(group.title),
            prose(group.settled),
            links.join(" ")
        )
    };
    let parts: String = GROUPS.iter().filter(|group| !rows(group).is_empty()).map(part).collect();
    if parts.is_empty() {
        return parts;
    }
    format!(
        "<h2 id=\"questions\">Questions of an audit</h2>\n<p class=\"made\">An audit doubted verdicts that said \
         “contradicted”. What settled each group of them:</p>\n<div class=\"folded\">\n{parts}</div>\n"
    )
}
