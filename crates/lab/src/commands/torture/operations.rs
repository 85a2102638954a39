//! The operations of children, and the reported counters of their hosts.

use cenote_pool::Counter;
use std::collections::BTreeMap;

/// An operation of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Operation {
    Put,
    PutDuplicate,
    PutNoRoom,
    GetWhole,
    GetMissing,
    GetStale,
    GetDamaged,
    Evicted,
    Pin,
    PinGone,
    PinRead,
    ObjectPut,
    ObjectNoRoom,
    ObjectRead,
    ObjectMissing,
    ObjectDestroyed,
    Increment,
    IncrementLate,
    Fork,
}

/// Names in reports, in the order of [`Operation`].
const NAMES: [&str; 19] = [
    "put",
    "put_duplicate",
    "put_no_room",
    "get_whole",
    "get_missing",
    "get_stale",
    "get_damaged",
    "evicted",
    "pin",
    "pin_gone",
    "pin_read",
    "object_put",
    "object_no_room",
    "object_read",
    "object_missing",
    "object_destroyed",
    "increment",
    "increment_late",
    "fork",
];

/// Number of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations(pub [u64; NAMES.len()]);

impl Operations {
    pub const fn add(&mut self, operation: Operation, count: u64) {
        self.0[operation as usize] += count;
    }

    pub fn add_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, count)| *sum += count);
    }

    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub fn by_name(&self) -> BTreeMap<&'static str, u64> {
        NAMES.into_iter().zip(self.0).collect()
    }
}

/// Reported counters of hosts.
pub const COUNTERS: [Counter; 7] = [
    Counter::LockTimeouts,
    Counter::LocksAbandoned,
    Counter::WorkersRecovered,
    Counter::ReservationsRecovered,
    Counter::HostsDeclaredDead,
    Counter::ChunksAdopted,
    Counter::Damaged,
];
