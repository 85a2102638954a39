//! QPack on AVX-512: a lane is a channel, and a register holds one pair of each. Widths and
//! channels vary by lane, and shifts pack and unpack codes.

use super::avx2::{self, Tiles, WholeTile, Windows};
use super::{HALVES, Known, WIDTHS, Width};
use crate::error::Declined;
use crate::page::{Page, PageMut};
use crate::simd::avx2::{BF16, F32};
use crate::simd::avx512::{Lanes, PAIRS, load_pairs, narrow, numbers, store_pairs, widen};
use crate::tile::{Axis, EDGE};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// As [`avx2::encode_group`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
pub fn encode_group(page: &Page<'_>, known: &Known<'_>, token: usize, payload: &mut Vec<u8>) -> Result<(), Declined> {
    // SAFETY: AVX-512 is enabled in this function, which implies AVX2.
    unsafe { avx2::encode_by::<Wide>(page, known, token, payload) }
}

/// As [`avx2::decode_group`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
pub fn decode_group<'a>(
    payload: &'a [u8],
    known: &Known<'_>,
    token: usize,
    page: &mut PageMut<'_>,
) -> Option<&'a [u8]> {
    // SAFETY: AVX-512 is enabled in this function, which implies AVX2.
    unsafe { avx2::decode_by::<Wide>(payload, known, token, page) }
}

/// AVX-512.
enum Wide {}

impl Tiles for Wide {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
    unsafe fn decode<const E: u8>(
        from: &Windows<u8>,
        nibbles: u64,
        tile: WholeTile<'_>,
        to: &mut [u8],
    ) -> Option<usize> {
        (E != F32).then(|| match tile.axis {
            Axis::Tokens => decode_tile::<E, true>(from, nibbles, tile, to),
            Axis::Channels => decode_tile::<E, false>(from, nibbles, tile, to),
        })
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
    unsafe fn encode<const E: u8>(
        from: &[u8],
        tile: WholeTile<'_>,
        to: &mut Windows<MaybeUninit<u8>>,
    ) -> Option<(u64, usize)> {
        match tile.axis {
            _ if E == F32 => None,
            Axis::Tokens => encode_tile::<E, true>(from, tile, to),
            Axis::Channels => encode_tile::<E, false>(from, tile, to),
        }
    }
}

/// Added to an integer below 2^23, its sum has the integer in the lower bits of an `f32`.
const MAGIC: u32 = 0x4b00_0000;

/// A table by width index.
macro_rules! by_width {
    ($kind:ty, |$width:ident| $what:expr) => {{
        const fn of($width: Width) -> $kind {
            $what
        }
        let mut all = [of(WIDTHS[0]); EDGE];
        let mut index = 0;
        while index < HALVES {
            all[index] = of(WIDTHS[index]);
            index += 1;
        }
        Lanes(all)
    }};
}

/// Bits of a pair of codes, and their mask.
static BITS: Lanes<u32, EDGE> = by_width!(u32, |width| width.pair_bits as u32);
static MASKS: Lanes<u32, EDGE> = by_width!(u32, |width| (1 << width.pair_bits) - 1);
static LEVELS: Lanes<f32, EDGE> = by_width!(f32, |width| width.levels as f32);
/// The pair of two mean codes.
static CENTERS: Lanes<f32, EDGE> = by_width!(f32, |width| (width.center as u32 * (width.levels as u32 + 1)) as f32);
/// The inverse of the levels, and the addend with which the nearest integer is the upper code.
static INVERSES: Lanes<f32, EDGE> = by_width!(f32, |width| 1.0 / width.levels as f32);
static LEANING: Lanes<f32, EDGE> =
    by_width!(f32, |width| (width.center as f32 - (width.levels as f32 - 1.0) / 2.0) / width.levels as f32);

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn look_up<T: Copy>(indices: __m512i, table: &Lanes<T, EDGE>) -> __m512i {
    _mm512_permutexvar_epi32(indices, table.load())
}

/// Decodes a tile without halves to rows that begin `stride` bytes apart; `TOKENS`: rows of tokens.
/// Bfloats must have no ties. Returns the length of the tile's bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
fn decode_tile<const E: u8, const TOKENS: bool>(
    bytes: &Windows<u8>,
    nibbles: u64,
    WholeTile { means, steps, stride, .. }: WholeTile<'_>,
    to: &mut [u8],
) -> usize {
    let shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    let both = _mm512_castsi128_si512(_mm_cvtsi64_si128(nibbles.cast_signed()));
    let both = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), both);
    // Lookups use the lowest four bits of a lane.
    let indices = _mm512_srlv_epi32(both, shifts);
    let bits = look_up(indices, &BITS);
    let (windows, len) = windows(bytes, bits);

    let mask = look_up(indices, &MASKS);
    let centers = _mm512_add_ps(_mm512_castsi512_ps(look_up(indices, &CENTERS)), _mm512_set1_ps(8_388_608.0));
    let levels = _mm512_castsi512_ps(look_up(indices, &LEVELS));
    let inverses = _mm512_castsi512_ps(look_up(indices, &INVERSES));
    let leaning = _mm512_castsi512_ps(look_up(indices, &LEANING));
    let (means, steps) = (numbers(means), numbers(steps));
    // The values of a pair: of a token, and of the fourth token after it.
    let values = |pair: __m512i| {
        let pair = _mm512_ternarylogic_epi32::<0xea>(pair, mask, _mm512_set1_epi32(MAGIC.cast_signed()));
        let pair = _mm512_sub_ps(_mm512_castsi512_ps(pair), centers);
        // Exact: errors of quotients are less than their distance from ties, and products are below
        // 2^14.
        let near = _mm512_fmadd_ps(pair, inverses, leaning);
        let high = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(near);
        let low = _mm512_fnmadd_ps(high, levels, pair);
        [low, high].map(|code| _mm512_add_ps(_mm512_mul_ps(code, steps), means))
    };
    let twice = _mm512_add_epi32(bits, bits);
    let mut tile = [_mm512_setzero_si512(); PAIRS];
    for (half, [low, high]) in halves(&windows, bits).into_iter().enumerate() {
        let third = _mm512_shrdv_epi32(low, high, twice);
        let second = _mm512_shrdv_epi32(low, high, bits);
        let fourth = _mm512_shrdv_epi32(third, _mm512_srlv_epi32(high, twice), bits);
        for (number, [first, second]) in [[low, second], [third, fourth]].into_iter().enumerate() {
            let ([near, far], [near_next, far_next]) = (values(first), values(second));
            tile[4 * half + number] = narrow::<E>([near, near_next]);
            tile[4 * half + number + 2] = narrow::<E>([far, far_next]);
        }
    }
    store_pairs::<TOKENS>(&tile, to, stride);
    len
}

