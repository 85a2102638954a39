//! INT8 on AVX2. Codes are transposed as bytes, of which a tile has half as many as of elements.

use super::rows;
use crate::page::{Element, Page, PageMut, Shape};
use crate::simd::avx2::{BF16, F32, Room, load_half, round, store_bytes, store_half, with_element};
use crate::simd::rows::{Rows, whole};
use crate::tile::{Axis, EDGE, PageRows, ROW_BYTES, Span, lie_in_a_row};
use half::{bf16, f16};
use std::arch::x86_64::*;

/// The largest magnitude of a page; NaN or infinite if a value is.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn largest(page: &Page<'_>) -> f32 {
    with_element!(page.kind().element, E, largest_of::<E>(page))
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn largest_of<const E: u8>(page: &Page<'_>) -> f32 {
    let kind = page.kind();
    let mut largest = [_mm256_setzero_si256(); 2];
    if E != F32 && lie_in_a_row(kind) {
        // SAFETY: AVX2 is enabled in this function.
        unsafe { rows::widen_largest(&mut largest, page.bytes(), ROW_BYTES) };
        return magnitude(kind.element, _mm256_max_epu16(largest[0], largest[1]));
    }
    let (mut tile, sign) = (Rows::zero(), _mm256_set1_epi16(i16::MAX));
    for span in Span::all(kind.shape) {
        let of_page = PageRows::of(kind, &span);
        if let Some((place, stride)) = whole::<E>(&of_page) {
            // SAFETY: AVX2 is enabled in this function.
            unsafe { rows::widen_largest(&mut largest, &page.bytes()[place], stride) };
            continue;
        }
        tile.load::<E>(page.bytes(), &of_page, of_page.axis);
        for row in 0..EDGE {
            if E == F32 {
                for values in tile.get::<E>(row) {
                    let bits = _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(i32::MAX));
                    largest[0] = _mm256_max_epu32(largest[0], bits);
                }
            } else {
                largest[0] = _mm256_max_epu16(largest[0], _mm256_and_si256(tile.bits[row], sign));
            }
        }
    }
    let either = if E == F32 { largest[0] } else { _mm256_max_epu16(largest[0], largest[1]) };
    magnitude(kind.element, either)
}

/// The largest magnitude in a register, by bits.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn magnitude(element: Element, bits: __m256i) -> f32 {
    let mut all = [0; 32];
    store_bytes(&mut all, bits);
    let words = all.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
    let word = words.fold(0, u16::max);
    match element {
        Element::Bf16 => bf16::from_bits(word).to_f32(),
        Element::F16 => f16::from_bits(word).to_f32(),
        Element::F32 => {
            let bits = all.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
            f32::from_bits(bits.fold(0, u32::max))
        }
    }
}

/// Stores codes of a page, `[head][token][channel]`. Values times `inverse` must fit eight bits.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn quantize(page: &Page<'_>, inverse: f32, codes: &mut [u8]) {
    with_element!(page.kind().element, E, quantize_as::<E>(page, inverse, codes));
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn quantize_as<const E: u8>(page: &Page<'_>, inverse: f32, codes: &mut [u8]) {
    let kind = page.kind();
    let inverse = _mm256_set1_ps(inverse);
    let mut rows = Rows::zero();
    for span in Span::all(kind.shape) {
        rows.load::<E>(page.bytes(), &PageRows::of(kind, &span), Axis::Tokens);
        for token in (0..span.tokens).step_by(2) {
            let both = quantize_rows([rows.get::<E>(token), rows.get::<E>(token + 1)], inverse);
            put(codes, kind.shape, &span, [token, token + 1], both);
        }
    }
}

