//! SpecKV: pages that lie in a row.

use super::super::avx2::{BF16, F16};
use super::{EDGE, Lanes, load, store};
use std::arch::x86_64::*;

/// The largest magnitude of elements, by their bits; fewer than thirty-two are left for the caller.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
pub fn largest(elements: &[u8]) -> (__m256i, &[u8]) {
    let (twice, _) = elements.as_chunks::<64>().0.as_chunks::<2>();
    let rest = &elements[size_of_val(twice)..];
    let mut largest = [_mm512_setzero_si512(); 2];
    for two in twice {
        for (largest, bytes) in largest.iter_mut().zip(two) {
            *largest = _mm512_max_epu16(*largest, _mm512_and_si512(load(bytes), _mm512_set1_epi16(i16::MAX)));
        }
    }
    let largest = _mm512_max_epu16(largest[0], largest[1]);
    let both = _mm256_max_epu16(_mm512_castsi512_si256(largest), _mm512_extracti64x4_epi64::<1>(largest));
    (both, rest)
}

/// Of two registers of words, the lower byte of each.
static LOWER: Lanes<u8, 64> = Lanes({
    let mut bytes = [0; 64];
    let mut at = 0;
    while at < 64 {
        bytes[at] = 2 * at as u8;
        at += 1;
    }
    bytes
});

/// Codes of elements, as many as there are; sixty-four at a time, so that some may be left for the caller. Returns how many
/// there were.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
pub fn quantize<const E: u8>(elements: &[u8], inverse: f32, codes: &mut [std::mem::MaybeUninit<u8>]) -> usize {
    const { assert!(E == BF16 || E == F16) };
    let inverse = _mm512_set1_ps(inverse);
    let code = |value: __m512| _mm512_cvtps_epi32(_mm512_mul_ps(value, inverse));
    let (all, _) = elements.as_chunks::<64>().0.as_chunks::<2>();
    for (two, codes) in all.iter().zip(codes.as_chunks_mut::<64>().0) {
        let words = two.each_ref().map(|elements| {
            let elements = load(elements);
            if E == BF16 {
                // The elements in even places, and those in odd ones.
                let odd = _mm512_and_si512(elements, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
                let even = code(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(elements)));
                let odd = _mm512_slli_epi32::<16>(code(_mm512_castsi512_ps(odd)));
                return _mm512_mask_blend_epi16(0xaaaa_aaaa, even, odd);
            }
            let low = _mm512_cvtepi32_epi16(code(_mm512_cvtph_ps(_mm512_castsi512_si256(elements))));
            let high = _mm512_cvtepi32_epi16(code(_mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(elements))));
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
        });
        // Codes are bytes, whose upper words are their signs.
        let bytes = _mm512_permutex2var_epi8(words[0], LOWER.load(), words[1]);
        // SAFETY: there is room for sixty-four bytes; the store wants no alignment.
        unsafe { _mm512_storeu_si512(codes.as_mut_ptr().cast(), bytes) };
    }
    64 * all.len().min(codes.len() / 64)
}

/// Stores what codes stand for as elements, thirty-two at a time, and returns how many there were. Of bfloats none may lie
/// halfway between two, and the scale must stay what it is if it is less by 2^16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
pub fn restore<const E: u8>(codes: &[u8], scale: f32, elements: &mut [u8]) -> usize {
    const { assert!(E == BF16 || E == F16) };
    let (codes, _) = codes.as_chunks::<32>();
    let (elements, _) = elements.as_chunks_mut::<64>();
    if E == BF16 {
        let (scale, half) = (_mm512_set1_ps(scale / (1 << 16) as f32), _mm512_set1_epi32(0x8000));
        let value = |shifted: __m512i| {
            let value = _mm512_mul_ps(_mm512_cvtepi32_ps(shifted), scale);
            _mm512_add_epi32(_mm512_castps_si512(value), half)
        };
        for (codes, elements) in codes.iter().zip(&mut *elements) {
            // SAFETY: thirty-two bytes are there; the load wants no alignment.
            let words = _mm512_cvtepi8_epi16(unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) });
            let even = value(_mm512_slli_epi32::<16>(words));
            let odd = value(_mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32.cast_signed())));
            store(elements, _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(even), odd));
        }
    } else {
        let scale = _mm512_set1_ps(scale);
        for (codes, elements) in codes.iter().zip(&mut *elements) {
            let halves = codes.as_chunks::<EDGE>().0.iter().zip(elements.as_chunks_mut::<32>().0);
            for (codes, elements) in halves {
                // SAFETY: sixteen bytes are there, and there is room for thirty-two; neither wants any alignment.
                unsafe {
                    let codes = _mm512_cvtepi8_epi32(_mm_loadu_si128(codes.as_ptr().cast()));
                    let values = _mm512_mul_ps(_mm512_cvtepi32_ps(codes), scale);
                    let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values);
                    _mm256_storeu_si256(elements.as_mut_ptr().cast(), halves);
                }
            }
        }
    }
    32 * codes.len().min(elements.len())
}
