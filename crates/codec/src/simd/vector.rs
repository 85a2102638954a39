//! Registers of any width, for algorithms that do not depend on it.
//!
//! Functions generic over [`Vector`] are `#[inline(always)]` and have no closures, so that each is
//! compiled with the instruction set of the kernel that calls it.

use super::avx512::Lanes;
use std::arch::x86_64::*;

/// A register of elements of 16 bits, or of numbers of 32 bits.
///
/// # Safety
/// Callers of all functions must guarantee that the machine has the instruction set of the
/// register, and must have it enabled. Pointers must be valid for the bytes that are named.
pub trait Vector: Copy {
    /// Bytes of the register.
    const BYTES: usize;
    /// Rows of sixteen elements of 16 bits.
    const ROWS: usize = Self::BYTES / 32;

    /// Stores [`Self::BYTES`].
    unsafe fn store(self, to: *mut u8);
    /// Loads [`Self::ROWS`] rows of 32 bytes that begin `stride` bytes apart.
    unsafe fn load_rows(from: *const u8, stride: usize) -> Self;
    unsafe fn splat16(value: u16) -> Self;
    unsafe fn splat32(value: u32) -> Self;
    unsafe fn and(self, other: Self) -> Self;
    unsafe fn or(self, other: Self) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    /// Sixteen copies of the sign of each 16 bits.
    unsafe fn signs16(self) -> Self;
    unsafe fn sub16(self, other: Self) -> Self;
    unsafe fn min16(self, other: Self) -> Self;
    unsafe fn max16(self, other: Self) -> Self;
    /// Shifts 32 bits left by sixteen.
    unsafe fn up16(self) -> Self;
    /// The lower 16 of each 32 bits from `self`, the upper from `odd`.
    unsafe fn with_odd(self, odd: Self) -> Self;
    /// `f32` rounded to integers, to nearest, ties to even.
    unsafe fn to_i32(self) -> Self;
    /// Products of `f32`.
    unsafe fn mul(self, other: Self) -> Self;
    /// Halves as `f32`: the first half of the register, then the second.
    unsafe fn halves_to_f32(self) -> [Self; 2];
    /// Integers of 32 bits, saturated to 16, in order.
    unsafe fn narrow16(all: [Self; 2]) -> Self;
    /// The lower bytes of elements, which are the sign extension of bytes, in order.
    unsafe fn narrow8(all: [Self; 2]) -> Self;
}

/// Implements methods by one intrinsic each, in the order of the arguments.
macro_rules! by_intrinsics {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $out:ty = $body:expr;)*) => {
        $(
            #[inline(always)]
            unsafe fn $name($($arg: $kind),*) -> $out {
                // SAFETY: the trait's callers guarantee the instruction set, and valid pointers.
                unsafe { $body }
            }
        )*
    };
}

impl Vector for __m256i {
    const BYTES: usize = 32;

    by_intrinsics! {
        store(self: Self, to: *mut u8) -> () = _mm256_storeu_si256(to.cast(), self);
        load_rows(from: *const u8, _stride: usize) -> Self = _mm256_loadu_si256(from.cast());
        splat16(value: u16) -> Self = _mm256_set1_epi16(value.cast_signed());
        splat32(value: u32) -> Self = _mm256_set1_epi32(value.cast_signed());
        and(self: Self, other: Self) -> Self = _mm256_and_si256(self, other);
        or(self: Self, other: Self) -> Self = _mm256_or_si256(self, other);
        xor(self: Self, other: Self) -> Self = _mm256_xor_si256(self, other);
        signs16(self: Self) -> Self = _mm256_srai_epi16::<15>(self);
        sub16(self: Self, other: Self) -> Self = _mm256_sub_epi16(self, other);
        min16(self: Self, other: Self) -> Self = _mm256_min_epu16(self, other);
        max16(self: Self, other: Self) -> Self = _mm256_max_epu16(self, other);
        up16(self: Self) -> Self = _mm256_slli_epi32::<16>(self);
        with_odd(self: Self, odd: Self) -> Self = _mm256_blend_epi16::<0xaa>(self, odd);
        to_i32(self: Self) -> Self = _mm256_cvtps_epi32(_mm256_castsi256_ps(self));
        mul(self: Self, other: Self) -> Self =
            _mm256_castps_si256(_mm256_mul_ps(_mm256_castsi256_ps(self), _mm256_castsi256_ps(other)));
        halves_to_f32(self: Self) -> [Self; 2] = {
            [
                _mm256_castps_si256(_mm256_cvtph_ps(_mm256_castsi256_si128(self))),
                _mm256_castps_si256(_mm256_cvtph_ps(_mm256_extracti128_si256::<1>(self))),
            ]
        };
        narrow16(all: [Self; 2]) -> Self = {
            _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(all[0], all[1]))
        };
        narrow8(all: [Self; 2]) -> Self = {
            _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi16(all[0], all[1]))
        };
    }
}

/// The even bytes of two registers.
pub static EVEN_BYTES: Lanes<u8, 64> = Lanes({
    let mut bytes = [0; 64];
    let mut at = 0;
    while at < 64 {
        bytes[at] = 2 * at as u8;
        at += 1;
    }
    bytes
});

impl Vector for __m512i {
    const BYTES: usize = 64;

    by_intrinsics! {
        store(self: Self, to: *mut u8) -> () = _mm512_storeu_si512(to.cast(), self);
        load_rows(from: *const u8, stride: usize) -> Self = {
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(from.cast()));
            _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(from.add(stride).cast()))
        };
        splat16(value: u16) -> Self = _mm512_set1_epi16(value.cast_signed());
        splat32(value: u32) -> Self = _mm512_set1_epi32(value.cast_signed());
        and(self: Self, other: Self) -> Self = _mm512_and_si512(self, other);
        or(self: Self, other: Self) -> Self = _mm512_or_si512(self, other);
        xor(self: Self, other: Self) -> Self = _mm512_xor_si512(self, other);
        signs16(self: Self) -> Self = _mm512_srai_epi16::<15>(self);
        sub16(self: Self, other: Self) -> Self = _mm512_sub_epi16(self, other);
        min16(self: Self, other: Self) -> Self = _mm512_min_epu16(self, other);
        max16(self: Self, other: Self) -> Self = _mm512_max_epu16(self, other);
        up16(self: Self) -> Self = _mm512_slli_epi32::<16>(self);
        with_odd(self: Self, odd: Self) -> Self = _mm512_mask_blend_epi16(0xaaaa_aaaa, self, odd);
        to_i32(self: Self) -> Self = _mm512_cvtps_epi32(_mm512_castsi512_ps(self));
        mul(self: Self, other: Self) -> Self =
            _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(self), _mm512_castsi512_ps(other)));
        halves_to_f32(self: Self) -> [Self; 2] = {
            [
                _mm512_castps_si512(_mm512_cvtph_ps(_mm512_castsi512_si256(self))),
                _mm512_castps_si512(_mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(self))),
            ]
        };
        narrow16(all: [Self; 2]) -> Self = {
            let low = _mm512_castsi256_si512(_mm512_cvtsepi32_epi16(all[0]));
            _mm512_inserti64x4::<1>(low, _mm512_cvtsepi32_epi16(all[1]))
        };
        narrow8(all: [Self; 2]) -> Self = _mm512_permutex2var_epi8(all[0], EVEN_BYTES.load(), all[1]);
    }
}
