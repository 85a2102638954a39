//! Oaken token by token: any values, and pages that are not whole.

use super::{GROUPS_MAX, LANES, Tables, ends, load, region, regions, store, with_intervals};
use crate::error::Declined;
use crate::oaken::{self, BLOCK, Coder, HeadParts, Interval};
use crate::page::Page;
use crate::simd::avx2::with_element;
use crate::simd::rows::Rows;
use crate::tile::{Axis, EDGE, PageRows, Span};
use std::arch::x86_64::*;

/// Bits of the least magnitude that is not finite.
const INFINITE: i32 = 0x7f80_0000;

/// Stores the values of a page as `[token][head][channel]`.
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

/// The least value above an end, and the greatest below.
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

/// Widens bounds of the rest of values in each group.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn bounds(intervals: &[Interval], values: &[f32], bounds: &mut [Interval]) -> Result<(), Declined> {
    let rest = if intervals.len() < GROUPS_MAX {
        with_intervals!(intervals, intervals, bounds_by(intervals, values, bounds)).ok_or(Declined)?
    } else {
        values
    };
    oaken::bounds(intervals, rest, bounds)
}

/// As [`bounds`], except the last values, fewer than eight, which it returns; `None`: some are not
/// finite.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn bounds_by<'a, const G: usize>(
    intervals: &[Interval; G],
    values: &'a [f32],
    bounds: &mut [Interval],
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
    // Regions lie between ends. In an empty region the least is above the greatest.
    let mut least = least_of(of_all.above);
    for (number, end) in of_lows.iter().chain(&of_highs).enumerate() {
        widen_bounds(intervals, bounds, number, (least, greatest_of(end.below)));
        least = least_of(end.above);
    }
    widen_bounds(intervals, bounds, 2 * G, (least, greatest_of(of_all.below)));
    Some(rest)
}

/// Widens the bounds of a region's group, unless the region is empty.
#[inline]
fn widen_bounds<const G: usize>(
    intervals: &[Interval; G],
    bounds: &mut [Interval],
    number: usize,
    (least, greatest): Interval,
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

/// Appends dense codes, counts and entries of a token's values, `[head][channel]`.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn code_token(coder: &Coder<'_>, values: &[f32], dim: usize, heads: &mut [HeadParts]) {
    if coder.intervals.len() >= GROUPS_MAX {
        return oaken::code_token(coder, values, dim, heads);
    }
    with_intervals!(coder.intervals, intervals, {
        let tables = Tables::of(coder, intervals);
        for (values, parts) in values.chunks_exact(dim).zip(heads) {
            code_by(coder, &tables, intervals, values, parts);
        }
    });
}

/// Appends the parts of one head.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn code_by<const G: usize>(
    coder: &Coder<'_>,
    tables: &Tables,
    intervals: &[Interval; G],
    values: &[f32],
    [dense, counts, entries]: &mut HeadParts,
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
                // SAFETY: `packed[eight]` has eight words; the store needs no alignment.
                unsafe { _mm256_storeu_si256(packed[eight].as_mut_ptr().cast(), entry) };
                let is_outlier = _mm256_movemask_ps(_mm256_castsi256_ps(of_group));
                outliers |= u64::from(is_outlier.cast_unsigned()) << (eight * LANES);
            }
            dense.extend_from_slice(&nibbles(codes));
        }
        if block.len() < BLOCK {
            // Padding is coded as zeros; its codes and outliers are removed.
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

/// Appends the entries of a block's outliers, of `BYTES` each.
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
    // SAFETY: the loop wrote `len` bytes behind the others.
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
