//! Locks that all processes of all hosts contend for (TraCT §4.1 (1)). Which of them are given out is kept in the region.
//!
//! A lock is given out and taken back under the registry's lock. It is taken back by a caller that holds it as well, for a
//! moment: so a lock that somebody holds stays given out, and an acquirer that holds it and finds it given out is right for as
//! long as it holds it. Order: the registry's lock, then the lock itself, which is only tried.

use crate::errors::{Fault, status};
use crate::region::{Busy, Region, busy_region, region};
use cenote_mem::Mapped;
use cenote_pool::{HostPool, ObjectMark, PoolError, UserLock};
use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A lock of the region, by number: the same in all processes, so it can be kept in the region.
pub type CenoteLock = u32;

/// How long `cxl_shm_acquire_lock` waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// Guards which locks are given out; never given out itself.
const REGISTRY: u8 = 0;

const REGISTRY_KEY: &str = "cenote/locks given out";

/// What the registry says before it says anything: its own lock is taken.
const NONE_GIVEN: u64 = 1 << REGISTRY;

/// A lock that is held, and the region that it is of. The lock goes first.
struct Held {
    lock: UserLock<'static, Arc<Mapped>>,
    region: Busy,
}

/// What a thread holds: a lock is released by the thread that took it.
#[derive(Default)]
struct HeldHere(RefCell<BTreeMap<CenoteLock, Held>>);

impl HeldHere {
    /// Without what the thread that forked this process held.
    fn own(&self) -> RefMut<'_, BTreeMap<CenoteLock, Held>> {
        let mut held = self.0.borrow_mut();
        held.retain(|_, held| !held.region.is_inherited());
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

/// What the registry said when it was last read, one bit for each lock: reading it anew costs a walk over the table of objects.
#[derive(Debug, Default)]
pub struct Given(Mutex<Option<(u64, ObjectMark)>>);

impl Region {
    /// Which locks are given out now.
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

/// Changes which locks are given out.
fn change<T>(pool: &HostPool, change: impl FnOnce(&mut u64) -> Result<T, Fault>) -> Result<T, Fault> {
    let _registry = pool.lock_user(REGISTRY, PATIENCE)?;
    let before = match pool.get_object(REGISTRY_KEY)? {
        Some(bytes) => u64::from_le_bytes(bytes.try_into().map_err(|_| damaged())?),
        // Nobody replaces it now, so a record that is there and cannot be read stays so. To take it for none would give
        // locks out that others have.
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

/// Gives out a lock that nobody has. -ENOSPC: there is none left. -ENOMEM: the region is full, and has no room to record it.
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
        // SAFETY: the caller's guarantee. It may lie anywhere, as a member of a packed structure does.
        unsafe { lock.write_unaligned(number) };
        Ok(0)
    })
}

/// Takes a lock back that was given out. -EBUSY: a thread of some process holds it. -EINVAL: it is not given out. -ENOMEM: the
/// region is full, and the lock stays given out. Nobody may use it again: a thread that waits for it is refused when it gets it.
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
            // Kept until the registry says so.
            Ok(held)
        })?;
        Ok(0)
    })
}

/// Takes a lock, waiting for a minute at most (-ETIMEDOUT). 1 instead of 0: whoever had it died with it, so what it guards
/// may be half changed. -EDEADLK: this thread has it. -EINVAL: it is not given out, or no longer.
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
    status(|| {
        let (number, region) = (number(lock)?, busy_region()?);
        if HELD.with(|held| held.own().contains_key(&lock)) {
            return Err(Fault::new(libc::EDEADLK, format!("this thread holds lock {lock}")));
        }
        let is_given = || Ok::<_, Fault>(region.given_out()? & 1 << number != 0);
        if !is_given()? {
            return Err(not_given_out(lock));
        }
        // SAFETY: the region is behind an `Arc` that lies beside the guard until after the guard is dropped (`Held`'s
        // fields are dropped in their order; abandoning a guard drops it first), and what an `Arc` points to does not move.
        let pool: &'static HostPool = unsafe { &*std::ptr::from_ref(&region.pool) };
        let guard = pool.lock_user(number, timeout)?;
        // Whoever frees a lock holds it, so what is said now stays so.
        if !is_given()? {
            return Err(not_given_out(lock));
        }
        let abandoned = guard.abandoned();
        HELD.with(|held| held.own().insert(lock, Held { lock: guard, region }));
        Ok(c_int::from(abandoned))
    })
}

/// Gives a lock back that this thread holds. -EPERM: it does not.
#[unsafe(no_mangle)]
pub extern "C" fn cxl_shm_release_lock(lock: CenoteLock) -> c_int {
    status(|| {
        let held = HELD.with(|held| held.own().remove(&lock));
        held.map(|_| 0).ok_or_else(|| Fault::new(libc::EPERM, format!("this thread does not hold lock {lock}")))
    })
}