/// Sixteen bytes of each channel, four to a lane; and the end of the last channel.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn windows(bytes: &Windows<u8>, lens: __m512i) -> ([__m512i; 4], usize) {
    let mut ends = _mm512_cvtepi32_epi8(lens);
    ends = _mm_add_epi8(ends, _mm_slli_si128::<1>(ends));
    ends = _mm_add_epi8(ends, _mm_slli_si128::<2>(ends));
    ends = _mm_add_epi8(ends, _mm_slli_si128::<4>(ends));
    ends = _mm_add_epi8(ends, _mm_slli_si128::<8>(ends));
    let mut places = [0_u8; EDGE + 1];
    // SAFETY: `places` has sixteen bytes behind the first; the store needs no alignment.
    unsafe { _mm_storeu_si128(places.as_mut_ptr().add(1).cast(), ends) };
    let window = |channel: usize| {
        // SAFETY: `bytes` has sixteen windows, and each channel takes at most one.
        unsafe { _mm_loadu_si128(bytes.as_ptr().add(usize::from(places[channel])).cast()) }
    };
    let four = |first: usize| {
        let four = _mm512_castsi128_si512(window(first));
        let four = _mm512_inserti32x4::<1>(four, window(first + 4));
        let four = _mm512_inserti32x4::<2>(four, window(first + 8));
        _mm512_inserti32x4::<3>(four, window(first + 12))
    };
    let [a, b, c, d] = [four(0), four(1), four(2), four(3)];
    let [near, near_next] = [_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d)];
    let [far, far_next] = [_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d)];
    let windows = [
        _mm512_unpacklo_epi64(near, near_next),
        _mm512_unpackhi_epi64(near, near_next),
        _mm512_unpacklo_epi64(far, far_next),
        _mm512_unpackhi_epi64(far, far_next),
    ];
    (windows, places[EDGE].into())
}

