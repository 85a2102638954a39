//! Memory beside the region: counters that the pool's user locks guard, and each child's number of
//! increments and of pauses of its host.
//!
//! A counter is two words that are equal whenever its lock is free: a holder raises the one, then
//! the other. Before a child asks for a lock, it records the intention, and afterwards the result.
//! So at the end every increment is known, except those of children that died in between.

use cenote_console::failure::Failure;
use cenote_mem::{Fabric, Flush, LINE, MapOptions, Mapped, Mapping, Offset, RegionSource};

/// Locks that children contend for.
pub const LOCKS: u8 = 3;

/// Most children of the ledger.
pub const CHILDREN_MAX: u64 = 256;

const BYTES: u64 = (1 + LOCKS as u64 + CHILDREN_MAX) * LINE;

/// The first line's only word: 1 when the run is over.
const STOP: u64 = 0;

// Words of a child's line.
const STARTED: u64 = 0;
const FINISHED: u64 = 8;
const UNCERTAIN: u64 = 16;
const PAUSES: u64 = 24;

/// The ledger as one process maps it.
pub struct Ledger(Mapped);

/// The balance of a run's increments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Increments {
    /// In the counters.
    pub counted: u64,
    /// That children finished.
    pub finished: u64,
    /// Of children that died in between: they may be in the counters or not.
    pub uncertain: u64,
}

impl Increments {
    /// Increments that the counters lack, or have too many.
    pub const fn wrong(self) -> u64 {
        self.finished.saturating_sub(self.counted) + self.counted.saturating_sub(self.finished + self.uncertain)
    }
}

impl Ledger {
    pub fn create(source: &RegionSource, flush: Flush) -> Result<Self, Failure> {
        let options = MapOptions { numa_node: None, huge_pages: false, prefault: false };
        Ok(Self(Mapped::new(Mapping::create(source, BYTES.next_multiple_of(4096), 0o600, &options)?, flush)?))
    }

    pub fn open(source: &RegionSource, flush: Flush) -> Result<Self, Failure> {
        let options = MapOptions { numa_node: None, huge_pages: false, prefault: false };
        Ok(Self(Mapped::new(Mapping::open(source, &options)?, flush)?))
    }

    fn read(&self, line: u64, word: u64) -> u64 {
        self.0.refresh(&[line]);
        self.0.load(Offset::new(line + word))
    }

    fn write(&self, line: u64, word: u64, value: u64) {
        self.0.store(Offset::new(line + word), value);
        self.0.publish(&[line]);
    }

    /// Tells the children to end.
    pub fn stop(&self) {
        self.write(STOP, 0, 1);
    }

    pub fn is_stopped(&self) -> bool {
        self.read(STOP, 0) != 0
    }

    const fn counter(lock: u8) -> u64 {
        (1 + lock as u64) * LINE
    }

    /// Raises a counter under its lock, which the caller holds; calls `between` in the middle.
    /// `repair`: a holder died, so the words may differ. The error reports words that differ
    /// although they must not.
    pub fn increment(&self, lock: u8, repair: bool, between: impl FnOnce()) -> Result<(), String> {
        let line = Self::counter(lock);
        let (first, second) = (self.read(line, 0), self.read(line, 8));
        self.write(line, 0, first + 1);
        between();
        self.write(line, 8, first + 1);
        if first == second || repair { Ok(()) } else { Err(format!("counter {lock} was {first} and {second}")) }
    }

    const fn child(child: u64) -> u64 {
        (1 + LOCKS as u64 + child) * LINE
    }

    /// A child's new life begins, or its last is over: an unfinished increment of the one before is
    /// uncertain.
    pub fn settle(&self, child: u64) {
        let line = Self::child(child);
        let (started, finished) = (self.read(line, STARTED), self.read(line, FINISHED));
        self.write(line, UNCERTAIN, self.read(line, UNCERTAIN) + (started - finished));
        self.write(line, STARTED, finished);
    }

    pub fn started(&self, child: u64) {
        let line = Self::child(child);
        self.write(line, STARTED, self.read(line, STARTED) + 1);
    }

    /// The increment ended, or did not begin because the lock timed out.
    pub fn finished(&self, child: u64, done: bool) {
        let line = Self::child(child);
        if done {
            self.write(line, FINISHED, self.read(line, FINISHED) + 1);
        } else {
            self.write(line, STARTED, self.read(line, FINISHED));
        }
    }

    /// Whether a child waits for a lock, or holds one.
    pub fn is_unfinished(&self, child: u64) -> bool {
        let line = Self::child(child);
        self.read(line, STARTED) != self.read(line, FINISHED)
    }

    /// A child's host is stopped, so long that others declare it dead.
    pub fn paused(&self, child: u64) {
        let line = Self::child(child);
        self.write(line, PAUSES, self.read(line, PAUSES) + 1);
    }

    /// How often a child's host was stopped so long.
    pub fn pauses(&self, child: u64) -> u64 {
        self.read(Self::child(child), PAUSES)
    }

    /// The balance, when all children have ended and are settled.
    pub fn balance(&self, children: u64) -> Increments {
        let sum = |word: u64| (0..children).map(|child| self.read(Self::child(child), word)).sum();
        Increments {
            counted: (0..LOCKS).map(|lock| self.read(Self::counter(lock), 0)).sum(),
            finished: sum(FINISHED),
            uncertain: sum(UNCERTAIN),
        }
    }
}
