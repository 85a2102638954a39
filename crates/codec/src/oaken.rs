//! Oaken's quantization (Oaken §4): groups by magnitude, with thresholds from a profile.
//!
//! Nested intervals around zero sort a token's values of one layer into groups, outermost first.
//! Each group but the innermost is *shifted*: the upper bound is subtracted from values above the
//! interval, the lower from values below (eq. 4). The rest is quantized uniformly between the
//! group's least and greatest value of the token (eq. 2, 3). The largest group, the *middle*, has
//! four bits, stored densely. Outliers, the few values of other groups, have four or five bits:
//! four in the dense place, the fifth in a list with their place and group (§4.5).
//!
//! As printed, a code near zero does not tell the bound. Here a shifted group's grid is cut where
//! it crosses zero: codes below belong to the lower side, the others to the upper. A value gets the
//! nearest code of its side. So the error is at most half a step, and one step at the cut.
//!
//! Payload: for each token and group the least and greatest value, as `f16`, rounded outwards ·
//! dense codes `[head][token][channel]`, two to a byte, lower half first, each token of a head
//! padded to whole bytes · the number of outliers of each 64 channels, a byte,
//! `[head][token][channel / 64]` · outliers in that order: place (6 bits), group, fifth bit. An
//! outlier has one byte, or two if five bits and more than two outlier groups do not fit. The
//! values of a head lie together in the order of tokens, so that attention reads bursts (§5.2).

use crate::codec::{GrowingPayload, PageCodec};
use crate::error::{CodecId, Declined, DecodeError};
use crate::frame::Frame;
use crate::page::{self, Page, PageKind, PageMut, Shape, Side};
use crate::simd::ByLevel;
use crate::tile::{Axis, EDGE, Span, Tile};
use half::f16;
use std::fmt;
use std::str::FromStr;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod seen;

/// The least and the greatest value.
type Interval = (f32, f32);
/// Dense codes, counts and entries of a head.
type HeadParts = [Vec<u8>; 3];
/// `None`: the kernel does not encode such a page.
type Encoded = Option<Result<(), Declined>>;

/// Widens bounds of the rest of values in each group.
type Bounds = unsafe fn(&[Interval], &[f32], &mut [Interval]) -> Result<(), Declined>;

/// The kernels of Oaken. Callers must guarantee that the machine has the level.
struct Kernels {
    /// Encodes a whole page; `None`: the page must be encoded token by token.
    encode: unsafe fn(&Groups, &[Interval], &Page<'_>, &mut Vec<u8>) -> Encoded,
    read_tokens: unsafe fn(&Page<'_>, &mut [f32]),
    bounds: Bounds,
    code_token: unsafe fn(&Coder<'_>, &[f32], usize, &mut [HeadParts]),
    decode: unsafe fn(&mut Restorer<'_>, &mut PageMut<'_>) -> Result<(), DecodeError>,
}

static KERNELS: ByLevel<Kernels> = ByLevel {
    scalar: Kernels { encode: |_, _, _, _| None, read_tokens, bounds, code_token, decode },
    #[cfg(target_arch = "x86_64")]
    avx2: Kernels {
        encode: avx2::encode,
        read_tokens: avx2::read_tokens,
        bounds: avx2::bounds,
        code_token: avx2::code_token,
        decode: avx2::decode,
    },
    #[cfg(target_arch = "x86_64")]
    avx512: Kernels {
        encode: avx512::encode,
        read_tokens: avx2::read_tokens,
        bounds: avx2::bounds,
        code_token: avx2::code_token,
        decode: avx2::decode,
    },
};

/// Channels of a block, in which an outlier has a place.
pub(crate) const BLOCK: usize = 64;
const DENSE_BITS: u32 = 4;
const GROUPS_MAX: usize = 5;

/// The shares of groups: those of Table 3, and any others.
#[derive(Clone, Debug, PartialEq)]
pub struct Groups {
    /// The share of each group, outermost first; their sum is 1.
    shares: Vec<f64>,
    /// The index of the middle group.
    middle: usize,
    /// Bits of an outlier: 4 or 5.
    outlier_bits: u32,
    /// Bits of an outlier's group.
    group_bits: u32,
}

impl Default for Groups {
    /// The paper's choice: 4 % outer, 90 % middle, 6 % inner, outliers of five bits.
    fn default() -> Self {
        Self { shares: vec![0.04, 0.90, 0.06], middle: 1, outlier_bits: 5, group_bits: 1 }
    }
}

impl Groups {
    /// The share of each group, outermost first.
    #[must_use]
    pub fn shares(&self) -> &[f64] {
        &self.shares
    }

    /// Bits of a value by the shares, with bounds and counts.
    #[must_use]
    pub fn bits(&self, token_values: usize) -> f64 {
        let outliers = 1.0 - self.shares[self.middle];
        let scales = (self.shares.len() * 2 * 16) as f64 / token_values as f64;
        f64::from(DENSE_BITS) + outliers * (8 * self.entry_bytes()) as f64 + 8.0 / BLOCK as f64 + scales
    }

    fn bits_of(&self, group: usize) -> u32 {
        if group == self.middle { DENSE_BITS } else { self.outlier_bits }
    }

    /// Bytes of an outlier's entry.
    pub(crate) fn entry_bytes(&self) -> usize {
        if self.upper_at() + (self.outlier_bits - DENSE_BITS) > 8 { 2 } else { 1 }
    }

    /// The first bit of the code's upper bits in an entry.
    pub(crate) const fn upper_at(&self) -> u32 {
        6 + self.group_bits
    }

    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "code for x86-64's vectors uses it"))]
    pub(crate) const fn middle(&self) -> usize {
        self.middle
    }

