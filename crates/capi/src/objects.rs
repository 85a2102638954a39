//! Memory by names that are valid on all hosts (TraCT §4.1 (3)).

use crate::errors::{Fault, status, text};
use crate::memory::{offset_of, pointer_to};
use crate::region::region;
use std::ffi::{c_char, c_int, c_void};

/// Prefix of the names that the project's own programs use.
const RESERVED: &str = "cenote/";

/// A name from C.
///
/// # Safety
/// Callers must guarantee that it is null or ends with a zero.
unsafe fn key<'a>(given: *const c_char) -> Result<&'a str, Fault> {
    // SAFETY: callers guarantee that it is null or ends with a zero.
    let key = unsafe { text("key", given)? };
    if key.starts_with(RESERVED) {
        return Err(Fault::new(libc::EINVAL, format!("keys that begin with `{RESERVED}` are the library's own")));
    }
    Ok(key)
}

/// Names memory that `shmalloc` returned to any process. It replaces the memory that had the name,
/// which is freed. `key` has 1 to 56 bytes of UTF-8 and does not begin with `cenote/`. Other
/// processes find the memory by its name. This host's stores to it are flushed. -EINVAL: another
/// key, or another pointer. -ENOSPC: 1,023 keys have names.
///
/// # Safety
/// `key` must end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxl_shm_put(key: *const c_char, pointer: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: callers guarantee that `key` ends with a zero.
        let (region, key) = (region()?, unsafe { self::key(key)? });
        region.pool.name_memory(key, offset_of(&region, pointer)?)?;
        Ok(0)
    })
}

/// Finds memory by its name. -ENOENT: there is none. The pointer is valid until a process destroys
/// the name or gives it to other memory; the processes that share the memory must agree on that,
/// for example by a lock.
///
/// # Safety
/// `key` must end with a zero, and `pointer` must be null or point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxl_shm_get(key: *const c_char, pointer: *mut *mut c_void) -> c_int {
    status(|| {
        // SAFETY: callers guarantee that `key` ends with a zero.
        let (region, key) = (region()?, unsafe { self::key(key)? });
        let found = region.pool.find_memory(key)?;
        let (offset, _) = found.ok_or_else(|| Fault::new(libc::ENOENT, format!("nothing is named `{key}`")))?;
        let found = pointer_to(&region, offset)?;
        if !pointer.is_null() {
            // SAFETY: callers guarantee a place for a pointer. It may be unaligned, in a packed
            // structure.
            unsafe { pointer.write_unaligned(found) };
        }
        Ok(0)
    })
}

/// Removes a name and frees its memory. -ENOENT: there is none.
///
/// # Safety
/// `key` must end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxl_shm_destroy(key: *const c_char) -> c_int {
    status(|| {
        // SAFETY: callers guarantee that `key` ends with a zero.
        let (region, key) = (region()?, unsafe { self::key(key)? });
        match region.pool.destroy_object(key)? {
            true => Ok(0),
            false => Err(Fault::new(libc::ENOENT, format!("nothing is named `{key}`"))),
        }
    })
}
