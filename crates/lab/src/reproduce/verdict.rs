//! The verdict on a row, from the paper's values and ours.

use serde::Serialize;
use std::fmt;

/// Whether a row of a paper was found here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every value is within [`NEAR`] of the paper's and on the same side of the neutral value, or every
    /// bound holds, and no parameter is fitted.
    Reproduced,
    /// All values have the same order, lie on the same side of the neutral value, and are within
    /// [`FACTOR`] of the paper's.
    DirectionOnly,
    /// The claim holds at some settings of an open parameter and not at others.
    DependsOn,
    /// The difference is within chance or rounding.
    Undecided,
    /// None of these.
    Contradicted,
    /// The paper's other numbers give a value that differs by more than [`ROUNDING`] and more than half
    /// a unit of the last digit.
    SelfContradictory,
    /// No model here decides it.
    NotTestable,
}

impl Verdict {
    /// All verdicts, in the order of reports.
    pub const ALL: [Self; 7] = [
        Self::Reproduced,
        Self::DirectionOnly,
        Self::DependsOn,
        Self::Undecided,
        Self::Contradicted,
        Self::SelfContradictory,
        Self::NotTestable,
    ];

    /// Whether the claim holds, at least in its direction.
    #[must_use]
    pub const fn holds(self) -> bool {
        matches!(self, Self::Reproduced | Self::DirectionOnly)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reproduced => "reproduced",
            Self::DirectionOnly => "direction only",
            Self::DependsOn => "depends",
            Self::Undecided => "undecided",
            Self::Contradicted => "contradicted",
            Self::SelfContradictory => "self-contradictory",
            Self::NotTestable => "not testable",
        })
    }
}

/// Relative difference within which a value is reproduced, and by which a bound may be missed.
pub const NEAR: f64 = 0.15;
/// Largest ratio of two values that have a direction in common.
pub const FACTOR: f64 = 10.0;
/// Relative difference that the rounding of printed numbers explains, beside half a unit of the last
/// digit. Two values of a series that differ by less are in no order.
pub const ROUNDING: f64 = 0.02;

/// How a printed value is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Meaning {
    /// A value.
    Equal,
    /// An upper bound.
    AtMost,
    /// A lower bound.
    AtLeast,
}

/// Values of the paper, and what they mean.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The printed values.
    pub values: &'a [f64],
    /// How they are meant.
    pub meaning: Meaning,
    /// The value that means no effect, such as 1 for a ratio, if there is one. A bound at this value stands
    /// for a word without a size, such as "higher".
    pub neutral: Option<f64>,
    /// The printed ranges, least and most, of which the values are the middles; empty if values are
    /// printed.
    pub ranges: &'a [(f64, f64)],
}

impl Claim<'_> {
    /// Relative difference of a value from the printed one, or from the nearest end of its range.
    fn distance(&self, at: usize, ours: f64) -> f64 {
        match self.ranges.get(at) {
            Some(&(least, most)) => relative(ours.clamp(least, most), ours).abs(),
            None => relative(self.values[at], ours).abs(),
        }
    }
}

/// Largest relative difference of `ours` from `paper`, signed. `None` for series of different lengths, and
/// if there is only a difference from zero, which is not relative.
#[must_use]
pub fn deviation(paper: &[f64], ours: &[f64]) -> Option<f64> {
    if paper.len() != ours.len() {
        return None;
    }
    let each = paper.iter().zip(ours).map(|(&paper, &ours)| relative(paper, ours)).filter(|part| part.is_finite());
    each.max_by(|a, b| a.abs().total_cmp(&b.abs()))
}

/// The difference in parts of `paper`; infinite if that is zero.
fn relative(paper: f64, ours: f64) -> f64 {
    if paper == ours { 0.0 } else { (ours - paper) / paper.abs() }
}

/// Whether the paper's own numbers agree with a printed value.
#[must_use]
pub fn agrees(claim: Claim<'_>, implied: &[f64]) -> bool {
    claim.values.len() == implied.len()
        && claim.values.iter().zip(implied).all(|(&printed, &implied)| match claim.meaning {
            Meaning::Equal => (implied - printed).abs() <= (ROUNDING * printed.abs()).max(half_digit(printed)),
            Meaning::AtMost => implied <= printed * (1.0 + ROUNDING),
            Meaning::AtLeast => implied >= printed * (1.0 - ROUNDING),
        })
}

/// Half a unit of a number's last digit.
fn half_digit(value: f64) -> f64 {
    let digits = value.to_string().split_once('.').map_or(0, |(_, decimals)| decimals.len());
    0.5 * 10_f64.powi(-(digits as i32)) * (1.0 + 1e-9)
}

