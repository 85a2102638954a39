//! Oaken: bounds of intervals are ends of regions, one after the other; how many ends a value is behind is its region, and says
//! its group and side. What codes a region has, lanes look up by its number, so there are kernels for up to four groups. Dense codes have sixteen meanings in a token, so decoding looks elements up by their bytes.

use super::rows::Rows;
use super::{bytes_at, bytes_at_mut, load_bytes, load_half, round, store_bytes, store_half, with_element};
use crate::oaken::{BLOCK, Coder, OF_NO_CHANNEL, OF_NO_GROUP, Restorer};
use crate::page::{Page, PageMut};
use crate::tile::{Axis, EDGE, PageRows, Span};
use crate::{DecodeError, Shape};
use std::arch::x86_64::*;

const LANES: usize = 8;
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
            _ => {
                let $intervals = $all.as_array::<3>().expect("up to seven regions");
                $body
            }
        }
    };
}

/// Eight numbers.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn load(from: &[f32; LANES]) -> __m256 {
    // SAFETY: eight numbers are there; the load wants no alignment.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn store(to: &mut [f32; LANES], values: __m256) {
    // SAFETY: there is room for eight numbers; the store wants no alignment.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), values) };
}

/// The values of a page as `[token][head][channel]`.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn read_tokens(page: &Page<'_>, values: &mut [f32]) {
    with_element!(page.kind().element, E, read_as::<E>(page, values));
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn read_as<const E: u8>(page: &Page<'_>, values: &mut [f32]) {
    let kind = page.kind();
    let (heads, dim) = (usize::from(kind.shape.heads), usize::from(kind.shape.dim));
    let mut rows = Rows::zero();
    for span in Span::all(kind.shape) {
        rows.load::<E>(page.bytes(), &PageRows::of(kind, &span), Axis::Tokens);
        for token in 0..span.tokens {
            let [first, second] = rows.get::<E>(token);
            let at = ((span.token + token) * heads + span.head) * dim + span.channel;
            let (mut row, to) = ([0.0; EDGE], &mut values[at..at + span.channels]);
            let is_whole = to.len() == EDGE;
            let all = if is_whole { &mut *to } else { &mut row };
            let [low, high] = all.as_chunks_mut::<LANES>().0 else { unreachable!("two eights") };
            store(low, _mm256_permute2f128_ps::<0x20>(first, second));
            store(high, _mm256_permute2f128_ps::<0x31>(first, second));
            if !is_whole {
                to.copy_from_slice(&row[..span.channels]);
            }
        }
    }
}

/// Ends of regions, in order: the lower bounds of all intervals, outermost first, then the upper ones, innermost first.
const fn ends<const G: usize>(intervals: &[(f32, f32); G]) -> ([f32; G], [f32; G]) {
    let (mut lows, mut highs) = ([0.0; G], [0.0; G]);
    let mut number = 0;
    while number < G {
        lows[number] = intervals[number].0;
        highs[number] = intervals[G - 1 - number].1;
        number += 1;
    }
    (lows, highs)
}

/// The least and the greatest value on either side of an end.
struct Split {
    below: __m256,
    above: __m256,
}

impl Split {
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    fn new() -> Self {
        Self { below: _mm256_set1_ps(f32::NEG_INFINITY), above: _mm256_set1_ps(f32::INFINITY) }
    }

    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    #[inline]
    fn add(&mut self, values: __m256, is_above: __m256) {
        let below = _mm256_blendv_ps(values, _mm256_set1_ps(f32::NEG_INFINITY), is_above);
        let above = _mm256_blendv_ps(_mm256_set1_ps(f32::INFINITY), values, is_above);
        (self.below, self.above) = (_mm256_max_ps(self.below, below), _mm256_min_ps(self.above, above));
    }
}

