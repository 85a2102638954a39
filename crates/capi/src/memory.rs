//! Memory of the region by pointers (TraCT §4.1 (2) and (4)). A pointer is good in this process alone; what is kept in the
//! region refers to other parts of it by offsets.

use crate::errors::{Fault, or, status};
use crate::region::{Region, region};
use cenote_mem::Fabric;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// The offset of a pointer into the region.
pub fn offset_of(region: &Region, pointer: *const c_void) -> Result<u64, Fault> {
    let start = region.fabric().address(0, 64).addr();
    let offset = pointer.addr().checked_sub(start).map(|offset| offset as u64);
    offset
        .filter(|&offset| offset < region.fabric().len())
        .ok_or_else(|| Fault::new(libc::EINVAL, format!("{pointer:p} does not point into the region")))
}

/// Where an offset lies in this process.
pub fn pointer_to(region: &Region, offset: u64) -> Result<*mut c_void, Fault> {
    let (line, into) = (offset / 64 * 64, offset % 64);
    if offset == 0 || line + 64 > region.fabric().len() {
        return Err(Fault::new(libc::EINVAL, format!("offset {offset:#x} lies outside the region")));
    }
    Ok(region.fabric().address(line, 64).wrapping_add(into as usize).cast())
}

/// Allocates memory of the region, aligned to 64 bytes. It is this process's, and goes with it, until `cxl_shm_put` names it.
#[unsafe(no_mangle)]
pub extern "C" fn shmalloc(size: usize) -> *mut c_void {
    let allocate = || {
        let region = region()?;
        let offset = region.pool.allocate(size as u64)?;
        pointer_to(&region, offset)
    };
    or(allocate(), null_mut())
}

/// Gives memory back that `shmalloc` gave and that has no name. NULL is nothing to give back.
#[unsafe(no_mangle)]
pub extern "C" fn shfree(pointer: *mut c_void) -> c_int {
    if pointer.is_null() {
        return 0;
    }
    let free = || {
        let region = region()?;
        region.pool.free(offset_of(&region, pointer)?)?;
        Ok(0)
    };
    status(free())
}

/// The offset of a pointer into the region, which every process can turn into a pointer of its own; 0: it is none.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_get_offset(pointer: *const c_void) -> u64 {
    or(region().and_then(|region| offset_of(&region, pointer)), 0)
}

/// A pointer to an offset in the region; NULL: the region has no such place.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_get_ptr(offset: u64) -> *mut c_void {
    or(region().and_then(|region| pointer_to(&region, offset)), null_mut())
}

/// Writes back what this processor's caches have of these bytes and drops it: after writing, so that other hosts see it; before
/// reading what other hosts wrote. Waits until it is done. Where all who share the region share their caches, a fence.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_flush(address: *const c_void, size: usize) -> c_int {
    let flush = || {
        let region = region()?;
        let start = offset_of(&region, address)?;
        let end = start.checked_add(size as u64).filter(|&end| end <= region.fabric().len());
        let end =
            end.ok_or_else(|| Fault::new(libc::EINVAL, format!("{size} bytes from {address:p} leave the region")))?;
        let first = start / 64 * 64;
        region.fabric().fence();
        region.fabric().refresh_payload(first, end.next_multiple_of(64).min(region.fabric().len() / 64 * 64) - first);
        Ok(0)
    };
    status(flush())
}

/// TraCT's name for `cenote_flush`. What does not lie in the region is left alone.
#[unsafe(no_mangle)]
pub extern "C" fn clflush(address: *mut c_void, size: usize) {
    cenote_flush(address, size);
}
