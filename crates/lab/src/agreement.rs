//! Agreement of a model's profiles that were made from different texts (Oaken, Figure 6).
//!
//! "The range of KV cache values remains consistent across these datasets" (Oaken §4.1, observation
//! 2), so Oaken determines thresholds once, in advance. This module compares the thresholds
//! themselves.

use cenote_codec::{Groups, Profile, Side};
use serde::Serialize;

/// Disagreement of the thresholds of one layer's K or V.
#[derive(Clone, Debug, Serialize)]
pub struct Spread {
    /// The layer.
    pub layer: usize,
    /// `K` or `V`.
    pub side: &'static str,
    /// Range of a threshold over the profiles, divided by its mean magnitude: mean over all
    /// thresholds.
    pub mean: f64,
    /// Largest such ratio of any threshold.
    pub worst: f64,
    /// The ratio for the width of the outermost interval, which is the range of values without the
    /// farthest outliers.
    pub range: f64,
}

/// Compares the thresholds that profiles of one model give for `groups`.
///
/// # Panics
/// There are no profiles, or they have different numbers of layers.
#[must_use]
pub fn spreads(profiles: &[&Profile], groups: &Groups) -> Vec<Spread> {
    let all: Vec<_> = profiles.iter().map(|profile| profile.thresholds(groups, false)).collect();
    let places = (0..all[0].len()).flat_map(|layer| [(layer, Side::K, "K"), (layer, Side::V, "V")]);
    let spread = |(layer, side, name): (usize, Side, &'static str)| {
        let intervals: Vec<&[(f32, f32)]> = all.iter().map(|one| one[layer][side as usize].intervals()).collect();
        // Disagreement over one bound of the interval with this index.
        let of = |index: usize, value: fn((f32, f32)) -> f32| {
            apart(&intervals.iter().map(|one| f64::from(value(one[index]))).collect::<Vec<_>>())
        };
        let each: Vec<f64> = (0..intervals[0].len())
            .flat_map(|index| [of(index, |(low, _)| low), of(index, |(_, high)| high)])
            .collect();
        Spread {
            layer,
            side: name,
            mean: each.iter().sum::<f64>() / each.len() as f64,
            worst: each.iter().copied().fold(0.0, f64::max),
            range: of(0, |(low, high)| high - low),
        }
    };
    places.map(spread).collect()
}

/// Range of the values over their mean magnitude.
fn apart(values: &[f64]) -> f64 {
    let (least, greatest) = values.iter().fold((f64::MAX, f64::MIN), |(a, b), value| (a.min(*value), b.max(*value)));
    let magnitude = values.iter().map(|value| value.abs()).sum::<f64>() / values.len() as f64;
    if greatest > least { (greatest - least) / magnitude } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_codec::SideProfile;
    use cenote_codec::profile::curve_of;

    #[test]
    fn the_spread_is_the_relative_range_of_thresholds() {
        let profile = |scale: f32| {
            let side = |scale: f32| SideProfile {
                values: curve_of((-2000..=2000).map(|value| value as f32 * scale).collect()),
                ..SideProfile::default()
            };
            Profile { model: [0; 32], tokens: 0, prompts: 0, layers: vec![[side(1.0), side(scale)]], bases: None }
        };
        let (one, other) = (profile(1.0), profile(1.1));
        let found = spreads(&[&one, &other], &Groups::default());
        assert_eq!((found[0].side, found[0].worst, found[0].range), ("K", 0.0, 0.0));
        // The scales differ by 0.1, and their mean is 1.05.
        for apart in [found[1].mean, found[1].worst, found[1].range] {
            assert!((apart - 0.1 / 1.05).abs() < 1e-3, "{apart}");
        }
    }
}
