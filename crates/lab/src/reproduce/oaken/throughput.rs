//! Figures 3 to 5, 11 and 12(b): batches of 1,024 tokens in and out.

use super::systems::{GPU_PERCENT, HBM, LPDDR, OPT_30B, QSERVE, System, USABLE, USABLES, VLLM, model};
use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::hardware::a100::A100_80;
use cenote_serving_sim::hardware::oaken::{OAKEN_HBM, OAKEN_LPDDR, Oaken};
use cenote_serving_sim::hardware::{Architecture, KvKernels, Roofline, kv_kernels};
use cenote_serving_sim::model::StepWork;

pub const EXPERIMENT: Experiment = Experiment {
    id: "oaken.throughput",
    title: "throughput of batches on GPUs, LPU and Oaken",
    covers: &[
        "oaken.figure3",
        "oaken.figure4",
        "oaken.figure5",
        "oaken.figure11.vllm",
        "oaken.figure11.qserve",
        "oaken.figure11.hbm",
        "oaken.figure11.saturation",
        "oaken.figure11.scaling",
        "oaken.figure12.attention",
        "oaken.figure12.engines",
    ],
    is_quick: false,
    draws: false,
    run,
};

/// Models of Figure 11; QServe has no experts.
const MODELS: [&str; 6] = ["llama-2-7b", "llama-2-13b", "mistral-7b", "opt-30b", "mixtral-8x7b", "llama-2-70b"];
const DENSE: [&str; 5] = ["llama-2-7b", "llama-2-13b", "mistral-7b", "opt-30b", "llama-2-70b"];
/// Input and output.
pub const TOKENS: u32 = 1_024;
/// Names of open parameters.
const JOINT: &str = "% of HBM that GPU kernels reach × part of the peak that accelerators reach";
pub const OAKEN_SHARE: &str = "part of the peak that Oaken reaches";
pub const MEMORY: &str = "usable memory, %";
/// Percents of the bandwidth that GPU kernels may reach, and parts of a matrix unit's peak that accelerators
/// may. Our assumptions: no kernel of these systems was measured.
const PERCENTS: [u64; 3] = [60, GPU_PERCENT, 95];
const SHARES: [f64; 3] = [0.3, OAKEN_LPDDR.flops_share, 0.9];

/// A row's values at all pairs of both. `of` gets a system's change.
pub fn jointly(row: Measured, of: impl Fn(&dyn Fn(System) -> System) -> Vec<f64>) -> Measured {
    let base = row.values.clone().unwrap_or_default();
    let pairs = PERCENTS.into_iter().flat_map(|percent| SHARES.map(|share| (percent, share)));
    let (names, values) = pairs
        .map(|(percent, share)| {
            (format!("{percent} % × {share}"), of(&|system: System| system.reaching(percent, share)))
        })
        .unzip();
    row.sensitive(Sensitivity::from(JOINT, &base, names, values))
}

const GPU: &str =
    "GPU kernels read at 80 % of the bandwidth and quantize for nothing; Oaken's units reach half of their peak";
const ENGINES: &str = "measured cycles of our RTL in 128 cores (the paper does not print how many); busy time of the engines, \
                       hidden or not";
/// Other numbers of cores. 32 do not keep up with LPDDR, 64 with HBM, and more than 216 do not fit a
/// reticle.
const CORES: [f64; 3] = [32.0, 64.0, 216.0];

/// What the paper leaves open about its systems.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Part of its peak that Oaken's or LPU's matrix unit reaches.
    pub flops_share: f64,
    /// Percent of the bandwidth that GPU kernels reach.
    pub gpu_percent: u64,
    /// Percent of all memories that weights and KV use.
    pub usable: u64,
}

/// The assumptions.
pub const ASSUMED: Open = Open { flops_share: OAKEN_LPDDR.flops_share, gpu_percent: GPU_PERCENT, usable: USABLE };

