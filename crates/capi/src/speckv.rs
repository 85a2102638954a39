//! CXL-SpecKV's allocator (§3.6.1): memory by handles, with a hint on its use, and accesses that
//! prefetch.

use crate::errors::{Fault, or, status};
use crate::memory::pointer_to;
use crate::region::region;
use cenote_mem::Fabric;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Read once from start to end: an access prefetches what follows.
pub const CXL_HINT_SEQUENTIAL: u32 = 1;
/// Read at random: an access prefetches the requested bytes only.
pub const CXL_HINT_RANDOM: u32 = 2;

/// Number of lines that an access prefetches, and with CXL_HINT_SEQUENTIAL also after the requested
/// bytes.
const AHEAD_LINES: u64 = 32;

/// A handle of memory: its offset in the region, and its hint in the lowest bits, which are zero in
/// offsets.
const HINT_MASK: u64 = 63;

/// The offset and the hint of a handle.
fn parts(handle: u64) -> Result<(u64, u64), Fault> {
    let (offset, hint) = (handle & !HINT_MASK, handle & HINT_MASK);
    if hint > u64::from(CXL_HINT_RANDOM) {
        return Err(Fault::new(libc::EINVAL, format!("{handle:#x} is no handle: there is no hint {hint}")));
    }
    Ok((offset, hint))
}

/// Allocates memory of the region and returns its handle; 0: there is no room, as for `shmalloc`.
/// `hint` is 0 or one of CXL_HINT_….
#[unsafe(no_mangle)]
pub extern "C" fn cxl_malloc(size: usize, hint: u32) -> u64 {
    or(0, || {
        if hint > CXL_HINT_RANDOM {
            return Err(Fault::new(libc::EINVAL, format!("there is no hint {hint}")));
        }
        Ok(region()?.pool.allocate(size as u64)? | u64::from(hint))
    })
}

/// A pointer to `size` bytes at `offset` of the memory, which are being prefetched. NULL: they are
/// outside the memory, or the handle is invalid. Drop bytes that another host may have written
/// since first (`cenote_flush`).
#[unsafe(no_mangle)]
pub extern "C" fn cxl_access(handle: u64, offset: u64, size: usize) -> *mut c_void {
    or(null_mut(), || {
        let region = region()?;
        let (start, hint) = parts(handle)?;
        let length = region.pool.allocated_bytes(start)?;
        let end = offset.checked_add(size as u64).filter(|&end| offset < length && end <= length);
        let end = end
            .ok_or_else(|| Fault::new(libc::EINVAL, format!("{size} bytes at {offset} of memory that has {length}")))?;
        // Within one piece of memory, so no sum overflows.
        let ahead = if hint == u64::from(CXL_HINT_SEQUENTIAL) { AHEAD_LINES * 64 } else { 0 };
        let last = (end + ahead).min(length);
        let lines = (start + offset) / 64..(start + last).div_ceil(64);
        for line in lines.take(2 * AHEAD_LINES as usize) {
            region.fabric().prefetch(line * 64);
        }
        pointer_to(&region, start + offset)
    })
}

/// Frees memory. -EINVAL: the handle is none, or was freed before.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_free(handle: u64) -> c_int {
    status(|| {
        let (offset, _) = parts(handle)?;
        region()?.pool.free(offset)?;
        Ok(0)
    })
}
