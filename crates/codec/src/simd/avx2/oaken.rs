//! Oaken: eight values of a token are sorted into groups by comparing them with all bounds; what a group's grid is, lanes
//! look up by their group. Dense codes have sixteen meanings in a token, so decoding looks elements up by their bytes.

use super::rows::Rows;
use super::{bytes_at, bytes_at_mut, load_bytes, load_half, round, store_bytes, store_half, with_element};
use crate::oaken::{BLOCK, Coder, OF_NO_CHANNEL, OF_NO_GROUP, Restorer};
use crate::page::{Page, PageMut};
use crate::tile::{Axis, EDGE, PageRows, Span};
use crate::{DecodeError, Shape};
use std::arch::x86_64::*;

const LANES: usize = 8;
/// Groups that lanes can look up.
const GROUPS: usize = LANES;
/// Bits of the least magnitude that is no number or infinite.
const INFINITE: i32 = 0x7f80_0000;

/// Runs `$body` with the intervals as an array, so that what belongs to them stays in registers.
macro_rules! with_intervals {
    ($all:expr, $intervals:ident, $body:expr) => {
        match $all.len() {
            1 => {
                let $intervals = $all.as_array::<1>().expect("so many");
                $body
            }
            2 => {
                let $intervals = $all.as_array::<2>().expect("so many");
                $body
            }
            3 => {
                let $intervals = $all.as_array::<3>().expect("so many");
                $body
            }
            _ => {
                let $intervals = $all.as_array::<4>().expect("there are two to five groups");
                $body
            }
        }
    };
}

/// Eight numbers.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn load(from: &[f32; LANES]) -> __m256 {
    // SAFETY: eight numbers are there; the load wants no alignment.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}

#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn store(to: &mut [f32; LANES], values: __m256) {
    // SAFETY: there is room for eight numbers; the store wants no alignment.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), values) };
}

/// The values of a page as `[token][head][channel]`.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
pub fn read_tokens(page: &Page<'_>, values: &mut [f32]) {
    with_element!(page.kind().element, E, read_as::<E>(page, values));
}

#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
fn read_as<const E: u8>(page: &Page<'_>, values: &mut [f32]) {
    let kind = page.kind();
    let (heads, dim) = (usize::from(kind.shape.heads), usize::from(kind.shape.dim));
    let mut rows = Rows::zero();
    for span in Span::all(kind.shape) {
        rows.load::<E>(page.bytes(), &PageRows::of(kind, &span), Axis::Tokens);
        for token in 0..span.tokens {
            let [first, second] = rows.get::<E>(token);
            let mut row = [0.0; EDGE];
            let [low, high] = row.as_chunks_mut::<LANES>().0 else { unreachable!("two eights") };
            store(low, _mm256_permute2f128_ps::<0x20>(first, second));
            store(high, _mm256_permute2f128_ps::<0x31>(first, second));
            let at = ((span.token + token) * heads + span.head) * dim + span.channel;
            values[at..at + span.channels].copy_from_slice(&row[..span.channels]);
        }
    }
}

/// Groups of eight values, and what is left of them.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn shift<const G: usize>(values: __m256, intervals: &[(f32, f32); G]) -> (__m256i, __m256) {
    let mut group = _mm256_set1_epi32(G as i32);
    let mut shifted = values;
    // The outermost group that a value is of comes last, and stays.
    for number in (0..G).rev() {
        let (low, high) = (_mm256_set1_ps(intervals[number].0), _mm256_set1_ps(intervals[number].1));
        let (is_below, is_above) =
            (_mm256_cmp_ps::<_CMP_LT_OQ>(values, low), _mm256_cmp_ps::<_CMP_GT_OQ>(values, high));
        shifted = _mm256_blendv_ps(shifted, _mm256_sub_ps(values, low), is_below);
        shifted = _mm256_blendv_ps(shifted, _mm256_sub_ps(values, high), is_above);
        let is_outside = _mm256_castps_si256(_mm256_or_ps(is_below, is_above));
        group = _mm256_blendv_epi8(group, _mm256_set1_epi32(number as i32), is_outside);
    }
    (group, shifted)
}

/// Widens bounds of what is left of values in each group, but for the last few values, fewer than eight, which it returns; `None`:
/// some are no numbers.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
pub fn bounds<'a>(intervals: &[(f32, f32)], values: &'a [f32], bounds: &mut [(f32, f32)]) -> Option<&'a [f32]> {
    with_intervals!(intervals, intervals, bounds_by(intervals, values, bounds))
}

