//! Tables 5 and 7 and Figure 4: use of links and memories, energy and cost.

use super::systems::{BASE, CHATBOT, Machine, System};
use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::Outcome;
use cenote_serving_sim::hardware::a100::A100_40;
use cenote_serving_sim::hardware::architecture::{LLAMA_2_70B, SPECKV_MODELS};
use cenote_serving_sim::hardware::power::{FPGA_RANGE_W, FPGA_W, gpu_w};
use cenote_serving_sim::hardware::{Architecture, hbm, price};

pub const EXPERIMENT: Experiment = Experiment {
    id: "speckv.use",
    title: "use of memories, energy and cost",
    covers: &["speckv.table5", "speckv.table7", "speckv.figure4"],
    is_quick: false,
    draws: false,
    run,
};

const REQUESTS: usize = 192;
/// Tokens of a chatbot's request, in the middle of its answer.
const CONTEXT: f64 = 256.0;
/// FPGAs of a machine (§4.1.1).
const FPGAS: f64 = 4.0;
/// Prices of an FPGA beside the paper's: half and twice.
const FPGA_PRICES: [f64; 2] = [price::FPGA / 2.0, price::FPGA * 2.0];

fn served(machine: &Machine, system: System, model: &Architecture, seed: u64) -> Option<Outcome> {
    machine.run(system, model, &CHATBOT.draw(REQUESTS, 0.0, seed))
}

/// Shares of the bandwidth of the GPU's memory, the link and the FPGA's memory.
fn shares(machine: &Machine, system: System, model: &Architecture, seed: u64) -> Option<[f64; 3]> {
    let outcome = served(machine, system, model, seed)?;
    let roofline = machine.roofline(model);
    let gpu_bytes = outcome.steps as f64 * model.bytes() as f64
        + outcome.generated_tokens as f64 * CONTEXT * model.kv_bytes_per_token() as f64;
    let gpu_rate = machine.gpu.device.memory_bytes_per_s as f64 * f64::from(roofline.gpus);
    let ratio = if system == System::SpecKv { machine.ratio } else { 1.0 };
    let carried = outcome.streamed_bytes as f64 / ratio / outcome.makespan_s;
    let links = f64::from(roofline.gpus.div_ceil(2));
    Some([
        gpu_bytes / outcome.makespan_s / gpu_rate,
        carried / (machine.link_bytes_per_s as f64 * links),
        carried / (hbm::SPECKV_FPGA.bytes_per_s as f64 * links),
    ])
}

/// Watts of all GPUs.
fn gpus_w(machine: &Machine, system: System, seed: u64) -> f64 {
    let model = LLAMA_2_70B.int8();
    let watts = |[memory, ..]: [f64; 3]| gpu_w(&machine.gpu, memory, 0.0) * f64::from(machine.gpus(&model));
    shares(machine, system, &model, seed).map_or(f64::NAN, watts)
}

/// Joules per generated token.
fn joules(machine: &Machine, system: System, fpga_w: f64, seed: u64) -> f64 {
    let fpgas = if system == System::GpuOnly { 0.0 } else { FPGAS * fpga_w };
    let rate = throughput(machine, system, &LLAMA_2_70B.int8(), seed);
    (gpus_w(machine, system, seed) + fpgas) / rate
}

