//! `qserve`: QServe-like quantization (Lin et al., MLSys 2025).
//!
//! Keys and values have a scale and a minimum per token and head, found at run time (QServe §4:
//! KV4). Before, channels of keys are divided by a power of their largest magnitude, and queries
//! are multiplied by it (SmoothAttention, §4.2). Both channels of a rotary pair share a factor, so
//! that factors and rotation commute.
//!
//! Simplified here:
//! * a channel's largest magnitude is the profile's mean and three deviations;
//! * channels are not reordered, which Oaken §3.3 says of it too;
//! * keys are divided before and multiplied after rounding, which has the effect of scaled queries.

use super::{GROUP_BITS, place, round_group};
use cenote_codec::{PageKind, Profile, Side, SideProfile};
use cenote_quality::{StudyError, Subject, put_values, values_of};

/// The exponent of magnitudes (§4.2).
const EXPONENT: f32 = 0.5;
/// Deviations from the mean to the largest magnitude.
const DEVIATIONS: f32 = 3.0;

/// A group per token and head, with keys smoothed in advance.
pub struct QServe {
    bits: u32,
    /// Factors of the channels of keys, of each layer.
    factors: Vec<Vec<f32>>,
}

impl QServe {
    /// Creates a quantizer for heads of `dim` channels.
    #[must_use]
    pub fn new(bits: u32, dim: usize, profile: &Profile) -> Self {
        Self { bits, factors: profile.layers.iter().map(|[k, _]| factors(k, dim)).collect() }
    }
}

/// The divisor of each channel.
fn factors(keys: &SideProfile, dim: usize) -> Vec<f32> {
    let magnitude = |channel: usize| keys.means[channel].abs() + DEVIATIONS * keys.deviations[channel];
    let of = |channel: usize| {
        let (head, within) = (channel / dim * dim, channel % dim);
        let partner = head + (within + dim / 2) % dim;
        magnitude(channel).max(magnitude(partner)).max(f32::MIN_POSITIVE).powf(EXPONENT)
    };
    (0..keys.means.len()).map(of).collect()
}

impl Subject for QServe {
    fn name(&self) -> String {
        format!("qserve:{}", self.bits)
    }

    fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, StudyError> {
        let (heads, tokens, dim) =
            (usize::from(kind.shape.heads), usize::from(kind.shape.tokens), usize::from(kind.shape.dim));
        let factors = (kind.side == Side::K).then(|| &self.factors[usize::from(kind.layer)]);
        let mut values = values_of(kind, page);
        for head in 0..heads {
            let factor = |channel: usize| factors.map_or(1.0, |factors| factors[head * dim + channel]);
            for token in 0..tokens {
                let start = place(kind, head, token, 0);
                let values = &mut values[start..start + dim];
                values.iter_mut().enumerate().for_each(|(channel, value)| *value /= factor(channel));
                round_group(&mut values.iter_mut().collect::<Vec<_>>(), self.bits);
                values.iter_mut().enumerate().for_each(|(channel, value)| *value *= factor(channel));
            }
        }
        put_values(kind, page, &values);
        Ok(u64::from(self.bits) * values.len() as u64 + GROUP_BITS * (heads * tokens) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_roots_and_shared_by_rotary_pairs() {
        let keys = SideProfile {
            means: vec![1.0, 0.0, -10.0, 0.0],
            deviations: vec![1.0, 3.0, 2.0, 0.0],
            ..SideProfile::default()
        };
        assert_eq!(factors(&keys, 4), [4.0, 3.0, 4.0, 3.0]);
        assert_eq!(factors(&keys, 2), [3.0, 3.0, 4.0, 4.0], "heads are apart");
    }
}
