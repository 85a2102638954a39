//! Elementwise and row-wise operations: norms, rotary embedding, activation, softmax, sums.
//!
//! The code is plain loops over arrays of 16; the compiler vectorises them inside
//! [`pulp::Arch::dispatch`]. A sum over a row is 16 interleaved chains added in one fixed tree,
//! independent of the vector width.

use super::PANEL;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

/// Below this many values one thread computes the operation.
const PARALLEL_THRESHOLD: usize = 1 << 15;

/// `e^x` in f32, within 2 ulp; 0 below -87 and about 1.6e38 above 88. Cephes' polynomial (Moshier,
/// `expf.c`) with fused multiply-adds. Used instead of std's `exp`, which differs between machines.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    // 1.5 · 2^23 pushes the fraction out of the significand; 127 is the exponent's bias.
    const SHIFT: f32 = 12_582_912.0 + 127.0;
    let clamped = x.clamp(-87.0, 88.0);
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, SHIFT);
    let n = shifted - SHIFT;
    let r = n.mul_add(-0.693_359_4, clamped);
    let r = n.mul_add(2.121_944_4e-4, r);
    let p = 1.987_569_1e-4_f32;
    let p = p.mul_add(r, 1.398_2e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 0.5);
    let value = p.mul_add(r * r, r + 1.0);
    let scale = f32::from_bits(shifted.to_bits() << 23);
    if x < -87.0 { 0.0 } else { value * scale }
}

/// Adds 16 lanes in a fixed tree.
#[inline(always)]
fn add_lanes(lanes: [f32; PANEL]) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|i| lanes[i] + lanes[i + 8]);
    let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// Replaces the first `valid` scores of a row by `e^(score - max)` and returns their sum. The row's
/// length must be `valid` rounded up to 16; the values after `valid` become 0.
#[inline(always)]
pub(super) fn softmax_terms(row: &mut [f32], valid: usize) -> f32 {
    row[valid..].fill(f32::NEG_INFINITY);
    let (chunks, _) = row.as_chunks_mut::<PANEL>();
    let mut max = [f32::NEG_INFINITY; PANEL];
    for chunk in chunks.iter() {
        for lane in 0..PANEL {
            max[lane] = if chunk[lane] > max[lane] { chunk[lane] } else { max[lane] };
        }
    }
    let max = max.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = [0.0; PANEL];
    for chunk in chunks {
        for lane in 0..PANEL {
            chunk[lane] = exp(chunk[lane] - max);
            sum[lane] += chunk[lane];
        }
    }
    add_lanes(sum)
}

/// Calls `row(index, out_row)` for every row of `width` values, compiled for the widest instruction
/// set of the machine. Large inputs run in parallel.
fn for_rows<F: Fn(usize, &mut [f32]) + Sync + Send>(out: &mut [f32], width: usize, row: F) {
    struct Rows<'a, F> {
        first: usize,
        rows: &'a mut [f32],
        width: usize,
        row: &'a F,
    }
    impl<F: Fn(usize, &mut [f32])> WithSimd for Rows<'_, F> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            for (offset, row) in self.rows.chunks_exact_mut(self.width).enumerate() {
                (self.row)(self.first + offset, row);
            }
        }
    }
    let arch = Arch::new();
    if out.len() < PARALLEL_THRESHOLD {
        return arch.dispatch(Rows { first: 0, rows: out, width, row: &row });
    }
    let rows_per_task = (out.len() / width).div_ceil(rayon::current_num_threads() * 2);
    out.par_chunks_mut(rows_per_task * width).enumerate().for_each(|(task, rows)| {
        arch.dispatch(Rows { first: task * rows_per_task, rows, width, row: &row });
    });
}

/// `x += g · value` row by row, with `g = sigmoid(±√max(|d|, 1e-6))`, negative iff `d` is, and
/// `d = query · key / √width` (Engram's gate).
pub fn add_gated(query: &[f32], key: &[f32], value: &[f32], width: usize, x: &mut [f32]) {
    for_rows(
        x,
        width,
        #[inline(always)]
        |index, x| {
            let row = index * width..(index + 1) * width;
            let (query, key, value) = (&query[row.clone()], &key[row.clone()], &value[row]);
            let ((queries, query), (keys, key)) = (query.as_chunks::<PANEL>(), key.as_chunks::<PANEL>());
            let mut sums = [0.0_f32; PANEL];
            for (query, key) in queries.iter().zip(keys) {
                for lane in 0..PANEL {
                    sums[lane] = query[lane].mul_add(key[lane], sums[lane]);
                }
            }
            for ((sum, query), key) in sums.iter_mut().zip(query).zip(key) {
                *sum = query.mul_add(*key, *sum);
            }
            let product = add_lanes(sums) / (width as f32).sqrt();
            let root = product.abs().max(1e-6).sqrt();
            let gate = 1.0 / (1.0 + exp(if product < 0.0 { root } else { -root }));
            x.iter_mut().zip(value).for_each(|(x, value)| *x = gate.mul_add(*value, *x));
        },
    );
}

