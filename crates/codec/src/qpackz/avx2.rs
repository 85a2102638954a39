//! QPackZ on AVX2: a state is a lane, and a channel's states are two registers. Lanes look up slots
//! in one table. Lanes with low states take the next words, in order.

use super::{BITS, Decoder, ESCAPE, LOW, Part, Places, Slots, States, Words, push_all};
use crate::error::DecodeError;
use crate::page::PageMut;
use crate::qpack::GROUP;
use crate::simd::avx2::with_element;
use crate::simd::rows::Rows;
use crate::tile::{Axis, EDGE, PageRows, Span};
use std::arch::x86_64::*;

const LANES: usize = 8;

/// By the mask of low lanes: the bytes of each lane's word among eight words.
static SPREAD: [[u8; 2 * LANES]; 1 << LANES] = {
    let mut all = [[0x80; 2 * LANES]; 1 << LANES];
    let mut low = 0;
    while low < all.len() {
        let (mut lane, mut word) = (0, 0);
        while lane < LANES {
            if low >> lane & 1 == 1 {
                all[low][2 * lane] = 2 * word;
                all[low][2 * lane + 1] = 2 * word + 1;
                word += 1;
            }
            lane += 1;
        }
        low += 1;
    }
    all
};

/// The reference's [`push_all`], compiled for AVX2.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn push(states: &mut States, symbols: &[i8; GROUP], places: &Places, room: &mut Words) -> usize {
    push_all(states, symbols, places, room, GROUP)
}

/// The next symbol of each of the first `count` states.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn symbols(decoder: &mut Decoder<'_>, slots: &Slots, symbols: &mut [i8; GROUP], count: usize) {
    let tokens = _mm256_set1_epi32(count as i32);
    let are_there = [
        _mm256_cmpgt_epi32(tokens, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
        _mm256_cmpgt_epi32(tokens, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)),
    ];
    let mut states = load(&decoder.states);
    let mut padded = [0; 2 * GROUP];
    let (window, mut taken, mut codes) = (decoder.window(&mut padded), 0, [_mm256_setzero_si256(); 2]);
    for half in 0..2 {
        let (state, slot) = next(states[half], slots);
        let is_low = _mm256_cmpeq_epi32(_mm256_srli_epi32::<{ LOW.ilog2() as i32 }>(state), _mm256_setzero_si256());
        let is_low = _mm256_and_si256(is_low, are_there[half]);
        let low = _mm256_movemask_ps(_mm256_castsi256_ps(is_low)) as usize;
        // SAFETY: the first half took at most eight of sixteen words; `low` has eight bits, for 256
        // rows.
        let (words, spread) = unsafe {
            (_mm_loadu_si128(window.as_ptr().add(2 * taken).cast()), _mm_loadu_si128(SPREAD.as_ptr().add(low).cast()))
        };
        let words = _mm256_cvtepu16_epi32(_mm_shuffle_epi8(words, spread));
        let refilled = _mm256_or_si256(_mm256_slli_epi32::<16>(state), words);
        let state = _mm256_blendv_epi8(state, refilled, is_low);
        states[half] = _mm256_blendv_epi8(states[half], state, are_there[half]);
        codes[half] = _mm256_srai_epi32::<24>(slot);
        taken += low.count_ones() as usize;
    }
    decoder.taken += taken;
    store(&mut decoder.states, states);
    // Packing is by halves of 128 bits: sixteen bytes lie in the first and third quarter.
    let packed = _mm256_packs_epi16(_mm256_packs_epi32(codes[0], codes[1]), _mm256_setzero_si256());
    let packed = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    let mut all = [0_i8; GROUP];
    // SAFETY: `all` has sixteen bytes; the store needs no alignment.
    unsafe { _mm_storeu_si128(all.as_mut_ptr().cast(), _mm256_castsi256_si128(packed)) };
    symbols[..count].copy_from_slice(&all[..count]);
}

/// Decodes all codes to a page.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn decode(decoder: &mut Decoder<'_>, part: &Part, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
    with_element!(page.kind().element, E, decode_as::<E>(decoder, part, page))
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn decode_as<const E: u8>(decoder: &mut Decoder<'_>, part: &Part, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
    let kind = *page.kind();
    let dim = usize::from(kind.shape.dim);
    let mut rows = Rows::zero();
    for span in Span::all(kind.shape) {
        let first = span.head * dim + span.channel;
        if span.tokens == EDGE {
            decode_tile::<E, true>(decoder, part, first, &span, &mut rows)?;
        } else {
            decode_tile::<E, false>(decoder, part, first, &span, &mut rows)?;
        }
        rows.store::<E>(page.bytes_mut(), &PageRows::of(&kind, &span), Axis::Channels);
    }
    Ok(())
}

