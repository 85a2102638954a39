//! Stores of a whole line around the cache. The line is not read first, and no dirty line stays in
//! the cache, so a line is published without a flush.

#[cfg(target_arch = "x86_64")]
use std::arch::{
    asm,
    x86_64::{
        __m256i, __m512i, _mm_stream_si64, _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512,
        _mm512_stream_si512,
    },
};

/// The processor's method of storing a line around the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric) enum WholeLine {
    /// None: store through the cache and flush.
    No,
    /// Eight words.
    #[cfg(target_arch = "x86_64")]
    Movnti,
    /// Two halves.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// One register.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// From memory to memory, 64 bytes at once, on the device too.
    #[cfg(target_arch = "x86_64")]
    Movdir64b,
}

impl WholeLine {
    /// The methods of this processor, best last.
    pub(in crate::fabric) fn available() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        {
            let ways = [
                (Self::Movnti, true),
                (Self::Avx2, std::is_x86_feature_detected!("avx2")),
                (Self::Avx512, std::is_x86_feature_detected!("avx512f")),
                (Self::Movdir64b, crate::cpu::flush_instructions().movdir64b),
            ];
            ways.into_iter().filter_map(|(way, there)| there.then_some(way)).collect()
        }
        #[cfg(not(target_arch = "x86_64"))]
        vec![Self::No]
    }

    /// Starts storing one word around the cache if the processor can, otherwise through it.
    ///
    /// # Safety
    /// Callers must guarantee that `to` is writable and aligned to 8 bytes. Others may read it
    /// meanwhile, by atomics.
    #[inline]
    pub(in crate::fabric) unsafe fn store_word(to: *mut u64, value: u64) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: callers guarantee a writable, aligned word.
        unsafe {
            _mm_stream_si64(to.cast(), value.cast_signed());
        }
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: callers guarantee a writable, aligned word, which is stored at once.
        unsafe {
            to.write_volatile(value);
        }
    }

    /// Starts storing a line; [`super::drain`] waits for it. Words arrive in any order. Not for
    /// [`WholeLine::No`].
    ///
    /// # Safety
    /// Callers must guarantee that this processor has the instruction and that the 64 bytes at `to`
    /// are writable and aligned to 64 bytes. Others may read them meanwhile, by atomics or by
    /// instructions.
    #[inline]
    pub(in crate::fabric) unsafe fn store(self, to: *mut u8, words: &[u64; 8]) {
        match self {
            Self::No => unreachable!("this processor stores no line around its cache: {words:?} for {to:?}"),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: callers guarantee a writable, aligned line.
            Self::Movnti => unsafe {
                #[allow(clippy::cast_ptr_alignment, reason = "callers guarantee the alignment")]
                let to = to.cast::<i64>();
                for (index, word) in words.iter().enumerate() {
                    _mm_stream_si64(to.add(index), word.cast_signed());
                }
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: callers guarantee AVX and a writable, aligned line.
            Self::Avx2 => unsafe { avx2(to, words) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: callers guarantee AVX-512F and a writable, aligned line.
            Self::Avx512 => unsafe { avx512(to, words) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: callers guarantee the instruction and a writable, aligned line. The
            // instruction reads the 64 bytes of `words` and writes the line at the register's
            // address.
            Self::Movdir64b => unsafe {
                asm!("movdir64b {}, [{}]", in(reg) to, in(reg) words, options(nostack, preserves_flags));
            },
        }
    }
}

/// # Safety
/// As for [`WholeLine::store`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(to: *mut u8, words: &[u64; 8]) {
    #[allow(clippy::cast_ptr_alignment, reason = "callers guarantee the alignment")]
    let (from, to) = (words.as_ptr().cast::<__m256i>(), to.cast::<__m256i>());
    // SAFETY: callers guarantee the line and the instructions; two registers are the eight words.
    unsafe {
        let halves = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
        _mm256_stream_si256(to, halves.0);
        _mm256_stream_si256(to.add(1), halves.1);
    }
}

/// # Safety
/// As for [`WholeLine::store`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn avx512(to: *mut u8, words: &[u64; 8]) {
    #[allow(clippy::cast_ptr_alignment, reason = "callers guarantee the alignment")]
    let to = to.cast::<__m512i>();
    // SAFETY: callers guarantee the line and the instruction; one register is the eight words.
    unsafe { _mm512_stream_si512(to, _mm512_loadu_si512(words.as_ptr().cast())) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Lines([u64; 24]);

    #[test]
    fn every_way_stores_its_line_and_no_more() {
        let words = [1, 2, 3, 4, 5, 6, 7, u64::MAX];
        for way in WholeLine::available() {
            if way == WholeLine::No {
                continue;
            }
            let mut lines = Lines([9; 24]);
            // SAFETY: the middle line of three, which are aligned.
            unsafe { way.store(lines.0.as_mut_ptr().add(8).cast(), &words) };
            super::super::drain();
            assert_eq!(lines.0[8..16], words, "{way:?}");
            assert_eq!((&lines.0[..8], &lines.0[16..]), (&[9; 8][..], &[9; 8][..]), "{way:?} wrote elsewhere");
        }
    }
}