#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
fn bounds_by<'a, const G: usize>(
    intervals: &[(f32, f32); G],
    values: &'a [f32],
    bounds: &mut [(f32, f32)],
) -> Option<&'a [f32]> {
    let (above_all, below_all) = (_mm256_set1_ps(f32::INFINITY), _mm256_set1_ps(f32::NEG_INFINITY));
    // Of the groups with an interval, and of the last.
    let (mut least, mut greatest) = ([above_all; G], [below_all; G]);
    let (mut last_least, mut last_greatest) = (above_all, below_all);
    let mut largest = _mm256_setzero_si256();
    let (eights, rest) = values.as_chunks::<LANES>();
    for values in eights {
        let values = load(values);
        let magnitude = _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(i32::MAX));
        largest = _mm256_max_epi32(largest, magnitude);
        let (group, shifted) = shift(values, intervals);
        for number in 0..G {
            let is_here = _mm256_castsi256_ps(_mm256_cmpeq_epi32(group, _mm256_set1_epi32(number as i32)));
            least[number] = _mm256_min_ps(least[number], _mm256_blendv_ps(above_all, shifted, is_here));
            greatest[number] = _mm256_max_ps(greatest[number], _mm256_blendv_ps(below_all, shifted, is_here));
        }
        let is_here = _mm256_castsi256_ps(_mm256_cmpeq_epi32(group, _mm256_set1_epi32(G as i32)));
        last_least = _mm256_min_ps(last_least, _mm256_blendv_ps(above_all, shifted, is_here));
        last_greatest = _mm256_max_ps(last_greatest, _mm256_blendv_ps(below_all, shifted, is_here));
    }
    if _mm256_movemask_epi8(_mm256_cmpgt_epi32(largest, _mm256_set1_epi32(INFINITE - 1))) != 0 {
        return None;
    }
    let all = least.into_iter().chain([last_least]).zip(greatest.into_iter().chain([last_greatest]));
    for (bounds, (least, greatest)) in bounds.iter_mut().zip(all) {
        let [mut low, mut high] = [[0.0; LANES]; 2];
        store(&mut low, least);
        store(&mut high, greatest);
        *bounds = (low.into_iter().fold(bounds.0, f32::min), high.into_iter().fold(bounds.1, f32::max));
    }
    Some(rest)
}

/// What lanes look up by their group.
struct Tables {
    least: __m256,
    inverse: __m256,
    top: __m256,
    /// The largest code below zero, and the least of others.
    below: __m256,
    above: __m256,
    /// What an outlier's entry says of its group, in its place.
    number: __m256i,
}

impl Tables {
    #[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
    fn of(coder: &Coder<'_>) -> Self {
        let mut all = [[0.0; GROUPS]; 6];
        for (group, grid) in coder.grids.iter().enumerate() {
            let (below, above) = grid.sides();
            let number = f32::from(coder.groups.pack(0, group, 0));
            let of_group = [grid.least, grid.inverse, (grid.codes - 1) as f32, below as f32, above as f32, number];
            for (table, value) in all.iter_mut().zip(of_group) {
                table[group] = value;
            }
        }
        let [least, inverse, top, below, above, number] = &all;
        Self {
            least: load(least),
            inverse: load(inverse),
            top: load(top),
            below: load(below),
            above: load(above),
            number: _mm256_cvtps_epi32(load(number)),
        }
    }

    /// Codes of what is left of eight values.
    #[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
    #[inline]
    fn codes(&self, group: __m256i, shifted: __m256) -> __m256i {
        let of = |table: __m256| _mm256_permutevar8x32_ps(table, group);
        let zero = _mm256_setzero_ps();
        let scaled = _mm256_mul_ps(_mm256_sub_ps(shifted, of(self.least)), of(self.inverse));
        let nearest = _mm256_min_ps(_mm256_max_ps(scaled, zero), of(self.top));
        let is_negative = _mm256_cmp_ps::<_CMP_LT_OQ>(shifted, zero);
        let below = _mm256_min_ps(nearest, of(self.below));
        let above = _mm256_max_ps(nearest, of(self.above));
        // All limits are whole, so that rounding comes last: to nearest, ties to even.
        _mm256_cvtps_epi32(_mm256_blendv_ps(above, below, is_negative))
    }
}

