//! QPack: tokens of a pair are the same lane of the two registers that a channel is, which are split as all values are.

use super::rows::Rows;
use super::{F16, bytes_at, bytes_at_mut, load_bytes, load_half, store_bytes, widen, with_element};
use crate::Declined;
use crate::page::{Page, PageMut};
use crate::qpack::{HALVES, HALVES_BYTES, PAIRS, WIDTHS, Width};
use crate::tile::{Axis, EDGE, PageRows, Span};
use std::arch::x86_64::*;

/// Bytes that a tile of halves takes; no other takes more.
const TILE_BYTES_MAX: usize = EDGE * HALVES_BYTES;
/// Bytes that are read, or written, for a channel that is not halves, of which it may be fewer.
const WINDOW: usize = 16;
/// Bits of the least number that no half can be near: to nearest it is infinite.
const HALF_OVERFLOW: i32 = 0x477f_f000;

/// What a width is for lanes.
#[repr(C, align(128))]
struct Lanes {
    /// Where a lane's pair begins: three bytes of the window.
    bytes: [u8; 32],
    /// At which bit of them.
    shifts: [u32; PAIRS],
    mask: i32,
    levels: f32,
    /// The inverse of `levels`, rounded up: a product with a number below 2^14, rounded down, is the quotient.
    inverse: f32,
    center: f32,
    /// Bytes of a channel.
    len: usize,
    /// What codes are less of than they are packed as, twice.
    centers: i32,
    /// What the codes of a pair weigh, and two pairs side by side: each in 16 bits.
    codes_weigh: i32,
    pairs_weigh: i32,
    /// Bits of two pairs.
    two_pairs: u64,
}

impl Lanes {
    const fn of(width: Width) -> Self {
        let bits = width.pair_bits as usize;
        let mut lanes = Self {
            bytes: [0x80; 32],
            shifts: [0; PAIRS],
            mask: (1 << bits) - 1,
            levels: width.levels as f32,
            inverse: 1.0 / width.levels as f32,
            center: width.center as f32,
            len: bits,
            centers: width.center as i32 * 0x1_0001,
            codes_weigh: 1 | (width.levels as i32) << 16,
            pairs_weigh: 1 | 1 << (16 + bits),
            two_pairs: 2 * bits as u64,
        };
        if (lanes.inverse as f64) * (width.levels as f64) < 1.0 {
            lanes.inverse = f32::from_bits(lanes.inverse.to_bits() + 1);
        }
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

static LANES: [Lanes; HALVES] = {
    let mut all = [const { Lanes::of(WIDTHS[0]) }; HALVES];
    let mut index = 0;
    while index < HALVES {
        all[index] = Lanes::of(WIDTHS[index]);
        index += 1;
    }
    all
};

/// Sixteen codes of a width, less the center, as numbers, split.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn unpack(window: &[u8; WINDOW], lanes: &Lanes) -> [__m256; 2] {
    let bytes = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_half(window)), load_bytes(&lanes.bytes));
    // SAFETY: eight words are there.
    let shifts = unsafe { _mm256_loadu_si256(lanes.shifts.as_ptr().cast()) };
    let pairs = _mm256_and_si256(_mm256_srlv_epi32(bytes, shifts), _mm256_set1_epi32(lanes.mask));
    let pairs = _mm256_cvtepi32_ps(pairs);
    let (levels, center) = (_mm256_set1_ps(lanes.levels), _mm256_set1_ps(lanes.center));
    // All of these are whole numbers below 2^14: nothing is rounded but where it is meant to be.
    let high = _mm256_floor_ps(_mm256_mul_ps(pairs, _mm256_set1_ps(lanes.inverse)));
    let low = _mm256_sub_ps(_mm256_sub_ps(pairs, center), _mm256_mul_ps(high, levels));
    [low, _mm256_sub_ps(high, center)]
}

/// As [`crate::simd::qpack_decode_group`].
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
pub fn decode_group<'a>(
    payload: &'a [u8],
    means: &[f32],
    steps: &[f32],
    page: &mut PageMut<'_>,
    head: usize,
    token: usize,
) -> Option<&'a [u8]> {
    with_element!(page.kind().element, E, decode_as::<E>(payload, means, steps, page, head, token))
}

