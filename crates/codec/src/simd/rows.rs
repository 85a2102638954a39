//! Sixteen rows of sixteen elements, loaded from pages and stored to them, and transposed if the
//! page's rows are columns here.

use super::avx2::{F32, bytes_at, load_bytes, round, store_bytes, widen};
use crate::tile::{Axis, EDGE, PageRows, ROW_BYTES};
use std::arch::x86_64::*;
use std::ops::Range;

/// The bytes of a whole tile of 16-bit elements, and its stride in bytes; `None`: it is not whole,
/// or of singles.
pub fn whole<const E: u8>(rows: &PageRows) -> Option<(Range<usize>, usize)> {
    let (first, stride) = (2 * rows.place, 2 * rows.stride);
    let is_whole = E != F32 && (rows.count, rows.len) == (EDGE, EDGE);
    is_whole.then(|| (first..first + (EDGE - 1) * stride + ROW_BYTES, stride))
}

/// The same for singles.
fn whole_singles(rows: &PageRows) -> Option<(Range<usize>, usize)> {
    let (first, stride) = (4 * rows.place, 4 * rows.stride);
    let is_whole = (rows.count, rows.len) == (EDGE, EDGE);
    is_whole.then(|| (first..first + (EDGE - 1) * stride + 2 * ROW_BYTES, stride))
}

/// Rows of elements: one register for 16-bit elements, two for singles as in memory.
pub struct Rows {
    pub bits: [__m256i; EDGE],
    more: [__m256i; EDGE],
}

impl Rows {
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    #[inline]
    pub fn zero() -> Self {
        Self { bits: [_mm256_setzero_si256(); EDGE], more: [_mm256_setzero_si256(); EDGE] }
    }

    /// Sixteen numbers of a row, split.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    #[inline]
    pub fn get<const E: u8>(&self, row: usize) -> [__m256; 2] {
        if E != F32 {
            return widen::<E>(self.bits[row]);
        }
        let [low, high] = [self.bits[row], self.more[row]];
        let halves = [_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high)];
        [_mm256_castsi256_ps(halves[0]), _mm256_castsi256_ps(halves[1])]
    }

    /// Stores sixteen numbers, split, as a row, rounded.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
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

    /// The bytes of sixteen singles of a row.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    #[inline]
    fn singles(&self, row: usize) -> [u8; 2 * ROW_BYTES] {
        let mut all = [0; 2 * ROW_BYTES];
        let [low, high] = all.as_chunks_mut::<ROW_BYTES>().0 else { unreachable!("two halves") };
        store_bytes(low, self.bits[row]);
        store_bytes(high, self.more[row]);
        all
    }

    /// Loads rows of `axis` from a page; zeros where the page has no values.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    pub fn load<const E: u8>(&mut self, bytes: &[u8], rows: &PageRows, axis: Axis) {
        if E == F32 {
            return self.load_singles(bytes, rows, axis);
        }
        let first = 2 * rows.place;
        if (rows.count, rows.len) == (EDGE, EDGE) {
            let stride = 2 * rows.stride;
            let bytes = &bytes[first..first + (EDGE - 1) * stride + ROW_BYTES];
            if axis != rows.axis {
                // SAFETY: all sixteen rows lie in `bytes`, which ends with the last.
                let half = |row: usize, right: usize| unsafe {
                    _mm_loadu_si128(bytes.as_ptr().add(row * stride + right * ROW_BYTES / 2).cast())
                };
                for (at, both) in self.bits.iter_mut().enumerate() {
                    let (row, right) = (at % 8, at / 8);
                    *both = _mm256_set_m128i(half(row + 8, right), half(row, right));
                }
                return columns(&mut self.bits);
            }
            for (row, bits) in self.bits.iter_mut().enumerate() {
                // SAFETY: all sixteen rows lie in `bytes`, which ends with the last.
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

    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    fn load_singles(&mut self, bytes: &[u8], rows: &PageRows, axis: Axis) {
        if let Some((place, stride)) = whole_singles(rows) {
            let bytes = &bytes[place];
            // SAFETY: all sixteen rows lie in `bytes`, which ends with the last.
            let eight = |row: usize, right: usize| unsafe {
                _mm256_loadu_si256(bytes.as_ptr().add(row * stride + right * ROW_BYTES).cast())
            };
            if axis == rows.axis {
                for row in 0..EDGE {
                    (self.bits[row], self.more[row]) = (eight(row, 0), eight(row, 1));
                }
                return;
            }
            for right in 0..2 {
                for (lower, all) in [&mut self.bits, &mut self.more].into_iter().enumerate() {
                    let mut square = [_mm256_setzero_si256(); 8];
                    (0..8).for_each(|row| square[row] = eight(8 * lower + row, right));
                    put_turned(&square, all[8 * right..].first_chunk_mut().expect("eight rows"));
                }
            }
            return;
        }
        let mut all = [[0; 2 * ROW_BYTES]; EDGE];
        rows.places(axis, |place, at| {
            all[at / EDGE][4 * (at % EDGE)..][..4].copy_from_slice(&bytes[4 * place..][..4]);
        });
        for (row, values) in all.iter().enumerate() {
            self.bits[row] = load_bytes(bytes_at(values, 0));
            self.more[row] = load_bytes(bytes_at(values, ROW_BYTES));
        }
    }

    /// Stores rows of `axis` to a page, where it has values. The rows are undefined afterwards.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
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
                // SAFETY: all sixteen rows lie in `bytes`, which ends with the last.
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

    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    fn store_singles(&self, bytes: &mut [u8], rows: &PageRows, axis: Axis) {
        if let Some((place, stride)) = whole_singles(rows) {
            let first = bytes[place].as_mut_ptr();
            let put = |row: usize, right: usize, eight: __m256i| {
                // SAFETY: all sixteen rows lie in the place of the tile, which ends with the last.
                unsafe { _mm256_storeu_si256(first.add(row * stride + right * ROW_BYTES).cast(), eight) };
            };
            if axis == rows.axis {
                for row in 0..EDGE {
                    put(row, 0, self.bits[row]);
                    put(row, 1, self.more[row]);
                }
                return;
            }
            for lower in 0..2 {
                for (right, all) in [&self.bits, &self.more].into_iter().enumerate() {
                    let mut square = [_mm256_setzero_si256(); 8];
                    put_turned(all[8 * lower..].first_chunk().expect("eight rows"), &mut square);
                    (0..8).for_each(|row| put(8 * right + row, lower, square[row]));
                }
            }
            return;
        }
        let mut all = [[0; 2 * ROW_BYTES]; EDGE];
        for (row, values) in all.iter_mut().enumerate() {
            *values = self.singles(row);
        }
        rows.places(axis, |place, at| {
            bytes[4 * place..][..4].copy_from_slice(&all[at / EDGE][4 * (at % EDGE)..][..4]);
        });
    }
}

/// Transposes sixteen rows of sixteen 16-bit elements.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn transpose(rows: &mut [__m256i; EDGE]) {
    let mut halves = [_mm256_setzero_si256(); EDGE];
    for row in 0..8 {
        halves[row] = _mm256_permute2x128_si256::<0x20>(rows[row], rows[row + 8]);
        halves[row + 8] = _mm256_permute2x128_si256::<0x31>(rows[row], rows[row + 8]);
    }
    columns(&mut halves);
    *rows = halves;
}