/// The verdict on measured values.
///
/// # Panics
/// Panics if the numbers of values differ.
#[must_use]
pub fn verdict(claim: Claim<'_>, ours: &[f64], is_fitted: bool) -> Verdict {
    assert_eq!(claim.values.len(), ours.len(), "a row measures what the paper prints");
    let sides: Vec<Side> = (0..ours.len()).map(|at| claim.side(at, ours[at])).collect();
    if sides.contains(&Side::Wrong) {
        return Verdict::Contradicted;
    }
    let near = (0..ours.len()).all(|at| claim.is_near(at, ours[at]));
    // A ratio over nothing has no size.
    let is_sized = ours.iter().all(|value| value.is_finite());
    if sides.contains(&Side::Neither) {
        return Verdict::Undecided;
    }
    if near && is_sized && !is_fitted {
        return Verdict::Reproduced;
    }
    if near || (claim.meaning == Meaning::Equal && same_direction(claim, ours)) {
        return Verdict::DirectionOnly;
    }
    Verdict::Contradicted
}

/// The verdict on a mean of several runs: what all ends of its interval, one by one and together, allow.
#[must_use]
pub fn verdict_within(claim: Claim<'_>, ours: &[f64], interval: Option<&Interval>, is_fitted: bool) -> Verdict {
    let base = verdict(claim, ours, is_fitted);
    let Some(interval) = interval else { return base };
    let mut all = vec![base];
    for ends in [&interval.low, &interval.high] {
        all.push(verdict(claim, ends, is_fitted));
        for at in 0..ours.len() {
            let mut moved = ours.to_vec();
            moved[at] = ends[at];
            all.push(verdict(claim, &moved, is_fitted));
        }
    }
    if all.iter().all(|one| *one == base) {
        base
    } else if all.iter().all(|one| one.holds()) {
        Verdict::DirectionOnly
    } else {
        Verdict::Undecided
    }
}

/// The verdict over the settings of open parameters. A claim that holds at some of them only depends on
/// them; one that holds at all of them has the weaker verdict.
#[must_use]
pub fn verdict_over(base: Verdict, settings: &[Verdict]) -> Verdict {
    let all = || std::iter::once(base).chain(settings.iter().copied());
    if all().all(Verdict::holds) {
        return if all().all(|one| one == Verdict::Reproduced) { base } else { Verdict::DirectionOnly };
    }
    if all().any(Verdict::holds) { Verdict::DependsOn } else { base }
}

/// Ends of the intervals of several runs' means.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Lower ends, one for each value.
    pub low: Vec<f64>,
    /// Upper ends.
    pub high: Vec<f64>,
}

/// Side of a measured value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// The claimed one, or none is claimed.
    Claimed,
    /// No effect beyond rounding, where the paper has a word for one and no number.
    Neither,
    /// Another.
    Wrong,
}

impl Claim<'_> {
    /// Whether a value is within [`NEAR`] of the printed one, or of the bound.
    fn is_near(&self, at: usize, ours: f64) -> bool {
        let printed = self.values[at];
        match self.meaning {
            Meaning::Equal => self.distance(at, ours) <= NEAR,
            Meaning::AtMost => ours <= printed + NEAR * printed.abs(),
            Meaning::AtLeast => ours >= printed - NEAR * printed.abs(),
        }
    }

    fn side(&self, at: usize, ours: f64) -> Side {
        let printed = self.values[at];
        if ours.is_nan() {
            return Side::Wrong;
        }
        let Some(neutral) = self.neutral else { return Side::Claimed };
        let (paper, here) = (way(neutral, printed), way(neutral, ours));
        let claimed = match self.meaning {
            Meaning::Equal => return if paper == here { Side::Claimed } else { Side::Wrong },
            // A word, or a number on the far side of no effect.
            Meaning::AtMost if paper <= 0 => -1,
            Meaning::AtLeast if paper >= 0 => 1,
            _ => return Side::Claimed,
        };
        if here == claimed {
            Side::Claimed
        } else if here == 0 && paper == 0 {
            Side::Neither
        } else {
            Side::Wrong
        }
    }
}

/// Whether all pairs of values have the same order, all values the same side of the neutral one, and none
/// is far from the paper's.
fn same_direction(claim: Claim<'_>, ours: &[f64]) -> bool {
    let len = ours.len();
    let ordered = (0..len)
        .flat_map(|a| (a + 1..len).map(move |b| (a, b)))
        .all(|(a, b)| way(claim.values[a], claim.values[b]) == way(ours[a], ours[b]));
    let is_like = |(&paper, &ours): (&f64, &f64)| {
        paper == ours
            || (ours / paper).abs().max((paper / ours).abs()) <= FACTOR
            || paper.abs().max(ours.abs()) < ROUNDING
    };
    ordered && (len > 1 || claim.neutral.is_some()) && claim.values.iter().zip(ours).all(is_like)
}

