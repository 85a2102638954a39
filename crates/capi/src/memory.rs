//! Memory of the region by pointers (TraCT §4.1 (2) and (4)). A pointer is valid in this process
//! only; data in the region refers to other data by offsets.
//!
//! Sizes, pointers and offsets are unchecked input. Only addresses and offsets inside the region's
//! space are converted, so no call leads a program to the region's own structures.

use crate::errors::{Fault, or, status};
use crate::region::{Region, region};
use cenote_mem::Fabric;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::null_mut;

/// Bytes of a line.
const LINE: u64 = 64;

/// The offset of a pointer into the region's space.
pub fn offset_of(region: &Region, pointer: *const c_void) -> Result<u64, Fault> {
    let start = region.fabric().address(0, LINE).addr();
    let offset = pointer.addr().checked_sub(start).map(|offset| offset as u64);
    offset
        .filter(|offset| region.pool.space().contains(offset))
        .ok_or_else(|| Fault::new(libc::EINVAL, format!("{pointer:p} does not point into the region's space")))
}

/// The address in this process of an offset in the region's space.
pub fn pointer_to(region: &Region, offset: u64) -> Result<*mut c_void, Fault> {
    let space = region.pool.space();
    if !space.contains(&offset) {
        let Range { start, end } = space;
        let place = format!("the region's space, which is {start:#x} to {end:#x}");
        return Err(Fault::new(libc::EINVAL, format!("offset {offset:#x} lies outside {place}")));
    }
    // The space consists of whole lines.
    let (line, into) = (offset / LINE * LINE, offset % LINE);
    Ok(region.fabric().address(line, LINE).wrapping_add(into as usize).cast())
}

/// Allocates memory of the region, in lines of 64 bytes and aligned to them. It belongs to the
/// region: it outlives this process until a process of any host frees it. 0 bytes get a line. NULL:
/// there is no room, or `size` exceeds the region's chunk size.
#[unsafe(no_mangle)]
pub extern "C" fn shmalloc(size: usize) -> *mut c_void {
    or(null_mut(), || {
        let region = region()?;
        let offset = region.pool.allocate(size as u64)?;
        pointer_to(&region, offset)
    })
}

/// Frees memory that `shmalloc` returned to any process of any host and that has no name. Hosts
/// that wrote to it must have flushed that before. NULL is ignored. -EINVAL: any other pointer, or
/// one that was freed before.
#[unsafe(no_mangle)]
pub extern "C" fn shfree(pointer: *mut c_void) -> c_int {
    if pointer.is_null() {
        return 0;
    }
    status(|| {
        let region = region()?;
        region.pool.free(offset_of(&region, pointer)?)?;
        Ok(0)
    })
}

/// The offset of a pointer into the region, which every process can convert to its own pointer; 0:
/// it does not point into the region's space.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_get_offset(pointer: *const c_void) -> u64 {
    or(0, || offset_of(&*region()?, pointer))
}

/// A pointer to an offset in the region; NULL: it is outside the region's space. The caller must
/// know that memory is allocated there.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_get_ptr(offset: u64) -> *mut c_void {
    or(null_mut(), || pointer_to(&*region()?, offset))
}

/// Writes back and drops this processor's cached lines of these bytes: after writing, so that other
/// hosts see the bytes; before reading what other hosts wrote. Waits until it is done. If all
/// processes that share the region share their caches, it is a fence. -EINVAL: some bytes are
/// outside the region's space.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_flush(address: *const c_void, size: usize) -> c_int {
    status(|| {
        let region = region()?;
        let start = offset_of(&region, address)?;
        let end = start.checked_add(size as u64).filter(|&end| end <= region.pool.space().end);
        let end =
            end.ok_or_else(|| Fault::new(libc::EINVAL, format!("{size} bytes from {address:p} leave the region")))?;
        let first = start / LINE * LINE;
        region.fabric().fence();
        // The space ends with a whole line.
        region.fabric().refresh_payload(first, end.next_multiple_of(LINE) - first);
        Ok(0)
    })
}

/// TraCT's name for `cenote_flush`. Ignores bytes outside the region.
#[unsafe(no_mangle)]
pub extern "C" fn clflush(address: *mut c_void, size: usize) {
    cenote_flush(address, size);
}
