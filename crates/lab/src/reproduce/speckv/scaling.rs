//! Figures 5 and 6: more GPUs, and larger batches.

use super::systems::{BASE, CHATBOT, LOADS, Load, Machine, System};
use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::Outcome;
use cenote_serving_sim::hardware::architecture::LLAMA_2_70B;

pub const EXPERIMENT: Experiment = Experiment {
    id: "speckv.scaling",
    title: "more GPUs and larger batches",
    covers: &["speckv.figure5", "speckv.figure6"],
    is_quick: false,
    draws: false,
    run,
};

/// Requests per place of a batch.
const ROUNDS: usize = 4;
const BATCHES: [usize; 12] = [1, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512];
/// GPUs and percent of usable memory, which the paper leaves open.
const MACHINES: [(u32, u64); 8] = [(1, 95), (2, 90), (2, 95), (3, 90), (4, 90), (4, 95), (8, 90), (8, 95)];
/// Throughput over the largest that counts as the plateau.
const PLATEAU: f64 = 0.95;

fn served(machine: &Machine, system: System, load: Load, seed: u64) -> Option<Outcome> {
    let load = load.draw(ROUNDS * machine.batch_max, 0.0, seed);
    machine.run(system, &LLAMA_2_70B.int8(), &load)
}

fn run(context: &Context) -> Vec<Measured> {
    let mut rows = figure_5(context.seed);
    rows.extend(figure_6(context));
    rows
}

/// Throughput of `gpus` GPUs over as many times that of one, in percent. The batch is the same on all,
/// or grows with the GPUs.
fn efficiency(system: System, gpus: u32, batch: usize, grows: bool, seed: u64) -> f64 {
    let of = |gpus: u32| {
        let batch_max = if grows { batch * gpus as usize } else { batch };
        let machine = Machine { gpus: Some(gpus), batch_max, ..BASE };
        served(&machine, system, CHATBOT, seed).map_or(f64::NAN, |outcome| outcome.steady_tokens_per_s)
    };
    100.0 * of(gpus) / (f64::from(gpus) * of(1))
}

fn figure_5(seed: u64) -> Vec<Measured> {
    let speckv =
        |batch: usize, grows: bool| [4, 8].map(|gpus| efficiency(System::SpecKv, gpus, batch, grows, seed)).to_vec();
    let gpu_only = |batch: usize, grows: bool| vec![efficiency(System::GpuOnly, 8, batch, grows, seed)];
    let row = |id, why, batch: usize, at: &dyn Fn(usize, bool) -> Vec<f64>| {
        let base = at(batch, false);
        let batches = Sensitivity::of("batch", &base, &[batch / 2, 2 * batch], |batch| at(*batch, false));
        let grown = Sensitivity::from("batch per GPU", &base, vec!["16".to_owned()], vec![at(16, true)]);
        Measured::new(id, base, why).sensitive(batches).sensitive(grown)
    };
    vec![
        row("speckv.figure5.speckv", "the same batch of 64 on all machines", 64, &speckv),
        row("speckv.figure5.gpu-only", "the same batch of 16 on all machines", 16, &gpu_only),
    ]
}

/// The smallest batch on the plateau, and the largest whose 99th percentile of a token is below 50 ms.
fn knees(machine: &Machine, system: System, load: Load, seed: u64) -> [f64; 2] {
    let runs = BATCHES.map(|batch_max| (batch_max, served(&Machine { batch_max, ..*machine }, system, load, seed)));
    let runs: Vec<(usize, Outcome)> = runs.into_iter().filter_map(|(batch, run)| Some((batch, run?))).collect();
    let most = runs.iter().map(|(_, run)| run.steady_tokens_per_s).fold(0.0, f64::max);
    let plateau = runs.iter().find(|(_, run)| run.steady_tokens_per_s >= PLATEAU * most);
    let fast = runs.iter().rev().find(|(_, run)| run.token_p99_ms < 50.0);
    [plateau, fast].map(|found| found.map_or(0.0, |(batch, _)| *batch as f64))
}

fn figure_6(context: &Context) -> Vec<Measured> {
    let seed = context.seed;
    let at = |gpus: u32, usable_percent: u64, system: System| {
        knees(&Machine { gpus: Some(gpus), usable_percent, ..BASE }, system, CHATBOT, seed)
    };
    let (own, far) = (at(1, 90, System::GpuOnly), at(1, 90, System::SpecKv));
    // Each batch of each machine is served once, for all rows.
    let [own_more, far_more] =
        [System::GpuOnly, System::SpecKv].map(|system| MACHINES.map(|(gpus, usable)| at(gpus, usable, system)));
    let names = || MACHINES.iter().map(|(gpus, usable)| format!("{gpus} × {usable} %")).collect();
    let row = |id, why, base: [f64; 2], more: &[[f64; 2]], part: usize| {
        let ours = vec![base[part]];
        let more = more.iter().map(|of| vec![of[part]]).collect();
        let gpus = Sensitivity::from("GPUs × usable memory", &ours, names(), more);
        Measured::new(id, ours, why).sensitive(gpus)
    };
    let long = knees(&BASE, System::SpecKv, LOADS[1], seed)[0];
    let why = "smallest batch within 5 % of the most throughput in steady state, one A100, chatbot, batches to 512";
    vec![
        row("speckv.figure6.gpu-only-plateau", why, own, &own_more, 0),
        row("speckv.figure6.peak", why, far, &far_more, 0).sensitive(Sensitivity::from(
            "workload",
            &far[..1],
            vec!["summarization".to_owned()],
            vec![vec![long]],
        )),
        row("speckv.figure6.fast", "largest batch with P99 below 50 ms a token, one A100", far, &far_more, 1),
    ]
}
