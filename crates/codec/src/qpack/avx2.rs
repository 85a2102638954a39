//! QPack on AVX2: a channel is two registers, *split*; the tokens of a pair have the same lane in
//! both.
//!
//! Most tiles are *plain*: whole, of bfloats, without halves, and without ties. An addition rounds
//! their values. If the page has channels side by side, rounding already joins two channels in a
//! register.

mod encode;

pub use encode::{codes, encode_by, encode_group};

use super::{HALVES, HALVES_BYTES, Known, PAIRS, WIDTHS, WINDOW, Width};
use crate::page::PageMut;
use crate::simd::avx2::{BF16, F16, F32, bytes_at, load_bytes, load_half, widen, with_element};
use crate::simd::rows::{Rows, turned, whole};
use crate::tile::{Axis, EDGE, PageRows, Span, lie_in_a_row};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Bytes of a tile of halves, the longest.
const TILE_BYTES_MAX: usize = EDGE * HALVES_BYTES;
/// A whole tile of 16-bit elements: its rows begin `stride` bytes apart.
#[derive(Clone, Copy)]
pub struct WholeTile<'a> {
    pub means: &'a [f32; EDGE],
    pub steps: &'a [f32; EDGE],
    pub axis: Axis,
    pub stride: usize,
}

/// Bytes for the channels of a tile without halves.
pub type Windows<T> = [T; EDGE * WINDOW];

/// Whole tiles of 16-bit elements, for which instruction sets have kernels of their own.
///
/// # Safety
/// Callers must guarantee that the machine has the instruction set of the implementation.
pub trait Tiles {
    /// Decodes a tile without halves. Bfloats must have no ties. Returns the length of the tile's
    /// bytes; `None`: not supported.
    unsafe fn decode<const E: u8>(
        from: &Windows<u8>,
        nibbles: u64,
        tile: WholeTile<'_>,
        to: &mut [u8],
    ) -> Option<usize>;

    /// Encodes a tile. Returns the nibbles of widths and the length of the channels' bytes;
    /// `None`: not supported, or some channel needs halves.
    unsafe fn encode<const E: u8>(
        from: &[u8],
        tile: WholeTile<'_>,
        to: &mut Windows<MaybeUninit<u8>>,
    ) -> Option<(u64, usize)>;
}

/// AVX2.
enum Narrow {}

impl Tiles for Narrow {
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    #[inline]
    unsafe fn decode<const E: u8>(
        from: &Windows<u8>,
        nibbles: u64,
        tile: WholeTile<'_>,
        to: &mut [u8],
    ) -> Option<usize> {
        (E == BF16).then(|| match tile.axis {
            Axis::Tokens => decode_plain::<true>(from, nibbles, tile, to),
            Axis::Channels => decode_plain::<false>(from, nibbles, tile, to),
        })
    }

    unsafe fn encode<const E: u8>(
        _: &[u8],
        _: WholeTile<'_>,
        _: &mut Windows<MaybeUninit<u8>>,
    ) -> Option<(u64, usize)> {
        None
    }
}

/// A width, repeated for each lane so that instructions take it from memory.
#[repr(C, align(256))]
struct Lanes {
    /// Where the pair of a lane begins: three bytes of the window.
    bytes: [u8; 32],
    /// The first bit of the pair in these bytes.
    shifts: [u32; PAIRS],
    mask: [u32; PAIRS],
    /// The pair of two mean codes.
    center_pair: [u32; PAIRS],
    levels: [f32; PAIRS],
    /// The inverse of `levels`, and the addend with which the nearest integer is the upper code.
    inverse: [f32; PAIRS],
    leaning: [f32; PAIRS],
    /// Bytes of a channel.
    len: usize,
}

impl Lanes {
    const fn of(width: Width) -> Self {
        let bits = width.pair_bits as usize;
        let (levels, center) = (width.levels as f32, width.center as f32);
        let mut lanes = Self {
            bytes: [0x80; 32],
            shifts: [0; PAIRS],
            mask: [(1 << bits) - 1; PAIRS],
            center_pair: [width.center as u32 * (width.levels as u32 + 1); PAIRS],
            levels: [levels; PAIRS],
            inverse: [1.0 / levels; PAIRS],
            leaning: [(center - (levels - 1.0) / 2.0) / levels; PAIRS],
            len: bits,
        };
        let mut pair = 0;
        while pair < PAIRS {
            let at = pair * bits;
            lanes.shifts[pair] = (at % 8) as u32;
            let mut byte = 0;
            while byte < 3 {
                lanes.bytes[4 * pair + byte] = (at / 8 + byte) as u8;
                byte += 1;
            }
            pair += 1;
        }
        lanes
    }
}

