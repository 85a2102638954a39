//! `tender`: Tender-like quantization (Lee et al., ISCA 2024).
//!
//! Channels are decomposed into groups whose scales differ by powers of two, so that hardware
//! rescales a sum by a shift (arXiv 2406.12930). A bias centers each channel first.
//!
//! Simplified here:
//! * biases and groups come from the profile's means and deviations, instead of from calibrated
//!   extremes of row chunks;
//! * the largest scale is found per page and head at run time, instead of in advance;
//! * there are eight groups; integer arithmetic is not emulated, and weights and activations stay.

use super::{SCALE_BITS, place};
use cenote_codec::{PageKind, Profile, SideProfile};
use cenote_quality::{StudyError, Subject, put_values, values_of};
use half::f16;
use std::sync::Arc;

/// The largest number of halvings of a group's scale.
const HALVINGS_MAX: u32 = 7;

/// Channels in groups of scales that are powers of two apart.
pub struct Tender {
    bits: u32,
    profile: Arc<Profile>,
    /// Halvings of the largest scale for each channel, of K and V of each layer.
    halvings: Vec<[Vec<u32>; 2]>,
}

impl Tender {
    /// Creates a quantizer for heads of `dim` channels.
    #[must_use]
    pub fn new(bits: u32, dim: usize, profile: Arc<Profile>) -> Self {
        let halvings = profile.layers.iter().map(|sides| sides.each_ref().map(|side| halvings(side, dim))).collect();
        Self { bits, profile, halvings }
    }
}

/// How often the largest deviation of a head can be halved until a channel no longer fits.
fn halvings(side: &SideProfile, dim: usize) -> Vec<u32> {
    let of_head = |deviations: &[f32]| {
        let most = deviations.iter().copied().fold(0.0, f32::max);
        let of = move |deviation: &f32| {
            let ratio = most / deviation.max(f32::MIN_POSITIVE);
            (ratio.max(1.0).log2() as u32).min(HALVINGS_MAX)
        };
        deviations.iter().map(of).collect::<Vec<_>>()
    };
    side.deviations.chunks(dim).flat_map(of_head).collect()
}

/// Rounds values of one head, `[token][channel]`.
fn round_head(values: &mut [f32], means: &[f32], halvings: &[u32], bits: u32) {
    let dim = means.len();
    let most = ((1_u32 << (bits - 1)) - 1) as f32;
    let whole = |halvings: u32| (1_u32 << halvings) as f32;
    let reach = |(at, value): (usize, &f32)| (value - means[at % dim]).abs() * whole(halvings[at % dim]);
    let largest = values.iter().enumerate().map(reach).fold(0.0, f32::max);
    let scale = f16::from_f32(largest / most).to_f32();
    for (at, value) in values.iter_mut().enumerate() {
        let channel = at % dim;
        let step = scale / whole(halvings[channel]);
        let code =
            if step > 0.0 { ((*value - means[channel]) / step).round_ties_even().clamp(-most, most) } else { 0.0 };
        *value = code * step + means[channel];
    }
}

impl Subject for Tender {
    fn name(&self) -> String {
        format!("tender:{}", self.bits)
    }

    fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError> {
        let (layer, dim) = (usize::from(kind.layer), usize::from(kind.shape.dim));
        let means = &self.profile.layers[layer][kind.side as usize].means;
        let halvings = &self.halvings[layer][kind.side as usize];
        let mut values = values_of(kind, page);
        for head in 0..usize::from(kind.shape.heads) {
            let channels = head * dim..(head + 1) * dim;
            let values = &mut values[place(kind, head, 0, 0)..place(kind, head + 1, 0, 0)];
            round_head(values, &means[channels.clone()], &halvings[channels], self.bits);
        }
        put_values(kind, page, &values);
        Ok(u64::from(self.bits) * values.len() as u64 + SCALE_BITS * u64::from(kind.shape.heads))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_of_channels_are_powers_of_two_apart() {
        let side = SideProfile { deviations: vec![8.0, 4.0, 3.0, 1.0, 0.001, 0.0], ..SideProfile::default() };
        assert_eq!(halvings(&side, 6), [0, 1, 1, 3, 7, 7]);
        assert_eq!(halvings(&side, 3), [0, 1, 1, 0, 7, 7], "heads are apart");
        // Steps of 1 and a quarter about means of 0 and 10.
        let mut values = [7.0, 10.25, 2.4, 11.6];
        round_head(&mut values, &[0.0, 10.0], &[0, 2], 4);
        assert_eq!(values, [7.0, 10.25, 2.0, 11.5]);
    }
}
