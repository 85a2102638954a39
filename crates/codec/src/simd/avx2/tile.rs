//! Tiles out of pages and into them. Elements of 16 bits are turned round, where rows of the page are columns of the tile,
//! before they are widened and after they are rounded.

use super::{bytes_at, bytes_at_mut, load_bytes, load_f32s, round, store_bytes, store_f32s, widen};
use crate::page::{self, Element, Page, PageMut};
use crate::tile::{Axis, EDGE, PageRows, Span, Tile};
use std::arch::x86_64::*;

/// Bytes of a row of 16-bit elements.
const ROW_BYTES: usize = 2 * EDGE;

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub fn load(page: &Page<'_>, span: &Span, axis: Axis, tile: &mut Tile) {
    let rows = PageRows::of(page.kind(), span);
    match page.kind().element {
        Element::F16 => load_16::<false>(page.bytes(), &rows, axis, tile),
        Element::Bf16 => load_16::<true>(page.bytes(), &rows, axis, tile),
        Element::F32 => {
            *tile = Tile::ZERO;
            rows.places(axis, |place, at| tile.0[at] = page::load(Element::F32, page.bytes(), place));
        }
    }
}

/// Stores a tile. `NAN`: some values may be no numbers.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub fn store<const NAN: bool>(page: &mut PageMut<'_>, span: &Span, axis: Axis, tile: &Tile) {
    let rows = PageRows::of(page.kind(), span);
    match page.kind().element {
        Element::F16 => store_16::<false, NAN>(page.bytes_mut(), &rows, axis, tile),
        Element::Bf16 => store_16::<true, NAN>(page.bytes_mut(), &rows, axis, tile),
        Element::F32 => {
            let bytes = page.bytes_mut();
            rows.places(axis, |place, at| page::store(Element::F32, bytes, place, tile.0[at]));
        }
    }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn load_16<const BF16: bool>(bytes: &[u8], rows: &PageRows, axis: Axis, tile: &mut Tile) {
    let mut bits = load_rows(bytes, rows);
    if axis != rows.axis {
        bits = transposed(&bits);
    }
    for (row, values) in bits.iter().zip(tile.0.as_chunks_mut::<EDGE>().0) {
        let [low, high] = values.as_chunks_mut::<8>().0 else { unreachable!("sixteen are two times eight") };
        store_f32s(low, widen::<BF16>(_mm256_castsi256_si128(*row)));
        store_f32s(high, widen::<BF16>(_mm256_extracti128_si256::<1>(*row)));
    }
}

/// Rows of a page; zeros where it has none.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub fn load_rows(bytes: &[u8], rows: &PageRows) -> [__m256i; EDGE] {
    let mut bits = [_mm256_setzero_si256(); EDGE];
    let at = |row: usize| 2 * (rows.place + row * rows.stride);
    if (rows.count, rows.len) == (EDGE, EDGE) {
        for (row, bits) in bits.iter_mut().enumerate() {
            *bits = load_bytes(bytes_at(bytes, at(row)));
        }
    } else {
        for (row, bits) in bits.iter_mut().enumerate().take(rows.count) {
            let mut some = [0; ROW_BYTES];
            some[..2 * rows.len].copy_from_slice(&bytes[at(row)..][..2 * rows.len]);
            *bits = load_bytes(&some);
        }
    }
    bits
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn store_16<const BF16: bool, const NAN: bool>(bytes: &mut [u8], rows: &PageRows, axis: Axis, tile: &Tile) {
    let mut bits = [_mm256_setzero_si256(); EDGE];
    for (row, values) in bits.iter_mut().zip(tile.0.as_chunks::<EDGE>().0) {
        let [low, high] = values.as_chunks::<8>().0 else { unreachable!("sixteen are two times eight") };
        *row = round::<BF16, NAN>(load_f32s(low), load_f32s(high));
    }
    store_rows(bytes, rows, axis, bits);
}

/// Stores a tile of 16-bit elements whose rows are of `axis`.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub fn store_rows(bytes: &mut [u8], rows: &PageRows, axis: Axis, mut bits: [__m256i; EDGE]) {
    if axis != rows.axis {
        bits = transposed(&bits);
    }
    let at = |row: usize| 2 * (rows.place + row * rows.stride);
    if (rows.count, rows.len) == (EDGE, EDGE) {
        for (row, bits) in bits.into_iter().enumerate() {
            store_bytes(bytes_at_mut(bytes, at(row)), bits);
        }
    } else {
        for (row, bits) in bits.into_iter().enumerate().take(rows.count) {
            let mut all = [0; ROW_BYTES];
            store_bytes(&mut all, bits);
            bytes[at(row)..][..2 * rows.len].copy_from_slice(&all[..2 * rows.len]);
        }
    }
}

/// Sixteen rows of sixteen 16-bit elements become columns.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn transposed(rows: &[__m256i; EDGE]) -> [__m256i; EDGE] {
    // The left half of row i beside that of row i + 8, then the right halves so: what is left to do is within 128 bits.
    let mut halves = [_mm256_setzero_si256(); EDGE];
    for row in 0..8 {
        halves[row] = _mm256_permute2x128_si256::<0x20>(rows[row], rows[row + 8]);
        halves[row + 8] = _mm256_permute2x128_si256::<0x31>(rows[row], rows[row + 8]);
    }
    // Each step moves one bit of the number of a row into the number of an element, and one the other way.
    for _ in 0..3 {
        let before = halves;
        for start in [0, 8] {
            for row in 0..4 {
                let [first, second] = [before[start + row], before[start + row + 4]];
                halves[start + 2 * row] = _mm256_unpacklo_epi16(first, second);
                halves[start + 2 * row + 1] = _mm256_unpackhi_epi16(first, second);
            }
        }
    }
    halves
}
