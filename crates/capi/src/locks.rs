//! Locks that all processes of all hosts contend for (TraCT §4.1 (1)). The region records which of
//! them are allocated.
//!
//! The registry's lock guards allocation. A caller that frees a lock holds that lock as well, for a
//! moment. So a held lock stays allocated, and a caller that acquires a lock and finds it allocated
//! may rely on that while it holds it. Order: the registry's lock, then the lock itself, which is
//! only tried.

use crate::errors::{Fault, status};
use crate::region::{Busy, Region, busy_region, region};
use cenote_mem::Mapped;
use cenote_pool::{HostPool, ObjectMark, PoolError, UserLock};
use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A lock of the region, by number. The number is the same in all processes, so it can be stored in
/// the region.
pub type CenoteLock = u32;

/// Longest wait of `cxl_shm_acquire_lock`.
const PATIENCE: Duration = Duration::from_secs(60);

/// Guards the registry; never allocated itself.
const REGISTRY: u8 = 0;

const REGISTRY_KEY: &str = "cenote/locks given out";

/// The registry of a region without a record: only its own lock is allocated.
const NONE_GIVEN: u64 = 1 << REGISTRY;

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

/// The registry as last read, one bit per lock. Reading it again costs a walk over the table of
/// objects.
#[derive(Debug, Default)]
pub struct Given(Mutex<Option<(u64, ObjectMark)>>);

impl Region {
    /// The allocated locks.
    fn given_out(&self) -> Result<u64, Fault> {
        let mut known = self.given.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((given, _)) = known.filter(|(_, mark)| self.pool.is_current(mark)) {
            return Ok(given);
        }
        *known = match self.pool.get_object_marked(REGISTRY_KEY)? {
            Some((bytes, mark)) => Some((u64::from_le_bytes(bytes.try_into().map_err(|_| damaged())?), mark)),
            None => None,
        };
        Ok(known.map_or(NONE_GIVEN, |(given, _)| given))
    }
}

fn damaged() -> Fault {
    Fault::new(libc::EIO, "the region's record of locks is damaged: make the region anew")
}

/// Changes the allocated locks.
fn change<T>(pool: &HostPool, change: impl FnOnce(&mut u64) -> Result<T, Fault>) -> Result<T, Fault> {
    let _registry = pool.lock_user(REGISTRY, PATIENCE)?;
    let before = match pool.get_object(REGISTRY_KEY)? {
        Some(bytes) => u64::from_le_bytes(bytes.try_into().map_err(|_| damaged())?),
        // The registry's lock is held, so no other process replaces the record: an unreadable
        // record stays so. Taking it for an empty one would allocate locks that others use.
        None if pool.object_keys().iter().any(|key| key == REGISTRY_KEY) => return Err(damaged()),
        None => NONE_GIVEN,
    };
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

fn not_given_out(lock: CenoteLock) -> Fault {
    Fault::new(libc::EINVAL, format!("lock {lock} is not given out"))
}

/// Allocates a lock. -ENOSPC: all are allocated. -ENOMEM: the region has no room to record it.
///
/// # Safety
/// `lock` must point to a lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cxl_shm_allocate_lock(lock: *mut CenoteLock) -> c_int {
    status(|| {
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
        // SAFETY: callers guarantee a place for a lock. It may be unaligned, in a packed structure.
        unsafe { lock.write_unaligned(number) };
        Ok(0)
    })
}

/// Frees an allocated lock. -EBUSY: a thread of some process holds it. -EINVAL: it is not
/// allocated. -ENOMEM: the region is full, and the lock stays allocated. A thread that waits for
/// the lock is refused when it gets it.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_free_lock(lock: CenoteLock) -> c_int {
    status(|| {
        let (number, region) = (number(lock)?, region()?);
        let _lock = change(&region.pool, |given| {
            if *given & 1 << number == 0 {
                return Err(not_given_out(lock));
            }
            let held = region.pool.lock_user(number, Duration::ZERO).map_err(|error| match error {
                PoolError::Lock { .. } => Fault::new(libc::EBUSY, format!("lock {lock} is held: release it first")),
                other => other.into(),
            })?;
            *given &= !(1 << number);
            // Held until the registry is written.
            Ok(held)
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
        let is_given = || Ok::<_, Fault>(region.given_out()? & 1 << number != 0);
        if !is_given()? {
            return Err(not_given_out(lock));
        }
        // SAFETY: the region is behind an `Arc` that lives beside the guard until the guard is
        // dropped (`Held` drops its fields in order, and abandoning a guard drops it first). The
        // content of an `Arc` does not move.
        let pool: &'static HostPool = unsafe { &*std::ptr::from_ref(&region.pool) };
        let guard = pool.lock_user(number, timeout)?;
        // A caller that frees a lock holds it, so the lock stays allocated from here on.
        if !is_given()? {
            return Err(not_given_out(lock));
        }
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
