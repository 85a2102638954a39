//! Sixteen rows of sixteen values, as elements: out of pages and into them, turned round where rows of the page are columns
//! of these.

use super::{F32, bytes_at, load_bytes, round, store_bytes, widen};
use crate::tile::{Axis, EDGE, PageRows};
use std::arch::x86_64::*;
use std::ops::Range;

/// Bytes of a row of 16-bit elements.
pub const ROW_BYTES: usize = 2 * EDGE;

/// The bytes that a whole tile of 16-bit elements lies in, and from row to row; `None`: it is not whole, or of singles.
pub fn whole<const E: u8>(rows: &PageRows) -> Option<(Range<usize>, usize)> {
    let (first, stride) = (2 * rows.place, 2 * rows.stride);
    let is_whole = E != F32 && (rows.count, rows.len) == (EDGE, EDGE);
    is_whole.then(|| (first..first + (EDGE - 1) * stride + ROW_BYTES, stride))
}

/// Rows of elements. Those of 16 bits have one register; singles have two, as they lie in memory.
pub struct Rows {
    pub bits: [__m256i; EDGE],
    more: [__m256i; EDGE],
}

impl Rows {
    #[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
    #[inline]
    pub fn zero() -> Self {
        Self { bits: [_mm256_setzero_si256(); EDGE], more: [_mm256_setzero_si256(); EDGE] }
    }

    /// Sixteen numbers, split.
    #[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
    #[inline]
    pub fn get<const E: u8>(&self, row: usize) -> [__m256; 2] {
        if E != F32 {
            return widen::<E>(self.bits[row]);
        }
        let [low, high] = [self.bits[row], self.more[row]];
        let halves = [_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high)];
        halves.map(|bits| _mm256_castsi256_ps(bits))
    }

    /// Rounds sixteen numbers, split.
    #[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
    #[inline]
    pub fn set<const E: u8, const NAN: bool>(&mut self, row: usize, values: [__m256; 2]) {
        if E != F32 {
            self.bits[row] = round::<E, NAN>(values);
            return;
        }
        let [first, second] = [_mm256_castps_si256(values[0]), _mm256_castps_si256(values[1])];
        self.bits[row] = _mm256_permute2x128_si256::<0x20>(first, second);
        self.more[row] = _mm256_permute2x128_si256::<0x31>(first, second);
    }

    /// Sixteen singles of a row as they lie in memory.
    #[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
    #[inline]
    fn singles(&self, row: usize) -> [u8; 2 * ROW_BYTES] {
        let mut all = [0; 2 * ROW_BYTES];
        let [low, high] = all.as_chunks_mut::<ROW_BYTES>().0 else { unreachable!("two halves") };
        store_bytes(low, self.bits[row]);
        store_bytes(high, self.more[row]);
        all
    }

    /// Rows of `axis` from a page; zeros where it has no values.
    #[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
    pub fn load<const E: u8>(&mut self, bytes: &[u8], rows: &PageRows, axis: Axis) {
        if E == F32 {
            return self.load_singles(bytes, rows, axis);
        }
        let first = 2 * rows.place;
        if (rows.count, rows.len) == (EDGE, EDGE) {
            let stride = 2 * rows.stride;
            let bytes = &bytes[first..first + (EDGE - 1) * stride + ROW_BYTES];
            for (row, bits) in self.bits.iter_mut().enumerate() {
                // SAFETY: the last of sixteen rows ends with these bytes.
                *bits = unsafe { _mm256_loadu_si256(bytes.as_ptr().add(row * stride).cast()) };
            }
        } else {
            self.bits = [_mm256_setzero_si256(); EDGE];
            for (row, bits) in self.bits.iter_mut().enumerate().take(rows.count) {
                let mut some = [0; ROW_BYTES];
                some[..2 * rows.len].copy_from_slice(&bytes[first + 2 * row * rows.stride..][..2 * rows.len]);
                *bits = load_bytes(&some);
            }
        }
        if axis != rows.axis {
            transpose(&mut self.bits);
        }
    }

    #[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
    fn load_singles(&mut self, bytes: &[u8], rows: &PageRows, axis: Axis) {
        let mut all = [[0; 2 * ROW_BYTES]; EDGE];
        rows.places(axis, |place, at| {
            all[at / EDGE][4 * (at % EDGE)..][..4].copy_from_slice(&bytes[4 * place..][..4]);
        });
        for (row, values) in all.iter().enumerate() {
            self.bits[row] = load_bytes(bytes_at(values, 0));
            self.more[row] = load_bytes(bytes_at(values, ROW_BYTES));
        }
    }

    /// Stores rows of `axis` to a page, as far as it has values, and loses them.
    #[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
    pub fn store<const E: u8>(&mut self, bytes: &mut [u8], rows: &PageRows, axis: Axis) {
        if E == F32 {
            return self.store_singles(bytes, rows, axis);
        }
        if axis != rows.axis {
            transpose(&mut self.bits);
        }
        let first = 2 * rows.place;
        if (rows.count, rows.len) == (EDGE, EDGE) {
            let stride = 2 * rows.stride;
            let bytes = &mut bytes[first..first + (EDGE - 1) * stride + ROW_BYTES];
            for (row, bits) in self.bits.iter().enumerate() {
                // SAFETY: the last of sixteen rows ends with these bytes.
                unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().add(row * stride).cast(), *bits) };
            }
        } else {
            for (row, bits) in self.bits.iter().enumerate().take(rows.count) {
                let mut all = [0; ROW_BYTES];
                store_bytes(&mut all, *bits);
                bytes[first + 2 * row * rows.stride..][..2 * rows.len].copy_from_slice(&all[..2 * rows.len]);
            }
        }
    }

    #[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
    fn store_singles(&self, bytes: &mut [u8], rows: &PageRows, axis: Axis) {
        let mut all = [[0; 2 * ROW_BYTES]; EDGE];
        for (row, values) in all.iter_mut().enumerate() {
            *values = self.singles(row);
        }
        rows.places(axis, |place, at| {
            bytes[4 * place..][..4].copy_from_slice(&all[at / EDGE][4 * (at % EDGE)..][..4]);
        });
    }
}

/// Sixteen rows of sixteen 16-bit elements become columns.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn transpose(rows: &mut [__m256i; EDGE]) {
    // The left half of row i beside that of row i + 8, then the right halves so: what is left to do is within 128 bits.
    let mut halves = [_mm256_setzero_si256(); EDGE];
    for row in 0..8 {
        halves[row] = _mm256_permute2x128_si256::<0x20>(rows[row], rows[row + 8]);
        halves[row + 8] = _mm256_permute2x128_si256::<0x31>(rows[row], rows[row + 8]);
    }
    for start in [0, 8] {
        let mut eight = [_mm256_setzero_si256(); 8];
        eight.copy_from_slice(&halves[start..start + 8]);
        // Each step moves one bit of the number of a row into the number of an element, and one the other way.
        for _ in 0..3 {
            let before = eight;
            for row in 0..4 {
                eight[2 * row] = _mm256_unpacklo_epi16(before[row], before[row + 4]);
                eight[2 * row + 1] = _mm256_unpackhi_epi16(before[row], before[row + 4]);
            }
        }
        rows[start..start + 8].copy_from_slice(&eight);
    }
}
