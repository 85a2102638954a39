//! Figure 1, §4.2 and Table 2: throughput and latency of the systems.

use super::systems::{BASE, CHATBOT, INT8_RATIO, LOADS, Machine, System};
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
/// The A100's real link to an FPGA: PCIe 4.0 x16 (§4.1.1).
const PCIE_4_LINK: u64 = 25_000_000_000;

const WHY: &str = "22 models and four workloads at 100 req/s, fewest GPUs that hold the INT8 weights; models with room in \
                   the GPU's memory gain nothing";

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

fn figure_1(seed: u64) -> Vec<Measured> {
    let systems = [System::SpecKv, System::GpuOnly, System::CpuOffload, System::CompressionOnly, System::CxlNoSpec];
    let base = sweep(&BASE, RATE, &systems, seed);
    let over = |system: usize| spread(&base[0], &base[system]);
    let ends = |[least, _, most]: [f64; 3]| vec![least, most];
    let other = |machine: &Machine, rate: f64| {
        let runs = sweep(machine, rate, &systems[..2], seed);
        spread(&runs[0], &runs[1]).to_vec()
    };
    let gpu = over(1).to_vec();
    vec![
        Measured::new("speckv.figure1.over-gpu-only", gpu.clone(), WHY)
            .sensitive(Sensitivity::of("req/s", &gpu, &RATES, |rate| other(&BASE, *rate)))
            .sensitive(Sensitivity::of("GPUs", &gpu, &[8], |gpus| other(&Machine { gpus: Some(*gpus), ..BASE }, RATE)))
            .sensitive(Sensitivity::of("watermark", &gpu, &[VLLM_WATERMARK], |share| {
                other(&Machine { watermark: Some(*share), ..BASE }, RATE)
            }))
            .sensitive(Sensitivity::of("bytes/s of the link", &gpu, &[PCIE_4_LINK], |link| {
                other(&Machine { link_bytes_per_s: *link, ..BASE }, RATE)
            }))
            .sensitive(Sensitivity::of("compression ratio", &gpu, &[1.0, INT8_RATIO], |ratio| {
                other(&Machine { ratio: *ratio, ..BASE }, RATE)
            })),
        Measured::new("speckv.s4-2.over-cpu-offload", over(2).to_vec(), WHY),
        Measured::new("speckv.s4-2.over-compression", ends(over(3)), WHY),
        Measured::new("speckv.s4-2.over-no-speculation", ends(over(4)), WHY),
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
    let gpus = |gpus: &u32| {
        let at = at(&Machine { gpus: Some(*gpus), ..BASE });
        vec![at[1] / at[0]]
    };
    vec![
        Measured::new("speckv.s4-2.llama-70b", base.clone(), "one A100, batches of 16 and 64")
            .sensitive(Sensitivity::of("GPUs", &base, &[2, 4, 8], |gpus| at(&Machine { gpus: Some(*gpus), ..BASE }))),
        Measured::new("speckv.s4-2.llama-70b-gain", ratio.clone(), "the same, one over the other")
            .sensitive(Sensitivity::of("GPUs", &ratio, &[2, 4, 8], gpus))
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
    vec![
        row("speckv.table2.ttft", "a prompt alone; one A100", &alone, |o| o.ttft_p50_ms),
        row("speckv.table2.decode", why, &batch, |o| o.token_p50_ms),
        row("speckv.table2.p95", why, &batch, |o| o.token_p95_ms),
        row("speckv.table2.p99", why, &batch, |o| o.token_p99_ms),
    ]
}