/// Appends codes by tiles, with rows as the page has them. Values times `inverse` must fit eight
/// bits.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn quantize_tiles(page: &Page<'_>, inverse: f32, payload: &mut Vec<u8>) {
    let count = page.kind().shape.values();
    let mut room = Room::behind(payload, count);
    with_element!(page.kind().element, E, quantize_tiles_as::<E>(page, inverse, &mut room));
    assert_eq!(room.filled, count, "every value has a code");
    // SAFETY: `quantize_tiles_as` stored so many codes.
    unsafe { payload.set_len(payload.len() + count) };
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn quantize_tiles_as<const E: u8>(page: &Page<'_>, inverse: f32, room: &mut Room<'_>) {
    if E != F32 && lie_in_a_row(page.kind()) {
        let codes = room.take(page.kind().shape.values());
        // SAFETY: AVX2 is enabled in this function.
        return unsafe { rows::quantize::<E, __m256i>(page.bytes(), ROW_BYTES, inverse, codes) };
    }
    let mut tile = Rows::zero();
    for span in Span::all(page.kind().shape) {
        let of_page = PageRows::of(page.kind(), &span);
        if let Some((place, stride)) = whole::<E>(&of_page) {
            let codes = room.take(EDGE * EDGE);
            // SAFETY: AVX2 is enabled in this function.
            unsafe { rows::quantize::<E, __m256i>(&page.bytes()[place], stride, inverse, codes) };
            continue;
        }
        tile.load::<E>(page.bytes(), &of_page, of_page.axis);
        let (mut all, inverse) = ([0; EDGE * EDGE], _mm256_set1_ps(inverse));
        for (pair, codes) in all.as_chunks_mut().0.iter_mut().enumerate() {
            store_bytes(codes, quantize_rows([tile.get::<E>(2 * pair), tile.get::<E>(2 * pair + 1)], inverse));
        }
        all.as_chunks::<EDGE>().0.iter().take(of_page.count).for_each(|codes| room.put_slice(&codes[..of_page.len]));
    }
}

/// Codes of two rows.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn quantize_rows([first, second]: [[__m256; 2]; 2], inverse: __m256) -> __m256i {
    let codes = _mm256_packs_epi16(quantize_row(first, inverse), quantize_row(second, inverse));
    _mm256_permute4x64_epi64::<0b11_01_10_00>(codes)
}

/// Codes of sixteen values, as 16 bits.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn quantize_row([first, second]: [__m256; 2], inverse: __m256) -> __m256i {
    let [first, second] = [_mm256_mul_ps(first, inverse), _mm256_mul_ps(second, inverse)];
    _mm256_packs_epi32(_mm256_cvtps_epi32(first), _mm256_cvtps_epi32(second))
}

/// Stores codes of two tokens, if the page has them.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn put(codes: &mut [u8], shape: Shape, span: &Span, tokens: [usize; 2], both: __m256i) {
    for (token, row) in tokens.into_iter().zip([_mm256_castsi256_si128(both), _mm256_extracti128_si256::<1>(both)]) {
        if token >= span.tokens {
            continue;
        }
        let to = &mut codes[span.first_of(shape, token)..][..span.channels];
        if let Some(to) = to.as_mut_array() {
            store_half(to, row);
        } else {
            let mut all = [0; EDGE];
            store_half(&mut all, row);
            to.copy_from_slice(&all[..span.channels]);
        }
    }
}

/// Stores the values of codes, `[head][token][channel]`.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn restore(codes: &[u8], scale: f32, page: &mut PageMut<'_>) {
    with_element!(page.kind().element, E, restore_as::<E>(codes, scale, page));
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn restore_as<const E: u8>(codes: &[u8], scale: f32, page: &mut PageMut<'_>) {
    let (kind, scale) = (*page.kind(), _mm256_set1_ps(scale));
    let mut rows = Rows::zero();
    for span in Span::all(kind.shape) {
        for token in 0..span.tokens {
            let codes = &codes[span.first_of(kind.shape, token)..][..span.channels];
            rows.set::<E, false>(token, row_values(&padded(codes), scale));
        }
        rows.store::<E>(page.bytes_mut(), &PageRows::of(&kind, &span), Axis::Tokens);
    }
}

/// Sixteen codes, of which the last may be missing.
#[inline]
fn padded(codes: &[u8]) -> [u8; EDGE] {
    codes.as_array().copied().unwrap_or_else(|| {
        let mut all = [0; EDGE];
        all[..codes.len()].copy_from_slice(codes);
        all
    })
}

