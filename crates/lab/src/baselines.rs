//! Quantizers of other projects, for comparison only. Each rounds values in place and counts the
//! bits that the original encoding would take.
//!
//! * `group`: groups of channels of one token, with a scale and a minimum each (the usual
//!   asymmetric grouping).
//! * `kivi`: K in groups of tokens of one channel, V in groups of channels of one token (KIVI, Liu
//!   et al. 2024). Its window of recent tokens at full precision is not counted: the partially
//!   filled block has that role for all codecs here.
//! * `kvquant`: K normalized by channel in advance, V by token. Levels follow the values (k-means
//!   over the profile's curves); the outermost one in a hundred stays at full precision (KVQuant,
//!   Hooper et al. 2024). Keys are taken after rotary embedding, as pools store them; the original
//!   takes them before it. Its weights of sensitivity in k-means, its bounds of outliers by channel
//!   of K (here one pair per layer) and its Q-Norm are left out.
//! * [`tender`], [`atom`], [`qserve`]: like the rivals in Oaken's Table 2.
//! * [`sign`]: Oaken with the sign bit that its paper prints.
//!
//! All are made from descriptions, without their authors' code. What a quantizer finds in advance
//! (orders, factors, biases) is not counted: all pages share it.

pub mod atom;
pub mod qserve;
pub mod sign;
pub mod tender;

use cenote_codec::{PageKind, Profile, Side};
use cenote_quality::{StudyError, Subject, put_values, values_of};
use half::f16;
use std::sync::Arc;

/// Bits of a scale.
const SCALE_BITS: u64 = 16;
/// Bits of a scale and a minimum.
const GROUP_BITS: u64 = 2 * SCALE_BITS;
/// Bits of an outlier's value and position.
const OUTLIER_BITS: u64 = 32;
/// Bits of the start of a token's outliers.
const ROW_BITS: u64 = 16;
/// The share of outliers.
const OUTLIERS: f64 = 0.01;
/// Passes of k-means.
const PASSES: usize = 100;

/// Rounds a group to `bits` bits between its minimum and maximum. Scale and minimum are halves.
fn round_group(values: &mut [&mut f32], bits: u32) {
    let least = values.iter().map(|value| **value).fold(f32::INFINITY, f32::min);
    let greatest = values.iter().map(|value| **value).fold(f32::NEG_INFINITY, f32::max);
    let most = ((1_u32 << bits) - 1) as f32;
    let (least, scale) = (f16::from_f32(least).to_f32(), f16::from_f32((greatest - least) / most).to_f32());
    for value in values {
        let code = if scale > 0.0 { ((**value - least) / scale).round_ties_even().clamp(0.0, most) } else { 0.0 };
        **value = code * scale + least;
    }
}

/// The index of a value in `[head][token][channel]`.
fn place(kind: &PageKind, head: usize, token: usize, channel: usize) -> usize {
    (head * usize::from(kind.shape.tokens) + token) * usize::from(kind.shape.dim) + channel
}

/// Groups of channels of one token.
pub struct Int4 {
    /// Bits per code.
    pub bits: u32,
    /// Channels per group.
    pub group: usize,
}

/// Rounds in groups of channels; returns the bits of codes, scales and minima.
fn round_along_channels(kind: &PageKind, values: &mut [f32], bits: u32, group: usize) -> u64 {
    let mut groups = 0;
    for token in values.chunks_exact_mut(usize::from(kind.shape.dim)) {
        for values in token.chunks_mut(group) {
            round_group(&mut values.iter_mut().collect::<Vec<_>>(), bits);
            groups += 1;
        }
    }
    u64::from(bits) * values.len() as u64 + GROUP_BITS * groups
}

