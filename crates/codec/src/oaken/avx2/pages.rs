//! Oaken, whole pages of 16-bit elements.
//!
//! Most values are of the middle group. They are coded as if all values were; the others are
//! gathered by rows and coded eight at a time.

use super::{GROUPS_MAX, LANES, Tables, ends, region, regions, with_intervals};
use crate::error::Declined;
use crate::oaken::seen::{ENDS_MAX, RowsAt, Seen, see};
use crate::oaken::{BLOCK, Coder, Encoded, Grid, Groups, Interval, grids, outwards};
use crate::page::{Element, Page, Shape};
use crate::simd::avx2::{BF16, F16, bytes_at, bytes_at_mut, load_bytes, load_half, store_bytes, store_half, widen};
use crate::simd::rows::Rows;
use crate::tile::{Axis, EDGE, PageRows, Span};
use half::{bf16, f16};
use std::arch::x86_64::*;

/// The steps of encoding for which instruction sets have kernels of their own.
///
/// # Safety
/// Callers must guarantee that the machine has the instruction set of the implementation.
pub trait Steps {
    /// [`see`] of rows of channels.
    unsafe fn see_tokens<const G: usize>(rows: &RowsAt<'_>, ends: &[u16; ENDS_MAX]) -> [Lane; EDGE];

    /// [`see`] of the rows of one token.
    unsafe fn see_token<const G: usize>(rows: &RowsAt<'_>, ends: &[u16; ENDS_MAX]) -> Lane;

    /// Codes sixteen tokens of a head: dense codes, counts, and entries of `BYTES` each.
    unsafe fn code<const E: u8, const G: usize, const BYTES: usize>(
        some: &mut Sixteen,
        by: &Coders<'_, G>,
        parts: [&mut [u8]; 2],
        entries: &mut Vec<u8>,
    );
}

/// What sixteen tokens are coded by.
pub struct Coders<'a, const G: usize> {
    pub tokens: &'a [TokenCoder],
    pub ends: &'a [u16; ENDS_MAX],
    /// Where in an entry the upper bits of the code begin.
    pub upper_at: u32,
    middle: &'a Middle,
    bounds: &'a ([f32; G], [f32; G]),
}

/// AVX2.
pub enum Narrow {}

impl Steps for Narrow {
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    unsafe fn see_tokens<const G: usize>(rows: &RowsAt<'_>, ends: &[u16; ENDS_MAX]) -> [Lane; EDGE] {
        // SAFETY: AVX2 is enabled in this function.
        unsafe { see::<_, G>(rows, ends) }.by_lane()
    }

    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    unsafe fn see_token<const G: usize>(rows: &RowsAt<'_>, ends: &[u16; ENDS_MAX]) -> Lane {
        // SAFETY: AVX2 is enabled in this function.
        unsafe { see::<_, G>(rows, ends) }.together()
    }

    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    unsafe fn code<const E: u8, const G: usize, const BYTES: usize>(
        some: &mut Sixteen,
        by: &Coders<'_, G>,
        [dense, counts]: [&mut [u8]; 2],
        entries: &mut Vec<u8>,
    ) {
        for (token, counts) in counts.chunks_exact_mut(some.dim / BLOCK).enumerate() {
            let of_token = (&by.tokens[token], by.upper_at);
            some.code::<E, G, BYTES>(token, by.middle, of_token, by.bounds, counts, entries);
        }
        dense.chunks_exact_mut(some.dim / 2).enumerate().for_each(|(token, dense)| some.pack(token, dense));
    }
}

/// The place of an element in the order of values. NaN is beyond the infinities.
const fn ordered(bits: u16) -> u16 {
    if bits & 0x8000 == 0 { bits | 0x8000 } else { !bits }
}

/// The value at a place.
fn number_at<const E: u8>(order: u16) -> f32 {
    let bits = if order & 0x8000 == 0 { !order } else { order & 0x7fff };
    if E == BF16 { bf16::from_bits(bits).to_f32() } else { f16::from_bits(bits).to_f32() }
}

/// The places of negative infinity and of infinity.
const fn infinities<const E: u8>() -> (u16, u16) {
    let infinity = if E == BF16 { bf16::INFINITY.to_bits() } else { f16::INFINITY.to_bits() };
    (ordered(infinity | 0x8000), ordered(infinity))
}

/// Places of sixteen elements, less 2^15.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn in_order(bits: __m256i) -> __m256i {
    _mm256_xor_si256(bits, _mm256_srli_epi16::<1>(_mm256_srai_epi16::<15>(bits)))
}