/// Stores the values of codes by tiles with rows of `axis`.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn restore_tiles(codes: &[u8], axis: Axis, scale: f32, page: &mut PageMut<'_>) {
    with_element!(page.kind().element, E, restore_tiles_as::<E>(codes, axis, scale, page));
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn restore_tiles_as<const E: u8>(codes: &[u8], axis: Axis, scale: f32, page: &mut PageMut<'_>) {
    let kind = *page.kind();
    let by_rows = axis == page.axis() && E != F32 && (E != BF16 || is_plain(scale));
    if by_rows && lie_in_a_row(&kind) {
        return restore_rows::<E>(codes, scale, page.bytes_mut(), ROW_BYTES);
    }
    let (mut tile, mut rest) = (Rows::zero(), codes);
    for span in Span::all(kind.shape) {
        let of_page = PageRows::of(&kind, &span);
        let (count, len) = span.rows(axis);
        let (codes, behind) = rest.split_at(count * len);
        rest = behind;
        if by_rows && let Some((place, stride)) = whole::<E>(&of_page) {
            restore_rows::<E>(codes, scale, &mut page.bytes_mut()[place], stride);
            continue;
        }
        for (row, codes) in codes.chunks_exact(len).enumerate() {
            tile.set::<E, false>(row, row_values(&padded(codes), _mm256_set1_ps(scale)));
        }
        tile.store::<E>(page.bytes_mut(), &of_page, axis);
    }
}

/// Whether no code's value lies halfway between two bfloats, so that an addition rounds, and the
/// scale stays normal for codes shifted left by sixteen.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn is_plain(scale: f32) -> bool {
    let mut ties = _mm256_setzero_si256();
    for eight in 0..EDGE {
        // Negative codes have the same ties.
        let codes = _mm256_add_epi32(_mm256_setr_epi32(1, 2, 3, 4, 5, 6, 7, 8), _mm256_set1_epi32(8 * eight as i32));
        let values = _mm256_mul_ps(_mm256_cvtepi32_ps(codes), _mm256_set1_ps(scale));
        let lower = _mm256_slli_epi32::<16>(_mm256_castps_si256(values));
        ties = _mm256_or_si256(ties, _mm256_cmpeq_epi32(lower, _mm256_set1_epi32(i32::MIN)));
    }
    _mm256_testz_si256(ties, ties) == 1 && (scale / (1 << 16) as f32).is_normal()
}

/// Stores the values of codes as rows that begin `stride` bytes apart. For bfloats, the scale must
/// be plain.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn restore_rows<const E: u8>(codes: &[u8], scale: f32, to: &mut [u8], stride: usize) {
    let (codes, _) = codes.as_chunks::<EDGE>();
    assert!(to.len() + stride >= codes.len() * stride + ROW_BYTES, "so many rows");
    let shifted = _mm256_set1_ps(scale / (1 << 16) as f32);
    let number = |words: __m256i| {
        let value = _mm256_mul_ps(_mm256_cvtepi32_ps(words), shifted);
        _mm256_add_epi32(_mm256_castps_si256(value), _mm256_set1_epi32(0x8000))
    };
    for (row, codes) in codes.iter().enumerate() {
        let elements = if E == BF16 {
            let words = _mm256_cvtepi8_epi16(load_half(codes));
            let odd = _mm256_and_si256(words, _mm256_set1_epi32(0xffff_0000_u32.cast_signed()));
            let even = _mm256_srli_epi32::<16>(number(_mm256_slli_epi32::<16>(words)));
            _mm256_blend_epi16::<0xaa>(even, number(odd))
        } else {
            round::<E, false>(row_values(codes, _mm256_set1_ps(scale)))
        };
        // SAFETY: the last row lies in `to`, by the assertion.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().add(row * stride).cast(), elements) };
    }
}

/// The elements of the codes from 0 to 127.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn table<const E: u8>(scale: f32) -> [u8; 256] {
    let mut all = [0; 256];
    for (row, to) in all.as_chunks_mut().0.iter_mut().enumerate() {
        let codes = std::array::from_fn(|at| (row * EDGE + at) as u8);
        store_bytes(to, round::<E, false>(row_values(&codes, _mm256_set1_ps(scale))));
    }
    all
}

/// Values of a row of codes, split.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn row_values(codes: &[u8; EDGE], scale: __m256) -> [__m256; 2] {
    let split = _mm_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15);
    let codes = _mm_shuffle_epi8(load_half(codes), split);
    let first = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
    let second = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(codes, codes)));
    [_mm256_mul_ps(first, scale), _mm256_mul_ps(second, scale)]
}

/// Replaces codes of rows of `dim` by the sums of all codes up to them.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
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
            store_half(codes, sums);
        }
        let mut sum = _mm_extract_epi8::<0>(before) as u8;
        for code in last {
            sum = sum.wrapping_add(*code);
            *code = sum;
        }
    }
}
