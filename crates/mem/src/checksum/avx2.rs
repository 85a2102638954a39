//! The kernel on AVX2: two registers to the line.

use super::lanes::{self, Vector, aligned, aligned_mut};
use super::{Job, State};
use std::arch::x86_64::{
    __m128i, __m256i, _mm_stream_si128, _mm256_add_epi64, _mm256_castsi256_si128, _mm256_extracti128_si256,
    _mm256_loadu_si256, _mm256_mul_epu32, _mm256_set1_epi64x, _mm256_slli_epi64, _mm256_srli_epi64,
    _mm256_storeu_si256, _mm256_stream_si256, _mm256_xor_si256,
};

/// # Safety
/// As for [`lanes::run`]; the machine must have AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn run(state: &mut State, job: Job, from: *const u8, to: *mut u8, lines: usize) {
    // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
    unsafe { lanes::run::<__m256i, 2>(state, job, from, to, lines) }
}

impl Vector for __m256i {
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_shared(from: *const u8) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { aligned::<Self>(from).read_volatile() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { _mm256_storeu_si256(to.cast(), self) };
    }
    #[inline(always)]
    unsafe fn store_shared(self, to: *mut u8) {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { aligned_mut::<Self>(to).write_volatile(self) };
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { _mm256_stream_si256(aligned_mut(to), self) };
    }
    #[inline(always)]
    unsafe fn stream_private(self, to: *mut u8) {
        let to = aligned_mut::<__m128i>(to);
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe {
            _mm_stream_si128(to, _mm256_castsi256_si128(self));
            _mm_stream_si128(to.add(1), _mm256_extracti128_si256::<1>(self));
        }
    }
    #[inline(always)]
    unsafe fn splat(value: u64) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { _mm256_set1_epi64x(value.cast_signed()) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { _mm256_add_epi64(self, other) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { _mm256_xor_si256(self, other) }
    }
    #[inline(always)]
    unsafe fn multiply_low(self, other: Self) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { _mm256_mul_epu32(self, other) }
    }
    #[inline(always)]
    unsafe fn shift_right<const N: i32>(self) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { _mm256_srli_epi64::<N>(self) }
    }
    #[inline(always)]
    unsafe fn shift_left<const N: i32>(self) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { _mm256_slli_epi64::<N>(self) }
    }
}
