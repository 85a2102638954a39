//! `cenote-lab reproduce`: tables and figures of papers, recomputed.

use crate::args::ReproduceArgs;
use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_console::output;
use cenote_lab::reproduce::report::{self, Report, claimed, deviation, ours, verdict};
use cenote_lab::reproduce::{Draws, Reproduction, Selection, num_runs, page, run as reproduce};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

pub fn run(args: &ReproduceArgs) -> Result<(), Failure> {
    let selection = Selection::new(&args.ids).map_err(|name| {
        Failure::new(format!("no paper, experiment or row is called `{name}`")).hint("`--list` names them")
    })?;
    if args.list {
        return output::print(&listed(&selection));
    }
    let document = args.markdown.as_deref().map(read).transpose()?;
    let draws = Draws { seed: args.seed, runs: if args.quick { 1 } else { Draws::RUNS } };
    let bar = output::progress("reproducing", num_runs(&selection, draws));
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into));
    let papers = reproduce(&selection, draws, threads, &|experiment, number, run| {
        let begin = Instant::now();
        run();
        let seconds = begin.elapsed().as_secs_f64();
        bar.suspend(|| output::say(&format!("{} {}: {seconds:.1} s", experiment.id, number + 1)));
        bar.inc(1);
    });
    bar.finish_and_clear();
    let told = Report::new(commit(), draws, papers);
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&told).map_err(|error| Failure::new(error.to_string()))?;
        write(path, &(text + "\n"))?;
    }
    if let Some(path) = &args.html {
        write(path, &page::html(&told, &command(args, path)))?;
    }
    if let (Some(path), Some(document)) = (&args.markdown, document) {
        for paper in told.papers.iter().filter(|paper| !paper.is_whole) {
            let facts = format!("{}: not all rows of `{}` were selected; its table stays", path.display(), paper.paper);
            output::say(&facts);
        }
        let replaced = report::replaced(&document, &told)
            .map_err(|marker| Failure::new(format!("{}: no line `{marker}`", path.display())))?;
        write(path, &replaced)?;
    }
    output::print(&table(&told))
}

fn read(path: &Path) -> Result<String, Failure> {
    input::text(path).map_err(|error| Failure::new(format!("{}: cannot read it: {error}", path.display())))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| Failure::new(format!("{}: cannot write it: {error}", path.display())))
}

/// The command that made the page, without what does not change it.
fn command(args: &ReproduceArgs, page: &Path) -> String {
    let ids = if args.ids.is_empty() { "all".to_owned() } else { args.ids.join(" ") };
    let quick = if args.quick { " --quick" } else { "" };
    let page = page.file_name().unwrap_or(page.as_os_str()).to_string_lossy();
    format!("target/release/cenote-lab reproduce {ids} --seed {}{quick} --html {page}", args.seed)
}

/// The commit of the sources in the current folder.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let told = Command::new("git").args(arguments).output().ok().filter(|told| told.status.success())?;
        Some(String::from_utf8_lossy(&told.stdout).trim().to_owned())
    };
    let Some(head) = git(&["rev-parse", "HEAD"]) else { return "unknown".to_owned() };
    // Untracked files are no sources.
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => head,
        _ => format!("{head} with changes"),
    }
}

fn listed(selection: &Selection) -> String {
    let mut table = output::table(&["experiment", "what", "rows"]);
    for experiment in selection.experiments() {
        table.add_row([experiment.id.to_owned(), experiment.title.to_owned(), experiment.covers.join(", ")]);
    }
    table.to_string()
}

fn rows(paper: &Reproduction) -> String {
    let mut table = output::table(&["row", "what", "paper", "here", "off by", "verdict"]);
    for row in &paper.rows {
        table.add_row([row.id.to_owned(), row.what.to_owned(), claimed(row), ours(row), deviation(row), verdict(row)]);
    }
    format!("{}\n\n{table}", paper.title)
}

fn table(told: &Report) -> String {
    let papers: Vec<String> = told.papers.iter().map(rows).collect();
    format!("{}\n\n{}", papers.join("\n\n"), told.counted())
}
