//! A host's memory for one thread. Time advances only while a call waits, so that a wait of ten
//! seconds costs nothing and is measured.

use cenote_mem::HostLocal;
use cenote_mem::host::{HeldLock, HostError, HostSpec, LockTimeout};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::time::Duration;

/// The time of all hosts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(Arc<Times>);

/// Both in nanoseconds.
#[derive(Debug, Default)]
struct Times {
    now: AtomicU64,
    waited: AtomicU64,
}

impl Clock {
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.now.load(Relaxed))
    }

    /// The part of all time that passed in waits.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.0.waited.load(Relaxed))
    }

    pub fn advance(&self, time: Duration) {
        self.0.now.fetch_add(u64::try_from(time.as_nanos()).expect("a few seconds"), Relaxed);
    }

    fn wait(&self, time: Duration) {
        self.advance(time);
        self.0.waited.fetch_add(u64::try_from(time.as_nanos()).expect("a few seconds"), Relaxed);
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ThreadHost(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    spec: HostSpec,
    words32: Vec<AtomicU32>,
    words64: Vec<AtomicU64>,
    locks: Vec<AtomicU8>,
    slots: Vec<AtomicBool>,
    clock: Clock,
}

const FREE: u8 = 0;
const HELD: u8 = 1;
/// Its last holder died.
const ABANDONED: u8 = 2;

/// Time of a load of a word after the first busy ones, if it is not the awaited one.
const PAUSE: Duration = Duration::from_millis(20);
const BUSY_LOOKS: u32 = 16;

impl ThreadHost {
    pub fn new(spec: HostSpec, clock: Clock) -> Self {
        let mutexes = spec.mutexes as usize;
        Self(Arc::new(Shared {
            spec,
            words32: (0..spec.words32).map(|_| AtomicU32::new(0)).collect(),
            words64: (0..spec.words64).map(|_| AtomicU64::new(0)).collect(),
            locks: (0..mutexes).map(|_| AtomicU8::new(FREE)).collect(),
            slots: (0..spec.slots).map(|_| AtomicBool::new(false)).collect(),
            clock,
        }))
    }

    pub fn spec(&self) -> HostSpec {
        self.0.spec
    }

    /// Makes the next holder of a lock believe that the last one died with it.
    pub fn abandon(&self, index: u64) {
        let lock = &self.0.locks[index as usize % self.0.locks.len()];
        let _ = lock.compare_exchange(FREE, ABANDONED, Relaxed, Relaxed);
    }
}

pub(crate) struct ThreadLock<'a> {
    lock: &'a AtomicU8,
    abandoned: bool,
}

impl HeldLock for ThreadLock<'_> {
    fn abandoned(&self) -> bool {
        self.abandoned
    }

    fn abandon(self) {
        self.lock.store(ABANDONED, Relaxed);
        std::mem::forget(self);
    }
}

impl Drop for ThreadLock<'_> {
    fn drop(&mut self) {
        self.lock.store(FREE, Relaxed);
    }
}

pub(crate) struct ThreadClaim {
    host: Arc<Shared>,
    slot: usize,
}

impl Drop for ThreadClaim {
    fn drop(&mut self) {
        self.host.slots[self.slot].store(false, Relaxed);
    }
}

impl HostLocal for ThreadHost {
    type Lock<'a> = ThreadLock<'a>;
    type Claim = ThreadClaim;
    type Word32 = AtomicU32;
    type Word64 = AtomicU64;

    fn words32(&self) -> &[AtomicU32] {
        &self.0.words32
    }

    fn words64(&self) -> &[AtomicU64] {
        &self.0.words64
    }

    fn bare_words64(&self, from: usize) -> &[AtomicU64] {
        &self.0.words64[from..]
    }

    fn lock(&self, index: u32, timeout: Duration) -> Result<ThreadLock<'_>, LockTimeout> {
        let lock = &self.0.locks[index as usize];
        let before = lock.swap(HELD, Relaxed);
        if before == HELD {
            // There is one thread, so the holder waits for this call: fail at once.
            self.0.clock.wait(timeout);
            return Err(LockTimeout::Passed { index });
        }
        Ok(ThreadLock { lock, abandoned: before == ABANDONED })
    }

    fn claim_slot(&self, slot: u32) -> Result<Option<ThreadClaim>, HostError> {
        let claimed = self.0.slots[slot as usize].swap(true, Relaxed);
        Ok((!claimed).then(|| ThreadClaim { host: Arc::clone(&self.0), slot: slot as usize }))
    }

    fn slot_alive(&self, slot: u32) -> bool {
        self.0.slots[slot as usize].load(Relaxed)
    }

    fn now(&self) -> Duration {
        self.0.clock.now()
    }

    fn unix_time(&self) -> Duration {
        Duration::from_secs(1_700_000_000) + self.0.clock.now()
    }

    fn pause(&self, looks: u32) {
        if looks.is_multiple_of(BUSY_LOOKS) {
            super::world::grant_locks();
        }
        self.0.clock.wait(if looks < BUSY_LOOKS { Duration::from_micros(1) } else { PAUSE });
    }
}
