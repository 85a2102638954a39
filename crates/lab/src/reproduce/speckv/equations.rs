//! Throughput and stability of §3.4.2, and eq. 2 over the models.

use super::systems::{BASE, CHATBOT};
use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::hardware::architecture::{LLAMA_2_70B, SPECKV_MODELS};
use cenote_serving_sim::hardware::cxl;
use cenote_serving_sim::model::StepWork;

pub const EXPERIMENT: Experiment = Experiment {
    id: "speckv.equations",
    title: "stability and hiding",
    covers: &["speckv.s3-4-2.stability", "speckv.eq2", "speckv.eq7", "speckv.eq8"],
    is_quick: true,
    draws: false,
    run,
};

/// Requests of the batch whose layers hide copies.
const BATCH: u32 = 64;
/// Tokens of a request in the middle of a chatbot's answer.
const CONTEXT: u32 = 256;
/// L1 of a GPU (§3.3.1: 8 to 16 GB).
const L1_BYTES: u64 = 8_000_000_000;
/// Compression that the paper has on average (§3.5.2).
const RATIO: f64 = 3.2;

/// Tokens per second that the link carries, if attention is dense and all KV lies beyond it.
fn sustained(context: u32) -> f64 {
    let read = u64::from(context) * LLAMA_2_70B.kv_bytes_per_token();
    cxl::SPECKV.bytes_per_s() / read as f64
}

/// Share of models for which a layer's copies take less than two layers' computation, if L1 has so many
/// bytes of each GPU's KV and frames are compressed.
fn hiding(context: u32, l1_bytes: u64, ratio: f64) -> f64 {
    let hides = |model: &&cenote_serving_sim::hardware::Architecture| {
        let model = model.int8();
        let mut work = StepWork::default();
        (0..BATCH).for_each(|_| work.add(context, 1));
        let near = l1_bytes * u64::from(BASE.gpus(&model));
        let far = (u64::from(BATCH * context) * model.kv_bytes_per_token()).saturating_sub(near);
        let bytes = (far as f64 / model.layers as f64 / ratio) as u64;
        bytes == 0 || cxl::SPECKV.copy_ns(bytes) < 2.0 * BASE.roofline(&model).layer(&work).total_ns()
    };
    SPECKV_MODELS.iter().filter(hides).count() as f64 / SPECKV_MODELS.len() as f64
}

fn run(context: &Context) -> Vec<Measured> {
    // The load's mean length stands for the context.
    let load = CHATBOT.draw(1, 0.0, context.seed);
    let request = &load.requests()[0];
    assert_eq!(request.input_tokens + request.output_tokens / 2, CONTEXT, "the middle of the answer");
    let share = vec![hiding(CONTEXT, L1_BYTES, RATIO)];
    vec![
        Measured::beside(
            "speckv.s3-4-2.stability",
            "an inequality without a value; beside: what the link carries if dense attention reads 256 tokens of KV per \
             token, without codec or L1",
            vec![sustained(CONTEXT)],
        ),
        Measured::new(
            "speckv.eq2.hiding",
            share.clone(),
            "share of the 22 models; batch of 64 at 256 tokens of context, dense attention; 8 GB of L1 on each GPU \
             (§3.3.1) and the paper's codec of 3.2",
        )
        .sensitive(Sensitivity::of("tokens of context", &share, &[384, 1_024, 2_048], |context| {
            vec![hiding(*context, L1_BYTES, RATIO)]
        }))
        .sensitive(Sensitivity::of("bytes of L1", &share, &[16_000_000_000_u64], |bytes| {
            vec![hiding(CONTEXT, *bytes, RATIO)]
        }))
        .sensitive(
            Sensitivity::from(
                "without",
                &share,
                vec!["codec".to_owned(), "codec and L1".to_owned()],
                vec![vec![hiding(CONTEXT, L1_BYTES, 1.0)], vec![hiding(CONTEXT, 0, 1.0)]],
            )
            .aside(),
        ),
        Measured::not_testable("speckv.eq7.throttle", "no number is printed; `study prefetch` measures its gain"),
        Measured::not_testable("speckv.eq8.choice", "no number is printed; `study prefetch` measures its gain"),
    ]
}
