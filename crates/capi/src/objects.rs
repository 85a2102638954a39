//! Memory by names that all hosts know (TraCT §4.1 (3)).

use crate::errors::{Fault, status, text};
use crate::memory::{offset_of, pointer_to};
use crate::region::region;
use std::ffi::{c_char, c_int, c_void};

/// Names memory that `shmalloc` gave, in place of what had the name, whose memory goes. `key` has 1 to 56 bytes. From here on
/// the memory is the region's and outlives this process. What this process has written to it is flushed.
///
/// # Safety
/// `key` must end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxl_shm_put(key: *const c_char, pointer: *mut c_void) -> c_int {
    let put = || {
        // SAFETY: the caller's guarantee.
        let (region, key) = (region()?, unsafe { text("key", key)? });
        region.pool.name_memory(key, offset_of(&region, pointer)?)?;
        Ok(0)
    };
    status(put())
}

/// Finds memory by its name. -ENOENT: there is none. The pointer is good until somebody destroys the name or gives it to other
/// memory, which who shares the memory must agree on, by a lock for instance.
///
/// # Safety
/// `key` must end with a zero, and `pointer` must be null or point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxl_shm_get(key: *const c_char, pointer: *mut *mut c_void) -> c_int {
    let get = || {
        // SAFETY: the caller's guarantee.
        let (region, key) = (region()?, unsafe { text("key", key)? });
        let found = region.pool.find_memory(key)?;
        let (offset, _) = found.ok_or_else(|| Fault::new(libc::ENOENT, format!("nothing is named `{key}`")))?;
        let found = pointer_to(&region, offset)?;
        if !pointer.is_null() {
            // SAFETY: the caller's guarantee.
            unsafe { pointer.write(found) };
        }
        Ok(0)
    };
    status(get())
}

/// Takes a name away, and the memory with it. -ENOENT: there is none.
///
/// # Safety
/// `key` must end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxl_shm_destroy(key: *const c_char) -> c_int {
    let destroy = || {
        // SAFETY: the caller's guarantee.
        let (region, key) = (region()?, unsafe { text("key", key)? });
        match region.pool.destroy_object(key)? {
            true => Ok(0),
            false => Err(Fault::new(libc::ENOENT, format!("nothing is named `{key}`"))),
        }
    };
    status(destroy())
}
