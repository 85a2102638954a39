//! Bases: the part of a profile with the principal components of keys and values over groups of
//! layers.
//!
//! A group's values of a token are a vector over `[layer][head][channel]`, for K before rotary
//! embedding. The metric says what an error in it costs: the squared error that the attention feels
//! is `e' G e`. Columns of the matrix are orthogonal under the metric and in the order of falling
//! variance, so an error of one step does equal harm in each component.

use crate::page::Side;

/// Components of the values of a group, of one side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Basis {
    /// The mean of each channel, `[layer][head][channel]`.
    pub means: Vec<f32>,
    /// The metric. K: its diagonal, by channel. V: a matrix for each head, row by row.
    pub metric: Vec<f32>,
    /// The unit of each channel's row of the matrix.
    pub scales: Vec<f32>,
    /// A row for each channel, with as many numbers as there are components.
    pub matrix: Vec<i16>,
    /// The standard deviation of each component; as many as components.
    pub deviations: Vec<f32>,
    /// The mean magnitude of each component.
    pub magnitudes: Vec<f32>,
}

/// Components of all layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Bases {
    /// Angle per position of each pair of a head's channels: channel `c` with `c + dim / 2`.
    pub frequencies: Vec<f32>,
    /// Layers of a group. The last one may have fewer.
    pub group: u16,
    /// K and V of each group.
    pub groups: Vec<[Basis; 2]>,
}

type Part = fn(&Basis) -> &Vec<f32>;
type PartMut = fn(&mut Basis) -> &mut Vec<f32>;

/// Parts of single precision, by name.
pub(crate) const PARTS: [(&str, Part, PartMut); 5] = [
    ("means", |one| &one.means, |one| &mut one.means),
    ("metric", |one| &one.metric, |one| &mut one.metric),
    ("scales", |one| &one.scales, |one| &mut one.scales),
    ("deviations", |one| &one.deviations, |one| &mut one.deviations),
    ("magnitudes", |one| &one.magnitudes, |one| &mut one.magnitudes),
];

/// Most channels of a group: sums of products fit 32 bits, and no file makes a program allocate more.
pub const CHANNELS_MAX: usize = 4096;

impl Basis {
    /// The number of components.
    #[must_use]
    pub const fn components(&self) -> usize {
        self.deviations.len()
    }

    /// Whether all parts fit `channels` channels of heads of `dim`, and all numbers are usable.
    fn is_sound(&self, side: Side, channels: usize, dim: usize) -> bool {
        let count = self.components();
        let metric = if side == Side::K { channels } else { channels * dim };
        let lengths =
            [self.means.len(), self.scales.len(), self.metric.len(), self.matrix.len(), self.magnitudes.len()];
        lengths == [channels, channels, metric, channels * count, count]
            && (1..=channels).contains(&count)
            && PARTS.iter().all(|(_, part, _)| part(self).iter().all(|value| value.is_finite()))
            && [&self.scales, &self.deviations, &self.magnitudes].into_iter().flatten().all(|value| *value >= 0.0)
    }
}

impl Bases {
    /// Channels of a head.
    #[must_use]
    pub const fn dim(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Bytes of all groups.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let floats = |one: &Basis| PARTS.iter().map(|(_, part, _)| part(one).len()).sum::<usize>();
        self.groups.iter().flatten().map(|one| 4 * floats(one) + 2 * one.matrix.len()).sum()
    }

    /// Whether the bases fit a model of `layers` layers with `channels` channels of K a token, and
    /// all numbers are usable.
    #[must_use]
    pub fn are_sound(&self, layers: usize, channels: usize) -> bool {
        let (dim, group) = (self.dim(), usize::from(self.group));
        if dim == 0 || group == 0 || channels == 0 || !channels.is_multiple_of(dim) {
            return false;
        }
        let of_group = |number: usize| (layers - number * group).min(group) * channels;
        self.groups.len() == layers.div_ceil(group)
            && group.min(layers) * channels <= CHANNELS_MAX
            && self.frequencies.iter().all(|value| (0.0..=2.0 * std::f32::consts::PI).contains(value))
            && self.groups.iter().enumerate().all(|(number, [k, v])| {
                k.is_sound(Side::K, of_group(number), dim) && v.is_sound(Side::V, of_group(number), dim)
            })
    }

    /// Hashes all that codecs use.
    pub(crate) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        hasher.update(b"bases").update(&self.group.to_le_bytes());
        let add = |hasher: &mut blake3::Hasher, bytes: Vec<u8>| {
            hasher.update(&(bytes.len() as u64).to_le_bytes()).update(&bytes);
        };
        add(hasher, bytes_of(&self.frequencies));
        for one in self.groups.iter().flatten() {
            PARTS.iter().for_each(|(_, part, _)| add(hasher, bytes_of(part(one))));
            add(hasher, one.matrix.iter().flat_map(|value| value.to_le_bytes()).collect());
        }
    }
}

pub(crate) fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
