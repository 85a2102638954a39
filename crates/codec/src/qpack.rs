//! QPack, our own: a step for each channel that follows how much attention feels an error there, and widths that follow what
//! a page has.
//!
//! Of each channel an offline profile knows the mean and a *step*. A code is `round((x - mean) / step)`; what the step buys is
//! a bound on the error, half a step, whatever the value: nothing is clipped. Sixteen tokens of a channel share a width, the
//! least that all of them fit: two codes together take `k` bits, so widths go by halves of a bit
//! (two codes of eleven values fit seven bits). Codes of a channel lie together, so decoding has one mean, one step and one
//! width for sixteen values, and its output is channel-major.
//!
//! Payload: for each head, for each 16 tokens: width indices, a nibble for each channel, lower half first, padded to whole
//! bytes · of each channel in turn, `k` bytes: eight pairs of `k` bits, lowest first; a pair is
//! `code(t) + levels × code(t + 4)`, of tokens `t` 0 to 3, then 8 to 11. Index 15 is sixteen halves instead: values too far from the mean.
//! Tokens that are not there have the code of the mean.

use crate::codec::{GrowingPayload, PageCodec};
use crate::error::{CodecId, Declined, DecodeError};
use crate::frame::Frame;
use crate::page::{Page, PageKind, PageMut, Side};
use crate::simd::ByLevel;
use crate::tile::{Axis, EDGE, Span, Tile};
use half::f16;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

/// What instruction sets do for QPack. Callers must guarantee that the machine has the level.
pub(crate) struct Kernels {
    encode_group: unsafe fn(&Page<'_>, usize, usize, &Known<'_>, &mut Vec<u8>) -> Result<(), Declined>,
    decode_group: for<'a> unsafe fn(&'a [u8], &Known<'_>, &mut PageMut<'_>, usize, usize) -> Option<&'a [u8]>,
    /// For QPackZ.
    pub codes: unsafe fn(&Page<'_>, &Span, &[f32], &[f32], &mut [i16; EDGE * EDGE]) -> Result<(), Declined>,
}

pub(crate) static KERNELS: ByLevel<Kernels> = ByLevel {
    scalar: Kernels { encode_group, decode_group, codes },
    #[cfg(target_arch = "x86_64")]
    avx2: Kernels { encode_group: avx2::encode_group, decode_group: avx2::decode_group, codes: avx2::codes },
    #[cfg(target_arch = "x86_64")]
    avx512: Kernels { encode_group: avx512::encode_group, decode_group: avx512::decode_group, codes: avx2::codes },
};

/// Tokens that share a width.
pub(crate) const GROUP: usize = 16;
pub(crate) const PAIRS: usize = GROUP / 2;

/// Bytes that kernels read or write for a channel that is not halves, of which it may take fewer.
#[cfg(target_arch = "x86_64")]
const WINDOW: usize = 16;

/// What a width index stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Width {
    /// Bits of a pair of codes, and bytes of a channel's sixteen.
    pub pair_bits: u8,
    /// How many codes there are.
    pub levels: u16,
    /// Which of them is the mean.
    pub center: u16,
}

const fn width(pair_bits: u8, levels: u16, center: u16) -> Width {
    assert!((levels as u32) * (levels as u32) <= 1 << pair_bits && center < levels);
    Width { pair_bits, levels, center }
}

/// Index of channels that are stored as halves.
pub(crate) const HALVES: usize = 15;
pub(crate) const HALVES_BYTES: usize = 2 * GROUP;

/// By index, in order of size. Two and four levels lean to one side, so there is one of each for either side.
pub(crate) const WIDTHS: [Width; HALVES] = [
    width(0, 1, 0),
    width(2, 2, 1),
    width(2, 2, 0),
    width(4, 4, 2),
    width(4, 4, 1),
    width(5, 5, 2),
    width(6, 8, 4),
    width(7, 11, 5),
    width(8, 16, 8),
    width(9, 22, 11),
    width(10, 32, 16),
    width(11, 45, 22),
    width(12, 64, 32),
    width(13, 90, 45),
    width(14, 128, 64),
];

impl Width {
    /// The index of the least width that codes from `least` to `greatest` fit.
    pub fn index_of(least: i32, greatest: i32) -> usize {
        let fits = |width: &Width| {
            let center = i32::from(width.center);
            -center <= least && greatest < i32::from(width.levels) - center
        };
        WIDTHS.iter().position(fits).unwrap_or(HALVES)
    }

    const fn bytes(index: usize) -> usize {
        if index == HALVES { HALVES_BYTES } else { WIDTHS[index].pair_bits as usize }
    }
}

