//! Figure 11 by batch and model: which systems saturate, and what grouped-query attention changes.

use super::systems::{LPDDR, VLLM, model};
use super::throughput::{mean, rate};
use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};

pub const EXPERIMENT: Experiment = Experiment {
    id: "oaken.sweeps",
    title: "throughput by batch and model",
    covers: &["oaken.figure11.sweep", "oaken.figure11.opt", "oaken.figure11.gqa", "oaken.figure11.gqa-saturation"],
    is_quick: false,
    run,
};

/// All models of §6.1.
const MODELS: [&str; 8] =
    ["llama-2-7b", "llama-2-13b", "opt-6.7b", "opt-13b", "opt-30b", "mistral-7b", "mixtral-8x7b", "llama-2-70b"];
const OPT: [&str; 3] = ["opt-6.7b", "opt-13b", "opt-30b"];
const GROUPED: [&str; 3] = ["mistral-7b", "mixtral-8x7b", "llama-2-70b"];
const BATCHES: [u32; 4] = [32, 64, 128, 256];

fn run(_: &Context) -> Vec<Measured> {
    // The least over all models of the throughput over that of half the batch.
    let scaled = |&batch: &u32| {
        let each = MODELS.iter().map(|name| {
            let model = model(name);
            rate(LPDDR, &model, batch) / rate(LPDDR, &model, batch / 2)
        });
        each.fold(f64::MAX, f64::min)
    };
    let gain = |name: &str, batch: u32| {
        let model = model(name);
        rate(LPDDR, &model, batch) / rate(VLLM, &model, batch)
    };
    let many = |names: &[&str], batch: u32| mean(names.iter().map(|name| gain(name, batch)));
    let ungrouped: Vec<&str> = MODELS.iter().copied().filter(|name| !GROUPED.contains(name)).collect();
    let grouped = |batch: u32| vec![many(&GROUPED, batch) / many(&ungrouped, batch)];
    let saturated = |name: &&str| {
        let model = model(name);
        rate(VLLM, &model, 256) / rate(VLLM, &model, 128)
    };
    vec![
        Measured::new(
            "oaken.figure11.sweep",
            BATCHES.iter().map(scaled).collect(),
            "the least of the eight models of §6.1; 1,024 tokens in and out",
        ),
        Measured::new(
            "oaken.figure11.opt",
            OPT.iter().map(|name| gain(name, 256)).collect(),
            "OPT-30B has two cards' memory on GPUs",
        ),
        Measured::new(
            "oaken.figure11.gqa",
            grouped(16),
            "means over vLLM at a batch of 16, which all memories hold but for Llama2-70B: three models with groups, \
             five without",
        )
        .sensitive(Sensitivity::of("batch", &grouped(16), &[64, 256], |&batch| grouped(batch))),
        Measured::new(
            "oaken.figure11.gqa-saturation",
            GROUPED.iter().map(saturated).collect(),
            "a window of 4,096 tokens changes nothing at 2,048",
        ),
    ]
}
