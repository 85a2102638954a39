//! SpecKV: the largest magnitude by the bits of elements, and codes of a token's channels. Codes are turned round as bytes,
//! of which a tile has fewer than of elements.

use super::super::avx512;
use super::rows::{Rows, whole};
use super::{
    BF16, F16, F32, Room, bytes_at, load_bytes, load_half, round, store_bytes, store_half, widen, with_element,
};
use crate::page::{Page, PageMut, Shape};
use crate::tile::{Axis, EDGE, PageRows, Span, lie_in_a_row};
use half::{bf16, f16};
use std::arch::x86_64::*;

/// The largest magnitude of a page; none of a number where some are no numbers.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn largest(page: &Page<'_>, is_wide: bool) -> f32 {
    with_element!(page.kind().element, E, largest_of::<E>(page, is_wide))
}

/// Bits without their sign are in the order of magnitudes, with what is no number last.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn largest_of<const E: u8>(page: &Page<'_>, is_wide: bool) -> f32 {
    let (mut largest, mut rows) = (_mm256_setzero_si256(), Rows::zero());
    let in_a_row = if E != F32 && lie_in_a_row(page.kind()) { page.bytes() } else { &[] };
    let mut left = in_a_row;
    if is_wide {
        // SAFETY: the caller says that the machine has AVX-512.
        (largest, left) = unsafe { avx512::speckv::largest(in_a_row) };
    }
    for row in left.as_chunks().0 {
        largest = _mm256_max_epu16(largest, _mm256_and_si256(load_bytes(row), _mm256_set1_epi16(i16::MAX)));
    }
    for span in Span::all(page.kind().shape).take_while(|_| in_a_row.is_empty()) {
        let of_page = PageRows::of(page.kind(), &span);
        if let Some((place, stride)) = whole::<E>(&of_page) {
            let bytes = &page.bytes()[place];
            for row in 0..EDGE {
                let bits = load_bytes(bytes_at(bytes, row * stride));
                largest = _mm256_max_epu16(largest, _mm256_and_si256(bits, _mm256_set1_epi16(i16::MAX)));
            }
            continue;
        }
        rows.load::<E>(page.bytes(), &of_page, of_page.axis);
        for row in 0..EDGE {
            if E == F32 {
                for values in rows.get::<E>(row) {
                    let bits = _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(i32::MAX));
                    largest = _mm256_max_epu32(largest, bits);
                }
            } else {
                let bits = _mm256_and_si256(rows.bits[row], _mm256_set1_epi16(i16::MAX));
                largest = _mm256_max_epu16(largest, bits);
            }
        }
    }
    let mut all = [0; 32];
    super::store_bytes(&mut all, largest);
    if E == F32 {
        let bits = all.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).fold(0, u32::max);
        return f32::from_bits(bits);
    }
    let bits = all.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).fold(0, u16::max);
    if E == super::BF16 { bf16::from_bits(bits).to_f32() } else { f16::from_bits(bits).to_f32() }
}

/// Codes of a tile: rows i and i + 8 side by side.
type Codes = [__m256i; EDGE / 2];

/// Rows 2 i and 2 i + 1 of what were columns, side by side but for the order of their quarters, which is 0, 2, 1, 3.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn transposed(codes: &Codes) -> Codes {
    let mut codes = *codes;
    // Each step moves one bit of the number of a row into the number of a byte, and one the other way.
    for _ in 0..3 {
        let before = codes;
        for row in 0..4 {
            codes[2 * row] = _mm256_unpacklo_epi8(before[row], before[row + 4]);
            codes[2 * row + 1] = _mm256_unpackhi_epi8(before[row], before[row + 4]);
        }
    }
    codes
}

