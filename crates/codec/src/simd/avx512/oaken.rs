//! Oaken: blocks of sixty-four channels of a token. All values of a block are coded as what they are, outliers too, whose entries
//! are then taken out by a mask, so nothing depends on how many there are. Decoding puts entries back into the places that
//! they name, and looks middle codes and outliers up in two tables.

use super::super::avx2::{BF16, F16};
use super::{EDGE, Lanes, load, store};
use crate::oaken::BLOCK;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Of two tokens' rows, or of more: for each end of a region the least distance behind it and the greatest, and of all
/// elements the first place and the last; see the kernels on AVX2, which go on with halves of these registers.
pub struct Seen<const G: usize> {
    pub nearest: [[__m512i; G]; 2],
    pub furthest: [[__m512i; G]; 2],
    pub first: __m512i,
    pub last: __m512i,
}

impl<const G: usize> Seen<G> {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
    #[inline]
    fn new() -> Self {
        let (none, all) = (_mm512_setzero_si512(), _mm512_set1_epi16(-1));
        Self { nearest: [[all; G]; 2], furthest: [[none; G]; 2], first: all, last: none }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
    #[inline]
    fn add(&mut self, bits: __m512i, ends: &[[__m512i; G]; 2]) {
        let order = in_order(bits);
        (self.first, self.last) = (_mm512_min_epu16(self.first, order), _mm512_max_epu16(self.last, order));
        let seen = self.nearest.as_flattened_mut().iter_mut().zip(self.furthest.as_flattened_mut());
        for ((nearest, furthest), end) in seen.zip(ends.as_flattened()) {
            let behind = _mm512_sub_epi16(order, *end);
            *nearest = _mm512_min_epu16(*nearest, behind);
            *furthest = _mm512_max_epu16(*furthest, behind);
        }
    }
}

/// Places of thirty-two elements in the order of values.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn in_order(bits: __m512i) -> __m512i {
    // Negative numbers are in the other order, before all others.
    let sign = _mm512_srai_epi16::<15>(bits);
    _mm512_xor_si512(bits, _mm512_or_si512(sign, _mm512_set1_epi16(i16::MIN)))
}

/// What rows of sixteen elements come to: from each start on, so many bytes behind it, an even number of rows that begin
/// `stride` bytes apart.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
pub fn see<const G: usize>(
    bytes: &[u8],
    starts: &[usize],
    behind: usize,
    (rows, stride): (usize, usize),
    ends: &[u16; 6],
) -> Seen<G> {
    let mut all = [[_mm512_setzero_si512(); G]; 2];
    for (lanes, end) in all.as_flattened_mut().iter_mut().zip(ends) {
        *lanes = _mm512_set1_epi16(end.cast_signed());
    }
    let mut seen = Seen::new();
    for start in starts {
        let bytes = &bytes[start + behind..][..(rows - 1) * stride + 2 * EDGE];
        for row in (0..rows & !1).step_by(2) {
            // SAFETY: the last of the rows ends with these bytes; loads want no alignment.
            let both = unsafe {
                let near = bytes.as_ptr().add(row * stride);
                let low = _mm512_castsi256_si512(_mm256_loadu_si256(near.cast()));
                _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(near.add(stride).cast()))
            };
            seen.add(both, &all);
        }
    }
    seen
}

/// What values of a token are coded by, by region.
pub struct Tables<'a> {
    /// Bound, least of what is left, and inverse of the step.
    pub of_region: [&'a [f32; 8]; 3],
    /// Least code and greatest, what an outlier's entry says of its group, and a sign where values are outliers.
    pub bytes: [[u8; EDGE]; 4],
    /// Where in an entry the fifth bit of the code is.
    pub upper_at: u32,
}

/// A row of blocks on its way to a payload.
pub struct Row<'a> {
    /// Elements of a token's head.
    pub elements: &'a [u8],
    pub dense: &'a mut [u8],
    /// How many outliers each block has.
    pub counts: &'a mut [u8],
}

