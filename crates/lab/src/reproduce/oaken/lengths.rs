//! Figure 13: lengths.

use super::systems::{HBM, LPDDR, QSERVE, System, model};
use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::hardware::oaken::{OAKEN_LPDDR, Oaken};

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
const LONGEST: u64 = 32_768;
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
    let holds = |system: System| vec![system.holds(&llama, LONGEST).min(u64::from(BATCH)) as f64];
    vec![
        Measured::new("oaken.figure13.short", short, WAVES).sensitive(shares),
        Measured::new("oaken.figure13.long", over(HBM, QSERVE, &LONG), WAVES),
        Measured::new("oaken.figure13.hbm", holds(HBM), "90 % of the memory less the weights"),
        Measured::new("oaken.figure13.lpddr", holds(LPDDR), "90 % of the memory less the weights"),
    ]
}
