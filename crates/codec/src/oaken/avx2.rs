//! Oaken on AVX2. Bounds of intervals divide numbers into regions. The number of bounds below a
//! value is its region, and gives its group and side. Lanes look up a region's parameters, which
//! fit registers for up to four groups. A dense code has sixteen meanings in a token, so decoding
//! looks elements up by bytes. `pages` encodes whole pages, `tokens` all others.

pub mod pages;
mod tokens;

pub use pages::encode;
pub use tokens::{bounds, code_token, read_tokens};

use super::{BLOCK, Coder, Interval, OF_NO_CHANNEL, OF_NO_GROUP, Restorer};
use crate::error::DecodeError;
use crate::page::{Element, PageMut, Shape};
use crate::simd::avx2::{bytes_at, bytes_at_mut, load_half, round, store_bytes, store_half, with_element};
use crate::simd::rows::Rows;
use crate::tile::{Axis, EDGE, PageRows, Span};
use std::arch::x86_64::*;

const LANES: usize = 8;
/// The most groups that kernels encode.
const GROUPS_MAX: usize = 4;

/// Runs `$body` with the intervals as an array, which keeps their parameters in registers.
macro_rules! with_intervals {
    ($all:expr, $intervals:ident, $body:expr) => {
        match $all.len() {
            1 => {
                let $intervals = $all.as_array::<1>().expect("one interval");
                $body
            }
            2 => {
                let $intervals = $all.as_array::<2>().expect("two intervals");
                $body
            }
            _ => {
                let $intervals = $all.as_array::<3>().expect("at most three intervals");
                $body
            }
        }
    };
}
use with_intervals;

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn load(from: &[f32; LANES]) -> __m256 {
    // SAFETY: `from` has eight numbers; the load needs no alignment.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn store(to: &mut [f32; LANES], values: __m256) {
    // SAFETY: `to` has eight numbers; the store needs no alignment.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), values) };
}

/// Ends of regions, in order: lower bounds, outermost first, then upper bounds, innermost first.
const fn ends<const G: usize>(intervals: &[Interval; G]) -> ([f32; G], [f32; G]) {
    let (mut lows, mut highs) = ([0.0; G], [0.0; G]);
    let mut number = 0;
    while number < G {
        lows[number] = intervals[number].0;
        highs[number] = intervals[G - 1 - number].1;
        number += 1;
    }
    (lows, highs)
}

/// The group of a region, and the bound that its values lose.
#[inline]
fn region<const G: usize>(intervals: &[Interval; G], number: usize) -> (usize, f32) {
    if number < G {
        (number, intervals[number].0)
    } else if number == G {
        (G, 0.0)
    } else {
        (2 * G - number, intervals[2 * G - number].1)
    }
}

/// Parameters by region, for lookups by lanes.
pub struct Tables {
    bound: __m256,
    least: __m256,
    inverse: __m256,
    /// The least code and the greatest.
    low: __m256,
    high: __m256,
    /// The group bits of an outlier's entry, with the sign set; 0: no outlier.
    number: __m256i,
    /// The same in memory, for AVX-512: numbers and bytes.
    pub plain: ([[f32; LANES]; 3], [[u8; EDGE]; 4]),
}

impl Tables {
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    fn of<const G: usize>(coder: &Coder<'_>, intervals: &[Interval; G]) -> Self {
        let mut all = [[0.0; LANES]; 5];
        let mut numbers = [0_i32; LANES];
        for number in 0..=2 * G {
            let (group, bound) = region(intervals, number);
            let grid = &coder.grids[group];
            let (below, above) = grid.sides();
            let top = (grid.codes - 1) as f32;
            let (low, high) = if number < G { (0.0, top.min(below as f32)) } else { (above as f32, top) };
            for (table, value) in all.iter_mut().zip([bound, grid.least, grid.inverse, low, high]) {
                table[number] = value;
            }
            if group != coder.groups.middle() {
                numbers[number] = i32::MIN | i32::from(coder.groups.pack(0, group, 0));
            }
        }
        let mut bytes = [[0; EDGE]; 4];
        for (region, &number) in numbers.iter().enumerate() {
            let limits = [all[3][region] as u8, all[4][region] as u8];
            let of_region = [limits[0], limits[1], number as u8, if number < 0 { 0x80 } else { 0 }];
            bytes.iter_mut().zip(of_region).for_each(|(bytes, byte)| bytes[region] = byte);
        }
        let [bound, least, inverse, low, high] = &all;
        // SAFETY: `numbers` has eight words; the load needs no alignment.
        let number = unsafe { _mm256_loadu_si256(numbers.as_ptr().cast()) };
        Self {
            bound: load(bound),
            least: load(least),
            inverse: load(inverse),
            low: load(low),
            high: load(high),
            number,
            plain: ([all[0], all[1], all[2]], bytes),
        }
    }

