//! Locks that all processes of all hosts contend for (TraCT §4.1 (1)). Which of them are given out is kept in the region.

use crate::errors::{Fault, status};
use crate::region::{Region, region};
use cenote_mem::Mapped;
use cenote_pool::{HostPool, UserLock};
use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A lock of the region, by number: the same in all processes, so it can be kept in the region.
pub type CenoteLock = u32;

/// How long `cxl_shm_acquire_lock` waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// Guards which locks are given out; never given out itself.
const REGISTRY: u8 = 0;

const REGISTRY_KEY: &str = "cenote/locks given out";

/// A lock that is held, and the region that it is of. The lock goes first.
struct Held {
    lock: UserLock<'static, Arc<Mapped>>,
    _count: Count,
}

/// One of the locks of a region that threads hold.
struct Count(Arc<Region>);

impl Drop for Count {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What a thread holds: a lock is released by the thread that took it.
#[derive(Default)]
struct HeldHere(RefCell<BTreeMap<CenoteLock, Held>>);

impl HeldHere {
    /// Without what the thread that forked this process held.
    fn own(&self) -> RefMut<'_, BTreeMap<CenoteLock, Held>> {
        let mut held = self.0.borrow_mut();
        held.retain(|_, held| !held._count.0.is_inherited());
        held
    }
}

impl Drop for HeldHere {
    /// The thread ends, or the process exits, with locks held: what they guard may be half changed.
    fn drop(&mut self) {
        for (_, held) in std::mem::take(self.0.get_mut()) {
            held.lock.abandon();
        }
    }
}

thread_local! {
    static HELD: HeldHere = HeldHere::default();
}

/// Changes which locks are given out, one bit for each.
fn change<T>(pool: &HostPool, change: impl FnOnce(&mut u64) -> Result<T, Fault>) -> Result<T, Fault> {
    let _registry = pool.lock_user(REGISTRY, PATIENCE)?;
    let bytes = pool.get_object(REGISTRY_KEY)?;
    let before = bytes.and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?))).unwrap_or(1);
    let mut given = before;
    let done = change(&mut given)?;
    if given != before {
        pool.put_object(REGISTRY_KEY, &given.to_le_bytes())?;
    }
    Ok(done)
}

fn number(lock: CenoteLock) -> Result<u8, Fault> {
    let known = u8::try_from(lock).ok().filter(|&number| number != REGISTRY && number < HostPool::USER_LOCKS);
    known.ok_or_else(|| Fault::new(libc::EINVAL, format!("there is no lock {lock}")))
}

/// Gives out a lock that nobody has. -ENOSPC: there is none left.
///
/// # Safety
/// `lock` must point to a lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxl_shm_allocate_lock(lock: *mut CenoteLock) -> c_int {
    let allocate = || {
        if lock.is_null() {
            return Err(Fault::new(libc::EINVAL, "no place for the lock was given"));
        }
        let region = region()?;
        let number = change(&region.pool, |given| {
            let free = (1..u32::from(HostPool::USER_LOCKS)).find(|number| *given & 1 << number == 0);
            let number = free.ok_or_else(|| Fault::new(libc::ENOSPC, "all locks of the region are given out"))?;
            *given |= 1 << number;
            Ok(number)
        })?;
        // SAFETY: the caller's guarantee.
        unsafe { lock.write(number) };
        Ok(0)
    };
    status(allocate())
}

/// Takes a lock back that was given out. Nobody may hold it or use it again.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_free_lock(lock: CenoteLock) -> c_int {
    let free = || {
        let number = number(lock)?;
        change(&region()?.pool, |given| {
            if *given & 1 << number == 0 {
                return Err(Fault::new(libc::EINVAL, format!("lock {lock} is not given out")));
            }
            *given &= !(1 << number);
            Ok(0)
        })
    };
    status(free())
}

/// Takes a lock, waiting for a minute at most (-ETIMEDOUT). 1 instead of 0: whoever had it died with it, so what it guards
/// may be half changed. -EDEADLK: this thread has it.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_acquire_lock(lock: CenoteLock) -> c_int {
    acquire(lock, PATIENCE)
}

/// As `cxl_shm_acquire_lock`, waiting for so many milliseconds at most.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_acquire_lock_within(lock: CenoteLock, milliseconds: u32) -> c_int {
    acquire(lock, Duration::from_millis(milliseconds.into()))
}

fn acquire(lock: CenoteLock, timeout: Duration) -> c_int {
    let acquire = || {
        let (number, region) = (number(lock)?, region()?);
        if HELD.with(|held| held.own().contains_key(&lock)) {
            return Err(Fault::new(libc::EDEADLK, format!("this thread holds lock {lock}")));
        }
        // SAFETY: the region is behind an `Arc` that lies beside the guard until after the guard is dropped (`Held`'s
        // fields are dropped in their order; abandoning a guard drops it first), and what an `Arc` points to does not move.
        let pool: &'static HostPool = unsafe { &*std::ptr::from_ref(&region.pool) };
        let guard = pool.lock_user(number, timeout)?;
        let abandoned = guard.abandoned();
        region.held.fetch_add(1, Ordering::AcqRel);
        HELD.with(|held| held.own().insert(lock, Held { lock: guard, _count: Count(region) }));
        Ok(c_int::from(abandoned))
    };
    status(acquire())
}

/// Gives a lock back that this thread holds. -EPERM: it does not.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_release_lock(lock: CenoteLock) -> c_int {
    let held = HELD.with(|held| held.own().remove(&lock));
    status(held.map(|_| 0).ok_or_else(|| Fault::new(libc::EPERM, format!("this thread does not hold lock {lock}"))))
}
