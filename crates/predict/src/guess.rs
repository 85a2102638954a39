//! A guess, and the best of many.

use crate::simd::{BLOCK, highest};

/// A token and its probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guess {
    /// The token.
    pub token: u32,
    /// Its probability, as the predictor sees it.
    pub probability: f32,
}

/// The `count` most probable tokens of a distribution, best first. Of equal ones, the lower token is
/// better. Values that are not numbers are left out.
#[must_use]
pub fn best(distribution: &[f32], count: usize) -> Vec<Guess> {
    let maxima: Vec<f32> = distribution.chunks(BLOCK).map(highest).collect();
    best_by_maxima(distribution, &maxima, count)
}

/// As [`best`], with the highest value of each block.
pub(crate) fn best_by_maxima(distribution: &[f32], maxima: &[f32], count: usize) -> Vec<Guess> {
    if count == 0 {
        return Vec::new();
    }
    let bound = bound(maxima, count);
    let mut found = Vec::with_capacity(2 * count);
    for (block, _) in maxima.iter().enumerate().filter(|(_, highest)| **highest >= bound) {
        let start = block * BLOCK;
        let values = &distribution[start..distribution.len().min(start + BLOCK)];
        for (token, probability) in (start as u32..).zip(values.iter().copied()) {
            if probability >= bound {
                found.push(Guess { token, probability });
            }
        }
    }
    // A stable sort: of equal ones, the lower token comes first.
    found.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    found.truncate(count);
    found
}

/// The `count`-th highest of the maxima: as many values are not below it. Negative infinity if there
/// are fewer blocks.
fn bound(maxima: &[f32], count: usize) -> f32 {
    if maxima.len() < count {
        return f32::NEG_INFINITY;
    }
    let mut maxima = maxima.to_vec();
    *maxima.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a)).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_best_are_those_of_a_full_sort(
            values in prop::collection::vec(prop_oneof![(0u8..9).prop_map(f32::from), Just(f32::NAN)], 0..400),
            count in 0usize..20,
        ) {
            let mut all: Vec<(u32, f32)> = (0..).zip(values.iter().copied()).filter(|(_, value)| !value.is_nan()).collect();
            all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            all.truncate(count);
            let found: Vec<(u32, f32)> = best(&values, count).iter().map(|guess| (guess.token, guess.probability)).collect();
            prop_assert_eq!(found, all);
        }
    }
}
