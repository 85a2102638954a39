//! Throughput and stability of §3.4.2, and eq. 2 over the models.

use super::systems::{BASE, CHATBOT, PCIE_4_LINK};
use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::hardware::architecture::{LLAMA_2_70B, SPECKV_MODELS};
use cenote_serving_sim::hardware::cxl::{self, CxlLink};
use cenote_serving_sim::model::{Link, StepWork};

pub const EXPERIMENT: Experiment = Experiment {
    id: "speckv.equations",
    title: "throughput, stability and hiding",
    covers: &["speckv.s3-4-2.theta", "speckv.s3-4-2.stability", "speckv.eq2", "speckv.eq7", "speckv.eq8"],
    is_quick: true,
    run,
};

/// Requests of the batch whose layers hide copies.
const BATCH: u32 = 64;
/// Tokens of a request in the middle of a chatbot's answer.
const CONTEXT: u32 = 256;

/// Tokens per second that the link carries, if attention is dense and all KV lies beyond it.
fn sustained(context: u32) -> f64 {
    let read = u64::from(context) * LLAMA_2_70B.kv_bytes_per_token();
    cxl::SPECKV.bytes_per_s() / read as f64
}

/// Share of models for which a layer's copies take less than two layers' computation.
fn hiding(context: u32) -> f64 {
    let hides = |model: &&cenote_serving_sim::hardware::Architecture| {
        let model = model.int8();
        let mut work = StepWork::default();
        (0..BATCH).for_each(|_| work.add(context, 1));
        let bytes = u64::from(BATCH * context) * model.kv_bytes_per_token() / model.layers;
        cxl::SPECKV.copy_ns(bytes) < 2.0 * BASE.roofline(&model).layer(&work).total_ns()
    };
    SPECKV_MODELS.iter().filter(hides).count() as f64 / SPECKV_MODELS.len() as f64
}

/// Millions of entries per second that a link carries.
fn entries(link: &CxlLink) -> Vec<f64> {
    vec![link.bytes_per_s() / link.access_bytes as f64 / 1e6]
}

fn theta() -> Measured {
    let with =
        |bytes_per_s: u64, latency_ns: u64| entries(&CxlLink { link: Link { bytes_per_s, latency_ns }, ..cxl::SPECKV });
    let (base, link) = (entries(&cxl::SPECKV), cxl::SPECKV.link);
    let speeds = Sensitivity::of("bytes/s of the link", &base, &[PCIE_4_LINK], |speed| with(*speed, link.latency_ns));
    let latencies =
        Sensitivity::of("ns of an access", &base, &[800, 1_600], |latency| with(link.bytes_per_s, *latency));
    let why =
        "window of 16 over 400 ns allows more than the link carries; the formula multiplies that by the clock too";
    Measured::new("speckv.s3-4-2.theta", base, why).sensitive(speeds).sensitive(latencies)
}

fn run(context: &Context) -> Vec<Measured> {
    // The load's mean length stands for the context.
    let load = CHATBOT.draw(1, 0.0, context.seed);
    let request = &load.requests()[0];
    assert_eq!(request.input_tokens + request.output_tokens / 2, CONTEXT, "the middle of the answer");
    let tokens = sustained(CONTEXT);
    let share = hiding(CONTEXT);
    vec![
        theta(),
        Measured::new(
            "speckv.s3-4-2.stability",
            vec![tokens],
            "dense attention reads all KV of a request per token, not k entries; no codec, nothing in L1",
        )
        .sensitive(Sensitivity::of("tokens of context", &[tokens], &[128, 2_048], |context| vec![sustained(*context)])),
        Measured::new(
            "speckv.eq2.hiding",
            vec![share],
            "share of the 22 models; batch of 64, all KV beyond one link, dense attention, no codec",
        )
        .sensitive(Sensitivity::of("tokens of context", &[share], &[16, 2_048], |context| vec![hiding(*context)])),
        Measured::not_testable("speckv.eq7.throttle", "no number is printed; `study prefetch` measures its gain"),
        Measured::not_testable("speckv.eq8.choice", "no number is printed; `study prefetch` measures its gain"),
    ]
}