#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
fn decode_as<'a, const E: u8>(
    payload: &'a [u8],
    means: &[f32],
    steps: &[f32],
    page: &mut PageMut<'_>,
    head: usize,
    token: usize,
) -> Option<&'a [u8]> {
    let kind = *page.kind();
    let (indices, mut rest) = payload.split_at_checked(means.len().div_ceil(2))?;
    let mut rows = Rows::zero();
    let tiles = means.chunks(EDGE).zip(steps.chunks(EDGE)).zip(indices.chunks(EDGE / 2));
    for (number, ((means, steps), indices)) in tiles.enumerate() {
        let mut nibbles = [0; EDGE / 2];
        nibbles[..indices.len()].copy_from_slice(indices);
        let nibbles = u64::from_le_bytes(nibbles);
        let len = if rest.len() < TILE_BYTES_MAX {
            let mut padded = [0; TILE_BYTES_MAX + WINDOW];
            padded[..rest.len()].copy_from_slice(rest);
            decode_tile::<E>(&padded, nibbles, means, steps, &mut rows)
        } else {
            decode_tile::<E>(rest, nibbles, means, steps, &mut rows)
        };
        rest = rest.get(len..)?;
        let span = Span::at(kind.shape, head, token, number * EDGE);
        rows.store::<E>(page.bytes_mut(), &PageRows::of(&kind, &span), Axis::Channels);
    }
    Some(rest)
}

/// Decodes a tile from bytes that are enough for any. Returns how many were its own.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn decode_tile<const E: u8>(bytes: &[u8], nibbles: u64, means: &[f32], steps: &[f32], rows: &mut Rows) -> usize {
    let (mut at, mut nibbles) = (0, nibbles);
    for (channel, (&mean, &step)) in means.iter().zip(steps).enumerate().take(EDGE) {
        let index = (nibbles & 15) as usize;
        nibbles >>= 4;
        if let Some(lanes) = LANES.get(index) {
            let (mean, step) = (_mm256_set1_ps(mean), _mm256_set1_ps(step));
            let [first, second] = unpack(bytes_at(bytes, at), lanes);
            let first = _mm256_add_ps(_mm256_mul_ps(first, step), mean);
            let second = _mm256_add_ps(_mm256_mul_ps(second, step), mean);
            rows.set::<E, false>(channel, [first, second]);
            at += lanes.len;
        } else {
            // Of a forged frame they may be no numbers.
            rows.set::<E, true>(channel, widen::<F16>(load_bytes(bytes_at(bytes, at))));
            at += HALVES_BYTES;
        }
    }
    at
}

/// As [`crate::simd::qpack_encode_group`].
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
pub fn encode_group(
    page: &Page<'_>,
    head: usize,
    token: usize,
    means: &[f32],
    steps: &[f32],
    payload: &mut Vec<u8>,
) -> Result<(), Declined> {
    with_element!(page.kind().element, E, encode_as::<E>(page, head, token, means, steps, payload))
}

#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
fn encode_as<const E: u8>(
    page: &Page<'_>,
    head: usize,
    token: usize,
    means: &[f32],
    steps: &[f32],
    payload: &mut Vec<u8>,
) -> Result<(), Declined> {
    let kind = page.kind();
    let mut indices_at = payload.len();
    payload.resize(indices_at + means.len().div_ceil(2), 0);
    let mut rows = Rows::zero();
    let mut at = payload.len();
    for (number, (means, steps)) in means.chunks(EDGE).zip(steps.chunks(EDGE)).enumerate() {
        let span = Span::at(kind.shape, head, token, number * EDGE);
        rows.load::<E>(page.bytes(), &PageRows::of(kind, &span), Axis::Channels);
        payload.resize(at + TILE_BYTES_MAX, 0);
        let room = bytes_at_mut(payload, at);
        let (len, nibbles) = encode_tile::<E>(&rows, span.tokens, means, steps, room)?;
        at += len;
        let indices = &mut payload[indices_at..][..means.len().div_ceil(2)];
        indices.copy_from_slice(&nibbles.to_le_bytes()[..indices.len()]);
        indices_at += indices.len();
    }
    payload.truncate(at);
    Ok(())
}

