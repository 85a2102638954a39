//! What kernels on AVX2 and F16C share: loads and stores, and rounding to element types.
//!
//! Products and sums are rounded one by one, as in the reference. Fused operations are used only
//! where they are exact.
//!
//! Sixteen values are two registers of `f32`, *split*: values 0 to 3 and 8 to 11 in the first, 4 to
//! 7 and 12 to 15 in the second. Packing and unpacking within 128 bits then keep sixteen elements
//! in order.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Element types of pages, as constants of generic kernels.
pub const F16: u8 = 0;
pub const BF16: u8 = 1;
pub const F32: u8 = 2;

/// Runs `$body` with the constant `$E` set to the page's element type.
macro_rules! with_element {
    ($element:expr, $E:ident, $body:expr) => {
        match $element {
            crate::page::Element::F16 => {
                const $E: u8 = crate::simd::avx2::F16;
                $body
            }
            crate::page::Element::Bf16 => {
                const $E: u8 = crate::simd::avx2::BF16;
                $body
            }
            crate::page::Element::F32 => {
                const $E: u8 = crate::simd::avx2::F32;
                $body
            }
        }
    };
}
pub(crate) use with_element;

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
pub fn load_bytes(from: &[u8; 32]) -> __m256i {
    // SAFETY: `from` has 32 bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
pub fn store_bytes(to: &mut [u8; 32], bytes: __m256i) {
    // SAFETY: `to` has 32 bytes; the store needs no alignment.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), bytes) };
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
pub fn load_half(from: &[u8; 16]) -> __m128i {
    // SAFETY: `from` has 16 bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
pub fn store_half(to: &mut [u8; 16], bytes: __m128i) {
    // SAFETY: `to` has 16 bytes; the store needs no alignment.
    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), bytes) };
}

/// The array of bytes at a place.
#[inline]
pub fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..at + N].as_array().expect("the slice has N bytes")
}

/// The array of bytes at a place, for writing.
#[inline]
pub fn bytes_at_mut<const N: usize>(bytes: &mut [u8], at: usize) -> &mut [u8; N] {
    bytes[at..at + N].as_mut_array().expect("the slice has N bytes")
}

/// Spare room behind the bytes of a buffer, filled from its start. It is not zeroed first.
pub struct Room<'a> {
    pub room: &'a mut [MaybeUninit<u8>],
    pub filled: usize,
}

impl<'a> Room<'a> {
    /// Reserves room for `most` bytes.
    pub fn behind(buffer: &'a mut Vec<u8>, most: usize) -> Self {
        buffer.reserve(most);
        Self { room: &mut buffer.spare_capacity_mut()[..most], filled: 0 }
    }

    /// Stores sixteen bytes, of which the first `len` count.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    #[inline]
    pub fn put_half(&mut self, bytes: __m128i, len: usize) {
        assert!(len <= 16);
        let to = &mut self.room[self.filled..self.filled + 16];
        // SAFETY: `to` has 16 bytes; the store needs no alignment.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), bytes) };
        self.filled += len;
    }

    /// The next bytes, for the caller to write.
    pub fn take(&mut self, len: usize) -> &mut [MaybeUninit<u8>] {
        let first = self.filled;
        self.filled += len;
        &mut self.room[first..first + len]
    }

    pub fn put_slice(&mut self, bytes: &[u8]) {
        self.room[self.filled..self.filled + bytes.len()].write_copy_of_slice(bytes);
        self.filled += bytes.len();
    }

    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
    #[inline]
    pub fn put(&mut self, bytes: __m256i) {
        let to = &mut self.room[self.filled..self.filled + 32];
        // SAFETY: `to` has 32 bytes; the store needs no alignment.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), bytes) };
        self.filled += 32;
    }
}

/// Sixteen halves or bfloats as `f32`, split.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
pub fn widen<const E: u8>(bits: __m256i) -> [__m256; 2] {
    if E == BF16 {
        let zero = _mm256_setzero_si256();
        let (first, second) = (_mm256_unpacklo_epi16(zero, bits), _mm256_unpackhi_epi16(zero, bits));
        return [_mm256_castsi256_ps(first), _mm256_castsi256_ps(second)];
    }
    let bits = _mm256_permute4x64_epi64::<0b11_01_10_00>(bits);
    [_mm256_cvtph_ps(_mm256_castsi256_si128(bits)), _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(bits))]
}

/// Sixteen `f32`, split, rounded to halves or bfloats, to nearest, ties to even. `NAN`: some may be
/// NaN, which stays NaN and becomes quiet.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
pub fn round<const E: u8, const NAN: bool>([first, second]: [__m256; 2]) -> __m256i {
    if E == BF16 {
        return _mm256_packus_epi32(upper_half::<NAN>(first), upper_half::<NAN>(second));
    }
    let first = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(first);
    let second = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(second);
    _mm256_set_m128i(_mm_unpackhi_epi64(first, second), _mm_unpacklo_epi64(first, second))
}

/// The bits of bfloats, in 32-bit lanes.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
pub fn upper_half<const NAN: bool>(values: __m256) -> __m256i {
    let bits = _mm256_castps_si256(values);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let up = _mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff));
    let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(up, odd));
    if !NAN {
        return rounded;
    }
    let quiet = _mm256_or_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(0x40));
    let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(values, values));
    _mm256_blendv_epi8(rounded, quiet, is_nan)
}