/// Codes of a page whose values times `inverse` are numbers that fit, `[head][token][channel]`.
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
        let of_page = PageRows::of(kind, &span);
        rows.load::<E>(page.bytes(), &of_page, of_page.axis);
        let mut tile = [_mm256_setzero_si256(); EDGE / 2];
        for (row, codes) in tile.iter_mut().enumerate() {
            let [near, far] =
                [quantize_row(rows.get::<E>(row), inverse), quantize_row(rows.get::<E>(row + 8), inverse)];
            *codes = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi16(near, far));
        }
        if of_page.axis == Axis::Channels {
            tile = transposed(&tile);
            for (pair, codes_of_two) in tile.iter().enumerate() {
                let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(*codes_of_two);
                put(codes, kind.shape, &span, [2 * pair, 2 * pair + 1], both);
            }
        } else {
            for (token, both) in tile.iter().enumerate() {
                put(codes, kind.shape, &span, [token, token + 8], *both);
            }
        }
    }
}

/// Appends codes by tiles, with rows as the page has them, of values that times `inverse` are numbers that fit.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn quantize_tiles(page: &Page<'_>, inverse: f32, payload: &mut Vec<u8>, is_wide: bool) {
    let count = page.kind().shape.values();
    let mut room = Room::behind(payload, count);
    with_element!(page.kind().element, E, quantize_tiles_as::<E>(page, inverse, &mut room, is_wide));
    assert_eq!(room.filled, count, "every value has a code");
    // SAFETY: so many bytes were written behind the others.
    unsafe { payload.set_len(payload.len() + count) };
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn quantize_tiles_as<const E: u8>(page: &Page<'_>, inverse: f32, room: &mut Room<'_>, is_wide: bool) {
    let mut rows = Rows::zero();
    if E != F32 && lie_in_a_row(page.kind()) {
        if is_wide {
            // SAFETY: the caller says that the machine has AVX-512.
            room.filled = unsafe {
                if E == BF16 {
                    avx512::speckv::quantize::<BF16>(page.bytes(), inverse, room.room)
                } else {
                    avx512::speckv::quantize::<F16>(page.bytes(), inverse, room.room)
                }
            };
        }
        let inverse = _mm256_set1_ps(inverse);
        for [first, second] in page.bytes()[2 * room.filled..].as_chunks().0.as_chunks().0 {
            let values = [widen::<E>(load_bytes(first)), widen::<E>(load_bytes(second))];
            room.put(quantize_rows(values, inverse));
        }
        return;
    }
    let inverse = _mm256_set1_ps(inverse);
    for span in Span::all(page.kind().shape) {
        let of_page = PageRows::of(page.kind(), &span);
        if let Some((place, stride)) = whole::<E>(&of_page) {
            let bytes = &page.bytes()[place];
            let row = |row: usize| widen::<E>(load_bytes(bytes_at(bytes, row * stride)));
            (0..EDGE).step_by(2).for_each(|first| room.put(quantize_rows([row(first), row(first + 1)], inverse)));
            continue;
        }
        rows.load::<E>(page.bytes(), &of_page, of_page.axis);
        let mut all = [0; EDGE * EDGE];
        for (pair, codes) in all.as_chunks_mut().0.iter_mut().enumerate() {
            store_bytes(codes, quantize_rows([rows.get::<E>(2 * pair), rows.get::<E>(2 * pair + 1)], inverse));
        }
        all.as_chunks::<EDGE>().0.iter().take(of_page.count).for_each(|codes| room.put_slice(&codes[..of_page.len]));
    }
}

/// Codes of two rows, one after the other.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn quantize_rows([first, second]: [[__m256; 2]; 2], inverse: __m256) -> __m256i {
    let codes = _mm256_packs_epi16(quantize_row(first, inverse), quantize_row(second, inverse));
    _mm256_permute4x64_epi64::<0b11_01_10_00>(codes)
}

/// Codes of sixteen values as 16 bits, in order.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn quantize_row([first, second]: [__m256; 2], inverse: __m256) -> __m256i {
    let [first, second] = [_mm256_mul_ps(first, inverse), _mm256_mul_ps(second, inverse)];
    _mm256_packs_epi32(_mm256_cvtps_epi32(first), _mm256_cvtps_epi32(second))
}

/// Puts codes of two tokens where they belong, if they are there.
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

