//! What adaptation gains: *κ* and *θ* of eq. 7, and the weights of eq. 8.

use super::{run_sparse, scale};
use cenote_policy::codec::{Measured, Reward};
use cenote_policy::prefetch::{ThrottleConfig, ThrottleLearner};
use cenote_policy::temperature::ThresholdConfig;
use cenote_serving_sim::tiers::sparse::{Depth, SparseSetup};
use cenote_serving_sim::tiers::weights::{EncodedEngine, LearnedWeights, learn};
use serde::Serialize;

/// Throughput under eq. 7 on a link that is too slow for the load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ThrottleGain {
    /// The link's bandwidth over the paper's.
    pub link: f64,
    /// Tokens per second by eq. 7 as printed.
    pub printed: f64,
    /// With recovery.
    pub recovering: f64,
    /// With recovery, and learned parameters.
    pub learned: f64,
    /// With recovery, on a longer run.
    pub long: f64,
    /// On that run, with parameters that are learned while it decodes.
    pub online: f64,
    /// Learned *κ*.
    pub kappa: f64,
    /// Learned *θ*.
    pub target: f64,
}

/// Steps of the run that learns while it decodes; half of them are not counted.
const ONLINE_STEPS: u64 = 160;
/// Pairs of trials of a training.
const PAIRS: u64 = 8;

/// Learns on loads of some seeds, and compares on another one.
#[must_use]
pub fn throttle_gains(seed: u64) -> Vec<ThrottleGain> {
    [1.0, 0.25, 0.125].map(|link| throttle_gain(link, seed)).to_vec()
}

fn throttle_gain(link: f64, seed: u64) -> ThrottleGain {
    let mut base = SparseSetup { requests: 2, steps: 30, ..scale::sparse() };
    base.buffer_pages /= 4;
    base.tier.link.bytes_per_s = (base.tier.link.bytes_per_s as f64 * link / 4.0) as u64;
    let run = |config: ThrottleConfig, seed: u64| {
        run_sparse(&SparseSetup { depth: Depth::Learned(config), ..base }, seed).tokens_per_s
    };
    let long = |depth: Depth| {
        run_sparse(&SparseSetup { depth, steps: ONLINE_STEPS, warm_steps: ONLINE_STEPS / 2, ..base }, seed).tokens_per_s
    };
    let mut learner = ThrottleLearner::new(ThrottleConfig::default(), seed);
    for pair in 0..PAIRS {
        // Both trials of a pair serve the same load, over the throughput of the default.
        let usual = run(ThrottleConfig::default(), seed.wrapping_add(1 + pair));
        for _ in 0..2 {
            learner.observe(run(learner.trial(), seed.wrapping_add(1 + pair)) / usual);
        }
    }
    let learned = learner.learned();
    ThrottleGain {
        link,
        printed: run(ThrottleConfig::AS_PRINTED, seed),
        recovering: run(ThrottleConfig::default(), seed),
        learned: run(learned, seed),
        long: long(Depth::Learned(ThrottleConfig::default())),
        online: long(Depth::Learning(ThrottleConfig::default(), seed)),
        kappa: learned.kappa,
        target: learned.target,
    }
}

/// Tokens per second with thresholds that stay, and with those that follow pressure and misses.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ThresholdGain {
    /// Pages in L1 over the pages that a layer chooses.
    pub l1: f64,
    /// With fixed *T_h* and *T_c*.
    pub fixed: f64,
    /// Share of the chosen pages in L1 then.
    pub fixed_rate: f64,
    /// With adaptive ones.
    pub adaptive: f64,
    /// Share of the chosen pages in L1 then.
    pub adaptive_rate: f64,
}

