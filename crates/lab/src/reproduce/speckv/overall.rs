//! Figure 1, §4.2 and Table 2: throughput and latency of the systems.

use super::systems::{BASE, CHATBOT, LOADS, Machine, PCIE_4_LINK, System};
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
    draws: true,
    run,
};

/// Requests of a load of LLaMA-2 70B.
const REQUESTS: usize = 600;
/// Requests of a load of each model, more than the largest batch.
const fn requests(batch_max: usize) -> usize {
    if batch_max > 128 { REQUESTS } else { REQUESTS / 3 }
}
/// Requests per second at which throughput is compared: the paper's largest.
const RATE: f64 = 100.0;
/// Another rate of the paper's range.
const LOW_RATE: f64 = 20.0;
/// vLLM's share of free blocks.
const VLLM_WATERMARK: f64 = 0.01;
/// What the paper leaves open: GPUs, percent of usable memory, and the largest batch.
const GPUS: [u32; 6] = [1, 2, 3, 4, 6, 8];
const USABLES: [u64; 2] = [90, 95];
const BATCHES: [usize; 2] = [128, 512];
const JOINT: &str = "GPUs × usable memory × batch";

const WHY: &str = "22 models and four workloads at 100 req/s, 200 requests and 600 for larger batches, steady state; \
                   fewest GPUs that hold the INT8 weights, batches to 128; all KV is allocated far, 256 tokens a request \
                   near; decoders keep up with the link";
/// The paper prints 412 GB/s for a cache engine, and 51.2 for its pipeline.
const DECODERS: &str = "decoders of 51.2 GB/s per FPGA";

fn run(context: &Context) -> Vec<Measured> {
    let mut rows = figure_1(context);
    rows.extend(large(context));
    rows.extend(table_2(context.seed));
    rows
}