/// `out = x / sqrt(mean(x²) + eps) · weight`, row by row (Zhang and Sennrich, 2019).
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    for_rows(
        out,
        width,
        #[inline(always)]
        |index, out| {
            let x = &x[index * width..(index + 1) * width];
            let (chunks, tail) = x.as_chunks::<PANEL>();
            let mut sums = [0.0_f32; PANEL];
            for chunk in chunks {
                for lane in 0..PANEL {
                    sums[lane] = chunk[lane].mul_add(chunk[lane], sums[lane]);
                }
            }
            for (sum, value) in sums.iter_mut().zip(tail) {
                *sum = value.mul_add(*value, *sum);
            }
            let scale = 1.0 / (add_lanes(sums) / width as f32 + eps).sqrt();
            for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                *out = *x * scale * weight;
            }
        },
    );
}

/// `out += x` (the residual stream).
pub fn add(x: &[f32], out: &mut [f32], width: usize) {
    for_rows(
        out,
        width,
        #[inline(always)]
        |index, out| {
            for (out, x) in out.iter_mut().zip(&x[index * width..]) {
                *out += x;
            }
        },
    );
}

/// `out = silu(gate) · up`. A row of `x` is `gate` then `up`, each `width` wide (Shazeer, 2020).
pub fn swiglu(x: &[f32], width: usize, out: &mut [f32]) {
    for_rows(
        out,
        width,
        #[inline(always)]
        |index, out| {
            let (gate, up) = x[index * 2 * width..(index + 1) * 2 * width].split_at(width);
            for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                *out = gate / (1.0 + exp(-gate)) * up;
            }
        },
    );
}

/// Rotates the first `heads` heads of every row of `x` (`width` values per row). Pairs are the two
/// halves of a head, as Hugging Face stores Llama. Row `i` uses row `i` of `cos_sin`:
/// `head_dim / 2` cosines, then as many sines.
pub fn rotate(x: &mut [f32], width: usize, heads: usize, head_dim: usize, cos_sin: &[f32]) {
    let half = head_dim / 2;
    for_rows(
        x,
        width,
        #[inline(always)]
        |index, row| {
            let (cos, sin) = cos_sin[index * head_dim..(index + 1) * head_dim].split_at(half);
            for head in row[..heads * head_dim].chunks_exact_mut(head_dim) {
                let (low, high) = head.split_at_mut(half);
                for i in 0..half {
                    let (a, b) = (low[i], high[i]);
                    low[i] = a * cos[i] - b * sin[i];
                    high[i] = b * cos[i] + a * sin[i];
                }
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_ulp() {
        let mut worst = 0.0_f64;
        for step in 0..400_000 {
            let x = -86.5 + step as f32 * 4.3e-4;
            let truth = f64::from(x).exp();
            let ulp = f64::from(f32::from_bits((truth as f32).to_bits() + 1)) - f64::from(truth as f32);
            worst = worst.max((f64::from(exp(x)) - truth).abs() / ulp);
        }
        assert!(worst < 2.0, "{worst} ulp");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-88.0), 0.0);
        assert!(exp(1e30) > 1e38 && exp(1e30).is_finite());
    }

    #[test]
    fn softmax_ignores_values_beyond_valid() {
        let mut row = [1.0, 2.0, 3.0, f32::NAN, f32::INFINITY, 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0.];
        let sum = softmax_terms(&mut row, 3);
        assert!((sum - (1.0 + (-1.0_f32).exp() + (-2.0_f32).exp())).abs() < 1e-6);
        assert_eq!(row[2], 1.0);
        assert_eq!(row[3..], [0.0; 13]);
    }

    #[test]
    fn each_row_is_normed_by_itself() {
        let width = 40;
        let x: Vec<f32> = (0..3 * width).map(|i| (i as f32 * 0.37).sin() * (1 + i / width) as f32).collect();
        let weight: Vec<f32> = (0..width).map(|i| 1.0 + i as f32 * 0.01).collect();
        let mut out = vec![0.0; x.len()];
        rms_norm(&x, &weight, 1e-5, &mut out);
        for (row, got) in x.chunks_exact(width).zip(out.chunks_exact(width)) {
            let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / width as f64;
            for ((got, x), weight) in got.iter().zip(row).zip(&weight) {
                let want = f64::from(*x) / (mean + 1e-5).sqrt() * f64::from(*weight);
                assert!((f64::from(*got) - want).abs() < 1e-5, "{got} {want}");
            }
        }
    }
}
