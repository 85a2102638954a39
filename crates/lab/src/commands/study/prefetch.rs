//! `cenote-lab study prefetch`.

use crate::args::StudyPrefetchArgs;
use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_console::output;
use cenote_lab::prefetch::adapt::{
    ThresholdGain, ThrottleGain, WeightGain, threshold_gains, throttle_gains, weight_gains,
};
use cenote_lab::prefetch::tiers::{self, ColdRow, coherence, cold_rows};
use cenote_lab::prefetch::{DenseRow, SparseRow, Study, far_first, runs, study};
use cenote_serving_sim::tiers::directory::{Coherence, Messages};
use cenote_serving_sim::workload::{MOONCAKE_BLOCK_TOKENS, read_mooncake};
use serde::Serialize;
use std::fmt::Write;
use std::io::BufReader;
use std::path::Path;

#[derive(Serialize)]
struct Report {
    study: Study,
    far_first: Vec<DenseRow>,
    throttle: Vec<ThrottleGain>,
    thresholds: Vec<ThresholdGain>,
    weights: Vec<WeightGain>,
    cold: Option<Vec<ColdRow>>,
    coherence: Option<Coherence>,
}

pub fn run(args: &StudyPrefetchArgs) -> Result<(), Failure> {
    let bar = output::progress("simulating", runs());
    let study = study(args.seed, &mut || bar.inc(1));
    bar.finish_and_clear();
    let far_first = far_first();
    let throttle = throttle_gains(args.seed);
    let thresholds = threshold_gains(args.seed);
    let weights = weight_gains(args.seed);
    let (cold, coherence) = match &args.mooncake {
        Some(path) => {
            let (rows, coherence) = trace(path)?;
            (Some(rows), Some(coherence))
        }
        None => (None, None),
    };
    let report = Report { study, far_first, throttle, thresholds, weights, cold, coherence };
    args.output.show(&report, || table(&report))
}

