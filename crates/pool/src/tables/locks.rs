//! Which locks users have allocated: a bit for each (docs/internals/format.md#given-locks).
//!
//! A caller that frees a lock holds it, so a held lock stays allocated.

use super::Tables;
use crate::error::PoolError;
use crate::region::layout::{FIXED_LOCKS, GIVEN_LOCKS};
use crate::sync::{Holds, Tables as Lock, User};
use cenote_base::fault::{self, Point};
use cenote_mem::{Fabric, HostLocal, Offset};

impl<F: Fabric, H: HostLocal> Tables<F, H> {
    /// Allocates the lowest free lock of users.
    pub fn give_lock(&self, _: &Holds<Lock>) -> Result<u64, PoolError> {
        let region = &self.region;
        let given = self.locks.given_words();
        let fact = ": free a lock that no program uses";
        let full = PoolError::TableFull { table: "lock", rows: GIVEN_LOCKS, fact };
        let (index, word) = given.iter().enumerate().find(|(_, word)| **word != u64::MAX).ok_or(full)?;
        let bit = word.trailing_ones();
        let at = region.layout.given_locks().nth(index).expect("as many as were read");
        region.fabric.write_word(Offset::new(at), word | 1 << bit);
        fault::point(Point::LockGiven);
        Ok(FIXED_LOCKS + 64 * index as u64 + u64::from(bit))
    }

    /// Frees a lock that its caller holds.
    pub fn take_lock_back(&self, _: &Holds<Lock>, lock: &Holds<User>) {
        let Some(number) = lock.number().checked_sub(FIXED_LOCKS) else { return };
        let region = &self.region;
        let (index, bit) = ((number / 64) as usize, number % 64);
        let word = self.locks.given_words()[index];
        let at = region.layout.given_locks().nth(index).expect("users have this lock");
        region.fabric.write_word(Offset::new(at), word & !(1 << bit));
        fault::point(Point::LockTakenBack);
    }
}
