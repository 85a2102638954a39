//! The checkers and the violations that they found. The oracle's state lies outside the model.

use crate::memory::Known;
use cenote_pool::Follower;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard};

/// The property that a violation breaks. Each ends the program with its own exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Checker {
    /// A read returned wrong bytes, or bytes do not match their checksum.
    Blocks,
    /// A lookup misses a published block, or two hosts find different blocks.
    Index,
    /// Two processes hold one lock, or an update under it was lost.
    Locks,
    /// Space leaked, or was allocated twice.
    Allocator,
    /// An operation did not succeed in time.
    Liveness,
    /// The code under test panicked.
    Panic,
    /// The flight recorder lacks an event.
    History,
    /// A follower of the event log has a wrong set of blocks.
    Events,
}

impl Checker {
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Blocks => 10,
            Self::Index => 11,
            Self::Locks => 12,
            Self::Allocator => 13,
            Self::Liveness => 14,
            Self::Panic => 15,
            Self::History => 18,
            Self::Events => 19,
        }
    }
}

/// A property that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub checker: Checker,
    pub fact: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.checker, self.fact)
    }
}

/// State that the processes of a run share outside the simulated memory.
#[derive(Default)]
pub struct Notes {
    pub violations: Vec<Violation>,
    /// The process inside each user lock.
    pub inside: BTreeMap<u8, usize>,
    /// Increments of the counter under each user lock: (begun, finished).
    pub counted: BTreeMap<u8, (u64, u64)>,
    /// Number of blocks evicted since the hosts recorded what they find. Such blocks may be missing
    /// later.
    pub left: u64,
    /// Number of hosts that have arrived at each meeting.
    pub arrived: BTreeMap<u8, usize>,
    /// Blocks that were read damaged. That is allowed where a host that was declared dead may still
    /// write.
    pub damaged: BTreeSet<usize>,
    /// Blocks that each host reads whole while no process changes the pool: (host, block number).
    pub found: Vec<(usize, usize)>,
    /// The time at which each host attached after the crashes: (host, microseconds since 1970).
    pub attached: Vec<(usize, u64)>,
    /// Writes to objects and quotas, by name.
    pub registers: BTreeMap<String, Register>,
    /// The row of each namespace, by label.
    pub namespaces: BTreeMap<String, u16>,
    /// Namespaces that processes have open, by row: process and label.
    pub holders: BTreeMap<u16, BTreeMap<usize, String>>,
    /// Logical clock that orders the calls of the oracle.
    clock: u64,
    /// Each host's summary of the region at a meeting.
    pub pictures: Vec<(usize, String)>,
    /// Memory of users that some process has allocated and that no process is changing.
    pub pieces: Vec<Known>,
    /// Most pieces of memory that processes may have died with.
    pub pieces_unsure: u64,
    /// Locks that a process has allocated and not freed.
    pub locks: BTreeSet<u16>,
    /// Those of them that any process may free.
    pub locks_kept: Vec<u16>,
    /// Index entries at a meeting, by host: (all, stale).
    pub entries: Vec<(usize, (u64, u64))>,
    /// Largest number of stale index entries of any check.
    pub stale_entries: u64,
    /// Largest number of readable blocks beyond one per hash.
    pub duplicates: u64,
    /// Evictions prevented by a pin. Another block of the same hash may have been published
    /// meanwhile.
    pub kept: u64,
    /// Whether host 0 has used up the joint quota.
    pub is_limit_used: bool,
    /// Largest number of bytes by which a namespace exceeded its quota while no process published.
    pub overshoot: u64,
    pub reads_whole: u64,
    pub reads_missed: u64,
    pub pins: u64,
    /// Blocks that remote readers found: taken whole, and changed meanwhile or refused.
    pub remote_whole: u64,
    pub remote_stale: u64,
    /// Blocks that some process began to publish: (fingerprint of the namespace, block number).
    pub published: BTreeSet<([u8; 32], usize)>,
    pub evicted: u64,
    pub lock_timeouts: u64,
    /// The follower of the event log of each host.
    pub followers: BTreeMap<usize, Follower>,
    /// Number of resynchronizations because of a lost event: its number was taken and never
    /// written.
    pub events_lost: u64,
}

/// All writes to one name, with their values and times.
#[derive(Default)]
pub struct Register(Vec<Write>);

