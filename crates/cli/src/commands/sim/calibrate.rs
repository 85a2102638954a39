//! `cenote sim --calibrate`: how long steps take on this machine.
//!
//! Steps of the reference engine are timed that differ in what a cost model goes by: prompts of several lengths, behind nothing and
//! behind what was computed before; answers of one request and of many. Each is timed several times, and the median counts.

use crate::args::SimArgs;
use crate::commands::engine::named_dir;
use crate::failure::Failure;
use crate::output;
use cenote_base::TokenId;
use cenote_base::prng::Prng;
use cenote_engine::kv::KvArena;
use cenote_engine::llama::{LogitsOf, SeqChunk};
use cenote_engine::{EngineConfig, LoadedModel};
use cenote_sim::model::{Calibration, Sample, StepWork};
use std::path::Path;
use std::time::Instant;

/// Requests and, of each, tokens before and tokens computed.
const STEPS: [(usize, u32, u32); 22] = [
    (1, 0, 16),
    (1, 0, 64),
    (1, 0, 128),
    (1, 0, 256),
    (1, 0, 512),
    (1, 256, 256),
    (1, 512, 256),
    (1, 512, 512),
    (1, 1024, 256),
    (2, 0, 128),
    (4, 0, 64),
    (1, 64, 1),
    (1, 256, 1),
    (1, 1024, 1),
    (2, 128, 1),
    (4, 64, 1),
    (4, 512, 1),
    (8, 128, 1),
    (8, 256, 1),
    (16, 64, 1),
    (16, 256, 1),
    (32, 128, 1),
];
const REPEATS: usize = 7;

pub fn run(args: &SimArgs, path: &Path) -> Result<(), Failure> {
    let dir = args.model.as_ref().map(std::path::PathBuf::from);
    let model = LoadedModel::load(&EngineConfig::new(named_dir(dir.as_ref())?))?;
    let layout = *model.layout();
    let tokens_max = model.max_model_len();
    let steps: Vec<_> = STEPS.iter().filter(|(_, before, new)| (before + new) as usize <= tokens_max).collect();
    let bar = output::progress("timing steps", (steps.len() * REPEATS) as u64);
    let mut samples = Vec::new();
    for &&(requests, before, new) in &steps {
        let mut times: Vec<u64> = Vec::new();
        let mut step = Step::prepare(&model, requests, before, new);
        // Once untimed: caches and branches settle.
        step.run(&model);
        for _ in 0..REPEATS {
            let begin = Instant::now();
            step.run(&model);
            times.push(begin.elapsed().as_nanos() as u64);
            bar.inc(1);
        }
        times.sort_unstable();
        let mut work = StepWork::default();
        (0..requests).for_each(|_| work.add(before, new));
        samples.push(Sample::new(&work, times[REPEATS / 2]));
    }
    bar.finish_and_clear();
    let kv_bytes = (layout.block_bytes() / layout.block_tokens) as u64;
    let kv_tokens = (model.kv_blocks() * layout.block_tokens) as u64;
    let of = format!("{} on this machine, {} threads", model.name(), model.threads());
    let fitted = Calibration::fit(&of, kv_bytes, kv_tokens, copy_speed(), samples);
    let text = serde_json::to_string_pretty(&fitted)?;
    std::fs::write(path, text + "\n")
        .map_err(|error| Failure::new(format!("{}: cannot write the calibration: {error}", path.display())))?;
    args.output.show(&fitted, || table(&fitted))
}

struct Step {
    kv: KvArena,
    tokens: Vec<Vec<TokenId>>,
    tables: Vec<Vec<u32>>,
    before: usize,
}

impl Step {
    /// Requests whose first `before` tokens are computed.
    fn prepare(model: &LoadedModel, requests: usize, before: u32, new: u32) -> Self {
        let layout = *model.layout();
        let vocabulary = model.llama().config().vocab_size as u64;
        let length = (before + new) as usize;
        let blocks = length.div_ceil(layout.block_tokens);
        let mut prng = Prng::new(1);
        let mut step = Self {
            kv: KvArena::new(layout, requests * blocks),
            tokens: (0..requests).map(|_| (0..length).map(|_| prng.below(vocabulary) as TokenId).collect()).collect(),
            tables: (0..requests).map(|at| ((at * blocks) as u32..((at + 1) * blocks) as u32).collect()).collect(),
            before: 0,
        };
        let before = before as usize;
        if before > 0 {
            step.forward(model, 0, before, LogitsOf::Nothing);
        }
        step.before = before;
        step
    }

    fn run(&mut self, model: &LoadedModel) {
        let length = self.tokens[0].len();
        self.forward(model, self.before, length, LogitsOf::Last);
    }

    fn forward(&mut self, model: &LoadedModel, from: usize, to: usize, logits: LogitsOf) {
        let chunk = |(tokens, block_table): (&'_ Vec<TokenId>, &'_ Vec<u32>)| (tokens.clone(), block_table.clone());
        let owned: Vec<_> = self.tokens.iter().zip(&self.tables).map(chunk).collect();
        let batch: Vec<SeqChunk<'_>> = (owned.iter())
            .map(|(tokens, table)| SeqChunk {
                tokens: &tokens[from..to],
                start_position: from,
                block_table: table,
                logits,
            })
            .collect();
        std::hint::black_box(model.forward(&batch, &mut self.kv));
    }
}

/// Bytes a second of a copy between two buffers that no cache holds.
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
        ("of", fitted.of.clone()),
        ("a step", format!("{:.1} µs", fitted.step_ns / 1e3)),
        ("each request of it", format!("{:.1} µs", fitted.request_ns / 1e3)),
        ("each token", format!("{:.2} µs", fitted.token_ns / 1e3)),
        ("each pair of tokens", format!("{:.2} ns", fitted.pair_ns)),
        ("copies", format!("{:.1} GB/s", fitted.copy_bytes_per_s as f64 / 1e9)),
        (
            "error of the fit",
            format!("{:.1} % on average over {} steps", 100.0 * fitted.mean_error, fitted.samples.len()),
        ),
    ])
}
