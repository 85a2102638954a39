//! Figure 1, §4.2 and Table 2: throughput and latency of the systems.

use super::systems::{BASE, CHATBOT, INT8_RATIO, LOADS, Machine, PCIE_4_LINK, System};
use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::hardware::architecture::{LLAMA_2_70B, SPECKV_MODELS};

pub const EXPERIMENT: Experiment = Experiment {
    id: "speckv.overall",
    title: "throughput and latency of all systems",
    covers: &[
        "speckv.figure1",
        "speckv.s4-2.over-cpu-offload",
        "speckv.s4-2.over-compression",
        "speckv.s4-2.over-no-speculation",
        "speckv.s4-2.llama-70b",
        "speckv.s4-2.llama-70b-gain",
        "speckv.table2",
    ],
    is_quick: false,
    run,
};

const REQUESTS: usize = 192;
/// Requests per second at which throughput is compared: the paper's largest.
const RATE: f64 = 100.0;
/// Other rates of the paper's range.
const RATES: [f64; 2] = [5.0, 20.0];
/// vLLM's share of free blocks.
const VLLM_WATERMARK: f64 = 0.01;

const WHY: &str = "22 models and four workloads at 100 req/s, fewest GPUs that hold the INT8 weights; models with room in \
                   the GPU's memory gain nothing; decoders keep up with the link";
/// The paper prints 412 GB/s for a cache engine, and 51.2 for its pipeline.
const DECODERS: &str = "decoders of 51.2 GB/s per FPGA";

fn run(context: &Context) -> Vec<Measured> {
    let mut rows = figure_1(context.seed);
    rows.extend(large(context.seed));
    rows.extend(table_2(context.seed));
    rows
}

/// Throughput of systems, for each model and workload.
fn sweep(machine: &Machine, rate: f64, systems: &[System], seed: u64) -> Vec<Vec<f64>> {
    let loads = LOADS.map(|load| load.draw(REQUESTS, rate, seed));
    let of = |system: System| -> Vec<f64> {
        let pairs = SPECKV_MODELS.iter().flat_map(|model| loads.iter().map(move |load| (model.int8(), load)));
        let tokens_per_s = |(model, load)| {
            machine.run(system, &model, load).map_or(f64::NAN, |outcome| outcome.throughput_tokens_per_s)
        };
        pairs.map(tokens_per_s).collect()
    };
    systems.iter().map(|system| of(*system)).collect()
}

/// Least, mean and most of ratios; pairs that one system cannot serve are left out.
fn spread(over: &[f64], under: &[f64]) -> [f64; 3] {
    let ratios: Vec<f64> = over.iter().zip(under).map(|(over, under)| over / under).filter(|r| r.is_finite()).collect();
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    [least, ratios.iter().sum::<f64>() / ratios.len() as f64, most]
}

/// The systems of Figure 1, SpecKV first.
const SYSTEMS: [System; 5] =
    [System::SpecKv, System::GpuOnly, System::CpuOffload, System::CompressionOnly, System::CxlNoSpec];

/// Throughput of all systems with another setting of an open parameter.
struct Varied {
    parameter: &'static str,
    setting: String,
    runs: Vec<Vec<f64>>,
}

fn figure_1(seed: u64) -> Vec<Measured> {
    let base = sweep(&BASE, RATE, &SYSTEMS, seed);
    // Runs only the systems that the setting changes.
    let varied = |parameter, setting: String, machine: Machine, rate: f64, changed: &[System]| {
        let mut other = sweep(&machine, rate, changed, seed).into_iter();
        let of = |(system, base): (&System, &Vec<f64>)| {
            if changed.contains(system) { other.next().expect("a run of each") } else { base.clone() }
        };
        Varied { parameter, setting, runs: SYSTEMS.iter().zip(&base).map(of).collect() }
    };
    let one =
        |parameter, setting: String, machine, changed: &[System]| varied(parameter, setting, machine, RATE, changed);
    let linked = [System::SpecKv, System::CxlNoSpec];
    let mut all: Vec<Varied> =
        RATES.map(|rate| varied("req/s", rate.to_string(), BASE, rate, &SYSTEMS)).into_iter().collect();
    all.push(one("GPUs", "8".to_owned(), Machine { gpus: Some(8), ..BASE }, &SYSTEMS));
    let fixed = Machine { watermark: Some(VLLM_WATERMARK), ..BASE };
    all.push(one("watermark", VLLM_WATERMARK.to_string(), fixed, &SYSTEMS));
    let slow = Machine { link_bytes_per_s: PCIE_4_LINK, ..BASE };
    all.push(one("bytes/s of the link", PCIE_4_LINK.to_string(), slow, &linked));
    all.extend(
        [1.0, INT8_RATIO].map(|ratio| one("compression ratio", ratio.to_string(), Machine { ratio, ..BASE }, &linked)),
    );
    let decoders = Machine { decoders: Some(1), ..BASE };
    all.push(one(DECODERS, "1".to_owned(), decoders, &linked));
    let row = |id, system: usize, of: fn([f64; 3]) -> Vec<f64>| {
        let over = |runs: &[Vec<f64>]| of(spread(&runs[0], &runs[system]));
        let ours = over(&base);
        all.chunk_by(|a, b| a.parameter == b.parameter).fold(Measured::new(id, ours.clone(), WHY), |row, varied| {
            let (settings, values) = varied.iter().map(|one| (one.setting.clone(), over(&one.runs))).unzip();
            row.sensitive(Sensitivity::from(varied[0].parameter, &ours, settings, values))
        })
    };
    let ends = |[least, _, most]: [f64; 3]| vec![least, most];
    vec![
        row("speckv.figure1.over-gpu-only", 1, |spread| spread.to_vec()),
        row("speckv.s4-2.over-cpu-offload", 2, |spread| spread.to_vec()),
        row("speckv.s4-2.over-compression", 3, ends),
        row("speckv.s4-2.over-no-speculation", 4, ends),
    ]
}