/// Encodes a tile. Returns bytes and width indices.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn encode_tile<const E: u8>(
    rows: &Rows,
    tokens: usize,
    means: &[f32],
    steps: &[f32],
    bytes: &mut [u8; TILE_BYTES_MAX],
) -> Result<(usize, u64), Declined> {
    let codes = codes_of::<E>(rows, tokens, means, steps)?;
    let indices = width_indices(&codes);
    let (mut at, mut nibbles) = (0, 0);
    for (channel, &index) in indices.iter().enumerate().take(means.len()) {
        nibbles |= (index as u64) << (4 * channel);
        if let Some(lanes) = LANES.get(index as usize) {
            // The window lies within the tile's bytes: channels that follow, were they halves, would take as many.
            let window: &mut [u8; WINDOW] = bytes_at_mut(bytes, at);
            window.copy_from_slice(pack(codes[channel], lanes).map(u64::to_le_bytes).as_flattened());
            at += lanes.len;
        } else {
            store_bytes(bytes_at_mut(bytes, at), super::round::<F16, false>(rows.get::<E>(channel)));
            at += HALVES_BYTES;
        }
    }
    Ok((at, nibbles))
}

/// As [`crate::simd::qpack_codes`].
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
pub fn codes(
    page: &Page<'_>,
    span: &Span,
    means: &[f32],
    steps: &[f32],
    codes: &mut [i16; EDGE * EDGE],
) -> Result<(), Declined> {
    let of_page = PageRows::of(page.kind(), span);
    let mut rows = Rows::zero();
    let all = with_element!(page.kind().element, E, {
        rows.load::<E>(page.bytes(), &of_page, Axis::Channels);
        codes_of::<E>(&rows, span.tokens, means, steps)?
    });
    for (row, codes) in all.iter().zip(codes.as_chunks_mut::<EDGE>().0) {
        // SAFETY: there is room for sixteen words.
        unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), *row) };
    }
    Ok(())
}

/// Codes of a tile's channels as 16 bits, in the order of tokens; too large ones as large as can be.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn codes_of<const E: u8>(
    rows: &Rows,
    tokens: usize,
    means: &[f32],
    steps: &[f32],
) -> Result<[__m256i; EDGE], Declined> {
    let tokens = _mm256_set1_epi32(tokens as i32);
    let are_there = [
        _mm256_cmpgt_epi32(tokens, _mm256_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11)),
        _mm256_cmpgt_epi32(tokens, _mm256_setr_epi32(4, 5, 6, 7, 12, 13, 14, 15)),
    ];
    let magnitude = _mm256_set1_epi32(i32::MAX);
    let mut largest = _mm256_setzero_si256();
    let mut codes = [_mm256_setzero_si256(); EDGE];
    let inverses = inverses(steps);
    for (channel, &mean) in means.iter().enumerate().take(EDGE) {
        let (mean, inverse) = (_mm256_set1_ps(mean), _mm256_set1_ps(inverses[channel]));
        let [first, second] = rows.get::<E>(channel);
        for values in [first, second] {
            largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(values), magnitude));
        }
        // To nearest, ties to even; what is no 32-bit number becomes the least, which no width but halves has room for.
        let first = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_sub_ps(first, mean), inverse));
        let second = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_sub_ps(second, mean), inverse));
        codes[channel] =
            _mm256_packs_epi32(_mm256_and_si256(first, are_there[0]), _mm256_and_si256(second, are_there[1]));
    }
    if _mm256_movemask_epi8(_mm256_cmpgt_epi32(largest, _mm256_set1_epi32(HALF_OVERFLOW - 1))) != 0 {
        return Err(Declined);
    }
    Ok(codes)
}

/// The inverses of up to sixteen steps.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn inverses(steps: &[f32]) -> [f32; EDGE] {
    let mut all = [1.0; EDGE];
    all[..steps.len()].copy_from_slice(steps);
    for some in all.as_chunks_mut::<8>().0 {
        // SAFETY: eight numbers are there; loads and stores want no alignment.
        unsafe {
            let inverses = _mm256_div_ps(_mm256_set1_ps(1.0), _mm256_loadu_ps(some.as_ptr()));
            _mm256_storeu_ps(some.as_mut_ptr(), inverses);
        }
    }
    all
}

