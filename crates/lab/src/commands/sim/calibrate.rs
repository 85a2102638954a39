//! `cenote-lab sim --calibrate`: step times on this machine.
//!
//! Sends requests to the reference engine, over HTTP and with a region, that differ in the terms of
//! the cost model: single prompts of several lengths; crowds of several sizes with answers that are
//! computed together; a crowd that exceeds the engine's limit; and a stream at half of the engine's
//! throughput. The last two are ordinary use: a step among others is faster than one in an idle
//! process with cold caches, and slower while a crowd's prompts are still being parsed. The engine
//! times its own steps, so the fit covers all parts of a step: scheduling, computing, replying and
//! publishing. A client's further wait is the front's.

use crate::args::SimArgs;
use crate::commands::live::{LIVE_REGION_BYTES, Live};
use cenote_console::args::EngineArgs;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_console::region::TemporaryRegion;
use cenote_console::region::own_region_bytes;
use cenote_serving_sim::Workload;
use cenote_serving_sim::model::{Calibration, Machine, Sample};
use cenote_serving_sim::workload::{Length, Synthetic};
use std::path::Path;
use std::time::Instant;

/// Lengths of single prompts.
const PROMPTS: [u32; 9] = [16, 32, 64, 128, 192, 256, 384, 512, 1024];
/// Sizes of crowds.
const CROWDS: [usize; 6] = [2, 4, 8, 16, 32, 64];
/// A crowd above the number of running requests, if the engine's queue admits it.
const QUEUE: usize = 128;
/// Requests of the stream, and its rate as a share of the engine's throughput.
const STREAM: usize = 96;
const STREAM_SHARE: f64 = 0.5;
/// Tokens of answers.
const ALONE_OUTPUT: u32 = 8;
const CROWD_OUTPUT: Length = Length { mean: 32.0, deviation: 20.0 };
const CROWD_INPUT: Length = Length { mean: 192.0, deviation: 160.0 };
/// Repetitions of single prompts.
const ALONE_REPEATS: usize = 2;

pub fn run(args: &SimArgs, path: &Path) -> Result<(), Failure> {
    let engine = EngineArgs::of_model(args.model.as_ref().map(std::path::PathBuf::from))?;
    let region = TemporaryRegion::until_signal("calibrate", own_region_bytes().min(LIVE_REGION_BYTES))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let fitted = runtime.block_on(async {
        let mut live = Live::start(&engine, &region).await?;
        let fitted = calibrate(&mut live).await;
        live.end().await;
        fitted
    })?;
    let text = serde_json::to_string_pretty(&fitted)?;
    std::fs::write(path, text + "\n")
        .map_err(|error| Failure::new(format!("{}: cannot write the calibration: {error}", path.display())))?;
    args.output.show(&fitted, || table(&fitted))
}

/// Timings of an engine.
#[derive(Default)]
pub struct Timed {
    samples: Vec<Sample>,
    /// Clients' waits for first tokens beyond the steps.
    fronts: Vec<u64>,
}

/// Times a live engine, and fits a model.
pub async fn calibrate(live: &mut Live) -> Result<Calibration, Failure> {
    let mut timed = Timed::default();
    timed.more(live).await?;
    Ok(timed.fit(live))
}