/// Which way it goes from one value to another: up, down, or neither within the rounding.
fn way(from: f64, to: f64) -> i8 {
    let change = relative(from, to);
    if change.abs() <= ROUNDING { 0 } else { change.signum() as i8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f64], ours: &[f64]) -> Verdict {
        verdict(Claim { values, meaning: Meaning::Equal, neutral: None, ranges: &[] }, ours, false)
    }

    #[test]
    fn verdicts_follow_values_and_order() {
        let paper = [10.0, 20.0, 30.0];
        assert_eq!(of(&paper, &[11.0, 18.0, 31.0]), Verdict::Reproduced);
        assert_eq!(of(&paper, &[1.0, 2.0, 30.0]), Verdict::DirectionOnly);
        assert_eq!(of(&paper, &[10.0, 20.0, 5.0]), Verdict::Contradicted);
        assert_eq!(of(&paper, &[5.0, 5.0, 5.0]), Verdict::Contradicted);
        assert_eq!(of(&[76.0], &[100.0]), Verdict::Contradicted, "one value alone has no direction");
    }

    #[test]
    fn a_neutral_value_gives_one_value_a_direction() {
        let gain = |ours: f64| {
            verdict(Claim { values: &[3.2], meaning: Meaning::Equal, neutral: Some(1.0), ranges: &[] }, &[ours], false)
        };
        assert_eq!(
            (gain(3.0), gain(1.4), gain(0.9)),
            (Verdict::Reproduced, Verdict::DirectionOnly, Verdict::Contradicted)
        );
    }

    #[test]
    fn no_effect_does_not_reproduce_a_small_one() {
        let loss = |paper: f64, ours: f64| {
            verdict(
                Claim { values: &[paper], meaning: Meaning::Equal, neutral: Some(1.0), ranges: &[] },
                &[ours],
                false,
            )
        };
        assert_eq!((loss(0.92, 0.997), loss(0.92, 0.94)), (Verdict::Contradicted, Verdict::Reproduced));
        assert_eq!(loss(0.988, 1.0), Verdict::Reproduced, "neither has an effect beyond rounding");
    }

    #[test]
    fn a_ratio_over_nothing_has_a_direction_only() {
        let least = |ours: f64| {
            verdict(Claim { values: &[1.0], meaning: Meaning::AtLeast, neutral: None, ranges: &[] }, &[ours], false)
        };
        assert_eq!((least(2.0), least(f64::INFINITY)), (Verdict::Reproduced, Verdict::DirectionOnly));
        assert_eq!((least(f64::NAN), of(&[1.0], &[f64::INFINITY])), (Verdict::Contradicted, Verdict::Contradicted));
    }

    #[test]
    fn a_range_is_reproduced_inside_and_near_its_ends() {
        let of = |ours: f64| {
            verdict(
                Claim { values: &[1.85], meaning: Meaning::Equal, neutral: Some(1.0), ranges: &[(1.6, 2.1)] },
                &[ours],
                false,
            )
        };
        assert_eq!([1.4, 1.7, 2.4].map(of), [Verdict::Reproduced; 3]);
        assert_eq!(
            (of(1.3), of(2.5), of(0.9)),
            (Verdict::DirectionOnly, Verdict::DirectionOnly, Verdict::Contradicted)
        );
    }

    #[test]
    fn a_fitted_parameter_never_reproduces() {
        let claim = Claim { values: &[10.0], meaning: Meaning::Equal, neutral: None, ranges: &[] };
        assert_eq!(verdict(claim, &[10.0], true), Verdict::DirectionOnly);
        assert_eq!(verdict(claim, &[10.0], false), Verdict::Reproduced);
    }

    #[test]
    fn bounds_hold_on_one_side() {
        let most = Claim { values: &[400.0], meaning: Meaning::AtMost, neutral: None, ranges: &[] };
        assert_eq!(verdict(most, &[90.0], false), Verdict::Reproduced);
        assert_eq!(verdict(most, &[450.0], false), Verdict::Reproduced, "the tolerance of equalities");
        assert_eq!(verdict(most, &[470.0], false), Verdict::Contradicted);
        assert!(agrees(most, &[401.0]) && !agrees(most, &[500.0]));
        let least = Claim { meaning: Meaning::AtLeast, ..most };
        assert_eq!(
            [410.0, 350.0, 330.0].map(|ours| verdict(least, &[ours], false)),
            [Verdict::Reproduced, Verdict::Reproduced, Verdict::Contradicted]
        );
    }

    /// "Higher" has no size: fifteen percent of it would let a fall reproduce a rise.
    #[test]
    fn a_word_holds_beyond_rounding_only() {
        let word = Claim { values: &[1.0], meaning: Meaning::AtLeast, neutral: Some(1.0), ranges: &[] };
        let of = |claim: Claim<'_>| [1.03, 1.01, 0.99, 0.97].map(|ours| verdict(claim, &[ours], false));
        let [yes, no, maybe] = [Verdict::Reproduced, Verdict::Contradicted, Verdict::Undecided];
        assert_eq!(of(word), [yes, maybe, maybe, no]);
        assert_eq!(of(Claim { meaning: Meaning::AtMost, ..word }), [no, maybe, maybe, yes]);
        let several = Claim { values: &[1.0; 2], ..word };
        assert_eq!([[1.5, 1.01], [1.5, 0.9]].map(|ours| verdict(several, &ours, false)), [maybe, no]);
        // A number beyond no effect keeps its tolerance, and its side.
        let scales = Claim { values: &[1.15], ..word };
        assert_eq!([1.16, 1.03, 1.01].map(|ours| verdict(scales, &[ours], false)), [yes, yes, no]);
        let little = Claim { meaning: Meaning::AtMost, ..scales };
        assert_eq!([0.9, 1.3, 1.4].map(|ours| verdict(little, &[ours], false)), [yes, yes, no]);
    }

    #[test]
    fn a_direction_needs_values_of_one_size() {
        assert_eq!(of(&[1.29, 3.23], &[1.0, 9.0]), Verdict::DirectionOnly);
        assert_eq!(of(&[1.29, 3.23], &[0.01, 24.0]), Verdict::Contradicted);
        assert_eq!(of(&[0.0, 10.0], &[0.0, 20.0]), Verdict::DirectionOnly);
    }

    #[test]
    fn an_interval_decides_or_does_not() {
        let word = Claim { values: &[1.0], meaning: Meaning::AtLeast, neutral: Some(1.0), ranges: &[] };
        let within = |claim: Claim<'_>, low: f64, high: f64| {
            let interval = Interval { low: vec![low], high: vec![high] };
            verdict_within(claim, &[f64::midpoint(low, high)], Some(&interval), false)
        };
        assert_eq!(within(word, 1.1, 1.3), Verdict::Reproduced);
        assert_eq!(within(word, 0.9, 1.3), Verdict::Undecided);
        assert_eq!(within(word, 0.7, 0.9), Verdict::Contradicted);
        let gain = Claim { values: &[2.0], meaning: Meaning::Equal, ..word };
        assert_eq!(within(gain, 1.5, 1.9), Verdict::DirectionOnly, "near or not, the direction is there");
        let two = Interval { low: vec![1.0, 1.8], high: vec![1.2, 2.2] };
        let pair = Claim { values: &[1.1, 2.0], neutral: None, ..gain };
        assert_eq!(verdict_within(pair, &[1.1, 2.0], Some(&two), false), Verdict::Reproduced);
        assert_eq!(verdict_within(pair, &[1.1, 2.0], None, false), Verdict::Reproduced);
    }

    #[test]
    fn a_claim_that_some_settings_deny_depends_on_them() {
        use Verdict::{Contradicted, DependsOn, DirectionOnly, Reproduced, Undecided};
        assert_eq!(verdict_over(Reproduced, &[Reproduced]), Reproduced);
        assert_eq!(verdict_over(Reproduced, &[DirectionOnly]), DirectionOnly);
        assert_eq!(verdict_over(Contradicted, &[Contradicted, Reproduced]), DependsOn);
        assert_eq!(verdict_over(DirectionOnly, &[Undecided]), DependsOn);
        assert_eq!(verdict_over(Contradicted, &[Undecided]), Contradicted);
        assert_eq!(verdict_over(Undecided, &[Contradicted]), Undecided);
    }

    #[test]
    fn rounding_is_no_contradiction() {
        let claim = Claim { values: &[30.5, 14.0], meaning: Meaning::Equal, neutral: None, ranges: &[] };
        assert!(agrees(claim, &[30.497, 13.98]) && !agrees(claim, &[30.5, 15.0]) && !agrees(claim, &[30.5]));
        let claim = Claim { values: &[18.0], ..claim };
        assert!(agrees(claim, &[17.58]) && !agrees(claim, &[17.4]));
    }

    #[test]
    fn the_largest_deviation_counts() {
        assert_eq!(deviation(&[10.0, 10.0], &[11.0, 5.0]), Some(-0.5));
        assert_eq!((deviation(&[0.0], &[0.0]), deviation(&[0.0], &[1.0])), (Some(0.0), None));
        assert_eq!(deviation(&[0.0, 2.0], &[1.0, 1.0]), Some(-0.5));
        assert_eq!(deviation(&[1.0], &[]), None);
    }
}
