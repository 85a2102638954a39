//! Kernels on AVX-512 (with VBMI and VBMI2) for what pages mostly are: whole tiles of 16-bit elements. All else is done by the
//! kernels on AVX2, which call these where `is_wide`.
//!
//! A lane of 32 bits is a channel of a tile, so what is known of channels is loaded once for a tile, and nothing is ever
//! broadcast. Two tokens are the halves of a lane, a *pair*: eight registers are a tile.

use super::avx2::{BF16, F16};
use crate::tile::{EDGE, ROW_BYTES};
use std::arch::x86_64::*;

/// Pairs of tokens of a tile.
pub const PAIRS: usize = EDGE / 2;

/// Numbers that lanes are loaded from, or look up.
#[repr(C, align(64))]
pub struct Lanes<T, const N: usize>(pub [T; N]);

impl<T: Copy, const N: usize> Lanes<T, N> {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
    #[inline]
    pub fn load(&self) -> __m512i {
        const { assert!(size_of::<T>() * N == 64) };
        // SAFETY: sixty-four bytes are there, and aligned.
        unsafe { _mm512_load_si512(self.0.as_ptr().cast()) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
pub fn load(from: &[u8; 64]) -> __m512i {
    // SAFETY: sixty-four bytes are there; the load wants no alignment.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

/// Sixteen numbers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
pub fn numbers(from: &[f32; EDGE]) -> __m512 {
    // SAFETY: sixteen numbers are there; the load wants no alignment.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

/// Sixteen rows that begin `stride` bytes apart, and where they end.
fn assert_rows(len: usize, stride: usize) {
    assert!(len >= (EDGE - 1) * stride + ROW_BYTES, "sixteen rows");
}

/// Rows 2 i and 2 i + 1, one after the other.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn load_rows(bytes: &[u8], stride: usize) -> [__m512i; PAIRS] {
    assert_rows(bytes.len(), stride);
    let mut rows = [_mm512_setzero_si512(); PAIRS];
    for (pair, both) in rows.iter_mut().enumerate() {
        // SAFETY: the last of sixteen rows ends with these bytes.
        *both = unsafe {
            let first = bytes.as_ptr().add(2 * pair * stride);
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(first.cast()));
            _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(first.add(stride).cast()))
        };
    }
    rows
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn store_rows(rows: &[__m512i; PAIRS], to: &mut [u8], stride: usize) {
    assert_rows(to.len(), stride);
    for (pair, both) in rows.iter().enumerate() {
        // SAFETY: the last of sixteen rows ends with these bytes.
        unsafe {
            let first = to.as_mut_ptr().add(2 * pair * stride);
            _mm256_storeu_si256(first.cast(), _mm512_castsi512_si256(*both));
            _mm256_storeu_si256(first.add(stride).cast(), _mm512_extracti64x4_epi64::<1>(*both));
        }
    }
}

/// What a lane of two registers takes: bit `bit` of the lane's number changes places with the number of the register, of which
/// `second` is the one that comes out. Lanes come out in the order of `lane`.
const fn exchange(bit: usize, second: bool, lane: [usize; EDGE]) -> Lanes<u32, EDGE> {
    let mut from = [0; EDGE];
    let mut at = 0;
    while at < EDGE {
        let other = (lane[at] >> bit & 1) << 4;
        let place = lane[at] & !(1 << bit) | (second as usize) << bit;
        from[at] = (other | place) as u32;
        at += 1;
    }
    Lanes(from)
}

const IN_ORDER: [usize; EDGE] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Lanes by their numbers with bits moved up by one, the highest to the lowest place; and the other way.
const fn rotated(up: bool) -> [usize; EDGE] {
    let mut lanes = IN_ORDER;
    let mut at = 0;
    while at < EDGE {
        lanes[at] = if up { (at << 1 | at >> 3) & 15 } else { at >> 1 | (at & 1) << 3 };
        at += 1;
    }
    lanes
}

type Step = [Lanes<u32, EDGE>; 2];

const fn step(bit: usize, lane: [usize; EDGE]) -> Step {
    [exchange(bit, false, lane), exchange(bit, true, lane)]
}

/// Of rows of channels make pairs: a register is two channels of eight pairs, and becomes a pair of sixteen channels.
static TO_PAIRS: [Step; 3] = [step(0, IN_ORDER), step(1, IN_ORDER), step(2, rotated(false))];

/// And back.
static TO_CHANNELS: [Step; 3] = [step(1, IN_ORDER), step(2, IN_ORDER), step(3, rotated(true))];

/// Each step moves one bit of the number of a register into the number of a lane, and one the other way.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn turned(registers: &[__m512i; PAIRS], steps: &[Step; 3]) -> [__m512i; PAIRS] {
    let mut all = *registers;
    for (bit, [first, second]) in steps.iter().enumerate() {
        let [first, second] = [first.load(), second.load()];
        for low in (0..PAIRS).filter(|at| at >> bit & 1 == 0) {
            let high = low | 1 << bit;
            let (a, b) = (all[low], all[high]);
            all[low] = _mm512_permutex2var_epi32(a, first, b);
            all[high] = _mm512_permutex2var_epi32(a, second, b);
        }
    }
    all
}

/// Where in pairs elements of two rows of tokens are, as words, and the other way.
static OF_TOKENS: Lanes<u16, 32> = Lanes({
    let mut words = [0; 32];
    let mut at = 0;
    while at < 32 {
        words[at] = (at / 2 + at % 2 * EDGE) as u16;
        at += 1;
    }
    words
});
static TO_TOKENS: Lanes<u16, 32> = Lanes({
    let mut words = [0; 32];
    let mut at = 0;
    while at < 32 {
        words[at] = (at % EDGE * 2 + at / EDGE) as u16;
        at += 1;
    }
    words
});

/// A tile as pairs. `OF_TOKENS`: its rows are of tokens; otherwise of channels.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
pub fn load_pairs<const TOKENS: bool>(bytes: &[u8], stride: usize) -> [__m512i; PAIRS] {
    let rows = load_rows(bytes, stride);
    if TOKENS { rows.map(|both| _mm512_permutexvar_epi16(OF_TOKENS.load(), both)) } else { turned(&rows, &TO_PAIRS) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
pub fn store_pairs<const TOKENS: bool>(pairs: &[__m512i; PAIRS], to: &mut [u8], stride: usize) {
    let rows = if TOKENS {
        pairs.map(|pair| _mm512_permutexvar_epi16(TO_TOKENS.load(), pair))
    } else {
        turned(pairs, &TO_CHANNELS)
    };
    store_rows(&rows, to, stride);
}

/// The numbers of a pair's first token, and of its second.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
pub fn widen<const E: u8>(pair: __m512i) -> [__m512; 2] {
    if E == BF16 {
        let second = _mm512_and_si512(pair, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
        return [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pair)), _mm512_castsi512_ps(second)];
    }
    [_mm512_cvtepi32_epi16(pair), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(pair))]
        .map(|words| _mm512_cvtph_ps(words))
}

/// The other way, rounded to nearest. None is no number, and bfloats have no ties.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
pub fn narrow<const E: u8>([first, second]: [__m512; 2]) -> __m512i {
    if E == F16 {
        let first = _mm512_cvtepu16_epi32(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(first));
        let second = _mm512_cvtepu16_epi32(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(second));
        return _mm512_or_si512(first, _mm512_slli_epi32::<16>(second));
    }
    let half = _mm512_set1_epi32(0x8000);
    let first = _mm512_srli_epi32::<16>(_mm512_add_epi32(_mm512_castps_si512(first), half));
    let second = _mm512_add_epi32(_mm512_castps_si512(second), half);
    _mm512_mask_blend_epi16(0xaaaa_aaaa, first, second)
}