/// Transposes sixteen rows. `rows` has their left halves, row i beside row i + 8, and then their
/// right halves, so all moves are within 128 bits.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn columns(rows: &mut [__m256i; EDGE]) {
    for start in [0, 8] {
        let mut eight = [_mm256_setzero_si256(); 8];
        eight.copy_from_slice(&rows[start..start + 8]);
        // Each step exchanges one bit of the row's number with one of the element's.
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

/// Transposes eight rows of eight 32-bit numbers. Columns come in pairs: 0 and 4, 1 and 5, and so
/// on.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
pub fn turned(rows: &[__m256i; 8]) -> [[__m256i; 2]; 4] {
    let mut quads = [[_mm256_setzero_si256(); 4]; 2];
    for (quads, rows) in quads.iter_mut().zip(rows.as_chunks::<4>().0) {
        let [a, b] = [_mm256_unpacklo_epi32(rows[0], rows[1]), _mm256_unpacklo_epi32(rows[2], rows[3])];
        let [c, d] = [_mm256_unpackhi_epi32(rows[0], rows[1]), _mm256_unpackhi_epi32(rows[2], rows[3])];
        *quads = [
            _mm256_unpacklo_epi64(a, b),
            _mm256_unpackhi_epi64(a, b),
            _mm256_unpacklo_epi64(c, d),
            _mm256_unpackhi_epi64(c, d),
        ];
    }
    let [low, high] = quads;
    let mut columns = [[_mm256_setzero_si256(); 2]; 4];
    for (column, both) in columns.iter_mut().enumerate() {
        *both = [
            _mm256_permute2x128_si256::<0x20>(low[column], high[column]),
            _mm256_permute2x128_si256::<0x31>(low[column], high[column]),
        ];
    }
    columns
}

/// Transposes eight rows, with columns in order.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn put_turned(rows: &[__m256i; 8], columns: &mut [__m256i; 8]) {
    for (column, [near, far]) in turned(rows).into_iter().enumerate() {
        (columns[column], columns[column + 4]) = (near, far);
    }
}