/// The first place of each region but the first; others are unused.
fn ends_of<const E: u8, const G: usize>(intervals: &[Interval; G]) -> [u16; ENDS_MAX] {
    let first = |is_behind: &dyn Fn(f32) -> bool| {
        let (mut before, mut behind) = infinities::<E>();
        while before < behind {
            let middle = before + (behind - before) / 2;
            if is_behind(number_at::<E>(middle)) {
                behind = middle;
            } else {
                before = middle + 1;
            }
        }
        behind
    };
    let (lows, highs) = ends(intervals);
    let mut all = [0; ENDS_MAX];
    for number in 0..G {
        all[number] = first(&|value| value >= lows[number]);
        all[G + number] = first(&|value| value > highs[number]);
    }
    all
}

impl<const G: usize> Seen<__m256i, G> {
    /// Each lane by itself.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    pub fn by_lane(&self) -> [Lane; EDGE] {
        let mut lanes = [Lane { first: 0, last: 0, ends: [(0, 0); ENDS_MAX] }; EDGE];
        let [first, last] = [words(self.first), words(self.last)];
        for (at, lane) in lanes.iter_mut().enumerate() {
            (lane.first, lane.last) = (first[at], last[at]);
        }
        for end in 0..2 * G {
            let [nearest, furthest] = [self.nearest[end / G][end % G], self.furthest[end / G][end % G]];
            let [nearest, furthest] = [words(nearest), words(furthest)];
            lanes.iter_mut().enumerate().for_each(|(at, lane)| lane.ends[end] = (nearest[at], furthest[at]));
        }
        lanes
    }

    /// All lanes as one.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    pub fn together(&self) -> Lane {
        let mut lane = Lane { first: least_of(self.first), last: greatest_of(self.last), ends: [(0, 0); ENDS_MAX] };
        for end in 0..2 * G {
            let [nearest, furthest] = [self.nearest[end / G][end % G], self.furthest[end / G][end % G]];
            lane.ends[end] = (least_of(nearest), greatest_of(furthest));
        }
        lane
    }
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn words(numbers: __m256i) -> [u16; EDGE] {
    let mut all = [0; EDGE];
    // SAFETY: `all` has sixteen words; the store needs no alignment.
    unsafe { _mm256_storeu_si256(all.as_mut_ptr().cast(), numbers) };
    all
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn least_of(numbers: __m256i) -> u16 {
    let eight = _mm_min_epu16(_mm256_castsi256_si128(numbers), _mm256_extracti128_si256::<1>(numbers));
    _mm_extract_epi16::<0>(_mm_minpos_epu16(eight)) as u16
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn greatest_of(numbers: __m256i) -> u16 {
    !least_of(_mm256_xor_si256(numbers, _mm256_set1_epi16(-1)))
}

/// The places of one token, as in [`Seen`].
#[derive(Clone, Copy)]
pub struct Lane {
    first: u16,
    last: u16,
    ends: [(u16, u16); ENDS_MAX],
}

impl Lane {
    /// Bounds of the rest of values in each group; `None`: some are not finite.
    fn bounds<const E: u8, const G: usize>(
        &self,
        intervals: &[Interval; G],
        ends: &[u16; ENDS_MAX],
    ) -> Option<[Interval; GROUPS_MAX]> {
        let (least, greatest) = infinities::<E>();
        if self.first <= least || self.last >= greatest {
            return None;
        }
        let mut bounds = [(f32::INFINITY, f32::NEG_INFINITY); GROUPS_MAX];
        let mut first = Some(self.first);
        // A distance behind an end fits below the last place; a distance before it wraps.
        let at_ends = ends.iter().zip(&self.ends).take(2 * G).map(|(end, (nearest, furthest))| {
            let (last, is_before) = end.overflowing_add(*furthest);
            (is_before.then_some(last), end.checked_add(*nearest))
        });
        for (number, (last, next)) in at_ends.chain([(Some(self.last), None)]).enumerate() {
            if let (Some(first), Some(last)) = (first, last)
                && first <= last
            {
                let (group, bound) = region(intervals, number);
                let bounds = &mut bounds[group];
                bounds.0 = bounds.0.min(number_at::<E>(first) - bound);
                bounds.1 = bounds.1.max(number_at::<E>(last) - bound);
            }
            first = next;
        }
        Some(bounds)
    }
}

/// The places of sixteen tokens from `first` on.
///
/// # Safety
/// Callers must guarantee that the machine has the instruction set of `S`.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
unsafe fn seen<const G: usize, S: Steps>(page: &Page<'_>, first: usize, ends: &[u16; ENDS_MAX]) -> [Lane; EDGE] {
    let (kind, bytes) = (page.kind(), page.bytes());
    let (heads, dim) = (usize::from(kind.shape.heads), usize::from(kind.shape.dim));
    if page.axis() == Axis::Channels {
        let rows = |head, channel| PageRows::of(kind, &Span::at(kind.shape, head, first, channel));
        let tiles = (0..heads).flat_map(|head| (0..dim).step_by(EDGE).map(move |channel| (head, channel)));
        let starts: Vec<usize> = tiles.map(|(head, channel)| 2 * rows(head, channel).place).collect();
        let of_all = RowsAt { bytes, starts: &starts, behind: 0, count: EDGE, stride: 2 * rows(0, 0).stride };
        // SAFETY: the caller guarantees the instruction set of `S`.
        return unsafe { S::see_tokens::<G>(&of_all, ends) };
    }
    let of_head = |head| kind.layout.place(kind.shape, head, first, 0);
    let tile_stride = kind.layout.place(kind.shape, 0, first, EDGE) - of_head(0);
    let token_stride = PageRows::of(kind, &Span::at(kind.shape, 0, first, 0)).stride;
    let starts: Vec<usize> = (0..heads).map(|head| 2 * of_head(head)).collect();
    std::array::from_fn(|token| {
        let behind = 2 * token * token_stride;
        let of_token = RowsAt { bytes, starts: &starts, behind, count: dim / EDGE, stride: 2 * tile_stride };
        // SAFETY: the caller guarantees the instruction set of `S`.
        unsafe { S::see_token::<G>(&of_token, ends) }
    })
}

/// The parameters of a token's codes.
pub struct TokenCoder {
    /// Of the middle group: the lower bound, its bits that differ from the upper one's, the least
    /// rest, and the inverse of the step.
    bound: f32,
    differs: u32,
    least: f32,
    inverse: f32,
    /// The greatest code below the bounds, and the least above.
    below: i16,
    above: i16,
    /// Of all groups.
    pub tables: Tables,
}

impl TokenCoder {
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    fn new<const G: usize>(groups: &Groups, intervals: &[Interval; G], grids: &[Grid]) -> Self {
        let middle = groups.middle();
        let (low, high) = intervals.get(middle).copied().unwrap_or((0.0, 0.0));
        let Grid { least, inverse, .. } = grids[middle];
        let (below, above) = grids[middle].sides();
        Self {
            bound: low,
            differs: low.to_bits() ^ high.to_bits(),
            least,
            inverse,
            below: below as i16,
            above: above as i16,
            tables: Tables::of(&Coder { groups, intervals, grids }, intervals),
        }
    }
}

impl TokenCoder {
    /// The nearest codes of eight values of the middle group, on either side.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    #[inline]
    fn nearest(&self, values: __m256, is_high: __m256i) -> __m256i {
        let differs = _mm256_and_si256(is_high, _mm256_set1_epi32(self.differs.cast_signed()));
        let bound = _mm256_xor_ps(_mm256_set1_ps(self.bound), _mm256_castsi256_ps(differs));
        let left = _mm256_sub_ps(_mm256_sub_ps(values, bound), _mm256_set1_ps(self.least));
        // To nearest, ties to even. Values of the group have codes within the limits.
        _mm256_cvtps_epi32(_mm256_mul_ps(left, _mm256_set1_ps(self.inverse)))
    }
}

/// The middle group: two spans of the order, the second above the first.
struct Middle {
    starts: [i16; 2],
    /// Their lengths, less 2^15.
    lens: [i16; 2],
}

impl Middle {
    fn new<const G: usize>(groups: &Groups, ends: &[u16; ENDS_MAX]) -> Self {
        let middle = groups.middle();
        // NaN is beyond the first and last end too, but pages with NaN are declined before.
        let span = |region: usize| {
            let start = if region == 0 { 0 } else { ends[region - 1] };
            let end = if region == 2 * G { u16::MAX } else { ends[region] };
            (start.cast_signed(), ((end - start) ^ 0x8000).cast_signed())
        };
        let [low, high] = [span(middle), if middle == G { (0, i16::MIN) } else { span(2 * G - middle) }];
        Self { starts: [low.0, high.0], lens: [low.1, high.1] }
    }

    /// Codes of sixteen elements, zero outside the middle group, and the mask of the group.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    #[inline]
    fn codes<const E: u8>(&self, bits: __m256i, by: &TokenCoder) -> (__m256i, __m256i) {
        let order = in_order(bits);
        let low = _mm256_sub_epi16(order, _mm256_set1_epi16(self.starts[0]));
        let high = _mm256_sub_epi16(order, _mm256_set1_epi16(self.starts[1]));
        let is_low = _mm256_cmpgt_epi16(_mm256_set1_epi16(self.lens[0]), low);
        let is_high = _mm256_cmpgt_epi16(_mm256_set1_epi16(self.lens[1]), high);
        let is_middle = _mm256_or_si256(is_low, is_high);
        let [first, second] = widen::<E>(bits);
        let first = by.nearest(first, _mm256_unpacklo_epi16(is_high, is_high));
        let second = by.nearest(second, _mm256_unpackhi_epi16(is_high, is_high));
        let codes = _mm256_packs_epi32(first, second);
        // The upper limit applies below the middle interval, the lower limit above.
        let codes = _mm256_min_epu16(codes, _mm256_or_si256(is_high, _mm256_set1_epi16(by.below)));
        let codes = _mm256_max_epi16(codes, _mm256_and_si256(is_high, _mm256_set1_epi16(by.above)));
        (_mm256_and_si256(codes, is_middle), is_middle)
    }
}

/// Sixteen tokens of a head between page and payload.
pub struct Sixteen {
    pub dim: usize,
    /// Elements and codes of the middle group, by token, with spare places behind.
    elements: Vec<[u8; 2]>,
    codes: Vec<u8>,
    /// A token's outliers: their places among the codes, and their elements.
    places: Vec<u32>,
    outliers: Vec<[u8; 2]>,
}

impl Sixteen {
    fn new(dim: usize) -> Self {
        let values = EDGE * dim;
        let (elements, codes) = (vec![[0; 2]; values + BLOCK], vec![0; values + BLOCK]);
        Self { dim, elements, codes, places: vec![0; dim + 2 * LANES], outliers: vec![[0; 2]; dim + 2 * LANES] }
    }

    /// Loads the elements of a head's tokens.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    fn load<const E: u8>(&mut self, page: &Page<'_>, head: usize, token: usize, rows: &mut Rows) {
        for channel in (0..self.dim).step_by(EDGE) {
            let span = Span::at(page.kind().shape, head, token, channel);
            rows.load::<E>(page.bytes(), &PageRows::of(page.kind(), &span), Axis::Tokens);
            for (token, bits) in rows.bits.iter().enumerate() {
                let to = &mut self.elements[token * self.dim + channel..][..EDGE];
                store_bytes(bytes_at_mut(to.as_flattened_mut(), 0), *bits);
            }
        }
    }

    /// Codes a token, except the dense codes of outliers, and counts the outliers of each block.
    /// Appends entries of `BYTES` each.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    fn code<const E: u8, const G: usize, const BYTES: usize>(
        &mut self,
        token: usize,
        middle: &Middle,
        (by, upper_at): (&TokenCoder, u32),
        (lows, highs): &([f32; G], [f32; G]),
        counts: &mut [u8],
        entries: &mut Vec<u8>,
    ) {
        let first = token * self.dim;
        let mut found = 0;
        for (block, count) in counts.iter_mut().enumerate() {
            let start = first + block * BLOCK;
            let elements = self.elements[start..start + BLOCK].as_flattened().as_chunks::<{ 2 * EDGE }>().0;
            let codes = self.codes[start..start + BLOCK].as_chunks_mut::<{ 2 * EDGE }>().0;
            let mut outliers = 0;
            for (half, codes) in codes.iter_mut().enumerate() {
                let (near, is_near) = middle.codes::<E>(load_bytes(&elements[2 * half]), by);
                let (far, is_far) = middle.codes::<E>(load_bytes(&elements[2 * half + 1]), by);
                store_bytes(codes, _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi16(near, far)));
                let is_middle = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi16(is_near, is_far));
                outliers |= u64::from(!_mm256_movemask_epi8(is_middle).cast_unsigned()) << (2 * EDGE * half);
            }
            *count = outliers.count_ones() as u8;
            // Eight at a time without a branch, since most blocks have fewer outliers; the rest is
            // ignored.
            let mut at = found;
            loop {
                let places = self.places[at..at + LANES].iter_mut().zip(&mut self.outliers[at..at + LANES]);
                for (place, element) in places {
                    let here = start + outliers.trailing_zeros() as usize;
                    (*place, *element) = (here as u32, self.elements[here]);
                    outliers &= outliers.wrapping_sub(1);
                }
                at += LANES;
                if outliers == 0 {
                    break;
                }
            }
            found += usize::from(*count);
        }
        // Places behind the last outlier are spare.
        self.places[found..found + LANES].fill((EDGE * self.dim) as u32);
        let end = entries.len() + found * BYTES;
        for at in (0..found).step_by(LANES) {
            let bits = load_half(bytes_at(self.outliers[at..at + LANES].as_flattened(), 0));
            let values = if E == BF16 {
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
            } else {
                _mm256_cvtph_ps(bits)
            };
            let region = regions(values, lows, highs);
            let codes = by.tables.codes(region, values);
            let places: &mut [u32; LANES] = self.places[at..at + LANES].as_mut_array().expect("eight");
            // SAFETY: `places` has eight words; the load needs no alignment.
            let of_block = unsafe { _mm256_loadu_si256(places.as_ptr().cast()) };
            let of_block = _mm256_and_si256(of_block, _mm256_set1_epi32(BLOCK as i32 - 1));
            let of_group = _mm256_permutevar8x32_epi32(by.tables.number, region);
            let upper = _mm256_sll_epi32(_mm256_srli_epi32::<4>(codes), _mm_cvtsi32_si128(upper_at.cast_signed()));
            let entry = _mm256_or_si256(_mm256_or_si256(of_block, of_group), upper);
            let entry = _mm256_and_si256(entry, _mm256_set1_epi32(if BYTES == 1 { 0xff } else { 0xffff }));
            let words = _mm_packus_epi32(_mm256_castsi256_si128(entry), _mm256_extracti128_si256::<1>(entry));
            let mut all = [0; 2 * LANES];
            store_half(&mut all, if BYTES == 1 { _mm_packus_epi16(words, words) } else { words });
            entries.extend_from_slice(&all[..BYTES * LANES]);
            let mut lower = [0_u32; LANES];
            // SAFETY: `lower` has eight words; the store needs no alignment.
            unsafe {
                let codes = _mm256_and_si256(codes, _mm256_set1_epi32(15));
                _mm256_storeu_si256(lower.as_mut_ptr().cast(), codes);
            }
            for (place, code) in places.iter().zip(lower) {
                self.codes[*place as usize] = code as u8;
            }
        }
        entries.truncate(end);
    }

    /// Elements of a token.
    pub fn elements(&self, token: usize) -> &[u8] {
        self.elements[token * self.dim..][..self.dim].as_flattened()
    }

    /// Dense codes of a token, two to a byte.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    fn pack(&self, token: usize, dense: &mut [u8]) {
        let codes = self.codes[token * self.dim..][..self.dim].as_chunks::<BLOCK>().0;
        for (dense, codes) in dense.as_chunks_mut().0.iter_mut().zip(codes) {
            let weigh = _mm256_set1_epi16(0x1001);
            let near = _mm256_maddubs_epi16(load_bytes(bytes_at(codes, 0)), weigh);
            let far = _mm256_maddubs_epi16(load_bytes(bytes_at(codes, 2 * EDGE)), weigh);
            store_bytes(dense, _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi16(near, far)));
        }
    }
}