/// What is known beforehand of the channels of one side of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Channels {
    /// The mean of each, `[head][channel]`.
    pub means: Vec<f32>,
    /// The step of each.
    pub steps: Vec<f32>,
}

impl Channels {
    /// Whether all of them are numbers, and steps have inverses.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let sound = |step: &f32| step.is_finite() && *step > 0.0 && (1.0 / step).is_finite();
        self.means.len() == self.steps.len()
            && self.means.iter().all(|mean| mean.is_finite())
            && self.steps.iter().all(sound)
    }
}

/// Codes that channels of no halves may have, also in payloads that nobody made, are less than this from the mean.
const CODES_END: i16 = 64;

/// Whether a code of a channel may stand for what lies halfway between two bfloats: to round others takes less.
fn has_ties(mean: f32, step: f32) -> bool {
    let is_tie = |code: i16| (f32::from(code) * step + mean).to_bits() & 0xffff == 0x8000;
    // No short circuit, so that many codes are looked at together.
    (-CODES_END..CODES_END).fold(false, |any, code| any | is_tie(code))
}

/// One side of a layer.
#[derive(Clone, Debug)]
struct Part {
    channels: Channels,
    /// Of each channel, whether it [`has_ties`].
    ties: Vec<bool>,
}

impl Part {
    fn new(mut channels: Channels) -> Self {
        // To a mean that is no negative zero kernels may add either zero.
        channels.means.iter_mut().for_each(|mean| *mean += 0.0);
        let ties = channels.means.iter().zip(&channels.steps).map(|(mean, step)| has_ties(*mean, *step)).collect();
        Self { channels, ties }
    }

    /// What is known of each head.
    fn by_head(&self, dim: usize) -> impl Iterator<Item = Known<'_>> {
        let Channels { means, steps } = &self.channels;
        let all = means.chunks_exact(dim).zip(steps.chunks_exact(dim)).zip(self.ties.chunks_exact(dim));
        all.map(|((means, steps), ties)| Known { means, steps, ties })
    }
}

/// What is known beforehand of a head's channels.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    pub means: &'a [f32],
    pub steps: &'a [f32],
    pub ties: &'a [bool],
}

/// Steps and means of all layers.
#[derive(Clone, Debug)]
pub struct QPack {
    /// K and V of each layer.
    parts: Vec<[Part; 2]>,
    profile: u32,
}

impl QPack {
    /// A codec with what is known of K and V of each layer. `profile` names all of that in frames.
    ///
    /// # Panics
    /// Some means are no numbers, or some steps too small to divide by.
    #[must_use]
    pub fn new(channels: Vec<[Channels; 2]>, profile: u32) -> Self {
        assert!(channels.iter().flatten().all(Channels::is_sound), "means and steps are numbers");
        Self { parts: channels.into_iter().map(|sides| sides.map(Part::new)).collect(), profile }
    }

    fn part(&self, layer: u16, side: Side, channels: usize) -> Option<&Part> {
        let part = &self.parts.get(usize::from(layer))?[side as usize];
        (part.ties.len() == channels).then_some(part)
    }
}

impl PageCodec for QPack {
    fn id(&self) -> CodecId {
        CodecId::QPack
    }

    fn profile(&self) -> u32 {
        self.profile
    }

    fn encode_payload(&self, page: &Page<'_>, payload: &mut Vec<u8>) -> Result<(), Declined> {
        let kind = page.kind();
        let (shape, dim) = (kind.shape, usize::from(kind.shape.dim));
        let part = self.part(kind.layer, kind.side, shape.token_values()).ok_or(Declined)?;
        for (head, known) in part.by_head(dim).enumerate() {
            for token in (0..usize::from(shape.tokens)).step_by(GROUP) {
                encode_at(page, head, token, &known, payload)?;
            }
        }
        Ok(())
    }

    fn grow(&self, kind: &PageKind) -> Option<Box<dyn GrowingPayload + '_>> {
        let part = self.part(kind.layer, kind.side, kind.shape.token_values())?;
        Some(Box::new(Growing { part, heads: vec![Vec::new(); kind.shape.heads.into()], tokens: 0 }))
    }

    fn decode_payload(&self, frame: &Frame<'_>, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
        let (shape, dim) = (frame.shape, usize::from(frame.shape.dim));
        let part = self.part(frame.layer, frame.side, shape.token_values());
        let part = part.ok_or(DecodeError::Payload("no steps of its layer"))?;
        let kernels = KERNELS.current();
        let mut rest = frame.payload;
        for (head, known) in part.by_head(dim).enumerate() {
            for token in (0..usize::from(shape.tokens)).step_by(GROUP) {
                // SAFETY: the machine has the current level.
                let decoded = unsafe { (kernels.decode_group)(rest, &known, page, head, token) };
                rest = decoded.ok_or(DecodeError::Payload("it is cut short"))?;
            }
        }
        if rest.is_empty() { Ok(()) } else { Err(DecodeError::Payload("codes of no channel")) }
    }
}

