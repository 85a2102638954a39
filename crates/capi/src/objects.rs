//! Memory by names that all hosts know (TraCT §4.1 (3)).

use crate::errors::{Fault, status, text};
use crate::memory::{offset_of, pointer_to};
use crate::region::region;
use std::ffi::{c_char, c_int, c_void};

/// What names of the library itself begin with: a program that took one could give locks out twice.
const RESERVED: &str = "cenote/";

/// A name that C gave.
///
/// # Safety
/// Callers must guarantee that it is null or ends with a zero.
unsafe fn key<'a>(given: *const c_char) -> Result<&'a str, Fault> {
    // SAFETY: the caller's guarantee.
    let key = unsafe { text("key", given)? };
    if key.starts_with(RESERVED) {
        return Err(Fault::new(libc::EINVAL, format!("keys that begin with `{RESERVED}` are the library's own")));
    }
    Ok(key)
}

/// Names memory that `shmalloc` gave this process, in place of what had the name, whose memory goes. `key` has 1 to 56 bytes of
/// UTF-8 and does not begin with `cenote/`. From here on the memory is the region's and outlives this process. What this process
/// has written to it is flushed. -EINVAL: such a key, or a pointer to anything else.
///
/// # Safety
/// `key` must end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxl_shm_put(key: *const c_char, pointer: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: the caller's guarantee.
        let (region, key) = (region()?, unsafe { self::key(key)? });
        region.pool.name_memory(key, offset_of(&region, pointer)?)?;
        Ok(0)
    })
}

/// Finds memory by its name. -ENOENT: there is none. The pointer is good until somebody destroys the name or gives it to other
/// memory, which who shares the memory must agree on, by a lock for instance.
///
/// # Safety
/// `key` must end with a zero, and `pointer` must be null or point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxl_shm_get(key: *const c_char, pointer: *mut *mut c_void) -> c_int {
    status(|| {
        // SAFETY: the caller's guarantee.
        let (region, key) = (region()?, unsafe { self::key(key)? });
        let found = region.pool.find_memory(key)?;
        let (offset, _) = found.ok_or_else(|| Fault::new(libc::ENOENT, format!("nothing is named `{key}`")))?;
        let found = pointer_to(&region, offset)?;
        if !pointer.is_null() {
            // SAFETY: the caller's guarantee. It may lie anywhere, as a member of a packed structure does.
            unsafe { pointer.write_unaligned(found) };
        }
        Ok(0)
    })
}

/// Takes a name away, and the memory with it. -ENOENT: there is none.
///
/// # Safety
/// `key` must end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxl_shm_destroy(key: *const c_char) -> c_int {
    status(|| {
        // SAFETY: the caller's guarantee.
        let (region, key) = (region()?, unsafe { self::key(key)? });
        match region.pool.destroy_object(key)? {
            true => Ok(0),
            false => Err(Fault::new(libc::ENOENT, format!("nothing is named `{key}`"))),
        }
    })
}
