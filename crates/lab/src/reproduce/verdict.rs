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
    /// All values have the same order and lie on the same side of the neutral value.
    DirectionOnly,
    /// Neither.
    Contradicted,
    /// The paper's other numbers give a value that differs by more than [`ROUNDING`] and more than half
    /// a unit of the last digit.
    SelfContradictory,
    /// No model here decides it.
    NotTestable,
}

impl Verdict {
    /// All verdicts, in the order of reports.
    pub const ALL: [Self; 5] =
        [Self::Reproduced, Self::DirectionOnly, Self::Contradicted, Self::SelfContradictory, Self::NotTestable];
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reproduced => "reproduced",
            Self::DirectionOnly => "direction only",
            Self::Contradicted => "contradicted",
            Self::SelfContradictory => "self-contradictory",
            Self::NotTestable => "not testable",
        })
    }
}

/// Relative difference within which a value is reproduced.
pub const NEAR: f64 = 0.15;
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
    /// The value that means no effect, such as 1 for a ratio, if there is one.
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
    let pairs = || claim.values.iter().zip(ours);
    let holds = match claim.meaning {
        Meaning::Equal => {
            ours.iter().enumerate().all(|(at, &ours)| claim.distance(at, ours) <= NEAR)
                && claim.neutral.is_none_or(|neutral| same_side(claim, ours, neutral))
        }
        Meaning::AtMost => pairs().all(|(paper, ours)| ours <= paper),
        Meaning::AtLeast => pairs().all(|(paper, ours)| ours >= paper),
    };
    // A ratio over nothing has no size.
    let is_sized = ours.iter().all(|value| value.is_finite());
    if holds && is_sized && !is_fitted {
        return Verdict::Reproduced;
    }
    if holds || (claim.meaning == Meaning::Equal && same_direction(claim, ours)) {
        return Verdict::DirectionOnly;
    }
    Verdict::Contradicted
}

/// Whether all pairs of values have the same order, and all values the same side of the neutral one.
fn same_direction(claim: Claim<'_>, ours: &[f64]) -> bool {
    let len = ours.len();
    let ordered = (0..len)
        .flat_map(|a| (a + 1..len).map(move |b| (a, b)))
        .all(|(a, b)| way(claim.values[a], claim.values[b]) == way(ours[a], ours[b]));
    ordered && claim.neutral.map_or(len > 1, |neutral| same_side(claim, ours, neutral))
}

/// Whether all values lie on the paper's side of the neutral one.
fn same_side(claim: Claim<'_>, ours: &[f64], neutral: f64) -> bool {
    claim.values.iter().zip(ours).all(|(&paper, &ours)| way(neutral, paper) == way(neutral, ours))
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
        assert_eq!(verdict(most, &[410.0], false), Verdict::Contradicted);
        assert!(agrees(most, &[401.0]) && !agrees(most, &[500.0]));
        let least = Claim { meaning: Meaning::AtLeast, ..most };
        assert_eq!(verdict(least, &[410.0], false), Verdict::Reproduced);
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
