//! Compares watermarks in the simulator: reproduces CPEN 511's Figures 5 to 10, and runs all
//! controllers on training loads of the learned watermark and on held-out loads.

pub mod figures;
mod train;

pub use figures::{Curve, FACTORS, Figures, Open, Point, figures, thresholds};
pub use train::{Training, reward_of, train, weights_source};

use cenote_policy::{Eviction, Watermark};
use cenote_serving_sim::model::{CostModel, Device, Link, ModelShape};
use cenote_serving_sim::workload::{CPEN_PROMPTS, Length, Synthetic, cpen};
use cenote_serving_sim::{Outcome, Setup, Workload, simulate};
use serde::Serialize;

/// vLLM's default `--swap-space`.
const SWAP_BYTES: u64 = 4 << 30;
/// vLLM's defaults: most requests and most tokens per step.
const MAX_NUM_SEQS: usize = 256;
const MAX_NUM_BATCHED_TOKENS: u32 = 2_048;
/// Device of the paper's models. The paper does not name it; TraCT uses a card of this kind.
const DEVICE: &str = "a6000";

/// CPEN 511 §VII-A: its four models, "chosen such that there are 100–500 GPU blocks". The paper
/// does not assign block counts to models; these are assumptions.
pub const CPEN_MODELS: [(&str, u32); 4] =
    [("opt-125m", 500), ("opt-1.3b", 300), ("opt-2.7b", 150), ("r1-qwen-1.5b", 400)];

/// An engine like those of CPEN 511.
///
/// # Panics
/// `model` is not a preset of the simulator.
#[must_use]
pub fn cpen_setup(model: &str, l1_blocks: u32) -> Setup {
    let shape = ModelShape::named(model).expect("a preset");
    let device = Device::named(DEVICE).expect("a preset");
    let link: Link = device.host;
    let block_bytes = 16 * shape.kv_bytes_per_token();
    Setup {
        instances: 1,
        cost: CostModel::roofline(device, shape),
        front_ns: 0,
        kv_bytes_per_token: shape.kv_bytes_per_token(),
        l1_blocks,
        l1_block_tokens: 16,
        max_num_seqs: MAX_NUM_SEQS,
        max_num_batched_tokens: MAX_NUM_BATCHED_TOKENS,
        watermark: Watermark::DEFAULT,
        swap_blocks: (SWAP_BYTES / block_bytes) as u32,
        has_prefix_cache: false,
        swap_link: link,
        always_swap: true,
        spill: None,
        private: None,
        shared: None,
        hosts: None,
        eviction: Eviction::Lru,
    }
}

/// A load, and an engine too small for it.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name in tables.
    pub name: String,
    /// Whether the learned watermark was not trained on the load.
    pub held_out: bool,
    /// The engine.
    pub setup: Setup,
    /// The load.
    pub workload: Workload,
}

impl Case {
    fn cpen(model: &str, l1_blocks: u32, scale: f64, seed: u64, held_out: bool) -> Self {
        Self {
            name: format!("cpen {model} {l1_blocks} blocks, answers × {scale}, seed {seed}"),
            held_out,
            setup: cpen_setup(model, l1_blocks),
            workload: cpen(CPEN_PROMPTS, scale, seed),
        }
    }

    /// Poisson arrivals of `rate` requests per second on one engine of 8 billion parameters, enough
    /// to keep it full.
    fn poisson(name: &str, rate: f64, l1_blocks: u32, lengths: [Length; 2], seed: u64, held_out: bool) -> Self {
        let [input, output] = lengths;
        let spec = Synthetic { requests: 500, rate, input, output, unique: None, groups: 1, block_tokens: 16 };
        let name = format!("{name}, {rate}/s, {l1_blocks} blocks, seed {seed}");
        Self { name, held_out, setup: cpen_setup("llama-8b", l1_blocks), workload: spec.draw(seed) }
    }

