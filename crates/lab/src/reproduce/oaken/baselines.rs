//! Figures 1 and 11 and §3.3: Oaken beside KVQuant, KIVI, QServe and Tender.

use super::systems::{HBM, KIVI, KVQUANT, LPDDR, OPT_30B, QSERVE, System, TENDER, USABLE, USABLES, VLLM, model};
use super::throughput::{ASSUMED, MEMORY, Open, mean, rate};
use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::hardware::Architecture;
use cenote_serving_sim::hardware::a100::A100_80;
use cenote_serving_sim::hardware::kv_kernels::{self, KvKernels};
use cenote_serving_sim::hardware::oaken::OAKEN_HBM;

pub const EXPERIMENT: Experiment = Experiment {
    id: "oaken.baselines",
    title: "Oaken beside KVQuant, KIVI, QServe and Tender",
    covers: &[
        "oaken.figure1",
        "oaken.s3-3",
        "oaken.figure11.kvquant",
        "oaken.figure11.kivi",
        "oaken.figure11.tender",
        "oaken.figure11.tender-saturation",
        "oaken.figure11.baselines",
        "oaken.figure11.large-models",
    ],
    is_quick: false,
    draws: false,
    run,
};

/// Models that all baselines serve: no experts. The last does not fit into the memory of one Tender.
const DENSE: [&str; 5] = ["llama-2-7b", "llama-2-13b", "mistral-7b", "opt-30b", "llama-2-70b"];
const BATCH: u32 = 256;

const KERNELS: &str = "bits by the published formats; instructions per value and launches are assumptions";
const ARRAYS: &str =
    "Tender reads 4 bits at 2 TB/s and dequantizes for nothing; lengths are equal, so nothing is padded";

/// Mean over models of Oaken-LPDDR's throughput over another system's.
fn gain(names: &[&str], other: System) -> f64 {
    gain_if(&ASSUMED, names, other)
}

fn gain_if(open: &Open, names: &[&str], other: System) -> f64 {
    mean(names.iter().map(|name| {
        let model = model(name);
        open.rate(LPDDR, &model, BATCH) / open.rate(other, &model, BATCH)
    }))
}

/// A row for a GPU system, with its kernels faster, slower, and launched per batch or request.
fn beside(id: &'static str, base: KvKernels) -> Measured {
    let ours = vec![gain(&DENSE, System::Gpu(base))];
    let instructions = Sensitivity::of("instructions per value", &ours, &[3.0, 6.0, 12.0, 24.0], |&instructions| {
        vec![gain(&DENSE, System::Gpu(KvKernels { instructions, ..base }))]
    });
    let launches = Sensitivity::of("kernels per layer and request", &ours, &[0.0, 1.0, 6.0], |&request_launches| {
        vec![gain(&DENSE, System::Gpu(KvKernels { request_launches, ..base }))]
    });
    Measured::new(id, ours, KERNELS).sensitive(instructions).sensitive(launches)
}

/// Part that is left of the gain that the bits alone give over 16 bits.
fn kept(kernels: KvKernels, model: &Architecture, batch: u32) -> f64 {
    let full = rate(VLLM, model, batch);
    let ideal = KvKernels { bits: kernels.bits, ..kv_kernels::FULL };
    let gain = |kernels: KvKernels| rate(System::Gpu(kernels), model, batch) / full - 1.0;
    gain(kernels) / gain(ideal)
}

