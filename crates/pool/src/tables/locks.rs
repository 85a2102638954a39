//! Which locks users have allocated: a bit for each (docs/internals/format.md#given-locks).
//!
//! A caller that frees a lock holds it, so a held lock stays allocated.

use super::{HeldTables, Tables, Thing};
use crate::error::PoolError;
use crate::region::layout::{FIXED_LOCKS, GIVEN_LOCKS};
use crate::sync::{Holds, User};
use cenote_base::fault::{self, Point};
use cenote_mem::{Fabric, HostLocal, Offset};

impl<F: Fabric, H: HostLocal> Tables<F, H> {
    /// Allocates the lowest free lock of users.
    pub fn give_lock(&self, tables: &HeldTables<'_, F, H>) -> Result<u64, PoolError> {
        let region = &self.region;
        let given = self.locks.given_words();
        let fact = ": free a lock that no program uses";
        let full = PoolError::TableFull { table: "lock", rows: GIVEN_LOCKS, fact };
        let has_free = |&(index, word): &(u64, &u64)| *word != u64::MAX && !tables.leaves_alone(Thing::Locks(index));
        let (index, word) = (0_u64..).zip(&given).find(has_free).ok_or(full)?;
        self.claim(tables, Thing::Locks(index))?;
        let bit = word.trailing_ones();
        let at = region.layout.given_locks().nth(index as usize).expect("as many as were read");
        region.fabric.write_word(Offset::new(at), word | 1 << bit);
        fault::point(Point::LockGiven);
        Ok(FIXED_LOCKS + 64 * index + u64::from(bit))
    }

    /// Frees a lock that its caller holds.
    pub fn take_lock_back(&self, tables: &HeldTables<'_, F, H>, lock: &Holds<User>) -> Result<(), PoolError> {
        let Some(number) = lock.number().checked_sub(FIXED_LOCKS) else { return Ok(()) };
        let region = &self.region;
        let (index, bit) = (number / 64, number % 64);
        self.claim(tables, Thing::Locks(index))?;
        let word = self.locks.given_words()[index as usize];
        let at = region.layout.given_locks().nth(index as usize).expect("users have this lock");
        region.fabric.write_word(Offset::new(at), word & !(1 << bit));
        fault::point(Point::LockTakenBack);
        Ok(())
    }
}