/// Appends dense codes, counts and entries of a token's values, `[head][channel]`.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
pub fn code_token(coder: &Coder<'_>, values: &[f32], dim: usize, heads: &mut [[Vec<u8>; 3]]) {
    let tables = Tables::of(coder);
    for (values, parts) in values.chunks_exact(dim).zip(heads) {
        with_intervals!(coder.intervals, intervals, code_by(coder, &tables, intervals, values, parts));
    }
}

/// One head's.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
fn code_by<const G: usize>(
    coder: &Coder<'_>,
    tables: &Tables,
    intervals: &[(f32, f32); G],
    values: &[f32],
    [dense, counts, entries]: &mut [Vec<u8>; 3],
) {
    let entry_bytes = coder.groups.entry_bytes();
    let upper_at = _mm_cvtsi32_si128(coder.groups.upper_at() as i32);
    let middle = _mm256_set1_epi32(coder.groups.middle() as i32);
    let mut packed = [[0; LANES]; BLOCK / LANES];
    for block in values.chunks(BLOCK) {
        let mut padded = [0.0; BLOCK];
        let all: &[f32; BLOCK] = block.as_array().unwrap_or_else(|| {
            padded[..block.len()].copy_from_slice(block);
            &padded
        });
        let count = _mm256_set1_epi32(block.len() as i32);
        let (mut low, mut outliers) = ([0; BLOCK / 2], 0_u64);
        for (number, (values, low)) in all.as_chunks::<EDGE>().0.iter().zip(low.as_chunks_mut().0).enumerate() {
            let mut codes = [_mm256_setzero_si256(); 2];
            for (half, values) in values.as_chunks::<LANES>().0.iter().enumerate() {
                let eight = 2 * number + half;
                let (group, shifted) = shift(load(values), intervals);
                let places = _mm256_set1_epi32((eight * LANES) as i32);
                let places = _mm256_add_epi32(places, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
                let is_there = _mm256_cmpgt_epi32(count, places);
                codes[half] = _mm256_and_si256(tables.codes(group, shifted), is_there);
                let upper = _mm256_sll_epi32(_mm256_srli_epi32::<4>(codes[half]), upper_at);
                let of_group = _mm256_permutevar8x32_epi32(tables.number, group);
                let entry = _mm256_or_si256(_mm256_or_si256(places, of_group), upper);
                // SAFETY: there is room for eight words.
                unsafe { _mm256_storeu_si256(packed[eight].as_mut_ptr().cast(), entry) };
                let is_outlier = _mm256_andnot_si256(_mm256_cmpeq_epi32(group, middle), is_there);
                let is_outlier = _mm256_movemask_ps(_mm256_castsi256_ps(is_outlier));
                outliers |= u64::from(is_outlier.cast_unsigned()) << (eight * LANES);
            }
            *low = nibbles(codes);
        }
        dense.extend_from_slice(&low[..block.len().div_ceil(2)]);
        counts.push(outliers.count_ones() as u8);
        let (mut of_block, mut len) = ([0; 2 * BLOCK], 0);
        while outliers != 0 {
            let entry: u32 = packed.as_flattened()[outliers.trailing_zeros() as usize];
            of_block[len..len + 2].copy_from_slice(&(entry as u16).to_le_bytes());
            len += entry_bytes;
            outliers &= outliers - 1;
        }
        entries.extend_from_slice(&of_block[..len]);
    }
}

/// The lower four bits of sixteen codes.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn nibbles([low, high]: [__m256i; 2]) -> [u8; LANES] {
    let codes = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high));
    let codes = _mm256_and_si256(codes, _mm256_set1_epi16(15));
    let pairs = _mm256_madd_epi16(codes, _mm256_set1_epi32(1 | 16 << 16));
    let pairs = _mm_packus_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
    _mm_cvtsi128_si64(_mm_packus_epi16(pairs, pairs)).to_le_bytes()
}

/// Decodes a payload to a page of 16-bit elements; the caller sees to others.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
pub fn decode(restorer: &mut Restorer<'_>, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
    with_element!(page.kind().element, E, decode_as::<E>(restorer, page))
}

/// Sorts of outliers at most.
const SORTS: usize = 8;

/// What codes stand for in a token, as elements.
struct Meanings {
    /// Of outliers, by sort and dense code.
    outliers: [[u16; EDGE]; SORTS],
    /// Of dense codes of the middle: lower bytes, and upper ones.
    middle: [[u8; EDGE]; 2],
}

/// By sort of outlier, its group and the upper bits of its code; `None`: of no group.
type Sorts = [Option<(usize, u32)>; SORTS];