/// Stores what codes, `[head][token][channel]`, stand for.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn restore(codes: &[u8], scale: f32, page: &mut PageMut<'_>) {
    with_element!(page.kind().element, E, restore_as::<E>(codes, scale, page));
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn restore_as<const E: u8>(codes: &[u8], scale: f32, page: &mut PageMut<'_>) {
    let kind = *page.kind();
    let dim = usize::from(kind.shape.dim);
    let mut rows = Rows::zero();
    for span in Span::all(kind.shape) {
        let of_page = PageRows::of(&kind, &span);
        let first = span.first_of(kind.shape, 0);
        if (span.tokens, span.channels) == (EDGE, EDGE) {
            let codes = &codes[first..first + (EDGE - 1) * dim + EDGE];
            restore_tile::<E>(codes, dim, scale, of_page.axis == Axis::Channels, &mut rows);
        } else {
            let mut some = [0; EDGE * EDGE];
            for token in 0..span.tokens {
                let row = &codes[first + token * dim..][..span.channels];
                some[token * EDGE..][..span.channels].copy_from_slice(row);
            }
            restore_tile::<E>(&some, EDGE, scale, of_page.axis == Axis::Channels, &mut rows);
        }
        rows.store::<E>(page.bytes_mut(), &of_page, of_page.axis);
    }
}

/// Stores what codes by tiles stand for, whose rows are of `axis`.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn restore_tiles(codes: &[u8], axis: Axis, scale: f32, page: &mut PageMut<'_>, is_wide: bool) {
    with_element!(page.kind().element, E, restore_tiles_as::<E>(codes, axis, scale, page, is_wide));
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn restore_tiles_as<const E: u8>(codes: &[u8], axis: Axis, scale: f32, page: &mut PageMut<'_>, is_wide: bool) {
    let kind = *page.kind();
    let (mut rows, mut rest) = (Rows::zero(), codes);
    let is_plain = E == BF16 && is_plain(scale);
    if is_wide && (is_plain || E == F16) && axis == page.axis() && lie_in_a_row(&kind) {
        let bytes = page.bytes_mut();
        // SAFETY: the caller says that the machine has AVX-512.
        let done = unsafe {
            if E == BF16 {
                avx512::speckv::restore::<BF16>(codes, scale, bytes)
            } else {
                avx512::speckv::restore::<F16>(codes, scale, bytes)
            }
        };
        // Tiles are of so many values that nothing is left.
        assert_eq!(done, codes.len(), "whole tiles");
        return;
    }
    if is_plain && axis == page.axis() && lie_in_a_row(&kind) {
        return restore_plain(codes, scale, page.bytes_mut(), 2 * EDGE);
    }
    for span in Span::all(kind.shape) {
        let of_page = PageRows::of(&kind, &span);
        let (count, len) = span.rows(axis);
        let (codes, behind) = rest.split_at(count * len);
        rest = behind;
        if axis == of_page.axis
            && let Some((place, stride)) = whole::<E>(&of_page)
        {
            let bytes = &mut page.bytes_mut()[place];
            if is_plain {
                restore_plain(codes, scale, bytes, stride);
                continue;
            }
            for (row, codes) in codes.as_chunks::<EDGE>().0.iter().enumerate().take(EDGE) {
                let elements = round::<E, false>(row_values(codes, _mm256_set1_ps(scale)));
                // SAFETY: the last of sixteen rows ends with these bytes.
                unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().add(row * stride).cast(), elements) };
            }
            continue;
        }
        let mut all = [0; EDGE * EDGE];
        for (all, codes) in all.as_chunks_mut::<EDGE>().0.iter_mut().zip(codes.chunks_exact(len)) {
            all[..len].copy_from_slice(codes);
        }
        restore_tile::<E>(&all, EDGE, scale, axis != of_page.axis, &mut rows);
        rows.store::<E>(page.bytes_mut(), &of_page, of_page.axis);
    }
}

/// Exponents go so far down that a scale may lose this factor and stays what it is.
const CODE_SHIFT: f32 = 1.0 / (1 << 24) as f32;