fn run(_: &Context) -> Vec<Measured> {
    let thirteen = model("llama-2-13b");
    let mut rows = figure_1(&thirteen);
    let offset = |change: fn(KvKernels) -> KvKernels| {
        vec![kept(change(kv_kernels::KVQUANT), &thirteen, BATCH), kept(change(kv_kernels::KIVI), &thirteen, BATCH)]
    };
    let base = offset(|kernels| kernels);
    let batched = Sensitivity::from(
        "kernels per request",
        &base,
        vec!["none".to_owned()],
        vec![offset(|kernels| KvKernels { request_launches: 0.0, ..kernels })],
    );
    let slow = Sensitivity::of("instructions per value", &base, &[3.0, 6.0, 12.0, 24.0], |&instructions| {
        [kv_kernels::KVQUANT, kv_kernels::KIVI]
            .map(|kernels| kept(KvKernels { instructions, ..kernels }, &thirteen, BATCH))
            .to_vec()
    });
    rows.push(Measured::new("oaken.s3-3.offset", base, KERNELS).sensitive(batched).sensitive(slow));
    rows.push(beside("oaken.figure11.kvquant", kv_kernels::KVQUANT));
    rows.push(beside("oaken.figure11.kivi", kv_kernels::KIVI));
    rows.push(Open::row("oaken.figure11.tender", ARRAYS, |open| vec![gain_if(open, &DENSE[..4], TENDER)]));
    rows.push(Open::row("oaken.figure11.tender-saturation", ARRAYS, |open| {
        vec![open.rate(TENDER, &thirteen, BATCH) / open.rate(TENDER, &thirteen, BATCH / 2)]
    }));
    let seven = model("llama-2-7b");
    rows.push(Open::row("oaken.figure11.baselines", KERNELS, |open| {
        let others = [VLLM, KVQUANT, KIVI, QSERVE, TENDER].iter();
        others.map(|&other| open.rate(HBM, &seven, 16) / open.rate(other, &seven, 16)).collect()
    }));
    let tokens = u64::from(2 * super::throughput::TOKENS);
    rows.push(
        Measured::new(
            "oaken.figure11.large-models",
            ["mixtral-8x7b", "llama-2-70b"].map(|name| HBM.holds(&model(name), tokens) as f64).to_vec(),
            "90 % of the memory less the weights",
        )
        .fixed("the weights alone are larger than the memory")
        .tied("the weights alone are larger than the memory"),
    );
    rows
}

/// Memory of 16-bit values, and throughput.
fn figure_1(model: &Architecture) -> Vec<Measured> {
    let device = &A100_80.device;
    let bandwidth = OAKEN_HBM.bytes_per_s * 16.0 / OAKEN_HBM.bits() / device.memory_bytes_per_s as f64;
    // Bursts of pages have gaps; GPU kernels reach a part of the peak.
    let reached =
        bandwidth * OAKEN_HBM.burst_bytes_per_s() / OAKEN_HBM.bytes_per_s * 100.0 / device.memory_percent as f64;
    let best = |open: &Open, model: &Architecture| {
        let others = [VLLM, KVQUANT, KIVI, QSERVE, TENDER, System::Accelerator(OAKEN_HBM.unquantized())];
        others.iter().map(|&other| open.rate(other, model, BATCH)).fold(0.0, f64::max)
    };
    let capacity = |&usable: &u64| vec![LPDDR.effective_capacity(&VLLM, model, usable)];
    let rates = Sensitivity::from("rates", &[bandwidth], vec!["that both reach".to_owned()], vec![vec![reached]]);
    let capacities = Sensitivity::of(MEMORY, &capacity(&USABLE), &USABLES, capacity);
    vec![
        Measured::new(
            "oaken.figure1.bandwidth",
            vec![bandwidth],
            "both read 2 TB/s; Oaken's values take 4.8 bits of 16",
        )
        .sensitive(rates)
        .tied("bits of the format"),
        Measured::new("oaken.figure1.capacity", capacity(&USABLE), "tokens of Llama2-13B beside its weights")
            .sensitive(capacities)
            .tied("256 GB are more than 80 GB"),
        Open::row(
            "oaken.figure1.throughput",
            "the best of vLLM, KVQuant, KIVI, QServe, Tender and LPU; a batch of 256",
            |open| [*model, OPT_30B].iter().map(|model| open.rate(LPDDR, model, BATCH) / best(open, model)).collect(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_kernels_keep_the_whole_gain() {
        let llama = model("llama-2-7b");
        let free = KvKernels { bits: 4.25, ..kv_kernels::FULL };
        assert!((kept(free, &llama, 8) - 1.0).abs() < 1e-9);
        assert!(kept(kv_kernels::KIVI, &llama, 8) < 1.0);
    }
}
