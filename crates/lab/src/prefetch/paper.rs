//! Figures of CXL-SpecKV beside ours, and a verdict for each.

use super::{Study, scale};
use serde::Serialize;
use std::fmt;

/// Whether a figure was found here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every value is within a tenth of the paper's.
    Reproduced,
    /// Every step along the figure goes the same way, and some value is farther than a tenth.
    DirectionOnly,
    /// Some step goes the other way, or a single value is farther than a tenth.
    Contradicted,
    /// It needs something that no run here has.
    NotTestable,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reproduced => "reproduced",
            Self::DirectionOnly => "direction only",
            Self::Contradicted => "contradicted",
            Self::NotTestable => "not testable",
        })
    }
}

/// Relative difference within which a value is reproduced.
const TOLERANCE: f64 = 0.1;
/// Relative change that counts as none.
const STILL: f64 = 0.002;

/// The verdict on a series of values.
#[must_use]
pub fn verdict(paper: &[f64], ours: &[f64]) -> Verdict {
    if ours.is_empty() || paper.len() != ours.len() {
        return Verdict::NotTestable;
    }
    let is_near = |(paper, ours): (&f64, &f64)| (ours - paper).abs() <= TOLERANCE * paper.abs();
    if paper.iter().zip(ours).all(is_near) {
        return Verdict::Reproduced;
    }
    let way = |pair: &[f64]| {
        let change = (pair[1] - pair[0]) / pair[0].abs().max(f64::MIN_POSITIVE);
        if change.abs() <= STILL { 0 } else { change.signum() as i8 }
    };
    let same = paper.windows(2).zip(ours.windows(2)).all(|(paper, ours)| way(paper) == way(ours));
    if paper.len() > 1 && same { Verdict::DirectionOnly } else { Verdict::Contradicted }
}

/// A figure.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Table or figure, and what it shows.
    pub figure: &'static str,
    /// `dense`, `sparse` or `arithmetic`.
    pub attention: &'static str,
    /// The paper's values.
    pub paper: Vec<f64>,
    /// Ours.
    pub ours: Vec<f64>,
    /// The verdict.
    pub verdict: Verdict,
}

fn row(figure: &'static str, attention: &'static str, paper: &[f64], ours: Vec<f64>) -> Row {
    Row { figure, attention, paper: paper.to_vec(), verdict: verdict(paper, &ours), ours }
}

/// Table 8, for k = 1, 2, 4, 8, 16.
const HIT_RATE: [f64; 5] = [87.2, 92.3, 94.7, 95.8, 96.4];
const PRECISION: [f64; 5] = [96.1, 93.5, 87.2, 78.3, 68.7];
const THROUGHPUT: [f64; 5] = [1_287.0, 1_426.0, 1_549.0, 1_573.0, 1_581.0];
const LATENCY_MS: [f64; 5] = [21.4, 20.2, 19.8, 19.6, 19.7];

/// Values over that of k = 4.
fn relative(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| value / values[2]).collect()
}

/// All figures.
#[must_use]
pub fn rows(study: &Study) -> Vec<Row> {
    let mut rows = table_8(study);
    rows.extend(table_3(study));
    rows.extend(figure_3(study));
    rows.push(row("Figure 2: top-4 accuracy of token prediction, %", "dense", &[95.0], Vec::new()));
    rows.extend(arithmetic());
    rows
}

fn table_8(study: &Study) -> Vec<Row> {
    let sparse: Vec<_> = study.sparse_depths[1..].iter().map(|row| row.outcome).collect();
    let dense: Vec<_> = study.dense_depths.iter().collect();
    let percent = |share: f64| 100.0 * share;
    vec![
        row("Table 8: hit rate over k, %", "sparse", &HIT_RATE, sparse.iter().map(|o| percent(o.hit_rate)).collect()),
        row(
            "Table 8: precision over k, %",
            "sparse",
            &PRECISION,
            sparse.iter().map(|o| percent(o.predictor_precision)).collect(),
        ),
        row(
            "Table 8: throughput over that of k = 4",
            "sparse",
            &relative(&THROUGHPUT),
            relative(&sparse.iter().map(|o| o.tokens_per_s).collect::<Vec<_>>()),
        ),
        row(
            "Table 8: latency over that of k = 4",
            "sparse",
            &relative(&LATENCY_MS),
            relative(&sparse.iter().map(|o| o.step_ns as f64).collect::<Vec<_>>()),
        ),
        row(
            "Table 8: precision of a token predictor over k, %",
            "dense",
            &PRECISION,
            dense.iter().map(|row| percent(row.useful as f64 / row.named.max(1) as f64)).collect(),
        ),
        row(
            "Table 8: throughput over that of k = 4",
            "dense",
            &relative(&THROUGHPUT),
            relative(&dense.iter().map(|row| row.outcome.tokens_per_s).collect::<Vec<_>>()),
        ),
    ]
}

