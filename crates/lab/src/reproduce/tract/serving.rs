//! Table 1 and Figures 7 to 11: the workloads A, B and C on three systems.

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
    run,
};

const LOADS: [char; 3] = ['A', 'B', 'C'];
/// The load of Figures 7 and 11.
const RATE: f64 = 3.0;
const OPEN_RATES: [f64; 3] = [0.5, 1.0, 2.0];
const OPEN_GROUPS: [u64; 2] = [16, 256];

const DRAWS: &str =
    "the moments are the input of the loads' generator: log-normal lengths, unique tokens at most the prompt's";
const AT_3: &str = "3 requests/s, 64 groups, NIXL at line rate; the decode engine saturates below that rate";
const BUSY: &str = "3 requests/s; busy is the part of time in steps, for want of a model of SMs";

fn run(context: &Context) -> Vec<Measured> {
    let mut rows = table_1();
    rows.extend(figures(context.seed));
    rows
}

fn table_1() -> Vec<Measured> {
    ["tract.table1.input", "tract.table1.output", "tract.table1.unique"]
        .map(|id| Measured::not_testable(id, DRAWS))
        .into()
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

/// The three workloads at one rate, and the first one at the lowest rate.
struct Set {
    loads: [Runs; 3],
    calm: Runs,
}

impl Set {
    fn new(rate: f64, open: Open, seed: u64) -> Self {
        Self { loads: LOADS.map(|name| runs(name, rate, open, seed)), calm: runs(LOADS[0], OPEN_RATES[0], open, seed) }
    }

    fn each(&self, value: fn(&Runs) -> f64) -> Vec<f64> {
        self.loads.iter().map(value).collect()
    }

    /// The largest of the three workloads.
    fn most(&self, value: fn(&Runs) -> f64) -> Vec<f64> {
        vec![self.loads.iter().map(value).fold(f64::MIN, f64::max)]
    }

    /// Workload A, of Figures 10 and 11.
    fn first(&self, value: fn(&Runs) -> f64) -> Vec<f64> {
        vec![value(&self.loads[0])]
    }
}

/// Runs with other settings of an open parameter.
struct Varied {
    parameter: &'static str,
    settings: Vec<String>,
    sets: Vec<Set>,
}

impl Varied {
    fn new<T: ToString>(parameter: &'static str, settings: &[T], run: impl FnMut(&T) -> Set) -> Self {
        let texts = settings.iter().map(ToString::to_string).collect();
        Self { parameter, settings: texts, sets: settings.iter().map(run).collect() }
    }
}

/// All runs of the figures.
struct Swept {
    base: Set,
    /// Parameters of the machine and of the load.
    open: [Varied; 3],
    /// Rates. They are no parameter of a row that compares two of them.
    rates: Varied,
}

impl Swept {
    fn new(seed: u64) -> Self {
        let at = |open: Open| Set::new(RATE, open, seed);
        let shares = |&network_share: &f64| at(Open { network_share, ..BASE });
        let open = [
            Varied::new("NIXL's share of the line rate", &SHARES, shares),
            Varied::new("groups", &OPEN_GROUPS, |&groups| at(Open { groups, ..BASE })),
            Varied::new("bandwidth per host", &[true], |&is_split| at(Open { is_split, ..BASE })),
        ];
        let rates = Varied::new("requests/s", &OPEN_RATES, |&rate| Set::new(rate, BASE, seed));
        Self { base: at(BASE), open, rates }
    }

    fn row(&self, id: &'static str, why: &'static str, value: impl Fn(&Set) -> Vec<f64>) -> Measured {
        let ours = value(&self.base);
        let rates = effect(&self.rates, &ours, &value);
        self.row_of_rates(id, why, value).sensitive(rates)
    }

    /// A row that compares two rates.
    fn row_of_rates(&self, id: &'static str, why: &'static str, value: impl Fn(&Set) -> Vec<f64>) -> Measured {
        let ours = value(&self.base);
        let row = Measured::new(id, ours.clone(), why);
        self.open.iter().fold(row, |row, varied| row.sensitive(effect(varied, &ours, &value)))
    }
}

fn effect(varied: &Varied, base: &[f64], value: impl Fn(&Set) -> Vec<f64>) -> Sensitivity {
    let values = varied.sets.iter().map(value).collect();
    Sensitivity::from(varied.parameter, base, varied.settings.clone(), values)
}

fn figures(seed: u64) -> Vec<Measured> {
    let swept = Swept::new(seed);
    let up_to = |id, value: fn(&Runs) -> f64| swept.row(id, AT_3, |set| set.most(value));
    let each = |id, value: fn(&Runs) -> f64| swept.row(id, AT_3, |set| set.each(value));
    let mut rows = vec![
        up_to("tract.figure7.peak", |runs| runs.tract.requests_per_s / runs.lmcache.requests_per_s),
        each("tract.figure7.lmcache", |of| of.tract.requests_per_s / of.lmcache.requests_per_s),
        lowest(&swept, "tract.figure7.all-lmcache", |of| of.tract.requests_per_s / of.lmcache.requests_per_s),
        lowest(&swept, "tract.figure7.all-nixl", |of| of.tract.requests_per_s / of.nixl.requests_per_s),
        each("tract.figure7.nixl", |of| of.tract.requests_per_s / of.nixl.requests_per_s),
        each("tract.figure8.lmcache", |of| of.tract.hit_rate / of.lmcache.hit_rate),
        swept.row("tract.figure8.unique", AT_3, |set| {
            let rates = set.each(|of| of.tract.hit_rate);
            rates[1..].iter().map(|rate| rate / rates[0]).collect()
        }),
        (LOADS.iter().zip(&swept.base.loads)).fold(
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

/// The least ratio of the workloads at each of the lower rates.
fn lowest(swept: &Swept, id: &'static str, value: fn(&Runs) -> f64) -> Measured {
    let least = |set: &Set| set.loads.iter().map(value).fold(f64::INFINITY, f64::min);
    let ours: Vec<f64> = swept.rates.sets.iter().map(least).collect();
    let by_load = |at: usize| swept.rates.sets.iter().map(|set| value(&set.loads[at])).collect();
    let loads = Sensitivity::of("workload", &ours, &LOADS, |name| {
        by_load(LOADS.iter().position(|load| load == name).expect("one of them"))
    });
    Measured::new(id, ours, "the least of three workloads; an idle engine serves what arrives").sensitive(loads)
}

/// Figures 10 and 11, workload A at 3 requests per second and at the lowest rate.
fn parts(swept: &Swept) -> Vec<Measured> {
    let first = |id, why, value: fn(&Runs) -> f64| swept.row(id, why, |set| set.first(value));
    let growth = |id, why, value: fn(&Runs) -> f64| {
        swept.row_of_rates(id, why, |set| vec![value(&set.loads[0]) / value(&set.calm)])
    };
    vec![
        growth(
            "tract.figure10.read-tract",
            "workload A, from the end of the write; writes and reads of both engines share the memory's 10.1 GB/s",
            |of| of.tract.decode_read_ms,
        ),
        growth("tract.figure10.read-lmcache", "workload A; from the end of the prompt", |of| of.lmcache.decode_read_ms),
        first("tract.figure10.write", AT_3, |of| of.tract.prefill_write_ms / of.lmcache.prefill_write_ms),
        first("tract.figure10.compute", AT_3, |of| of.tract.prefill_compute_ms / of.nixl.prefill_compute_ms),
        first(
            "tract.figure10.transfer",
            "reads of cache and network; the rest is waiting, computing and the first step",
            |of| {
                let transfers = of.lmcache.prefill_read_ms + of.lmcache.decode_read_ms;
                100.0 * transfers / of.lmcache.ttft_mean_ms
            },
        ),
        first("tract.figure11.prefill", BUSY, |of| of.tract.prefill_busy / of.lmcache.prefill_busy),
        first("tract.figure11.decode", BUSY, |of| of.tract.decode_busy / of.lmcache.decode_busy),
        first(
            "tract.figure11.rx",
            "bytes over the time of reads, waits for the link included: 10.1 GB/s of the memory, which both engines \
             share, 12.5 GB/s of the card",
            |of| of.tract.decode_rx / of.lmcache.decode_rx,
        ),
        Measured::not_testable(
            "tract.figure11.power",
            "needs the cards' power by use of their SMs, which no source gives",
        ),
    ]
}