/// Appends the payload of a page of whole tiles and blocks of 16-bit elements, by up to four
/// groups; `None`: the page or the groups are others.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn encode(groups: &Groups, intervals: &[Interval], page: &Page<'_>, payload: &mut Vec<u8>) -> Encoded {
    // SAFETY: AVX2 is enabled in this function.
    unsafe { encode_by::<Narrow>(groups, intervals, page, payload) }
}

/// As [`encode`], by the steps of `S`.
///
/// # Safety
/// Callers must guarantee that the machine has AVX2 and the instruction set of `S`.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub unsafe fn encode_by<S: Steps>(
    groups: &Groups,
    intervals: &[Interval],
    page: &Page<'_>,
    payload: &mut Vec<u8>,
) -> Encoded {
    let (Shape { tokens, dim, .. }, element) = (page.kind().shape, page.kind().element);
    let is_whole = usize::from(tokens).is_multiple_of(EDGE) && usize::from(dim).is_multiple_of(BLOCK);
    if !is_whole || intervals.len() >= GROUPS_MAX || element == Element::F32 {
        return None;
    }
    // SAFETY: the caller guarantees the instruction set of `S`.
    Some(with_intervals!(intervals, intervals, unsafe {
        match (element, groups.entry_bytes()) {
            (Element::Bf16, 1) => encode_as::<BF16, _, 1, S>(groups, intervals, page, payload),
            (Element::Bf16, _) => encode_as::<BF16, _, 2, S>(groups, intervals, page, payload),
            (_, 1) => encode_as::<F16, _, 1, S>(groups, intervals, page, payload),
            (_, _) => encode_as::<F16, _, 2, S>(groups, intervals, page, payload),
        }
    }))
}

