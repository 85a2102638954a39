//! Tables 3 and 8 and Figure 3, as the study of prefetching has them ([`crate::prefetch`]).
//!
//! The paper does not say whether attention is dense. With dense attention the schedule knows every
//! address; with sparse attention the query decides. Rows name which. What the queries of a real model
//! choose is not recorded here, and its drawn substitutes decide no row.

use crate::prefetch::{run_sparse, scale};
use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_policy::prefetch::DEPTHS;
use cenote_serving_sim::model::TierLink;
use cenote_serving_sim::tiers::dense::{Arrival, DenseOutcome, DenseSetup, simulate};
use cenote_serving_sim::tiers::sparse::{Depth, SparseOutcome, SparseSetup};

pub const EXPERIMENT: Experiment = Experiment {
    id: "speckv.prefetch",
    title: "prefetching, dense and sparse",
    covers: &[
        "speckv.table3",
        "speckv.table8",
        "speckv.figure2",
        "speckv.figure3",
        "speckv.s4-2.no-speculation",
        "speckv.s4-2.no-speculation-sparse",
        "speckv.eq9",
    ],
    is_quick: false,
    draws: false,
    run,
};

/// Shares of the working set in L1 that the paper leaves open. Its own L1 of 8 GB holds all of it.
const L1_SHARES: [f64; 3] = [0.1, 0.5, 0.8];
/// Shares of the link that the paper leaves open: one GPU's, and one of sixteen.
const LINKS: [f64; 2] = [2.0, 0.5];
const L1: &str = "share of pages in L1";
const LINK: &str = "link over the base";

const SPARSE: &str = "sparse attention needs the scores of a real model's queries; k counts tokens in the paper and quarters of a \
                      layer's chosen pages here. Beside: on drawn scores, an eighth of the pages chosen, a quarter of \
                      those in L1";
const DENSE: &str =
    "dense attention, batch of 32, a quarter of the working set in L1; the schedule knows all addresses";
const TOKENS: &str = "dense attention: the pages at positions + i that Algorithm 1 names are not written yet";
const MANY: &str = "the paper's is the latency of one copy; beside: that of copies which wait in one window of 16, on drawn \
                    scores";

fn run(context: &Context) -> Vec<Measured> {
    let (sparse, dense) = (Sparse::new(context.seed), DenseRuns::new());
    let mut rows = table_8(&sparse);
    rows.extend(table_3(&sparse, &dense));
    rows.extend(figure_3(&sparse, &dense));
    rows.push(Measured::not_testable(
        "speckv.figure2.accuracy",
        "needs a language model's tokens and the paper's net; `bench predict` has others of both",
    ));
    rows.push(Measured::not_testable(
        "speckv.figure2.order",
        "a top-k accuracy rises with k; one of k tokens ahead may fall, and the text says both",
    ));
    rows.push(Measured::not_testable(
        "speckv.eq9.depth",
        "k counts tokens in the paper and quarters of a layer's chosen pages here; `study prefetch` has the bandit's depths",
    ));
    rows
}

/// A tier whose link has `share` times the bandwidth.
fn scaled(mut tier: TierLink, share: f64) -> TierLink {
    tier.link.bytes_per_s = (tier.link.bytes_per_s as f64 * share) as u64;
    tier
}

/// Runs of sparse attention without prefetch and with each depth.
struct Sparse {
    none: SparseOutcome,
    depths: [SparseOutcome; DEPTHS.len()],
}

impl Sparse {
    fn new(seed: u64) -> Self {
        let run = |depth: Depth| run_sparse(&SparseSetup { depth, ..scale::sparse() }, seed);
        Self { none: run(Depth::None), depths: DEPTHS.map(|depth| run(Depth::Fixed(depth))) }
    }

    /// The paper's depth, k = 4.
    const fn four(&self) -> &SparseOutcome {
        &self.depths[2]
    }

    fn each(&self, value: fn(&SparseOutcome) -> f64) -> Vec<f64> {
        self.depths.iter().map(value).collect()
    }
}

/// Runs of dense attention: on demand, and staged.
struct Dense {
    demand: DenseOutcome,
    staged: DenseOutcome,
}

/// Runs of dense attention, and with other links and shares of the working set in L1.
struct DenseRuns {
    base: Dense,
    links: [Dense; LINKS.len()],
    shares: [Dense; L1_SHARES.len()],
}

impl DenseRuns {
    fn new() -> Self {
        let with = |change: &dyn Fn(DenseSetup) -> DenseSetup| {
            let run = |arrival: Arrival| simulate(&change(scale::dense(arrival)));
            Dense { demand: run(Arrival::OnDemand), staged: run(Arrival::Staged(3)) }
        };
        let links = LINKS.map(|share| with(&|setup| DenseSetup { tier: scaled(setup.tier, share), ..setup }));
        let shares = L1_SHARES.map(|share| {
            with(&|setup| DenseSetup { l1_pages: (setup.working_set() as f64 * share) as usize, ..setup })
        });
        Self { base: with(&|setup| setup), links, shares }
    }