/// Sixteen codes of a width, which fit it, as the bits that the payload has: in two words.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn pack(codes: __m256i, lanes: &Lanes) -> [u64; 2] {
    let order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    let codes = _mm256_add_epi16(_mm256_shuffle_epi8(codes, order), _mm256_set1_epi32(lanes.centers));
    let pairs = _mm256_madd_epi16(codes, _mm256_set1_epi32(lanes.codes_weigh));
    // Two pairs to a lane of 32 bits, then four to one of 64.
    let pairs = _mm_packus_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
    let twos = _mm_madd_epi16(pairs, _mm_set1_epi32(lanes.pairs_weigh));
    let low = _mm_and_si128(twos, _mm_set1_epi64x(0xffff_ffff));
    let high = _mm_sllv_epi64(_mm_srli_epi64::<32>(twos), _mm_set1_epi64x(lanes.two_pairs.cast_signed()));
    let fours = _mm_or_si128(low, high);
    let (low, high) = (_mm_cvtsi128_si64(fours).cast_unsigned(), _mm_extract_epi64::<1>(fours).cast_unsigned());
    let bits = 2 * lanes.two_pairs;
    [low | high << bits, (high >> 1) >> (63 - bits)]
}

/// How far from the mean codes may go on one side before another width is the first with room for them, and by how many its
/// index is larger.
const fn rooms(is_below: bool) -> [(i16, i16); 12] {
    let mut rooms = [(0, 0); 12];
    let (mut count, mut before, mut index) = (0, 0, 0);
    let mut room = 0;
    while index <= HALVES {
        let here = match index {
            HALVES => i16::MAX,
            _ if is_below => WIDTHS[index].center as i16,
            _ => (WIDTHS[index].levels - 1 - WIDTHS[index].center) as i16,
        };
        if here > room {
            rooms[count] = (room, (index - before) as i16);
            (count, before, room) = (count + 1, index, here);
        }
        index += 1;
    }
    assert!(count == rooms.len());
    rooms
}

const BELOW: [(i16, i16); 12] = rooms(true);
const ABOVE: [(i16, i16); 12] = rooms(false);

/// The width index of each of sixteen channels: [`Width::index_of`] of its least and greatest code.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn width_indices(codes: &[__m256i; EDGE]) -> [i16; EDGE] {
    // Channels i and i + 8 side by side; of each, eight that are the least, or the greatest, of two.
    let (mut least, mut greatest) = ([_mm256_setzero_si256(); 8], [_mm256_setzero_si256(); 8]);
    for pair in 0..8 {
        let first = _mm256_permute2x128_si256::<0x20>(codes[pair], codes[pair + 8]);
        let second = _mm256_permute2x128_si256::<0x31>(codes[pair], codes[pair + 8]);
        least[pair] = _mm256_min_epi16(first, second);
        greatest[pair] = _mm256_max_epi16(first, second);
    }
    let least = least_of_eight(&least);
    // The greatest is what the least of the complements is the complement of.
    for codes in &mut greatest {
        *codes = _mm256_xor_si256(*codes, _mm256_set1_epi16(-1));
    }
    let greatest = _mm256_xor_si256(least_of_eight(&greatest), _mm256_set1_epi16(-1));
    let (mut below, mut above) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    for (room, more) in BELOW {
        let beyond = _mm256_cmpgt_epi16(_mm256_set1_epi16(-room), least);
        below = _mm256_add_epi16(below, _mm256_and_si256(beyond, _mm256_set1_epi16(more)));
    }
    for (room, more) in ABOVE {
        let beyond = _mm256_cmpgt_epi16(greatest, _mm256_set1_epi16(room));
        above = _mm256_add_epi16(above, _mm256_and_si256(beyond, _mm256_set1_epi16(more)));
    }
    // Two widths of one size that lean to different sides: the next has room for both.
    let leans = _mm256_cmpeq_epi16(_mm256_add_epi16(below, _mm256_set1_epi16(1)), above);
    let leans = _mm256_and_si256(leans, _mm256_cmpgt_epi16(_mm256_set1_epi16(5), above));
    let indices = _mm256_sub_epi16(_mm256_max_epi16(below, above), leans);
    let mut all = [0; EDGE];
    // SAFETY: there is room for sixteen words.
    unsafe { _mm256_storeu_si256(all.as_mut_ptr().cast(), indices) };
    all
}

