//! INT8 on AVX-512, for pages with all tiles in a row. AVX2 serves all others.

use super::avx2::{self, magnitude};
use super::rows;
use crate::page::{Element, Page, PageMut};
use crate::simd::avx2::{BF16, F16, Room};
use crate::simd::vector::EVEN_BYTES;
use crate::tile::{Axis, ROW_BYTES, lie_in_a_row};
use std::arch::x86_64::*;

/// As [`avx2::largest`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
pub fn largest(page: &Page<'_>) -> f32 {
    let element = page.kind().element;
    if element == Element::F32 || !lie_in_a_row(page.kind()) {
        return avx2::largest(page);
    }
    let mut all = [_mm512_setzero_si512(); 2];
    // SAFETY: AVX-512 is enabled in this function.
    unsafe { rows::widen_largest(&mut all, page.bytes(), ROW_BYTES) };
    let all = _mm512_max_epu16(all[0], all[1]);
    let both = _mm256_max_epu16(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64::<1>(all));
    magnitude(element, both)
}

/// As [`avx2::quantize_tiles`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
pub fn quantize_tiles(page: &Page<'_>, inverse: f32, payload: &mut Vec<u8>) {
    let element = page.kind().element;
    if element == Element::F32 || !lie_in_a_row(page.kind()) {
        return avx2::quantize_tiles(page, inverse, payload);
    }
    let count = page.kind().shape.values();
    let mut room = Room::behind(payload, count);
    let codes = room.take(count);
    // SAFETY: AVX-512 is enabled in this function.
    unsafe {
        match element {
            Element::Bf16 => rows::quantize::<BF16, __m512i>(page.bytes(), ROW_BYTES, inverse, codes),
            _ => rows::quantize::<F16, __m512i>(page.bytes(), ROW_BYTES, inverse, codes),
        }
    }
    // SAFETY: `quantize` stored so many codes.
    unsafe { payload.set_len(payload.len() + count) };
}

/// As [`avx2::restore_tiles`]: two tables give the bytes of an element by the code's magnitude.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
pub fn restore_tiles(codes: &[u8], axis: Axis, scale: f32, page: &mut PageMut<'_>) {
    let element = page.kind().element;
    if element == Element::F32 || axis != page.axis() || !lie_in_a_row(page.kind()) {
        return avx2::restore_tiles(codes, axis, scale, page);
    }
    let elements = match element {
        Element::Bf16 => avx2::table::<BF16>(scale),
        _ => avx2::table::<F16>(scale),
    };
    // SAFETY: `elements` has 256 bytes; loads need no alignment.
    let [a, b, c, d] = [0, 64, 128, 192].map(|at| unsafe { _mm512_loadu_si512(elements.as_ptr().add(at).cast()) });
    let [even, odd] = [EVEN_BYTES.load(), _mm512_or_si512(EVEN_BYTES.load(), _mm512_set1_epi8(1))];
    let low = [_mm512_permutex2var_epi8(a, even, b), _mm512_permutex2var_epi8(c, even, d)];
    let high = [_mm512_permutex2var_epi8(a, odd, b), _mm512_permutex2var_epi8(c, odd, d)];
    let mut beyond = 0;
    let quarters = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    let (all, codes, to) = (codes, codes.as_chunks::<64>().0, page.bytes_mut().as_chunks_mut::<128>().0);
    assert_eq!(codes.len(), to.len(), "an element for each code");
    for (codes, to) in codes.iter().zip(to) {
        // SAFETY: `codes` has 64 bytes; loads need no alignment.
        let codes = unsafe { _mm512_loadu_si512(codes.as_ptr().cast()) };
        // `unpack` joins bytes within quarters.
        let codes = _mm512_permutexvar_epi64(quarters, codes);
        beyond |= _mm512_cmpeq_epi8_mask(codes, _mm512_set1_epi8(i8::MIN));
        let magnitudes = _mm512_abs_epi8(codes);
        let lower = _mm512_permutex2var_epi8(low[0], magnitudes, low[1]);
        let upper = _mm512_permutex2var_epi8(high[0], magnitudes, high[1]);
        let upper = _mm512_ternarylogic_epi32::<0xf8>(upper, codes, _mm512_set1_epi8(i8::MIN));
        // SAFETY: `to` has 128 bytes; stores need no alignment.
        unsafe {
            _mm512_storeu_si512(to.as_mut_ptr().cast(), _mm512_unpacklo_epi8(lower, upper));
            _mm512_storeu_si512(to.as_mut_ptr().add(64).cast(), _mm512_unpackhi_epi8(lower, upper));
        }
    }
    // Encoders never write the code -128; the tables lack its magnitude.
    if beyond != 0 {
        avx2::restore_tiles(all, axis, scale, page);
    }
}
