//! Tiles of sixteen tokens of sixteen channels, and the two products with matrices.
//!
//! The forward one is in single precision: each sum runs over the channels in their order, with
//! products and sums rounded one by one. The inverse one is in integers, so its order does not
//! matter. Both return the same bits at every level.

use crate::page::{Page, PageMut};
use crate::simd::ByLevel;
use crate::tile::{Axis, Span, Tile};

#[cfg(target_arch = "x86_64")]
mod x86;

/// Tokens of a tile, and values of a row of a matrix's tile.
pub(super) const EDGE: usize = 16;
/// Values of a row.
pub(super) type Row = [f32; EDGE];
/// Sums of a channel tile of a token.
pub(super) type Sums = [i32; EDGE];
/// A pair of components of one token.
pub(super) type Pair = [i16; 2];
/// A pair of components of sixteen tokens.
pub(super) type Codes = [Pair; EDGE];
/// The weights of a pair of components in sixteen channels.
pub(super) type PairRow = [Pair; EDGE];

/// Arguments: the numbers of pairs, the codes of all pairs, the matrix, the sums.
type Inverse = unsafe fn(&[u16], &[Codes], &[PairRow], &mut [Sums; EDGE]);

/// Callers must guarantee that the machine has the level.
pub(super) struct Kernels {
    /// Loads a tile with a row for each channel; zeros where the page has no values.
    pub load: unsafe fn(page: &Page<'_>, span: &Span, rows: &mut [Row; EDGE]),
    /// Stores a tile with a row for each channel, where the page has values.
    pub store: unsafe fn(page: &mut PageMut<'_>, span: &Span, rows: &[Row; EDGE]),
    /// `sums[token][row] = Σ inputs[channel][token] · matrix[channel][row]`.
    pub forward: unsafe fn(inputs: &[Row], matrix: &[Row], sums: &mut [Row; EDGE]),
    /// `sums[token][row] = Σ matrix[pair][row] · codes[pair][token]`, for the named pairs, modulo 2^32.
    pub inverse: Inverse,
}

pub(super) static KERNELS: ByLevel<Kernels> = ByLevel {
    scalar: Kernels { load, store, forward, inverse },
    #[cfg(target_arch = "x86_64")]
    avx2: Kernels { load: x86::load, store: x86::store, forward: x86::forward_avx2, inverse: x86::inverse_avx2 },
    #[cfg(target_arch = "x86_64")]
    avx512: Kernels { load: x86::load, store: x86::store, forward: x86::forward_avx512, inverse: x86::inverse_avx512 },
};

fn load(page: &Page<'_>, span: &Span, rows: &mut [Row; EDGE]) {
    let mut tile = Tile::ZERO;
    page.load_tile(span, Axis::Channels, &mut tile);
    rows.as_flattened_mut().copy_from_slice(&tile.0);
}

fn store(page: &mut PageMut<'_>, span: &Span, rows: &[Row; EDGE]) {
    let mut tile = Tile::ZERO;
    tile.0.copy_from_slice(rows.as_flattened());
    page.store_tile(span, Axis::Channels, &tile);
}

fn forward(inputs: &[Row], matrix: &[Row], sums: &mut [Row; EDGE]) {
    *sums = [[0.0; EDGE]; EDGE];
    for (input, weights) in inputs.iter().zip(matrix) {
        for (sums, value) in sums.iter_mut().zip(input) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum += value * weight;
            }
        }
    }
}

fn inverse(pairs: &[u16], codes: &[Codes], matrix: &[PairRow], sums: &mut [Sums; EDGE]) {
    *sums = [[0; EDGE]; EDGE];
    for &pair in pairs {
        let weights = &matrix[usize::from(pair)];
        for (sums, code) in sums.iter_mut().zip(&codes[usize::from(pair)]) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                let product = |at: usize| i32::from(weight[at]) * i32::from(code[at]);
                // Both at -32,768 would be the only sum beyond 32 bits; vectors wrap it as well.
                *sum = sum.wrapping_add(product(0).wrapping_add(product(1)));
            }
        }
    }
}