/// Compares thresholds without prefetch, so that only L1 counts.
#[must_use]
pub fn threshold_gains(seed: u64) -> Vec<ThresholdGain> {
    let of = |l1: f64| {
        let base = SparseSetup { requests: 2, depth: Depth::None, ..scale::sparse() };
        let base = SparseSetup { l1_pages: (f64::from(base.chosen) * l1) as usize, ..base };
        let run = |gain: f64| {
            let thresholds = ThresholdConfig { gain, ..base.thresholds };
            let outcome = run_sparse(&SparseSetup { thresholds, ..base }, seed);
            (outcome.tokens_per_s, outcome.l1_rate)
        };
        let ((fixed, fixed_rate), (adaptive, adaptive_rate)) = (run(0.0), run(base.thresholds.gain));
        ThresholdGain { l1, fixed, fixed_rate, adaptive, adaptive_rate }
    };
    [0.25, 0.5, 1.0].map(of).to_vec()
}

/// Learning of eq. 8's weights on one kind of engine.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WeightGain {
    /// What binds the engine with raw pages.
    pub engine: &'static str,
    /// Time to copy a step's pages, over its computation.
    pub copies: f64,
    /// Processors' part of a codec's cost on the path of a step.
    pub decode: f64,
    /// The result.
    pub learned: LearnedWeights,
}

/// (ratio, harm in nats per thousand tokens) of qpack at 0.5, 0.9, 1.2 and 1.7, and of qpackz, for the
/// demo model's layers (docs/evidence/codecs.md, `cenote-lab choose`).
const LAYERS: [[(f64, f64); 8]; 4] = [
    [
        (3.52, 0.049),
        (4.30, 0.140),
        (4.76, 0.246),
        (5.47, 0.553),
        (3.81, 0.049),
        (4.75, 0.140),
        (5.38, 0.246),
        (6.42, 0.553),
    ],
    [
        (4.75, 0.052),
        (6.03, 0.182),
        (6.93, 0.376),
        (8.69, 0.951),
        (5.37, 0.052),
        (7.32, 0.182),
        (8.85, 0.376),
        (11.68, 0.951),
    ],
    [
        (4.62, 0.023),
        (5.85, 0.088),
        (6.84, 0.198),
        (8.62, 0.614),
        (5.20, 0.023),
        (7.01, 0.088),
        (8.40, 0.198),
        (10.90, 0.614),
    ],
    [
        (5.15, 0.055),
        (6.78, 0.266),
        (8.21, 0.593),
        (10.47, 1.620),
        (5.90, 0.055),
        (8.32, 0.266),
        (10.33, 0.593),
        (13.78, 1.620),
    ],
];
/// Cost of encoding and decoding, in copies there and back, of qpack and of qpackz: the middles of the
/// measured ranges (docs/evidence/codecs.md).
const COSTS: [f64; 2] = [16.5, 30.0];
/// Limit of harm of the whole model, in nats per token: that of 0.5 % of perplexity there.
const HARM_MAX: f64 = 4.988e-3;
const PERIODS: u32 = 300;

/// Learns on engines that different resources bind.
#[must_use]
pub fn weight_gains(seed: u64) -> Vec<WeightGain> {
    let layer = |layer: &[(f64, f64); 8]| {
        let of = |(at, &(ratio, harm)): (usize, &(f64, f64))| {
            Measured::new(ratio, harm / 1e3, COSTS[at / 4]).expect("measured numbers are sound")
        };
        layer.iter().enumerate().map(of).collect()
    };
    let layers: Vec<Vec<Measured>> = LAYERS.iter().map(layer).collect();
    let engines =
        [("computation", 0.8, 0.005), ("copies", 8.0, 0.005), ("decoding", 8.0, 0.02), ("decoding, slow", 8.0, 0.05)];
    engines
        .map(|(engine, copies, decode)| {
            let encoded =
                EncodedEngine { layers: layers.clone(), harm_max: HARM_MAX, compute: 1.0, copies, decode, noise: 0.02 };
            // The floor bounds harm already, so the reward is throughput alone.
            let reward = Reward { quality_target: 1.0, quality_weight: 0.0 };
            WeightGain { engine, copies, decode, learned: learn(&encoded, reward, PERIODS, seed) }
        })
        .to_vec()
}
