//! Studies prefetching at the scale of CXL-SpecKV: its Tables 3 and 8 and its Figure 3, for dense and
//! for sparse attention, with the policies of the product on the simulator's devices.
//!
//! Inputs are shapes, devices and workloads ([`scale`]); what the paper does not say is an assumption
//! there. [`crate::reproduce`] compares the results with the paper's figures.

pub mod adapt;
pub mod scale;
pub mod tiers;

use cenote_policy::choice::ChoiceKind;
use cenote_policy::prefetch::{DEPTHS, ThrottleConfig};
use cenote_serving_sim::tiers::dense::{self, Arrival, DenseOutcome, DenseSetup, FetchOrder, Placement};
use cenote_serving_sim::tiers::sparse::{self, Depth, DrawnScores, ScoreModel, SparseOutcome, SparseSetup};
use serde::Serialize;

/// A run with dense attention.
#[derive(Clone, Debug, Serialize)]
pub struct DenseRow {
    /// What runs.
    pub name: String,
    /// Depth of the token predictor beside the schedule, if any.
    pub depth: Option<u32>,
    /// Pages that the token predictor named for a step.
    pub named: u64,
    /// Of them, pages that the next step reads from beyond L1.
    pub useful: u64,
    /// The run.
    pub outcome: DenseOutcome,
}

/// A run with sparse attention.
#[derive(Clone, Debug, Serialize)]
pub struct SparseRow {
    /// What runs.
    pub name: String,
    /// The run.
    pub outcome: SparseOutcome,
}

/// All runs of the study.
#[derive(Clone, Debug, Serialize)]
pub struct Study {
    /// Dense: everything in L1, on demand, staged.
    pub dense: Vec<DenseRow>,
    /// Dense: the token predictor's depth.
    pub dense_depths: Vec<DenseRow>,
    /// Dense: layouts of a tier of eight channels.
    pub placements: Vec<DenseRow>,
    /// Sparse: no prefetch, and the depth of the averaging predictor.
    pub sparse_depths: Vec<SparseRow>,
    /// Sparse: predictors at one whole choice.
    pub predictors: Vec<SparseRow>,
    /// Sparse: depth by eq. 9 and throttle by eq. 7.
    pub learned: Vec<SparseRow>,
}

/// Latest tokens that stay in L1 if KV is allocated beyond it first: §3.2 names 128 to 256.
const NEAR: [u32; 2] = [128, 256];

/// Number of runs, for a progress bar.
#[must_use]
pub const fn runs() -> u64 {
    (4 + DEPTHS.len() + 2 * Placement::ALL.len() + 1 + DEPTHS.len() + ChoiceKind::ALL.len() + 2) as u64
}

/// Runs everything. Calls `progress` after each run.
#[must_use]
pub fn study(seed: u64, progress: &mut dyn FnMut()) -> Study {
    let mut dense = |name: &str, setup: &DenseSetup, depth: Option<u32>| {
        let (named, useful) = depth.map_or((0, 0), |depth| scale::token_predictor(setup, depth));
        let row = DenseRow { name: name.to_owned(), depth, named, useful, outcome: dense::simulate(setup) };
        progress();
        row
    };
    let staged = scale::dense(Arrival::Staged(3));
    let systems = vec![
        dense("everything in L1", &DenseSetup { l1_pages: staged.working_set(), ..staged }, None),
        dense("on demand", &scale::dense(Arrival::OnDemand), None),
        dense("two buffers", &scale::dense(Arrival::Staged(2)), None),
        dense("three buffers", &staged, None),
    ];
    let dense_depths =
        DEPTHS.map(|depth| dense(&format!("token predictor, k = {depth}"), &staged, Some(depth))).to_vec();
    let orders = [(FetchOrder::ByRequest, "by request"), (FetchOrder::Interleaved, "interleaved")];
    let placements = Placement::ALL
        .into_iter()
        .flat_map(|placement| orders.map(|(order, name)| (placement, order, name)))
        .map(|(placement, order, name)| {
            let setup = DenseSetup { placement, order, ..scale::channels(staged) };
            dense(&format!("{placement}, {name}"), &setup, None)
        })
        .collect();
    let mut sparse = |name: String, setup: &SparseSetup| {
        let outcome = run_sparse(setup, seed);
        progress();
        SparseRow { name, outcome }
    };
    let base = scale::sparse();
    let at = |depth: u32| SparseSetup { depth: Depth::Fixed(depth), ..base };
    let mut sparse_depths = vec![sparse("no prefetch".to_owned(), &SparseSetup { depth: Depth::None, ..base })];
    sparse_depths.extend(DEPTHS.map(|depth| sparse(format!("k = {depth}"), &at(depth))));
    let predictors = ChoiceKind::ALL.map(|kind| sparse(kind.to_string(), &SparseSetup { kind, ..at(4) })).to_vec();
    let learned = [("eq. 7 as printed", ThrottleConfig::AS_PRINTED), ("with recovery", ThrottleConfig::default())]
        .map(|(name, config)| sparse(name.to_owned(), &SparseSetup { depth: Depth::Learned(config), ..base }))
        .to_vec();
    Study { dense: systems, dense_depths, placements, sparse_depths, predictors, learned }
}

/// Dense attention to KV that is allocated beyond L1 first, beside the same requests with all of it in L1.
#[must_use]
pub fn far_first() -> Vec<DenseRow> {
    let mut rows = Vec::new();
    for tokens in [scale::CHATBOT_TOKENS, scale::CONTEXT_TOKENS] {
        for near in NEAR.into_iter().chain([tokens]) {
            let share = if near == tokens { "all".to_owned() } else { format!("the latest {near}") };
            let outcome = dense::simulate(&scale::far_first(tokens, near));
            let name = format!("{tokens} tokens, {share} in L1");
            rows.push(DenseRow { name, depth: None, named: 0, useful: 0, outcome });
        }
    }
    rows
}

/// Runs a sparse setup on drawn scores.
#[must_use]
pub fn run_sparse(setup: &SparseSetup, seed: u64) -> SparseOutcome {
    run_sparse_on(setup, ScoreModel::default(), seed)
}

/// Runs a sparse setup on scores of another model.
#[must_use]
pub fn run_sparse_on(setup: &SparseSetup, model: ScoreModel, seed: u64) -> SparseOutcome {
    let mut scores = DrawnScores::new(model, setup.shape, setup.requests, scale::CONTEXT_PAGES, seed);
    sparse::simulate(setup, &mut scores)
}

#[cfg(test)]
mod tests;