/// Rounds in groups of tokens; returns the bits of codes, scales and minima.
fn round_along_tokens(kind: &PageKind, values: &mut [f32], bits: u32, group: usize) -> u64 {
    let dim = usize::from(kind.shape.dim);
    let mut groups = 0;
    for head in values.chunks_exact_mut(kind.shape.head_values()) {
        for tokens in head.chunks_mut(group * dim) {
            for channel in 0..dim {
                round_group(&mut tokens.iter_mut().skip(channel).step_by(dim).collect::<Vec<_>>(), bits);
                groups += 1;
            }
        }
    }
    u64::from(bits) * values.len() as u64 + GROUP_BITS * groups
}

impl Subject for Int4 {
    fn name(&self) -> String {
        format!("group:{}:{}", self.bits, self.group)
    }

    fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError> {
        let mut values = values_of(kind, page);
        let bits = round_along_channels(kind, &mut values, self.bits, self.group);
        put_values(kind, page, &values);
        Ok(bits)
    }
}

/// Groups of tokens for K, of channels for V.
pub struct Kivi {
    /// Bits per code.
    pub bits: u32,
    /// Values per group; for K at most the tokens of a page.
    pub group: usize,
}

impl Subject for Kivi {
    fn name(&self) -> String {
        format!("kivi:{}", self.bits)
    }

    fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError> {
        let mut values = values_of(kind, page);
        let bits = match kind.side {
            Side::K => round_along_tokens(kind, &mut values, self.bits, self.group),
            Side::V => round_along_channels(kind, &mut values, self.bits, self.group),
        };
        put_values(kind, page, &values);
        Ok(bits)
    }
}

/// Levels that follow the distribution of values, with outliers stored separately.
pub struct KvQuant {
    bits: u32,
    profile: Arc<Profile>,
    /// Levels for K and V of each layer, ascending.
    levels: Vec<[Vec<f32>; 2]>,
}

impl KvQuant {
    /// Creates a quantizer with levels for the profile's distributions.
    #[must_use]
    pub fn new(bits: u32, profile: Arc<Profile>) -> Self {
        let levels = profile.layers.iter().map(|[k, v]| {
            let inner = inliers(&k.normal);
            let values = inliers(&v.values);
            let (low, high) = (values[0], values[values.len() - 1]);
            let middle = f32::midpoint(low, high);
            let reach = ((high - low) / 2.0).max(f32::MIN_POSITIVE);
            let scaled: Vec<f32> = values.iter().map(|value| (value - middle) / reach).collect();
            [k_means(inner, 1 << bits), k_means(&scaled, 1 << bits)]
        });
        Self { bits, levels: levels.collect(), profile }
    }

    fn nearest(levels: &[f32], value: f32) -> f32 {
        let at = levels.partition_point(|level| *level < value);
        match (at.checked_sub(1).map(|below| levels[below]), levels.get(at)) {
            (Some(below), Some(&above)) => {
                if value - below < above - value {
                    below
                } else {
                    above
                }
            }
            (Some(only), None) | (None, Some(&only)) => only,
            (None, None) => 0.0,
        }
    }

    /// Rounds K values; returns the number of outliers.
    fn round_keys(&self, kind: &PageKind, values: &mut [f32]) -> u64 {
        let (layer, dim) = (usize::from(kind.layer), usize::from(kind.shape.dim));
        let (side, levels) = (&self.profile.layers[layer][0], &self.levels[layer][0]);
        let inner = inliers(&side.normal);
        let (low, high) = (inner[0], inner[inner.len() - 1]);
        let mut outliers = 0;
        for (at, value) in values.iter_mut().enumerate() {
            let channel = at / kind.shape.head_values() * dim + at % dim;
            let (mean, deviation) = (side.means[channel], side.deviations[channel].max(f32::MIN_POSITIVE));
            let normal = (*value - mean) / deviation;
            if (low..=high).contains(&normal) {
                *value = Self::nearest(levels, normal) * deviation + mean;
            } else {
                *value = f16::from_f32(*value).to_f32();
                outliers += 1;
            }
        }
        outliers
    }