/// # Safety
/// As for [`encode_by`].
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
unsafe fn encode_as<const E: u8, const G: usize, const BYTES: usize, S: Steps>(
    groups: &Groups,
    intervals: &[Interval; G],
    page: &Page<'_>,
    payload: &mut Vec<u8>,
) -> Result<(), Declined> {
    let shape = page.kind().shape;
    let (tokens, dim) = (usize::from(shape.tokens), usize::from(shape.dim));
    let ends_of_regions = ends_of::<E, G>(intervals);
    let mut coders = Vec::with_capacity(tokens);
    for first in (0..tokens).step_by(EDGE) {
        // SAFETY: the caller guarantees the instruction set of `S`.
        for lane in unsafe { seen::<G, S>(page, first, &ends_of_regions) } {
            let bounds = lane.bounds::<E, G>(intervals, &ends_of_regions).ok_or(Declined)?;
            let mut rounded = [(f16::ZERO, f16::ZERO); GROUPS_MAX];
            for (rounded, (least, greatest)) in rounded.iter_mut().zip(bounds).take(G + 1) {
                *rounded = outwards(least, greatest).ok_or(Declined)?;
                payload.extend(rounded.0.to_le_bytes());
                payload.extend(rounded.1.to_le_bytes());
            }
            coders.push(TokenCoder::new(groups, intervals, &grids(groups, &rounded[..=G])));
        }
    }
    let (dense_at, values) = (payload.len(), shape.values());
    payload.resize(dense_at + values / 2 + values / BLOCK, 0);
    let (dense, counts) = payload[dense_at..].split_at_mut(values / 2);
    let (middle, bounds) = (Middle::new::<G>(groups, &ends_of_regions), ends(intervals));
    let (mut some, mut rows, mut entries) = (Sixteen::new(dim), Rows::zero(), Vec::with_capacity(values / 4));
    let mut of_tokens = dense.chunks_exact_mut(EDGE * dim / 2).zip(counts.chunks_exact_mut(EDGE * dim / BLOCK));
    for head in 0..usize::from(shape.heads) {
        for first in (0..tokens).step_by(EDGE) {
            let Some((dense, counts)) = of_tokens.next() else {
                unreachable!("every sixteen tokens have their places")
            };
            some.load::<E>(page, head, first, &mut rows);
            let tokens = &coders[first..first + EDGE];
            let (ends, bounds, upper_at) = (&ends_of_regions, &bounds, groups.upper_at());
            let by = Coders { tokens, middle: &middle, ends, bounds, upper_at };
            // SAFETY: the caller guarantees the instruction set of `S`.
            unsafe { S::code::<E, G, BYTES>(&mut some, &by, [dense, counts], &mut entries) };
        }
    }
    payload.extend_from_slice(&entries);
    Ok(())
}