/// The lower 64 bits of windows, and 64 bits from the fifth pair on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn halves(&[a, b, c, d]: &[__m512i; 4], bits: __m512i) -> [[__m512i; 2]; 2] {
    let shift = _mm512_slli_epi32::<2>(bits);
    let is_next = _mm512_cmpgt_epi32_mask(shift, _mm512_set1_epi32(31));
    let [low, middle, high] = [[a, b], [b, c], [c, d]].map(|[here, next]| _mm512_mask_blend_epi32(is_next, here, next));
    [[a, b], [_mm512_shrdv_epi32(low, middle, shift), _mm512_shrdv_epi32(middle, high, shift)]]
}

/// The least width that fits codes so far below the mean, or above it, whatever the other side.
const fn rooms(is_below: bool) -> [Lanes<u8, 64>; 2] {
    let mut all = [0; 128];
    let mut reach = 0;
    while reach < 128 {
        let mut index = 0;
        while index < HALVES {
            let width = WIDTHS[index];
            let room = if is_below { width.center } else { width.levels - 1 - width.center };
            if room as usize >= reach {
                break;
            }
            index += 1;
        }
        all[reach] = index as u8;
        reach += 1;
    }
    let (low, high) = all.split_at(64);
    let (Some(low), Some(high)) = (low.first_chunk(), high.first_chunk()) else { panic!("two halves") };
    [Lanes(*low), Lanes(*high)]
}

static BELOW: [Lanes<u8, 64>; 2] = rooms(true);
static ABOVE: [Lanes<u8, 64>; 2] = rooms(false);

/// The width index of each channel, as [`Width::index_of`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn width_indices(least: __m512, greatest: __m512) -> __m512i {
    let index = |reach: __m512, [low, high]: &[Lanes<u8, 64>; 2]| {
        let reach = _mm512_max_ps(_mm512_min_ps(reach, _mm512_set1_ps(127.0)), _mm512_setzero_ps());
        // The upper bytes of a lane look up index zero's width, which is zero.
        _mm512_permutex2var_epi8(low.load(), _mm512_cvtps_epi32(reach), high.load())
    };
    let below = index(_mm512_sub_ps(_mm512_setzero_ps(), least), &BELOW);
    let above = index(greatest, &ABOVE);
    let index = _mm512_max_epi32(below, above);
    // Two widths of one size lean to different sides: the next width fits both.
    let one = _mm512_set1_epi32(1);
    let leans = _mm512_cmplt_epi32_mask(above, _mm512_set1_epi32(5));
    let leans = _mm512_mask_cmpeq_epi32_mask(leans, _mm512_add_epi32(below, one), above);
    _mm512_mask_add_epi32(index, leans, index, one)
}

