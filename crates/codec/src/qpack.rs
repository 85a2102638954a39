//! QPack, our own: a step for each channel, after the harm that errors there do to attention, and
//! widths after the values of a page.
//!
//! A profile knows the mean and a *step* of each channel. A code is `round((x - mean) / step)`.
//! Values are not clipped, so the error is at most half a step. Sixteen tokens of a channel share a
//! width: the least that fits all of them. Two codes together take `k` bits, so widths differ by
//! half bits (two codes of eleven levels fit seven bits). Codes of a channel lie together: decoding
//! has one mean, step and width for sixteen values, and its output is channel-major.
//!
//! Payload, for each head and each 16 tokens: width indices, a nibble for each channel, lower half
//! first, padded to whole bytes · for each channel `k` bytes: eight pairs of `k` bits, lowest
//! first. A pair is `code(t) + levels × code(t + 4)`, of tokens `t` 0 to 3, then 8 to 11. Index 15
//! means sixteen halves, for values too far from the mean. Missing tokens have the code of the
//! mean.

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

/// Codes of a tile: sixteen tokens of each channel.
type TileCodes = [i16; EDGE * EDGE];
/// Codes of a tile by the means and the steps of its channels.
type Codes = unsafe fn(&Page<'_>, &Span, &[f32], &[f32], &mut TileCodes) -> Result<(), Declined>;
/// Decodes up to sixteen tokens of a head from a token on. Returns the bytes behind them; `None`:
/// bytes are missing.
type DecodeGroup = for<'a> unsafe fn(&'a [u8], &Known<'_>, usize, &mut PageMut<'_>) -> Option<&'a [u8]>;

/// The kernels of QPack. Callers must guarantee that the machine has the level.
pub(crate) struct Kernels {
    encode_group: unsafe fn(&Page<'_>, &Known<'_>, usize, &mut Vec<u8>) -> Result<(), Declined>,
    decode_group: DecodeGroup,
    /// For QPackZ.
    pub codes: Codes,
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

/// Bytes that kernels read or write for a channel without halves, which may take fewer.
#[cfg(target_arch = "x86_64")]
const WINDOW: usize = 16;

/// A width of codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Width {
    /// Bits of a pair of codes, and bytes of a channel's sixteen codes.
    pub pair_bits: u8,
    /// The number of codes.
    pub levels: u16,
    /// The code of the mean.
    pub center: u16,
}

const fn width(pair_bits: u8, levels: u16, center: u16) -> Width {
    assert!((levels as u32) * (levels as u32) <= 1 << pair_bits && center < levels);
    Width { pair_bits, levels, center }
}

/// The index of channels that are stored as halves.
pub(crate) const HALVES: usize = 15;
pub(crate) const HALVES_BYTES: usize = 2 * GROUP;

/// Widths by index, in order of size. Widths of two and four levels lean to one side, so each has
/// two entries.
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

/// Statistics of the channels of K or V of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Channels {
    /// The mean of each channel, `[head][channel]`.
    pub means: Vec<f32>,
    /// The step of each channel.
    pub steps: Vec<f32>,
}

impl Channels {
    /// Whether all numbers are finite and steps have inverses.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let sound = |step: &f32| step.is_finite() && *step > 0.0 && (1.0 / step).is_finite();
        self.means.len() == self.steps.len()
            && self.means.iter().all(|mean| mean.is_finite())
            && self.steps.iter().all(sound)
    }
}

/// Codes without halves are less than this from the mean, also in forged payloads.
const CODES_END: i16 = 64;

/// Whether some code's value lies halfway between two bfloats. Without ties, an addition rounds.
fn has_ties(mean: f32, step: f32) -> bool {
    let is_tie = |code: i16| (f32::from(code) * step + mean).to_bits() & 0xffff == 0x8000;
    // Without a short circuit, the compiler vectorizes the loop.
    (-CODES_END..CODES_END).fold(false, |any, code| any | is_tie(code))
}

/// One side of a layer.
#[derive(Clone, Debug)]
struct Part {
    channels: Channels,
    /// Whether each channel [`has_ties`].
    ties: Vec<bool>,
}

impl Part {
    fn new(mut channels: Channels) -> Self {
        // Kernels may add zeros of either sign to a mean that is not -0.0.
        channels.means.iter_mut().for_each(|mean| *mean += 0.0);
        let ties = channels.means.iter().zip(&channels.steps).map(|(mean, step)| has_ties(*mean, *step)).collect();
        Self { channels, ties }
    }

    /// What is known of each head.
    fn by_head(&self, dim: usize) -> impl Iterator<Item = Known<'_>> {
        let Channels { means, steps } = &self.channels;
        let all = means.chunks_exact(dim).zip(steps.chunks_exact(dim)).zip(self.ties.chunks_exact(dim));
        all.enumerate().map(|(head, ((means, steps), ties))| Known { head, means, steps, ties })
    }
}

