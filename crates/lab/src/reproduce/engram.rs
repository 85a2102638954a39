//! Pooling Engram Conditional Memory using CXL (EuroMLSys 2026): Tables 1 to 5, Figures 3, 5 and 6.

mod latency;
mod paper;
mod serving;

use super::{Experiment, Paper};

/// The paper.
pub const PAPER: Paper = Paper {
    id: "engram",
    title: "Pooling Engram Conditional Memory in Large Language Models using CXL",
    printed: paper::PRINTED,
    experiments: EXPERIMENTS,
};

const EXPERIMENTS: &[Experiment] = &[latency::EXPERIMENT, serving::EXPERIMENT];