    /// The entry of an outlier: place, group and upper bits of the code.
    pub(crate) fn pack(&self, place: usize, group: usize, code: u32) -> u16 {
        let number = if group > self.middle { group - 1 } else { group };
        place as u16 | (number as u16) << 6 | ((code >> DENSE_BITS) as u16) << self.upper_at()
    }

    /// The number of sorts: values of the bits behind the place.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "code for x86-64's vectors uses it"))]
    pub(crate) const fn sorts(&self) -> usize {
        1 << (self.group_bits + self.outlier_bits - DENSE_BITS)
    }

    /// Place, group and upper bits of the code of an entry.
    #[inline]
    pub(crate) fn unpack(&self, entry: u16) -> Option<(usize, usize, u32)> {
        let number = usize::from(entry >> 6) & ((1 << self.group_bits) - 1);
        let group = if number >= self.middle { number + 1 } else { number };
        let upper = u32::from(entry >> self.upper_at());
        let fits = group < self.shares.len() && upper < 1 << (self.outlier_bits - DENSE_BITS);
        fits.then_some((usize::from(entry & 63), group, upper << DENSE_BITS))
    }
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, share) in self.shares.iter().enumerate() {
            write!(f, "{}{}", if index > 0 { "/" } else { "" }, (share * 1e4).round() / 1e2)?;
        }
        write!(f, ":{}", self.outlier_bits)
    }
}

impl FromStr for Groups {
    type Err = String;

    /// Shares in percent, outermost first, and the bits of an outlier: `4/90/6:5`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |fact: &str| format!("`{text}` is no choice of groups like 4/90/6:5: {fact}");
        let (shares, bits) = text.split_once(':').unwrap_or((text, "5"));
        let shares: Result<Vec<f64>, _> = shares.split('/').map(str::parse).collect();
        let shares: Vec<f64> = shares.map_err(|_| wrong("a share is not a number"))?;
        if !(2..=GROUPS_MAX).contains(&shares.len()) {
            return Err(wrong("give two to five groups"));
        }
        if shares.iter().any(|share| !(0.0..100.0).contains(share)) || (shares.iter().sum::<f64>() - 100.0).abs() > 1e-6
        {
            return Err(wrong("shares are percentages with the sum 100"));
        }
        let outlier_bits = match bits {
            "4" => 4,
            "5" => 5,
            _ => return Err(wrong("outliers have 4 or 5 bits")),
        };
        let middle = (0..shares.len()).max_by(|&a, &b| shares[a].total_cmp(&shares[b])).expect("not empty");
        let group_bits = (shares.len() - 1).next_power_of_two().trailing_zeros();
        Ok(Self { shares: shares.into_iter().map(|share| share / 100.0).collect(), middle, outlier_bits, group_bits })
    }
}

/// Nested intervals around zero, outermost first, one for each group but the last. A value belongs
/// to the group of the first interval without it, or to the last group.
#[derive(Clone, Debug, PartialEq)]
pub struct Thresholds(Vec<(f32, f32)>);

impl Thresholds {
    /// `None`: the intervals are not nested, or not finite.
    #[must_use]
    pub fn new(intervals: Vec<(f32, f32)>) -> Option<Self> {
        let sound = |&(low, high): &Interval| low.is_finite() && high.is_finite() && low <= high;
        let nested = |pair: &[Interval]| pair[0].0 <= pair[1].0 && pair[1].1 <= pair[0].1;
        (intervals.iter().all(sound) && intervals.windows(2).all(nested)).then_some(Self(intervals))
    }

