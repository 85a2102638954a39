//! Memory of the region by pointers (TraCT §4.1 (2) and (4)). A pointer is good in this process alone; what is kept in the
//! region refers to other parts of it by offsets.
//!
//! Sizes, pointers and offsets are input, whatever made them: only what lies in the region's space is turned into the
//! other, so no call leads a program to the region's own structures.

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

/// Where an offset of the region's space lies in this process.
pub fn pointer_to(region: &Region, offset: u64) -> Result<*mut c_void, Fault> {
    let space = region.pool.space();
    if !space.contains(&offset) {
        let Range { start, end } = space;
        let place = format!("the region's space, which is {start:#x} to {end:#x}");
        return Err(Fault::new(libc::EINVAL, format!("offset {offset:#x} lies outside {place}")));
    }
    // The space is of whole lines.
    let (line, into) = (offset / LINE * LINE, offset % LINE);
    Ok(region.fabric().address(line, LINE).wrapping_add(into as usize).cast())
}

/// Allocates memory of the region, aligned to 64 bytes. It is this process's, and goes with it, until `cxl_shm_put` names it.
/// 0 bytes get the smallest piece. NULL: there is no room, or `size` is above the region's chunk size.
#[unsafe(no_mangle)]
pub extern "C" fn shmalloc(size: usize) -> *mut c_void {
    or(null_mut(), || {
        let region = region()?;
        let offset = region.pool.allocate(size as u64)?;
        pointer_to(&region, offset)
    })
}

/// Gives memory back that `shmalloc` gave this process and that has no name. NULL is nothing to give back. -EINVAL: the
/// pointer is none of these, or was given back before.
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

/// The offset of a pointer into the region, which every process can turn into a pointer of its own; 0: it does not point to
/// where memory can be.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_get_offset(pointer: *const c_void) -> u64 {
    or(0, || offset_of(&*region()?, pointer))
}

/// A pointer to an offset in the region; NULL: no memory can be there. That there is some is the caller's to know.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_get_ptr(offset: u64) -> *mut c_void {
    or(null_mut(), || pointer_to(&*region()?, offset))
}

/// Writes back what this processor's caches have of these bytes and drops it: after writing, so that other hosts see it; before
/// reading what other hosts wrote. Waits until it is done. Where all who share the region share their caches, a fence.
/// -EINVAL: they do not all lie where memory can be.
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

/// TraCT's name for `cenote_flush`. What does not lie in the region is left alone.
#[unsafe(no_mangle)]
pub extern "C" fn clflush(address: *mut c_void, size: usize) {
    cenote_flush(address, size);
}
