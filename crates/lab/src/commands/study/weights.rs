//! `cenote-lab study weights`: the codec weights of eq. 8, learned from an engine's throughput
//! (CXL-SpecKV §3.6.3).
//!
//! In each period an engine serves the same prompts in a random order, from a region that holds half of
//! them raw. Its codecs are those that the period's weights choose from a table. Better compressed
//! blocks are found more often, and cost more time; the throughput says which of both counts more.

use crate::args::StudyWeightsArgs;
use crate::commands::greedy::{collect, request, submit};
use cenote_base::TokenId;
use cenote_base::prng::Prng;
use cenote_codec::LayerSpecs;
use cenote_console::args::{CodecArg, EngineArgs, NewRegionArgs, WatchArgs};
use cenote_console::failure::Failure;
use cenote_console::region::TemporaryRegion;
use cenote_console::{codec_table, engine, output};
use cenote_policy::codec::{Reward, WeightLearner, Weights};
use cenote_quality::table::CodecTable;
use serde::Serialize;
use std::time::Instant;

/// Prompts, and requests of a period: each prompt comes several times.
const PROMPTS: usize = 12;
const REQUESTS: usize = 48;
/// Tokens that a request generates.
const OUTPUT_TOKENS: u32 = 4;
/// The harm that a choice may do is bounded by the table already, so only throughput is rewarded.
const REWARD: Reward = Reward { quality_target: 1.0, quality_weight: 0.0 };

#[derive(Serialize)]
struct Report {
    prompt_tokens: usize,
    region_bytes: u64,
    /// Raw blocks, equal weights, and what was learned; each a mean over `repeats` periods.
    rows: Vec<Row>,
    repeats: usize,
    /// Throughput with the learned weights over that with equal ones.
    gain: f64,
    periods: Vec<Period>,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    codec: String,
    weights: Option<[f64; 3]>,
    tokens_per_s: f64,
    /// Largest deviation of a period from the mean.
    deviation: f64,
}

#[derive(Serialize)]
struct Period {
    weights: [f64; 3],
    codec: String,
    tokens_per_s: f64,
}

struct Study<'a> {
    args: &'a EngineArgs,
    table: CodecTable,
    prompts: Vec<Vec<TokenId>>,
    region_bytes: u64,
    seed: u64,
}

impl Study<'_> {
    fn specs(&self, weights: Weights) -> Result<LayerSpecs, Failure> {
        let chosen = self.table.chosen_by(weights, self.table.kl_budget);
        Ok(LayerSpecs::of_layers(&chosen.map_err(|error| Failure::new(error.to_string()))?.0))
    }

    /// Serves a period with these codecs. Returns prompt tokens per second.
    fn serve(&self, specs: &LayerSpecs) -> Result<f64, Failure> {
        let region = TemporaryRegion::make("weights", &NewRegionArgs::of_size(self.region_bytes))?;
        let args = EngineArgs { codec: Some(CodecArg::Named(specs.clone())), ..self.args.clone() };
        let running = engine::start(&args, Some(region.args()), &WatchArgs::default(), "study")?;
        let mut prng = Prng::new(self.seed);
        let (mut tokens, begin) = (0, Instant::now());
        for id in 1..=REQUESTS as u64 {
            let prompt = &self.prompts[prng.below(PROMPTS as u64) as usize];
            tokens += prompt.len();
            collect(&submit(&*running.engine, request(id, prompt, OUTPUT_TOKENS))?)?;
        }
        Ok(tokens as f64 / begin.elapsed().as_secs_f64())
    }

    fn row(&self, name: &'static str, weights: Option<Weights>, repeats: usize) -> Result<Row, Failure> {
        let specs = match weights {
            Some(weights) => self.specs(weights)?,
            None => "raw".parse()?,
        };
        let rates = (0..repeats).map(|_| self.serve(&specs)).collect::<Result<Vec<f64>, Failure>>()?;
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let deviation = rates.iter().map(|rate| (rate / mean - 1.0).abs()).fold(0.0, f64::max);
        let weights = weights.map(|weights| weights.as_array());
        Ok(Row { name, codec: specs.to_string(), weights, tokens_per_s: mean, deviation })
    }
}

pub fn run(args: &StudyWeightsArgs) -> Result<(), Failure> {
    let path = args.engine.codec_table.as_ref().ok_or_else(|| {
        Failure::new("weights choose from a codec table")
            .hint("make one with cenote-lab choose, and name it with --codec-table")
    })?;
    let table = codec_table::parse(path)?;
    let model = engine::load(&args.engine, None)?;
    let block_bytes = model.layout().block_bytes() as u64;
    let mut prng = Prng::new(args.seed);
    let prompts = (0..PROMPTS).map(|_| (0..args.prompt_tokens).map(|_| 100 + prng.below(3000) as TokenId).collect());
    let prompts: Vec<Vec<TokenId>> = prompts.collect();
    let blocks = (PROMPTS * args.prompt_tokens / model.layout().block_tokens) as u64;
    drop(model);
    let region_bytes = blocks * block_bytes / 2 + (8 << 20);
    let study = Study { args: &args.engine, table, prompts, region_bytes, seed: args.seed };
    let progress = output::progress("serving", (args.periods + 3 * args.repeats) as u64);
    let mut rows = vec![
        study.row("raw", None, args.repeats)?,
        study.row("equal weights", Some(Weights::default()), args.repeats)?,
    ];
    progress.inc(2 * args.repeats as u64);
    let usual = rows[1].tokens_per_s;
    let mut learner = WeightLearner::new(Weights::default(), REWARD, args.seed);
    let mut periods = Vec::new();
    for _ in 0..args.periods {
        let weights = learner.trial();
        let specs = study.specs(weights)?;
        let tokens_per_s = study.serve(&specs)?;
        learner.observe(tokens_per_s / usual, 1.0);
        periods.push(Period { weights: weights.as_array(), codec: specs.to_string(), tokens_per_s });
        progress.inc(1);
    }
    rows.push(study.row("learned weights", Some(learner.learned()), args.repeats)?);
    progress.finish_and_clear();
    let gain = rows[2].tokens_per_s / rows[1].tokens_per_s;
    let report = Report { prompt_tokens: args.prompt_tokens, region_bytes, rows, repeats: args.repeats, gain, periods };
    args.output.show(&report, || table_of(&report))
}

fn table_of(report: &Report) -> String {
    let mut table = output::table(&["weights", "ratio", "quality", "cost", "codec", "prompt tokens/s", "±"]).keys(1);
    for row in &report.rows {
        let [ratio, quality, cost] =
            row.weights.map_or_else(Default::default, |weights| weights.map(|weight| format!("{weight:.2}")));
        table.add_row([
            row.name.to_owned(),
            ratio,
            quality,
            cost,
            row.codec.clone(),
            format!("{:.0}", row.tokens_per_s),
            format!("{:.1} %", 100.0 * row.deviation),
        ]);
    }
    format!("{table}\n\nlearned over equal weights: {:.3}", report.gain)
}