#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
fn meanings<const E: u8>(restorer: &Restorer<'_>, sorts: &Sorts, token: usize) -> Meanings {
    let mut outliers = [[0; EDGE]; SORTS];
    for (meanings, sort) in outliers.iter_mut().zip(sorts) {
        if let Some((group, upper)) = *sort {
            // SAFETY: sixteen words take as many bytes; the store wants no alignment.
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

/// What sixteen codes of a group from one on stand for, as elements.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
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

#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
fn decode_as<const E: u8>(restorer: &mut Restorer<'_>, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
    let kind = *page.kind();
    let Shape { heads, tokens, dim } = kind.shape;
    let (tokens, dim) = (usize::from(tokens), usize::from(dim));
    let sort_of = |sort: usize| (sort < restorer.groups.sorts()).then(|| restorer.groups.unpack((sort << 6) as u16))?;
    let sorts: Sorts = std::array::from_fn(|sort| sort_of(sort).map(|(_, group, upper)| (group, upper)));
    let known = sorts.iter().rev().fold(0, |known, sort| known << 1 | usize::from(sort.is_some()));
    let meanings: Vec<Meanings> = (0..tokens).map(|token| meanings::<E>(restorer, &sorts, token)).collect();
    let is_byte = restorer.groups.entry_bytes() == 1;
    // Up to sixteen tokens of a head, each padded to whole blocks.
    let stride = 2 * dim.next_multiple_of(BLOCK);
    let mut values = vec![0; EDGE * stride];
    let mut rows = Rows::zero();
    for head in 0..usize::from(heads) {
        for first in (0..tokens).step_by(EDGE) {
            for (token, values) in (first..tokens).zip(values.chunks_exact_mut(stride)) {
                let row = head * tokens + token;
                if is_byte {
                    decode_row::<1>(restorer, row, &meanings[token], known, dim, values)?;
                } else {
                    decode_row::<2>(restorer, row, &meanings[token], known, dim, values)?;
                }
            }
            for channel in (0..dim).step_by(EDGE) {
                for (bits, row) in rows.bits.iter_mut().zip(values.chunks_exact(stride)) {
                    *bits = load_bytes(bytes_at(row, 2 * channel));
                }
                let span = Span::at(kind.shape, head, first, channel);
                rows.store::<E>(page.bytes_mut(), &PageRows::of(&kind, &span), Axis::Tokens);
            }
        }
    }
    Ok(())
}

/// Elements of one head's values of a token, padded to whole blocks. Entries have so many bytes; bits of `known` say which sorts
/// of them there are.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
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
    for (block, (values, &count)) in values.as_chunks_mut::<{ 2 * BLOCK }>().0.iter_mut().zip(counts).enumerate() {
        let channels = (dim - block * BLOCK).min(BLOCK);
        let mut padded = [0; BLOCK / 2];
        let own = if channels == BLOCK {
            bytes_at(dense, 0)
        } else {
            padded[..dense.len()].copy_from_slice(dense);
            &padded
        };
        dense = &dense[channels.div_ceil(2)..];
        let mut codes = [0; BLOCK];
        for (half, dense) in own.as_chunks::<EDGE>().0.iter().enumerate() {
            let sixteen = apart(load_half(dense));
            store_bytes(bytes_at_mut(&mut codes, 2 * EDGE * half), sixteen);
            let [first, second] = look_up(sixteen, tables);
            store_bytes(bytes_at_mut(values, 4 * EDGE * half), first);
            store_bytes(bytes_at_mut(values, 4 * EDGE * half + 2 * EDGE), second);
        }
        let values = values.as_chunks_mut::<2>().0;
        for entry in restorer.next_outliers(count)?.as_chunks::<BYTES>().0 {
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

/// Thirty-two dense codes, a byte each: the lower half of each byte, then the upper.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn apart(codes: __m128i) -> __m256i {
    let codes = _mm256_cvtepu8_epi16(codes);
    let codes = _mm256_or_si256(codes, _mm256_slli_epi16::<4>(codes));
    _mm256_and_si256(codes, _mm256_set1_epi8(15))
}

/// What thirty-two dense codes stand for.
#[target_feature(enable = "avx2,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn look_up(codes: __m256i, [low, high]: [__m256i; 2]) -> [__m256i; 2] {
    let [low, high] = [_mm256_shuffle_epi8(low, codes), _mm256_shuffle_epi8(high, codes)];
    let [near, far] = [_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)];
    [_mm256_permute2x128_si256::<0x20>(near, far), _mm256_permute2x128_si256::<0x31>(near, far)]
}
