//! Trains the learned watermark with the cross-entropy method (Rubinstein 1999), a search without
//! gradients.
//!
//! Each generation draws a population of weights around a mean and runs each on all training loads.
//! Mean and spread then move to those of the best. CPEN 511 §IX rewards throughput alone, which
//! hardly distinguishes controllers. This reward subtracts swapped blocks, and penalises throughput
//! below that of fixed 1 %. The result depends only on the seed, not on the number of cores.

use super::Case;
use cenote_base::prng::Prng;
use cenote_policy::Watermark;
use cenote_policy::watermark::{FEATURES, ONE, Weights};

/// Weights per generation, and the number of best ones that the next generation is drawn around.
const POPULATION: usize = 40;
const BEST: usize = 8;
/// Throughput over that of fixed 1 %; weights below this are penalised. A little above the final
/// requirement.
const THROUGHPUT_FLOOR: f64 = 1.0;
/// Penalty per hundredth below the floor, in swapped blocks over those of fixed 1 %.
const FLOOR_PRICE: f64 = 1.0;

/// Result of a training.
#[derive(Clone, Debug)]
pub struct Training {
    /// The best weights found.
    pub weights: Weights,
    /// Reward of the weights: 0 would be no swaps at all, and fixed 1 % has -1.
    pub reward: f64,
}

/// Trains on `cases`. `progress` receives each generation's number, from 1, and the best reward so
/// far.
#[must_use]
pub fn train(cases: &[Case], generations: usize, seed: u64, progress: &mut dyn FnMut(usize, f64)) -> Training {
    let fixed = of_fixed(cases);
    let mut prng = Prng::new(seed);
    // Initial mean: keep 1/32 of all blocks free, plus the blocks that prompts still need. All
    // other weights are 0.
    let mut mean = [0.0; FEATURES];
    mean[4] = 0.5;
    mean[6] = 16.0;
    let mut spread = [2.0, 0.5, 0.5, 0.5, 0.3, 0.5, 4.0, 1.0];
    let mut best = Training { weights: rounded(&mean), reward: f64::NEG_INFINITY };
    for generation in 0..generations {
        let mut tried: Vec<(f64, [f64; FEATURES])> = Vec::new();
        for _ in 0..POPULATION {
            let mut drawn = mean;
            drawn.iter_mut().zip(&spread).for_each(|(weight, spread)| *weight += spread * normal(&mut prng));
            let reward = reward(cases, &fixed, &rounded(&drawn));
            tried.push((reward, drawn));
        }
        tried.sort_by(|a, b| b.0.total_cmp(&a.0));
        if tried[0].0 > best.reward {
            best = Training { weights: rounded(&tried[0].1), reward: tried[0].0 };
        }
        let elite = &tried[..BEST];
        for feature in 0..FEATURES {
            let values = || elite.iter().map(|(_, weights)| weights[feature]);
            mean[feature] = values().sum::<f64>() / BEST as f64;
            let variance = values().map(|value| (value - mean[feature]).powi(2)).sum::<f64>() / BEST as f64;
            // A minimum spread keeps the search exploring.
            spread[feature] = variance.sqrt().max(0.02);
        }
        progress(generation + 1, best.reward);
    }
    best
}

/// Sum of twelve uniform numbers less six: approximately normal, and equal on every machine.
fn normal(prng: &mut Prng) -> f64 {
    (0..12).map(|_| prng.next_f64()).sum::<f64>() - 6.0
}

fn rounded(weights: &[f64; FEATURES]) -> Weights {
    weights.map(|weight| (weight * ONE as f64).round() as i32)
}

/// Blocks swapped out, and generated tokens per second.
fn measured(case: &Case, watermark: &Watermark) -> (f64, f64) {
    let outcome = case.run(watermark);
    (outcome.swapped_out_blocks as f64, outcome.throughput_tokens_per_s)
}

/// The reward of weights on `cases`.
#[must_use]
pub fn reward_of(cases: &[Case], weights: &Weights) -> f64 {
    reward(cases, &of_fixed(cases), weights)
}

fn of_fixed(cases: &[Case]) -> Vec<(f64, f64)> {
    cases.iter().map(|case| measured(case, &Watermark::DEFAULT)).collect()
}

fn reward(cases: &[Case], fixed: &[(f64, f64)], weights: &Weights) -> f64 {
    let watermark = Watermark::Learned(*weights);
    let of_case = |(case, fixed): (&Case, &(f64, f64))| {
        let (swapped, throughput) = measured(case, &watermark);
        let lacking = (THROUGHPUT_FLOOR - throughput / fixed.1).max(0.0);
        -swapped / fixed.0.max(1.0) - FLOOR_PRICE * 100.0 * lacking
    };
    let rewards: Vec<f64> = cases.iter().zip(fixed).map(of_case).collect();
    let mean = rewards.iter().sum::<f64>() / rewards.len().max(1) as f64;
    let worst = rewards.iter().copied().fold(0.0, f64::min);
    0.5 * (mean + worst)
}

/// Source code of the file with the shipped weights, `crates/policy/src/watermark/weights.rs`.
#[must_use]
pub fn weights_source(training: &Training, generations: usize, seed: u64) -> String {
    let weights: Vec<String> = training.weights.iter().map(ToString::to_string).collect();
    format!(
        "//! Weights of the learned watermark: the output of `cenote-lab study watermark --train FILE`.\n\
         //!\n\
         //! {generations} generations, seed {seed}: reward {:.4}; fixed 1 % has -1.\n\
         \n\
         use super::Weights;\n\
         \n\
         /// In 1024ths: constant, length now, final length, length to come, blocks in all, recent losses,\n\
         /// pending prompts, deviation.\n\
         pub const SHIPPED: Weights = [{}];\n",
        training.reward,
        weights.join(", ")
    )
}