/// Codes a row, and puts entries of a byte into the room, which has some for all channels and a block more. Returns how many
/// there are. Of regions, but the last, `ends` are the first places of the next, of both sides.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
pub fn encode_row<const E: u8, const G: usize>(
    row: Row<'_>,
    tables: &Tables<'_>,
    ends: &[u16; 6],
    entries: &mut [MaybeUninit<u8>],
) -> usize {
    const { assert!(E == BF16 || E == F16) };
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
        // Packing goes by quarters of registers.
        let codes = _mm512_permutexvar_epi32(PACKED.load(), _mm512_packus_epi16(near, far));
        let regions = _mm512_permutexvar_epi64(PACKED_ONCE.load(), _mm512_packus_epi16(near_region, far_region));
        // All limits are whole, so that they may come after rounding.
        let codes = _mm512_min_epu8(codes, _mm512_shuffle_epi8(high, regions));
        let codes = _mm512_max_epu8(codes, _mm512_shuffle_epi8(low, regions));
        let is_outlier = _mm512_movepi8_mask(_mm512_shuffle_epi8(signs, regions));
        let upper = _mm512_sll_epi16(_mm512_and_si512(codes, _mm512_set1_epi8(16)), upper_at);
        let all = _mm512_or_si512(_mm512_or_si512(_mm512_shuffle_epi8(numbers, regions), upper), PLACES.load());
        let room: &mut [_; BLOCK] = entries[filled..filled + BLOCK].as_mut_array().expect("room for a block");
        // SAFETY: there is room for sixty-four bytes; the store wants no alignment.
        unsafe {
            _mm512_storeu_si512(room.as_mut_ptr().cast(), _mm512_maskz_compress_epi8(is_outlier, all));
        }
        *count = is_outlier.count_ones() as u8;
        filled += usize::from(*count);
        let lower = _mm512_and_si512(codes, _mm512_set1_epi8(15));
        let pairs = _mm512_cvtepi16_epi8(_mm512_maddubs_epi16(lower, _mm512_set1_epi16(0x1001)));
        // SAFETY: there is room for thirty-two bytes; the store wants no alignment.
        unsafe { _mm256_storeu_si256(dense.as_mut_ptr().cast(), pairs) };
    }
    filled
}

/// Codes of thirty-two elements as words, by quarters of two registers of sixteen, before any limit; and regions, in order.
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

/// Eight numbers; the other lanes mean nothing.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn eight(from: &[f32; 8]) -> __m512 {
    // SAFETY: eight numbers are there; the load wants no alignment.
    unsafe { _mm512_castps256_ps512(_mm256_loadu_ps(from.as_ptr())) }
}

/// Sixteen bytes, four times.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn quarters(from: &[u8; EDGE]) -> __m512i {
    // SAFETY: sixteen bytes are there; the load wants no alignment.
    _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(from.as_ptr().cast()) })
}

/// Where in a block a lane of a byte is.
static PLACES: Lanes<u8, 64> = Lanes({
    let mut places = [0; 64];
    let mut at = 0;
    while at < 64 {
        places[at] = at as u8;
        at += 1;
    }
    places
});

/// Where fours of bytes are that were packed twice, each time by quarters of two registers.
static PACKED: Lanes<u32, EDGE> = Lanes([0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15]);

/// Where eights of bytes are that were packed once.
static PACKED_ONCE: Lanes<u64, 8> = Lanes([0, 2, 4, 6, 1, 3, 5, 7]);

/// What codes stand for in a token, as lower bytes and upper ones.
pub struct Meanings {
    outliers: [[u8; BLOCK]; 2],
    middle: [[u8; EDGE]; 2],
}

/// Of words the lower bytes, and the upper ones.
static APART: [Lanes<u8, 64>; 2] = {
    let mut all = [Lanes([0; 64]), Lanes([0; 64])];
    let mut at = 0;
    while at < 64 {
        all[0].0[at] = 2 * at as u8;
        all[1].0[at] = 2 * at as u8 + 1;
        at += 1;
    }
    all
};