/// The least of eight 16-bit numbers in each half of eight registers: left halves first.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn least_of_eight(numbers: &[__m256i; 8]) -> __m256i {
    let mut fours = [_mm256_setzero_si256(); 4];
    for (four, [a, b]) in fours.iter_mut().zip(numbers.as_chunks::<2>().0) {
        *four = _mm256_min_epi16(_mm256_unpacklo_epi64(*a, *b), _mm256_unpackhi_epi64(*a, *b));
    }
    let mut twos = [_mm256_setzero_si256(); 2];
    for (two, [a, b]) in twos.iter_mut().zip(fours.as_chunks::<2>().0) {
        let [a, b] = [_mm256_castsi256_ps(*a), _mm256_castsi256_ps(*b)];
        let [even, odd] = [_mm256_shuffle_ps::<0b10_00_10_00>(a, b), _mm256_shuffle_ps::<0b11_01_11_01>(a, b)];
        *two = _mm256_min_epi16(_mm256_castps_si256(even), _mm256_castps_si256(odd));
    }
    let mut ones = twos;
    for one in &mut ones {
        let left = _mm256_srai_epi32::<16>(_mm256_slli_epi32::<16>(*one));
        *one = _mm256_min_epi32(left, _mm256_srai_epi32::<16>(*one));
    }
    _mm256_packs_epi32(ones[0], ones[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What tests need of the machine; they are of no use on another.
    fn has_avx2() -> bool {
        crate::simd::Level::available().contains(&crate::simd::Level::Avx2)
    }

    /// Every pair of every width, also such as are of no two codes.
    #[test]
    fn every_pair_is_taken_apart_as_division_does() {
        assert!(has_avx2(), "these kernels are tested on machines that run them");
        for (width, lanes) in WIDTHS.iter().zip(&LANES) {
            for first in (0..1_u32 << width.pair_bits).step_by(PAIRS) {
                let pair = |lane: usize| (first + lane as u32) & ((1 << width.pair_bits) - 1);
                let bits = (0..PAIRS)
                    .fold(0, |all, lane| all | u128::from(pair(lane)) << (lane * usize::from(width.pair_bits)));
                // Bits of the channel that follows.
                let behind =
                    (u128::MAX << (PAIRS * usize::from(width.pair_bits) % 128)) & !u128::from(width.pair_bits == 0);
                let mut codes = [[0.0; PAIRS]; 2];
                // SAFETY: the machine has AVX2, and there is room for eight numbers twice.
                unsafe {
                    let unpacked = unpack(&(bits | behind).to_le_bytes(), lanes);
                    codes
                        .iter_mut()
                        .zip(unpacked)
                        .for_each(|(codes, eight)| _mm256_storeu_ps(codes.as_mut_ptr(), eight));
                }
                let (levels, center) = (u32::from(width.levels), f32::from(width.center));
                for (lane, (low, high)) in codes[0].iter().zip(&codes[1]).enumerate() {
                    let code = |code: u32| (code as f32 - center).to_bits();
                    assert_eq!(low.to_bits(), code(pair(lane) % levels), "{width:?}");
                    assert_eq!(high.to_bits(), code(pair(lane) / levels), "{width:?}");
                }
            }
        }
    }

    #[test]
    fn every_reach_has_the_width_that_plain_code_gives() {
        assert!(has_avx2(), "these kernels are tested on machines that run them");
        let ends = || (-70..=70).chain([i16::MIN, -1000, 1000, i16::MAX]);
        for (least, greatest) in ends().flat_map(|a| ends().map(move |b| (a.min(b), a.max(b)))) {
            for place in 0..EDGE {
                // Both ends anywhere, the others in between; channels differ.
                let channel = |channel: usize| {
                    let mut codes = [least; EDGE];
                    codes[(place + channel) % EDGE] = greatest;
                    if channel % 3 == 2 { [0; EDGE] } else { codes }
                };
                let all: [[i16; EDGE]; EDGE] = std::array::from_fn(channel);
                // SAFETY: the machine has AVX2, and each register is loaded from sixteen words.
                let indices = unsafe { width_indices(&all.map(|codes| _mm256_loadu_si256(codes.as_ptr().cast()))) };
                for (codes, index) in all.iter().zip(indices) {
                    let ends = (codes.iter().min().copied(), codes.iter().max().copied());
                    let (Some(least), Some(greatest)) = ends else { unreachable!("sixteen") };
                    assert_eq!(index as usize, Width::index_of(least.into(), greatest.into()), "{least} {greatest}");
                }
            }
        }
    }
}