/// Throughput of systems, for each model and workload.
fn sweep(machine: &Machine, rate: f64, systems: &[System], seed: u64) -> Vec<Vec<f64>> {
    let loads = LOADS.map(|load| load.draw(requests(machine.batch_max), rate, seed));
    let of = |system: System| -> Vec<f64> {
        let pairs = SPECKV_MODELS.iter().flat_map(|model| loads.iter().map(move |load| (model.int8(), load)));
        let tokens_per_s =
            |(model, load)| machine.run(system, &model, load).map_or(f64::NAN, |outcome| outcome.steady_tokens_per_s);
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

fn figure_1(context: &Context) -> Vec<Measured> {
    let seed = context.seed;
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
    let mut all: Vec<Varied> = Vec::new();
    if context.is_varied {
        for (gpus, usable_percent, batch_max) in [(None, 90, 512), (None, 95, 128), (Some(8), 95, 512)] {
            let machine = Machine { gpus, usable_percent, batch_max, ..BASE };
            let gpus = gpus.map_or_else(|| "fewest".to_owned(), |gpus| gpus.to_string());
            all.push(one(JOINT, format!("{gpus} × {usable_percent} % × {batch_max}"), machine, &SYSTEMS));
        }
        all.push(varied("req/s", LOW_RATE.to_string(), BASE, LOW_RATE, &SYSTEMS));
        let fixed = Machine { watermark: Some(VLLM_WATERMARK), ..BASE };
        all.push(one("watermark of GPU only", VLLM_WATERMARK.to_string(), fixed, &[System::GpuOnly]));
        let slow = Machine { link_bytes_per_s: PCIE_4_LINK, ..BASE };
        all.push(one("bytes/s of the link", PCIE_4_LINK.to_string(), slow, &linked));
        all.push(one("compression ratio", "1".to_owned(), Machine { ratio: 1.0, ..BASE }, &linked));
        all.push(one(DECODERS, "1".to_owned(), Machine { decoders: Some(1), ..BASE }, &linked));
    }
    let product = context.is_varied.then(|| sweep(&BASE, RATE, &[System::Product], seed).remove(0));
    let row = |id, system: usize, of: fn([f64; 3]) -> Vec<f64>| {
        let over = |runs: &[Vec<f64>]| of(spread(&runs[0], &runs[system]));
        let ours = over(&base);
        let row = Measured::new(id, ours.clone(), WHY);
        let row = all.chunk_by(|a, b| a.parameter == b.parameter).fold(row, |row, varied| {
            let (settings, values) = varied.iter().map(|one| (one.setting.clone(), over(&one.runs))).unzip();
            row.sensitive(Sensitivity::from(varied[0].parameter, &ours, settings, values))
        });
        let Some(product) = &product else { return row };
        let values = vec![of(spread(product, &base[system]))];
        row.sensitive(Sensitivity::from("policy", &ours, vec!["the product's".to_owned()], values).aside())
    };
    let ends = |[least, _, most]: [f64; 3]| vec![least, most];
    vec![
        row("speckv.figure1.over-gpu-only", 1, |spread| spread.to_vec()),
        row("speckv.s4-2.over-cpu-offload", 2, |spread| spread.to_vec()),
        row("speckv.s4-2.over-compression", 3, ends),
        row("speckv.s4-2.over-no-speculation", 4, ends),
    ]
}

/// A row of LLaMA-2 70B, with the effects of GPUs and usable memory together.
fn jointly(id: &'static str, why: &'static str, of: &dyn Fn(&Machine) -> Vec<f64>) -> Measured {
    let ours = of(&BASE);
    let machines = GPUS.into_iter().flat_map(|gpus| USABLES.map(|usable| (gpus, usable)));
    let (names, values) = machines
        .map(|(gpus, usable)| {
            let machine = Machine { gpus: Some(gpus), usable_percent: usable, ..BASE };
            (format!("{gpus} × {usable} %"), of(&machine))
        })
        .unzip();
    Measured::new(id, ours.clone(), why).sensitive(Sensitivity::from("GPUs × usable memory", &ours, names, values))
}

/// LLaMA-2 70B on the chatbot's load, with all systems.
fn large(context: &Context) -> Vec<Measured> {
    let model = LLAMA_2_70B.int8();
    let load = CHATBOT.draw(REQUESTS, RATE, context.seed);
    let of = |machine: &Machine, system: System| {
        machine.run(system, &model, &load).map_or(f64::NAN, |outcome| outcome.steady_tokens_per_s)
    };
    let at = |machine: &Machine, batch_max: usize| {
        let gpu = of(&Machine { batch_max: 16, ..*machine }, System::GpuOnly);
        vec![gpu, of(&Machine { batch_max, ..*machine }, System::SpecKv)]
    };
    let gain = |both: &[f64]| vec![both[1] / both[0]];
    let base = at(&BASE, 64);
    let ratio = gain(&base);
    let rows = [
        Measured::new(
            "speckv.s4-2.llama-70b",
            base.clone(),
            "one A100, batches of 16 and 64, 600 requests, steady state",
        ),
        Measured::new("speckv.s4-2.llama-70b-gain", ratio.clone(), "the same, one over the other"),
    ];
    if !context.is_varied {
        return rows.into();
    }
    let machines = GPUS.into_iter().flat_map(|gpus| USABLES.map(|usable| (gpus, usable)));
    let grid = machines.flat_map(|(gpus, usable)| [64, BATCHES[0], BATCHES[1]].map(|batch| (gpus, usable, batch)));
    let (names, values): (Vec<String>, Vec<Vec<f64>>) = grid
        .map(|(gpus, usable, batch)| {
            let machine = Machine { gpus: Some(gpus), usable_percent: usable, ..BASE };
            (format!("{gpus} × {usable} % × {batch}"), at(&machine, batch))
        })
        .unzip();
    let others = [
        System::SpecKvBasic,
        System::SpecKvNoComp,
        System::CxlNoSpec,
        System::CpuOffload,
        System::NvmeOffload,
        System::Product,
    ];
    let variants = Sensitivity::from(
        "system beside SpecKV",
        &ratio,
        others.iter().map(|system| format!("{system:?}")).collect(),
        others.iter().map(|system| vec![of(&Machine { batch_max: 64, ..BASE }, *system) / base[0]]).collect(),
    );
    let [rates, gains] = rows;
    let decoders = Sensitivity::of(DECODERS, &ratio, &[1, 3], |&decoders| {
        gain(&at(&Machine { decoders: Some(decoders), ..BASE }, 64))
    });
    vec![
        rates.sensitive(Sensitivity::from(JOINT, &base, names.clone(), values.clone())),
        gains
            .sensitive(Sensitivity::from(JOINT, &ratio, names, values.iter().map(|both| gain(both)).collect()))
            .sensitive(decoders)
            .sensitive(variants.aside()),
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
    let row =
        |id, why, load, of: fn(&cenote_serving_sim::Outcome) -> f64| jointly(id, why, &|machine| at(machine, of, load));
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
    vec![
        jointly("speckv.table2.overhead", why, &overheads),
        row("speckv.table2.ttft", "a prompt alone; one A100", &alone, |o| o.ttft_p50_ms),
        row("speckv.table2.decode", why, &batch, |o| o.token_p50_ms),
        row("speckv.table2.p95", why, &batch, |o| o.token_p95_ms),
        row("speckv.table2.p99", why, &batch, |o| o.token_p99_ms),
    ]
}