impl Open {
    /// Generated tokens per second; 0 if no request fits. Tender's units are as good as Oaken's.
    pub fn rate(&self, system: System, model: &Architecture, batch: u32) -> f64 {
        let system = system.reaching(self.gpu_percent, self.flops_share);
        system.tokens_per_s_in(model, batch, [TOKENS, TOKENS], self.usable).unwrap_or(0.0)
    }

    /// A row, with the effects of both.
    pub fn row(id: &'static str, why: &'static str, value: impl Fn(&Self) -> Vec<f64>) -> Measured {
        let base = value(&ASSUMED);
        let pairs = PERCENTS.into_iter().flat_map(|percent| SHARES.map(|share| (percent, share)));
        let (names, values) = pairs
            .map(|(gpu_percent, flops_share)| {
                (format!("{gpu_percent} % × {flops_share}"), value(&Self { flops_share, gpu_percent, ..ASSUMED }))
            })
            .unzip();
        let shares = Sensitivity::from(JOINT, &base, names, values);
        let usables = Sensitivity::of(MEMORY, &base, &USABLES, |&usable| value(&Self { usable, ..ASSUMED }));
        Measured::new(id, base, why).sensitive(shares).sensitive(usables)
    }
}

/// Generated tokens per second; 0 if no request fits.
pub fn rate(system: System, model: &Architecture, batch: u32) -> f64 {
    ASSUMED.rate(system, model, batch)
}

/// Mean of values; 0 of none.
pub fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}

/// Mean over models of Oaken-LPDDR's throughput at a batch of 256 over another system's.
fn gain(names: &[&str], other: System, oaken: System) -> f64 {
    let rate = |system: System, model: &Architecture| {
        system.tokens_per_s_in(model, 256, [TOKENS, TOKENS], USABLE).unwrap_or(0.0)
    };
    mean(names.iter().map(|name| {
        let model = model(name);
        rate(oaken, &model) / rate(other, &model)
    }))
}

/// Figure 11 has six of the eight models; which, its text does not say.
fn with_opt(row: Measured) -> Measured {
    let base = row.values.clone().unwrap_or_default();
    let all = [&MODELS[..], &["opt-6.7b", "opt-13b"]].concat();
    let ours = vec![vec![gain(&all, VLLM, LPDDR)]];
    row.sensitive(Sensitivity::from("models", &base, vec!["all eight".to_owned()], ours))
}

/// QServe's kernel without two values per instruction.
fn with_kernels(row: Measured) -> Measured {
    let base = row.values.clone().unwrap_or_default();
    row.sensitive(Sensitivity::of("QServe's instructions per value", &base, &[6.0, 12.0], |&instructions| {
        let kernels = System::Gpu(KvKernels { instructions, ..kv_kernels::QSERVE });
        vec![gain(&DENSE, kernels, LPDDR)]
    }))
}

