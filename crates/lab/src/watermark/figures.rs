//! CPEN 511's Figures 5 to 10: swaps and throughput over the factor `a`, and over the average block
//! length.

use super::{CPEN_MODELS, cpen_setup};
use cenote_policy::Watermark;
use cenote_serving_sim::workload::{CPEN_PROMPTS, cpen};
use cenote_serving_sim::{Setup, simulate};
use serde::Serialize;

/// §VII-B: factors 0 to 12, in units of 0.2.
pub const FACTORS: std::ops::RangeInclusive<u32> = 0..=60;
/// §VII-C: thresholds from 1.8 to 7.5 in steps of 0.2, in thousandths.
pub fn thresholds() -> impl Iterator<Item = u32> {
    (1_800..=7_500).step_by(200)
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

/// Simulates all points with `repeats` seeds each; calls `progress` after each point.
#[must_use]
pub fn figures(repeats: u64, progress: &mut dyn FnMut()) -> Figures {
    let mut curves = |points: &[(f64, Watermark)]| -> Vec<Curve> {
        CPEN_MODELS.iter().map(|&(model, blocks)| curve(model, blocks, points, repeats, progress)).collect()
    };
    let factor = |step: u32| (f64::from(step) / 5.0, Watermark::OptFactor { factor_thousandths: 200 * step });
    let average = |stop_below: bool| {
        let point = move |threshold_thousandths: u32| {
            (f64::from(threshold_thousandths) / 1e3, Watermark::AverageLength { threshold_thousandths, stop_below })
        };
        thresholds().map(point).collect::<Vec<_>>()
    };
    Figures {
        factor: curves(&FACTORS.map(factor).collect::<Vec<_>>()),
        stop_above: curves(&average(false)),
        stop_below: curves(&average(true)),
    }
}

fn curve(model: &str, blocks: u32, points: &[(f64, Watermark)], repeats: u64, progress: &mut dyn FnMut()) -> Curve {
    let mut point = |(x, watermark): &(f64, Watermark)| {
        let setup = Setup { watermark: watermark.clone(), ..cpen_setup(model, blocks) };
        let run = |seed| simulate(&setup, &cpen(CPEN_PROMPTS, 1.0, seed), &mut |_| ()).expect("every prompt fits");
        let outcomes: Vec<_> = (1..=repeats).map(run).collect();
        progress();
        let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / outcomes.len().max(1) as f64;
        let throughput = mean(&mut outcomes.iter().map(|outcome| outcome.throughput_tokens_per_s));
        let variance = mean(&mut outcomes.iter().map(|outcome| (outcome.throughput_tokens_per_s - throughput).powi(2)));
        Point {
            x: *x,
            swapped_blocks: mean(&mut outcomes.iter().map(|outcome| outcome.swapped_out_blocks as f64)),
            swaps: mean(&mut outcomes.iter().map(|outcome| outcome.swaps as f64)),
            throughput,
            throughput_deviation: variance.sqrt(),
        }
    };
    Curve { model: model.to_owned(), points: points.iter().map(&mut point).collect() }
}
