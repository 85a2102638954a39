//! Watermarks compared in the simulator: CPEN 511's Figures 5 to 10 redone, and all controllers on loads that the learned one was
//! trained on and on others.

mod figures;
mod train;

pub use figures::{Curve, FACTORS, Figures, Point, figures, thresholds};
pub use train::{Training, train, weights_source};

use cenote_policy::{Eviction, Watermark};
use cenote_sim::model::{CostModel, Device, Link, ModelShape};
use cenote_sim::workload::{CPEN_PROMPTS, Length, Synthetic, cpen};
use cenote_sim::{Outcome, Setup, Workload, simulate};
use serde::Serialize;

/// vLLM's default `--swap-space`.
const SWAP_BYTES: u64 = 4 << 30;
/// vLLM's defaults: requests of a step, and tokens of one.
const MAX_NUM_SEQS: usize = 256;
const MAX_NUM_BATCHED_TOKENS: u32 = 2_048;
/// Where the paper's models run. It does not say; TraCT's card is of the kind.
const DEVICE: &str = "a6000";

/// CPEN 511 §VII-A: its four models, "chosen such that there are 100–500 GPU blocks". Which has how many it does not say.
pub const CPEN_MODELS: [(&str, u32); 4] =
    [("opt-125m", 500), ("opt-1.3b", 300), ("opt-2.7b", 150), ("r1-qwen-1.5b", 400)];

/// One engine of CPEN 511's kind.
///
/// # Panics
/// There is no such model.
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
        swap_link: link,
        always_swap: true,
        private: None,
        shared: None,
        eviction: Eviction::Lru,
    }
}

/// A load and an engine too small for it.
#[derive(Clone, Debug)]
pub struct Case {
    /// What it is called.
    pub name: String,
    /// Whether the learned watermark never saw it.
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

    /// Poisson arrivals on one engine of 8 billion parameters: as many a second as keep it full, or more.
    fn poisson(name: &str, rate: f64, l1_blocks: u32, lengths: [Length; 2], seed: u64, held_out: bool) -> Self {
        let [input, output] = lengths;
        let spec = Synthetic { requests: 500, rate, input, output, unique: None, groups: 1, block_tokens: 16 };
        let name = format!("{name}, {rate}/s, {l1_blocks} blocks, seed {seed}");
        Self { name, held_out, setup: cpen_setup("llama-8b", l1_blocks), workload: spec.draw(seed) }
    }

    /// A public trace, of which the first requests come `speed` times as fast, to an engine of 8 billion parameters.
    #[must_use]
    pub fn trace(name: &str, mut workload: Workload, requests: usize, speed: f64, l1_blocks: u32) -> Self {
        workload.truncate(requests);
        workload.speed_up(speed);
        let name = format!("{name}, first {requests}, {speed} × as fast, {l1_blocks} blocks");
        Self { name, held_out: true, setup: cpen_setup("llama-8b", l1_blocks), workload }
    }

    /// The run with this watermark.
    ///
    /// # Panics
    /// The engine cannot hold a request at all.
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

/// What the learned watermark is trained on.
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

/// Loads that it was not trained on: other seeds, other lengths, other engines. Public traces come on top, where they are at hand.
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

/// The controllers of the table.
///
/// # Panics
/// Never: they are named here.
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

/// One controller on one load, beside fixed 1 %.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// The load.
    pub case: String,
    /// Whether the learned watermark never saw it.
    pub held_out: bool,
    /// The controller.
    pub watermark: String,
    /// Blocks swapped out.
    pub swapped_blocks: u64,
    /// Times that a request was swapped out.
    pub swaps: u64,
    /// Generated tokens a second.
    pub throughput: f64,
    /// Blocks swapped out, over those of fixed 1 %; 1 where that swaps nothing either.
    pub swapped_ratio: f64,
    /// Throughput over that of fixed 1 %.
    pub throughput_ratio: f64,
    /// Mean time to first token, milliseconds.
    pub ttft_mean_ms: f64,
}

/// All controllers on all cases.
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

/// 1 of nothing and nothing.
fn ratio(value: f64, of: f64) -> f64 {
    if of > 0.0 { value / of } else { 1.0 + value }
}

/// A controller over several loads.
#[derive(Clone, Debug, Serialize)]
pub struct Overall {
    /// The controller.
    pub watermark: String,
    /// Blocks swapped out on all loads, over those of fixed 1 % on all.
    pub swapped_ratio: f64,
    /// The mean over the loads of each one's ratio: large loads count as much as small ones.
    pub swapped_mean: f64,
    /// The worst of them.
    pub swapped_worst: f64,
    /// The worst throughput over that of fixed 1 %.
    pub throughput_worst: f64,
    /// Its mean over the loads.
    pub throughput_mean: f64,
}

/// Sums a comparison up, over the loads that were held out or over the others.
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
