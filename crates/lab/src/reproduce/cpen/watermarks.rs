//! Figures 5 to 10, from the study of watermarks ([`crate::watermark`]).

use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use crate::watermark::figures::{FACTORS, Figures, Open, by_factor, cap, curves, fixed, stop_above, stop_below};
use crate::watermark::{Curve, Point};

pub const EXPERIMENT: Experiment = Experiment {
    id: "cpen.watermarks",
    title: "watermarks by factor and by average length",
    covers: &["cpen.figure5", "cpen.figure6", "cpen.figure7", "cpen.figure8", "cpen.figure9", "cpen.figure10"],
    is_quick: false,
    draws: true,
    run,
};

/// Repeats of a run. §VII-A has "for 10 times", which are the ten runs here.
const REPEATS: u64 = 1;
/// Models before this one are the small ones; this one is opt-2.7b, the next DeepSeek's.
const LARGE: usize = 2;
/// The thresholds at which the paper sees rises.
const RISES_AT: [f64; 2] = [3.6, 5.0];
/// The first and the last threshold.
const FIRST: f64 = 1.8;
const LAST: f64 = 7.5;

const SETUP: &str = "an A6000 and 500, 300, 150 and 400 blocks are ours; answers of 88 tokens give the \
                     report's 7.5 blocks of a request";
const PRINTED: &str = "no admission while the average is above the threshold";
const OPPOSITE: &str = "no admission while the average is below the threshold";
const RISE: &str = "opposite rule; the rise is there if b are all blocks of the cache";
const MEAN: &str = "mean of the factors 0.2 to 12; an A6000 and \
                    500, 300, 150 and 400 blocks are ours";
const CAP: &str = "b";

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

/// The readings with few points under an assumption of their own.
struct Ends {
    name: String,
    factor: Vec<Curve>,
    above: Vec<Curve>,
    below: Vec<Curve>,
}

impl Ends {
    fn simulate(name: &str, open: &Open) -> Self {
        let of = |points: &[f64], reading| curves(points, reading, open, &mut || ());
        let thresholds = [FIRST, RISES_AT[0], LAST];
        Self {
            name: name.to_owned(),
            factor: of(&[0.0, 12.0], by_factor),
            above: of(&thresholds, stop_above),
            below: of(&thresholds, stop_below),
        }
    }
}

/// Throughput over the default watermark's of 1 %: mean of the points above the first, at the last
/// point over the first, and at the best.
fn over_fixed(curve: &Curve, baseline: &Curve) -> [f64; 3] {
    let rates = curve.points[1..].iter().map(|point| point.throughput);
    let fixed = baseline.points[0].throughput;
    let mean = rates.clone().sum::<f64>() / (curve.points.len() - 1) as f64 / fixed;
    [mean, ratio(curve, curve.points.len() - 1, |point| point.throughput), rates.fold(0.0, f64::max) / fixed]
}