    /// The first `requests` requests of a public trace, arriving `speed` times as fast, on an
    /// engine of 8 billion parameters.
    #[must_use]
    pub fn trace(name: &str, mut workload: Workload, requests: usize, speed: f64, l1_blocks: u32) -> Self {
        workload.truncate(requests);
        workload.speed_up(speed);
        let name = format!("{name}, first {requests}, {speed} × as fast, {l1_blocks} blocks");
        Self { name, held_out: true, setup: cpen_setup("llama-8b", l1_blocks), workload }
    }

    /// Simulates the case with `watermark`.
    ///
    /// # Panics
    /// The engine cannot hold some request.
    #[must_use]
    pub fn run(&self, watermark: &Watermark) -> Outcome {
        let setup = Setup { watermark: watermark.clone(), ..self.setup.clone() };
        simulate(&setup, &self.workload, &mut |_| ()).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }
}

const CHAT: [Length; 2] = [Length { mean: 300.0, deviation: 250.0 }, Length { mean: 250.0, deviation: 200.0 }];
const WRITING: [Length; 2] = [Length { mean: 100.0, deviation: 60.0 }, Length { mean: 500.0, deviation: 300.0 }];
const SUMMARIES: [Length; 2] = [Length { mean: 1_200.0, deviation: 600.0 }, Length { mean: 150.0, deviation: 90.0 }];
const DOCUMENTS: [Length; 2] = [Length { mean: 7_000.0, deviation: 6_000.0 }, Length { mean: 400.0, deviation: 250.0 }];
const CODE: [Length; 2] = [Length { mean: 600.0, deviation: 500.0 }, Length { mean: 350.0, deviation: 350.0 }];

/// Training loads of the learned watermark.
#[must_use]
pub fn training_cases() -> Vec<Case> {
    let mut cases: Vec<Case> = (CPEN_MODELS.iter().zip(101..))
        .map(|(&(model, blocks), seed)| Case::cpen(model, blocks, 1.0, seed, false))
        .collect();
    cases.push(Case::cpen("opt-1.3b", 200, 0.5, 111, false));
    cases.push(Case::cpen("opt-2.7b", 400, 2.0, 112, false));
    cases.push(Case::poisson("chat", 6.0, 1_500, CHAT, 121, false));
    cases.push(Case::poisson("chat", 3.0, 1_000, CHAT, 122, false));
    cases.push(Case::poisson("writing", 4.0, 1_500, WRITING, 123, false));
    cases.push(Case::poisson("summaries", 2.5, 2_500, SUMMARIES, 124, false));
    cases.push(Case::poisson("documents", 0.2, 6_000, DOCUMENTS, 125, false));
    cases.push(Case::poisson("documents", 0.5, 9_000, DOCUMENTS, 126, false));
    cases.push(Case::cpen("opt-125m", 900, 3.0, 113, false));
    cases.push(Case::cpen("r1-qwen-1.5b", 300, 1.0, 114, false));
    cases.push(Case::cpen("r1-qwen-1.5b", 500, 1.5, 115, false));
    cases
}

/// Held-out loads: other seeds, lengths and engines. Callers add public traces if available.
#[must_use]
pub fn held_out_cases() -> Vec<Case> {
    let mut cases: Vec<Case> = (CPEN_MODELS.iter().zip(1..))
        .map(|(&(model, blocks), seed)| Case::cpen(model, blocks, 1.0, seed, true))
        .collect();
    cases.push(Case::cpen("opt-1.3b", 250, 1.5, 5, true));
    cases.push(Case::cpen("r1-qwen-1.5b", 600, 3.0, 6, true));
    cases.push(Case::poisson("code", 3.0, 2_000, CODE, 11, true));
    cases.push(Case::poisson("code", 5.0, 1_200, CODE, 12, true));
    cases
}

/// The controllers in the comparison.
///
/// # Panics
/// Never: the names are constants.
#[must_use]
pub fn controllers() -> Vec<Watermark> {
    let names = [
        "fixed:0.01",
        "fixed:0.05",
        "fixed:0.2",
        "opt:2",
        "opt:6",
        "opt:12",
        "avg-above:3.6",
        "avg-above:7.5",
        "avg-below:3.6",
        "avg-below:7.5",
        "learned",
    ];
    names.map(|name| name.parse().expect("a watermark")).to_vec()
}