impl Timed {
    /// Times a live engine. Several timings describe a machine with varying speed better.
    pub async fn more(&mut self, live: &mut Live) -> Result<(), Failure> {
        let context = live.engine().model().max_model_len() as u32;
        let prompts: Vec<u32> = PROMPTS.into_iter().filter(|length| length + ALONE_OUTPUT <= context).collect();
        let config = live.engine().model().config();
        let queue = QUEUE.min(config.max_waiting).max(1);
        let requests = ALONE_REPEATS * prompts.len() + CROWDS.iter().sum::<usize>() + queue + STREAM;
        let bar = output::progress("timing steps", requests as u64);
        let tick = || bar.inc(1);
        // Once untimed, to touch pages and to warm caches and branch predictors.
        live.replay(&crowd(4, 0.0, context, 0), &|| ()).await?;
        live.take_steps();
        for &length in std::iter::repeat_n(&prompts, ALONE_REPEATS).flatten() {
            let answers = live.replay(&alone(length), &tick).await?;
            let steps = live.take_steps();
            // The steps up to the one that ends the prompt.
            let mut tokens = 0;
            let prefill = steps.iter().take_while(|step| {
                let is_before = tokens < u64::from(length);
                tokens += step.tokens;
                is_before
            });
            let in_steps: u64 = prefill.map(|step| step.ns).sum();
            self.fronts.extend(answers.iter().map(|answer| (answer.first.as_nanos() as u64).saturating_sub(in_steps)));
            self.samples.extend(steps);
        }
        let mut rate = 0.0;
        for (seed, &count) in (1..).zip(CROWDS.iter().chain([&queue])) {
            let answers = live.replay(&crowd(count, 0.0, context, seed), &tick).await?;
            let whole = answers.iter().map(|answer| (answer.asked + answer.whole).as_secs_f64()).fold(1e-3, f64::max);
            rate = STREAM_SHARE * count as f64 / whole;
            self.samples.extend(live.take_steps());
        }
        live.replay(&crowd(STREAM, rate, context, 0), &tick).await?;
        self.samples.extend(live.take_steps());
        bar.finish_and_clear();
        Ok(())
    }

    /// The model fitted to the timings.
    pub fn fit(&self, live: &Live) -> Calibration {
        let mut fronts = self.fronts.clone();
        fronts.sort_unstable();
        let model = live.engine().model();
        let layout = *model.layout();
        let machine = Machine {
            of: format!("{} on this machine, {} threads", model.name(), model.threads()),
            kv_bytes_per_token: (layout.block_bytes() / layout.block_tokens) as u64,
            kv_tokens: (model.kv_blocks() * layout.block_tokens) as u64,
            copy_bytes_per_s: copy_speed(),
            front_ns: fronts.get(fronts.len() / 2).copied().unwrap_or(0),
        };
        Calibration::fit(machine, Sample::merged(&self.samples))
    }
}

fn alone(length: u32) -> Workload {
    let (input, output) = (Length::fixed(length), Length::fixed(ALONE_OUTPUT));
    Synthetic { requests: 1, rate: 0.0, input, output, unique: None, groups: 1, block_tokens: 16 }.draw(1)
}

/// Requests that arrive at `rate`, or, without one, all at once.
fn crowd(count: usize, rate: f64, context: u32, seed: u64) -> Workload {
    let within = |length: Length| {
        let mean = length.mean.min(f64::from(context) / 16.0);
        Length { mean, deviation: length.deviation * mean / length.mean }
    };
    let (input, output) = (within(CROWD_INPUT), within(CROWD_OUTPUT));
    Synthetic { requests: count, rate, input, output, unique: None, groups: 1, block_tokens: 16 }.draw(seed)
}

/// Bytes per second of a copy between two buffers that no cache holds.
fn copy_speed() -> u64 {
    let (from, mut to) = (vec![1_u8; 64 << 20], vec![0_u8; 64 << 20]);
    let mut best = u64::MAX;
    for _ in 0..5 {
        let begin = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        best = best.min(begin.elapsed().as_nanos() as u64);
    }
    (from.len() as u128 * 1_000_000_000 / u128::from(best.max(1))) as u64
}

fn table(fitted: &Calibration) -> String {
    output::facts(&[
        ("of", fitted.machine.of.clone()),
        ("a step", format!("{:.1} µs", fitted.step_ns / 1e3)),
        ("each request of it", format!("{:.1} µs", fitted.request_ns / 1e3)),
        ("each token", format!("{:.2} µs", fitted.token_ns / 1e3)),
        ("each pair of tokens", format!("{:.2} ns", fitted.pair_ns)),
        ("each token of context", format!("{:.2} ns", fitted.context_ns)),
        ("client to engine and back", format!("{:.0} µs", fitted.machine.front_ns as f64 / 1e3)),
        ("copies", format!("{:.1} GB/s", fitted.machine.copy_bytes_per_s as f64 / 1e9)),
        (
            "error of the fit",
            format!(
                "{:.1} % of a step on average, over {} steps",
                100.0 * fitted.mean_error,
                fitted.samples.iter().map(|sample| sample.count).sum::<u64>()
            ),
        ),
    ])
}