/// Of bytes, the lower ones in one register and the upper ones in another, the first thirty-two words and the others.
static TOGETHER: [Lanes<u8, 64>; 2] = {
    let mut all = [Lanes([0; 64]), Lanes([0; 64])];
    let mut at = 0;
    while at < 128 {
        all[at / 64].0[at % 64] = (at / 2 + at % 2 * 64) as u8;
        at += 1;
    }
    all
};

impl Meanings {
    /// Of four sorts of outliers with sixteen dense codes each, and of the middle's.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
    pub fn new(outliers: &[u16; BLOCK], middle: [[u8; EDGE]; 2]) -> Self {
        // SAFETY: sixty-four words are there; loads want no alignment.
        let [near, far] = [0, 32].map(|at| unsafe { _mm512_loadu_si512(outliers.as_ptr().add(at).cast()) });
        let mut all = [[0; BLOCK]; 2];
        for (bytes, apart) in all.iter_mut().zip(&APART) {
            store(bytes, _mm512_permutex2var_epi8(near, apart.load(), far));
        }
        Self { outliers: all, middle }
    }
}

/// Decodes a block; the window begins with its `count` entries, of a byte each. `false`: nothing was stored, as entries are not
/// in the order of places, or too many.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
pub fn decode_block(
    dense: &[u8; BLOCK / 2],
    window: &[u8; BLOCK],
    count: usize,
    meanings: &Meanings,
    values: &mut [u8; 2 * BLOCK],
) -> bool {
    let entries = load(window);
    // Sixteen entries are two registers of bits; nearly always that is enough.
    let bit = |eight: __m128i, left: usize| {
        let places = _mm512_cvtepu8_epi64(_mm_and_si128(eight, _mm_set1_epi8(63)));
        let are_there = ((1_u32 << left.min(8)) - 1) as __mmask8;
        _mm512_maskz_sllv_epi64(are_there, _mm512_set1_epi64(1), places)
    };
    let mut bits = _mm512_setzero_si512();
    for (at, sixteen) in window.as_chunks::<EDGE>().0.iter().enumerate() {
        let left = count.saturating_sub(EDGE * at);
        if left == 0 && at > 0 {
            break;
        }
        // SAFETY: sixteen bytes are there; the load wants no alignment.
        let sixteen = unsafe { _mm_loadu_si128(sixteen.as_ptr().cast()) };
        let high = _mm_unpackhi_epi64(sixteen, sixteen);
        bits = _mm512_or_si512(bits, _mm512_or_si512(bit(sixteen, left), bit(high, left.saturating_sub(8))));
    }
    let places = _mm512_reduce_or_epi64(bits).cast_unsigned();
    let spread = _mm512_maskz_expand_epi8(places, entries);
    let is_in_place =
        _mm512_mask_cmpeq_epi8_mask(places, _mm512_and_si512(spread, _mm512_set1_epi8(63)), PLACES.load());
    if places.count_ones() as usize != count || is_in_place != places {
        return false;
    }
    // SAFETY: thirty-two bytes are there; the load wants no alignment.
    let codes = _mm512_cvtepu8_epi16(unsafe { _mm256_loadu_si256(dense.as_ptr().cast()) });
    let codes = _mm512_and_si512(_mm512_or_si512(codes, _mm512_slli_epi16::<4>(codes)), _mm512_set1_epi8(15));
    let sorts = _mm512_and_si512(_mm512_srli_epi16::<2>(spread), _mm512_set1_epi8(48));
    let numbers = _mm512_or_si512(sorts, codes);
    let [low, high] = [0, 1].map(|byte| {
        let middle = _mm512_shuffle_epi8(quarters(&meanings.middle[byte]), codes);
        _mm512_mask_permutexvar_epi8(middle, places, numbers, load(&meanings.outliers[byte]))
    });
    for (values, together) in values.as_chunks_mut::<64>().0.iter_mut().zip(&TOGETHER) {
        store(values, _mm512_permutex2var_epi8(low, together.load(), high));
    }
    true
}
