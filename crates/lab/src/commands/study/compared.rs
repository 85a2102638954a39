//! The same requests at the same times through a server and through the simulator: loads, deviations and
//! their table.

use super::real::Measured;
use crate::args::ComparedLoadArgs;
use cenote_console::failure::Failure;
use cenote_console::output::{self, OutputArgs};
use cenote_serving_sim::workload::{Length, Synthetic};
use cenote_serving_sim::{Outcome, Setup, Workload, simulate};
use serde::Serialize;

/// Largest deviation of a figure.
const GOAL: f64 = 0.15;
/// Deviation of lengths, as a share of their mean.
const SPREAD: f64 = 0.5;

#[derive(Serialize)]
struct Report {
    requests: u32,
    prompt_tokens: u32,
    answer_tokens: u32,
    goal: f64,
    met: bool,
    rows: Vec<Row>,
}

/// One load through server and simulator.
#[derive(Serialize)]
pub struct Row {
    load: String,
    ttft_mean_ms: f64,
    ttft_mean_ms_simulated: f64,
    ttft_deviation: f64,
    /// Of the medians: a request that waits for another process changes the mean only.
    ttft_p50_ms: f64,
    ttft_p50_ms_simulated: f64,
    ttft_p50_deviation: f64,
    throughput_tokens_per_s: f64,
    throughput_tokens_per_s_simulated: f64,
    throughput_deviation: f64,
    /// Deviation of the cost model's fit, over the steps that it was fitted to.
    calibration_error: f64,
    /// Processes that wanted a processor in the last minute, these among them.
    load_average: f64,
}

impl Row {
    pub fn new(load: String, real: &Measured, said: &Outcome, calibration_error: f64) -> Self {
        let deviation = |said: f64, real: f64| said / real - 1.0;
        Self {
            load,
            ttft_mean_ms: real.ttft_mean_ms,
            ttft_mean_ms_simulated: said.ttft_mean_ms,
            ttft_deviation: deviation(said.ttft_mean_ms, real.ttft_mean_ms),
            ttft_p50_ms: real.ttft_p50_ms,
            ttft_p50_ms_simulated: said.ttft_p50_ms,
            ttft_p50_deviation: deviation(said.ttft_p50_ms, real.ttft_p50_ms),
            throughput_tokens_per_s: real.throughput_tokens_per_s,
            throughput_tokens_per_s_simulated: said.throughput_tokens_per_s,
            throughput_deviation: deviation(said.throughput_tokens_per_s, real.throughput_tokens_per_s),
            calibration_error,
            load_average: load_average(),
        }
    }

    fn is_met(&self) -> bool {
        self.ttft_deviation.abs() <= GOAL && self.throughput_deviation.abs() <= GOAL
    }
}

/// A load and its name in the table.
pub struct Load {
    pub name: String,
    pub requests: Workload,
}

/// Refuses flags out of range.
pub fn check(args: &ComparedLoadArgs) -> Result<(), Failure> {
    if !(0.01..=10.0).contains(&args.share) {
        return Err(Failure::new(format!("--share {}: must be between 0.01 and 10", args.share)));
    }
    Ok(())
}

/// Requests one after the other, at the rate of the flags, and all at once. `simulated` gives the
/// throughput of which the rate is a share.
pub fn loads(
    args: &ComparedLoadArgs,
    seed: u64,
    simulated: impl FnOnce(&Workload) -> Result<Outcome, Failure>,
) -> Result<[Load; 2], Failure> {
    let crowd = workload(args, 0.0, seed);
    let rate = match args.rate {
        Some(rate) => rate,
        None => args.share * simulated(&crowd)?.throughput_requests_per_s,
    };
    Ok([
        Load { name: format!("{rate:.2}/s"), requests: workload(args, rate, seed) },
        Load { name: "all at once".to_owned(), requests: crowd },
    ])
}

fn workload(args: &ComparedLoadArgs, rate: f64, seed: u64) -> Workload {
    let length = |tokens: u32| Length { mean: f64::from(tokens), deviation: SPREAD * f64::from(tokens) };
    let (input, output) = (length(args.prompt_tokens), length(args.answer_tokens));
    let requests = args.requests as usize;
    Synthetic { requests, rate, input, output, unique: None, groups: 1, block_tokens: 16 }.draw(seed)
}

/// The load through the simulator.
pub fn simulated(setup: &Setup, load: &Workload) -> Result<Outcome, Failure> {
    simulate(setup, load, &mut |_| ()).map_err(|error| {
        Failure::from(error).hint("give more memory for KV (--kv-size, --kv-blocks), or shorter prompts and answers")
    })
}

/// Over the last minute; 0 if the kernel does not report it.
fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

/// Prints the rows, as a table or JSON.
pub fn show(args: &ComparedLoadArgs, rows: Vec<Row>, output: &OutputArgs) -> Result<(), Failure> {
    let met = rows.iter().all(Row::is_met);
    let (requests, prompt_tokens, answer_tokens) = (args.requests, args.prompt_tokens, args.answer_tokens);
    let report = Report { requests, prompt_tokens, answer_tokens, goal: GOAL, met, rows };
    output.show(&report, || table(&report))
}

fn table(report: &Report) -> String {
    let mut rows = output::table(&[
        "arrivals",
        "TTFT mean",
        "TTFT simulated",
        "TTFT deviation",
        "of the medians",
        "tokens/s",
        "tokens/s simulated",
        "tokens/s deviation",
        "goal",
        "fit's error",
        "load average",
    ]);
    for row in &report.rows {
        rows.add_row([
            row.load.clone(),
            format!("{:.1} ms", row.ttft_mean_ms),
            format!("{:.1} ms", row.ttft_mean_ms_simulated),
            format!("{:+.1} %", 100.0 * row.ttft_deviation),
            format!("{:+.1} %", 100.0 * row.ttft_p50_deviation),
            format!("{:.1}", row.throughput_tokens_per_s),
            format!("{:.1}", row.throughput_tokens_per_s_simulated),
            format!("{:+.1} %", 100.0 * row.throughput_deviation),
            if row.is_met() { "met" } else { "missed" }.to_owned(),
            format!("{:.1} %", 100.0 * row.calibration_error),
            format!("{:.1}", row.load_average),
        ]);
    }
    format!(
        "{} requests of {} tokens and answers of {}, on average\n\n{rows}",
        report.requests, report.prompt_tokens, report.answer_tokens
    )
}
