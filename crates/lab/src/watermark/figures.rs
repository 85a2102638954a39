//! CPEN 511's Figures 5 to 10: swaps and throughput over the factor `a`, and over the average block
//! length.

use super::{CPEN_MODELS, cpen_setup};
use cenote_policy::Watermark;
use cenote_serving_sim::workload::{CPEN_PROMPTS, cpen};
use cenote_serving_sim::{Setup, simulate};
use serde::Serialize;

/// §VII-B: factors 0 to 12, in units of 0.2.
pub const FACTORS: std::ops::RangeInclusive<u32> = 0..=60;
/// §VII-C: thresholds from 1.8 to 7.5 in steps of 0.2, in thousandths. The last step is half as long.
pub fn thresholds() -> impl Iterator<Item = u32> {
    (1_800..7_500).step_by(200).chain([7_500])
}

/// Means over the repeats at one point.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The factor, or the threshold in blocks.
    pub x: f64,
    /// Blocks swapped out (Figures 5 and 8).
    pub swapped_blocks: f64,
    /// Requests swapped out (Figures 6 and 9).
    pub swaps: f64,
    /// Generated tokens per second (Figures 7 and 10).
    pub throughput: f64,
    /// Standard deviation of the throughput between repeats.
    pub throughput_deviation: f64,
}

/// One model's line in three figures.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// The model.
    pub model: String,
    /// Points by rising `x`.
    pub points: Vec<Point>,
}

impl Curve {
    /// Relative change from the first point to the last: of blocks swapped, and of throughput.
    #[must_use]
    pub fn change(&self) -> (f64, f64) {
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else { return (0.0, 0.0) };
        let change = |from: f64, to: f64| if from > 0.0 { to / from - 1.0 } else { 0.0 };
        (change(first.swapped_blocks, last.swapped_blocks), change(first.throughput, last.throughput))
    }

    /// Share of the steps between points at which more blocks were swapped than before; 0 for a
    /// line that never rises.
    #[must_use]
    pub fn rises(&self) -> f64 {
        let rises = self.points.windows(2).filter(|pair| pair[1].swapped_blocks > pair[0].swapped_blocks).count();
        rises as f64 / self.points.len().saturating_sub(1).max(1) as f64
    }
}

/// The data of all figures.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Figures 5 to 7.
    pub factor: Vec<Curve>,
    /// Figures 8 to 10 with the rule as printed: no admission while the average is above the
    /// threshold.
    pub stop_above: Vec<Curve>,
    /// Figures 8 to 10 with the inverse rule: no admission while the average is below the
    /// threshold.
    pub stop_below: Vec<Curve>,
}

/// What the paper leaves open about its runs.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Number of runs per point, and the seed of the first.
    pub repeats: u64,
    /// The first run's seed.
    pub seed: u64,
    /// Blocks of the GPU's memory over those assumed.
    pub blocks: f64,
    /// Answers' lengths over those assumed.
    pub answers: f64,
}

impl Open {
    /// The assumptions, with so many runs.
    #[must_use]
    pub const fn assumed(repeats: u64) -> Self {
        Self { repeats, seed: 1, blocks: 1.0, answers: 1.0 }
    }
}

/// A reading of one point: the watermark, and the most running requests if the reading bounds them.
type Reading = fn(f64) -> (Watermark, Option<f64>);

/// §VII-B: the factor.
#[must_use]
pub fn by_factor(factor: f64) -> (Watermark, Option<f64>) {
    (Watermark::OptFactor { factor_thousandths: (1e3 * factor).round() as u32 }, None)
}

fn by_average(threshold: f64, stop_below: bool) -> (Watermark, Option<f64>) {
    (Watermark::AverageLength { threshold_thousandths: (1e3 * threshold).round() as u32, stop_below }, None)
}

/// §VII-C's rule as printed.
#[must_use]
pub fn stop_above(threshold: f64) -> (Watermark, Option<f64>) {
    by_average(threshold, false)
}

/// The opposite rule.
#[must_use]
pub fn stop_below(threshold: f64) -> (Watermark, Option<f64>) {
    by_average(threshold, true)
}

/// §VII-C with all blocks of the cache as b, not those in use: its bound on b/N caps the requests N.
#[must_use]
pub fn cap(threshold: f64) -> (Watermark, Option<f64>) {
    (Watermark::Fixed { share_millionths: 0 }, Some(threshold))
}

/// The default watermark, whatever the point.
#[must_use]
pub fn fixed(_: f64) -> (Watermark, Option<f64>) {
    (Watermark::DEFAULT, None)
}

/// Simulates all points; calls `progress` after each point.
#[must_use]
pub fn figures(open: &Open, progress: &mut dyn FnMut()) -> Figures {
    let factors: Vec<f64> = FACTORS.map(|step| f64::from(step) / 5.0).collect();
    let thresholds: Vec<f64> = thresholds().map(|thousandths| f64::from(thousandths) / 1e3).collect();
    Figures {
        factor: curves(&factors, by_factor, open, progress),
        stop_above: curves(&thresholds, stop_above, open, progress),
        stop_below: curves(&thresholds, stop_below, open, progress),
    }
}

/// Simulates some points of all models by a reading; calls `progress` after each.
#[must_use]
pub fn curves(points: &[f64], reading: Reading, open: &Open, progress: &mut dyn FnMut()) -> Vec<Curve> {
    let each = CPEN_MODELS.iter();
    each.map(|&(model, blocks)| {
        let setup = cpen_setup(model, (f64::from(blocks) * open.blocks).round() as u32);
        let points = points.iter().map(|&x| point(&setup, x, reading(x), open, progress)).collect();
        Curve { model: model.to_owned(), points }
    })
    .collect()
}

fn point(
    setup: &Setup,
    x: f64,
    (watermark, average): (Watermark, Option<f64>),
    open: &Open,
    progress: &mut dyn FnMut(),
) -> Point {
    let cap = |average: f64| (f64::from(setup.l1_blocks) / average).max(1.0) as usize;
    let setup = Setup { watermark, max_num_seqs: average.map_or(setup.max_num_seqs, cap), ..setup.clone() };
    let run = |seed| simulate(&setup, &cpen(CPEN_PROMPTS, open.answers, seed), &mut |_| ()).expect("every prompt fits");
    let outcomes: Vec<_> = (open.seed..open.seed + open.repeats).map(run).collect();
    progress();
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / outcomes.len().max(1) as f64;
    let throughput = mean(&mut outcomes.iter().map(|outcome| outcome.throughput_tokens_per_s));
    let variance = mean(&mut outcomes.iter().map(|outcome| (outcome.throughput_tokens_per_s - throughput).powi(2)));
    Point {
        x,
        swapped_blocks: mean(&mut outcomes.iter().map(|outcome| outcome.swapped_out_blocks as f64)),
        swaps: mean(&mut outcomes.iter().map(|outcome| outcome.swaps as f64)),
        throughput,
        throughput_deviation: variance.sqrt(),
    }
}