fn run(context: &Context) -> Vec<Measured> {
    let assumed = Open { seed: context.seed, ..Open::assumed(REPEATS) };
    let thresholds = [FIRST, RISES_AT[0], RISES_AT[1], LAST];
    let factors: Vec<f64> = FACTORS.map(|step| f64::from(step) / 5.0).collect();
    let of = |points: &[f64], reading| curves(points, reading, &assumed, &mut || ());
    let all = Figures {
        factor: of(&factors, by_factor),
        stop_above: of(&thresholds, stop_above),
        stop_below: of(&thresholds, stop_below),
    };
    let baseline = curves(&[0.0], fixed, &assumed, &mut || ());
    let capped = curves(&thresholds, cap, &assumed, &mut || ());
    let variants = [
        Ends::simulate("blocks halved", &Open { blocks: 0.5, ..assumed }),
        Ends::simulate("blocks doubled", &Open { blocks: 2.0, ..assumed }),
        Ends::simulate("answers of half the length", &Open { answers: 0.5, ..assumed }),
    ];
    let blocks = |point: &Point| point.swapped_blocks;
    let swaps = |point: &Point| point.swaps;
    let rate = |point: &Point| point.throughput;
    // A row, with the effects of the variants.
    let varied = |id: &'static str, base: Vec<f64>, why: &'static str, value: &dyn Fn(&Ends) -> Vec<f64>| {
        let names = variants.iter().map(|ends| ends.name.clone()).collect();
        let effects = Sensitivity::from("setup", &base, names, variants.iter().map(value).collect());
        Measured::new(id, base, why).sensitive(effects)
    };
    // With the other reading of b.
    let capped_too = |row: Measured, value: &dyn Fn(&[Curve]) -> Vec<f64>| {
        let base = row.values.clone().unwrap_or_default();
        let name = vec!["all blocks of the cache: at most b/threshold requests".to_owned()];
        row.sensitive(Sensitivity::from(CAP, &base, name, vec![value(&capped)]))
    };
    let factor = |id: &'static str, value: fn(&Point) -> f64| {
        varied(id, last_over_first(&all.factor, value), SETUP, &|ends| last_over_first(&ends.factor, value))
    };
    let threshold = |id: &'static str, is_above: bool, models: usize, value: fn(&Point) -> f64| {
        let of = |curves: &[Curve]| last_over_first(&curves[..models], value);
        let (base, why) = if is_above { (of(&all.stop_above), PRINTED) } else { (of(&all.stop_below), OPPOSITE) };
        let row = varied(id, base, why, &|ends| of(if is_above { &ends.above } else { &ends.below }));
        // With the rule as printed all blocks of the cache would admit nothing.
        if is_above { row } else { capped_too(row, &of) }
    };
    let mean = |id: &'static str, models: &[usize]| {
        let each: Vec<[f64; 3]> =
            models.iter().map(|&model| over_fixed(&all.factor[model], &baseline[model])).collect();
        let of = |at: usize| each.iter().map(|values| values[at]).collect::<Vec<f64>>();
        let names = vec!["12 over 0".to_owned(), "the best over 1 %".to_owned()];
        let points = Sensitivity::from("factors", &of(0), names, vec![of(1), of(2)]).aside();
        Measured::new(id, of(0), MEAN).sensitive(points)
    };
    let rise = |curves: &[Curve], at: f64| {
        let deepseek = &curves[LARGE + 1];
        vec![ratio(deepseek, nearest(deepseek, at), rate)]
    };
    let deepseek = |id: &'static str, at: f64, why: &'static str| {
        let row = Measured::new(id, rise(&all.stop_below, at), why);
        let base = rise(&all.stop_below, at);
        let rules =
            Sensitivity::from("rule", &base, vec!["as printed".to_owned()], vec![rise(&all.stop_above, at)]).aside();
        capped_too(row, &|curves| rise(curves, at)).sensitive(rules)
    };
    let (opt, every) = (LARGE + 1, LARGE + 2);
    vec![
        factor("cpen.figure5.blocks", blocks),
        factor("cpen.figure6.operations", swaps),
        mean("cpen.figure7.small", &[0, 1]),
        mean("cpen.figure7.large", &[LARGE]),
        mean("cpen.figure7.deepseek", &[LARGE + 1]),
        mean("cpen.figure7.slight", &[0, 1, LARGE + 1]),
        threshold("cpen.figure8.above", true, every, blocks),
        threshold("cpen.figure8.below", false, every, blocks),
        threshold("cpen.figure8.zero", false, every, blocks),
        threshold("cpen.figure9.above", true, every, swaps),
        threshold("cpen.figure9.below", false, every, swaps),
        threshold("cpen.figure10.above", true, opt, rate),
        threshold("cpen.figure10.below", false, opt, rate),
        deepseek("cpen.figure10.deepseek", RISES_AT[0], RISE),
        deepseek("cpen.figure10.deepseek-5", RISES_AT[1], RISE),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_first_point() {
        let point = |x, throughput| Point { x, swapped_blocks: 0.0, swaps: 0.0, throughput, throughput_deviation: 0.0 };
        let curve = Curve { model: "m".to_owned(), points: vec![point(1.8, 2.0), point(3.6, 3.0), point(7.5, 1.0)] };
        assert_eq!(nearest(&curve, RISES_AT[0]), 1);
        assert!((ratio(&curve, 1, |point| point.throughput) - 1.5).abs() < 1e-9);
        assert!((last_over_first(&[curve], |point| point.throughput)[0] - 0.5).abs() < 1e-9);
    }
}