/// By width index; the entry of halves is unused.
static LANES: [Lanes; HALVES + 1] = {
    let mut all = [const { Lanes::of(WIDTHS[0]) }; HALVES + 1];
    let mut index = 0;
    while index < HALVES {
        all[index] = Lanes::of(WIDTHS[index]);
        index += 1;
    }
    all
};

/// Sixteen codes of a width less the center, as `f32`, split. A zero may be negative.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn unpack(window: &[u8; WINDOW], lanes: &Lanes) -> [__m256; 2] {
    let bytes = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_half(window)), load_bytes(&lanes.bytes));
    let pairs = _mm256_and_si256(_mm256_srlv_epi32(bytes, words(&lanes.shifts)), words(&lanes.mask));
    let pairs = _mm256_cvtepi32_ps(_mm256_sub_epi32(pairs, words(&lanes.center_pair)));
    // Exact: errors of quotients are less than their distance from ties, and products are below
    // 2^14.
    let near = _mm256_fmadd_ps(pairs, numbers(&lanes.inverse), numbers(&lanes.leaning));
    let high = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(near);
    [_mm256_fnmadd_ps(high, numbers(&lanes.levels), pairs), high]
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn words(from: &[u32; PAIRS]) -> __m256i {
    // SAFETY: `from` has eight words; the load needs no alignment.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn numbers(from: &[f32; PAIRS]) -> __m256 {
    // SAFETY: `from` has eight numbers; the load needs no alignment.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}

/// Decodes up to sixteen tokens of a head from `token` on. Returns the bytes behind them; `None`:
/// bytes are missing.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn decode_group<'a>(
    payload: &'a [u8],
    known: &Known<'_>,
    token: usize,
    page: &mut PageMut<'_>,
) -> Option<&'a [u8]> {
    // SAFETY: AVX2 is enabled in this function.
    unsafe { decode_by::<Narrow>(payload, known, token, page) }
}

/// As [`decode_group`], with whole tiles decoded by `T`.
///
/// # Safety
/// Callers must guarantee that the machine has AVX2 and the instruction set of `T`.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub unsafe fn decode_by<'a, T: Tiles>(
    payload: &'a [u8],
    known: &Known<'_>,
    token: usize,
    page: &mut PageMut<'_>,
) -> Option<&'a [u8]> {
    // SAFETY: the caller guarantees the instruction set of `T`.
    with_element!(page.kind().element, E, unsafe { decode_as::<E, T>(payload, known, token, page) })
}

/// # Safety
/// As for [`decode_by`].
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
unsafe fn decode_as<'a, const E: u8, T: Tiles>(
    payload: &'a [u8],
    known: &Known<'_>,
    token: usize,
    page: &mut PageMut<'_>,
) -> Option<&'a [u8]> {
    let (kind, axis, head) = (*page.kind(), page.axis(), known.head);
    let (indices, mut rest) = payload.split_at_checked(known.means.len().div_ceil(2))?;
    let mut rows = Rows::zero();
    let in_a_row = E != F32 && lie_in_a_row(&kind);
    let first_place = 2 * kind.layout.place(kind.shape, head, token, 0);
    for (number, indices) in indices.chunks(EDGE / 2).enumerate() {
        let (means, steps) = (&known.means[number * EDGE..], &known.steps[number * EDGE..]);
        let mut nibbles = [0; EDGE / 2];
        nibbles[..indices.len()].copy_from_slice(indices);
        let nibbles = u64::from_le_bytes(nibbles);
        let is_known = (known.ties.get(number * EDGE..)).is_some_and(|ties| ties.len() >= EDGE && !any(&ties[..EDGE]));
        let of_page = || PageRows::of(&kind, &Span::at(kind.shape, head, token, number * EDGE));
        let place = if in_a_row {
            let first = first_place + number * 2 * EDGE * EDGE;
            Some((first..first + 2 * EDGE * EDGE, 2 * EDGE))
        } else {
            whole::<E>(&of_page())
        };
        if let (Some(window), Some((place, stride))) = (rest.first_chunk(), place)
            && let (Some(means), Some(steps)) = (means.first_chunk(), steps.first_chunk())
            && (is_known || E == F16)
            && !has_halves(nibbles)
        {
            let (to, tile) = (&mut page.bytes_mut()[place], WholeTile { means, steps, axis, stride });
            // SAFETY: the caller guarantees the instruction set of `T`.
            if let Some(len) = unsafe { T::decode::<E>(window, nibbles, tile, to) } {
                rest = &rest[len..];
                continue;
            }
        }
        let len = if rest.len() < TILE_BYTES_MAX {
            let mut padded = [0; TILE_BYTES_MAX + WINDOW];
            padded[..rest.len()].copy_from_slice(rest);
            decode_tile::<E>(&padded, nibbles, means, steps, &mut rows)
        } else {
            decode_tile::<E>(rest, nibbles, means, steps, &mut rows)
        };
        rest = rest.get(len..)?;
        rows.store::<E>(page.bytes_mut(), &of_page(), Axis::Channels);
    }
    Some(rest)
}

