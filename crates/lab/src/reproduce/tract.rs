//! TraCT (2026): Table 1, Figures 5 to 11, and its locks.

mod locks;
mod paper;
mod serving;
mod systems;
mod transfer;

use super::{Experiment, Paper};

/// The paper.
pub const PAPER: Paper = Paper {
    id: "tract",
    title: "TraCT: Disaggregated LLM Serving with CXL Shared Memory KV Cache at Rack-Scale",
    printed: paper::PRINTED,
    experiments: EXPERIMENTS,
};

const EXPERIMENTS: &[Experiment] = &[serving::EXPERIMENT, transfer::EXPERIMENT, locks::EXPERIMENT];
