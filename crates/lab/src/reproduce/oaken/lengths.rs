//! Figure 13: lengths.

use super::systems::{HBM, LPDDR, QSERVE, System, USABLE, USABLES, VLLM, model};
use super::throughput::{MEMORY, OAKEN_SHARE as SHARE, jointly};
use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::hardware::oaken::{OAKEN_HBM, OAKEN_LPDDR, Oaken};

pub const EXPERIMENT: Experiment = Experiment {
    id: "oaken.lengths",
    title: "throughput by sequence length",
    covers: &["oaken.figure13"],
    is_quick: true,
    draws: false,
    run,
};

/// Figure 13: Llama2-13B, a batch of 16, as many tokens out as in.
const BATCH: u32 = 16;
const SHORT: [u32; 3] = [1_024, 2_048, 4_096];
const LONG: [u32; 2] = [8_192, 16_384];

const WAVES: &str = "requests that do not fit wait; the paper counts a batch that does not fit as out of memory";

fn run(_: &Context) -> Vec<Measured> {
    let llama = model("llama-2-13b");
    let rate = |system: System, tokens: u32| system.tokens_per_s(&llama, BATCH, tokens / 2, tokens / 2).unwrap_or(0.0);
    let over = |a: System, b: System, lengths: &[u32]| -> Vec<f64> {
        lengths.iter().map(|&tokens| rate(a, tokens) / rate(b, tokens)).collect()
    };
    let oaken = |oaken: Oaken, flops_share: f64| System::Accelerator(Oaken { flops_share, ..oaken });
    let short = |id: &'static str, gpu: System| {
        jointly(Measured::new(id, over(gpu, LPDDR, &SHORT), WAVES), |at| over(at(gpu), at(LPDDR), &SHORT))
    };
    // `other` with so much of its peak.
    let long = |id: &'static str, other: &dyn Fn(f64) -> System| {
        let base = over(HBM, other(OAKEN_HBM.flops_share), &LONG);
        let units =
            Sensitivity::of(SHARE, &base, &[0.3, 0.9], |&share| over(oaken(OAKEN_HBM, share), other(share), &LONG));
        let memories = Sensitivity::of(MEMORY, &base, &USABLES, |&usable| {
            let rate = |system: System, tokens: u32| {
                system.tokens_per_s_in(&llama, BATCH, [tokens / 2, tokens / 2], usable).unwrap_or(0.0)
            };
            LONG.iter().map(|&tokens| rate(HBM, tokens) / rate(other(OAKEN_HBM.flops_share), tokens)).collect()
        });
        Measured::new(id, base, WAVES).sensitive(units).sensitive(memories)
    };
    // Requests of a batch that fit.
    let fitting = |id: &'static str, systems: &[System], tokens: u64| {
        let holds = |&usable: &u64| -> Vec<f64> {
            let each = systems.iter().map(|system| system.holds_in(&llama, tokens, usable));
            each.map(|requests| requests.min(u64::from(BATCH)) as f64).collect()
        };
        let base = holds(&USABLE);
        let memories = Sensitivity::of(MEMORY, &base, &USABLES, holds);
        Measured::new(id, base, "90 % of the memory less the weights").sensitive(memories)
    };
    vec![
        short("oaken.figure13.short", QSERVE),
        short("oaken.figure13.short-vllm", VLLM),
        long("oaken.figure13.long", &|_| QSERVE),
        long("oaken.figure13.long-lpddr", &|share| oaken(OAKEN_LPDDR, share)),
        fitting("oaken.figure13.fits", &[HBM, QSERVE], 16_384),
        fitting("oaken.figure13.hbm", &[HBM, QSERVE], 32_768),
        fitting("oaken.figure13.lpddr", &[LPDDR], 32_768).tied("256 GB hold 16 requests of 6.6 GB"),
    ]
}