/// Whether any is true, without a branch for each.
fn any(all: &[bool]) -> bool {
    all.iter().fold(false, |any, one| any | one)
}

/// Whether one of sixteen indices is that of halves.
const fn has_halves(nibbles: u64) -> bool {
    let both = nibbles & (nibbles >> 1);
    both & (both >> 2) & 0x1111_1111_1111_1111 != 0
}

/// Values of a channel, split. Their upper 16 bits are the rounded bfloats.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn plain_values(window: &[u8; WINDOW], lanes: &Lanes, mean: f32, step: f32) -> [__m256i; 2] {
    let (mean, step, half) = (_mm256_set1_ps(mean), _mm256_set1_ps(step), _mm256_set1_epi32(0x8000));
    let [first, second] = unpack(window, lanes);
    let first = _mm256_add_ps(_mm256_mul_ps(first, step), mean);
    let second = _mm256_add_ps(_mm256_mul_ps(second, step), mean);
    [_mm256_add_epi32(_mm256_castps_si256(first), half), _mm256_add_epi32(_mm256_castps_si256(second), half)]
}

/// Decodes a plain tile to rows that begin `stride` bytes apart; `TURNED`: rows of tokens. Returns
/// the length of the tile's bytes.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn decode_plain<const TURNED: bool>(bytes: &Windows<u8>, nibbles: u64, tile: WholeTile<'_>, to: &mut [u8]) -> usize {
    let WholeTile { means, steps, stride, .. } = tile;
    assert!(to.len() >= (EDGE - 1) * stride + 2 * EDGE, "room for sixteen rows");
    let first = to.as_mut_ptr();
    // SAFETY: the assertion above: sixteen rows lie in `to`.
    let store = |row: usize, bits: __m256i| unsafe { _mm256_storeu_si256(first.add(row * stride).cast(), bits) };
    let (mut at, mut rest) = (0, nibbles);
    let mut pairs = [[_mm256_setzero_si256(); EDGE / 2]; 2];
    for start in (0..EDGE).step_by(2) {
        let mut both = [[_mm256_setzero_si256(); 2]; 2];
        for (odd, values) in both.iter_mut().enumerate() {
            let (lanes, channel) = (&LANES[(rest & 15) as usize], start + odd);
            // SAFETY: `bytes` has sixteen windows, and each channel takes at most one.
            let window = unsafe { &*bytes.as_ptr().add(at).cast() };
            *values = plain_values(window, lanes, means[channel], steps[channel]);
            (at, rest) = (at + lanes.len, rest >> 4);
        }
        let [even, odd] = both;
        if TURNED {
            for half in 0..2 {
                pairs[half][start / 2] = _mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<16>(even[half]), odd[half]);
            }
            continue;
        }
        for (odd, [first, second]) in both.into_iter().enumerate() {
            let elements = _mm256_packus_epi32(_mm256_srli_epi32::<16>(first), _mm256_srli_epi32::<16>(second));
            store(start + odd, elements);
        }
    }
    if !TURNED {
        return at;
    }
    for (half, pairs) in pairs.iter().enumerate() {
        for (token, [near, far]) in turned(pairs).into_iter().enumerate() {
            store(4 * half + token, near);
            store(4 * half + token + 8, far);
        }
    }
    at
}