    /// The thresholds of a sample: the topK of §4.3. Half of an outer share lies at each end. Inner
    /// shares lie around zero, half on each side as far as the sample has values there.
    ///
    /// # Panics
    /// The sample is empty, or has values that are not finite.
    #[must_use]
    pub fn of_sample(groups: &Groups, sample: &[f32]) -> Self {
        assert!(
            !sample.is_empty() && sample.iter().all(|value| value.is_finite()),
            "the sample is empty or not finite"
        );
        let mut sorted = sample.to_vec();
        sorted.sort_by(f32::total_cmp);
        let count = sorted.len();
        let zero = sorted.partition_point(|value| *value < 0.0);
        let mut intervals = Vec::new();
        for last in 1..groups.shares.len() {
            let outside: f64 = groups.shares[..last].iter().sum();
            let bounds = if last <= groups.middle {
                let each = (outside / 2.0 * count as f64).round() as usize;
                (each.min(count - 1), count - 1 - each.min(count - 1))
            } else {
                let inside = ((1.0 - outside) * count as f64).round() as usize;
                let low = zero.saturating_sub(inside / 2).min(count - inside.min(count));
                (low.min(count - 1), (low + inside.max(1) - 1).min(count - 1))
            };
            let (low, high) = (sorted[bounds.0.min(bounds.1)], sorted[bounds.0.max(bounds.1)]);
            // Intervals of large shares would cross; clamping leaves their groups empty.
            let (floor, ceiling) = intervals.last().copied().unwrap_or((f32::MIN, f32::MAX));
            intervals.push((low.clamp(floor, ceiling), high.clamp(floor, ceiling)));
        }
        Self(intervals)
    }

    /// The mean of several thresholds, the last step of offline profiling (§4.3).
    #[must_use]
    pub fn mean(all: &[Self]) -> Option<Self> {
        let intervals = all.first()?.0.len();
        let mean = |of: &dyn Fn(&Self) -> f32| {
            (all.iter().map(|one| f64::from(of(one))).sum::<f64>() / all.len() as f64) as f32
        };
        Self::new((0..intervals).map(|index| (mean(&|one| one.0[index].0), mean(&|one| one.0[index].1))).collect())
    }

    /// The intervals, outermost first.
    #[must_use]
    pub fn intervals(&self) -> &[(f32, f32)] {
        &self.0
    }
}

/// The group of a value, and the rest of the value.
#[inline]
fn shift(intervals: &[Interval], value: f32) -> (usize, f32) {
    for (group, &(low, high)) in intervals.iter().enumerate() {
        if value < low {
            return (group, value - low);
        }
        if value > high {
            return (group, value - high);
        }
    }
    (intervals.len(), value)
}

/// The grid of a group's codes in one token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub least: f32,
    pub step: f32,
    pub inverse: f32,
    /// The first code of the upper side; 0 for the innermost group, which has no sides.
    pub cut: u32,
    pub codes: u32,
    is_shifted: bool,
}

impl Grid {
    /// The grid of no codes.
    const EMPTY: Self = Self { least: 0.0, step: 0.0, inverse: 0.0, cut: 0, codes: 1, is_shifted: false };

    fn new(least: f16, greatest: f16, bits: u32, is_shifted: bool) -> Self {
        let (least, greatest, codes) = (least.to_f32(), greatest.to_f32(), 1_u32 << bits);
        let width = greatest - least;
        let steps = (codes - 1) as f32;
        let (step, inverse) = if width > 0.0 { (width / steps, steps / width) } else { (0.0, 0.0) };
        let cut = match is_shifted {
            false => 0,
            _ if least >= 0.0 => 0,
            _ if greatest < 0.0 => codes,
            _ => {
                let (crossing, down) = (-least * inverse, (-least * inverse) as u32);
                (down + u32::from((down as f32) < crossing)).clamp(1, codes - 1)
            }
        };
        Self { least, step, inverse, cut, codes, is_shifted }
    }

    /// The largest code of negative values, and the least of others.
    pub fn sides(&self) -> (u32, u32) {
        match self.is_shifted {
            false => (self.codes - 1, 0),
            true => (self.cut.max(1) - 1, self.cut.min(self.codes - 1)),
        }
    }

