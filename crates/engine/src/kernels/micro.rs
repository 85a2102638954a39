//! The only inner loop of the matrix kernels: a tile of outer products.

use pulp::Simd;

/// A tile of `MR` rows by `P` panels, held in registers; a panel row is `V` vectors.
pub type Tile<S, const MR: usize, const P: usize, const V: usize> = [[[<S as Simd>::f32s; V]; P]; MR];

/// The tile of zeros.
#[inline(always)]
pub fn zero<S: Simd, const MR: usize, const P: usize, const V: usize>(simd: S) -> Tile<S, MR, P, V> {
    [[[simd.splat_f32s(0.0); V]; P]; MR]
}

/// For each `i` in order: `tile[m][p] = a(i, m) * b[p][i] + tile[m][p]`, fused. Every element of
/// `b` must have at least `k` rows. This fixes the order of accumulation for all products of the
/// engine.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "indices run over registers; iterators over arrays of arrays do not unroll as reliably"
)]
pub fn fma_chain<S: Simd, const MR: usize, const P: usize, const V: usize>(
    simd: S,
    mut tile: Tile<S, MR, P, V>,
    k: usize,
    a: impl Fn(usize, usize) -> f32,
    b: [&[[S::f32s; V]]; P],
) -> Tile<S, MR, P, V> {
    let b: [&[[S::f32s; V]]; P] = std::array::from_fn(|p| &b[p][..k]);
    for i in 0..k {
        // Loops over const bounds unroll fully; the arrays of vectors then live in registers.
        let rows: [[S::f32s; V]; P] = std::array::from_fn(|p| b[p][i]);
        for m in 0..MR {
            let factor = simd.splat_f32s(a(i, m));
            for p in 0..P {
                for v in 0..V {
                    tile[m][p][v] = simd.mul_add_f32s(factor, rows[p][v], tile[m][p][v]);
                }
            }
        }
    }
    tile
}

/// A panel `[k][16]` as rows of `V` vectors. `V` must be `16 / S::F32_LANES`.
#[inline(always)]
pub fn panel<S: Simd, const V: usize>(values: &[f32]) -> &[[S::f32s; V]] {
    S::as_simd_f32s(values).0.as_chunks::<V>().0
}

/// As [`panel`], writable.
#[inline(always)]
pub fn panel_mut<S: Simd, const V: usize>(values: &mut [f32]) -> &mut [[S::f32s; V]] {
    S::as_mut_simd_f32s(values).0.as_chunks_mut::<V>().0
}

/// Runs `$body` with the constant `$V` set to the number of vectors per panel row on this
/// instruction set. The lane count is a constant of `S`, so the compiler removes all arms but one.
macro_rules! with_vectors_per_panel {
    ($S:ident, $V:ident, $body:expr) => {
        match $S::F32_LANES {
            16 => {
                const $V: usize = 1;
                $body
            }
            8 => {
                const $V: usize = 2;
                $body
            }
            4 => {
                const $V: usize = 4;
                $body
            }
            2 => {
                const $V: usize = 8;
                $body
            }
            _ => {
                const $V: usize = 16;
                $body
            }
        }
    };
}
pub(super) use with_vectors_per_panel;