    fn row(&self, id: &'static str, why: &'static str, value: impl Fn(&Dense) -> Vec<f64>) -> Measured {
        let ours = value(&self.base);
        let (links, shares) = (self.links.iter().map(&value).collect(), self.shares.iter().map(&value).collect());
        let links = Sensitivity::from(LINK, &ours, LINKS.map(|link| link.to_string()).to_vec(), links);
        let shares = Sensitivity::from(L1, &ours, L1_SHARES.map(|share| share.to_string()).to_vec(), shares);
        Measured::new(id, ours, why).sensitive(links).sensitive(shares)
    }
}

/// Values over that of k = 4.
fn relative(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| value / values[2]).collect()
}

fn table_8(runs: &Sparse) -> Vec<Measured> {
    let staged = scale::dense(Arrival::Staged(3));
    let useful = |depth: u32| {
        let (named, useful) = scale::token_predictor(&staged, depth);
        100.0 * useful as f64 / named.max(1) as f64
    };
    let beside = |id, values| Measured::beside(id, SPARSE, values);
    vec![
        beside("speckv.table8.hit-rate", runs.each(|o| 100.0 * o.hit_rate)),
        beside("speckv.table8.precision", runs.each(|o| 100.0 * o.precision)),
        beside("speckv.table8.throughput", relative(&runs.each(|o| o.tokens_per_s))),
        beside("speckv.table8.latency", relative(&runs.each(|o| o.step_ns as f64))),
        Measured::new("speckv.table8.precision-of-tokens", DEPTHS.map(useful).to_vec(), TOKENS)
            .fixed("whatever the hardware, a token's pages are written after it"),
    ]
}

fn table_3(sparse: &Sparse, dense: &DenseRuns) -> Vec<Measured> {
    let beside = |id, value: fn(&SparseOutcome) -> f64| Measured::beside(id, SPARSE, vec![value(sparse.four())]);
    let dense_percent =
        |id, value: fn(&DenseOutcome) -> f64| dense.row(id, DENSE, |of| vec![100.0 * value(&of.staged)]);
    let latency = |id, value: fn(&SparseOutcome) -> u64| Measured::beside(id, MANY, vec![value(sparse.four()) as f64]);
    vec![
        beside("speckv.table3.hit-rate", |o| 100.0 * o.hit_rate),
        dense_percent("speckv.table3.hit-rate-dense", |o| o.hit_rate),
        beside("speckv.table3.coverage", |o| 100.0 * o.coverage),
        beside("speckv.table3.precision", |o| 100.0 * o.precision),
        latency("speckv.table3.prefetch-latency", |o| o.prefetch_ns),
        latency("speckv.table3.synchronous-latency", |o| o.demand_ns),
        beside("speckv.table3.effective-latency", |o| {
            let ns = o.hit_rate * o.prefetch_ns as f64 + (1.0 - o.hit_rate) * o.demand_ns as f64;
            ns / o.demand_ns.max(1) as f64
        }),
        beside("speckv.table3.link-use", |o| 100.0 * o.utilization),
        dense_percent("speckv.table3.link-use-dense", |o| o.utilization),
        Measured::not_testable(
            "speckv.table3.fpga-memory-use",
            "counters of an FPGA's memory; behind one link no model here explains that much traffic (see table5)",
        ),
    ]
}

fn figure_3(sparse: &Sparse, dense: &DenseRuns) -> Vec<Measured> {
    let share = |stall_ns: u64, step_ns: u64| 100.0 * stall_ns as f64 / step_ns as f64;
    let dense_share = |of: &DenseOutcome| share(of.stall_ns, of.step_ns);
    let sparse_share = |of: &SparseOutcome| share(of.stall_ns, of.step_ns);
    let hidden = |with: u64, without: u64| 100.0 * (1.0 - with as f64 / without.max(1) as f64);
    let (none, four) = (&sparse.none, sparse.four());
    vec![
        dense.row("speckv.figure3.waiting", DENSE, |of| [of.demand, of.staged].iter().map(dense_share).collect()),
        Measured::beside("speckv.figure3.waiting-sparse", SPARSE, vec![sparse_share(none), sparse_share(four)]),
        dense.row("speckv.figure3.hidden", DENSE, |of| vec![hidden(of.staged.stall_ns, of.demand.stall_ns)]),
        Measured::beside("speckv.figure3.hidden-sparse", SPARSE, vec![hidden(four.stall_ns, none.stall_ns)]),
        dense.row("speckv.s4-2.no-speculation", DENSE, |of| vec![of.staged.tokens_per_s / of.demand.tokens_per_s]),
        Measured::beside("speckv.s4-2.no-speculation-sparse", SPARSE, vec![four.tokens_per_s / none.tokens_per_s]),
    ]
}
