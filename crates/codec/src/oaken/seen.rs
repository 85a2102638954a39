//! Bounds of groups by the bits of 16-bit elements, for registers of any width.
//!
//! The bits of elements have an order, and ends of regions are places in it. The distance of an
//! element behind an end, modulo 2^16, is least for the first element behind it and greatest for
//! the last before it. So one subtraction finds both bounds at an end.

use crate::simd::vector::Vector;
use crate::tile::ROW_BYTES;

/// The most ends of regions.
pub const ENDS_MAX: usize = 6;

/// By lane: for each end the least distance behind it and the greatest; of all elements the first
/// place and the last.
pub struct Seen<V, const G: usize> {
    pub nearest: [[V; G]; 2],
    pub furthest: [[V; G]; 2],
    pub first: V,
    pub last: V,
}

/// Rows of sixteen elements: `count` that begin `stride` bytes apart, `behind` bytes behind each
/// start.
pub struct RowsAt<'a> {
    pub bytes: &'a [u8],
    pub starts: &'a [usize],
    pub behind: usize,
    pub count: usize,
    pub stride: usize,
}

/// Looks at the elements of rows.
///
/// # Safety
/// Callers must guarantee that the machine has the instruction set of `V`, and must have it
/// enabled.
#[inline(always)]
pub unsafe fn see<V: Vector, const G: usize>(
    &RowsAt { bytes, starts, behind, count, stride }: &RowsAt<'_>,
    ends: &[u16; ENDS_MAX],
) -> Seen<V, G> {
    assert!(count.is_multiple_of(V::ROWS), "the rows fill whole registers");
    // SAFETY: the caller guarantees the instruction set, and `bytes` below has all rows of a start.
    unsafe {
        let (none, all, top) = (V::splat16(0), V::splat16(u16::MAX), V::splat16(0x8000));
        let mut seen = Seen { nearest: [[all; G]; 2], furthest: [[none; G]; 2], first: all, last: none };
        let mut of_ends = [[none; G]; 2];
        for (lanes, end) in of_ends.as_flattened_mut().iter_mut().zip(ends) {
            *lanes = V::splat16(*end);
        }
        for start in starts {
            let bytes = &bytes[start + behind..][..(count - 1) * stride + ROW_BYTES];
            for row in (0..count).step_by(V::ROWS) {
                let bits = V::load_rows(bytes.as_ptr().add(row * stride), stride);
                // Negative numbers are in reverse order, before all others.
                let order = bits.xor(bits.signs16().or(top));
                (seen.first, seen.last) = (seen.first.min16(order), seen.last.max16(order));
                let bounds = seen.nearest.as_flattened_mut().iter_mut().zip(seen.furthest.as_flattened_mut());
                for (end, (nearest, furthest)) in of_ends.as_flattened().iter().zip(bounds) {
                    let behind = order.sub16(*end);
                    (*nearest, *furthest) = (nearest.min16(behind), furthest.max16(behind));
                }
            }
        }
        seen
    }
}