/// A page whose whole sixteens of tokens are kept as they were encoded.
struct Growing<'a> {
    part: &'a Part,
    /// Of each head, what such tokens became.
    heads: Vec<Vec<u8>>,
    /// Tokens of a head that are in it.
    tokens: usize,
}

impl GrowingPayload for Growing<'_> {
    fn append(&mut self, page: &Page<'_>, _: usize) -> Result<(), Declined> {
        let shape = page.kind().shape;
        let whole = usize::from(shape.tokens) / GROUP * GROUP;
        for (head, (known, encoded)) in self.part.by_head(shape.dim.into()).zip(&mut self.heads).enumerate() {
            for token in (self.tokens..whole).step_by(GROUP) {
                encode_at(page, head, token, &known, encoded)?;
            }
        }
        self.tokens = whole;
        Ok(())
    }

    fn payload(&self, page: &Page<'_>, payload: &mut Vec<u8>) -> Result<(), Declined> {
        let shape = page.kind().shape;
        for (head, (known, encoded)) in self.part.by_head(shape.dim.into()).zip(&self.heads).enumerate() {
            payload.extend_from_slice(encoded);
            if self.tokens < shape.tokens.into() {
                encode_at(page, head, self.tokens, &known, payload)?;
            }
        }
        Ok(())
    }
}

/// Encodes up to sixteen tokens of a head that begin with `token`.
fn encode_at(
    page: &Page<'_>,
    head: usize,
    token: usize,
    known: &Known<'_>,
    payload: &mut Vec<u8>,
) -> Result<(), Declined> {
    // SAFETY: the machine has the current level.
    unsafe { (KERNELS.current().encode_group)(page, head, token, known, payload) }
}

/// How many steps a value is from the mean.
#[inline]
fn code_of(value: f32, mean: f32, inverse: f32) -> Result<i32, Declined> {
    if !f16::from_f32(value).is_finite() {
        return Err(Declined);
    }
    Ok(((value - mean) * inverse).round_ties_even() as i32)
}

/// Codes of a tile, by channel, saturated to 16 bits; zeros where the page has no values.
fn codes(
    page: &Page<'_>,
    span: &Span,
    means: &[f32],
    steps: &[f32],
    codes: &mut [i16; EDGE * EDGE],
) -> Result<(), Declined> {
    let mut tile = Tile::ZERO;
    page.load_tile(span, Axis::Channels, &mut tile);
    codes.fill(0);
    let rows = codes.chunks_exact_mut(GROUP).zip(tile.0.chunks_exact(GROUP));
    for ((codes, values), (mean, step)) in rows.zip(means.iter().zip(steps)) {
        for (code, value) in codes.iter_mut().zip(values).take(span.tokens) {
            *code = code_of(*value, *mean, 1.0 / step)?.clamp(i16::MIN.into(), i16::MAX.into()) as i16;
        }
    }
    Ok(())
}

/// The same in plain code.
fn encode_group(
    page: &Page<'_>,
    head: usize,
    token: usize,
    Known { means, steps, .. }: &Known<'_>,
    payload: &mut Vec<u8>,
) -> Result<(), Declined> {
    let indices_at = payload.len();
    payload.resize(indices_at + means.len().div_ceil(2), 0);
    let mut tile = Tile::ZERO;
    for first in (0..means.len()).step_by(EDGE) {
        let span = Span::at(page.kind().shape, head, token, first);
        page.load_tile(&span, Axis::Channels, &mut tile);
        for (channel, values) in tile.0.chunks_exact(GROUP).enumerate().take(span.channels) {
            let channel = first + channel;
            let index = encode_channel(values, span.tokens, means[channel], steps[channel], payload)?;
            payload[indices_at + channel / 2] |= (index as u8) << (4 * (channel % 2));
        }
    }
    Ok(())
}

