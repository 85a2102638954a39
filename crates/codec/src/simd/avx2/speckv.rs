//! SpecKV: the largest magnitude by the bits of elements, and codes of a token's channels.

use super::{bytes_at, bytes_at_mut, load_f32s, load_half, round, store_bytes, store_f32s, tile};
use crate::page::{Element, Page, PageMut, Shape};
use crate::tile::{Axis, EDGE, PageRows, Span, Tile};
use half::{bf16, f16};
use std::arch::x86_64::*;

/// The largest magnitude of a page; none of a number where some are no numbers.
#[target_feature(enable = "avx2,f16c")]
pub fn largest(page: &Page<'_>) -> f32 {
    match page.kind().element {
        Element::F16 => f16::from_bits(largest_bits(page)).to_f32(),
        Element::Bf16 => bf16::from_bits(largest_bits(page)).to_f32(),
        Element::F32 => {
            let mut largest = _mm256_setzero_si256();
            let mut tile = Tile::ZERO;
            for span in Span::all(page.kind().shape) {
                tile::load(page, &span, Axis::Tokens, &mut tile);
                for values in tile.0.as_chunks::<8>().0 {
                    let bits = _mm256_castps_si256(load_f32s(values));
                    largest = _mm256_max_epi32(largest, _mm256_and_si256(bits, _mm256_set1_epi32(i32::MAX)));
                }
            }
            let mut all = [0.0; 8];
            store_f32s(&mut all, _mm256_castsi256_ps(largest));
            f32::from_bits(all.map(f32::to_bits).into_iter().fold(0, u32::max))
        }
    }
}

/// Of elements of 16 bits: bits without their sign are in the order of magnitudes, with what is no number last.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn largest_bits(page: &Page<'_>) -> u16 {
    let mut largest = _mm256_setzero_si256();
    let magnitude = _mm256_set1_epi16(i16::MAX);
    for span in Span::all(page.kind().shape) {
        for row in tile::load_rows(page.bytes(), &PageRows::of(page.kind(), &span)) {
            largest = _mm256_max_epu16(largest, _mm256_and_si256(row, magnitude));
        }
    }
    let mut all = [0; 32];
    store_bytes(&mut all, largest);
    all.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).fold(0, u16::max)
}

/// Codes of a page whose values times `inverse` are numbers that fit, `[head][token][channel]`.
#[target_feature(enable = "avx2,f16c")]
pub fn quantize(page: &Page<'_>, inverse: f32, codes: &mut [u8]) {
    let shape = page.kind().shape;
    let inverse = _mm256_set1_ps(inverse);
    let mut tile = Tile::ZERO;
    for span in Span::all(shape) {
        tile::load(page, &span, Axis::Tokens, &mut tile);
        // Two tokens at once.
        for (pair, values) in tile.0.as_chunks::<{ 2 * EDGE }>().0.iter().enumerate().take(span.tokens.div_ceil(2)) {
            let mut quarters = [_mm256_setzero_si256(); 4];
            for (quarter, values) in quarters.iter_mut().zip(values.as_chunks::<8>().0) {
                *quarter = _mm256_cvtps_epi32(_mm256_mul_ps(load_f32s(values), inverse));
            }
            let [first, second] =
                [_mm256_packs_epi32(quarters[0], quarters[1]), _mm256_packs_epi32(quarters[2], quarters[3])];
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let mut both = [0; 2 * EDGE];
            store_bytes(&mut both, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order));
            for (token, row) in both.as_chunks::<EDGE>().0.iter().enumerate().take(span.tokens - 2 * pair) {
                let at = span.first_of(shape, 2 * pair + token);
                if span.channels == EDGE {
                    *bytes_at_mut(codes, at) = *row;
                } else {
                    codes[at..at + span.channels].copy_from_slice(&row[..span.channels]);
                }
            }
        }
    }
}

/// Stores what codes, `[head][token][channel]`, stand for.
#[target_feature(enable = "avx2,f16c")]
pub fn restore(codes: &[u8], scale: f32, page: &mut PageMut<'_>) {
    match page.kind().element {
        Element::F16 => restore_16::<false>(codes, scale, page),
        Element::Bf16 => restore_16::<true>(codes, scale, page),
        Element::F32 => {
            let mut tile = Tile::ZERO;
            for span in Span::all(page.kind().shape) {
                for (token, values) in tile.0.as_chunks_mut::<EDGE>().0.iter_mut().enumerate().take(span.tokens) {
                    let [low, high] = row(codes, page.kind().shape, &span, token, scale);
                    let [low_values, high_values] = values.as_chunks_mut::<8>().0 else { unreachable!("two eights") };
                    store_f32s(low_values, low);
                    store_f32s(high_values, high);
                }
                tile::store::<false>(page, &span, Axis::Tokens, &tile);
            }
        }
    }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn restore_16<const BF16: bool>(codes: &[u8], scale: f32, page: &mut PageMut<'_>) {
    let kind = *page.kind();
    for span in Span::all(kind.shape) {
        let mut bits = [_mm256_setzero_si256(); EDGE];
        for (token, bits) in bits.iter_mut().enumerate().take(span.tokens) {
            let [low, high] = row(codes, kind.shape, &span, token, scale);
            *bits = round::<BF16, false>(low, high);
        }
        tile::store_rows(page.bytes_mut(), &PageRows::of(&kind, &span), Axis::Tokens, bits);
    }
}

/// Values of up to sixteen channels of a token.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn row(codes: &[u8], shape: Shape, span: &Span, token: usize, scale: f32) -> [__m256; 2] {
    let at = span.first_of(shape, token);
    let codes = if span.channels == EDGE {
        load_half(bytes_at(codes, at))
    } else {
        let mut some = [0; EDGE];
        some[..span.channels].copy_from_slice(&codes[at..at + span.channels]);
        load_half(&some)
    };
    let scale = _mm256_set1_ps(scale);
    let widened = [_mm256_cvtepi8_epi32(codes), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(codes, codes))];
    [_mm256_mul_ps(_mm256_cvtepi32_ps(widened[0]), scale), _mm256_mul_ps(_mm256_cvtepi32_ps(widened[1]), scale)]
}

/// Codes of rows of `dim` become sums of all codes up to them.
#[target_feature(enable = "avx2,f16c")]
pub fn sums(codes: &mut [u8], dim: usize) {
    for row in codes.chunks_exact_mut(dim) {
        let mut before = _mm_setzero_si128();
        let (some, last) = row.as_chunks_mut::<EDGE>();
        for codes in some {
            let mut sums = load_half(codes);
            sums = _mm_add_epi8(sums, _mm_slli_si128::<1>(sums));
            sums = _mm_add_epi8(sums, _mm_slli_si128::<2>(sums));
            sums = _mm_add_epi8(sums, _mm_slli_si128::<4>(sums));
            sums = _mm_add_epi8(sums, _mm_slli_si128::<8>(sums));
            sums = _mm_add_epi8(sums, before);
            before = _mm_shuffle_epi8(sums, _mm_set1_epi8(15));
            // SAFETY: there is room for sixteen bytes; the store wants no alignment.
            unsafe { _mm_storeu_si128(codes.as_mut_ptr().cast(), sums) };
        }
        let mut sum = _mm_extract_epi8::<0>(before) as u8;
        for code in last {
            sum = sum.wrapping_add(*code);
            *code = sum;
        }
    }
}
