//! `cenote-lab study budget`: one memory budget for KV and rows of n-gram tables.

use crate::args::StudyBudgetArgs;
use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_console::output;
use cenote_lab::budget::{Compared, RUNS, TOLERANCE, compare, loads};
use cenote_serving_sim::budget::{Division, Outcome, Setup};
use cenote_serving_sim::workload::{MOONCAKE_BLOCK_TOKENS, Workload, read_mooncake};
use serde::Serialize;
use std::fmt::Write;
use std::io::BufReader;
use std::path::Path;

/// Points of the division over time that the table shows.
const POINTS: usize = 13;

#[derive(Serialize)]
struct Report {
    setup: Setup,
    /// Whether a trace was served.
    has_chat: bool,
    tolerance: f64,
    loads: Vec<Compared>,
}

pub fn run(args: &StudyBudgetArgs) -> Result<(), Failure> {
    let mut setup = Setup::engram_40b(args.budget.0, args.seed);
    setup.zipf = args.zipf;
    let chat = match &args.mooncake {
        Some(path) => Some(trace(path, args.requests)?),
        None => {
            output::say("the loads of chat are skipped: give a trace with --mooncake");
            None
        }
    };
    let loads = loads(&setup, args.requests, chat.as_ref());
    let bar = output::progress("serving", loads.len() as u64 * RUNS);
    let compared = loads.iter().map(|load| compare(&setup, load, &mut || bar.inc(1))).collect();
    bar.finish_and_clear();
    let report = Report { setup, has_chat: chat.is_some(), tolerance: TOLERANCE, loads: compared };
    args.output.show(&report, || table(&report))
}

fn trace(path: &Path, requests: usize) -> Result<Workload, Failure> {
    let failed = |fact: String| Failure::new(format!("{}: {fact}", path.display()));
    let file = input::open(path).map_err(failed)?;
    let read = read_mooncake(BufReader::new(file), MOONCAKE_BLOCK_TOKENS, false);
    let mut workload = read.map_err(|error| failed(error.to_string()))?.workload;
    workload.truncate(requests);
    Ok(workload)
}

fn name(outcome: &Outcome, of_best: bool) -> String {
    match outcome.division {
        Division::Fixed(percent) if of_best => format!("best fixed: {percent} % KV"),
        Division::Fixed(percent) => format!("{percent} % KV"),
        Division::Arbiter => "arbiter".to_owned(),
    }
}

fn compared_table(compared: &Compared) -> String {
    let header = ["memory", "link ns/token", "KV", "rows", "KV hits", "row hits", "moves"];
    let mut table = output::table(&header).keys(1);
    let share = |part: u64, of: u64| format!("{:.1} %", 100.0 * part as f64 / of.max(1) as f64);
    let shown = compared.fixed.iter().map(|outcome| (outcome, false));
    for (outcome, of_best) in shown.chain([(&compared.best, true), (&compared.arbiter, false)]) {
        let per_token = |ns: u64| format!("{:.0}", ns as f64 / outcome.tokens as f64);
        table.add_row([
            name(outcome, of_best),
            format!("{:.0}", outcome.ns_per_token()),
            per_token(outcome.kv_ns),
            per_token(outcome.rows_ns),
            share(outcome.kv_hits, outcome.reused_blocks),
            share(outcome.row_hits, outcome.ngrams),
            outcome.moves.to_string(),
        ]);
    }
    table.to_string()
}

/// The share of KV at equally many requests.
fn shares(compared: &Compared) -> String {
    let shares = &compared.arbiter.shares;
    let at = |point: usize| {
        let requests = compared.requests * point / (POINTS - 1);
        let latest = shares.iter().take_while(|share| share.requests <= requests).last();
        latest.map_or_else(String::new, |share| format!("{:.0}", 100.0 * share.kv_share))
    };
    (0..POINTS).map(at).collect::<Vec<_>>().join(" ")
}

fn table(report: &Report) -> String {
    let mut text = String::new();
    for compared in &report.loads {
        let goal = match (compared.has_phases, compared.is_met) {
            (false, true) => "within 5 % of the best fixed share: met",
            (false, false) => "within 5 % of the best fixed share: not met",
            (true, true) => "faster than every fixed share: met",
            (true, false) => "faster than every fixed share: not met",
        };
        let _ = write!(
            text,
            "{}, {} requests\n{}\narbiter over best fixed: {:+.1} %; {goal}\nshare of KV over time, %: {}\n\n",
            compared.load,
            compared.requests,
            compared_table(compared),
            100.0 * compared.excess,
            shares(compared)
        );
    }
    text.trim_end().to_owned()
}
