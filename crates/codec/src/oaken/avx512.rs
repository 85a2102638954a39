//! Oaken's encoding on AVX-512: blocks of sixty-four channels of a token. All values of a block are
//! coded by their regions, outliers too. A mask then takes out the entries of outliers, so the time
//! does not depend on their number.

use super::avx2::pages::{self, Coders, Lane, Narrow, Sixteen, Steps};
use super::seen::{ENDS_MAX, RowsAt, Seen, see};
use super::{BLOCK, Encoded, Groups, Interval};
use crate::page::Page;
use crate::simd::avx2::{BF16, Room};
use crate::simd::avx512::{Lanes, load};
use crate::tile::EDGE;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// As [`pages::encode`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
pub fn encode(groups: &Groups, intervals: &[Interval], page: &Page<'_>, payload: &mut Vec<u8>) -> Encoded {
    // SAFETY: AVX-512 is enabled in this function, which implies AVX2.
    unsafe { pages::encode_by::<Wide>(groups, intervals, page, payload) }
}

/// AVX-512.
enum Wide {}

impl Steps for Wide {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
    unsafe fn see_tokens<const G: usize>(rows: &RowsAt<'_>, ends: &[u16; ENDS_MAX]) -> [Lane; EDGE] {
        // SAFETY: AVX-512 is enabled in this function.
        halved(&unsafe { see::<_, G>(rows, ends) }).by_lane()
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
    unsafe fn see_token<const G: usize>(rows: &RowsAt<'_>, ends: &[u16; ENDS_MAX]) -> Lane {
        // SAFETY: AVX-512 is enabled in this function.
        halved(&unsafe { see::<_, G>(rows, ends) }).together()
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
    unsafe fn code<const E: u8, const G: usize, const BYTES: usize>(
        some: &mut Sixteen,
        by: &Coders<'_, G>,
        [dense, counts]: [&mut [u8]; 2],
        entries: &mut Vec<u8>,
    ) {
        if BYTES != 1 {
            // SAFETY: AVX-512 is enabled in this function, which implies AVX2.
            return unsafe { Narrow::code::<E, G, BYTES>(some, by, [dense, counts], entries) };
        }
        let parts = dense.chunks_exact_mut(some.dim / 2).zip(counts.chunks_exact_mut(some.dim / BLOCK));
        for ((token, coder), (dense, counts)) in by.tokens.iter().enumerate().zip(parts) {
            let (of_region, bytes) = &coder.tables.plain;
            let tables = Tables { of_region: of_region.each_ref(), bytes: *bytes, upper_at: by.upper_at };
            let mut room = Room::behind(entries, some.dim + BLOCK);
            let row = Row { elements: some.elements(token), dense, counts };
            room.filled = encode_row::<E, G>(row, &tables, by.ends, room.room);
            let filled = room.filled;
            // SAFETY: `encode_row` wrote so many bytes behind the others.
            unsafe { entries.set_len(entries.len() + filled) };
        }
    }
}

/// The lanes of both halves as one.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn halved<const G: usize>(wide: &Seen<__m512i, G>) -> Seen<__m256i, G> {
    let least = |all| _mm256_min_epu16(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64::<1>(all));
    let greatest = |all| _mm256_max_epu16(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64::<1>(all));
    Seen {
        nearest: wide.nearest.map(|ends| ends.map(least)),
        furthest: wide.furthest.map(|ends| ends.map(greatest)),
        first: least(wide.first),
        last: greatest(wide.last),
    }
}

/// Parameters of a token's codes, by region.
struct Tables<'a> {
    /// The bound, the least rest, and the inverse of the step.
    of_region: [&'a [f32; 8]; 3],
    /// The least code and the greatest, the group bits of an outlier's entry, and the sign of
    /// outliers.
    bytes: [[u8; EDGE]; 4],
    /// The bit of the code's fifth bit in an entry.
    upper_at: u32,
}

/// A token's head, and room for its payload.
struct Row<'a> {
    /// Elements of a token's head.
    elements: &'a [u8],
    dense: &'a mut [u8],
    /// The number of outliers of each block.
    counts: &'a mut [u8],
}