/// Whether no code stands for what lies halfway between two bfloats, so that an addition rounds to them, and the scale is
/// not too small for codes that are shifted to the left.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
fn is_plain(scale: f32) -> bool {
    let mut ties = _mm256_setzero_si256();
    for eight in 0..EDGE {
        // The sign has no part in this.
        let codes = _mm256_add_epi32(_mm256_setr_epi32(1, 2, 3, 4, 5, 6, 7, 8), _mm256_set1_epi32(8 * eight as i32));
        let values = _mm256_mul_ps(_mm256_cvtepi32_ps(codes), _mm256_set1_ps(scale));
        let lower = _mm256_slli_epi32::<16>(_mm256_castps_si256(values));
        ties = _mm256_or_si256(ties, _mm256_cmpeq_epi32(lower, _mm256_set1_epi32(i32::MIN)));
    }
    _mm256_testz_si256(ties, ties) == 1 && (scale * CODE_SHIFT).is_normal()
}

/// Stores what rows of sixteen codes stand for as bfloats, in rows that begin `stride` apart.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn restore_plain(codes: &[u8], scale: f32, to: &mut [u8], stride: usize) {
    let (codes, _) = codes.as_chunks::<EDGE>();
    assert!(to.len() + stride >= codes.len() * stride + 2 * EDGE, "so many rows");
    // A code becomes the upper byte of a number: the even ones, and the odd ones.
    let evens = _mm256_setr_epi8(
        -1, -1, -1, 0, -1, -1, -1, 2, -1, -1, -1, 4, -1, -1, -1, 6, // and the other eight
        -1, -1, -1, 8, -1, -1, -1, 10, -1, -1, -1, 12, -1, -1, -1, 14,
    );
    let odds = _mm256_or_si256(evens, _mm256_set1_epi32(1 << 24));
    let (scale, half) = (_mm256_set1_ps(scale * CODE_SHIFT), _mm256_set1_epi32(0x8000));
    for (row, codes) in codes.iter().enumerate() {
        let codes = _mm256_broadcastsi128_si256(load_half(codes));
        let even = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_shuffle_epi8(codes, evens)), scale);
        let odd = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_shuffle_epi8(codes, odds)), scale);
        let even = _mm256_add_epi32(_mm256_castps_si256(even), half);
        let odd = _mm256_add_epi32(_mm256_castps_si256(odd), half);
        let elements = _mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<16>(even), odd);
        // SAFETY: the last row ends with these bytes.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().add(row * stride).cast(), elements) };
    }
}

/// Values of sixteen rows whose codes begin `stride` apart; `is_turned`: as columns.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn restore_tile<const E: u8>(codes: &[u8], stride: usize, scale: f32, is_turned: bool, rows: &mut Rows) {
    let scale = _mm256_set1_ps(scale);
    if !is_turned {
        for row in 0..EDGE {
            rows.set::<E, false>(row, row_values(bytes_at(codes, row * stride), scale));
        }
        return;
    }
    let mut tile = [_mm256_setzero_si256(); EDGE / 2];
    for (token, both) in tile.iter_mut().enumerate() {
        let far = load_half(bytes_at(codes, (token + 8) * stride));
        *both = _mm256_set_m128i(far, load_half(bytes_at(codes, token * stride)));
    }
    let split = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (pair, both) in transposed(&tile).into_iter().enumerate() {
        let both = _mm256_permutevar8x32_epi32(both, split);
        rows.set::<E, false>(2 * pair, values(_mm256_castsi256_si128(both), scale));
        rows.set::<E, false>(2 * pair + 1, values(_mm256_extracti128_si256::<1>(both), scale));
    }
}

/// What a row of codes stands for, split.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn row_values(codes: &[u8; EDGE], scale: __m256) -> [__m256; 2] {
    let split = _mm_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15);
    values(_mm_shuffle_epi8(load_half(codes), split), scale)
}

/// What sixteen codes stand for, in their order.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn values(codes: __m128i, scale: __m256) -> [__m256; 2] {
    let first = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
    let second = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(codes, codes)));
    [_mm256_mul_ps(first, scale), _mm256_mul_ps(second, scale)]
}

/// Codes of rows of `dim` become sums of all codes up to them.
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