struct Write {
    value: Option<u64>,
    begun: u64,
    ended: Option<u64>,
}

impl Register {
    /// Whether a read between times `from` and `to` may return this value. It may if the value was
    /// written before `to`, or is the initial `None`, and no later write was complete at `from`.
    /// Unless `strict`, a read that overlaps a write may also return `None`: no value.
    fn may_be(&self, value: Option<u64>, from: u64, to: u64, strict: bool) -> bool {
        let always = Write { value: None, begun: 0, ended: Some(0) };
        let overwritten = |ended: u64| {
            let mut between = self.0.iter().filter(|write| write.begun > ended);
            between.any(|write| write.ended.is_some_and(|ended| ended < from))
        };
        let missed = value.is_none()
            && !strict
            && self.0.iter().any(|write| write.begun < to && write.ended.is_none_or(|ended| ended > from));
        let mut written = self.0.iter().chain([&always]).filter(|write| write.value == value && write.begun < to);
        missed || written.any(|write| write.ended.is_none_or(|ended| !overwritten(ended)))
    }
}

impl Notes {
    pub fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Records the start of a write. Returns its number.
    pub fn begin_write(&mut self, name: &str, value: Option<u64>) -> usize {
        let begun = self.now();
        let register = self.registers.entry(name.to_owned()).or_default();
        register.0.push(Write { value, begun, ended: None });
        register.0.len() - 1
    }

    /// Records the successful return of a write.
    pub fn end_write(&mut self, name: &str, number: usize) {
        let ended = self.now();
        let register = self.registers.get_mut(name).expect("begun");
        register.0[number].ended = Some(ended);
    }

    /// Whether a read between `from` and now may return this value.
    pub fn may_be(&mut self, name: &str, value: Option<u64>, from: u64, strict: bool) -> bool {
        let to = self.now();
        self.registers.get(name).map_or(value.is_none(), |register| register.may_be(value, from, to, strict))
    }
}

/// The notes and rules of a run, shared by its processes. Only the process that has the turn
/// accesses them, so runs are deterministic.
#[derive(Default)]
pub struct Oracle {
    notes: Mutex<Notes>,
    /// Whether live hosts may be declared dead. Then blocks may be lost, but never be wrong.
    pub sleepers: bool,
}

impl Oracle {
    pub fn new(sleepers: bool) -> Self {
        Self { notes: Mutex::default(), sleepers }
    }

    pub fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub fn report(&self, checker: Checker, fact: impl Into<String>) {
        self.notes().violations.push(Violation { checker, fact: fact.into() });
    }

    /// Whether blocks and their index entries may be lost: a host that was declared dead may be
    /// running or may have written.
    pub fn is_lossy(&self) -> bool {
        self.sleepers || !self.notes().damaged.is_empty()
    }

    /// Reports a violation, unless blocks may be lost.
    pub fn report_unless_lossy(&self, checker: Checker, fact: impl Into<String>) {
        if !self.is_lossy() {
            self.report(checker, fact);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_may_return_the_last_value_or_one_being_written() {
        let mut notes = Notes::default();
        let may_be = |notes: &mut Notes, value, from| notes.may_be("x", value, from, true);
        assert!(may_be(&mut notes, None, 0) && !may_be(&mut notes, Some(1), 0));
        let first = notes.begin_write("x", Some(1));
        let from = notes.now();
        assert!(may_be(&mut notes, None, from) && may_be(&mut notes, Some(1), from), "both values, during the write");
        notes.end_write("x", first);
        let from_first = notes.now();
        assert!(!may_be(&mut notes, None, from_first) && may_be(&mut notes, Some(1), from_first));
        let second = notes.begin_write("x", Some(2));
        notes.end_write("x", second);
        assert!(may_be(&mut notes, Some(1), from_first), "the read began before the second write");
        let from = notes.now();
        assert!(!may_be(&mut notes, Some(1), from) && may_be(&mut notes, Some(2), from));
        let lost = notes.begin_write("x", Some(3));
        let from = notes.now();
        assert!(may_be(&mut notes, Some(2), from) && may_be(&mut notes, Some(3), from), "its writer may have crashed");
        assert!(
            !may_be(&mut notes, None, from) && notes.may_be("x", None, from, false),
            "a read during the write may miss the object"
        );
        assert_eq!(lost, 2);
    }
}
