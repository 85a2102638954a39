//! Locks for data that programs keep in the region (TraCT §4.1 (1)).

use super::Pool;
use crate::error::PoolError;
use crate::region::layout::{FIXED_LOCKS, USER_LOCKS};
use crate::sync::{Guard, User};
use cenote_base::fault::{self, Point};
use cenote_mem::{Fabric, HostArea, HostLocal};
use std::time::Duration;

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Number of locks of users: numbers from 0 on.
    pub const USER_LOCKS: u16 = USER_LOCKS as u16;
    /// Locks below this number need no allocation: programs agree on the use of each.
    pub const FIXED_LOCKS: u16 = FIXED_LOCKS as u16;

    /// Allocates a lock that no program uses. It stays allocated until it is freed, also if this
    /// process dies.
    ///
    /// # Errors
    /// All locks are allocated, or the table was busy for too long.
    pub fn allocate_lock(&self) -> Result<u16, PoolError> {
        let member = &*self.0;
        let tables = member.tables.lock_alive()?;
        Ok(member.tables.give_lock(&tables)? as u16)
    }

    /// Frees a lock that [`Pool::allocate_lock`] returned to any process. A process that waits for
    /// it is refused.
    ///
    /// # Errors
    /// It is not allocated, a process holds it ([`PoolError::Lock`]), or the table was busy for too
    /// long.
    pub fn free_lock(&self, number: u16) -> Result<(), PoolError> {
        let member = &*self.0;
        if number < Self::FIXED_LOCKS {
            return Err(PoolError::Config(format!("lock {number} is not allocated, and cannot be freed")));
        }
        // Held meanwhile, so that a holder finds its lock allocated for as long as it holds it.
        let held = self.lock_user(number, Duration::ZERO)?;
        let tables = member.tables.lock_alive()?;
        member.tables.take_lock_back(&tables, &held.0)?;
        // Before the table: the next process that is given this lock finds it free.
        drop(held);
        drop(tables);
        Ok(())
    }

    /// Takes a lock that all processes of all hosts share, for data that the caller keeps in the
    /// region. After taking it, refresh that data; before releasing it, publish changes by calls of
    /// the fabric that leave no line dirty ([`Fabric::publish_lines`], [`Fabric::publish_word`]).
    ///
    /// # Errors
    /// The lock was not free within `timeout`, it does not exist, or it is not allocated.
    pub fn lock_user(&self, number: u16, timeout: Duration) -> Result<UserLock<'_, F, H>, PoolError> {
        let member = &*self.0;
        if member.region.area.is_inherited() {
            return Err(PoolError::Inherited);
        }
        let refuse = |fact: String| Err(PoolError::Config(fact));
        if number >= Self::USER_LOCKS {
            return refuse(format!("there is no lock {number}; users have {}", Self::USER_LOCKS));
        }
        let not_given = || refuse(format!("lock {number} is not allocated: it was freed, or never given out"));
        if !member.locks.is_given(number.into()) {
            return not_given();
        }
        let guard = member.locks.lock_user(number.into(), timeout.into()).map_err(PoolError::lock("user"))?;
        // It may have been freed during the wait.
        if !member.locks.is_given(number.into()) {
            return not_given();
        }
        fault::point(Point::UserLocked);
        Ok(UserLock(guard))
    }
}

/// A held lock of users; see [`Pool::lock_user`].
pub struct UserLock<'a, F: Fabric, H: HostLocal = HostArea>(Guard<'a, User, F, H>);

impl<F: Fabric, H: HostLocal> UserLock<'_, F, H> {
    /// Whether a holder died with it, so that the data may be half changed. The next holder learns
    /// it, and so does one of each other host.
    #[must_use]
    pub const fn abandoned(&self) -> bool {
        self.0.abandoned
    }

    /// Releases it with the data half changed: the next holder learns it, as if this one had died.
    pub fn abandon(mut self) {
        self.0.gives_up = true;
    }
}
