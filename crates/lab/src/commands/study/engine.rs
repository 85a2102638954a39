//! `cenote-lab study engine`: the same requests at the same times through the reference engine and
//! through the simulator.

use super::real::{measured, setup_of};
use crate::args::StudyEngineArgs;
use crate::commands::live::{LIVE_REGION_BYTES, Live};
use crate::commands::sim::{calibrate::Timed, calibration};
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_console::region::TemporaryRegion;
use cenote_console::region::own_region_bytes;
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

/// One load through engine and simulator.
#[derive(Serialize)]
struct Row {
    load: String,
    ttft_mean_ms: f64,
    ttft_mean_ms_simulated: f64,
    ttft_deviation: f64,
    throughput_tokens_per_s: f64,
    throughput_tokens_per_s_simulated: f64,
    throughput_deviation: f64,
    /// Deviation of the cost model's fit, over the steps that it was fitted to.
    calibration_error: f64,
    /// Processes that wanted a processor in the last minute, these among them.
    load_average: f64,
}

impl Row {
    fn is_met(&self) -> bool {
        self.ttft_deviation.abs() <= GOAL && self.throughput_deviation.abs() <= GOAL
    }
}

pub fn run(args: &StudyEngineArgs) -> Result<(), Failure> {
    if !(0.01..=10.0).contains(&args.share) {
        return Err(Failure::new(format!("--share {}: must be between 0.01 and 10", args.share)));
    }
    let region = TemporaryRegion::until_signal("study", own_region_bytes().min(LIVE_REGION_BYTES))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let rows = runtime.block_on(async {
        let mut rows = Vec::new();
        for repeat in 0..args.repeats {
            let mut live = Live::start(&args.engine, &region).await?;
            let compared = compare(args, &mut live, args.seed + u64::from(repeat)).await;
            live.end().await;
            rows.extend(compared?);
        }
        Ok::<_, Failure>(rows)
    })?;
    let met = rows.iter().all(Row::is_met);
    let (prompt_tokens, answer_tokens) = (args.prompt_tokens, args.answer_tokens);
    let report = Report { requests: args.requests, prompt_tokens, answer_tokens, goal: GOAL, met, rows };
    args.output.show(&report, || table(&report))
}

async fn compare(args: &StudyEngineArgs, live: &mut Live, seed: u64) -> Result<Vec<Row>, Failure> {
    let given = args.calibration.as_deref().map(calibration).transpose()?;
    let mut timed = Timed::default();
    if given.is_none() {
        timed.more(live).await?;
    }
    let crowd = workload(args, 0.0, seed);
    let before = given.clone().unwrap_or_else(|| timed.fit(live));
    let capacity = simulated(&setup_of(live, &before), &crowd)?.throughput_requests_per_s;
    let rate = args.rate.unwrap_or(args.share * capacity);
    let mut served = Vec::new();
    for (name, load) in [(format!("{rate:.2}/s"), workload(args, rate, seed)), ("all at once".to_owned(), crowd)] {
        let bar = output::progress("serving", u64::from(args.requests));
        let answers = live.replay(&load, &|| bar.inc(1)).await?;
        bar.finish_and_clear();
        live.take_steps();
        served.push((name, measured(&load, &answers), load));
    }
    // Calibrate before and after, because a shared machine's speed changes within a minute.
    if given.is_none() {
        timed.more(live).await?;
    }
    let fitted = given.unwrap_or_else(|| timed.fit(live));
    let setup = setup_of(live, &fitted);
    let mut rows = Vec::new();
    for (name, real, load) in served {
        let said = simulated(&setup, &load)?;
        let deviation = |said: f64, real: f64| said / real - 1.0;
        rows.push(Row {
            load: name,
            ttft_mean_ms: real.ttft_mean_ms,
            ttft_mean_ms_simulated: said.ttft_mean_ms,
            ttft_deviation: deviation(said.ttft_mean_ms, real.ttft_mean_ms),
            throughput_tokens_per_s: real.throughput_tokens_per_s,
            throughput_tokens_per_s_simulated: said.throughput_tokens_per_s,
            throughput_deviation: deviation(said.throughput_tokens_per_s, real.throughput_tokens_per_s),
            calibration_error: fitted.mean_error,
            load_average: load_average(),
        });
    }
    Ok(rows)
}

fn workload(args: &StudyEngineArgs, rate: f64, seed: u64) -> Workload {
    let length = |tokens: u32| Length { mean: f64::from(tokens), deviation: SPREAD * f64::from(tokens) };
    let (input, output) = (length(args.prompt_tokens), length(args.answer_tokens));
    let requests = args.requests as usize;
    Synthetic { requests, rate, input, output, unique: None, groups: 1, block_tokens: 16 }.draw(seed)
}

fn simulated(setup: &Setup, load: &Workload) -> Result<Outcome, Failure> {
    simulate(setup, load, &mut |_| ())
        .map_err(|error| Failure::from(error).hint("give a larger --kv-size, or shorter prompts and answers"))
}

/// Over the last minute; 0 if the kernel does not report it.
fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

fn table(report: &Report) -> String {
    let mut rows = output::table(&[
        "arrivals",
        "TTFT mean",
        "TTFT simulated",
        "TTFT deviation",
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