    /// Codes of eight values of these regions.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    #[inline]
    fn codes(&self, region: __m256i, values: __m256) -> __m256i {
        let of = |table: __m256| _mm256_permutevar8x32_ps(table, region);
        let shifted = _mm256_sub_ps(values, of(self.bound));
        let scaled = _mm256_mul_ps(_mm256_sub_ps(shifted, of(self.least)), of(self.inverse));
        // Limits are integers, so rounding may come last: to nearest, ties to even.
        _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(scaled, of(self.high)), of(self.low)))
    }
}

/// Regions of eight values: the number of ends below each.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn regions<const G: usize>(values: __m256, lows: &[f32; G], highs: &[f32; G]) -> __m256i {
    let mut region = _mm256_setzero_si256();
    for number in 0..G {
        let is_behind = _mm256_cmp_ps::<_CMP_GE_OQ>(values, _mm256_set1_ps(lows[number]));
        region = _mm256_sub_epi32(region, _mm256_castps_si256(is_behind));
        let is_behind = _mm256_cmp_ps::<_CMP_GT_OQ>(values, _mm256_set1_ps(highs[number]));
        region = _mm256_sub_epi32(region, _mm256_castps_si256(is_behind));
    }
    region
}

/// Decodes a payload to a page. The reference decodes pages of singles and values less means.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn decode(restorer: &mut Restorer<'_>, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
    if page.kind().element == Element::F32 || restorer.means.is_some() {
        return super::decode(restorer, page);
    }
    with_element!(page.kind().element, E, decode_as::<E>(restorer, page))
}

/// The most sorts of outliers.
const SORTS: usize = 8;

/// The elements of a token's codes.
struct Meanings {
    /// Elements of outliers, by sort and dense code.
    outliers: [[u16; EDGE]; SORTS],
    /// Elements of the middle's codes: lower bytes and upper bytes.
    middle: [[u8; EDGE]; 2],
}

/// The group and the upper bits of the code of each sort; `None`: no group.
type Sorts = [Option<(usize, u32)>; SORTS];

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn meanings<const E: u8>(restorer: &Restorer<'_>, sorts: &Sorts, token: usize) -> Meanings {
    let mut outliers = [[0; EDGE]; SORTS];
    for (meanings, sort) in outliers.iter_mut().zip(sorts) {
        if let Some((group, upper)) = *sort {
            // SAFETY: `meanings` has sixteen words; the store needs no alignment.
            unsafe { _mm256_storeu_si256(meanings.as_mut_ptr().cast(), sixteen::<E>(restorer, token, group, upper)) };
        }
    }
    // Words become lower bytes and upper bytes.
    let words = sixteen::<E>(restorer, token, restorer.groups.middle(), 0);
    let bytes = [_mm256_and_si256(words, _mm256_set1_epi16(255)), _mm256_srli_epi16::<8>(words)];
    let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi16(bytes[0], bytes[1]));
    let mut middle = [[0; EDGE]; 2];
    store_half(&mut middle[0], _mm256_castsi256_si128(bytes));
    store_half(&mut middle[1], _mm256_extracti128_si256::<1>(bytes));
    Meanings { outliers, middle }
}

/// The elements of sixteen codes of a group from `start` on.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn sixteen<const E: u8>(restorer: &Restorer<'_>, token: usize, group: usize, start: u32) -> __m256i {
    let grid = &restorer.grids[token][group];
    let (low, high) = restorer.intervals.get(group).copied().unwrap_or((0.0, 0.0));
    let (step, least) = (_mm256_set1_ps(grid.step), _mm256_set1_ps(grid.least));
    let first = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11), _mm256_set1_epi32(start.cast_signed()));
    let mut halves = [_mm256_setzero_ps(); 2];
    for (half, values) in halves.iter_mut().enumerate() {
        let codes = _mm256_add_epi32(first, _mm256_set1_epi32(4 * half as i32));
        let shifted = _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(codes), step), least);
        let is_lower = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(grid.cut as i32), codes));
        let bound = _mm256_blendv_ps(_mm256_set1_ps(high), _mm256_set1_ps(low), is_lower);
        *values = _mm256_add_ps(shifted, bound);
    }
    round::<E, true>(halves)
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn decode_as<const E: u8>(restorer: &mut Restorer<'_>, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
    let kind = *page.kind();
    let Shape { heads, tokens, dim } = kind.shape;
    let (tokens, dim) = (usize::from(tokens), usize::from(dim));
    let sort_of = |sort: usize| (sort < restorer.groups.sorts()).then(|| restorer.groups.unpack((sort << 6) as u16))?;
    let sorts: Sorts = std::array::from_fn(|sort| sort_of(sort).map(|(_, group, upper)| (group, upper)));
    let known = sorts.iter().rev().fold(0, |known, sort| known << 1 | usize::from(sort.is_some()));
    let is_byte = restorer.groups.entry_bytes() == 1;
    let meanings: Vec<Meanings> = (0..tokens).map(|token| meanings::<E>(restorer, &sorts, token)).collect();
    // Up to sixteen tokens of a head, each padded to whole blocks.
    let stride = 2 * dim.next_multiple_of(BLOCK);
    let mut values = vec![0; EDGE * stride];
    let mut rows = Rows::zero();
    for head in 0..usize::from(heads) {
        for first in (0..tokens).step_by(EDGE) {
            for token in first..tokens.min(first + EDGE) {
                let (row, values) = (head * tokens + token, &mut values[(token - first) * stride..]);
                if is_byte {
                    decode_row::<1>(restorer, row, &meanings[token], known, dim, values)?;
                } else {
                    decode_row::<2>(restorer, row, &meanings[token], known, dim, values)?;
                }
            }
            for channel in (0..dim).step_by(EDGE) {
                let of_page = PageRows::of(&kind, &Span::at(kind.shape, head, first, channel));
                let from = PageRows { axis: Axis::Tokens, place: channel, stride: stride / 2, count: EDGE, len: EDGE };
                rows.load::<E>(&values, &from, of_page.axis);
                rows.store::<E>(page.bytes_mut(), &of_page, of_page.axis);
            }
        }
    }
    Ok(())
}

