//! CPEN 511's project report: Figures 3 to 10.

mod algorithm;
mod paper;
mod swaps;
mod watermarks;

use super::{Experiment, Paper};

/// The paper.
pub const PAPER: Paper = Paper {
    id: "cpen",
    title: "CPEN 511: KV-cache prefetching and adaptive watermarks in vLLM",
    printed: paper::PRINTED,
    experiments: EXPERIMENTS,
};

const EXPERIMENTS: &[Experiment] = &[algorithm::EXPERIMENT, swaps::EXPERIMENT, watermarks::EXPERIMENT];