/// Statistics of a head's channels.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    pub head: usize,
    pub means: &'a [f32],
    pub steps: &'a [f32],
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "code for x86-64's vectors uses it"))]
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
    /// A codec from the statistics of K and V of each layer. `profile` is their id in frames.
    ///
    /// # Panics
    /// A mean is not finite, or a step has no inverse.
    #[must_use]
    pub fn new(channels: Vec<[Channels; 2]>, profile: u32) -> Self {
        assert!(channels.iter().flatten().all(Channels::is_sound), "a mean is not finite or a step has no inverse");
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
        for known in part.by_head(dim) {
            for token in (0..usize::from(shape.tokens)).step_by(GROUP) {
                encode_at(page, &known, token, payload)?;
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
        let part = part.ok_or(DecodeError::Payload("the profile has no steps for this layer"))?;
        let kernels = KERNELS.current();
        let mut rest = frame.payload;
        for known in part.by_head(dim) {
            for token in (0..usize::from(shape.tokens)).step_by(GROUP) {
                // SAFETY: `current` returns kernels of a level of this machine.
                let decoded = unsafe { (kernels.decode_group)(rest, &known, token, page) };
                rest = decoded.ok_or(DecodeError::Payload("codes are missing"))?;
            }
        }
        if rest.is_empty() { Ok(()) } else { Err(DecodeError::Payload("bytes follow the last code")) }
    }
}

/// A growing page. It keeps the codes of each whole sixteen tokens.
struct Growing<'a> {
    part: &'a Part,
    /// The codes of each head.
    heads: Vec<Vec<u8>>,
    /// Tokens of a head that are encoded.
    tokens: usize,
}

impl GrowingPayload for Growing<'_> {
    fn append(&mut self, page: &Page<'_>, _: usize) -> Result<(), Declined> {
        let shape = page.kind().shape;
        let whole = usize::from(shape.tokens) / GROUP * GROUP;
        for (known, encoded) in self.part.by_head(shape.dim.into()).zip(&mut self.heads) {
            for token in (self.tokens..whole).step_by(GROUP) {
                encode_at(page, &known, token, encoded)?;
            }
        }
        self.tokens = whole;
        Ok(())
    }

    fn payload(&self, page: &Page<'_>, payload: &mut Vec<u8>) -> Result<(), Declined> {
        let shape = page.kind().shape;
        for (known, encoded) in self.part.by_head(shape.dim.into()).zip(&self.heads) {
            payload.extend_from_slice(encoded);
            if self.tokens < shape.tokens.into() {
                encode_at(page, &known, self.tokens, payload)?;
            }
        }
        Ok(())
    }
}

/// Encodes up to sixteen tokens of a head from `token` on.
fn encode_at(page: &Page<'_>, known: &Known<'_>, token: usize, payload: &mut Vec<u8>) -> Result<(), Declined> {
    // SAFETY: `current` returns kernels of a level of this machine.
    unsafe { (KERNELS.current().encode_group)(page, known, token, payload) }
}

/// The steps from the mean to a value.
#[inline]
fn code_of(value: f32, mean: f32, inverse: f32) -> Result<i32, Declined> {
    if !f16::from_f32(value).is_finite() {
        return Err(Declined);
    }
    Ok(((value - mean) * inverse).round_ties_even() as i32)
}

/// Codes of a tile, by channel, saturated to 16 bits; zeros where the page has no values.
fn codes(page: &Page<'_>, span: &Span, means: &[f32], steps: &[f32], codes: &mut TileCodes) -> Result<(), Declined> {
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

/// Appends the codes of up to sixteen tokens of a head from `token` on.
fn encode_group(page: &Page<'_>, known: &Known<'_>, token: usize, payload: &mut Vec<u8>) -> Result<(), Declined> {
    let Known { head, means, steps, .. } = *known;
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

/// Encodes the values of a channel; missing tokens are zero. Returns the index of its width.
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
        // The cast saturates; only halves fit such codes.
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

/// The tokens of a pair. They are four apart, because widening 16-bit lanes to 32 puts these side
/// by side.
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

/// Decodes up to sixteen tokens of a head from `token` on. Returns the bytes behind them; `None`:
/// bytes are missing.
fn decode_group<'a>(
    payload: &'a [u8],
    &Known { head, means, steps, .. }: &Known<'_>,
    token: usize,
    page: &mut PageMut<'_>,
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

/// Sixteen codes of a width. Forged bits give codes beyond the levels, which do no harm.
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
    fn codes_of_every_width_are_unpacked() {
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
