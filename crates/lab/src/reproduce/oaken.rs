//! Oaken (ISCA 2025): Tables 1 to 4, Figures 3 to 6 and 11 to 14.

mod bits;
mod lengths;
mod paper;
mod sweep;
mod systems;
mod throughput;

use super::{Experiment, Paper};

/// The paper.
pub const PAPER: Paper = Paper {
    id: "oaken",
    title: "Oaken: Fast and Efficient LLM Serving with Online-Offline Hybrid KV Cache Quantization",
    printed: paper::PRINTED,
    experiments: EXPERIMENTS,
};

const EXPERIMENTS: &[Experiment] = &[bits::EXPERIMENT, throughput::EXPERIMENT, lengths::EXPERIMENT, sweep::EXPERIMENT];