fn trace(path: &Path) -> Result<(Vec<ColdRow>, Coherence), Failure> {
    let failed = |fact: String| Failure::new(format!("{}: {fact}", path.display()));
    let file = input::open(path).map_err(failed)?;
    let read = read_mooncake(BufReader::new(file), MOONCAKE_BLOCK_TOKENS, false);
    let workload = read.map_err(|error| failed(error.to_string()))?.workload;
    let bar = output::progress("serving the trace", tiers::RUNS);
    let rows = cold_rows(&workload, &mut || bar.inc(1)).map_err(|error| failed(error.to_string()))?;
    bar.finish_and_clear();
    Ok((rows, coherence(&workload)))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn ms(ns: u64) -> String {
    format!("{:.2} ms", ns as f64 / 1e6)
}

fn dense_table(rows: &[DenseRow]) -> String {
    let header = ["dense", "step", "waiting", "tokens/s", "in time", "hidden", "link in use", "named", "useful"];
    let mut table = output::table(&header);
    for DenseRow { name, depth, named, useful, outcome } in rows {
        let count = |count: &u64| depth.map_or_else(String::new, |_| count.to_string());
        table.add_row([
            name.clone(),
            ms(outcome.step_ns),
            ms(outcome.stall_ns),
            format!("{:.0}", outcome.tokens_per_s),
            percent(outcome.hit_rate),
            percent(outcome.hidden),
            percent(outcome.utilization),
            count(named),
            count(useful),
        ]);
    }
    table.to_string()
}

fn sparse_table(rows: &[SparseRow]) -> String {
    let header = [
        "sparse",
        "step",
        "waiting",
        "tokens/s",
        "hits",
        "in L1",
        "coverage",
        "predicted",
        "precision",
        "of copies",
        "MB a step",
        "prefetch",
        "demand",
        "depth",
    ];
    let mut table = output::table(&header);
    for SparseRow { name, outcome } in rows {
        table.add_row([
            name.clone(),
            ms(outcome.step_ns),
            ms(outcome.stall_ns),
            format!("{:.0}", outcome.tokens_per_s),
            percent(outcome.hit_rate),
            percent(outcome.l1_rate),
            percent(outcome.coverage),
            percent(outcome.predictor_hit_rate),
            percent(outcome.predictor_precision),
            percent(outcome.precision),
            format!("{:.1}", outcome.bytes_per_step as f64 / 1e6),
            format!("{:.1} us", outcome.prefetch_ns as f64 / 1e3),
            format!("{:.1} us", outcome.demand_ns as f64 / 1e3),
            format!("{:.1}", outcome.mean_depth),
        ]);
    }
    table.to_string()
}

fn adaptation(report: &Report) -> String {
    let header =
        ["link", "eq. 7 as printed, tokens/s", "with recovery", "learned", "kappa", "target", "long run", "learning"];
    let mut throttle = output::table(&header);
    for gain in &report.throttle {
        throttle.add_row([
            format!("{} of the paper's", gain.link),
            format!("{:.0}", gain.printed),
            format!("{:.0}", gain.recovering),
            format!("{:.0}", gain.learned),
            format!("{:.2}", gain.kappa),
            format!("{:.2}", gain.target),
            format!("{:.0}", gain.long),
            format!("{:.0}", gain.online),
        ]);
    }
    let header = ["L1 over a choice", "fixed thresholds, tokens/s", "in L1", "adaptive", "in L1"];
    let mut thresholds = output::table(&header);
    for gain in &report.thresholds {
        thresholds.add_row([
            format!("{}", gain.l1),
            format!("{:.0}", gain.fixed),
            percent(gain.fixed_rate),
            format!("{:.0}", gain.adaptive),
            percent(gain.adaptive_rate),
        ]);
    }
    let header =
        ["engine bound by", "equal weights", "learned", "best", "while learning", "weights: ratio, quality, cost"];
    let mut weights = output::table(&header);
    for gain in &report.weights {
        let [ratio, quality, cost] = gain.learned.weights;
        weights.add_row([
            gain.engine.to_owned(),
            format!("{:.2}", gain.learned.fixed),
            format!("{:.2}", gain.learned.learned),
            format!("{:.2}", gain.learned.best),
            format!("{:.2}", gain.learned.while_learning),
            format!("{ratio:.2} {quality:.2} {cost:.2}"),
        ]);
    }
    format!("{throttle}\n\n{thresholds}\n\nthroughput over raw pages\n\n{weights}")
}

fn cold_table(rows: &[ColdRow]) -> String {
    let header = ["trace", "hit rate", "TTFT mean", "p50", "p99", "demoted", "compressed", "evicted", "queued"];
    let mut table = output::table(&header);
    for row in rows {
        let seconds = |ms: f64| format!("{:.2} s", ms / 1e3);
        table.add_row([
            row.name.to_owned(),
            format!("{:.2} %", 100.0 * row.hit_rate),
            seconds(row.ttft_mean_ms),
            seconds(row.ttft_p50_ms),
            seconds(row.ttft_p99_ms),
            row.cold.demoted.to_string(),
            row.cold.compressed.to_string(),
            row.cold.evicted.to_string(),
            row.cold.writes_waiting_max.to_string(),
        ]);
    }
    table.to_string()
}

/// Blocks fetched ahead, and those of them that were read, per source.
fn sources_table(rows: &[ColdRow]) -> String {
    let header = ["trace", "read in a step", "next step: fetched, used", "waiting", "hints", "speculation"];
    let mut table = output::table(&header);
    for row in rows.iter().filter(|row| row.cold.read_on_demand > 0) {
        let [next, waiting, hints, guesses] =
            std::array::from_fn(|at| format!("{}, {}", row.cold.prefetched[at], row.cold.prefetch_hits[at]));
        table.add_row([row.name.to_owned(), row.cold.read_on_demand.to_string(), next, waiting, hints, guesses]);
    }
    table.to_string()
}

fn coherence_table(told: &Coherence) -> String {
    let header = ["messages", "control", "data", "a write waits for", "a read waits for", "entries at most"];
    let mut table = output::table(&header);
    let mut add = |name: &str, messages: &Messages| {
        table.add_row([
            name.to_owned(),
            messages.control.to_string(),
            messages.data.to_string(),
            messages.write_waits.to_string(),
            messages.read_waits.to_string(),
            messages.entries_max.to_string(),
        ]);
    };
    add("directory", &told.directory);
    add("generations", &told.generations);
    format!("{} reads, {} of fresh own copies; {} writes\n\n{table}", told.reads, told.copy_hits, told.writes)
}

fn table(report: &Report) -> String {
    let study = &report.study;
    let mut text = String::new();
    for part in [&study.dense, &study.dense_depths, &report.far_first, &study.placements] {
        let _ = write!(text, "{}\n\n", dense_table(part));
    }
    for part in [&study.sparse_depths, &study.predictors, &study.learned] {
        let _ = write!(text, "{}\n\n", sparse_table(part));
    }
    let _ = write!(text, "{}\n\n", adaptation(report));
    if let Some(rows) = &report.cold {
        let _ = write!(text, "{}\n\n{}\n\n", cold_table(rows), sources_table(rows));
    }
    if let Some(told) = &report.coherence {
        let _ = write!(text, "{}\n\n", coherence_table(told));
    }
    text
}