/// Widens bounds of what is left of values in each group, but for the last few values, fewer than eight, which it returns; `None`:
/// some are no numbers.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn bounds<'a>(intervals: &[(f32, f32)], values: &'a [f32], bounds: &mut [(f32, f32)]) -> Option<&'a [f32]> {
    with_intervals!(intervals, intervals, bounds_by(intervals, values, bounds))
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn bounds_by<'a, const G: usize>(
    intervals: &[(f32, f32); G],
    values: &'a [f32],
    bounds: &mut [(f32, f32)],
) -> Option<&'a [f32]> {
    let (lows, highs) = ends(intervals);
    let mut of_lows = [(); G].map(|()| Split::new());
    let mut of_highs = [(); G].map(|()| Split::new());
    let mut of_all = Split { below: _mm256_set1_ps(f32::NEG_INFINITY), above: _mm256_set1_ps(f32::INFINITY) };
    let mut largest = _mm256_setzero_si256();
    let (eights, rest) = values.as_chunks::<LANES>();
    for values in eights {
        let values = load(values);
        let magnitude = _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(i32::MAX));
        largest = _mm256_max_epi32(largest, magnitude);
        of_all.below = _mm256_max_ps(of_all.below, values);
        of_all.above = _mm256_min_ps(of_all.above, values);
        for number in 0..G {
            of_lows[number].add(values, _mm256_cmp_ps::<_CMP_GE_OQ>(values, _mm256_set1_ps(lows[number])));
            of_highs[number].add(values, _mm256_cmp_ps::<_CMP_GT_OQ>(values, _mm256_set1_ps(highs[number])));
        }
    }
    if _mm256_movemask_epi8(_mm256_cmpgt_epi32(largest, _mm256_set1_epi32(INFINITE - 1))) != 0 {
        return None;
    }
    // Regions go from end to end; of an empty one the least value is behind the next end, the greatest before the last.
    let mut least = least_of(of_all.above);
    for (number, end) in of_lows.iter().chain(&of_highs).enumerate() {
        widen_bounds(intervals, bounds, number, (least, greatest_of(end.below)));
        least = least_of(end.above);
    }
    widen_bounds(intervals, bounds, 2 * G, (least, greatest_of(of_all.below)));
    Some(rest)
}

/// The group of a region, and what is taken from its values.
#[inline]
fn region<const G: usize>(intervals: &[(f32, f32); G], number: usize) -> (usize, f32) {
    if number < G {
        (number, intervals[number].0)
    } else if number == G {
        (G, 0.0)
    } else {
        (2 * G - number, intervals[2 * G - number].1)
    }
}

/// Widens bounds of a region's group; of none where the least is greater than the greatest.
#[inline]
fn widen_bounds<const G: usize>(
    intervals: &[(f32, f32); G],
    bounds: &mut [(f32, f32)],
    number: usize,
    (least, greatest): (f32, f32),
) {
    if least <= greatest {
        let (group, bound) = region(intervals, number);
        let bounds = &mut bounds[group];
        *bounds = (bounds.0.min(least - bound), bounds.1.max(greatest - bound));
    }
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn least_of(values: __m256) -> f32 {
    let four = _mm_min_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps::<1>(values));
    let two = _mm_min_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_min_ss(two, _mm_movehdup_ps(two)))
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn greatest_of(values: __m256) -> f32 {
    let four = _mm_max_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps::<1>(values));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}

/// What lanes look up by their region.
struct Tables {
    bound: __m256,
    least: __m256,
    inverse: __m256,
    /// The least code and the greatest.
    low: __m256,
    high: __m256,
    /// What an outlier's entry says of its group, in its place, below a bit that says that it is one.
    number: __m256i,
}

impl Tables {
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    fn of<const G: usize>(coder: &Coder<'_>, intervals: &[(f32, f32); G]) -> Self {
        let mut all = [[0.0; LANES]; 5];
        let mut numbers = [0; LANES];
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
        let [bound, least, inverse, low, high] = &all;
        // SAFETY: eight words are there; the load wants no alignment.
        let number = unsafe { _mm256_loadu_si256(numbers.as_ptr().cast()) };
        Self {
            bound: load(bound),
            least: load(least),
            inverse: load(inverse),
            low: load(low),
            high: load(high),
            number,
        }
    }

    /// Codes of eight values, of these regions.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    #[inline]
    fn codes(&self, region: __m256i, values: __m256) -> __m256i {
        let of = |table: __m256| _mm256_permutevar8x32_ps(table, region);
        let shifted = _mm256_sub_ps(values, of(self.bound));
        let scaled = _mm256_mul_ps(_mm256_sub_ps(shifted, of(self.least)), of(self.inverse));
        // All limits are whole, so that rounding comes last: to nearest, ties to even.
        _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(scaled, of(self.high)), of(self.low)))
    }
}

/// Regions of eight values: how many ends they are behind.
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

/// Appends dense codes, counts and entries of a token's values, `[head][channel]`.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn code_token(coder: &Coder<'_>, values: &[f32], dim: usize, heads: &mut [[Vec<u8>; 3]]) {
    with_intervals!(coder.intervals, intervals, {
        let tables = Tables::of(coder, intervals);
        for (values, parts) in values.chunks_exact(dim).zip(heads) {
            code_by(coder, &tables, intervals, values, parts);
        }
    });
}

