//! Confidence intervals of a mean over few seeds.

use serde::Serialize;

/// Quantiles of Student's t distribution at 97.5 %, for 1 to 20 degrees of freedom.
const T: [f64; 20] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086,
];
/// The largest number of seeds.
pub const SEEDS_MAX: usize = T.len() + 1;

/// A mean, and half the width of its interval of 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// Half the width; the seeds' values are taken as normal.
    pub half: f64,
}

impl Interval {
    /// The interval of one value per seed.
    ///
    /// # Panics
    /// There are fewer than two values, or more than [`SEEDS_MAX`].
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        assert!((2..=SEEDS_MAX).contains(&values.len()), "an interval of {} values", values.len());
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
        Self { mean, half: T[values.len() - 2] * (variance / count).sqrt() }
    }

    /// The interval of the differences, seed by seed. It is narrower than the difference of two
    /// intervals, because both runs of a seed have the same text.
    ///
    /// # Panics
    /// As [`Self::of`].
    #[must_use]
    pub fn of_differences(values: &[f64], base: &[f64]) -> Self {
        Self::of(&values.iter().zip(base).map(|(value, base)| value - base).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_values_have_four_degrees_of_freedom() {
        let interval = Interval::of(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        // Variance 2.5, so a standard error of √0.5.
        assert!((interval.mean - 3.0).abs() < 1e-12 && (interval.half - 2.776 * 0.5_f64.sqrt()).abs() < 1e-9);
        assert_eq!(Interval::of(&[7.0, 7.0]), Interval { mean: 7.0, half: 0.0 });
        let [a, b] = [[10.0, 20.0, 30.0], [9.0, 19.0, 29.0]];
        assert_eq!(Interval::of_differences(&a, &b), Interval { mean: 1.0, half: 0.0 });
    }
}
