//! Figure 11 by batch and model: which systems saturate, and what grouped-query attention changes.

use super::systems::{LPDDR, VLLM, model};
use super::throughput::{ASSUMED, Open, mean, rate};
use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};

pub const EXPERIMENT: Experiment = Experiment {
    id: "oaken.sweeps",
    title: "throughput by batch and model",
    covers: &["oaken.figure11.sweep", "oaken.figure11.opt", "oaken.figure11.gqa", "oaken.figure11.gqa-saturation"],
    is_quick: false,
    draws: false,
    run,
};

/// All models of §6.1.
const MODELS: [&str; 8] =
    ["llama-2-7b", "llama-2-13b", "opt-6.7b", "opt-13b", "opt-30b", "mistral-7b", "mixtral-8x7b", "llama-2-70b"];
const OPT: [&str; 3] = ["opt-6.7b", "opt-13b", "opt-30b"];
const GROUPED: [&str; 3] = ["mistral-7b", "mixtral-8x7b", "llama-2-70b"];
const BATCHES: [u32; 4] = [32, 64, 128, 256];

fn run(_: &Context) -> Vec<Measured> {
    let scaled = |open: &Open, batch: u32| {
        let each = MODELS.map(|name| {
            let model = model(name);
            open.rate(LPDDR, &model, batch) / open.rate(LPDDR, &model, batch / 2)
        });
        [mean(each.into_iter()), each.into_iter().fold(f64::MAX, f64::min)]
    };
    let gain = |name: &str, batch: u32| {
        let model = model(name);
        rate(LPDDR, &model, batch) / rate(VLLM, &model, batch)
    };
    let many = |names: &[&str], batch: u32| mean(names.iter().map(|name| gain(name, batch)));
    let ungrouped: Vec<&str> = MODELS.iter().copied().filter(|name| !GROUPED.contains(name)).collect();
    let grouped = |batch: u32| vec![many(&GROUPED, batch) / many(&ungrouped, batch)];
    let saturated = |open: &Open, name: &str| {
        let model = model(name);
        open.rate(VLLM, &model, 256) / open.rate(VLLM, &model, 128)
    };
    let of = |open: &Open, which: usize| BATCHES.iter().map(|&batch| scaled(open, batch)[which]).collect::<Vec<f64>>();
    let row =
        Open::row("oaken.figure11.sweep", "the eight models of §6.1; 1,024 tokens in and out", |open| of(open, 0));
    let base = row.values.clone().unwrap_or_default();
    let least = Sensitivity::from(
        "models",
        &base,
        vec!["the least, which is Llama2-70B, whose batch of 256 does not fit".to_owned()],
        vec![of(&ASSUMED, 1)],
    );
    let sweep = row.sensitive(least.aside());
    vec![
        sweep,
        Open::row("oaken.figure11.opt", "OPT-30B has two cards' memory on GPUs", |open| {
            let each = OPT.map(model);
            each.iter().map(|model| open.rate(LPDDR, model, 256) / open.rate(VLLM, model, 256)).collect()
        }),
        Measured::new(
            "oaken.figure11.gqa",
            grouped(16),
            "means over vLLM at a batch of 16, which all memories hold but for Llama2-70B: three models with groups, \
             five without",
        )
        .sensitive(Sensitivity::of("batch", &grouped(16), &[64, 256], |&batch| grouped(batch))),
        Open::row("oaken.figure11.gqa-saturation", "a window of 4,096 tokens changes nothing at 2,048", |open| {
            GROUPED.iter().map(|name| saturated(open, name)).collect()
        }),
    ]
}
