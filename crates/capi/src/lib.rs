//! Roof: `libcenote`, the region for programs in C.
//!
//! TraCT's calls (§4.1: locks, memory, objects, offsets) and CXL-SpecKV's (§3.6.1: memory with
//! hints), on the same pool as all other users. One region per process, as in both papers. Calls
//! return 0, or a negative error number of errno.h; those that return pointers, NULL.
//! [`cenote_last_error`] returns the text of a thread's last error.
#![allow(clippy::disallowed_methods, reason = "programs in C have the machine's clock")]

mod blocks;
mod errors;
mod locks;
mod memory;
mod objects;
mod region;
mod rows;
mod speckv;

pub use blocks::{CenoteBlock, CenoteNamespace, cenote_namespace, cenote_publish};
pub use errors::cenote_last_error;
pub use locks::{
    CenoteLock, cxl_shm_acquire_lock, cxl_shm_acquire_lock_within, cxl_shm_allocate_lock, cxl_shm_free_lock,
    cxl_shm_release_lock,
};
pub use memory::{cenote_flush, clflush, cxl_shm_get_offset, cxl_shm_get_ptr, shfree, shmalloc};
pub use objects::{cxl_shm_destroy, cxl_shm_get, cxl_shm_put};
pub use region::{cenote_close, cenote_create, cenote_open};
pub use rows::{CenoteRow, CenoteRowShape, CenoteRows, cenote_gather, cenote_pin_rows, cenote_unpin_rows};
pub use speckv::{cxl_access, cxl_free, cxl_malloc};