fn run(_: &Context) -> Vec<Measured> {
    let [seven, thirteen] = ["llama-2-7b", "llama-2-13b"].map(model);
    let lpu = |oaken: Oaken| System::Accelerator(oaken.unquantized());
    let gains = |id: &'static str, names: &[&str], other: System| {
        let row = Measured::new(id, vec![gain(names, other, LPDDR)], GPU);
        jointly(row, |at| vec![gain(names, at(other), at(LPDDR))])
    };
    let over = |open: &Open, systems: [System; 2], model: &Architecture, batch: u32| {
        let [a, b] = systems.map(|system| open.rate(system, model, batch));
        a / b
    };
    let scaled =
        |open: &Open, system: System| vec![open.rate(system, &thirteen, 256) / open.rate(system, &thirteen, 128)];
    let mut rows = vec![
        figure_3(&thirteen),
        generation(&thirteen),
        Open::row("oaken.figure4.small", "the accelerator without quantization", |open| {
            vec![over(open, [lpu(OAKEN_HBM), lpu(OAKEN_LPDDR)], &thirteen, 16)]
        })
        .tied("the same design with more bandwidth"),
        Open::row(
            "oaken.figure4.large",
            "the accelerator without quantization; 80 GB hold the weights and few requests",
            |open| vec![over(open, [lpu(OAKEN_LPDDR), lpu(OAKEN_HBM)], &OPT_30B, 128)],
        ),
        Open::row("oaken.figure4.sublinear", "the accelerator without quantization", |open| {
            let doubled = |oaken: Oaken, batch: u32| {
                open.rate(lpu(oaken), &thirteen, batch) / open.rate(lpu(oaken), &thirteen, batch / 2)
            };
            let each = [OAKEN_HBM, OAKEN_LPDDR].iter();
            each.flat_map(|oaken| [32, 64, 128].map(|batch| doubled(*oaken, batch))).collect()
        })
        .tied("no batch is served in less than half the time of twice the batch"),
        with_opt(gains("oaken.figure11.vllm", &MODELS, VLLM)),
        with_kernels(gains("oaken.figure11.qserve", &DENSE, QSERVE)),
        Open::row("oaken.figure11.hbm", GPU, |open| {
            [&seven, &thirteen].iter().map(|model| over(open, [HBM, LPDDR], model, 16)).collect()
        })
        .tied("the same design with more bandwidth"),
        Open::row("oaken.figure11.saturation", GPU, |open| scaled(open, VLLM)),
        Open::row("oaken.figure11.scaling", GPU, |open| scaled(open, LPDDR)),
    ];
    rows.extend(figure_5(&thirteen));
    rows.extend(figure_12(&seven));
    rows
}

fn decode(batch: u32, context: u32) -> StepWork {
    let mut work = StepWork::default();
    (0..batch).for_each(|_| work.add(context, 1));
    work
}

fn figure_3(model: &Architecture) -> Measured {
    let base = vec![attention_use(model, 64)];
    let batches = Sensitivity::of("batch", &base, &[16, 256], |&batch| vec![attention_use(model, batch)]);
    Measured::new("oaken.figure3.attention", base, "an A100's roofline at 2,048 tokens, a batch of 64")
        .sensitive(batches)
        .tied("attention reads each byte for one request")
}

/// Operations per second of a step of generation over those of prefill, for one request and for many.
fn generation(model: &Architecture) -> Measured {
    let roofline = Roofline { gpu: A100_80, gpus: 1, architecture: *model };
    let weights = model.attention_weights() + model.expert_weights() * model.experts_used;
    let rate = |work: &StepWork| {
        let products = 2.0 * work.tokens as f64 * weights as f64;
        let attention = 4.0 * (model.heads * model.head_dim) as f64 * work.pairs as f64;
        (products + attention) / roofline.layer(work).total_ns()
    };
    let of = |&tokens: &u32| {
        let each = [1, 64].map(|batch| {
            let mut prefill = StepWork::default();
            (0..batch).for_each(|_| prefill.add(0, tokens));
            rate(&decode(batch, tokens)) / rate(&prefill)
        });
        each.to_vec()
    };
    let base = of(&TOKENS);
    let tokens = Sensitivity::of("tokens of a prompt", &base, &[128, 4 * TOKENS], of);
    Measured::new("oaken.figure3.generation", base, "an A100's roofline, prompts of 1,024 tokens")
        .sensitive(tokens)
        .tied("a token of an answer reads all weights")
}

/// Operations per second in attention over those in the projections.
fn attention_use(model: &Architecture, batch: u32) -> f64 {
    let work = decode(batch, 2 * TOKENS - 1);
    let layer = Roofline { gpu: A100_80, gpus: 1, architecture: *model }.layer(&work);
    let attention = 4.0 * (model.heads * model.head_dim) as f64 * work.pairs as f64 / layer.attention_ns;
    let projections = 2.0 * work.tokens as f64 * model.attention_weights() as f64 / layer.projections_ns;
    attention / projections
}