    /// The code of the rest of a value. In shifted groups the rest is not zero, so its sign is its
    /// side.
    #[inline]
    fn code(&self, shifted: f32) -> u32 {
        let nearest =
            ((shifted - self.least) * self.inverse).round_ties_even().clamp(0.0, (self.codes - 1) as f32) as u32;
        let (below, above) = self.sides();
        if shifted < 0.0 { nearest.min(below) } else { nearest.max(above) }
    }

    #[inline]
    fn value(&self, code: u32) -> f32 {
        code as f32 * self.step + self.least
    }
}

/// Groups and thresholds of all layers.
#[derive(Clone, Debug)]
pub struct Oaken {
    groups: Groups,
    /// K and V of each layer.
    thresholds: Vec<[Thresholds; 2]>,
    /// The means of channels, `[head][channel]`, subtracted from values; empty: none are.
    means: Vec<[Vec<f32>; 2]>,
    profile: u32,
}

impl Oaken {
    /// A codec with thresholds of K and V for each layer. `profile` is their id in frames.
    ///
    /// # Panics
    /// The number of intervals differs from that of the groups.
    #[must_use]
    pub fn new(groups: Groups, thresholds: Vec<[Thresholds; 2]>, profile: u32) -> Self {
        let intervals = groups.shares.len() - 1;
        assert!(thresholds.iter().flatten().all(|one| one.0.len() == intervals), "thresholds do not fit the groups");
        Self { groups, thresholds, means: Vec::new(), profile }
    }

    /// The same for values less the means of their channels: K and V of each layer,
    /// `[head][channel]`. It is not in the paper, which suffers from channels far from zero.
    /// Thresholds must be of centered values.
    #[must_use]
    pub fn with_means(self, means: Vec<[Vec<f32>; 2]>) -> Self {
        Self { means, ..self }
    }

    /// `Err`: there are means, of other layers or numbers of channels.
    fn means(&self, layer: u16, side: Side, channels: usize) -> Result<Option<&[f32]>, Declined> {
        if self.means.is_empty() {
            return Ok(None);
        }
        let means = &self.means.get(usize::from(layer)).ok_or(Declined)?[side as usize];
        if means.len() == channels { Ok(Some(means)) } else { Err(Declined) }
    }

    /// The shares of groups.
    #[must_use]
    pub const fn groups(&self) -> &Groups {
        &self.groups
    }

    fn thresholds(&self, layer: u16, side: Side) -> Option<&Thresholds> {
        Some(&self.thresholds.get(usize::from(layer))?[side as usize])
    }
}

/// A page that grows token by token.
#[derive(Debug)]
pub struct OakenWriter<'a> {
    codec: &'a Oaken,
    layer: u16,
    side: Side,
    heads: usize,
    dim: usize,
    scales: Vec<u8>,
    /// Dense codes, counts and entries of each head.
    parts: Vec<HeadParts>,
    tokens: u16,
    /// Bounds of the rest of the last token's values, by group.
    bounds: Vec<Interval>,
    centered: Vec<f32>,
}

/// The parameters of a token's codes.
pub(crate) struct Coder<'a> {
    pub groups: &'a Groups,
    pub intervals: &'a [Interval],
    pub grids: &'a [Grid],
}

impl Coder<'_> {
    /// Appends dense codes, counts and entries of one head's values.
    fn code_head(&self, values: &[f32], [dense, counts, entries]: &mut HeadParts) {
        for block in values.chunks(BLOCK) {
            let mut outliers = 0;
            let mut pending = None;
            for (place, &value) in block.iter().enumerate() {
                let (group, shifted) = shift(self.intervals, value);
                let code = self.grids[group].code(shifted);
                if group != self.groups.middle {
                    outliers += 1;
                    let entry = self.groups.pack(place, group, code).to_le_bytes();
                    entries.extend(&entry[..self.groups.entry_bytes()]);
                }
                let low = (code & 15) as u8;
                match pending.take() {
                    None => pending = Some(low),
                    Some(first) => dense.push(first | low << 4),
                }
            }
            dense.extend(pending);
            counts.push(outliers);
        }
    }
}

/// Widens bounds of the rest of values in each group.
fn bounds(intervals: &[Interval], values: &[f32], bounds: &mut [Interval]) -> Result<(), Declined> {
    for &value in values {
        if !value.is_finite() {
            return Err(Declined);
        }
        let (group, shifted) = shift(intervals, value);
        let bounds = &mut bounds[group];
        *bounds = (bounds.0.min(shifted), bounds.1.max(shifted));
    }
    Ok(())
}

