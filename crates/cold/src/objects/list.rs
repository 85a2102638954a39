//! The list of objects in memory, and which of them leave.

use crate::backend::Used;
use crate::record::{Name, PAYLOAD_MAX, SECTOR, record_bytes};
use cenote_policy::temperature::{StoredPart, leaving_parts};
use std::collections::{HashMap, HashSet, VecDeque};

/// Part of the limit that a removal leaves free, so that not every write removes.
const FREE_SHARE: u64 = 16;

/// A listed object.
#[derive(Clone, Copy)]
struct Object {
    bytes: u64,
    /// The listing in which it appeared first. Objects of later ones are younger, whatever the store's
    /// clock said when they were written.
    first: u32,
    /// The last listing that had it.
    seen: u32,
    /// Milliseconds since 1970 by the store's clock: the age among objects of one listing.
    modified: u64,
}

#[derive(Default)]
pub struct List {
    objects: HashMap<Name, Object>,
    bytes: u64,
    /// Number of the listing.
    listing: u32,
    /// Objects that were written by this process, for their order.
    written: u64,
    /// Objects that are to be removed.
    leaving: VecDeque<Name>,
    /// The same names: a listing may have them still.
    left: HashSet<Name>,
}

impl List {
    /// Enters an object that this process has written: the youngest of all.
    pub fn enter_own(&mut self, name: Name, bytes: u64) {
        self.forget(&name);
        self.written += 1;
        // A listing that runs may have passed its name.
        let object = Object { bytes, first: self.listing + 1, seen: self.listing, modified: self.written };
        self.bytes += bytes;
        self.objects.insert(name, object);
    }

    /// Enters an object of the listing. One that is no record by its length is left out.
    pub fn enter_listed(&mut self, name: Name, bytes: u64, modified: u64) {
        let is_record =
            bytes >= SECTOR as u64 && bytes.is_multiple_of(SECTOR as u64) && bytes <= record_bytes(PAYLOAD_MAX);
        if !is_record || self.left.contains(&name) {
            return;
        }
        let first = self.objects.get(&name).map_or(self.listing, |known| known.first);
        self.forget(&name);
        self.bytes += bytes;
        self.objects.insert(name, Object { bytes, first, seen: self.listing, modified });
    }

    /// Begins a listing.
    pub fn begin(&mut self) {
        self.listing += 1;
    }

    /// Ends a listing that is complete: what it did not have is gone.
    pub fn end(&mut self) {
        let listing = self.listing;
        self.objects.retain(|_, object| object.seen >= listing);
        self.bytes = self.objects.values().map(|object| object.bytes).sum();
    }

    pub fn bytes_of(&self, name: &Name) -> Option<u64> {
        self.objects.get(name).map(|object| object.bytes)
    }

    pub fn used(&self) -> Used {
        Used { blocks: self.objects.len() as u64, bytes: self.bytes, bytes_max: 0 }
    }

    pub fn forget(&mut self, name: &Name) {
        self.bytes -= self.objects.remove(name).map_or(0, |object| object.bytes);
    }

    /// Lets the oldest objects leave, as many as exceed the limit and a little more; none while it holds.
    pub fn make_room(&mut self, limit: u64) {
        if self.bytes <= limit {
            return;
        }
        let part = |(name, object): (&Name, &Object)| StoredPart {
            key: (object.first, object.modified, *name),
            bytes: object.bytes,
            is_open: false,
        };
        let leaving = leaving_parts(self.objects.iter().map(part).collect(), limit - limit / FREE_SHARE);
        for (_, _, name) in leaving.into_iter().flatten() {
            self.forget(&name);
            self.left.insert(name);
            self.leaving.push_back(name);
        }
    }

    /// The next objects to be removed.
    pub fn take_leaving(&mut self, most: usize) -> Vec<Name> {
        let count = most.min(self.leaving.len());
        self.leaving.drain(..count).collect()
    }

    /// The removal of these objects was tried. One that failed is in the next listing.
    pub fn have_left(&mut self, names: &[Name]) {
        for name in names {
            self.left.remove(name);
        }
    }

    pub fn has_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::BlockHash;

    const BYTES: u64 = SECTOR as u64;

    fn name(number: u8) -> Name {
        Name { namespace: [1; 32], hash: BlockHash([number; 16]) }
    }

    fn numbers(names: &[Name]) -> Vec<u8> {
        names.iter().map(|name| name.hash.0[0]).collect()
    }

    #[test]
    fn the_oldest_objects_make_room() {
        let mut list = List::default();
        list.begin();
        for number in 0..32 {
            list.enter_listed(name(number), BYTES, u64::from(99 - number));
            list.enter_listed(name(number), BYTES, u64::from(99 - number));
        }
        list.make_room(32 * BYTES);
        assert!((list.bytes, list.has_leaving()) == (32 * BYTES, false));
        list.make_room(16 * BYTES);
        let leaving = list.take_leaving(100);
        assert_eq!(numbers(&leaving), (15..32).rev().collect::<Vec<_>>(), "the oldest first, and a little more");
        // A listing that began before has them still.
        list.enter_listed(leaving[0], BYTES, 1);
        assert_eq!(list.used().blocks, 15);
        list.have_left(&leaving);
        list.enter_listed(leaving[0], BYTES, 1);
        assert_eq!(list.used().blocks, 16);
    }

    /// Objects whose time was ahead stayed, and everything new left first.
    #[test]
    fn new_objects_outlive_those_from_the_future() {
        let mut list = List::default();
        list.begin();
        (0..8).for_each(|number| list.enter_listed(name(number), BYTES, u64::MAX));
        list.end();
        (8..12).for_each(|number| list.enter_own(name(number), BYTES));
        list.begin();
        (0..16).for_each(|number| list.enter_listed(name(number), BYTES, if number < 8 { u64::MAX } else { 5 }));
        list.end();
        list.make_room(8 * BYTES);
        assert_eq!(numbers(&list.take_leaving(100)), (0..8).chain([8]).collect::<Vec<_>>());
    }

    #[test]
    fn a_complete_listing_forgets_what_it_lacks_and_keeps_what_was_written_meanwhile() {
        let mut list = List::default();
        list.begin();
        (0..4).for_each(|number| list.enter_listed(name(number), BYTES, 1));
        list.end();
        list.enter_own(name(4), BYTES);
        list.begin();
        list.enter_own(name(5), BYTES);
        (1..3).for_each(|number| list.enter_listed(name(number), BYTES, 1));
        // No records: an error page, and an object of a terabyte.
        list.enter_listed(name(6), BYTES + 1, 1);
        list.enter_listed(name(7), 1 << 40, 1);
        list.end();
        let mut left: Vec<u8> = list.objects.keys().map(|name| name.hash.0[0]).collect();
        left.sort_unstable();
        assert_eq!((left, list.bytes), (vec![1, 2, 5], 3 * BYTES));
    }
}
