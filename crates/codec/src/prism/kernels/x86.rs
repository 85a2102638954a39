//! The kernels on AVX2 and AVX-512: a channel or component is a lane, a token is a register.

use super::{Codes, EDGE, Pair, PairRow, Row, Sums};
use crate::page::{Page, PageMut};
use crate::simd::avx2::with_element;
use crate::simd::rows::Rows;
use crate::tile::{Axis, PageRows, Span};
use std::arch::x86_64::*;

/// Tokens whose sums are in registers at a time, on AVX2 (two registers each) and on AVX-512.
const TOKENS_AVX2: usize = 4;
const TOKENS_AVX512: usize = 8;

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn load(page: &Page<'_>, span: &Span, rows: &mut [Row; EDGE]) {
    with_element!(page.kind().element, E, load_as::<E>(page, span, rows));
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn load_as<const E: u8>(page: &Page<'_>, span: &Span, rows: &mut [Row; EDGE]) {
    let mut elements = Rows::zero();
    elements.load::<E>(page.bytes(), &PageRows::of(page.kind(), span), Axis::Channels);
    for (at, row) in rows.iter_mut().enumerate() {
        let [first, second] = elements.get::<E>(at);
        // SAFETY: a row has sixteen values; stores need no alignment.
        unsafe {
            _mm256_storeu_ps(row.as_mut_ptr(), _mm256_permute2f128_ps::<0x20>(first, second));
            _mm256_storeu_ps(row.as_mut_ptr().add(8), _mm256_permute2f128_ps::<0x31>(first, second));
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn store(page: &mut PageMut<'_>, span: &Span, rows: &[Row; EDGE]) {
    with_element!(page.kind().element, E, store_as::<E>(page, span, rows));
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn store_as<const E: u8>(page: &mut PageMut<'_>, span: &Span, rows: &[Row; EDGE]) {
    let (kind, mut elements) = (*page.kind(), Rows::zero());
    for (at, row) in rows.iter().enumerate() {
        // SAFETY: a row has sixteen values; loads need no alignment.
        let [low, high] = unsafe { [_mm256_loadu_ps(row.as_ptr()), _mm256_loadu_ps(row.as_ptr().add(8))] };
        let halves = [_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high)];
        // Forged tokens that stay may be no numbers.
        elements.set::<E, true>(at, halves);
    }
    elements.store::<E>(page.bytes_mut(), &PageRows::of(&kind, span), Axis::Channels);
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn forward_avx2(inputs: &[Row], matrix: &[Row], sums: &mut [Row; EDGE]) {
    for first in (0..EDGE).step_by(TOKENS_AVX2) {
        let mut all = [[_mm256_setzero_ps(); 2]; TOKENS_AVX2];
        for (input, weights) in inputs.iter().zip(matrix) {
            // SAFETY: a row has sixteen values; loads need no alignment.
            let weights = unsafe { [_mm256_loadu_ps(weights.as_ptr()), _mm256_loadu_ps(weights.as_ptr().add(8))] };
            for (token, sums) in all.iter_mut().enumerate() {
                let value = _mm256_set1_ps(input[first + token]);
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = _mm256_add_ps(*sum, _mm256_mul_ps(value, weight));
                }
            }
        }
        for (row, all) in sums[first..].iter_mut().zip(all) {
            // SAFETY: a row has sixteen values; stores need no alignment.
            unsafe {
                _mm256_storeu_ps(row.as_mut_ptr(), all[0]);
                _mm256_storeu_ps(row.as_mut_ptr().add(8), all[1]);
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn inverse_avx2(pairs: &[u16], codes: &[Codes], matrix: &[PairRow], sums: &mut [Sums; EDGE]) {
    for first in (0..EDGE).step_by(TOKENS_AVX2) {
        let mut all = [[_mm256_setzero_si256(); 2]; TOKENS_AVX2];
        for &pair in pairs {
            let (weights, codes) = (&matrix[usize::from(pair)], &codes[usize::from(pair)]);
            // SAFETY: a row has 64 bytes; loads need no alignment.
            let weights = unsafe {
                [_mm256_loadu_si256(weights.as_ptr().cast()), _mm256_loadu_si256(weights.as_ptr().add(EDGE / 2).cast())]
            };
            for (token, sums) in all.iter_mut().enumerate() {
                let code = _mm256_set1_epi32(both(codes[first + token]));
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(weight, code));
                }
            }
        }
        for (row, all) in sums[first..].iter_mut().zip(all) {
            // SAFETY: a row has 64 bytes; stores need no alignment.
            unsafe {
                _mm256_storeu_si256(row.as_mut_ptr().cast(), all[0]);
                _mm256_storeu_si256(row.as_mut_ptr().add(EDGE / 2).cast(), all[1]);
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2")]
pub fn forward_avx512(inputs: &[Row], matrix: &[Row], sums: &mut [Row; EDGE]) {
    for first in (0..EDGE).step_by(TOKENS_AVX512) {
        let mut all = [_mm512_setzero_ps(); TOKENS_AVX512];
        for (input, weights) in inputs.iter().zip(matrix) {
            // SAFETY: a row has sixteen values; the load needs no alignment.
            let weights = unsafe { _mm512_loadu_ps(weights.as_ptr()) };
            for (token, sum) in all.iter_mut().enumerate() {
                *sum = _mm512_add_ps(*sum, _mm512_mul_ps(_mm512_set1_ps(input[first + token]), weights));
            }
        }
        for (row, sum) in sums[first..].iter_mut().zip(all) {
            // SAFETY: a row has sixteen values; the store needs no alignment.
            unsafe { _mm512_storeu_ps(row.as_mut_ptr(), sum) };
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2")]
pub fn inverse_avx512(pairs: &[u16], codes: &[Codes], matrix: &[PairRow], sums: &mut [Sums; EDGE]) {
    for first in (0..EDGE).step_by(TOKENS_AVX512) {
        let mut all = [_mm512_setzero_si512(); TOKENS_AVX512];
        for &pair in pairs {
            let (weights, codes) = (&matrix[usize::from(pair)], &codes[usize::from(pair)]);
            // SAFETY: a row has 64 bytes; the load needs no alignment.
            let weights = unsafe { _mm512_loadu_si512(weights.as_ptr().cast()) };
            for (token, sum) in all.iter_mut().enumerate() {
                let code = _mm512_set1_epi32(both(codes[first + token]));
                *sum = _mm512_add_epi32(*sum, _mm512_madd_epi16(weights, code));
            }
        }
        for (row, sum) in sums[first..].iter_mut().zip(all) {
            // SAFETY: a row has 64 bytes; the store needs no alignment.
            unsafe { _mm512_storeu_si512(row.as_mut_ptr().cast(), sum) };
        }
    }
}

/// A pair of codes as the lower and the upper half of a lane.
#[inline(always)]
fn both([first, second]: Pair) -> i32 {
    i32::from(second) << 16 | i32::from(first.cast_unsigned())
}