/// Decodes a tile from channel `first` of the part on. `WHOLE`: it has sixteen tokens.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn decode_tile<const E: u8, const WHOLE: bool>(
    decoder: &mut Decoder<'_>,
    part: &Part,
    first: usize,
    span: &Span,
    rows: &mut Rows,
) -> Result<(), DecodeError> {
    let tokens = _mm256_set1_epi32(span.tokens as i32);
    let are_there = [
        _mm256_cmpgt_epi32(tokens, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
        _mm256_cmpgt_epi32(tokens, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)),
    ];
    let mut states = load(&decoder.states);
    for channel in 0..span.channels {
        let (mean, step) = (part.channels.means[first + channel], part.channels.steps[first + channel]);
        let slots = part.slots(first + channel);
        let mut padded = [0; 2 * GROUP];
        let (window, mut taken, mut codes) = (decoder.window(&mut padded), 0, [_mm256_setzero_si256(); 2]);
        for half in 0..2 {
            let (state, slot) = next(states[half], slots);
            let mut is_low =
                _mm256_cmpeq_epi32(_mm256_srli_epi32::<{ LOW.ilog2() as i32 }>(state), _mm256_setzero_si256());
            if !WHOLE {
                is_low = _mm256_and_si256(is_low, are_there[half]);
            }
            let low = _mm256_movemask_ps(_mm256_castsi256_ps(is_low)) as usize;
            // SAFETY: the first half took at most eight of sixteen words; `low` has eight bits, for
            // 256 rows.
            let (words, spread) = unsafe {
                (
                    _mm_loadu_si128(window.as_ptr().add(2 * taken).cast()),
                    _mm_loadu_si128(SPREAD.as_ptr().add(low).cast()),
                )
            };
            let words = _mm256_cvtepu16_epi32(_mm_shuffle_epi8(words, spread));
            let refilled = _mm256_or_si256(_mm256_slli_epi32::<16>(state), words);
            let state = _mm256_blendv_epi8(state, refilled, is_low);
            states[half] = if WHOLE { state } else { _mm256_blendv_epi8(states[half], state, are_there[half]) };
            codes[half] = _mm256_srai_epi32::<24>(slot);
            taken += low.count_ones() as usize;
        }
        decoder.taken += taken;
        let are_escaped = [0, 1].map(|half| {
            let is_escaped = _mm256_cmpeq_epi32(codes[half], _mm256_set1_epi32(ESCAPE.into()));
            if WHOLE { is_escaped } else { _mm256_and_si256(is_escaped, are_there[half]) }
        });
        let either = _mm256_or_si256(are_escaped[0], are_escaped[1]);
        if _mm256_testz_si256(either, either) == 0 {
            codes = escaped(decoder, codes, are_escaped)?;
        }
        let (first, second) = (_mm256_cvtepi32_ps(codes[0]), _mm256_cvtepi32_ps(codes[1]));
        let halves = [_mm256_permute2f128_ps::<0x20>(first, second), _mm256_permute2f128_ps::<0x31>(first, second)];
        let (mean, step) = (_mm256_set1_ps(mean), _mm256_set1_ps(step));
        let first = _mm256_add_ps(_mm256_mul_ps(halves[0], step), mean);
        let second = _mm256_add_ps(_mm256_mul_ps(halves[1], step), mean);
        rows.set::<E, false>(channel, [first, second]);
    }
    store(&mut decoder.states, states);
    Ok(())
}

/// The next eight states before they take words, and their slots.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn next(states: __m256i, slots: &Slots) -> (__m256i, __m256i) {
    const REST: i32 = (1 << BITS) - 1;
    let rest = _mm256_set1_epi32(REST);
    // Eight loads are faster than a gather where gathers are microcoded.
    let places = _mm256_and_si256(states, rest);
    let of_four = |places: __m128i| {
        let (low, high) = (_mm_cvtsi128_si64(places).cast_unsigned(), _mm_extract_epi64::<1>(places).cast_unsigned());
        let slot = |place: u64| slots[(place % (1 << BITS)) as usize].cast_signed();
        _mm_setr_epi32(slot(low), slot(low >> 32), slot(high), slot(high >> 32))
    };
    let slot =
        _mm256_set_m128i(of_four(_mm256_extracti128_si256::<1>(places)), of_four(_mm256_castsi256_si128(places)));
    let width = _mm256_and_si256(_mm256_srli_epi32::<{ BITS as i32 }>(slot), rest);
    let product = _mm256_mullo_epi32(width, _mm256_srli_epi32::<{ BITS as i32 }>(states));
    (_mm256_add_epi32(product, _mm256_and_si256(slot, rest)), slot)
}

/// Replaces escaped codes by the next ones of the payload.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[cold]
fn escaped(
    decoder: &mut Decoder<'_>,
    codes: [__m256i; 2],
    are_escaped: [__m256i; 2],
) -> Result<[__m256i; 2], DecodeError> {
    let [mut all, mut marks] = [[0; GROUP]; 2];
    store(&mut all, codes);
    store(&mut marks, are_escaped);
    for (code, mark) in all.iter_mut().zip(marks) {
        if mark != 0 {
            *code = i32::from(decoder.next_escaped()?).cast_unsigned();
        }
    }
    Ok(load(&all))
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn load(numbers: &States) -> [__m256i; 2] {
    // SAFETY: `numbers` has sixteen words; loads need no alignment.
    unsafe { [_mm256_loadu_si256(numbers.as_ptr().cast()), _mm256_loadu_si256(numbers.as_ptr().add(LANES).cast())] }
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn store(numbers: &mut States, [first, second]: [__m256i; 2]) {
    // SAFETY: `numbers` has sixteen words; stores need no alignment.
    unsafe {
        _mm256_storeu_si256(numbers.as_mut_ptr().cast(), first);
        _mm256_storeu_si256(numbers.as_mut_ptr().add(LANES).cast(), second);
    }
}