fn run(context: &Context) -> Vec<Measured> {
    let seed = context.seed;
    let model = LLAMA_2_70B.int8();
    let batch = |batch_max: usize| Machine { batch_max, ..BASE };
    let percent = |machine: &Machine| {
        let shares = shares(machine, System::SpecKv, &model, seed).unwrap_or([f64::NAN; 3]);
        shares.map(|share| 100.0 * share).to_vec()
    };
    let use_of = percent(&batch(64));
    let energy = |fpga_w: f64, gpus: Option<u32>| {
        let at = |batch_max, system| joules(&Machine { gpus, ..batch(batch_max) }, system, fpga_w, seed);
        vec![at(16, System::GpuOnly), at(64, System::SpecKv)]
    };
    let power = |gpus: Option<u32>| {
        let at = |batch_max, system| gpus_w(&Machine { gpus, ..batch(batch_max) }, system, seed);
        vec![at(16, System::GpuOnly), at(64, System::SpecKv)]
    };
    let (base, alone) = (energy(FPGA_W, None), power(None));
    let gain = |both: &[f64]| vec![both[0] / both[1]];
    let why = "one A100 with a link of its own, batch of 64; the memory's bandwidth is the data sheet's 2,039 GB/s";
    let watts = "power from a line between idle and board power; 50 W per FPGA are an assumption";
    vec![
        Measured::new("speckv.table5.use", use_of.clone(), why).sensitive(Sensitivity::of(
            "GPUs",
            &use_of,
            &[2, 3, 4, 8],
            |gpus| percent(&Machine { gpus: Some(*gpus), ..batch(64) }),
        )),
        Measured::new("speckv.table7.joules", base.clone(), watts)
            .sensitive(Sensitivity::of("W per FPGA", &base, &FPGA_RANGE_W, |watts| energy(*watts, None)))
            .sensitive(Sensitivity::of("GPUs", &base, &[2, 8], |gpus| energy(FPGA_W, Some(*gpus)))),
        Measured::new("speckv.table7.gain", gain(&base), watts)
            .sensitive(Sensitivity::of("W per FPGA", &gain(&base), &FPGA_RANGE_W, |watts| gain(&energy(*watts, None))))
            .sensitive(Sensitivity::of("GPUs", &gain(&base), &[2, 8], |gpus| gain(&energy(FPGA_W, Some(*gpus))))),
        Measured::new("speckv.table7.gpu-power", alone.clone(), watts).sensitive(Sensitivity::of(
            "GPUs",
            &alone,
            &[2, 4, 8],
            |gpus| power(Some(*gpus)),
        )),
        Measured::not_testable("speckv.table7.fpga-power", "power of a placed and routed Agilex-7 design"),
        small_gpu(seed),
        other_model(seed),
        eight(seed),
    ]
}

fn throughput(machine: &Machine, system: System, model: &Architecture, seed: u64) -> f64 {
    served(machine, system, model, seed).map_or(0.0, |outcome| outcome.steady_tokens_per_s)
}

/// Throughput per price of a machine of small GPUs over that of one large GPU.
fn cheap(model: &Architecture, gpus: u32, seed: u64) -> f64 {
    let (small, large) = (Machine { gpu: A100_40, gpus: Some(gpus), ..BASE }, Machine { gpus: Some(1), ..BASE });
    let gain = throughput(&small, System::SpecKv, model, seed) / throughput(&large, System::GpuOnly, model, seed);
    gain * price::A100_80 / (f64::from(gpus) * price::A100_40 + FPGAS * price::FPGA)
}

fn small_gpu(seed: u64) -> Measured {
    let model = LLAMA_2_70B.int8();
    let why = "69 GB of INT8 weights do not fit into 40 GB: such a machine serves nothing";
    let base = vec![cheap(&model, 1, seed)];
    let more = Sensitivity::of("small GPUs", &base, &[2, 4], |gpus| vec![cheap(&model, *gpus, seed)]);
    Measured::new("speckv.figure4.small-gpu", base, why).sensitive(more)
}

fn other_model(seed: u64) -> Measured {
    let why = "the largest dense model that fits: CodeLlama 34B, on the chatbot's load";
    let base = vec![cheap(&SPECKV_MODELS[20].int8(), 1, seed)];
    let others = [SPECKV_MODELS[1], SPECKV_MODELS[8]];
    let names: Vec<String> = others.iter().map(|model| model.name.to_owned()).collect();
    let ours = others.iter().map(|model| vec![cheap(&model.int8(), 1, seed)]).collect();
    let sensitivity = Sensitivity::from("model", &base, names, ours);
    Measured::new("speckv.figure4.small-gpu-34b", base, why).sensitive(sensitivity)
}

fn eight(seed: u64) -> Measured {
    let model = LLAMA_2_70B.int8();
    let at = |batch_max: usize, fpga: f64| {
        let machine = Machine { gpus: Some(8), batch_max, ..BASE };
        let gain =
            throughput(&machine, System::SpecKv, &model, seed) / throughput(&machine, System::GpuOnly, &model, seed);
        vec![gain * 8.0 * price::A100_80 / (8.0 * price::A100_80 + FPGAS * fpga)]
    };
    let base = at(128, price::FPGA);
    let why = "eight A100 hold all KV of the chatbot's batch, so the FPGAs only cost";
    let batches = Sensitivity::of("batch", &base, &[192], |batch| at(*batch, price::FPGA));
    let prices = Sensitivity::of("price of an FPGA", &base, &FPGA_PRICES, |fpga| at(128, *fpga));
    Measured::new("speckv.figure4.eight-gpus", base, why).sensitive(batches).sensitive(prices)
}
