//! Table 4: how many requests of 2,048 tokens each system holds.

use super::systems::{BASE, FAR_BYTES, HOST_BYTES, INT8_RATIO, Machine};
use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::hardware::a100::A100_80;
use cenote_serving_sim::hardware::architecture::LLAMA_2_70B;

pub const EXPERIMENT: Experiment = Experiment {
    id: "speckv.capacity",
    title: "capacity and batches",
    covers: &[
        "speckv.table4",
        "speckv.s3-1.sequential",
        "speckv.s3-1.layers",
        "speckv.s3-1.read-write",
        "speckv.abstract",
        "speckv.s1.infrastructure",
        "speckv.s3-3-1",
        "speckv.s4-1-1.gpu",
        "speckv.s4-6",
    ],
    is_quick: true,
    draws: false,
    run,
};

const TOKENS: u64 = 2_048;

/// Batches of GPU only, with INT8, with host memory, with CXL memory, and with a codec there.
fn batches(machine: &Machine) -> Vec<f64> {
    let model = LLAMA_2_70B.int8();
    let own = machine.roofline(&model).kv_bytes() as f64;
    let request = (TOKENS * model.kv_bytes_per_token()) as f64;
    let held = |bytes: f64| (bytes / request).floor();
    vec![
        held(own),
        held(own * INT8_RATIO),
        held(own + HOST_BYTES as f64),
        held(own + FAR_BYTES as f64),
        held(own + FAR_BYTES as f64 * machine.ratio),
    ]
}

fn over_first(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| value / values[0].max(1.0)).collect()
}

fn run(_: &Context) -> Vec<Measured> {
    let base = batches(&BASE);
    let gpus = |gpus: &u32| batches(&Machine { gpus: Some(*gpus), ..BASE });
    let expansion = over_first(&base);
    let why = "one A100 beside 69 GB of INT8 weights, eight KV heads; the paper's formula ignores grouped heads";
    vec![
        Measured::new("speckv.table4.batch", base.clone(), why).sensitive(Sensitivity::of(
            "GPUs",
            &base,
            &[2, 4, 8],
            gpus,
        )),
        Measured::new("speckv.table4.expansion", expansion.clone(), why).sensitive(Sensitivity::of(
            "GPUs",
            &expansion,
            &[2, 4, 8],
            |count| over_first(&gpus(count)),
        )),
        Measured::not_testable(
            "speckv.s3-1.read-write",
            "holds by definition: a step of dense attention reads its whole context and writes a token",
        ),
        Measured::not_testable(
            "speckv.s3-1.sequential",
            "holds by definition of dense attention; no number is printed",
        ),
        Measured::not_testable("speckv.abstract.memory-cost", "no table, figure or price in the paper leads to it"),
        Measured::not_testable("speckv.s1.infrastructure", "no table, figure or price in the paper leads to it"),
        Measured::not_testable("speckv.s3-3-1.near", "an input of SpecKV's system here: 256 tokens, and 128 beside"),
        Measured::beside(
            "speckv.s4-1-1.gpu",
            "a data sheet's number, and no model's; beside: that of the part of 80 GB. 1.6 TB/s is near that of the part \
             of 40 GB",
            vec![A100_80.device.memory_bytes_per_s as f64 / 1e12],
        ),
        Measured::not_testable("speckv.s4-6.pipelines", "power of a placed and routed Agilex-7 design"),
        Measured::not_testable("speckv.abstract.accuracy", "needs a real LLaMA-2 70B, and the measure of accuracy"),
        Measured::not_testable("speckv.s3-1.layers", "holds by definition of a transformer; no number is printed"),
    ]
}