    /// Rounds V values; returns the number of outliers.
    fn round_values(&self, kind: &PageKind, values: &mut [f32]) -> u64 {
        let (heads, tokens, dim) =
            (usize::from(kind.shape.heads), usize::from(kind.shape.tokens), usize::from(kind.shape.dim));
        let levels = &self.levels[usize::from(kind.layer)][1];
        let mut outliers = 0;
        for token in 0..tokens {
            let places: Vec<usize> = (0..heads * dim).map(|at| (at / dim * tokens + token) * dim + at % dim).collect();
            let mut sorted: Vec<f32> = places.iter().map(|&place| values[place]).collect();
            sorted.sort_by(f32::total_cmp);
            let inner = inliers(&sorted);
            let (low, high) = (inner[0], inner[inner.len() - 1]);
            let middle = f16::from_f32(f32::midpoint(low, high)).to_f32();
            let reach = f16::from_f32((high - low) / 2.0).to_f32().max(f32::MIN_POSITIVE);
            for place in places {
                let value = &mut values[place];
                if (low..=high).contains(value) {
                    *value = Self::nearest(levels, (*value - middle) / reach) * reach + middle;
                } else {
                    *value = f16::from_f32(*value).to_f32();
                    outliers += 1;
                }
            }
        }
        outliers
    }
}

impl Subject for KvQuant {
    fn name(&self) -> String {
        format!("kvquant:{}", self.bits)
    }

    fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError> {
        let mut values = values_of(kind, page);
        let tokens = u64::from(kind.shape.tokens);
        let (outliers, scales) = match kind.side {
            Side::K => (self.round_keys(kind, &mut values), 0),
            Side::V => (self.round_values(kind, &mut values), GROUP_BITS * tokens),
        };
        put_values(kind, page, &values);
        Ok(u64::from(self.bits) * values.len() as u64 + outliers * OUTLIER_BITS + tokens * ROW_BITS + scales)
    }
}

/// Sorted values without the outermost [`OUTLIERS`], half of them cut at either end.
fn inliers(sorted: &[f32]) -> &[f32] {
    let cut = (sorted.len() as f64 * OUTLIERS / 2.0).round() as usize;
    &sorted[cut.min((sorted.len() - 1) / 2)..sorted.len() - cut.min((sorted.len() - 1) / 2)]
}

/// Levels of least squared error for sorted values (k-means), starting from quantiles.
fn k_means(sorted: &[f32], count: usize) -> Vec<f32> {
    let mut levels: Vec<f64> = (0..count)
        .map(|level| f64::from(sorted[((2 * level + 1) * sorted.len() / (2 * count)).min(sorted.len() - 1)]))
        .collect();
    for _ in 0..PASSES {
        let mut from = 0;
        for level in 0..count {
            let to = match levels.get(level + 1) {
                Some(next) => {
                    let border = f64::midpoint(levels[level], *next);
                    sorted.partition_point(|value| f64::from(*value) < border).max(from)
                }
                None => sorted.len(),
            };
            if to > from {
                levels[level] =
                    sorted[from..to].iter().map(|value| f64::from(*value)).sum::<f64>() / (to - from) as f64;
            }
            from = to;
        }
    }
    levels.into_iter().map(|level| level as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k_means_finds_the_clusters_and_nearest_rounds_to_them() {
        let sorted = [-1.0, -1.0, -1.0, 3.0, 3.0, 3.0, 3.0, 10.0];
        assert_eq!(k_means(&sorted, 3), [-1.0, 3.0, 10.0]);
        assert_eq!(
            [-5.0, 1.1, 0.9, 99.0].map(|value| KvQuant::nearest(&[-1.0, 3.0, 10.0], value)),
            [-1.0, 3.0, -1.0, 10.0]
        );
    }

    #[test]
    fn a_group_is_rounded_to_its_own_grid() {
        let mut values = [0.0, 0.24, 0.51, 3.75];
        round_group(&mut values.iter_mut().collect::<Vec<_>>(), 4);
        assert_eq!(values, [0.0, 0.25, 0.5, 3.75]);
        let mut equal = [2.0; 3];
        round_group(&mut equal.iter_mut().collect::<Vec<_>>(), 4);
        assert_eq!(equal, [2.0; 3]);
    }
}
