//! AVX2. Its product of bytes takes one of them without a sign and adds pairs in 16 bits, so inputs
//! lend their signs to the codes first. Two products of at most 127 × 127 fit.

use super::lanes::{self, Part};
use super::matrix::{LINES, Line, Matrix, PANEL, QUAD, Sums};
use std::arch::x86_64::*;

#[target_feature(enable = "avx2,fma")]
pub fn multiply<const V: usize>(
    matrix: &Matrix,
    inputs: &[&[u8]; V],
    factors: &[f32],
    bias: Option<&[f32]>,
    out: &mut [&mut [f32]],
) {
    matrix.each_panel(factors, bias, out, |lines, _| panel(lines, inputs), |_, _, _| {});
}

#[target_feature(enable = "avx2,fma")]
pub fn parts<const V: usize>(
    matrix: &Matrix,
    inputs: &[&[u8]; V],
    factors: &[f32],
    bias: Option<&[f32]>,
    out: &mut [&mut [f32]],
    parts: &mut [Vec<Part>],
) {
    matrix.each_panel(
        factors,
        bias,
        out,
        |lines, _| panel(lines, inputs),
        |vector, at, logits| {
            let highest = highest(logits);
            parts[vector][at] = lanes::to_part(logits, highest);
        },
    );
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn panel<const V: usize>(lines: &[[Line; LINES]], inputs: &[&[u8]; V]) -> Sums<V> {
    let mut out = [[0; PANEL]; V];
    let (ones, signs) = (_mm256_set1_epi16(1), i32::from_le_bytes([0x80; 4]));
    // Sixteen rows at a time: the sums of four inputs stay in registers.
    for part in 0..LINES {
        let mut sums = [[_mm256_setzero_si256(); 2]; V];
        for (quad, lines) in lines.iter().enumerate() {
            let line = lines[part].0.as_ptr();
            // SAFETY: a line has 64 bytes, and is aligned to as many.
            let halves = [0, 32].map(|at| unsafe { _mm256_load_si256(line.add(at).cast()) });
            for (sums, input) in sums.iter_mut().zip(inputs) {
                let four: [u8; QUAD] = input[quad * QUAD..][..QUAD].try_into().expect("four columns");
                let four = _mm256_set1_epi32(i32::from_le_bytes(four) ^ signs);
                for (sum, half) in sums.iter_mut().zip(halves) {
                    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(four), _mm256_sign_epi8(half, four));
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                }
            }
        }
        for (out, sums) in out.iter_mut().zip(sums) {
            for (out, sum) in out[part * 16..][..16].as_chunks_mut::<8>().0.iter_mut().zip(sums) {
                // SAFETY: `out` has 32 bytes; stores need no alignment.
                unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), sum) };
            }
        }
    }
    out
}

#[target_feature(enable = "avx2,fma")]
pub fn step_cells(gates: &[f32], memory: &mut [f32], shown: &mut [u8]) {
    lanes::step_cells(gates, memory, shown);
}

#[target_feature(enable = "avx2,fma")]
pub fn join(values: &mut [f32], parts: &mut [Part]) {
    lanes::join(values, parts);
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub fn highest(values: &[f32]) -> f32 {
    let (vectors, rest) = values.as_chunks::<8>();
    let mut highest = _mm256_set1_ps(lanes::highest(rest));
    for vector in vectors {
        // SAFETY: `vector` has 32 bytes; loads need no alignment.
        let vector = unsafe { _mm256_loadu_ps(vector.as_ptr()) };
        // Of a value that is not a number, the second operand is the result.
        highest = _mm256_max_ps(vector, highest);
    }
    let half = _mm_max_ps(_mm256_castps256_ps128(highest), _mm256_extractf128_ps::<1>(highest));
    let pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
    _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)))
}
