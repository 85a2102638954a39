//! `atom`: Atom-like quantization (Zhao et al., MLSys 2024).
//!
//! Channels are reordered by magnitude (Atom §4.1). The largest ones, outliers, have eight bits. The
//! others have few bits, in groups of neighbours in that order (§4.2). Scales and minima are found
//! per token at run time (§4.3), and groups are asymmetric, as in its KV cache (§4.4).
//!
//! Simplified here:
//! * magnitudes come from the profile: the root of squared mean and variance;
//! * one channel in 32 is an outlier, as 128 of 4,096 in the paper;
//! * the paper applies outliers to activations and per-head groups to KV. Here KV has both: Oaken
//!   §3.3 says that the rival reorders KV channels, and §4.4 that it keeps outliers in mixed
//!   precision. At 4,096 channels this takes 4.375 bits. Oaken's Table 2 gives 4.25, which leaves no
//!   room for channels of eight bits.

use super::{GROUP_BITS, place, round_group};
use cenote_codec::{PageKind, Profile, SideProfile};
use cenote_quality::{StudyError, Subject, put_values, values_of};

/// Channels per outlier.
const CHANNELS_PER_OUTLIER: usize = 32;
/// Bits of an outlier.
const OUTLIER_BITS: u32 = 8;
/// Channels per group.
const GROUP: usize = 128;

/// Few bits for most channels, eight for the largest.
pub struct Atom {
    bits: u32,
    /// Channels in descending magnitude, of K and V of each layer.
    orders: Vec<[Vec<usize>; 2]>,
}

impl Atom {
    /// Creates a quantizer with the order of the profile.
    #[must_use]
    pub fn new(bits: u32, profile: &Profile) -> Self {
        Self { bits, orders: profile.layers.iter().map(|sides| sides.each_ref().map(order)).collect() }
    }
}

/// Channels in descending magnitude.
fn order(side: &SideProfile) -> Vec<usize> {
    let magnitude = |channel: usize| side.means[channel].hypot(side.deviations[channel]);
    let mut order: Vec<usize> = (0..side.means.len()).collect();
    order.sort_by(|&a, &b| magnitude(b).total_cmp(&magnitude(a)));
    order
}

/// Rounds a token's values in the order of magnitude; returns the bits.
fn round_token(values: &mut [f32], bits: u32) -> u64 {
    let (outliers, others) = values.split_at_mut(values.len() / CHANNELS_PER_OUTLIER);
    let mut total = 0;
    let parts = [(outliers, OUTLIER_BITS), (others, bits)];
    for (values, bits) in parts {
        for group in values.chunks_mut(GROUP) {
            round_group(&mut group.iter_mut().collect::<Vec<_>>(), bits);
            total += u64::from(bits) * group.len() as u64 + GROUP_BITS;
        }
    }
    total
}

impl Subject for Atom {
    fn name(&self) -> String {
        format!("atom:{}", self.bits)
    }

    fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError> {
        let dim = usize::from(kind.shape.dim);
        let order = &self.orders[usize::from(kind.layer)][kind.side as usize];
        let mut values = values_of(kind, page);
        let mut bits = 0;
        for token in 0..usize::from(kind.shape.tokens) {
            let places: Vec<usize> =
                order.iter().map(|channel| place(kind, channel / dim, token, channel % dim)).collect();
            let mut sorted: Vec<f32> = places.iter().map(|&place| values[place]).collect();
            bits += round_token(&mut sorted, self.bits);
            places.iter().zip(sorted).for_each(|(&place, value)| values[place] = value);
        }
        put_values(kind, page, &values);
        Ok(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_channels_have_eight_bits() {
        let side = SideProfile {
            means: vec![0.0, -9.0, 1.0, 3.0],
            deviations: vec![2.0, 1.0, 1.0, 4.0],
            ..SideProfile::default()
        };
        assert_eq!(order(&side), [1, 3, 0, 2]);
        // Two outliers of 64 channels, which would ruin the grid of the others.
        let mut values: Vec<f32> = (0..64).map(|at| (at % 16) as f32).collect();
        (values[0], values[1]) = (0.0, 1020.0);
        let before = values.clone();
        assert_eq!(round_token(&mut values, 4), 2 * 8 + 62 * 4 + 2 * 32);
        assert_eq!(values, before, "steps of 4 and 1 meet all of these values");
    }
}
