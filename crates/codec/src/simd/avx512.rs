//! What kernels on AVX-512 (with VBMI and VBMI2) share: tables, and whole tiles of 16-bit elements.
//!
//! A 32-bit lane is a channel of a tile, so statistics of channels are loaded once for a tile. Two
//! tokens are the halves of a lane, a *pair*: eight registers are a tile.

use super::avx2::{BF16, F16};
use crate::tile::{EDGE, ROW_BYTES};
use std::arch::x86_64::*;

/// Pairs of tokens of a tile.
pub const PAIRS: usize = EDGE / 2;

/// A table that a register is loaded from.
#[repr(C, align(64))]
pub struct Lanes<T, const N: usize>(pub [T; N]);

impl<T: Copy, const N: usize> Lanes<T, N> {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
    #[inline]
    pub fn load(&self) -> __m512i {
        const { assert!(size_of::<T>() * N == 64) };
        // SAFETY: the table has 64 bytes, by the assertion above, and is aligned to 64.
        unsafe { _mm512_load_si512(self.0.as_ptr().cast()) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
pub fn load(from: &[u8; 64]) -> __m512i {
    // SAFETY: `from` has 64 bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
pub fn numbers(from: &[f32; EDGE]) -> __m512 {
    // SAFETY: `from` has sixteen numbers; the load needs no alignment.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

/// Asserts that sixteen rows that begin `stride` bytes apart fit.
fn assert_rows(len: usize, stride: usize) {
    assert!(len >= (EDGE - 1) * stride + ROW_BYTES, "sixteen rows fit");
}

/// Rows 2 i and 2 i + 1 in one register.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
#[inline]
fn load_rows(bytes: &[u8], stride: usize) -> [__m512i; PAIRS] {
    assert_rows(bytes.len(), stride);
    let mut rows = [_mm512_setzero_si512(); PAIRS];
    for (pair, both) in rows.iter_mut().enumerate() {
        // SAFETY: `assert_rows` above: all sixteen rows lie in `bytes`.
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
        // SAFETY: `assert_rows` above: all sixteen rows lie in `to`.
        unsafe {
            let first = to.as_mut_ptr().add(2 * pair * stride);
            _mm256_storeu_si256(first.cast(), _mm512_castsi512_si256(*both));
            _mm256_storeu_si256(first.add(stride).cast(), _mm512_extracti64x4_epi64::<1>(*both));
        }
    }
}

/// The lanes of one of two registers after an exchange of bit `bit` of the lane's number with the
/// register's number; `second`: of the second register. They come out in the order of `lane`.
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

/// Lane numbers with their four bits rotated left (`up`) or right.
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

/// From rows of channels to pairs: a register of two channels with eight pairs becomes a pair of
/// sixteen channels.
static TO_PAIRS: [Step; 3] = [step(0, IN_ORDER), step(1, IN_ORDER), step(2, rotated(false))];

/// From pairs to rows of channels.
static TO_CHANNELS: [Step; 3] = [step(1, IN_ORDER), step(2, IN_ORDER), step(3, rotated(true))];

/// Each step exchanges one bit of the register's number with one of the lane's.
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

/// The words of two rows of tokens as pairs, and the inverse.
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

/// A tile as pairs. `TOKENS`: its rows are tokens; otherwise channels.
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

/// The numbers of the first and the second token of a pair.
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

/// Pairs of numbers, rounded to nearest. None may be NaN, and bfloats must have no ties.
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
