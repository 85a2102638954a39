//! Figure 13: lengths.

use super::systems::{HBM, LPDDR, QSERVE, System, USABLE, USABLES, model};
use super::throughput::MEMORY;
use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::hardware::oaken::{OAKEN_HBM, OAKEN_LPDDR, Oaken};

pub const EXPERIMENT: Experiment = Experiment {
    id: "oaken.lengths",
    title: "throughput by sequence length",
    covers: &["oaken.figure13"],
    is_quick: false,
    run,
};

/// Figure 13: Llama2-13B, a batch of 16, as many tokens out as in.
const BATCH: u32 = 16;
const SHORT: [u32; 3] = [1_024, 2_048, 4_096];
const LONG: [u32; 2] = [8_192, 16_384];
const SHARES: [f64; 3] = [0.3, 0.7, 0.9];

const WAVES: &str = "requests that do not fit wait; the paper counts a batch that does not fit as out of memory";

fn run(_: &Context) -> Vec<Measured> {
    let llama = model("llama-2-13b");
    let rate = |system: System, tokens: u32| system.tokens_per_s(&llama, BATCH, tokens / 2, tokens / 2).unwrap_or(0.0);
    let over = |a: System, b: System, lengths: &[u32]| -> Vec<f64> {
        lengths.iter().map(|&tokens| rate(a, tokens) / rate(b, tokens)).collect()
    };
    let short = over(QSERVE, LPDDR, &SHORT);
    let shares = Sensitivity::of("part of the peak that Oaken reaches", &short, &SHARES, |&flops_share| {
        over(QSERVE, System::Accelerator(Oaken { flops_share, ..OAKEN_LPDDR }), &SHORT)
    });
    let long = over(HBM, QSERVE, &LONG);
    let units = Sensitivity::of("part of the peak that Oaken reaches", &long, &[0.3, 0.9], |&flops_share| {
        over(System::Accelerator(Oaken { flops_share, ..OAKEN_HBM }), QSERVE, &LONG)
    });
    let memories = Sensitivity::of(MEMORY, &long, &USABLES, |&usable| {
        let rate = |system: System, tokens: u32| {
            system.tokens_per_s_in(&llama, BATCH, [tokens / 2, tokens / 2], usable).unwrap_or(0.0)
        };
        LONG.iter().map(|&tokens| rate(HBM, tokens) / rate(QSERVE, tokens)).collect()
    });
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
        Measured::new("oaken.figure13.short", short, WAVES).sensitive(shares),
        Measured::new("oaken.figure13.long", long, WAVES).sensitive(units).sensitive(memories),
        fitting("oaken.figure13.fits", &[HBM, QSERVE], 16_384),
        fitting("oaken.figure13.hbm", &[HBM, QSERVE], 32_768),
        fitting("oaken.figure13.lpddr", &[LPDDR], 32_768),
    ]
}
