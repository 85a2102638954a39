//! Table 1 and Figures 7 to 11: the workloads A, B and C on three systems.

use super::systems::{BASE, Open, System, load};
use super::transfer::SHARES;
use crate::reproduce::row::{Distributions, Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::Workload;
use cenote_serving_sim::roles::RolesOutcome;
use cenote_serving_sim::workload::Synthetic;

pub const EXPERIMENT: Experiment = Experiment {
    id: "tract.serving",
    title: "NIXL, LMCache and TraCT on three workloads",
    covers: &["tract.table1", "tract.figure7", "tract.figure8", "tract.figure9", "tract.figure10", "tract.figure11"],
    is_quick: false,
    run,
};

const LOADS: [char; 3] = ['A', 'B', 'C'];
/// The load of Figures 7 and 11.
const RATE: f64 = 3.0;
const OPEN_RATES: [f64; 3] = [0.5, 1.0, 2.0];
const OPEN_GROUPS: [u64; 2] = [16, 256];
/// Requests that measure Table 1.
const DRAWN: usize = 20_000;

const DRAWS: &str = "the moments are the generator's input; drawn log-normal, unique at most the prompt";
const AT_3: &str = "3 requests/s, 64 groups, NIXL at line rate; the decode engine saturates below that rate";
const BUSY: &str = "3 requests/s; busy is the part of time in steps, for want of a model of SMs";

fn run(context: &Context) -> Vec<Measured> {
    let mut rows = table_1(context.seed);
    rows.extend(figures(context.seed));
    rows
}

fn moments(values: impl Iterator<Item = f64> + Clone) -> Vec<f64> {
    let count = values.clone().count().max(1) as f64;
    let mean = values.clone().sum::<f64>() / count;
    vec![mean, (values.map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt()]
}

/// Mean tokens of blocks that one prompt only has.
fn unique(load: &Workload) -> f64 {
    let mut uses = vec![0_u32; load.num_blocks()];
    let blocks = || load.requests().iter().flat_map(|request| load.blocks(request));
    blocks().for_each(|&block| uses[block as usize] += 1);
    let alone = blocks().filter(|&&block| uses[block as usize] == 1).count();
    alone as f64 * f64::from(load.block_tokens()) / load.requests().len().max(1) as f64
}

fn table_1(seed: u64) -> Vec<Measured> {
    let of = |name| Synthetic::tract(name, DRAWN, 1.0).expect("a workload of Table 1").draw(seed);
    let loads = LOADS.map(of);
    let requests = || loads[0].requests().iter();
    vec![
        Measured::new("tract.table1.input", moments(requests().map(|one| f64::from(one.input_tokens))), DRAWS),
        Measured::new("tract.table1.output", moments(requests().map(|one| f64::from(one.output_tokens))), DRAWS),
        Measured::new("tract.table1.unique", loads.iter().map(unique).collect(), DRAWS),
    ]
}

/// The three systems on one load.
struct Runs {
    nixl: RolesOutcome,
    lmcache: RolesOutcome,
    tract: RolesOutcome,
}

fn runs(name: char, rate: f64, open: Open, seed: u64) -> Runs {
    let load = load(name, rate, open, seed);
    let of = |system: System| system.run(open, &load);
    Runs { nixl: of(System::Nixl), lmcache: of(System::LmCache), tract: of(System::Tract) }
}

/// Figure 9's curves of a workload.
fn distributions(name: char, runs: &Runs) -> Distributions {
    let each = [("NIXL", &runs.nixl), ("LMCache", &runs.lmcache), ("TraCT", &runs.tract)];
    let series = each.map(|(name, of)| (name.to_owned(), of.ttft_percentiles_ms.clone())).to_vec();
    Distributions { title: format!("workload {name}"), label: "time to the first token, ms", series }
}

fn figures(seed: u64) -> Vec<Measured> {
    let base = LOADS.map(|name| runs(name, RATE, BASE, seed));
    let each = |value: fn(&Runs) -> f64| base.iter().map(value).collect::<Vec<f64>>();
    let most = |runs: &[Runs], value: fn(&Runs) -> f64| runs.iter().map(value).fold(f64::MIN, f64::max);
    let shares = SHARES.map(|network_share| LOADS.map(|name| runs(name, RATE, Open { network_share, ..BASE }, seed)));
    let rates = OPEN_RATES.map(|rate| LOADS.map(|name| runs(name, rate, BASE, seed)));
    let groups = OPEN_GROUPS.map(|groups| LOADS.map(|name| runs(name, RATE, Open { groups, ..BASE }, seed)));
    // The largest of the three workloads, and with other settings.
    let up_to = |id: &'static str, value: fn(&Runs) -> f64| {
        let ours = vec![most(&base, value)];
        let varied = |parameter: &str, settings: Vec<String>, sets: &[[Runs; 3]]| {
            let values = sets.iter().map(|set| vec![most(set, value)]).collect();
            Sensitivity::from(parameter, &ours, settings, values)
        };
        let names = |values: &[f64]| values.iter().map(ToString::to_string).collect::<Vec<_>>();
        let counts = OPEN_GROUPS.iter().map(ToString::to_string).collect();
        Measured::new(id, ours.clone(), AT_3)
            .sensitive(varied("NIXL's share of the line rate", names(&SHARES), &shares))
            .sensitive(varied("requests/s", names(&OPEN_RATES), &rates))
            .sensitive(varied("groups", counts, &groups))
    };
    let mut rows = vec![
        up_to("tract.figure7.peak", |runs| runs.tract.requests_per_s / runs.lmcache.requests_per_s),
        Measured::new("tract.figure7.lmcache", each(|of| of.tract.requests_per_s / of.lmcache.requests_per_s), AT_3),
        Measured::new("tract.figure7.nixl", each(|of| of.tract.requests_per_s / of.nixl.requests_per_s), AT_3),
        Measured::new("tract.figure8.lmcache", each(|of| of.tract.hit_rate / of.lmcache.hit_rate), AT_3),
        Measured::new(
            "tract.figure8.unique",
            base[1..].iter().map(|of| of.tract.hit_rate / base[0].tract.hit_rate).collect(),
            AT_3,
        ),
        (LOADS.iter().zip(&base)).fold(
            up_to("tract.figure9.mean-nixl", |runs| runs.nixl.ttft_mean_ms / runs.tract.ttft_mean_ms),
            |row, (name, runs)| row.with(distributions(*name, runs)),
        ),
        up_to("tract.figure9.mean-lmcache", |runs| runs.lmcache.ttft_mean_ms / runs.tract.ttft_mean_ms),
        up_to("tract.figure9.p99-nixl", |runs| runs.nixl.ttft_quantiles_ms[4] / runs.tract.ttft_quantiles_ms[4]),
        up_to("tract.figure9.p99-lmcache", |runs| runs.lmcache.ttft_quantiles_ms[4] / runs.tract.ttft_quantiles_ms[4]),
    ];
    rows.extend(parts(&base[0], &rates[0][0]));
    rows
}

/// Figures 10 and 11, workload A at 3 requests per second and at the lowest rate.
fn parts(busy: &Runs, calm: &Runs) -> Vec<Measured> {
    let lmcache = &busy.lmcache;
    let transfers = lmcache.prefill_read_ms + lmcache.decode_read_ms;
    vec![
        Measured::new(
            "tract.figure10.read-tract",
            vec![busy.tract.decode_read_ms / calm.tract.decode_read_ms],
            "workload A; writes and reads of both engines share the memory's 10.1 GB/s",
        ),
        Measured::new(
            "tract.figure10.read-lmcache",
            vec![lmcache.decode_read_ms / calm.lmcache.decode_read_ms],
            "workload A; from the end of the prompt",
        ),
        Measured::new("tract.figure10.write", vec![busy.tract.prefill_write_ms / lmcache.prefill_write_ms], AT_3),
        Measured::new(
            "tract.figure10.compute",
            vec![busy.tract.prefill_compute_ms / busy.nixl.prefill_compute_ms],
            AT_3,
        ),
        Measured::new(
            "tract.figure10.transfer",
            vec![100.0 * transfers / lmcache.ttft_mean_ms],
            "reads of cache and network; the rest is waiting, computing and the first step",
        ),
        Measured::new("tract.figure11.prefill", vec![busy.tract.prefill_busy / lmcache.prefill_busy], BUSY),
        Measured::new("tract.figure11.decode", vec![busy.tract.decode_busy / lmcache.decode_busy], BUSY),
        Measured::new(
            "tract.figure11.rx",
            vec![busy.tract.decode_rx_max / lmcache.decode_rx_max],
            "the largest rate of one prompt: 10.1 GB/s of the memory, 12.5 GB/s of the card",
        ),
        Measured::not_testable(
            "tract.figure11.power",
            "needs the cards' power by use of their SMs, which no source gives",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unique_tokens_are_those_of_blocks_used_once() {
        let load = Workload::alone(16, [(0, 160, 1), (1, 320, 1)]);
        assert!((unique(&load) - 240.0).abs() < 1e-9);
        assert_eq!(moments([1.0, 3.0].into_iter()), [2.0, 1.0]);
    }
}
