//! Tables 3 and 8 and Figure 3, from the study of prefetching ([`crate::prefetch`]).
//!
//! The paper does not say whether attention is dense. With dense attention the schedule knows every
//! address; with sparse attention the query decides. Both are measured, and rows name which.

use crate::prefetch::{Study, run_sparse, scale, study};
use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_policy::prefetch::DEPTHS;
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
    run,
};

/// Shares of the working set in L1 that the paper leaves open.
const L1_SHARES: [f64; 3] = [0.1, 0.5, 0.8];
/// Shares of the link that the paper leaves open: one GPU's, and one of sixteen.
const LINKS: [f64; 2] = [2.0, 0.5];

const SPARSE: &str = "sparse attention on drawn scores: an eighth of the pages chosen, a quarter of those in L1";
const DENSE: &str =
    "dense attention, batch of 32, a quarter of the working set in L1; the schedule knows all addresses";
const TOKENS: &str = "dense attention: the pages at positions + i that Algorithm 1 names are not written yet";
const MANY: &str = "many copies wait in one window of 16; the paper's are those of one copy";

fn run(context: &Context) -> Vec<Measured> {
    let study = study(context.seed, &mut || ());
    let mut rows = table_8(&study);
    rows.extend(table_3(&study));
    rows.extend(figure_3(&study, context.seed));
    rows.push(Measured::not_testable(
        "speckv.figure2.accuracy",
        "needs a language model's tokens and the paper's net; `bench predict` has others of both",
    ));
    let learned = study.learned.last().expect("the study learns").outcome;
    let found = "depth that the product's bandit settles on, sparse attention";
    rows.push(Measured::new("speckv.eq9.depth", vec![learned.mean_depth], found));
    rows
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

fn table_8(study: &Study) -> Vec<Measured> {
    let sparse: Vec<SparseOutcome> = DEPTHS.iter().map(|depth| *sparse_of(study, &format!("k = {depth}"))).collect();
    let of = |value: fn(&SparseOutcome) -> f64| sparse.iter().map(value).collect::<Vec<f64>>();
    let useful = |row: &crate::prefetch::DenseRow| 100.0 * row.useful as f64 / row.named.max(1) as f64;
    let dense = |value: fn(&DenseOutcome) -> f64| {
        study.dense_depths.iter().map(|row| value(&row.outcome)).collect::<Vec<f64>>()
    };
    vec![
        Measured::new("speckv.table8.hit-rate", of(|o| 100.0 * o.hit_rate), SPARSE),
        Measured::new("speckv.table8.precision", of(|o| 100.0 * o.predictor_precision), SPARSE),
        Measured::new("speckv.table8.throughput", relative(&of(|o| o.tokens_per_s)), SPARSE),
        Measured::new("speckv.table8.latency", relative(&of(|o| o.step_ns as f64)), SPARSE),
        Measured::new("speckv.table8.precision-of-tokens", study.dense_depths.iter().map(useful).collect(), TOKENS),
        Measured::new("speckv.table8.throughput-dense", relative(&dense(|o| o.tokens_per_s)), TOKENS),
    ]
}

fn table_3(study: &Study) -> Vec<Measured> {
    let four = sparse_of(study, "k = 4");
    let staged = dense_of(study, "three buffers");
    let effective = four.hit_rate * four.prefetch_ns as f64 + (1.0 - four.hit_rate) * four.demand_ns as f64;
    let percent = |share: f64| vec![100.0 * share];
    let settings = |value: fn(&SparseOutcome) -> f64| -> (Vec<String>, Vec<Vec<f64>>) {
        let rows = study.predictors.iter();
        rows.map(|row| (row.name.clone(), vec![value(&row.outcome)])).unzip()
    };
    let by_predictor = |base: f64, value: fn(&SparseOutcome) -> f64| {
        let (names, ours) = settings(value);
        Sensitivity::from("predictor", &[base], names, ours)
    };
    vec![
        Measured::new("speckv.table3.hit-rate", percent(four.hit_rate), SPARSE)
            .sensitive(by_predictor(100.0 * four.hit_rate, |o| 100.0 * o.hit_rate)),
        Measured::new("speckv.table3.hit-rate-dense", percent(staged.hit_rate), DENSE)
            .sensitive(l1_shares(&[100.0 * staged.hit_rate], |o| vec![100.0 * o.hit_rate])),
        Measured::new("speckv.table3.coverage", percent(four.coverage), SPARSE)
            .sensitive(by_predictor(100.0 * four.coverage, |o| 100.0 * o.coverage)),
        Measured::new("speckv.table3.precision", percent(four.predictor_precision), SPARSE)
            .sensitive(by_predictor(100.0 * four.predictor_precision, |o| 100.0 * o.predictor_precision)),
        Measured::new("speckv.table3.prefetch-latency", vec![four.prefetch_ns as f64], MANY),
        Measured::new("speckv.table3.synchronous-latency", vec![four.demand_ns as f64], MANY),
        Measured::new(
            "speckv.table3.effective-latency",
            vec![effective / four.demand_ns.max(1) as f64],
            "hits and misses weighted by the measured hit rate, sparse attention",
        ),
        Measured::new("speckv.table3.link-use", percent(four.utilization), SPARSE),
        Measured::new("speckv.table3.link-use-dense", percent(staged.utilization), DENSE)
            .sensitive(l1_shares(&[100.0 * staged.utilization], |o| vec![100.0 * o.utilization])),
        Measured::not_testable(
            "speckv.table3.fpga-memory-use",
            "counters of an FPGA's memory; behind one link no model here explains that much traffic (see table5)",
        ),
    ]
}

/// The staged batch with other shares of its pages in L1.
fn l1_shares(base: &[f64], value: fn(&DenseOutcome) -> Vec<f64>) -> Sensitivity {
    let setup = scale::dense(Arrival::Staged(3));
    let run = |share: &f64| {
        let l1_pages = (setup.working_set() as f64 * share) as usize;
        value(&simulate(&DenseSetup { l1_pages, ..setup }))
    };
    Sensitivity::of("share of pages in L1", base, &L1_SHARES, run)
}

fn figure_3(study: &Study, seed: u64) -> Vec<Measured> {
    let (all, demand, staged) =
        (dense_of(study, "everything in L1"), dense_of(study, "on demand"), dense_of(study, "three buffers"));
    let (none, four) = (sparse_of(study, "no prefetch"), sparse_of(study, "k = 4"));
    let dense_share = |of: &DenseOutcome| 100.0 * of.stall_ns as f64 / of.step_ns as f64;
    let sparse_share = |of: &SparseOutcome| 100.0 * of.stall_ns as f64 / of.step_ns as f64;
    let hidden = |with: u64, without: u64| 100.0 * (1.0 - with as f64 / without.max(1) as f64);
    let gain = vec![staged.tokens_per_s / demand.tokens_per_s];
    let sparse_gain = vec![four.tokens_per_s / none.tokens_per_s];
    let with_link = |share: f64| {
        let mut setup = scale::sparse();
        setup.tier.link.bytes_per_s = (setup.tier.link.bytes_per_s as f64 * share) as u64;
        [Depth::None, Depth::Fixed(4)].map(|depth| run_sparse(&SparseSetup { depth, ..setup }, seed))
    };
    let linked = LINKS.map(with_link);
    let links = |base: &[f64], of: &dyn Fn(&[SparseOutcome; 2]) -> f64| {
        let settings = LINKS.map(|link| link.to_string()).to_vec();
        Sensitivity::from("link over the base", base, settings, linked.iter().map(|both| vec![of(both)]).collect())
    };
    let sparse_hidden = vec![hidden(four.stall_ns, none.stall_ns)];
    let dense_gain = |l1: &f64| {
        let of = |arrival: Arrival| {
            let setup = scale::dense(arrival);
            simulate(&DenseSetup { l1_pages: (setup.working_set() as f64 * l1) as usize, ..setup }).tokens_per_s
        };
        vec![of(Arrival::Staged(3)) / of(Arrival::OnDemand)]
    };
    vec![
        Measured::new(
            "speckv.figure3.waiting",
            vec![dense_share(all), dense_share(demand), dense_share(staged)],
            "GPU only waits for no copy here; the paper counts its reads of local memory (1.2 ms)",
        ),
        Measured::new("speckv.figure3.waiting-sparse", vec![sparse_share(none), sparse_share(four)], SPARSE),
        Measured::new("speckv.figure3.hidden", vec![hidden(staged.stall_ns, demand.stall_ns)], DENSE),
        Measured::new("speckv.figure3.hidden-sparse", sparse_hidden.clone(), SPARSE)
            .sensitive(links(&sparse_hidden, &|[none, four]| hidden(four.stall_ns, none.stall_ns))),
        Measured::new("speckv.s4-2.no-speculation", gain.clone(), DENSE).sensitive(Sensitivity::of(
            "share of pages in L1",
            &gain,
            &L1_SHARES,
            dense_gain,
        )),
        Measured::new("speckv.s4-2.no-speculation-sparse", sparse_gain.clone(), SPARSE)
            .sensitive(links(&sparse_gain, &|[none, four]| four.tokens_per_s / none.tokens_per_s)),
    ]
}
