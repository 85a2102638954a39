//! `oaken-sign`: Oaken's quantization with the sign bit that the paper prints.
//!
//! An outlier has five bits: four of its magnitude and a sign (Oaken §4.5: "1 sign bit"). Magnitudes
//! of a group have one grid per token. The sign names the bound to add again. Values of the middle
//! group have four bits between their least and greatest shifted value (eq. 2 to 4). No bit names
//! their bound, so the sign of the decoded rest does. A rest that rounds across zero gets the other
//! bound. The product's codec cuts its grids at zero instead, and spends the fifth bit on finer
//! steps (`crates/codec/src/oaken.rs`). Both take as many bits.

use super::place;
use cenote_codec::{Groups, PageKind, Thresholds};
use cenote_quality::{StudyError, Subject, put_values, values_of};
use half::f16;

/// Bits of a code without its sign.
const CODE_BITS: u32 = 4;
/// Channels that share a count of outliers, as in the product's codec.
const BLOCK: usize = 64;

/// Oaken as printed.
pub struct OakenSign {
    groups: Groups,
    middle: usize,
    /// K and V of each layer.
    thresholds: Vec<[Thresholds; 2]>,
}

impl OakenSign {
    /// Creates a quantizer with thresholds of K and V for each layer.
    #[must_use]
    pub fn new(groups: Groups, thresholds: Vec<[Thresholds; 2]>) -> Self {
        let shares = groups.shares();
        let middle = (0..shares.len()).max_by(|&a, &b| shares[a].total_cmp(&shares[b])).unwrap_or(0);
        Self { groups, middle, thresholds }
    }
}

/// A value's group, and the bound to subtract: 0 in the innermost group.
fn group_of(intervals: &[(f32, f32)], value: f32) -> (usize, f32) {
    let outside = intervals.iter().position(|&(low, high)| value < low || value > high);
    outside.map_or((intervals.len(), 0.0), |group| {
        let (low, high) = intervals[group];
        (group, if value < low { low } else { high })
    })
}

/// A uniform grid of four bits.
#[derive(Clone, Copy)]
struct Grid {
    least: f32,
    step: f32,
}

impl Grid {
    fn of(values: &[f32]) -> Self {
        let (least, greatest) =
            values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), value| (a.min(*value), b.max(*value)));
        let [least, greatest] = [least, greatest].map(|bound| f16::from_f32(bound).to_f32());
        Self { least, step: (greatest - least) / ((1_u32 << CODE_BITS) - 1) as f32 }
    }

    fn nearest(self, value: f32) -> f32 {
        let most = ((1_u32 << CODE_BITS) - 1) as f32;
        let code =
            if self.step > 0.0 { ((value - self.least) / self.step).round_ties_even().clamp(0.0, most) } else { 0.0 };
        code * self.step + self.least
    }
}

/// Rounds a token's values; returns the number of outliers.
fn round_token(intervals: &[(f32, f32)], middle: usize, values: &mut [f32]) -> u64 {
    let sorted: Vec<(usize, f32)> = values.iter().map(|value| group_of(intervals, *value)).collect();
    for group in 0..=intervals.len() {
        let places: Vec<usize> = (0..values.len()).filter(|&at| sorted[at].0 == group).collect();
        if places.is_empty() {
            continue;
        }
        let rest = |at: usize| values[at] - sorted[at].1;
        let rests: Vec<f32> = places.iter().map(|&at| rest(at)).collect();
        let rounded: Vec<f32> = if group == middle {
            let grid = Grid::of(&rests);
            let bounds = intervals.get(group).copied().unwrap_or_default();
            let restore = |rest: f32| rest + if rest < 0.0 { bounds.0 } else { bounds.1 };
            rests.iter().map(|rest| restore(grid.nearest(*rest))).collect()
        } else {
            let magnitudes: Vec<f32> = rests.iter().map(|rest| rest.abs()).collect();
            let grid = Grid::of(&magnitudes);
            let signed = rests.iter().zip(&magnitudes).map(|(rest, size)| grid.nearest(*size).copysign(*rest));
            signed.zip(&places).map(|(rest, &at)| rest + sorted[at].1).collect()
        };
        places.iter().zip(rounded).for_each(|(&at, value)| values[at] = value);
    }
    sorted.iter().filter(|(group, _)| *group != middle).count() as u64
}

impl Subject for OakenSign {
    fn name(&self) -> String {
        let groups = self.groups.to_string();
        format!("oaken-sign:{}", groups.split(':').next().unwrap_or_default())
    }

    fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError> {
        let (heads, tokens, dim) =
            (usize::from(kind.shape.heads), usize::from(kind.shape.tokens), usize::from(kind.shape.dim));
        let intervals = self.thresholds[usize::from(kind.layer)][kind.side as usize].intervals();
        let mut values = values_of(kind, page);
        let mut outliers = 0;
        for token in 0..tokens {
            let at = |channel: usize| place(kind, channel / dim, token, channel % dim);
            let mut one: Vec<f32> = (0..heads * dim).map(|channel| values[at(channel)]).collect();
            outliers += round_token(intervals, self.middle, &mut one);
            one.into_iter().enumerate().for_each(|(channel, value)| values[at(channel)] = value);
        }
        put_values(kind, page, &values);
        let ends = (self.groups.shares().len() * 2 * 16 * tokens) as u64;
        let counts = (heads * tokens * dim.div_ceil(BLOCK) * 8) as u64;
        // Place, group and sign: a byte, two for more than two groups of outliers.
        let entry = if self.groups.shares().len() > 3 { 16 } else { 8 };
        Ok(u64::from(CODE_BITS) * values.len() as u64 + outliers * entry + ends + counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers_keep_their_side_and_the_middle_may_lose_it() {
        // Outer beyond ±10, inner within ±1.
        let intervals = [(-10.0, 10.0), (-1.0, 1.0)];
        let mut values = [-25.0, 10.5, 0.5, -0.25, -8.5, 7.0, -1.25, 1.25];
        assert_eq!(round_token(&intervals, 1, &mut values), 4);
        // Magnitudes 15 and 0.5 beyond the bound: both are ends of the grid.
        assert_eq!(values[..4], [-25.0, 10.5, 0.5, -0.25]);
        // Rests from -7.5 to 6 have a step of 0.9: the grid has -0.3 and 0.6 beside zero. A rest of
        // 0.25 rounds to 0.6, and one of -0.25 to -0.3.
        let near = |a: f32, b: f32| (a - b).abs() < 1e-5;
        assert!(near(values[4], -8.5) && near(values[5], 7.0), "{values:?}");
        assert!(near(values[6], -1.3) && near(values[7], 1.6), "{values:?}");
        // A rest of 0.1 rounds to -0.3 and gets the lower bound.
        let mut values = [-8.5, 7.0, 1.1];
        assert_eq!(round_token(&intervals, 1, &mut values), 0);
        assert!(near(values[2], -1.3), "{values:?}");
    }
}
