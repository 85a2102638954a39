//! Figures 5 and 6: TraCT without its cache beside NIXL, static loads.

use super::systems::{BASE, Open, System, static_load};
use crate::reproduce::row::{Distributions, Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::roles::RolesOutcome;

pub const EXPERIMENT: Experiment = Experiment {
    id: "tract.transfer",
    title: "transfers over CXL and over RDMA",
    covers: &["tract.figure5", "tract.figure6"],
    is_quick: true,
    draws: true,
    run,
};

const LENGTHS: [u32; 4] = [1_500, 3_000, 4_500, 6_000];
/// Tokens of a prompt of Figure 6.
const LONGEST: u32 = LENGTHS[3];
const RATES: [f64; 4] = [0.25, 0.5, 1.0, 2.0];
/// Requests per second of Figure 5, which the paper leaves open.
const RATE: f64 = 0.25;
/// Shares of the line rate that NIXL may reach.
pub const SHARES: [f64; 4] = [0.3, 0.1, 0.07, 0.03];

const TTFT: &str = "0.25 requests/s; NIXL sends at line rate, 12.5 GB/s, once; TraCT writes and reads at 10.1 GB/s";
const MANY: &str = "prompts of 6,000 tokens, answers of 3; an A6000 computes 0.7 such prompts a second";

fn run(context: &Context) -> Vec<Measured> {
    let seed = context.seed;
    let by_length = |open: Open, rate: f64, value: fn(&RolesOutcome) -> f64| -> Vec<f64> {
        let ratio = |&tokens: &u32| {
            let load = static_load(tokens, rate, seed);
            value(&System::TractNoCache.run(open, &load)) / value(&System::Nixl.run(open, &load))
        };
        LENGTHS.iter().map(ratio).collect()
    };
    let ttft = |id: &'static str, value: fn(&RolesOutcome) -> f64| {
        let base = by_length(BASE, RATE, value);
        let shares = Sensitivity::of("NIXL's share of the line rate", &base, &SHARES, |&network_share| {
            by_length(Open { network_share, ..BASE }, RATE, value)
        });
        let rates = Sensitivity::of("requests/s", &base, &[0.1, 0.5], |&rate| by_length(BASE, rate, value));
        let split = Sensitivity::of("bandwidth per host", &base, &[true], |&is_split| {
            by_length(Open { is_split, ..BASE }, RATE, value)
        });
        Measured::new(id, base, TTFT).sensitive(shares).sensitive(rates).sensitive(split)
    };
    let by_rate = |open: Open, tokens: u32, value: fn(&RolesOutcome) -> f64| -> Vec<f64> {
        let ratio = |&rate: &f64| {
            let load = static_load(tokens, rate, seed);
            value(&System::TractNoCache.run(open, &load)) / value(&System::Nixl.run(open, &load))
        };
        RATES.iter().map(ratio).collect()
    };
    let throughput = |id: &'static str, value: fn(&RolesOutcome) -> f64| {
        let base = by_rate(BASE, LONGEST, value);
        let shares = Sensitivity::of("NIXL's share of the line rate", &base, &SHARES, |&network_share| {
            by_rate(Open { network_share, ..BASE }, LONGEST, value)
        });
        let lengths =
            Sensitivity::of("tokens of a prompt", &base, &LENGTHS[..1], |&tokens| by_rate(BASE, tokens, value));
        Measured::new(id, base, MANY).sensitive(shares).sensitive(lengths)
    };
    // Figure 5's curves, one plot per length.
    let curves = |tokens: u32| {
        let load = static_load(tokens, RATE, seed);
        let each = [("NIXL", System::Nixl), ("TraCT without cache", System::TractNoCache)];
        let series = each.map(|(name, system)| (name.to_owned(), system.run(BASE, &load).ttft_percentiles_ms)).to_vec();
        Distributions { title: format!("{tokens} tokens"), label: "time to the first token, ms", series }
    };
    let median = ttft("tract.figure5.median", |outcome| outcome.ttft_quantiles_ms[2]);
    vec![
        LENGTHS.into_iter().fold(median, |row, tokens| row.with(curves(tokens))),
        ttft("tract.figure5.p99", |outcome| outcome.ttft_quantiles_ms[4]),
        throughput("tract.figure6.requests", |outcome| outcome.requests_per_s),
        throughput("tract.figure6.prompts", |outcome| outcome.prompts_per_s),
    ]
}