/// Codes a row, and stores entries of a byte to the room, which must have a block more than the
/// channels. Returns their number. `ends` are the first places of the regions but the first.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
fn encode_row<const E: u8, const G: usize>(
    row: Row<'_>,
    tables: &Tables<'_>,
    ends: &[u16; ENDS_MAX],
    entries: &mut [MaybeUninit<u8>],
) -> usize {
    let [bound, least, inverse] = tables.of_region;
    let by = [eight(bound), eight(least), eight(inverse)];
    let mut lanes = [[_mm512_setzero_si512(); G]; 2];
    for (lanes, end) in lanes.as_flattened_mut().iter_mut().zip(ends) {
        *lanes = _mm512_set1_epi16(end.cast_signed());
    }
    let [low, high, numbers, signs] = &tables.bytes;
    let [low, high, numbers, signs] = [quarters(low), quarters(high), quarters(numbers), quarters(signs)];
    let upper_at = _mm_cvtsi32_si128(tables.upper_at.cast_signed() - 4);
    let (blocks, dense) = (row.elements.as_chunks::<{ 2 * BLOCK }>().0, row.dense.as_chunks_mut::<{ BLOCK / 2 }>().0);
    let mut filled = 0;
    for ((elements, dense), count) in blocks.iter().zip(dense).zip(row.counts) {
        let ([near, far], _) = elements.as_chunks::<64>() else { unreachable!("two halves") };
        let (near, near_region) = code_half::<E, G>(load(near), &lanes, &by);
        let (far, far_region) = code_half::<E, G>(load(far), &lanes, &by);
        // Packing works by quarters of registers.
        let codes = _mm512_permutexvar_epi32(PACKED.load(), _mm512_packus_epi16(near, far));
        let regions = _mm512_permutexvar_epi64(PACKED_ONCE.load(), _mm512_packus_epi16(near_region, far_region));
        // Limits are integers, so they may come after rounding.
        let codes = _mm512_min_epu8(codes, _mm512_shuffle_epi8(high, regions));
        let codes = _mm512_max_epu8(codes, _mm512_shuffle_epi8(low, regions));
        let is_outlier = _mm512_movepi8_mask(_mm512_shuffle_epi8(signs, regions));
        let upper = _mm512_sll_epi16(_mm512_and_si512(codes, _mm512_set1_epi8(16)), upper_at);
        let all = _mm512_or_si512(_mm512_or_si512(_mm512_shuffle_epi8(numbers, regions), upper), PLACES.load());
        let room: &mut [_; BLOCK] = entries[filled..filled + BLOCK].as_mut_array().expect("room for a block");
        // SAFETY: `room` has 64 bytes; the store needs no alignment.
        unsafe {
            _mm512_storeu_si512(room.as_mut_ptr().cast(), _mm512_maskz_compress_epi8(is_outlier, all));
        }
        *count = is_outlier.count_ones() as u8;
        filled += usize::from(*count);
        let lower = _mm512_and_si512(codes, _mm512_set1_epi8(15));
        let pairs = _mm512_cvtepi16_epi8(_mm512_maddubs_epi16(lower, _mm512_set1_epi16(0x1001)));
        // SAFETY: `dense` has 32 bytes; the store needs no alignment.
        unsafe { _mm256_storeu_si256(dense.as_mut_ptr().cast(), pairs) };
    }
    filled
}

/// Places of thirty-two elements in the order of values.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn in_order(bits: __m512i) -> __m512i {
    // Negative numbers are in reverse order, before all others.
    let sign = _mm512_srai_epi16::<15>(bits);
    _mm512_xor_si512(bits, _mm512_or_si512(sign, _mm512_set1_epi16(i16::MIN)))
}

/// Codes of thirty-two elements as words before limits, by quarters; and regions, in order.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn code_half<const E: u8, const G: usize>(
    bits: __m512i,
    ends: &[[__m512i; G]; 2],
    by: &[__m512; 3],
) -> (__m512i, __m512i) {
    let (order, mut region) = (in_order(bits), _mm512_setzero_si512());
    for end in ends.as_flattened() {
        let is_behind = _mm512_cmpge_epu16_mask(order, *end);
        region = _mm512_mask_add_epi16(region, is_behind, region, _mm512_set1_epi16(1));
    }
    let near = code::<E>(_mm512_castsi512_si256(bits), _mm512_castsi512_si256(region), by);
    let far = code::<E>(_mm512_extracti64x4_epi64::<1>(bits), _mm512_extracti64x4_epi64::<1>(region), by);
    (_mm512_packs_epi32(near, far), region)
}

/// Codes of sixteen elements of these regions, to nearest, ties to even.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn code<const E: u8>(bits: __m256i, region: __m256i, [bound, least, inverse]: &[__m512; 3]) -> __m512i {
    let values = if E == BF16 {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
    } else {
        _mm512_cvtph_ps(bits)
    };
    let region = _mm512_cvtepu16_epi32(region);
    let left = _mm512_sub_ps(values, _mm512_permutexvar_ps(region, *bound));
    let left = _mm512_sub_ps(left, _mm512_permutexvar_ps(region, *least));
    _mm512_cvtps_epi32(_mm512_mul_ps(left, _mm512_permutexvar_ps(region, *inverse)))
}

/// Eight numbers; the other lanes are undefined.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn eight(from: &[f32; 8]) -> __m512 {
    // SAFETY: `from` has eight numbers; the load needs no alignment.
    unsafe { _mm512_castps256_ps512(_mm256_loadu_ps(from.as_ptr())) }
}

/// Sixteen bytes, four times.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn quarters(from: &[u8; EDGE]) -> __m512i {
    // SAFETY: `from` has sixteen bytes; the load needs no alignment.
    _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(from.as_ptr().cast()) })
}

/// The place of each byte lane in its block.
static PLACES: Lanes<u8, 64> = Lanes({
    let mut places = [0; 64];
    let mut at = 0;
    while at < 64 {
        places[at] = at as u8;
        at += 1;
    }
    places
});

/// The order of fours of bytes after two packings by quarters.
static PACKED: Lanes<u32, EDGE> = Lanes([0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15]);

/// The order of eights of bytes after one packing.
static PACKED_ONCE: Lanes<u64, 8> = Lanes([0, 2, 4, 6, 1, 3, 5, 7]);
