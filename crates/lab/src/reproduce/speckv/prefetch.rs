//! Tables 3 and 8 and Figure 3, from the study of prefetching ([`crate::prefetch`]).
//!
//! The paper does not say whether attention is dense. With dense attention the schedule knows every
//! address; with sparse attention the query decides. Both are measured, and rows name which.

use crate::prefetch::{Study, run_sparse_on, scale, study};
use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_policy::prefetch::DEPTHS;
use cenote_serving_sim::model::TierLink;
use cenote_serving_sim::tiers::dense::{Arrival, DenseOutcome, DenseSetup, simulate};
use cenote_serving_sim::tiers::sparse::{Depth, ScoreModel, SparseOutcome, SparseSetup};

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
    run,
};

/// Shares of the working set in L1 that the paper leaves open.
const L1_SHARES: [f64; 3] = [0.1, 0.5, 0.8];
/// Shares of the link that the paper leaves open: one GPU's, and one of sixteen.
const LINKS: [f64; 2] = [2.0, 0.5];
const L1: &str = "share of pages in L1";
const LINK: &str = "link over the base";
/// Shares of a page's relevance that stay from step to step: the drawn scores' other than the usual 0.98.
const MEMORIES: [f32; 2] = [0.9, 1.0];

const SPARSE: &str = "sparse attention on drawn scores: an eighth of the pages chosen, a quarter of those in L1; k counts \
                      quarters of the pages that a layer chooses, not tokens";
const DENSE: &str =
    "dense attention, batch of 32, a quarter of the working set in L1; the schedule knows all addresses";
const TOKENS: &str = "dense attention: the pages at positions + i that Algorithm 1 names are not written yet";
/// Share of the prefetched pages that were read before they left the buffer.
const PRECISION: fn(&SparseOutcome) -> f64 = |outcome| 100.0 * outcome.precision;
const MANY: &str = "many copies wait in one window of 16; the paper's are those of one copy";

fn run(context: &Context) -> Vec<Measured> {
    let study = study(context.seed, &mut || ());
    let (sparse, dense) = (SparseRuns::new(&study, context.seed), DenseRuns::new(&study));
    let mut rows = table_8(&study, &sparse);
    rows.extend(table_3(&study, &sparse, &dense));
    rows.extend(figure_3(&sparse, &dense));
    rows.push(Measured::not_testable(
        "speckv.figure2.accuracy",
        "needs a language model's tokens and the paper's net; `bench predict` has others of both",
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
    fn new(setup: &SparseSetup, scores: ScoreModel, seed: u64) -> Self {
        let run = |depth: Depth| run_sparse_on(&SparseSetup { depth, ..*setup }, scores, seed);
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

/// Runs of sparse attention, and with other links and scores.
struct SparseRuns {
    base: Sparse,
    links: [Sparse; LINKS.len()],
    memories: [Sparse; MEMORIES.len()],
}

impl SparseRuns {
    fn new(study: &Study, seed: u64) -> Self {
        let setup = scale::sparse();
        let with_link = |share: f64| {
            Sparse::new(&SparseSetup { tier: scaled(setup.tier, share), ..setup }, ScoreModel::default(), seed)
        };
        let with_memory = |memory: f32| Sparse::new(&setup, ScoreModel { memory, ..ScoreModel::default() }, seed);
        let base = Sparse {
            none: *sparse_of(study, "no prefetch"),
            depths: DEPTHS.map(|depth| *sparse_of(study, &format!("k = {depth}"))),
        };
        Self { base, links: LINKS.map(with_link), memories: MEMORIES.map(with_memory) }
    }

    fn row(&self, id: &'static str, why: &'static str, value: impl Fn(&Sparse) -> Vec<f64>) -> Measured {
        let ours = value(&self.base);
        let links = self.links.iter().map(&value).collect();
        let links = Sensitivity::from(LINK, &ours, LINKS.map(|link| link.to_string()).to_vec(), links);
        let memories = self.memories.iter().map(&value).collect();
        let settings = MEMORIES.map(|memory| memory.to_string()).to_vec();
        let memories = Sensitivity::from("share of relevance that stays", &ours, settings, memories);
        Measured::new(id, ours, why).sensitive(links).sensitive(memories)
    }
}

/// Runs of dense attention: everything in L1, on demand, and staged.
struct Dense {
    all: DenseOutcome,
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
    fn new(study: &Study) -> Self {
        let base = Dense {
            all: *dense_of(study, "everything in L1"),
            demand: *dense_of(study, "on demand"),
            staged: *dense_of(study, "three buffers"),
        };
        // With everything in L1 neither its share nor the link is used.
        let with = |change: &dyn Fn(DenseSetup) -> DenseSetup| {
            let run = |arrival: Arrival| simulate(&change(scale::dense(arrival)));
            Dense { demand: run(Arrival::OnDemand), staged: run(Arrival::Staged(3)), ..base }
        };
        let links = LINKS.map(|share| with(&|setup| DenseSetup { tier: scaled(setup.tier, share), ..setup }));
        let shares = L1_SHARES.map(|share| {
            with(&|setup| DenseSetup { l1_pages: (setup.working_set() as f64 * share) as usize, ..setup })
        });
        Self { base, links, shares }
    }

    fn row(&self, id: &'static str, why: &'static str, value: impl Fn(&Dense) -> Vec<f64>) -> Measured {
        let ours = value(&self.base);
        let (links, shares) = (self.links.iter().map(&value).collect(), self.shares.iter().map(&value).collect());
        let links = Sensitivity::from(LINK, &ours, LINKS.map(|link| link.to_string()).to_vec(), links);
        let shares = Sensitivity::from(L1, &ours, L1_SHARES.map(|share| share.to_string()).to_vec(), shares);
        Measured::new(id, ours, why).sensitive(links).sensitive(shares)
    }
}

fn dense_of<'a>(study: &'a Study, name: &str) -> &'a DenseOutcome {
    &study.dense.iter().find(|row| row.name == name).expect("the study has it").outcome
}

fn sparse_of<'a>(study: &'a Study, name: &str) -> &'a SparseOutcome {
    &study.sparse_depths.iter().find(|row| row.name == name).expect("the study has it").outcome
}

