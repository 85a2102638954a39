//! Encoding INT8 over rows of sixteen elements of 16 bits, for registers of any width.
//!
//! # Safety
//! Callers of all functions must guarantee that the machine has the instruction set of `V`, and
//! must have it enabled.

use crate::simd::avx2::BF16;
use crate::simd::vector::Vector;
use crate::tile::{EDGE, ROW_BYTES};
use std::mem::MaybeUninit;

/// The number of rows in `bytes`, which begin `stride` bytes apart.
const fn count(bytes: &[u8], stride: usize) -> usize {
    assert!((bytes.len() + stride - ROW_BYTES).is_multiple_of(stride), "whole rows");
    (bytes.len() + stride - ROW_BYTES) / stride
}

/// Widens two registers of magnitudes by rows. Magnitudes are compared by bits, so NaN is the
/// greatest.
#[inline(always)]
pub unsafe fn widen_largest<V: Vector>(largest: &mut [V; 2], bytes: &[u8], stride: usize) {
    let rows = count(bytes, stride);
    assert!(rows.is_multiple_of(2 * V::ROWS), "pairs of registers");
    for first in (0..rows).step_by(2 * V::ROWS) {
        for (at, largest) in largest.iter_mut().enumerate() {
            // SAFETY: `count` rows lie in `bytes`; the caller guarantees the instruction set.
            unsafe {
                let bits = V::load_rows(bytes.as_ptr().add((first + at * V::ROWS) * stride), stride);
                *largest = largest.max16(bits.and(V::splat16(0x7fff)));
            }
        }
    }
}

/// Stores codes of rows: each is an element times `inverse`, which must fit eight bits.
#[inline(always)]
pub unsafe fn quantize<const E: u8, V: Vector>(
    bytes: &[u8],
    stride: usize,
    inverse: f32,
    codes: &mut [MaybeUninit<u8>],
) {
    let rows = count(bytes, stride);
    assert!(rows.is_multiple_of(2 * V::ROWS) && codes.len() == rows * EDGE, "a code for each element");
    for first in (0..rows).step_by(2 * V::ROWS) {
        // SAFETY: `count` rows lie in `bytes`, and each has its codes; the caller guarantees the
        // instruction set.
        unsafe {
            let inverse = V::splat32(inverse.to_bits());
            let mut words = [V::splat16(0); 2];
            for (at, words) in words.iter_mut().enumerate() {
                let bits = V::load_rows(bytes.as_ptr().add((first + at * V::ROWS) * stride), stride);
                *words = if E == BF16 {
                    let even = bits.up16().mul(inverse).to_i32();
                    let odd = bits.and(V::splat32(0xffff_0000)).mul(inverse).to_i32();
                    even.with_odd(odd.up16())
                } else {
                    let [near, far] = bits.halves_to_f32();
                    V::narrow16([near.mul(inverse).to_i32(), far.mul(inverse).to_i32()])
                };
            }
            V::narrow8(words).store(codes.as_mut_ptr().add(first * EDGE).cast());
        }
    }
}