fn table_3(study: &Study) -> Vec<Row> {
    let Some(four) = study.sparse_depths.iter().find(|row| row.name == "k = 4").map(|row| row.outcome) else {
        return Vec::new();
    };
    let Some(staged) = study.dense.iter().find(|row| row.name == "three buffers").map(|row| row.outcome) else {
        return Vec::new();
    };
    let effective = four.hit_rate * four.prefetch_ns as f64 + (1.0 - four.hit_rate) * four.demand_ns as f64;
    vec![
        row("Table 3: prefetch hit rate, %", "sparse", &[94.7], vec![100.0 * four.hit_rate]),
        row("Table 3: prefetch hit rate, %", "dense", &[94.7], vec![100.0 * staged.hit_rate]),
        row("Table 3: coverage, %", "sparse", &[96.3], vec![100.0 * four.coverage]),
        row("Table 3: precision, %", "sparse", &[87.2], vec![100.0 * four.predictor_precision]),
        row("Table 3: precision, %", "dense", &[87.2], vec![100.0 * staged.precision]),
        row("Table 3: prefetch latency, ns", "sparse", &[285.0], vec![four.prefetch_ns as f64]),
        row("Table 3: synchronous latency, ns", "sparse", &[1_850.0], vec![four.demand_ns as f64]),
        row(
            "Table 3: effective latency over synchronous",
            "sparse",
            &[383.0 / 1_850.0],
            vec![effective / four.demand_ns.max(1) as f64],
        ),
        row("Table 3: use of the link, %", "sparse", &[72.4], vec![100.0 * four.utilization]),
        row("Table 3: use of the link, %", "dense", &[72.4], vec![100.0 * staged.utilization]),
    ]
}

fn figure_3(study: &Study) -> Vec<Row> {
    let dense = |name: &str| study.dense.iter().find(|row| row.name == name).map(|row| row.outcome);
    let sparse = |name: &str| study.sparse_depths.iter().find(|row| row.name == name).map(|row| row.outcome);
    let mut rows = Vec::new();
    if let (Some(demand), Some(staged)) = (dense("on demand"), dense("three buffers")) {
        let share =
            |of: &cenote_serving_sim::tiers::dense::DenseOutcome| 100.0 * of.stall_ns as f64 / of.step_ns as f64;
        rows.push(row(
            "Figure 3: waiting, without and with prefetch, %",
            "dense",
            &[37.0, 10.6],
            vec![share(&demand), share(&staged)],
        ));
        let hidden = 100.0 * (1.0 - staged.stall_ns as f64 / demand.stall_ns.max(1) as f64);
        rows.push(row("Figure 3: latency hidden by prefetch, %", "dense", &[76.0], vec![hidden]));
        let gain = staged.tokens_per_s / demand.tokens_per_s;
        rows.push(row("§4.2: throughput over no speculation", "dense", &[1.85], vec![gain]));
    }
    if let (Some(none), Some(four)) = (sparse("no prefetch"), sparse("k = 4")) {
        let share =
            |of: &cenote_serving_sim::tiers::sparse::SparseOutcome| 100.0 * of.stall_ns as f64 / of.step_ns as f64;
        rows.push(row(
            "Figure 3: waiting, without and with prefetch, %",
            "sparse",
            &[37.0, 10.6],
            vec![share(&none), share(&four)],
        ));
        let hidden = 100.0 * (1.0 - four.stall_ns as f64 / none.stall_ns.max(1) as f64);
        rows.push(row("Figure 3: latency hidden by prefetch, %", "sparse", &[76.0], vec![hidden]));
        rows.push(row(
            "§4.2: throughput over no speculation",
            "sparse",
            &[1.85],
            vec![four.tokens_per_s / none.tokens_per_s],
        ));
    }
    rows
}

/// What the paper's other numbers make of a number.
fn arithmetic() -> Vec<Row> {
    const GB: f64 = 1e9;
    let formula = 2.0 * 80.0 * 32.0 * 2_048.0 * 8_192.0 * 2.0 / GB;
    // Two LSTM layers of 128 units on 64 inputs, without the embedding of a vocabulary.
    let lstm = 4.0 * 128.0 * ((64.0 + 128.0 + 1.0) + (128.0 + 128.0 + 1.0)) / 1_000.0;
    let effective = 0.947 * 285.0 + 0.053 * 1_850.0;
    let batches: Vec<f64> = THROUGHPUT.iter().zip(LATENCY_MS).map(|(tokens, ms)| tokens * ms / 1e3).collect();
    vec![
        row("§3.1: KV of LLaMA-2 70B, GB, by its formula", "arithmetic", &[640.0], vec![formula]),
        row(
            "§3.3.1: KV of the chatbot beyond an L1 of 8 GB a GPU, GB",
            "arithmetic",
            &[1.0],
            vec![(scale::chatbot_kv_bytes() as f64 / GB - 64.0).max(0.0)],
        ),
        row("§3.4.1: thousands of LSTM parameters", "arithmetic", &[128.0], vec![lstm]),
        row("Table 3: effective latency, ns, by its hit rate", "arithmetic", &[383.0], vec![effective]),
        row("Table 8: batch = throughput × latency, of 64", "arithmetic", &[64.0; 5], batches),
    ]
}