/// LLaMA-2 70B on the chatbot's load, with all systems.
fn large(seed: u64) -> Vec<Measured> {
    let model = LLAMA_2_70B.int8();
    let load = CHATBOT.draw(REQUESTS, RATE, seed);
    let of = |machine: &Machine, system: System| {
        machine.run(system, &model, &load).map_or(f64::NAN, |outcome| outcome.throughput_tokens_per_s)
    };
    let at = |machine: &Machine| {
        let gpu = of(&Machine { batch_max: 16, ..*machine }, System::GpuOnly);
        vec![gpu, of(&Machine { batch_max: 64, ..*machine }, System::SpecKv)]
    };
    let base = at(&BASE);
    let ratio = vec![base[1] / base[0]];
    let others =
        [System::SpecKvBasic, System::SpecKvNoComp, System::CxlNoSpec, System::CpuOffload, System::NvmeOffload];
    let variants = Sensitivity::from(
        "system beside SpecKV",
        &ratio,
        others.iter().map(|system| format!("{system:?}")).collect(),
        others.iter().map(|system| vec![of(&Machine { batch_max: 64, ..BASE }, *system) / base[0]]).collect(),
    );
    let gain = |machine: &Machine| {
        let at = at(machine);
        vec![at[1] / at[0]]
    };
    vec![
        Measured::new("speckv.s4-2.llama-70b", base.clone(), "one A100, batches of 16 and 64")
            .sensitive(Sensitivity::of("GPUs", &base, &[2, 4, 8], |gpus| at(&Machine { gpus: Some(*gpus), ..BASE }))),
        Measured::new("speckv.s4-2.llama-70b-gain", ratio.clone(), "the same, one over the other")
            .sensitive(Sensitivity::of("GPUs", &ratio, &[2, 4, 8], |gpus| gain(&Machine { gpus: Some(*gpus), ..BASE })))
            .sensitive(Sensitivity::of(DECODERS, &ratio, &[1, 3], |decoders| {
                gain(&Machine { decoders: Some(*decoders), ..BASE })
            }))
            .sensitive(variants),
    ]
}

/// Requests of Table 2's batch.
const BATCH: usize = 32;

fn table_2(seed: u64) -> Vec<Measured> {
    let model = LLAMA_2_70B.int8();
    let systems = [System::GpuOnly, System::CpuOffload, System::CxlNoSpec, System::SpecKv];
    // A prompt alone: with 32 prompts at once the first token would wait for all of them.
    let alone = CHATBOT.draw(8, 0.01, seed);
    let batch = CHATBOT.draw(BATCH, 0.0, seed);
    let at = |machine: &Machine, of: fn(&cenote_serving_sim::Outcome) -> f64, load| -> Vec<f64> {
        let of = |system: &System| machine.run(*system, &model, load).map_or(f64::NAN, |outcome| of(&outcome));
        systems.iter().map(of).collect()
    };
    let row = |id, why, load, of: fn(&cenote_serving_sim::Outcome) -> f64| {
        let base = at(&BASE, of, load);
        let gpus = Sensitivity::of("GPUs", &base, &[2, 8], |gpus| at(&Machine { gpus: Some(*gpus), ..BASE }, of, load));
        Measured::new(id, base, why).sensitive(gpus)
    };
    let why = "32 requests at once on one A100; GPU only runs fewer at a time";
    // SpecKV over GPU only, of all four rows.
    let overheads = |machine: &Machine| {
        let of = |of: fn(&cenote_serving_sim::Outcome) -> f64, load| {
            let each = at(machine, of, load);
            100.0 * (each[3] / each[0] - 1.0)
        };
        vec![
            of(|o| o.ttft_p50_ms, &alone),
            of(|o| o.token_p50_ms, &batch),
            of(|o| o.token_p95_ms, &batch),
            of(|o| o.token_p99_ms, &batch),
        ]
    };
    let base = overheads(&BASE);
    let gpus = Sensitivity::of("GPUs", &base, &[2, 8], |gpus| overheads(&Machine { gpus: Some(*gpus), ..BASE }));
    vec![
        Measured::new("speckv.table2.overhead", base, why).sensitive(gpus),
        row("speckv.table2.ttft", "a prompt alone; one A100", &alone, |o| o.ttft_p50_ms),
        row("speckv.table2.decode", why, &batch, |o| o.token_p50_ms),
        row("speckv.table2.p95", why, &batch, |o| o.token_p95_ms),
        row("speckv.table2.p99", why, &batch, |o| o.token_p99_ms),
    ]
}
