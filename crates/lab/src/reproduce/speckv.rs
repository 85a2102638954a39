//! CXL-SpecKV (FPGA 2026): Tables 1 to 9, Figures 1 to 6, its equations and claims.

mod capacity;
mod codecs;
mod engine;
mod equations;
mod measured;
mod overall;
mod paper;
mod prefetch;
mod scaling;
mod systems;
mod use_of;

use super::{Experiment, Paper};

/// The paper.
pub const PAPER: Paper = Paper {
    id: "speckv",
    title: "CXL-SpecKV: A Disaggregated FPGA Speculative KV-Cache for Datacenter LLM Serving",
    printed: paper::PRINTED,
    experiments: EXPERIMENTS,
};

const EXPERIMENTS: &[Experiment] = &[
    prefetch::EXPERIMENT,
    overall::EXPERIMENT,
    scaling::EXPERIMENT,
    codecs::EXPERIMENT,
    use_of::EXPERIMENT,
    capacity::EXPERIMENT,
    engine::EXPERIMENT,
    equations::EXPERIMENT,
    measured::EXPERIMENT,
];
