//! A host's memory as a trait: the pool runs the same code over [`HostArea`] and over a simulated
//! host with simulated time, deaths and schedules. Atomics are a trait as well, so that a model
//! checker can substitute its own and explore memory orders.

use super::{HostArea, HostError, HostLock, LockTimeout, SlotClaim};
use std::collections::hash_map::RandomState;
use std::fmt::Debug;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// An atomic word: the methods of the standard library's atomics that host-local memory needs.
pub trait Word<T>: Send + Sync {
    /// As [`AtomicU64::load`].
    fn load(&self, order: Ordering) -> T;

    /// As [`AtomicU64::store`].
    fn store(&self, value: T, order: Ordering);

    /// As [`AtomicU64::swap`].
    fn swap(&self, value: T, order: Ordering) -> T;

    /// As [`AtomicU64::fetch_add`].
    fn fetch_add(&self, value: T, order: Ordering) -> T;

    /// As [`AtomicU64::fetch_min`].
    fn fetch_min(&self, value: T, order: Ordering) -> T;

    /// As [`AtomicU64::fetch_max`].
    fn fetch_max(&self, value: T, order: Ordering) -> T;

    /// As [`AtomicU64::compare_exchange`].
    ///
    /// # Errors
    /// The current value differs; it is returned.
    fn compare_exchange(&self, current: T, new: T, success: Ordering, failure: Ordering) -> Result<T, T>;
}

macro_rules! word {
    ($atomic:ty, $value:ty) => {
        impl Word<$value> for $atomic {
            #[inline]
            fn load(&self, order: Ordering) -> $value {
                Self::load(self, order)
            }

            #[inline]
            fn store(&self, value: $value, order: Ordering) {
                Self::store(self, value, order);
            }

            #[inline]
            fn swap(&self, value: $value, order: Ordering) -> $value {
                Self::swap(self, value, order)
            }

            #[inline]
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                Self::fetch_add(self, value, order)
            }

            #[inline]
            fn fetch_min(&self, value: $value, order: Ordering) -> $value {
                Self::fetch_min(self, value, order)
            }
            #[inline]
            fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                Self::fetch_max(self, value, order)
            }

            #[inline]
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                Self::compare_exchange(self, current, new, success, failure)
            }
        }
    };
}

word!(AtomicU32, u32);
word!(AtomicU64, u64);

/// Memory, locks, liveness and time that the processes of one host share.
pub trait HostLocal: Clone + Debug + Send + Sync + 'static {
    /// A held lock, released on drop.
    type Lock<'a>: HeldLock
    where
        Self: 'a;
    /// A claimed slot, free again on drop or with the process.
    type Claim: Send + Sync + 'static;
    /// A word of 32 bits.
    type Word32: Word<u32>;
    /// A word of 64 bits.
    type Word64: Word<u64>;

    /// 32-bit words.
    fn words32(&self) -> &[Self::Word32];

    /// 64-bit words.
    fn words64(&self) -> &[Self::Word64];

    /// The 64-bit words from this one on as plain atomics, for code without this trait: an eviction
    /// policy's state.
    fn bare_words64(&self, from: usize) -> &[AtomicU64];

    /// Takes lock `index`, waiting at most `timeout`.
    ///
    /// # Errors
    /// The timeout passed, or this process inherited the memory.
    fn lock(&self, index: u32, timeout: Duration) -> Result<Self::Lock<'_>, LockTimeout>;

    /// Claims `slot` for the life of the claim or of this process. `None` if it is claimed.
    ///
    /// # Errors
    /// A system call failed.
    fn claim_slot(&self, slot: u32) -> Result<Option<Self::Claim>, HostError>;

    /// Whether `slot` has a living claim.
    fn slot_alive(&self, slot: u32) -> bool;

    /// Whether this process was forked by the one that opened this memory, so that it owns none of
    /// it.
    fn is_inherited(&self) -> bool {
        false
    }

    /// Time since an origin that all processes of the host share until the next boot; never
    /// decreases.
    fn now(&self) -> Duration;

    /// Wall-clock time since 1970, for reports.
    fn unix_time(&self) -> Duration;

    /// Wall-clock seconds since 1970.
    fn unix_seconds(&self) -> u64 {
        self.unix_time().as_secs()
    }

    /// Pauses between two loads of a word that another host will change; `looks` counts them.
    fn pause(&self, looks: u32);

    /// Gives the processor up for some milliseconds, in a wait of seconds.
    fn rest(&self) {
        self.pause(u32::MAX);
    }

    /// A random number for the maker of this memory, who names it so. 0: only this process can reach
    /// the memory, so nothing can be taken for it.
    fn draw_name(&self) -> u64 {
        0
    }
}

/// A lock that reports whether its last holder died.
pub trait HeldLock: Sized {
    /// Whether the guarded state may be half changed. Only this holder is told.
    fn abandoned(&self) -> bool;

    /// Releases the lock as a death would, so that the next holder repairs.
    fn abandon(self);
}

impl HeldLock for HostLock<'_> {
    fn abandoned(&self) -> bool {
        Self::abandoned(self)
    }

    fn abandon(self) {
        Self::abandon(self);
    }
}

/// Time between two looks in a wait of seconds.
const REST: Duration = Duration::from_millis(5);

/// Number of loads before a waiter yields its processor.
const BUSY_LOOKS: u32 = 64;

impl HostLocal for HostArea {
    type Lock<'a> = HostLock<'a>;
    type Claim = SlotClaim;
    type Word32 = AtomicU32;
    type Word64 = AtomicU64;

    fn words32(&self) -> &[AtomicU32] {
        Self::words32(self)
    }

    fn words64(&self) -> &[AtomicU64] {
        Self::words64(self)
    }

    fn bare_words64(&self, from: usize) -> &[AtomicU64] {
        &Self::words64(self)[from..]
    }

    fn lock(&self, index: u32, timeout: Duration) -> Result<HostLock<'_>, LockTimeout> {
        Self::lock(self, index, self.clock.after(timeout))
    }

    fn claim_slot(&self, slot: u32) -> Result<Option<SlotClaim>, HostError> {
        Self::claim_slot(self, slot)
    }

    fn slot_alive(&self, slot: u32) -> bool {
        Self::slot_alive(self, slot)
    }

    fn is_inherited(&self) -> bool {
        Self::is_inherited(self)
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.now_ns())
    }

    fn unix_time(&self) -> Duration {
        self.clock.unix()
    }

    fn pause(&self, looks: u32) {
        if looks < BUSY_LOOKS {
            std::hint::spin_loop();
        } else {
            // There may be more waiters than processors, and the holder may be waiting for this
            // one.
            std::thread::yield_now();
        }
    }

    fn rest(&self) {
        std::thread::sleep(self.clock.after(REST).block_for());
    }

    fn draw_name(&self) -> u64 {
        if self.is_private() { 0 } else { RandomState::new().hash_one(std::process::id()).max(1) }
    }
}