/// Stores the elements of a token's head, padded to whole blocks. Entries have `BYTES`; bits of
/// `known` are the valid sorts.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn decode_row<const BYTES: usize>(
    restorer: &mut Restorer<'_>,
    row: usize,
    meanings: &Meanings,
    known: usize,
    dim: usize,
    values: &mut [u8],
) -> Result<(), DecodeError> {
    let [low, high] = &meanings.middle;
    let tables = [_mm256_broadcastsi128_si256(load_half(low)), _mm256_broadcastsi128_si256(load_half(high))];
    let (mut dense, counts) = restorer.row(row);
    let mut codes = [0; BLOCK];
    for (block, &count) in counts.iter().enumerate() {
        let values: &mut [u8; 2 * BLOCK] = bytes_at_mut(values, 2 * BLOCK * block);
        let channels = (dim - block * BLOCK).min(BLOCK);
        let mut padded = [0; BLOCK / 2];
        let own = if channels == BLOCK {
            bytes_at(dense, 0)
        } else {
            padded[..dense.len()].copy_from_slice(dense);
            &padded
        };
        dense = &dense[channels.div_ceil(2)..];
        for (half, dense) in own.as_chunks::<EDGE>().0.iter().enumerate() {
            let sixteen = apart(load_half(dense));
            store_bytes(bytes_at_mut(&mut codes, 2 * EDGE * half), sixteen);
            let [first, second] = look_up(sixteen, tables);
            store_bytes(bytes_at_mut(values, 4 * EDGE * half), first);
            store_bytes(bytes_at_mut(values, 4 * EDGE * half + 2 * EDGE), second);
        }
        let values: &mut [_; BLOCK] = values.as_chunks_mut::<2>().0.as_mut_array().expect("a block");
        let entries = restorer.next_outliers(count.into())?;
        if BYTES == 1 && known == 15 && channels == BLOCK {
            // All sorts and places are valid: no checks.
            for &entry in entries {
                let place = usize::from(entry) % BLOCK;
                let meaning = entry >> 2 & 48 | codes[place];
                values[place] = meanings.outliers.as_flattened()[usize::from(meaning) % (4 * EDGE)].to_le_bytes();
            }
            continue;
        }
        for entry in entries.as_chunks::<BYTES>().0 {
            let entry = entry.iter().rev().fold(0, |entry, byte| entry << 8 | usize::from(*byte));
            let (place, sort) = (entry % BLOCK, entry / BLOCK);
            if sort >= SORTS || known >> sort & 1 == 0 {
                return Err(OF_NO_GROUP);
            }
            if place >= channels {
                return Err(OF_NO_CHANNEL);
            }
            values[place] = meanings.outliers[sort][usize::from(codes[place]) % EDGE].to_le_bytes();
        }
    }
    Ok(())
}

/// Thirty-two dense codes, a byte each: of each byte the lower half, then the upper.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn apart(codes: __m128i) -> __m256i {
    let codes = _mm256_cvtepu8_epi16(codes);
    let codes = _mm256_or_si256(codes, _mm256_slli_epi16::<4>(codes));
    _mm256_and_si256(codes, _mm256_set1_epi8(15))
}

/// The elements of thirty-two dense codes.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn look_up(codes: __m256i, [low, high]: [__m256i; 2]) -> [__m256i; 2] {
    let [low, high] = [_mm256_shuffle_epi8(low, codes), _mm256_shuffle_epi8(high, codes)];
    let [near, far] = [_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)];
    [_mm256_permute2x128_si256::<0x20>(near, far), _mm256_permute2x128_si256::<0x31>(near, far)]
}