/// Encodes a tile to the beginning of the room. Returns the nibbles of widths and the length of the
/// channels' bytes; `None`: some channel needs halves, or has values beyond them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
fn encode_tile<const E: u8, const TOKENS: bool>(
    bytes: &[u8],
    WholeTile { means, steps, stride, .. }: WholeTile<'_>,
    room: &mut Windows<MaybeUninit<u8>>,
) -> Option<(u64, usize)> {
    let tile = load_pairs::<TOKENS>(bytes, stride);
    let magnitude = |pair: __m512i| _mm512_and_si512(pair, _mm512_set1_epi16(i16::MAX));
    let largest = tile.iter().fold(_mm512_setzero_si512(), |all, pair| _mm512_max_epu16(all, magnitude(*pair)));
    // The largest magnitude that rounds to a finite half.
    let most = if E == BF16 { 0x477f } else { 0x7bff };
    if _mm512_cmpgt_epu16_mask(largest, _mm512_set1_epi16(most)) != 0 {
        return None;
    }
    let (means, inverses) = (numbers(means), _mm512_div_ps(_mm512_set1_ps(1.0), numbers(steps)));
    let code = |value: __m512| {
        let scaled = _mm512_mul_ps(_mm512_sub_ps(value, means), inverses);
        _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(scaled)
    };
    let mut codes = [[_mm512_setzero_ps(); 2]; PAIRS];
    let (mut least, mut greatest) = (_mm512_setzero_ps(), _mm512_setzero_ps());
    for (codes, pair) in codes.iter_mut().zip(tile) {
        *codes = widen::<E>(pair).map(code);
        least = _mm512_min_ps(least, _mm512_min_ps(codes[0], codes[1]));
        greatest = _mm512_max_ps(greatest, _mm512_max_ps(codes[0], codes[1]));
    }
    let indices = width_indices(least, greatest);
    if _mm512_cmpeq_epi32_mask(indices, _mm512_set1_epi32(HALVES as i32)) != 0 {
        return None;
    }
    let bits = look_up(indices, &BITS);
    let levels = _mm512_castsi512_ps(look_up(indices, &LEVELS));
    let centers = _mm512_castsi512_ps(look_up(indices, &CENTERS));
    let pair = |token: usize| {
        let [near, far] = [codes[token / 2][token % 2], codes[token / 2 + 2][token % 2]];
        _mm512_cvtps_epi32(_mm512_add_ps(_mm512_fmadd_ps(far, levels, near), centers))
    };
    // Four pairs, below 64 bits: the lower 32, and the rest.
    let twice = _mm512_add_epi32(bits, bits);
    let rest = _mm512_sub_epi32(_mm512_set1_epi32(32), twice);
    let four = |token: usize| {
        let two = |token: usize| _mm512_or_si512(pair(token), _mm512_sllv_epi32(pair(token + 1), bits));
        let [near, far] = [two(token), two(token + 2)];
        [_mm512_or_si512(near, _mm512_sllv_epi32(far, twice)), _mm512_srlv_epi32(far, rest)]
    };
    let [first, second] = [four(0), four(8)];
    let shift = _mm512_slli_epi32::<2>(bits);
    let zero = _mm512_setzero_si512();
    // Channels as two lanes of 64 bits: the first two of four channels, and the others.
    let join = |first: __m512i, second: __m512i, shift: __m512i| {
        let near = _mm512_or_si512(first, _mm512_sllv_epi64(second, shift));
        let far = _mm512_srlv_epi64(second, _mm512_sub_epi64(_mm512_set1_epi64(64), shift));
        [_mm512_unpacklo_epi64(near, far), _mm512_unpackhi_epi64(near, far)]
    };
    let [a, b] = join(
        _mm512_unpacklo_epi32(first[0], first[1]),
        _mm512_unpacklo_epi32(second[0], second[1]),
        _mm512_unpacklo_epi32(shift, zero),
    );
    let [c, d] = join(
        _mm512_unpackhi_epi32(first[0], first[1]),
        _mm512_unpackhi_epi32(second[0], second[1]),
        _mm512_unpackhi_epi32(shift, zero),
    );
    let mut lens = Lanes([0_u8; 64]);
    // SAFETY: `lens` has 64 bytes; the store needs no alignment.
    unsafe { _mm_storeu_si128(lens.0.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(bits)) };
    let mut at = 0;
    let mut put = |channel: usize, bits: __m128i| {
        // SAFETY: `room` has sixteen windows, and each channel takes at most one.
        unsafe { _mm_storeu_si128(room.as_mut_ptr().add(at).cast(), bits) };
        at += usize::from(lens.0[channel] & 15);
    };
    macro_rules! put_four {
        ($quarter:literal) => {
            for (channel, four) in [a, b, c, d].into_iter().enumerate() {
                put(4 * $quarter + channel, _mm512_extracti32x4_epi32::<$quarter>(four));
            }
        };
    }
    put_four!(0);
    put_four!(1);
    put_four!(2);
    put_four!(3);
    let nibbles = _mm_maddubs_epi16(_mm512_cvtepi32_epi8(indices), _mm_set1_epi16(0x1001));
    Some((_mm_cvtsi128_si64(_mm_packus_epi16(nibbles, nibbles)).cast_unsigned(), at))
}
