//! `cenote-lab study watermark --real`: one point of each of CPEN 511's Figures 5 to 10 on the
//! reference engine, beside the simulator.

use super::real::{Cpen, setup_of};
use crate::args::StudyWatermarkArgs;
use crate::commands::sim::calibrate::calibrate;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_policy::Watermark;
use cenote_serving_sim::simulate;
use serde::Serialize;

/// Ends and middle of the figures, fixed 1 % and the learned watermark. The rule as printed, stop
/// above, admits hardly a second request and would take an hour.
const POINTS: [&str; 8] =
    ["fixed:0.01", "fixed:0.05", "opt:0", "opt:6", "opt:12", "avg-below:1.8", "avg-below:7.5", "learned"];

#[derive(Serialize)]
struct Report {
    repeats: u64,
    rows: Vec<Row>,
}

/// Means over the repeats.
#[derive(Serialize)]
struct Row {
    watermark: String,
    swaps: f64,
    swapped_blocks: f64,
    throughput: f64,
    ttft_mean_ms: f64,
    simulated_swaps: f64,
    simulated_swapped_blocks: f64,
    simulated_throughput: f64,
    /// Requests that were recomputed instead.
    preemptions: f64,
}

pub fn run(args: &StudyWatermarkArgs) -> Result<(), Failure> {
    let real = Cpen::new()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let repeats = args.repeats.max(1);
    let rows = runtime.block_on(async {
        let mut live = real.start(&Watermark::DEFAULT).await?;
        let fitted = calibrate(&mut live).await;
        let setup = fitted.map(|fitted| setup_of(&live, &fitted));
        live.end().await;
        let setup = setup?;
        let mut rows = Vec::new();
        for name in POINTS {
            let watermark: Watermark = name.parse()?;
            let mut row = Row { watermark: name.to_owned(), ..Row::none() };
            for seed in 1..=repeats {
                let run = real.run(&watermark, seed).await?;
                // The same requests in their order of arrival at the engine, without the front:
                // some rules depend on it.
                let setup = cenote_serving_sim::Setup { watermark: watermark.clone(), front_ns: 0, ..setup.clone() };
                let said = simulate(&setup, &run.taken, &mut |_| ())?;
                let count = |name: &str| run.stats.get(name).copied().unwrap_or_default();
                for (sum, value) in [
                    (&mut row.swaps, count("swaps_total")),
                    (&mut row.swapped_blocks, count("swap_out_blocks_total")),
                    (&mut row.throughput, run.measured.throughput_tokens_per_s),
                    (&mut row.ttft_mean_ms, run.measured.ttft_mean_ms),
                    (&mut row.simulated_swaps, said.swaps as f64),
                    (&mut row.simulated_swapped_blocks, said.swapped_out_blocks as f64),
                    (&mut row.simulated_throughput, said.throughput_tokens_per_s),
                    (&mut row.preemptions, count("preemptions_total")),
                ] {
                    *sum += value / repeats as f64;
                }
            }
            rows.push(row);
        }
        Ok::<_, Failure>(rows)
    })?;
    let report = Report { repeats, rows };
    args.output.show(&report, || table(&report))
}

impl Row {
    const fn none() -> Self {
        Self {
            watermark: String::new(),
            swaps: 0.0,
            swapped_blocks: 0.0,
            throughput: 0.0,
            ttft_mean_ms: 0.0,
            simulated_swaps: 0.0,
            simulated_swapped_blocks: 0.0,
            simulated_throughput: 0.0,
            preemptions: 0.0,
        }
    }
}

fn table(report: &Report) -> String {
    let mut rows = output::table(&[
        "watermark",
        "swaps",
        "swaps simulated",
        "blocks swapped",
        "blocks simulated",
        "tokens/s",
        "tokens/s simulated",
        "TTFT mean",
    ]);
    for row in &report.rows {
        rows.add_row([
            row.watermark.clone(),
            format!("{:.0}", row.swaps),
            format!("{:.0}", row.simulated_swaps),
            format!("{:.0}", row.swapped_blocks),
            format!("{:.0}", row.simulated_swapped_blocks),
            format!("{:.0}", row.throughput),
            format!("{:.0}", row.simulated_throughput),
            format!("{:.0} ms", row.ttft_mean_ms),
        ]);
    }
    format!(
        "the demo model in {} blocks, 400 prompts at once, {} runs of each\n\n{rows}",
        super::real::L1_BLOCKS,
        report.repeats
    )
}