/// Appends dense codes, counts and entries of a token's values, `[head][channel]`.
fn code_token(coder: &Coder<'_>, values: &[f32], dim: usize, heads: &mut [HeadParts]) {
    values.chunks_exact(dim).zip(heads).for_each(|(head, parts)| coder.code_head(head, parts));
}

impl<'a> OakenWriter<'a> {
    /// An empty page of one side of a layer.
    #[must_use]
    pub fn new(codec: &'a Oaken, layer: u16, side: Side, heads: u16, dim: u16) -> Self {
        let heads = usize::from(heads);
        let parts = vec![Default::default(); heads];
        let (scales, bounds, centered) = (Vec::new(), Vec::new(), Vec::new());
        Self { codec, layer, side, heads, dim: dim.into(), scales, parts, tokens: 0, bounds, centered }
    }

    /// Reserves room for what tokens usually take.
    fn reserve(&mut self, tokens: u16) {
        let values = self.dim * usize::from(tokens);
        for [dense, counts, entries] in &mut self.parts {
            dense.reserve(values / 2 + usize::from(tokens));
            counts.reserve(values / BLOCK + usize::from(tokens));
            entries.reserve(values / 4);
        }
    }

    /// Appends a token: values of all heads, `[head][channel]`. Earlier tokens do not change.
    ///
    /// # Errors
    /// A value is not finite, or too large for the scales. The token is not appended.
    ///
    /// # Panics
    /// The number of values is not heads times channels.
    pub fn push(&mut self, values: &[f32]) -> Result<(), Declined> {
        assert_eq!(values.len(), self.heads * self.dim, "values of a token");
        let codec = self.codec;
        let (groups, thresholds) = (&codec.groups, codec.thresholds(self.layer, self.side).ok_or(Declined)?);
        let means = codec.means(self.layer, self.side, values.len())?;
        self.centered.clear();
        let values = match means {
            None => values,
            Some(means) => {
                self.centered.extend(values.iter().zip(means).map(|(value, mean)| value - mean));
                &self.centered
            }
        };
        let (kernels, intervals) = (KERNELS.current(), thresholds.intervals());
        self.bounds.clear();
        self.bounds.resize(groups.shares.len(), (f32::INFINITY, f32::NEG_INFINITY));
        // SAFETY: `current` returns kernels of a level of this machine.
        unsafe { (kernels.bounds)(intervals, values, &mut self.bounds)? };
        let bounds: Option<Vec<(f16, f16)>> =
            self.bounds.iter().map(|&(least, greatest)| outwards(least, greatest)).collect();
        let bounds = bounds.ok_or(Declined)?;
        let coder = Coder { groups, intervals, grids: &grids(groups, &bounds) };
        for (least, greatest) in bounds {
            self.scales.extend(least.to_le_bytes());
            self.scales.extend(greatest.to_le_bytes());
        }
        // SAFETY: `current` returns kernels of a level of this machine.
        unsafe { (kernels.code_token)(&coder, values, self.dim, &mut self.parts) };
        self.tokens += 1;
        Ok(())
    }

    /// Tokens so far.
    #[must_use]
    pub const fn tokens(&self) -> u16 {
        self.tokens
    }

    /// Appends the payload of all tokens.
    pub fn payload(&self, payload: &mut Vec<u8>) {
        payload.extend(&self.scales);
        for part in 0..3 {
            self.parts.iter().for_each(|parts| payload.extend(&parts[part]));
        }
    }
}

impl GrowingPayload for OakenWriter<'_> {
    fn append(&mut self, page: &Page<'_>, first: usize) -> Result<(), Declined> {
        let PageKind { shape, element, layout, .. } = *page.kind();
        let mut values = Vec::with_capacity(shape.token_values());
        (first..shape.tokens.into()).try_for_each(|token| {
            values.clear();
            for head in 0..shape.heads.into() {
                let places = (0..shape.dim.into()).map(|channel| layout.place(shape, head, token, channel));
                values.extend(places.map(|place| page::load(element, page.bytes(), place)));
            }
            self.push(&values)
        })
    }

    fn payload(&self, _: &Page<'_>, payload: &mut Vec<u8>) -> Result<(), Declined> {
        Self::payload(self, payload);
        Ok(())
    }
}

/// The bounds as `f16`, rounded outwards; zeros for an empty group. `None`: they are too large.
pub(crate) fn outwards(least: f32, greatest: f32) -> Option<(f16, f16)> {
    if least > greatest {
        return Some((f16::ZERO, f16::ZERO));
    }
    let down = |value: f32| {
        let near = f16::from_f32(value);
        if near.to_f32() > value { next_down(near) } else { near }
    };
    // The order of values must not decide the sign of zero.
    let unsigned = |value: f16| if value == f16::ZERO { f16::ZERO } else { value };
    let (low, high) = (unsigned(down(least)), unsigned(-down(-greatest)));
    (low.is_finite() && high.is_finite()).then_some((low, high))
}