/// Decodes a tile from bytes that are long enough for any tile. Returns the length of the tile's
/// bytes.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn decode_tile<const E: u8>(bytes: &[u8], nibbles: u64, means: &[f32], steps: &[f32], rows: &mut Rows) -> usize {
    let (mut at, mut nibbles) = (0, nibbles);
    for (channel, (&mean, &step)) in means.iter().zip(steps).enumerate().take(EDGE) {
        let index = (nibbles & 15) as usize;
        nibbles >>= 4;
        if index != HALVES {
            let (mean, step) = (_mm256_set1_ps(mean), _mm256_set1_ps(step));
            let lanes = &LANES[index];
            let [first, second] = unpack(bytes_at(bytes, at), lanes);
            let first = _mm256_add_ps(_mm256_mul_ps(first, step), mean);
            let second = _mm256_add_ps(_mm256_mul_ps(second, step), mean);
            rows.set::<E, false>(channel, [first, second]);
            at += lanes.len;
        } else {
            // Halves of a forged frame may be NaN.
            rows.set::<E, true>(channel, widen::<F16>(load_bytes(bytes_at(bytes, at))));
            at += HALVES_BYTES;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::encode::width_indices;
    use super::*;
    use crate::simd::avx2::store_half;

    /// These tests fail, rather than pass without a check, on machines without AVX2.
    fn has_avx2() -> bool {
        crate::simd::Level::available().contains(&crate::simd::Level::Avx2)
    }

    /// All pairs of every width, including forged ones.
    #[test]
    fn unpacking_equals_division_for_every_pair() {
        assert!(has_avx2(), "run these tests on a machine with AVX2");
        for (width, lanes) in WIDTHS.iter().zip(&LANES) {
            for first in (0..1_u32 << width.pair_bits).step_by(PAIRS) {
                let pair = |lane: usize| (first + lane as u32) & ((1 << width.pair_bits) - 1);
                let bits = (0..PAIRS)
                    .fold(0, |all, lane| all | u128::from(pair(lane)) << (lane * usize::from(width.pair_bits)));
                // Bits of the next channel.
                let behind =
                    (u128::MAX << (PAIRS * usize::from(width.pair_bits) % 128)) & !u128::from(width.pair_bits == 0);
                let mut codes = [[0.0; PAIRS]; 2];
                // SAFETY: the machine has AVX2, by the assertion above, and each array has eight
                // numbers.
                unsafe {
                    let unpacked = unpack(&(bits | behind).to_le_bytes(), lanes);
                    codes
                        .iter_mut()
                        .zip(unpacked)
                        .for_each(|(codes, eight)| _mm256_storeu_ps(codes.as_mut_ptr(), eight));
                }
                let (levels, center) = (u32::from(width.levels), f32::from(width.center));
                for (lane, (low, high)) in codes[0].iter().zip(&codes[1]).enumerate() {
                    // A zero may be negative, which adding a mean corrects.
                    let code = |code: u32| code as f32 - center;
                    assert_eq!(*low, code(pair(lane) % levels), "{width:?}");
                    assert_eq!(*high, code(pair(lane) / levels), "{width:?}");
                }
            }
        }
    }

    #[test]
    fn width_indices_equal_those_of_the_reference() {
        assert!(has_avx2(), "run these tests on a machine with AVX2");
        let ends = || (-70..=70).chain([i16::MIN, -1000, 1000, i16::MAX]);
        for (least, greatest) in ends().flat_map(|a| ends().map(move |b| (a.min(b), a.max(b)))) {
            for place in 0..EDGE {
                // Both ends are anywhere in a channel, other codes in between; channels differ.
                let channel = |channel: usize| {
                    let mut codes = [least; EDGE];
                    codes[(place + channel) % EDGE] = greatest;
                    if channel % 3 == 2 { [0; EDGE] } else { codes }
                };
                let all: [[i16; EDGE]; EDGE] = std::array::from_fn(channel);
                let mut indices = [0; EDGE];
                // SAFETY: the machine has AVX2, by the assertion above, and each array has sixteen
                // words.
                unsafe {
                    let all = all.map(|codes| _mm256_loadu_si256(codes.as_ptr().cast()));
                    store_half(&mut indices, width_indices(&all));
                }
                for (codes, index) in all.iter().zip(indices) {
                    let ends = (codes.iter().min().copied(), codes.iter().max().copied());
                    let (Some(least), Some(greatest)) = ends else { unreachable!("sixteen") };
                    assert_eq!(
                        usize::from(index),
                        Width::index_of(least.into(), greatest.into()),
                        "{least} {greatest}"
                    );
                }
            }
        }
    }
}