fn figure_5(model: &Architecture) -> Vec<Measured> {
    let batch = 64;
    let part = |&tokens: &u32| {
        let kv = (model.kv_bytes_per_token() * u64::from(tokens * batch)) as f64;
        vec![100.0 * kv / (kv + model.bytes() as f64)]
    };
    let cost = VLLM.cost(model, batch);
    // Without limits of memory.
    let time = |context: u32, weights: u64, values: u64| {
        let cost = cenote_serving_sim::CostModel {
            weights_ps: cost.weights_ps / weights,
            context_ps: cost.context_ps / values,
            ..cost
        };
        cost.step(&decode(batch, context)) as f64
    };
    let gain = |&context: &u32| vec![time(context, 4, 1) / time(context, 1, 4)];
    let by_weights = |&context: &u32| vec![time(context, 1, 1) / time(context, 4, 1)];
    let (memory, speed) = (part(&(2 * TOKENS)), gain(&(TOKENS + TOKENS / 2)));
    let parts = Sensitivity::of("tokens of a request", &memory, &[TOKENS / 2, TOKENS], part);
    let contexts = [TOKENS / 2, 2 * TOKENS];
    let gains = Sensitivity::of("tokens of context", &speed, &contexts, gain);
    let weights = by_weights(&(TOKENS + TOKENS / 2));
    let gains_by_weights = Sensitivity::of("tokens of context", &weights, &contexts, by_weights);
    let why = "decode steps by an A100's roofline, in the middle of the answers";
    vec![
        Measured::new("oaken.figure5.memory", memory, "16 bits, 2,048 tokens").sensitive(parts),
        Measured::new("oaken.figure5.gain", speed, why).sensitive(gains),
        Measured::new("oaken.figure5.weights", weights, why).sensitive(gains_by_weights),
    ]
}

/// Parts of a step on Oaken-LPDDR and on LPU with LPDDR, in the middle of the answers.
fn figure_12(model: &Architecture) -> Vec<Measured> {
    let context = f64::from(TOKENS + TOKENS / 2);
    // The batch and the context cancel: both systems read each token of context once per step.
    let shorter =
        |oaken: Oaken| vec![100.0 * (1.0 - oaken.context_ns(model) / OAKEN_LPDDR.unquantized().context_ns(model))];
    let engines = |oaken: Oaken| {
        let batch = 64;
        let step = oaken.cost_model(model, f64::from(batch)).step(&decode(batch, context as u32)) as f64;
        let [quantize, dequantize] = oaken.engine_ns(model);
        let batch = f64::from(batch);
        vec![100.0 * batch * quantize / step, 100.0 * batch * context * dequantize / step]
    };
    let base = engines(OAKEN_LPDDR);
    let of_cores = |&cores: &f64| OAKEN_LPDDR.with_cores(cores);
    let scales = Sensitivity::of("cores", &base, &CORES, |cores| engines(of_cores(cores)));
    let attention = shorter(OAKEN_LPDDR);
    let slow = Sensitivity::of("cores", &attention, &CORES, |cores| shorter(of_cores(cores)));
    vec![
        Measured::new(
            "oaken.figure12.attention",
            attention,
            "attention is bound by its reads, 4.8 of 16 bits, as 128 cores of our RTL dequantize faster; the same at all \
             batches",
        )
        .sensitive(slow),
        Measured::new("oaken.figure12.engines", base, ENGINES).sensitive(scales),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_uses_fewer_units_than_projections() {
        let llama = model("llama-2-7b");
        // One operation per byte of KV; projections do a batch per byte of weights.
        assert!((attention_use(&llama, 64) - 1.0 / 64.0).abs() < 1e-3);
        assert!((mean([1.0, 2.0].into_iter()) - 1.5).abs() < 1e-9);
    }
}
