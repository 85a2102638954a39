//! Figures 5 to 10, from the study of watermarks ([`crate::watermark`]).

use crate::reproduce::row::Measured;
use crate::reproduce::{Context, Experiment};
use crate::watermark::{Curve, Point, figures};

pub const EXPERIMENT: Experiment = Experiment {
    id: "cpen.watermarks",
    title: "watermarks by factor and by average length",
    covers: &["cpen.figure5", "cpen.figure6", "cpen.figure7", "cpen.figure8", "cpen.figure9", "cpen.figure10"],
    is_quick: false,
    run,
};

/// §VII-A: "for 10 times".
const REPEATS: u64 = 10;
/// Models before this one are the small ones; this one is opt-2.7b, the next DeepSeek's.
const LARGE: usize = 2;
/// The threshold at which the paper sees a rise.
const RISE_AT: f64 = 3.6;

const SETUP: &str = "ten seeds; an A6000 and 500, 300, 150 and 400 blocks are ours";
const PRINTED: &str = "no admission while the average is above the threshold";
const OPPOSITE: &str = "no admission while the average is below the threshold";
const RISE: &str = "opposite rule; a simulator knows the model by its sizes only";

fn last_over_first(curves: &[Curve], value: fn(&Point) -> f64) -> Vec<f64> {
    curves.iter().map(|curve| ratio(curve, curve.points.len() - 1, value)).collect()
}

/// Over the first point. Fewer swaps than one there count as one.
fn ratio(curve: &Curve, at: usize, value: fn(&Point) -> f64) -> f64 {
    value(&curve.points[at]) / value(&curve.points[0]).max(1.0)
}

fn nearest(curve: &Curve, x: f64) -> usize {
    let distance = |point: &Point| (point.x - x).abs();
    let points = curve.points.iter().enumerate();
    points.min_by(|a, b| distance(a.1).total_cmp(&distance(b.1))).map_or(0, |(at, _)| at)
}

fn run(_: &Context) -> Vec<Measured> {
    let all = figures(REPEATS, &mut || ());
    let blocks = |point: &Point| point.swapped_blocks;
    let swaps = |point: &Point| point.swaps;
    let rate = |point: &Point| point.throughput;
    let throughput = last_over_first(&all.factor, rate);
    let (above, below) = (&all.stop_above, &all.stop_below);
    let zero = last_over_first(below, blocks);
    let deepseek = &below[LARGE + 1];
    let rise = ratio(deepseek, nearest(deepseek, RISE_AT), rate);
    vec![
        Measured::new("cpen.figure5.blocks", last_over_first(&all.factor, blocks), SETUP),
        Measured::new("cpen.figure6.operations", last_over_first(&all.factor, swaps), SETUP),
        Measured::new("cpen.figure7.small", throughput[..LARGE].to_vec(), SETUP),
        Measured::new("cpen.figure7.large", vec![throughput[LARGE]], SETUP),
        Measured::new("cpen.figure7.deepseek", vec![throughput[LARGE + 1]], SETUP),
        Measured::new("cpen.figure8.above", last_over_first(above, blocks), PRINTED),
        Measured::new("cpen.figure8.below", zero.clone(), OPPOSITE),
        Measured::new("cpen.figure8.zero", zero, OPPOSITE),
        Measured::new("cpen.figure9.above", last_over_first(above, swaps), PRINTED),
        Measured::new("cpen.figure9.below", last_over_first(below, swaps), OPPOSITE),
        Measured::new("cpen.figure10.above", last_over_first(above, rate)[..=LARGE].to_vec(), PRINTED),
        Measured::new("cpen.figure10.below", last_over_first(below, rate)[..=LARGE].to_vec(), OPPOSITE),
        Measured::new("cpen.figure10.deepseek", vec![rise], RISE),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_first_point() {
        let point = |x, throughput| Point { x, swapped_blocks: 0.0, swaps: 0.0, throughput, throughput_deviation: 0.0 };
        let curve = Curve { model: "m".to_owned(), points: vec![point(1.8, 2.0), point(3.6, 3.0), point(7.5, 1.0)] };
        assert_eq!(nearest(&curve, RISE_AT), 1);
        assert!((ratio(&curve, 1, |point| point.throughput) - 1.5).abs() < 1e-9);
        assert!((last_over_first(&[curve], |point| point.throughput)[0] - 0.5).abs() < 1e-9);
    }
}
