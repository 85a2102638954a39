//! Oaken (ISCA 2025): Tables 1 to 4, Figures 1, 3 to 6 and 11 to 14.

mod baselines;
mod bits;
mod lengths;
mod paper;
mod pareto;
mod sweeps;
mod systems;
mod throughput;
mod traces;

use super::{Experiment, Paper};

/// The paper.
pub const PAPER: Paper = Paper {
    id: "oaken",
    title: "Oaken: Fast and Efficient LLM Serving with Online-Offline Hybrid KV Cache Quantization",
    printed: paper::PRINTED,
    experiments: EXPERIMENTS,
};

const EXPERIMENTS: &[Experiment] = &[
    bits::EXPERIMENT,
    pareto::EXPERIMENT,
    throughput::EXPERIMENT,
    baselines::EXPERIMENT,
    sweeps::EXPERIMENT,
    lengths::EXPERIMENT,
    traces::EXPERIMENT,
];
