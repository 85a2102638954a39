//! INT8 on AVX-512: pages whose tiles lie in a row. AVX2 does all others.

use super::avx2::{self, is_plain, magnitude};
use super::rows;
use crate::page::{Element, Page, PageMut};
use crate::simd::avx2::{BF16, F16, Room};
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
    // SAFETY: this function has AVX-512 enabled.
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
    // SAFETY: this function has AVX-512 enabled.
    unsafe {
        match element {
            Element::Bf16 => rows::quantize::<BF16, __m512i>(page.bytes(), ROW_BYTES, inverse, codes),
            _ => rows::quantize::<F16, __m512i>(page.bytes(), ROW_BYTES, inverse, codes),
        }
    }
    // SAFETY: `quantize` stored so many codes.
    unsafe { payload.set_len(payload.len() + count) };
}

/// As [`avx2::restore_tiles`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
pub fn restore_tiles(codes: &[u8], axis: Axis, scale: f32, page: &mut PageMut<'_>) {
    let in_a_row = axis == page.axis() && lie_in_a_row(page.kind());
    // SAFETY: machines with AVX-512 have AVX2, and this function has AVX-512 enabled.
    unsafe {
        match page.kind().element {
            Element::Bf16 if in_a_row && is_plain(scale) => {
                rows::restore::<BF16, __m512i>(codes, scale, page.bytes_mut(), ROW_BYTES);
            }
            Element::F16 if in_a_row => rows::restore::<F16, __m512i>(codes, scale, page.bytes_mut(), ROW_BYTES),
            _ => avx2::restore_tiles(codes, axis, scale, page),
        }
    }
}