/// Values over that of k = 4.
fn relative(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| value / values[2]).collect()
}

fn table_8(study: &Study, runs: &SparseRuns) -> Vec<Measured> {
    let useful = |row: &crate::prefetch::DenseRow| 100.0 * row.useful as f64 / row.named.max(1) as f64;
    let dense = study.dense_depths.iter().map(|row| row.outcome.tokens_per_s).collect::<Vec<f64>>();
    vec![
        runs.row("speckv.table8.hit-rate", SPARSE, |of| of.each(|o| 100.0 * o.hit_rate)),
        runs.row("speckv.table8.precision", SPARSE, |of| of.each(PRECISION)),
        runs.row("speckv.table8.throughput", SPARSE, |of| relative(&of.each(|o| o.tokens_per_s))),
        runs.row("speckv.table8.latency", SPARSE, |of| relative(&of.each(|o| o.step_ns as f64))),
        Measured::new("speckv.table8.precision-of-tokens", study.dense_depths.iter().map(useful).collect(), TOKENS)
            .fixed("whatever the hardware, a token's pages are written after it"),
        Measured::new("speckv.table8.throughput-dense", relative(&dense), TOKENS)
            .fixed("no page is fetched ahead with any k, so all runs are alike"),
    ]
}

fn table_3(study: &Study, sparse: &SparseRuns, dense: &DenseRuns) -> Vec<Measured> {
    let percent = |id, value: fn(&SparseOutcome) -> f64| {
        let base = [value(sparse.base.four())];
        let rows = study.predictors.iter();
        let (names, ours) = rows.map(|row| (row.name.clone(), vec![value(&row.outcome)])).unzip();
        let predictors = Sensitivity::from("predictor", &base, names, ours);
        sparse.row(id, SPARSE, |of| vec![value(of.four())]).sensitive(predictors)
    };
    let dense_percent =
        |id, value: fn(&DenseOutcome) -> f64| dense.row(id, DENSE, |of| vec![100.0 * value(&of.staged)]);
    let effective = |of: &SparseOutcome| {
        let ns = of.hit_rate * of.prefetch_ns as f64 + (1.0 - of.hit_rate) * of.demand_ns as f64;
        ns / of.demand_ns.max(1) as f64
    };
    vec![
        percent("speckv.table3.hit-rate", |o| 100.0 * o.hit_rate),
        dense_percent("speckv.table3.hit-rate-dense", |o| o.hit_rate),
        percent("speckv.table3.coverage", |o| 100.0 * o.coverage),
        percent("speckv.table3.precision", PRECISION),
        sparse.row("speckv.table3.prefetch-latency", MANY, |of| vec![of.four().prefetch_ns as f64]),
        sparse.row("speckv.table3.synchronous-latency", MANY, |of| vec![of.four().demand_ns as f64]),
        sparse.row(
            "speckv.table3.effective-latency",
            "hits and misses weighted by the measured hit rate, sparse attention",
            |of| vec![effective(of.four())],
        ),
        sparse.row("speckv.table3.link-use", SPARSE, |of| vec![100.0 * of.four().utilization]),
        dense_percent("speckv.table3.link-use-dense", |o| o.utilization),
        Measured::not_testable(
            "speckv.table3.fpga-memory-use",
            "counters of an FPGA's memory; behind one link no model here explains that much traffic (see table5)",
        ),
    ]
}

fn figure_3(sparse: &SparseRuns, dense: &DenseRuns) -> Vec<Measured> {
    let share = |stall_ns: u64, step_ns: u64| 100.0 * stall_ns as f64 / step_ns as f64;
    let dense_share = |of: &DenseOutcome| share(of.stall_ns, of.step_ns);
    let sparse_share = |of: &SparseOutcome| share(of.stall_ns, of.step_ns);
    let hidden = |with: u64, without: u64| 100.0 * (1.0 - with as f64 / without.max(1) as f64);
    vec![
        dense.row(
            "speckv.figure3.waiting",
            "GPU only waits for no copy here; the paper counts its reads of local memory (1.2 ms)",
            |of| [of.all, of.demand, of.staged].iter().map(dense_share).collect(),
        ),
        sparse.row("speckv.figure3.waiting-sparse", SPARSE, |of| vec![sparse_share(&of.none), sparse_share(of.four())]),
        dense.row("speckv.figure3.hidden", DENSE, |of| vec![hidden(of.staged.stall_ns, of.demand.stall_ns)]),
        sparse.row("speckv.figure3.hidden-sparse", SPARSE, |of| vec![hidden(of.four().stall_ns, of.none.stall_ns)]),
        dense.row("speckv.s4-2.no-speculation", DENSE, |of| vec![of.staged.tokens_per_s / of.demand.tokens_per_s]),
        sparse
            .row("speckv.s4-2.no-speculation-sparse", SPARSE, |of| vec![of.four().tokens_per_s / of.none.tokens_per_s]),
    ]
}
