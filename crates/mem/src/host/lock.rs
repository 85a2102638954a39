//! Robust locks with deadlines, for processes of any PID namespace.
//!
//! A lock is one word: the number of the opener that holds it, and two bits. Each opener of an area
//! has its own number, which it holds by a kernel lock on one byte of the area's file
//! ([`super::slot`]). The kernel drops that lock when the process has ended, and it means the same
//! in every PID namespace. The C library's robust mutexes identify an owner by its thread id, which
//! repeats between namespaces: the kernel then marks the lock of a living owner as abandoned when a
//! waiter with the same id dies.
//!
//! - *Take*: the number replaces zero. A waiter sets [`WAITED`] and sleeps on the word.
//! - *Release*: zero replaces the number; the releaser wakes one waiter if there may be one.
//! - *Death*: a waiter wakes every [`LOOK_EVERY`] and tries to lock the owner's byte. If that
//!   succeeds, the owner is dead, and no other opener can get its number before the waiter unlocks
//!   the byte. Meanwhile the waiter replaces the number by [`ABANDONED`], which the next holder
//!   sees. An opener that gets a dead opener's number first does the same for all locks that still
//!   hold it.
//!
//! A process that dies between releasing and waking delays a waiter by [`LOOK_EVERY`].

use super::{Backing, HostArea, Inner, slot};
use cenote_base::Deadline;
use rustix::thread::futex;
use std::fs::File;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A waiter may sleep on the word.
const WAITED: u32 = 1 << 31;
/// The lock is free, and its last holder did not release it.
const ABANDONED: u32 = 1 << 30;
/// The holder's number; 0: the lock is free.
const OWNER: u32 = ABANDONED - 1;

/// Time that a waiter sleeps before it checks whether the owner lives.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Loads of a held lock before a waiter sleeps. Most locks are held for less time than a system
/// call takes.
const SPINS: u32 = 64;

/// A lock was not obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockTimeout {
    /// Another holder kept it until the deadline.
    #[error("host lock {index} was not free before the deadline")]
    Passed {
        /// Number of the lock.
        index: u32,
    },
    /// This process was forked by the one that opened the area.
    #[error("host lock {index} belongs to the parent of this process; open the region in this process")]
    Inherited {
        /// Number of the lock.
        index: u32,
    },
}

/// A held lock, released on drop.
#[derive(Debug)]
pub struct HostLock<'a> {
    area: &'a HostArea,
    index: u32,
    abandoned: bool,
    /// Identifies the holding thread.
    not_send: PhantomData<*const ()>,
}

impl HostLock<'_> {
    /// Whether the last holder died or gave up while it held the lock, so that the guarded state
    /// may be half changed. Only this guard is told: a guard that is dropped without a repair
    /// leaves the damage unreported. If this holder dies, the next one is told again.
    #[must_use]
    pub const fn abandoned(&self) -> bool {
        self.abandoned
    }

    /// Number of the lock.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Releases the lock as a death would: the next holder learns that the guarded state may be
    /// half changed.
    pub fn abandon(self) {
        self.release(ABANDONED);
        std::mem::forget(self);
    }

    fn release(&self, left: u32) {
        if self.area.is_inherited() {
            return;
        }
        let word = word(&self.area.inner, self.index);
        let was = word.swap(left, Ordering::Release);
        debug_assert_eq!(was & OWNER, self.area.inner.number.get(), "a held lock bears its holder's number");
        if was & WAITED != 0 {
            wake(word);
        }
    }
}

impl Drop for HostLock<'_> {
    fn drop(&mut self) {
        self.release(0);
    }
}

fn word(area: &Inner, index: u32) -> &AtomicU32 {
    #[allow(clippy::cast_ptr_alignment, reason = "the layout gives every lock a line of its own")]
    // SAFETY: the layout lies inside the mapping, which lives as long as `area`. The word is
    // accessed as an atomic only.
    unsafe {
        AtomicU32::from_ptr(area.at(area.layout.lock(index)).cast())
    }
}

fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

/// Takes a lock; without a deadline only if it is free.
pub(super) fn lock(area: &HostArea, index: u32, deadline: Option<Deadline>) -> Result<HostLock<'_>, LockTimeout> {
    if area.is_inherited() {
        return Err(LockTimeout::Inherited { index });
    }
    let word = word(&area.inner, index);
    let number = area.inner.number.get();
    // After a sleep other waiters may still sleep, so the release must wake one.
    let mut waited = 0;
    let mut looks = 0;
    loop {
        let seen = word.load(Ordering::Relaxed);
        if seen & OWNER == 0 {
            let taken = number | (seen & WAITED) | waited;
            if word.compare_exchange_weak(seen, taken, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Ok(HostLock { area, index, abandoned: seen & ABANDONED != 0, not_send: PhantomData });
            }
            continue;
        }
        let patience = deadline.map_or(Duration::ZERO, |deadline| deadline.block_for());
        if patience.is_zero() {
            // The owner may be dead, and a caller that never waits would not learn it otherwise.
            if seize(&area.inner, word, seen) {
                continue;
            }
            return Err(LockTimeout::Passed { index });
        }
        looks += 1;
        if looks < SPINS {
            std::hint::spin_loop();
            continue;
        }
        let marked = seen | WAITED;
        if seen != marked && word.compare_exchange_weak(seen, marked, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            continue;
        }
        waited = WAITED;
        let sleep = patience.min(LOOK_EVERY);
        let timeout = futex::Timespec { tv_sec: 0, tv_nsec: sleep.subsec_nanos().into() };
        let woken = futex::wait(word, futex::Flags::empty(), marked, Some(&timeout));
        if woken == Err(rustix::io::Errno::TIMEDOUT) {
            seize(&area.inner, word, marked);
        }
    }
}

/// Releases a lock if its holder, by the number in `seen`, is dead. Returns whether it did.
fn seize(area: &Inner, word: &AtomicU32, seen: u32) -> bool {
    let owner = seen & OWNER;
    let Backing::File(file) = &area.backing else { return false };
    if owner == area.number.get() {
        return false;
    }
    // The kernel's lock excludes other openers, not other threads of this one.
    let _one = area.seizing.lock().unwrap_or_else(PoisonError::into_inner);
    if !slot::take_number(file, owner) {
        return false;
    }
    leave_abandoned(word, owner);
    slot::give_number(file, owner);
    true
}

/// Marks a lock of `owner` as abandoned, if `owner` still holds it. The caller holds the owner's
/// number.
fn leave_abandoned(word: &AtomicU32, owner: u32) {
    let mut seen = word.load(Ordering::Relaxed);
    while seen & OWNER == owner {
        let left = ABANDONED | (seen & WAITED);
        match word.compare_exchange_weak(seen, left, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return wake(word),
            Err(now) => seen = now,
        }
    }
}

/// A number for a new opener of `file`: the lowest that no living opener has.
pub(super) fn number(file: &File) -> Option<NonZeroU32> {
    (1..=slot::NUMBERS).find(|&number| slot::take_number(file, number)).and_then(NonZeroU32::new)
}

/// Marks locks that the last opener with this number held as abandoned: that opener is dead and has
/// the same number as this one.
pub(super) fn succeed(area: &Inner) {
    for index in 0..area.layout.spec.mutexes {
        leave_abandoned(word(area, index), area.number.get());
    }
}
