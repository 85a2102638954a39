//! What must hold, watched from outside the model: the checkers and what they have found.

use cenote_pool::Follower;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard};

/// Who found something; each ends the program with a code of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Checker {
    /// Wrong bytes, or bytes that do not have their checksum.
    Blocks,
    /// A block that is there cannot be found, or one host finds what another does not.
    Index,
    /// Two inside one lock, or an update lost under it.
    Locks,
    /// Space that is lost or given out twice.
    Allocator,
    /// Something that must succeed in time did not.
    Liveness,
    /// The code under test panicked.
    Panic,
    /// The flight recorder does not tell what happened.
    History,
    /// Who follows the event log believes what is not so.
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

/// Something that does not hold.
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

/// What the processes of a run tell each other behind the model's back.
#[derive(Default)]
pub struct Notes {
    pub violations: Vec<Violation>,
    /// Which process is inside each user lock.
    pub inside: BTreeMap<u8, usize>,
    /// Increments of the counter under each user lock: (begun, finished).
    pub counted: BTreeMap<u8, (u64, u64)>,
    /// Blocks that left when nothing but looking around was to be done.
    pub left: u64,
    /// How many hosts have come to each meeting.
    pub arrived: BTreeMap<u8, usize>,
    /// Blocks that were read damaged, which they may be where a host that was declared dead may still write.
    pub damaged: BTreeSet<usize>,
    /// Which prompts' blocks each host finds when all is quiet: (host, block's number).
    pub found: Vec<(usize, usize)>,
    /// When each host attached after all deaths, in microseconds since 1970.
    pub attached: Vec<(usize, u64)>,
    /// Objects and limits by name.
    pub registers: BTreeMap<String, Register>,
    /// Which row each namespace has, by its label.
    pub namespaces: BTreeMap<String, u16>,
    /// Counts what the processes tell, to know what was before what.
    clock: u64,
    /// What each host sees of the whole region at a meeting.
    pub pictures: Vec<(usize, String)>,
    /// Index entries at a meeting, by host: (all, leading nowhere).
    pub entries: Vec<(usize, (u64, u64))>,
    /// Index entries that led nowhere, at most.
    pub stale_entries: u64,
    /// Readable blocks beside another of the same hash, at most.
    pub duplicates: u64,
    /// Blocks that stayed for a pin when they were to leave. Another of the same hash may have been published meanwhile.
    pub kept: u64,
    /// One host has used all of a limit that is for all.
    pub is_limit_used: bool,
    /// Bytes of a namespace over its quota when all was quiet, at most.
    pub overshoot: u64,
    pub reads_whole: u64,
    pub reads_missed: u64,
    pub pins: u64,
    pub evicted: u64,
    pub lock_timeouts: u64,
    /// Who follows the event log on each host.
    pub followers: BTreeMap<usize, Follower>,
    /// Numbers that were taken for an event and never written.
    pub events_lost: u64,
}

/// Values that were written to one name, when, and whether the writing ended.
#[derive(Default)]
pub struct Register(Vec<Write>);

struct Write {
    value: Option<u64>,
    begun: u64,
    ended: Option<u64>,
}

impl Register {
    /// Whether whoever looked from one time to another may have seen this value: it was written, or was so from the
    /// start, and nobody had written another in between. `None`: there was nothing. `strict`: nobody writes, so
    /// there is no excuse for having found nothing.
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

    /// Somebody begins to write; returns the number of the write.
    pub fn begin_write(&mut self, name: &str, value: Option<u64>) -> usize {
        let begun = self.now();
        let register = self.registers.entry(name.to_owned()).or_default();
        register.0.push(Write { value, begun, ended: None });
        register.0.len() - 1
    }

    /// The writer was told that it is done.
    pub fn end_write(&mut self, name: &str, number: usize) {
        let ended = self.now();
        let register = self.registers.get_mut(name).expect("begun");
        register.0[number].ended = Some(ended);
    }

    /// Whether somebody who looked since `from` may have seen this value.
    pub fn may_be(&mut self, name: &str, value: Option<u64>, from: u64, strict: bool) -> bool {
        let to = self.now();
        self.registers.get(name).map_or(value.is_none(), |register| register.may_be(value, from, to, strict))
    }
}

/// Shared by the processes of a run. Only the one that has the turn touches it, so a run stays deterministic.
#[derive(Default)]
pub struct Oracle {
    notes: Mutex<Notes>,
    /// A host may be taken for dead and live: then blocks may be lost, but never be wrong.
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

    /// Whether blocks and what leads to them may be lost: a host that was taken for dead goes on, or its caches have written.
    pub fn is_lossy(&self) -> bool {
        self.sleepers || !self.notes().damaged.is_empty()
    }

    /// Reports what may happen only where blocks may be lost.
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
    fn a_register_has_the_last_value_or_one_that_was_being_written() {
        let mut notes = Notes::default();
        let may_be = |notes: &mut Notes, value, from| notes.may_be("x", value, from, true);
        assert!(may_be(&mut notes, None, 0) && !may_be(&mut notes, Some(1), 0));
        let first = notes.begin_write("x", Some(1));
        let from = notes.now();
        assert!(may_be(&mut notes, None, from) && may_be(&mut notes, Some(1), from), "either, while it is written");
        notes.end_write("x", first);
        let from_first = notes.now();
        assert!(!may_be(&mut notes, None, from_first) && may_be(&mut notes, Some(1), from_first));
        let second = notes.begin_write("x", Some(2));
        notes.end_write("x", second);
        assert!(may_be(&mut notes, Some(1), from_first), "who looked since before the second write");
        let from = notes.now();
        assert!(!may_be(&mut notes, Some(1), from) && may_be(&mut notes, Some(2), from));
        let lost = notes.begin_write("x", Some(3));
        let from = notes.now();
        assert!(may_be(&mut notes, Some(2), from) && may_be(&mut notes, Some(3), from), "its writer may have died");
        assert!(!may_be(&mut notes, None, from) && notes.may_be("x", None, from, false), "a reader may miss it");
        assert_eq!(lost, 2);
    }
}
