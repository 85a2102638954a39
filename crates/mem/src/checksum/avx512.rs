//! The kernel on AVX-512: one register is the line.

use super::lanes::{self, Vector, aligned, aligned_mut};
use super::{Job, State};
use std::arch::x86_64::{
    __m128i, __m512i, _mm_cvtsi32_si128, _mm_stream_si128, _mm512_add_epi64, _mm512_castsi512_si128,
    _mm512_extracti32x4_epi32, _mm512_loadu_si512, _mm512_mul_epu32, _mm512_set1_epi64, _mm512_sll_epi64,
    _mm512_srl_epi64, _mm512_storeu_si512, _mm512_stream_si512, _mm512_xor_si512,
};

/// # Safety
/// As for [`lanes::run`]; the machine must have AVX512F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn run(state: &mut State, job: Job, from: *const u8, to: *mut u8, lines: usize) {
    // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
    unsafe { lanes::run::<__m512i, 1>(state, job, from, to, lines) }
}

impl Vector for __m512i {
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_shared(from: *const u8) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { aligned::<Self>(from).read_volatile() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { _mm512_storeu_si512(to.cast(), self) };
    }
    #[inline(always)]
    unsafe fn store_shared(self, to: *mut u8) {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { aligned_mut::<Self>(to).write_volatile(self) };
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { _mm512_stream_si512(aligned_mut(to), self) };
    }
    #[inline(always)]
    unsafe fn stream_private(self, to: *mut u8) {
        let to = aligned_mut::<__m128i>(to);
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe {
            _mm_stream_si128(to, _mm512_castsi512_si128(self));
            _mm_stream_si128(to.add(1), _mm512_extracti32x4_epi32::<1>(self));
            _mm_stream_si128(to.add(2), _mm512_extracti32x4_epi32::<2>(self));
            _mm_stream_si128(to.add(3), _mm512_extracti32x4_epi32::<3>(self));
        }
    }
    #[inline(always)]
    unsafe fn splat(value: u64) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { _mm512_set1_epi64(value.cast_signed()) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { _mm512_add_epi64(self, other) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { _mm512_xor_si512(self, other) }
    }
    #[inline(always)]
    unsafe fn multiply_low(self, other: Self) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { _mm512_mul_epu32(self, other) }
    }
    #[inline(always)]
    unsafe fn shift_right<const N: i32>(self) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { _mm512_srl_epi64(self, _mm_cvtsi32_si128(N)) }
    }
    #[inline(always)]
    unsafe fn shift_left<const N: i32>(self) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { _mm512_sll_epi64(self, _mm_cvtsi32_si128(N)) }
    }
}