/// One head's.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn code_by<const G: usize>(
    coder: &Coder<'_>,
    tables: &Tables,
    intervals: &[(f32, f32); G],
    values: &[f32],
    [dense, counts, entries]: &mut [Vec<u8>; 3],
) {
    let is_byte = coder.groups.entry_bytes() == 1;
    let upper_at = _mm_cvtsi32_si128(coder.groups.upper_at() as i32);
    let (lows, highs) = ends(intervals);
    let mut packed = [[0; LANES]; BLOCK / LANES];
    for block in values.chunks(BLOCK) {
        let mut padded = [0.0; BLOCK];
        let all: &[f32; BLOCK] = block.as_array().unwrap_or_else(|| {
            padded[..block.len()].copy_from_slice(block);
            &padded
        });
        let mut outliers = 0_u64;
        for (number, values) in all.as_chunks::<EDGE>().0.iter().enumerate() {
            let mut codes = [_mm256_setzero_si256(); 2];
            for (half, values) in values.as_chunks::<LANES>().0.iter().enumerate() {
                let (eight, values) = (2 * number + half, load(values));
                let region = regions(values, &lows, &highs);
                codes[half] = tables.codes(region, values);
                let places = _mm256_add_epi32(
                    _mm256_set1_epi32((eight * LANES) as i32),
                    _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                );
                let of_group = _mm256_permutevar8x32_epi32(tables.number, region);
                let upper = _mm256_sll_epi32(_mm256_srli_epi32::<4>(codes[half]), upper_at);
                let entry = _mm256_or_si256(_mm256_or_si256(places, of_group), upper);
                // SAFETY: there is room for eight words.
                unsafe { _mm256_storeu_si256(packed[eight].as_mut_ptr().cast(), entry) };
                let is_outlier = _mm256_movemask_ps(_mm256_castsi256_ps(of_group));
                outliers |= u64::from(is_outlier.cast_unsigned()) << (eight * LANES);
            }
            dense.extend_from_slice(&nibbles(codes));
        }
        if block.len() < BLOCK {
            // Padding has codes, of zeros, and they are none.
            let bytes = block.len().div_ceil(2);
            dense.truncate(dense.len() + bytes - BLOCK / 2);
            if let Some(last) = dense.last_mut().filter(|_| block.len() % 2 == 1) {
                *last &= 15;
            }
            outliers &= (1 << block.len()) - 1;
        }
        counts.push(outliers.count_ones() as u8);
        if is_byte {
            take::<1>(outliers, &packed, entries);
        } else {
            take::<2>(outliers, &packed, entries);
        }
    }
}

/// Appends the entries of the outliers of a block, of so many bytes.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn take<const BYTES: usize>(mut outliers: u64, packed: &[[u32; LANES]; BLOCK / LANES], entries: &mut Vec<u8>) {
    let len = BYTES * outliers.count_ones() as usize;
    entries.reserve(BYTES * BLOCK);
    for entry in entries.spare_capacity_mut()[..len].as_chunks_mut::<BYTES>().0 {
        let bits = packed.as_flattened()[outliers.trailing_zeros() as usize % BLOCK].to_le_bytes();
        entry.iter_mut().zip(bits).for_each(|(byte, bits)| _ = byte.write(bits));
        outliers &= outliers - 1;
    }
    // SAFETY: so many bytes were written behind the others.
    unsafe { entries.set_len(entries.len() + len) };
}

/// The lower four bits of sixteen codes.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn nibbles([low, high]: [__m256i; 2]) -> [u8; LANES] {
    let codes = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high));
    let codes = _mm256_and_si256(codes, _mm256_set1_epi16(15));
    let pairs = _mm256_madd_epi16(codes, _mm256_set1_epi32(1 | 16 << 16));
    let pairs = _mm_packus_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
    _mm_cvtsi128_si64(_mm_packus_epi16(pairs, pairs)).to_le_bytes()
}

/// Decodes a payload to a page of 16-bit elements; the caller sees to others.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
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

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
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
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn apart(codes: __m128i) -> __m256i {
    let codes = _mm256_cvtepu8_epi16(codes);
    let codes = _mm256_or_si256(codes, _mm256_slli_epi16::<4>(codes));
    _mm256_and_si256(codes, _mm256_set1_epi8(15))
}

/// What thirty-two dense codes stand for.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn look_up(codes: __m256i, [low, high]: [__m256i; 2]) -> [__m256i; 2] {
    let [low, high] = [_mm256_shuffle_epi8(low, codes), _mm256_shuffle_epi8(high, codes)];
    let [near, far] = [_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)];
    [_mm256_permute2x128_si256::<0x20>(near, far), _mm256_permute2x128_si256::<0x31>(near, far)]
}