/// The next smaller half.
fn next_down(value: f16) -> f16 {
    match value.to_bits() {
        0 => f16::from_bits(0x8001),
        bits if bits & 0x8000 == 0 => f16::from_bits(bits - 1),
        bits => f16::from_bits(bits + 1),
    }
}

/// The grid of each group; others are unused.
pub(crate) type Grids = [Grid; GROUPS_MAX];

pub(crate) fn grids(groups: &Groups, bounds: &[(f16, f16)]) -> Grids {
    let last = bounds.len() - 1;
    let mut grids = [Grid::EMPTY; GROUPS_MAX];
    for (group, (grid, &(least, greatest))) in grids.iter_mut().zip(bounds).enumerate() {
        *grid = Grid::new(least, greatest, groups.bits_of(group), group < last);
    }
    grids
}

const MISSING: DecodeError = DecodeError::Payload("the number of outliers differs from the counts");
pub(crate) const OF_NO_GROUP: DecodeError = DecodeError::Payload("an outlier has no group");
pub(crate) const OF_NO_CHANNEL: DecodeError = DecodeError::Payload("an outlier is behind the last channel");

/// The parts of a payload.
#[derive(Clone, Copy)]
struct Parts<'a> {
    scales: &'a [u8],
    dense: &'a [u8],
    counts: &'a [u8],
    entries: &'a [u8],
    row_bytes: usize,
    row_blocks: usize,
}

impl<'a> Parts<'a> {
    fn of(groups: &Groups, shape: Shape, payload: &'a [u8]) -> Result<Self, DecodeError> {
        let short = DecodeError::Payload("codes are missing");
        let rows = usize::from(shape.heads) * usize::from(shape.tokens);
        let (blocks, rest) = (usize::from(shape.dim) / BLOCK, usize::from(shape.dim) % BLOCK);
        let (row_bytes, row_blocks) = (blocks * BLOCK / 2 + rest.div_ceil(2), usize::from(shape.dim).div_ceil(BLOCK));
        let (scales, payload) =
            payload.split_at_checked(usize::from(shape.tokens) * groups.shares.len() * 4).ok_or(short)?;
        let (dense, payload) = payload.split_at_checked(rows * row_bytes).ok_or(short)?;
        let (counts, entries) = payload.split_at_checked(rows * row_blocks).ok_or(short)?;
        let outliers: usize = counts.iter().map(|&count| usize::from(count)).sum();
        if entries.len() != outliers * groups.entry_bytes() {
            return Err(MISSING);
        }
        Ok(Self { scales, dense, counts, entries, row_bytes, row_blocks })
    }

    fn grids(&self, groups: &Groups, token: usize) -> Result<Grids, DecodeError> {
        let count = groups.shares.len();
        let mut bounds = [(f16::ZERO, f16::ZERO); GROUPS_MAX];
        let of_token = self.scales[token * 4 * count..].as_chunks().0.iter().take(count);
        for (bounds, [a, b, c, d]) in bounds.iter_mut().zip(of_token) {
            *bounds = (f16::from_le_bytes([*a, *b]), f16::from_le_bytes([*c, *d]));
            if !(bounds.0.is_finite() && bounds.1.is_finite() && bounds.0 <= bounds.1) {
                return Err(DecodeError::Payload("bounds of a group are not finite or in reverse order"));
            }
        }
        Ok(grids(groups, &bounds[..count]))
    }
}

impl PageCodec for Oaken {
    fn id(&self) -> CodecId {
        CodecId::Oaken
    }

    fn profile(&self) -> u32 {
        self.profile
    }

    fn encode_payload(&self, page: &Page<'_>, payload: &mut Vec<u8>) -> Result<(), Declined> {
        let kind = page.kind();
        if self.means.is_empty() {
            let intervals = self.thresholds(kind.layer, kind.side).ok_or(Declined)?.intervals();
            // SAFETY: `current` returns kernels of a level of this machine.
            if let Some(encoded) = unsafe { (KERNELS.current().encode)(&self.groups, intervals, page, payload) } {
                return encoded;
            }
        }
        let mut values = vec![0.0; kind.shape.values()];
        // SAFETY: `current` returns kernels of a level of this machine.
        unsafe { (KERNELS.current().read_tokens)(page, &mut values) };
        let mut writer = OakenWriter::new(self, kind.layer, kind.side, kind.shape.heads, kind.shape.dim);
        writer.reserve(kind.shape.tokens);
        values.chunks_exact(kind.shape.token_values()).try_for_each(|token| writer.push(token))?;
        writer.payload(payload);
        Ok(())
    }

