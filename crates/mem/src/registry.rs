//! Registered shared mappings and descriptors of this process, for the handlers of `fork`
//! ([`crate::fork`]) and of bus errors ([`crate::bus_error`]).

use crate::fork::ProcessStamp;
use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// What replaces an inherited mapping in a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instead {
    /// The same bytes; stores stay in the child.
    Same,
    /// Zeros.
    Empty,
}

#[derive(Clone, Copy)]
pub(crate) enum Thing {
    Mapping {
        base: *mut u8,
        len: usize,
        file: Option<RawFd>,
        instead: Instead,
        /// Set when part of the memory was found missing. Lives until the registration is dropped.
        lost: *const AtomicBool,
    },
    Descriptor(RawFd),
}

/// Registration of a mapping or a descriptor that children must not inherit as it is. Drop it
/// before the object itself.
#[derive(Debug)]
pub(crate) struct Registration {
    key: u64,
    stamp: ProcessStamp,
    lost: Option<Box<AtomicBool>>,
}

impl Registration {
    /// The mapping of `len` bytes at `base`, shared with others through `file`.
    pub fn mapping(base: *mut u8, len: usize, file: Option<RawFd>, instead: Instead) -> Self {
        let lost = Box::new(AtomicBool::new(false));
        Self::of(Thing::Mapping { base, len, file, instead, lost: &raw const *lost }, Some(lost))
    }

    pub fn descriptor(descriptor: RawFd) -> Self {
        Self::of(Thing::Descriptor(descriptor), None)
    }

    /// Whether part of the mapping was found missing.
    pub fn has_lost(&self) -> bool {
        self.lost.as_ref().is_some_and(|lost| lost.load(Ordering::Relaxed))
    }

    fn of(thing: Thing, lost: Option<Box<AtomicBool>>) -> Self {
        let stamp = ProcessStamp::current();
        let key = REGISTRY.with(|table| {
            table.last += 1;
            table.things.push((table.last, thing));
            table.last
        });
        Self { key, stamp, lost }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.stamp.is_inherited() {
            REGISTRY.with(|table| table.things.retain(|(key, _)| *key != self.key));
        }
    }
}

pub(crate) struct Table {
    pub things: Vec<(u64, Thing)>,
    last: u64,
    /// An empty file.
    pub stand_in: RawFd,
}

/// A lock that the handlers around `fork` can hold across it, which a `Mutex` guard cannot.
pub(crate) struct Registry {
    held: AtomicBool,
    table: UnsafeCell<Table>,
}

// SAFETY: `table` is reached only between `take` and `give`, by one thread at a time.
unsafe impl Sync for Registry {}

pub(crate) static REGISTRY: Registry = Registry {
    held: AtomicBool::new(false),
    table: UnsafeCell::new(Table { things: Vec::new(), last: 0, stand_in: -1 }),
};

impl Registry {
    pub fn take(&self) {
        while self.held.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::thread::yield_now();
        }
    }

    pub fn give(&self) {
        self.held.store(false, Ordering::Release);
    }

    /// The table, for handlers that took the lock before.
    ///
    /// # Safety
    /// Callers must guarantee that they hold the lock for the life of the reference.
    #[allow(clippy::mut_from_ref, reason = "the lock makes it the caller's alone")]
    pub unsafe fn held_table(&self) -> &mut Table {
        // SAFETY: callers guarantee that they hold the lock.
        unsafe { &mut *self.table.get() }
    }

    pub fn with<T>(&self, work: impl FnOnce(&mut Table) -> T) -> T {
        self.take();
        // SAFETY: this thread has the lock; `work` is this module's, and neither forks nor calls
        // this function.
        let done = work(unsafe { &mut *self.table.get() });
        self.give();
        done
    }
}
