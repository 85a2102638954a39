//! The kernel on NEON: four registers to the line.

use super::lanes::{self, Vector, aligned, aligned_mut};
use super::{Job, State};
use std::arch::aarch64::{uint64x2_t, vaddq_u64, vdupq_n_s64, vdupq_n_u64, veorq_u64, vmovn_u64, vmull_u32, vshlq_u64};

/// # Safety
/// As for [`lanes::run`]; NEON is part of AArch64.
#[target_feature(enable = "neon")]
pub(super) unsafe fn run(state: &mut State, job: Job, from: *const u8, to: *mut u8, lines: usize) {
    // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
    unsafe { lanes::run::<uint64x2_t, 4>(state, job, from, to, lines) }
}

impl Vector for uint64x2_t {
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { from.cast::<Self>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_shared(from: *const u8) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { aligned::<Self>(from).read_volatile() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { to.cast::<Self>().write_unaligned(self) };
    }
    #[inline(always)]
    unsafe fn store_shared(self, to: *mut u8) {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { aligned_mut::<Self>(to).write_volatile(self) };
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { self.store_shared(to) };
    }
    #[inline(always)]
    unsafe fn stream_private(self, to: *mut u8) {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { self.store(to) };
    }
    #[inline(always)]
    unsafe fn splat(value: u64) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { vdupq_n_u64(value) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { vaddq_u64(self, other) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { veorq_u64(self, other) }
    }
    #[inline(always)]
    unsafe fn multiply_low(self, other: Self) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { vmull_u32(vmovn_u64(self), vmovn_u64(other)) }
    }
    #[inline(always)]
    unsafe fn shift_right<const N: i32>(self) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { vshlq_u64(self, vdupq_n_s64(-i64::from(N))) }
    }
    #[inline(always)]
    unsafe fn shift_left<const N: i32>(self) -> Self {
        // SAFETY: callers guarantee the instructions, and a valid pointer for loads and stores.
        unsafe { vshlq_u64(self, vdupq_n_s64(i64::from(N))) }
    }
}