    fn grow(&self, kind: &PageKind) -> Option<Box<dyn GrowingPayload + '_>> {
        Some(Box::new(OakenWriter::new(self, kind.layer, kind.side, kind.shape.heads, kind.shape.dim)))
    }

    fn decode_payload(&self, frame: &Frame<'_>, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
        let (shape, groups) = (frame.shape, &self.groups);
        let thresholds = self
            .thresholds(frame.layer, frame.side)
            .ok_or(DecodeError::Payload("the profile has no thresholds for this layer"))?;
        let means = self.means(frame.layer, frame.side, shape.token_values());
        let means = means.map_err(|Declined| DecodeError::Payload("the profile has no means for this layer"))?;
        let parts = Parts::of(groups, shape, frame.payload)?;
        let mut grids = Vec::with_capacity(shape.tokens.into());
        for token in 0..shape.tokens.into() {
            grids.push(parts.grids(groups, token)?);
        }
        let (intervals, entries) = (thresholds.intervals(), parts.entries);
        let mut restorer = Restorer { groups, intervals, means, grids, parts, entries };
        // SAFETY: `current` returns kernels of a level of this machine.
        unsafe { (KERNELS.current().decode)(&mut restorer, page) }
    }
}

/// Stores the values of a page as `[token][head][channel]`.
fn read_tokens(page: &Page<'_>, values: &mut [f32]) {
    let (shape, mut tile) = (page.kind().shape, Tile::ZERO);
    for span in Span::all(shape) {
        page.load_tile(&span, Axis::Tokens, &mut tile);
        for (token, row) in tile.0.chunks_exact(EDGE).enumerate().take(span.tokens) {
            let head = (span.token + token) * usize::from(shape.heads) + span.head;
            values[head * usize::from(shape.dim) + span.channel..][..span.channels]
                .copy_from_slice(&row[..span.channels]);
        }
    }
}

fn decode(restorer: &mut Restorer<'_>, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
    restorer.decode(page)
}

/// The state of decoding.
pub(crate) struct Restorer<'a> {
    pub groups: &'a Groups,
    pub intervals: &'a [Interval],
    /// The means of channels; only the reference adds them.
    means: Option<&'a [f32]>,
    /// The grids of each token.
    pub grids: Vec<Grids>,
    parts: Parts<'a>,
    /// Entries of the outliers that are left.
    entries: &'a [u8],
}

impl<'a> Restorer<'a> {
    /// Dense codes of a token's head, and the number of outliers of each block.
    pub fn row(&self, row: usize) -> (&'a [u8], &'a [u8]) {
        let Parts { dense, counts, row_bytes, row_blocks, .. } = self.parts;
        (&dense[row * row_bytes..][..row_bytes], &counts[row * row_blocks..][..row_blocks])
    }

    /// Entries of the next outliers.
    #[inline]
    pub fn next_outliers(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let bytes = count * self.groups.entry_bytes();
        let (entries, rest) = self.entries.split_at_checked(bytes).ok_or(MISSING)?;
        self.entries = rest;
        Ok(entries)
    }

    fn decode(&mut self, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
        let shape = page.kind().shape;
        let (tokens, dim) = (usize::from(shape.tokens), usize::from(shape.dim));
        let mut values = vec![0.0; shape.head_values()];
        for head in 0..usize::from(shape.heads) {
            for (token, values) in values.chunks_exact_mut(dim).enumerate() {
                let (dense, counts) = self.row(head * tokens + token);
                for ((values, dense), &count) in values.chunks_mut(BLOCK).zip(dense.chunks(BLOCK / 2)).zip(counts) {
                    self.decode_block(token, dense, count, values)?;
                }
            }
            if let Some(means) = self.means {
                let means = &means[head * dim..][..dim];
                let rows = values.chunks_exact_mut(dim);
                rows.for_each(|row| row.iter_mut().zip(means).for_each(|(value, mean)| *value += mean));
            }
            page.write_head(head, &values);
        }
        Ok(())
    }

