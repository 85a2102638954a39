//! Robust mutexes with deadlines.

use super::HostArea;
use cenote_base::Deadline;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

/// A lock was not obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockTimeout {
    /// Somebody held it until the deadline.
    #[error("host lock {index} was not free before the deadline")]
    Passed {
        /// Which lock.
        index: u32,
    },
    /// The C library refuses the mutex. Cannot happen as long as all who lock it do so through this crate,
    /// because a lock of a dead owner is made consistent before anything else.
    #[error("host lock {index} is beyond repair (error {code}); remove the host area")]
    Broken {
        /// Which lock.
        index: u32,
        /// `errno` of the C library's call.
        code: i32,
    },
}

/// A held lock, released on drop by the thread that took it.
#[derive(Debug)]
pub struct HostLock<'a> {
    area: &'a HostArea,
    index: u32,
    abandoned: bool,
    /// A mutex is unlocked by the thread that locked it, so the guard must not travel.
    not_send: PhantomData<*const ()>,
}

impl HostLock<'_> {
    /// Whether the last owner died while it held the lock, so that what the lock guards may be half
    /// changed. Only this guard is told: who drops it without a repair leaves the damage unannounced. Who
    /// dies with it announces it again.
    #[must_use]
    pub const fn abandoned(&self) -> bool {
        self.abandoned
    }

    /// Which lock this is.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for HostLock<'_> {
    fn drop(&mut self) {
        // SAFETY: the mutex lies in the mapping that `area` keeps, and this thread holds it: guards are
        // made by `lock` only and never leave their thread.
        let code = unsafe { libc::pthread_mutex_unlock(mutex(self.area, self.index)) };
        debug_assert_eq!(code, 0, "a held mutex can be unlocked");
        self.area.0.locks_held.fetch_sub(1, Ordering::Release);
    }
}

fn mutex(area: &HostArea, index: u32) -> *mut libc::pthread_mutex_t {
    #[allow(clippy::cast_ptr_alignment, reason = "the layout gives every mutex a line of its own")]
    area.0.at(area.0.layout.mutex(index)).cast()
}

/// Takes a mutex; without a deadline only if it is free now.
pub(super) fn lock(area: &HostArea, index: u32, deadline: Option<Deadline>) -> Result<HostLock<'_>, LockTimeout> {
    let mutex = mutex(area, index);
    // SAFETY: `mutex` was initialised before the area was ready, and lies in the mapping that `area` keeps.
    let code = unsafe {
        match deadline {
            Some(deadline) => wait(mutex, deadline),
            None => libc::pthread_mutex_trylock(mutex),
        }
    };
    let abandoned = match code {
        0 => false,
        libc::EOWNERDEAD => {
            // SAFETY: this thread holds the mutex, whose last owner died. Without this call, unlocking
            // would make it unusable for ever.
            let code = unsafe { libc::pthread_mutex_consistent(mutex) };
            debug_assert_eq!(code, 0, "a mutex of a dead owner can be made consistent");
            true
        }
        libc::ETIMEDOUT | libc::EBUSY => return Err(LockTimeout::Passed { index }),
        code => return Err(LockTimeout::Broken { index, code }),
    };
    area.0.locks_held.fetch_add(1, Ordering::Relaxed);
    Ok(HostLock { area, index, abandoned, not_send: PhantomData })
}

#[cfg(target_env = "gnu")]
const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;
/// musl times mutexes by the wall clock only; setting it back lengthens a wait.
#[cfg(not(target_env = "gnu"))]
const CLOCK: libc::clockid_t = libc::CLOCK_REALTIME;

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    /// glibc 2.30 and later; the libc crate lacks it.
    fn pthread_mutex_clocklock(
        mutex: *mut libc::pthread_mutex_t,
        clock: libc::clockid_t,
        until: *const libc::timespec,
    ) -> libc::c_int;
}

/// Waits for a mutex and returns the C library's code.
///
/// # Safety
/// Callers must guarantee that `mutex` is an initialised mutex that stays mapped.
unsafe fn wait(mutex: *mut libc::pthread_mutex_t, deadline: Deadline) -> libc::c_int {
    let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `until` is a valid place for the answer.
    let code = unsafe { libc::clock_gettime(CLOCK, &raw mut until) };
    assert_eq!(code, 0, "every Linux has this clock");
    let remaining = deadline.remaining();
    until.tv_nsec += i64::from(remaining.subsec_nanos());
    let carry = until.tv_nsec / 1_000_000_000;
    until.tv_nsec %= 1_000_000_000;
    until.tv_sec =
        until.tv_sec.saturating_add(carry).saturating_add(i64::try_from(remaining.as_secs()).unwrap_or(i64::MAX));
    // SAFETY: the caller's guarantee; `until` is a normalised time.
    unsafe {
        #[cfg(target_env = "gnu")]
        return pthread_mutex_clocklock(mutex, CLOCK, &raw const until);
        #[cfg(not(target_env = "gnu"))]
        return libc::pthread_mutex_timedlock(mutex, &raw const until);
    }
}