/// Results of one controller on one load, relative to fixed 1 %.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// The load.
    pub case: String,
    /// Whether the learned watermark was not trained on the load.
    pub held_out: bool,
    /// The controller.
    pub watermark: String,
    /// Blocks swapped out.
    pub swapped_blocks: u64,
    /// Number of swap-outs of requests.
    pub swaps: u64,
    /// Generated tokens per second.
    pub throughput: f64,
    /// Blocks swapped out over those of fixed 1 %; 1 if both are 0.
    pub swapped_ratio: f64,
    /// Throughput over that of fixed 1 %.
    pub throughput_ratio: f64,
    /// Mean time to first token, in milliseconds.
    pub ttft_mean_ms: f64,
}

/// Runs all controllers on all cases. `progress` is called after each run.
#[must_use]
pub fn compare(cases: &[Case], controllers: &[Watermark], progress: &mut dyn FnMut()) -> Vec<Compared> {
    let mut rows = Vec::new();
    for case in cases {
        let fixed = case.run(&Watermark::DEFAULT);
        for watermark in controllers {
            let outcome = case.run(watermark);
            rows.push(Compared {
                case: case.name.clone(),
                held_out: case.held_out,
                watermark: watermark.to_string(),
                swapped_blocks: outcome.swapped_out_blocks,
                swaps: outcome.swaps,
                throughput: outcome.throughput_tokens_per_s,
                swapped_ratio: ratio(outcome.swapped_out_blocks as f64, fixed.swapped_out_blocks as f64),
                throughput_ratio: ratio(outcome.throughput_tokens_per_s, fixed.throughput_tokens_per_s),
                ttft_mean_ms: outcome.ttft_mean_ms,
            });
            progress();
        }
    }
    rows
}

/// `value / of`; 1 if both are 0.
fn ratio(value: f64, of: f64) -> f64 {
    if of > 0.0 { value / of } else { 1.0 + value }
}

/// Results of one controller over several loads.
#[derive(Clone, Debug, Serialize)]
pub struct Overall {
    /// The controller.
    pub watermark: String,
    /// Blocks swapped out on all loads, over those of fixed 1 % on all.
    pub swapped_ratio: f64,
    /// Mean over the loads of `Compared::swapped_ratio`: all loads have equal weight.
    pub swapped_mean: f64,
    /// The largest of these ratios.
    pub swapped_worst: f64,
    /// The smallest ratio of throughput to that of fixed 1 %.
    pub throughput_worst: f64,
    /// Mean of that ratio over the loads.
    pub throughput_mean: f64,
}

/// Summarises a comparison over the held-out loads, or over the training loads.
#[must_use]
pub fn overall(rows: &[Compared], held_out: bool) -> Vec<Overall> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.watermark.as_str()) {
            names.push(&row.watermark);
        }
    }
    let of = |name: &str| {
        rows.iter().filter(move |row| row.held_out == held_out && row.watermark == name).collect::<Vec<_>>()
    };
    let blocks = |rows: &[&Compared]| rows.iter().map(|row| row.swapped_blocks as f64).sum::<f64>();
    let fixed = blocks(&of(&Watermark::DEFAULT.to_string()));
    let sum_up = |name: &&str| {
        let rows = of(name);
        let throughputs = rows.iter().map(|row| row.throughput_ratio);
        Overall {
            watermark: (*name).to_owned(),
            swapped_ratio: ratio(blocks(&rows), fixed),
            swapped_mean: rows.iter().map(|row| row.swapped_ratio).sum::<f64>() / rows.len().max(1) as f64,
            swapped_worst: rows.iter().map(|row| row.swapped_ratio).fold(0.0, f64::max),
            throughput_worst: throughputs.clone().fold(f64::INFINITY, f64::min),
            throughput_mean: throughputs.sum::<f64>() / rows.len().max(1) as f64,
        }
    };
    names.iter().filter(|name| !of(name).is_empty()).map(sum_up).collect()
}

#[cfg(test)]
mod tests;