    fn decode_block(&mut self, token: usize, dense: &[u8], count: u8, values: &mut [f32]) -> Result<(), DecodeError> {
        let low = |place: usize| u32::from(dense[place / 2] >> (4 * (place % 2)) & 15);
        for (place, value) in values.iter_mut().enumerate() {
            *value = self.value(token, self.groups.middle, low(place));
        }
        for entry in self.next_outliers(count.into())?.chunks_exact(self.groups.entry_bytes()) {
            let entry = u16::from_le_bytes([entry[0], entry.get(1).copied().unwrap_or(0)]);
            let (place, group, upper) = self.groups.unpack(entry).ok_or(OF_NO_GROUP)?;
            let value = values.get_mut(place).ok_or(OF_NO_CHANNEL)?;
            *value = self.value(token, group, upper | low(place));
        }
        Ok(())
    }

    fn value(&self, token: usize, group: usize, code: u32) -> f32 {
        let grid = &self.grids[token][group];
        let (low, high) = self.intervals.get(group).copied().unwrap_or((0.0, 0.0));
        grid.value(code) + if code < grid.cut { low } else { high }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_and_printed() {
        for text in ["4/90/6:5", "90/10:5", "10/90:5", "4/90/3/3:4", "2/2/90/6:5", "2/2/90/3/3:4"] {
            assert_eq!(text.parse::<Groups>().expect("one of Table 3").to_string(), text);
        }
        assert_eq!("4/90/6".parse(), Ok(Groups::default()));
        for text in ["", "100", "4/90/7", "50/50:6", "x/90", "1/1/1/1/1/95"] {
            assert!(text.parse::<Groups>().is_err(), "{text}");
        }
    }

    /// Four bits a value, an entry for each of a tenth of them, and the counts; entries of five bits need a second
    /// byte in four and five groups.
    #[test]
    fn entries_take_a_byte_or_two() {
        for (text, entry) in [
            ("4/90/6:5", 8.0),
            ("90/10:5", 8.0),
            ("10/90:5", 8.0),
            ("4/90/3/3:5", 16.0),
            ("2/2/90/6:5", 16.0),
            ("2/2/90/3/3:5", 16.0),
            ("4/90/3/3:4", 8.0),
            ("2/2/90/6:4", 8.0),
            ("2/2/90/3/3:4", 8.0),
        ] {
            let groups: Groups = text.parse().expect("groups");
            let (bits, counts) = (4.0 + 0.1 * entry, 0.125);
            assert!((groups.bits(usize::MAX) - counts - bits).abs() < 1e-9, "{text}: {}", groups.bits(usize::MAX));
        }
    }

    #[test]
    fn entries_are_unpacked() {
        for text in ["4/90/6:5", "90/10:5", "10/90:5", "2/2/90/3/3:5", "2/2/90/3/3:4"] {
            let groups: Groups = text.parse().expect("groups");
            for group in (0..groups.shares.len()).filter(|&group| group != groups.middle) {
                for code in [0, 9, 15, (1 << groups.outlier_bits) - 1] {
                    let entry = groups.pack(63, group, code);
                    assert!(groups.entry_bytes() == 2 || entry < 256);
                    assert_eq!(groups.unpack(entry), Some((63, group, code & !15)), "{text} {group} {code}");
                }
            }
        }
    }

    #[test]
    fn thresholds_divide_a_sample_by_the_shares() {
        let groups = Groups::default();
        let sample: Vec<f32> = (0..1000).map(|value| value as f32 - 499.5).collect();
        let thresholds = Thresholds::of_sample(&groups, &sample);
        let mut counts = [0; 3];
        sample.iter().for_each(|&value| counts[shift(&thresholds.0, value).0] += 1);
        assert_eq!(counts, [40, 900, 60]);
        let positive: Vec<f32> = sample.iter().map(|value| value.abs() + 1.0).collect();
        assert!(Thresholds::new(Thresholds::of_sample(&groups, &positive).0).is_some(), "nested where all is positive");
        assert_eq!(Thresholds::mean(&[thresholds.clone(), thresholds.clone()]), Some(thresholds));
    }

    #[test]
    fn bounds_are_rounded_outwards() {
        for value in [0.1, -0.1, 1e-9, -1e-9, 65503.0, 3.0, 0.0] {
            let (low, high) = outwards(value, value).expect("small enough");
            assert!(low.to_f32() <= value && value <= high.to_f32(), "{value} {low} {high}");
        }
        assert_eq!(outwards(0.0, 1e6), None);
        assert_eq!(outwards(f32::INFINITY, f32::NEG_INFINITY), Some((f16::ZERO, f16::ZERO)));
    }
}
