//! Table 1 and Figures 7 to 11: the workloads A, B and C on three systems.
//!
//! The paper states neither the rate that NIXL reached nor how many prompts share a prefix, and both decide
//! its comparisons. So each row is computed for all pairs of them.

use super::systems::{BASE, Open, System, load};
use super::transfer::SHARES;
use crate::reproduce::row::{Distributions, Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::roles::RolesOutcome;

pub const EXPERIMENT: Experiment = Experiment {
    id: "tract.serving",
    title: "NIXL, LMCache and TraCT on three workloads",
    covers: &["tract.table1", "tract.figure7", "tract.figure8", "tract.figure9", "tract.figure10", "tract.figure11"],
    is_quick: false,
    draws: true,
    run,
};

const LOADS: [char; 3] = ['A', 'B', 'C'];
/// Requests per second; the last is the load of Figures 7 and 11.
const RATES: [f64; 3] = [0.5, 1.0, 3.0];
const OPEN_GROUPS: [u64; 3] = [16, 64, 256];

const DRAWS: &str =
    "the moments are the input of the loads' generator: log-normal lengths, unique tokens at most the prompt's";
const BASIS: &str = "2,000 requests, 3 a second; base: 64 groups, NIXL at line rate";
const UP_TO: &str = "the most of three workloads and three rates, 2,000 requests; base: 64 groups, NIXL at line rate";
const BUSY: &str = "SM occupancy needs a model of SMs; the part of time in steps, which the simulator has, is near 1 for every \
                    saturated engine";
const BELOW: &str = "below saturation every system serves what arrives, so that the ratio is 1; at 3 requests/s see the row of \
                     this figure by workload";
const JOINT: &str = "NIXL's share of the line rate × groups";

fn run(context: &Context) -> Vec<Measured> {
    let mut rows: Vec<Measured> = ["tract.table1.input", "tract.table1.output", "tract.table1.unique"]
        .map(|id| Measured::not_testable(id, DRAWS))
        .into();
    rows.extend(figures(context));
    rows
}

/// The three systems on one load.
#[derive(Clone)]
struct Runs {
    nixl: RolesOutcome,
    lmcache: RolesOutcome,
    tract: RolesOutcome,
}

/// All loads at all rates: `[rate][load]`.
struct Set(Vec<[Runs; 3]>);

impl Set {
    /// TraCT's runs do not use the network: those of `known` are taken, if there are some.
    fn new(open: Open, known: Option<&Self>, seed: u64) -> Self {
        let at = |(row, &rate): (usize, &f64)| {
            let runs = |column: usize| {
                let load = load(LOADS[column], rate, open, seed);
                let tract = known.map(|known| known.0[row][column].tract.clone());
                Runs {
                    nixl: System::Nixl.run(open, &load),
                    lmcache: System::LmCache.run(open, &load),
                    tract: tract.unwrap_or_else(|| System::Tract.run(open, &load)),
                }
            };
            [runs(0), runs(1), runs(2)]
        };
        Self(RATES.iter().enumerate().map(at).collect())
    }

    /// The loads at the highest rate.
    fn full(&self) -> &[Runs; 3] {
        &self.0[RATES.len() - 1]
    }

    fn each(&self, value: fn(&Runs) -> f64) -> Vec<f64> {
        self.full().iter().map(value).collect()
    }

    /// The largest of all loads and rates.
    fn most(&self, value: fn(&Runs) -> f64) -> Vec<f64> {
        vec![self.0.iter().flatten().map(value).fold(f64::MIN, f64::max)]
    }

    /// Workload A at the highest rate, of Figures 10 and 11.
    fn first(&self, value: fn(&Runs) -> f64) -> Vec<f64> {
        vec![value(&self.full()[0])]
    }

    /// Workload A at the highest rate over the lowest.
    fn growth(&self, value: fn(&Runs) -> f64) -> Vec<f64> {
        vec![value(&self.full()[0]) / value(&self.0[0][0])]
    }
}

/// All runs of the figures.
struct Swept {
    base: Set,
    /// Pairs of the open parameters.
    joint: Vec<(String, Set)>,
    /// Each host with the memory's bandwidth to itself.
    split: Option<Set>,
}

impl Swept {
    fn new(context: &Context) -> Self {
        let base = Set::new(BASE, None, context.seed);
        let (mut joint, mut split) = (Vec::new(), None);
        if context.is_varied {
            for groups in OPEN_GROUPS {
                let open = Open { groups, ..BASE };
                let mut line: Option<Set> = None;
                for network_share in std::iter::once(1.0).chain(SHARES) {
                    let known = if groups == BASE.groups { Some(&base) } else { line.as_ref() };
                    let name = format!("{network_share} × {groups}");
                    let set = Set::new(Open { network_share, ..open }, known, context.seed);
                    if line.is_none() {
                        line = Some(Set(set.0.clone()));
                    }
                    joint.push((name, set));
                }
            }
            split = Some(Set::new(Open { is_split: true, ..BASE }, None, context.seed));
        }
        Self { base, joint, split }
    }

    fn row(&self, id: &'static str, why: &'static str, value: impl Fn(&Set) -> Vec<f64>) -> Measured {
        let ours = value(&self.base);
        let row = Measured::new(id, ours.clone(), why);
        let Some(split) = &self.split else { return row };
        let (names, values) = self.joint.iter().map(|(name, set)| (name.clone(), value(set))).unzip();
        let split = Sensitivity::from("bandwidth per host", &ours, vec!["true".to_owned()], vec![value(split)]);
        row.sensitive(Sensitivity::from(JOINT, &ours, names, values)).sensitive(split)
    }
}

/// Figure 9's curves of a workload.
fn distributions(name: char, runs: &Runs) -> Distributions {
    let each = [("NIXL", &runs.nixl), ("LMCache", &runs.lmcache), ("TraCT", &runs.tract)];
    let series = each.map(|(name, of)| (name.to_owned(), of.ttft_percentiles_ms.clone())).to_vec();
    Distributions { title: format!("workload {name}"), label: "time to the first token, ms", series }
}

fn figures(context: &Context) -> Vec<Measured> {
    let swept = Swept::new(context);
    let up_to = |id, value: fn(&Runs) -> f64| swept.row(id, UP_TO, |set| set.most(value));
    let each = |id, value: fn(&Runs) -> f64| swept.row(id, BASIS, |set| set.each(value));
    let mut rows = vec![
        swept.row("tract.figure7.peak", BASIS, |set| {
            vec![
                set.full()
                    .iter()
                    .map(|of| of.tract.requests_per_s / of.lmcache.requests_per_s)
                    .fold(f64::MIN, f64::max),
            ]
        }),
        each("tract.figure7.lmcache", |of| of.tract.requests_per_s / of.lmcache.requests_per_s),
        each("tract.figure7.nixl", |of| of.tract.requests_per_s / of.nixl.requests_per_s),
        Measured::not_testable("tract.figure7.all-lmcache", BELOW),
        Measured::not_testable("tract.figure7.all-nixl", BELOW),
        each("tract.figure8.lmcache", |of| of.tract.hit_rate / of.lmcache.hit_rate)
            .tied("both caches have the same size, policy and order of requests"),
        swept.row("tract.figure8.unique", BASIS, |set| {
            let rates = set.each(|of| of.tract.hit_rate);
            rates[1..].iter().map(|rate| rate / rates[0]).collect()
        }),
        (LOADS.iter().zip(swept.base.full())).fold(
            up_to("tract.figure9.mean-nixl", |runs| runs.nixl.ttft_mean_ms / runs.tract.ttft_mean_ms),
            |row, (name, runs)| row.with(distributions(*name, runs)),
        ),
        up_to("tract.figure9.mean-lmcache", |runs| runs.lmcache.ttft_mean_ms / runs.tract.ttft_mean_ms),
        up_to("tract.figure9.p99-nixl", |runs| runs.nixl.ttft_quantiles_ms[4] / runs.tract.ttft_quantiles_ms[4]),
        up_to("tract.figure9.p99-lmcache", |runs| runs.lmcache.ttft_quantiles_ms[4] / runs.tract.ttft_quantiles_ms[4]),
    ];
    rows.extend(parts(&swept));
    rows
}

/// Figures 10 and 11, workload A.
fn parts(swept: &Swept) -> Vec<Measured> {
    let first = |id, value: fn(&Runs) -> f64| swept.row(id, BASIS, |set| set.first(value));
    let growth = |id, why, value: fn(&Runs) -> f64| swept.row(id, why, |set| set.growth(value));
    vec![
        growth(
            "tract.figure10.read-tract",
            "workload A, from the end of the write; writes and reads of both engines share the memory's 10.1 GB/s",
            |of| of.tract.decode_read_ms,
        ),
        growth("tract.figure10.read-lmcache", "workload A; from the end of the prompt", |of| of.lmcache.decode_read_ms),
        first("tract.figure10.write", |of| of.tract.prefill_write_ms / of.lmcache.prefill_write_ms),
        first("tract.figure10.scheduling", |of| of.tract.prefill_wait_ms / of.nixl.prefill_wait_ms),
        first("tract.figure10.compute", |of| of.tract.prefill_compute_ms / of.nixl.prefill_compute_ms),
        swept.row(
            "tract.figure10.transfer",
            "reads of cache and network; the rest is waiting, computing and the first step; at 1 request/s, where the \
             time to the first token is no queue",
            |set| {
                let of = &set.0[1][0].lmcache;
                vec![100.0 * (of.prefill_read_ms + of.decode_read_ms) / of.ttft_mean_ms]
            },
        ),
        Measured::not_testable("tract.figure11.prefill", BUSY),
        Measured::not_testable("tract.figure11.decode", BUSY),
        swept.row(
            "tract.figure11.rx",
            "bytes over the time of reads, waits for the link included: 10.1 GB/s of the memory, which both engines \
             share, 12.5 GB/s of the card",
            |set| set.first(|of| of.tract.decode_rx / of.lmcache.decode_rx),
        ),
        swept.row(
            "tract.figure11.prefill-rx",
            "cached prompts over the time of their reads: PCIe 4.0 to the host's memory beside the shared memory",
            |set| set.first(|of| of.lmcache.prefill_rx / of.tract.prefill_rx),
        ),
        first("tract.figure11.tx", |of| of.tract.prefill_tx_bytes as f64 / of.lmcache.prefill_tx_bytes as f64)
            .tied("TraCT writes new blocks, LMCache sends all and stores the new ones too"),
        Measured::not_testable(
            "tract.figure11.power",
            "needs the cards' power by use of their SMs, which no source gives",
        ),
    ]
}
