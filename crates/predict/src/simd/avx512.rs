//! AVX-512 with VNNI: an instruction multiplies 64 bytes and adds them in fours.

use super::lanes::{self, Part};
use super::matrix::{LINES, Line, Matrix, PANEL, QUAD, Sums};
use std::arch::x86_64::*;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
pub fn multiply<const V: usize>(
    matrix: &Matrix,
    inputs: &[&[u8]; V],
    factors: &[f32],
    bias: Option<&[f32]>,
    out: &mut [&mut [f32]],
) {
    matrix.each_panel(factors, bias, out, |lines, offsets| panel(lines, offsets, inputs), |_, _, _| {});
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
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
        |lines, offsets| panel(lines, offsets, inputs),
        |vector, at, logits| {
            parts[vector][at] = match logits.as_chunks_mut::<16>() {
                ([a, b, c, d], []) => to_part([a, b, c, d]),
                _ => lanes::to_part(logits, lanes::highest(logits)),
            };
        },
    );
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
fn panel<const V: usize>(lines: &[[Line; LINES]], offsets: &[i32; PANEL], inputs: &[&[u8]; V]) -> Sums<V> {
    let mut sums = [[_mm512_setzero_si512(); LINES]; V];
    for (at, offsets) in offsets.as_chunks::<16>().0.iter().enumerate() {
        // SAFETY: `offsets` has 64 bytes; loads need no alignment.
        let offsets = unsafe { _mm512_loadu_si512(offsets.as_ptr().cast()) };
        sums.iter_mut().for_each(|sums| sums[at] = offsets);
    }
    for (quad, lines) in lines.iter().enumerate() {
        // SAFETY: a line has 64 bytes, and is aligned to as many.
        let lines = lines.each_ref().map(|line| unsafe { _mm512_load_si512(line.0.as_ptr().cast()) });
        for (sums, input) in sums.iter_mut().zip(inputs) {
            let four: [u8; QUAD] = input[quad * QUAD..][..QUAD].try_into().expect("four columns");
            let four = _mm512_set1_epi32(i32::from_le_bytes(four));
            for (sum, line) in sums.iter_mut().zip(lines) {
                *sum = _mm512_dpbusd_epi32(*sum, four, line);
            }
        }
    }
    let mut out = [[0; PANEL]; V];
    for (out, sums) in out.iter_mut().zip(sums) {
        for (out, sum) in out.as_chunks_mut::<16>().0.iter_mut().zip(sums) {
            // SAFETY: `out` has 64 bytes; stores need no alignment.
            unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), sum) };
        }
    }
    out
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
pub fn step_cells(gates: &[f32], memory: &mut [f32], shown: &mut [u8]) {
    lanes::step_cells(gates, memory, shown);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
pub fn join(values: &mut [f32], parts: &mut [Part]) {
    lanes::join(values, parts);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
pub fn highest(values: &[f32]) -> f32 {
    let (vectors, rest) = values.as_chunks::<16>();
    let mut highest = _mm512_set1_ps(lanes::highest(rest));
    for vector in vectors {
        // SAFETY: `vector` has 64 bytes; loads need no alignment.
        let vector = unsafe { _mm512_loadu_ps(vector.as_ptr()) };
        // Of a value that is not a number, the second operand is the result.
        highest = _mm512_max_ps(vector, highest);
    }
    _mm512_reduce_max_ps(highest)
}

/// As [`lanes::to_part`], of a whole block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
fn to_part(logits: [&mut [f32; 16]; 4]) -> Part {
    // SAFETY: an array has 64 bytes; loads need no alignment.
    let loaded = logits.each_ref().map(|logits| unsafe { _mm512_loadu_ps(logits.as_ptr()) });
    let [a, b, c, d] = loaded;
    let highest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d)));
    let [a, b, c, d] = loaded.map(|logits| exp(_mm512_sub_ps(logits, _mm512_set1_ps(highest))));
    for (logits, values) in logits.into_iter().zip([a, b, c, d]) {
        // SAFETY: an array has 64 bytes; stores need no alignment.
        unsafe { _mm512_storeu_ps(logits.as_mut_ptr(), values) };
    }
    // By halves, as the scalar code.
    let sum = _mm512_add_ps(_mm512_add_ps(a, c), _mm512_add_ps(b, d));
    Part { highest, sum: _mm512_reduce_add_ps(sum) }
}

/// As [`lanes::exp`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
fn exp(x: __m512) -> __m512 {
    let of = |value: f32| _mm512_set1_ps(value);
    let x = _mm512_min_ps(_mm512_max_ps(x, of(lanes::EXPONENT_MIN)), of(lanes::EXPONENT_MAX));
    let biased = _mm512_fmadd_ps(x, of(std::f32::consts::LOG2_E), of(lanes::ROUND));
    let power = _mm512_sub_ps(biased, of(lanes::ROUND));
    let rest = _mm512_fmadd_ps(power, of(-lanes::LN2_HIGH), x);
    let rest = _mm512_fmadd_ps(power, of(-lanes::LN2_LOW), rest);
    let mut sum = of(lanes::POWERS[0]);
    for factor in &lanes::POWERS[1..] {
        sum = _mm512_fmadd_ps(sum, rest, of(*factor));
    }
    let mantissa = _mm512_fmadd_ps(sum, rest, of(1.0));
    let bias = _mm512_set1_epi32((lanes::ROUND.to_bits() - 127).cast_signed());
    let exponent = _mm512_slli_epi32::<23>(_mm512_sub_epi32(_mm512_castps_si512(biased), bias));
    _mm512_mul_ps(mantissa, _mm512_castsi512_ps(exponent))
}