/// Encodes a channel's values, zeros where there are no tokens. Returns the index of its width.
fn encode_channel(
    values: &[f32],
    tokens: usize,
    mean: f32,
    step: f32,
    payload: &mut Vec<u8>,
) -> Result<usize, Declined> {
    let inverse = 1.0 / step;
    let mut codes = [0_i32; GROUP];
    for (code, &value) in codes.iter_mut().zip(&values[..tokens]) {
        // Too large a number becomes the largest, which no width but halves has room for.
        *code = code_of(value, mean, inverse)?;
    }
    let least = codes.iter().copied().min().expect("sixteen");
    let greatest = codes.iter().copied().max().expect("sixteen");
    let index = Width::index_of(least, greatest);
    if index == HALVES {
        values.iter().for_each(|&value| payload.extend(f16::from_f32(value).to_le_bytes()));
    } else {
        pack(&codes, WIDTHS[index], payload);
    }
    Ok(index)
}

/// The tokens of a pair: four apart, so that vector units find them side by side when they make 32-bit numbers of 16-bit ones.
const fn tokens_of(pair: usize) -> [usize; 2] {
    let first = pair % 4 + pair / 4 * 8;
    [first, first + 4]
}

/// Appends sixteen codes of a width.
fn pack(codes: &[i32; GROUP], width: Width, payload: &mut Vec<u8>) {
    let mut bits = 0_u128;
    for pair in 0..PAIRS {
        let code = |token: usize| (codes[token] + i32::from(width.center)).unsigned_abs();
        let [first, second] = tokens_of(pair);
        let pair_code = code(first) + u32::from(width.levels) * code(second);
        bits |= u128::from(pair_code) << (pair * usize::from(width.pair_bits));
    }
    payload.extend(&bits.to_le_bytes()[..usize::from(width.pair_bits)]);
}

/// Decodes up to sixteen tokens of a head that begin with `token`; returns what follows them. `None`: bytes are missing.
fn decode_group<'a>(
    payload: &'a [u8],
    Known { means, steps, .. }: &Known<'_>,
    page: &mut PageMut<'_>,
    head: usize,
    token: usize,
) -> Option<&'a [u8]> {
    let (indices, mut rest) = payload.split_at_checked(means.len().div_ceil(2))?;
    let mut tile = Tile::ZERO;
    for first in (0..means.len()).step_by(EDGE) {
        let span = Span::at(page.kind().shape, head, token, first);
        for (channel, values) in tile.0.chunks_exact_mut(GROUP).enumerate().take(span.channels) {
            let channel = first + channel;
            let index = usize::from(indices[channel / 2] >> (4 * (channel % 2)) & 15);
            let (bytes, behind) = rest.split_at_checked(Width::bytes(index))?;
            rest = behind;
            if index == HALVES {
                for (value, half) in values.iter_mut().zip(bytes.chunks_exact(2)) {
                    *value = f16::from_le_bytes([half[0], half[1]]).to_f32();
                }
                continue;
            }
            let width = WIDTHS[index];
            for (value, code) in values.iter_mut().zip(unpack(bytes, width)) {
                *value = (code - i32::from(width.center)) as f32 * steps[channel] + means[channel];
            }
        }
        page.store_tile(&span, Axis::Channels, &tile);
    }
    Some(rest)
}

/// Sixteen codes of a width. Bits that no codes were packed to give codes beyond the levels, and do no other harm.
fn unpack(bytes: &[u8], width: Width) -> [i32; GROUP] {
    let mut all = [0; 16];
    all[..bytes.len()].copy_from_slice(bytes);
    let bits = u128::from_le_bytes(all);
    let mut codes = [0; GROUP];
    for pair in 0..PAIRS {
        let code = (bits >> (pair * usize::from(width.pair_bits))) as u32 & ((1 << width.pair_bits) - 1);
        let [first, second] = tokens_of(pair);
        codes[first] = (code % u32::from(width.levels)).cast_signed();
        codes[second] = (code / u32::from(width.levels)).cast_signed();
    }
    codes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_every_width_come_back() {
        for (index, width) in WIDTHS.into_iter().enumerate() {
            let (least, levels) = (-i32::from(width.center), i32::from(width.levels));
            for shift in 0..levels {
                let codes: [i32; GROUP] = std::array::from_fn(|token| least + (token as i32 * 7 + shift) % levels);
                let mut bytes = Vec::new();
                pack(&codes, width, &mut bytes);
                assert_eq!(bytes.len(), Width::bytes(index));
                assert_eq!(unpack(&bytes, width).map(|code| code - i32::from(width.center)), codes, "{width:?}");
            }
            let chosen = Width::index_of(least, least + levels - 1);
            assert_eq!(WIDTHS[chosen], width, "nothing smaller has room for it");
        }
        assert_eq!(
            (Width::index_of(0, 0), Width::index_of(-64, 64), Width::index_of(i32::MIN, 0)),
            (0, HALVES, HALVES)
        );
    }
}
