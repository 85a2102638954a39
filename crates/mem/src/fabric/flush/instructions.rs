//! The flush instructions and the fences that order them.

use super::Flush;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::arch::asm;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _mm_clflush, _mm_lfence, _mm_mfence, _mm_prefetch, _mm_sfence};

/// Whether streamed stores leave no dirty line in the cache. On other architectures they are
/// ordinary stores, and their lines must be flushed.
pub(in crate::fabric) const STREAMS: bool = cfg!(target_arch = "x86_64");

impl Flush {
    /// Starts writing a line back; the cache may keep it. [`drain`] waits for it.
    ///
    /// # Safety
    /// Callers must guarantee that this processor has the instruction and that `line` is in mapped
    /// memory.
    #[inline(always)]
    pub(in crate::fabric) unsafe fn write_back(self, line: *const u8) {
        match self {
            // SAFETY: callers guarantee the instruction and the line. The instruction changes no
            // byte that a load sees. The compiler must assume that it touches all memory, so stores
            // stay before it.
            #[cfg(target_arch = "x86_64")]
            Self::Clwb => unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) },
            // SAFETY: callers guarantee the instruction and the line.
            _ => unsafe { self.drop_line(line) },
        }
    }

    /// Starts writing a line back, if it is dirty, and dropping it. [`drain`] waits for it.
    ///
    /// # Safety
    /// As for [`Flush::write_back`].
    #[inline(always)]
    pub(in crate::fabric) unsafe fn drop_line(self, line: *const u8) {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: callers guarantee the instruction and the line.
            Self::Clflush => unsafe { _mm_clflush(line) },
            // `clwb` may keep the line, so it never refreshes.
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as in `write_back`; every processor with `clwb` has `clflushopt`.
            Self::ClflushOpt | Self::Clwb => unsafe {
                asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
            },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as in `write_back`.
            Self::DcCivac => unsafe { asm!("dc civac, {}", in(reg) line, options(nostack, preserves_flags)) },
            _ => unreachable!("{self} is no instruction of this architecture"),
        }
    }
}

/// Waits for all flushes and stores of this thread, and delays later loads until then. On x86 only
/// MFENCE delays loads; SFENCE does not, not even after the ordered `clflush`.
#[inline(always)]
pub(in crate::fabric) fn drain() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of x86-64, and a fence touches no memory of its own.
    unsafe {
        _mm_mfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier touches no memory of its own.
    unsafe {
        asm!("dsb sy", options(nostack, preserves_flags));
    }
}

/// Completes earlier loads before a later flush. A refresh starts with it: manuals order flushes
/// with fences and not with loads, and a line that was dropped before an earlier load of it
/// completes could come back stale.
#[inline(always)]
pub(in crate::fabric) fn loads_first() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of x86-64, and a fence touches no memory of its own.
    unsafe {
        _mm_lfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier touches no memory of its own.
    unsafe {
        asm!("dmb sy", options(nostack, preserves_flags));
    }
}

/// Waits for this thread's streamed stores, which a release store does not order.
#[inline(always)]
pub(in crate::fabric) fn drain_streams() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64, and a fence touches no memory of its own.
    unsafe {
        _mm_sfence();
    }
}

/// Prefetches a line that will be loaded soon.
#[inline(always)]
pub(crate) fn prefetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes nothing that a program sees, at any address.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}
