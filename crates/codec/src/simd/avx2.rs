//! Kernels on AVX2 and F16C: loads and stores, and rounding to the element types of pages.
//!
//! Products and sums are rounded one by one, as plain code rounds them: nothing is fused.

pub mod qpack;
pub mod speckv;
pub mod tile;

use std::arch::x86_64::*;

/// Eight numbers.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn load_f32s(from: &[f32; 8]) -> __m256 {
    // SAFETY: eight numbers are there; the load wants no alignment.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn store_f32s(to: &mut [f32; 8], values: __m256) {
    // SAFETY: there is room for eight numbers; the store wants no alignment.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), values) };
}

/// Thirty-two bytes.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn load_bytes(from: &[u8; 32]) -> __m256i {
    // SAFETY: thirty-two bytes are there; the load wants no alignment.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn store_bytes(to: &mut [u8; 32], bytes: __m256i) {
    // SAFETY: there is room for thirty-two bytes; the store wants no alignment.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), bytes) };
}

/// Sixteen bytes.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn load_half(from: &[u8; 16]) -> __m128i {
    // SAFETY: sixteen bytes are there; the load wants no alignment.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

/// The bytes at a place, so many as the array has.
#[inline]
fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..at + N].as_array().expect("so many bytes")
}

/// The bytes at a place, to be written.
#[inline]
fn bytes_at_mut<const N: usize>(bytes: &mut [u8], at: usize) -> &mut [u8; N] {
    bytes[at..at + N].as_mut_array().expect("so many bytes")
}

/// Eight numbers of a half's sixteen bits, or of a bfloat's.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn widen<const BF16: bool>(bits: __m128i) -> __m256 {
    if BF16 { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits))) } else { _mm256_cvtph_ps(bits) }
}

/// Sixteen numbers rounded to halves or bfloats, to nearest, ties to even. `NAN`: some may be no numbers, which stay what they
/// are and become quiet.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn round<const BF16: bool, const NAN: bool>(low: __m256, high: __m256) -> __m256i {
    if !BF16 {
        let low = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(low);
        let high = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(high);
        return _mm256_set_m128i(high, low);
    }
    let [low, high] = [upper_half::<NAN>(low), upper_half::<NAN>(high)];
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high))
}

/// The bits of bfloats, in lanes of 32 bits.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn upper_half<const NAN: bool>(values: __m256) -> __m256i {
    let bits = _mm256_castps_si256(values);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))));
    if !NAN {
        return rounded;
    }
    let quiet = _mm256_or_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(0x40));
    let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(values, values));
    _mm256_blendv_epi8(rounded, quiet, is_nan)
}
