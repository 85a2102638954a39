//! Locks that all processes of all hosts contend for (TraCT §4.1 (1)). The pool records which of
//! them are allocated; this module records which thread holds which.

use crate::errors::{Fault, status};
use crate::region::{Busy, busy_region, region};
use cenote_mem::Mapped;
use cenote_pool::{HostPool, PoolError, UserLock};
use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

/// A lock of the region, by number. The number is the same in all processes, so it can be stored in
/// the region.
pub type CenoteLock = u32;

/// Longest wait of `cxl_shm_acquire_lock`.
const PATIENCE: Duration = Duration::from_secs(60);

/// A held lock and its region. The lock is dropped first.
struct Held {
    lock: UserLock<'static, Arc<Mapped>>,
    region: Busy,
}

/// Locks that this thread holds. Only the thread that took a lock releases it.
#[derive(Default)]
struct HeldHere(RefCell<BTreeMap<CenoteLock, Held>>);

impl HeldHere {
    /// Forgets locks of the thread that forked this process.
    fn own(&self) -> RefMut<'_, BTreeMap<CenoteLock, Held>> {
        let mut held = self.0.borrow_mut();
        held.retain(|_, held| !held.region.is_inherited());
        held
    }
}

impl Drop for HeldHere {
    /// The thread ends, or the process exits, with locks held: the state that they guard may be
    /// half changed.
    fn drop(&mut self) {
        for (_, held) in std::mem::take(self.0.get_mut()) {
            held.lock.abandon();
        }
    }
}

thread_local! {
    static HELD: HeldHere = HeldHere::default();
}

/// The pool's number of a lock that `cxl_shm_allocate_lock` can return. Numbers below are for
/// programs that agree on them, and 0 is none.
fn number(lock: CenoteLock) -> Result<u16, Fault> {
    let given = HostPool::FIXED_LOCKS..HostPool::USER_LOCKS;
    let number = u16::try_from(lock).ok().filter(|number| given.contains(number));
    number.ok_or_else(|| Fault::new(libc::EINVAL, format!("there is no lock {lock}")))
}

/// Allocates one of 1,024 locks. It needs no memory of the region, and stays allocated until a
/// process of any host frees it. -ENOSPC: all are allocated.
///
/// # Safety
/// `lock` must point to a lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxl_shm_allocate_lock(lock: *mut CenoteLock) -> c_int {
    status(|| {
        if lock.is_null() {
            return Err(Fault::new(libc::EINVAL, "no place for the lock was given"));
        }
        let number = region()?.pool.allocate_lock()?;
        // SAFETY: callers guarantee a place for a lock. It may be unaligned, in a packed structure.
        unsafe { lock.write_unaligned(number.into()) };
        Ok(0)
    })
}

/// Frees an allocated lock. -EBUSY: a thread of some process holds it. -EINVAL: it is not
/// allocated. A thread that waits for the lock is refused when it gets it.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_free_lock(lock: CenoteLock) -> c_int {
    status(|| {
        let (number, region) = (number(lock)?, region()?);
        region.pool.free_lock(number).map_err(|error| match error {
            PoolError::Lock { lock: "user" } => {
                Fault::new(libc::EBUSY, format!("lock {lock} is held: release it first"))
            }
            other => other.into(),
        })?;
        Ok(0)
    })
}

/// Takes a lock, waiting for a minute at most (-ETIMEDOUT). Returns 1 instead of 0 if its last
/// holder died with it: the guarded state may be half changed. -EDEADLK: this thread holds it.
/// -EINVAL: it is not allocated, or was freed during the wait.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_acquire_lock(lock: CenoteLock) -> c_int {
    acquire(lock, PATIENCE)
}

/// As `cxl_shm_acquire_lock`, waiting for this many milliseconds at most.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_acquire_lock_within(lock: CenoteLock, milliseconds: u32) -> c_int {
    acquire(lock, Duration::from_millis(milliseconds.into()))
}

fn acquire(lock: CenoteLock, timeout: Duration) -> c_int {
    status(|| {
        let (number, region) = (number(lock)?, busy_region()?);
        if HELD.with(|held| held.own().contains_key(&lock)) {
            return Err(Fault::new(libc::EDEADLK, format!("this thread holds lock {lock}")));
        }
        // SAFETY: the region is behind an `Arc` that lives beside the guard until the guard is
        // dropped (`Held` drops its fields in order, and abandoning a guard drops it first). The
        // content of an `Arc` does not move.
        let pool: &'static HostPool = unsafe { &*std::ptr::from_ref(&region.pool) };
        let guard = pool.lock_user(number, timeout)?;
        let abandoned = guard.abandoned();
        HELD.with(|held| held.own().insert(lock, Held { lock: guard, region }));
        Ok(c_int::from(abandoned))
    })
}

/// Releases a lock that this thread holds. -EPERM: it does not hold it.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_release_lock(lock: CenoteLock) -> c_int {
    status(|| {
        let held = HELD.with(|held| held.own().remove(&lock));
        held.map(|_| 0).ok_or_else(|| Fault::new(libc::EPERM, format!("this thread does not hold lock {lock}")))
    })
}
