//! A plain copy around the cache, without a checksum. With `memcpy` it is the limit that payload
//! copies are compared with.

/// Copies `len` bytes. With AVX2 and a destination aligned to 32 bytes, whole lines go around the
/// cache.
///
/// # Safety
/// Callers must guarantee that `from` is readable and `to` is writable for `len` bytes and that
/// they do not overlap.
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && to.addr().is_multiple_of(32) {
        let whole = len / 64 * 64;
        // SAFETY: callers guarantee both ranges; the processor has AVX2 and `to` is aligned; the
        // rest begins after the whole lines.
        unsafe {
            lines(from, to, whole);
            return std::ptr::copy_nonoverlapping(from.add(whole), to.add(whole), len - whole);
        }
    }
    // SAFETY: callers guarantee both ranges.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}

/// # Safety
/// As for [`copy`]; `len` is a multiple of 64, `to` is aligned to 32 bytes, and the processor must
/// have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[allow(clippy::cast_ptr_alignment, reason = "callers guarantee the alignment")]
unsafe fn lines(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{_mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
    for at in (0..len).step_by(64) {
        // SAFETY: callers guarantee both ranges, the alignment of `to` and AVX2.
        unsafe {
            let first = _mm256_loadu_si256(from.add(at).cast());
            let second = _mm256_loadu_si256(from.add(at + 32).cast());
            _mm256_stream_si256(to.add(at).cast(), first);
            _mm256_stream_si256(to.add(at + 32).cast(), second);
        }
    }
    _mm_sfence();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_and_no_other_is_copied() {
        let from: Vec<u8> = (0..255).cycle().take(1000).collect();
        for (shift, len) in [(0, 1000), (32, 640), (1, 999), (32, 0), (0, 63)] {
            let mut to = vec![0; 1100];
            // SAFETY: both are private and long enough.
            unsafe { copy(from.as_ptr(), to.as_mut_ptr().add(shift), len) };
            assert_eq!(to[shift..shift + len], from[..len]);
            assert!(to[..shift].iter().chain(&to[shift + len..]).all(|&byte| byte == 0));
        }
    }
}
