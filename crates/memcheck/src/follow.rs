//! Followers of the event log. Each host has one, which all its processes share.

use crate::oracle::Checker;
use crate::scenario::{Actor, SimPool, UNLIKE, names_of};
use cenote_pool::{Resync, Told};
use std::collections::BTreeSet;

/// Most polls until a follower must have settled.
const LOOKS_MAX: u32 = 20;
/// Nanoseconds between two polls.
const LOOK_NS: u64 = 20_000_000;

impl Actor {
    /// Polls once. Returns whether nothing was new and no missing event is pending.
    pub fn follow(&self, pool: &SimPool) -> bool {
        let host = self.process.host();
        let mut follower = self.oracle.notes().followers.remove(&host).unwrap_or_default();
        let followed = match pool.follow(&mut follower) {
            Ok(followed) => followed,
            Err(error) => {
                self.oracle.report(Checker::Events, format!("following the event log failed: {error}"));
                return true;
            }
        };
        // A crashed process loads zeros, so its result means nothing.
        if !self.process.lives(self.process.number()) {
            return true;
        }
        self.process.note(&format!("followed {followed:?}"));
        for event in &followed.events {
            self.number_told(event.told());
        }
        let mut notes = self.oracle.notes();
        notes.events_lost += u64::from(followed.resync == Some(Resync::Lost));
        let is_settled = follower.is_settled() && followed.events.is_empty() && followed.resync.is_none();
        notes.followers.insert(host, follower);
        is_settled
    }

    /// Checks that the follower's set of blocks equals the blocks that this host finds, with the
    /// names under which they were published. No process may change the pool meanwhile.
    pub fn check_followed(&self, pool: &SimPool) {
        let host = self.process.host();
        for look in 0.. {
            if self.follow(pool) {
                break;
            }
            if look == LOOKS_MAX {
                self.oracle.report_unless_lossy(
                    Checker::Events,
                    format!("the follower of host {host} does not settle after {LOOKS_MAX} polls"),
                );
                return;
            }
            if !self.process.sleep(LOOK_NS) {
                return;
            }
        }
        let blocks: Option<Vec<_>> = self.oracle.notes().followers.get(&host).map(|follower| follower.all().collect());
        let Some(blocks) = blocks else { return };
        let mut told: BTreeSet<usize> = blocks.iter().filter_map(|block| self.number_told(block)).collect();
        told.retain(|&number| number < UNLIKE);
        let notes = self.oracle.notes();
        let found: BTreeSet<usize> =
            notes.found.iter().filter(|(other, _)| *other == host).map(|(_, number)| *number).collect();
        drop(notes);
        if told != found && self.process.lives(self.process.number()) {
            let fact = format!("host {host} finds blocks {found:?}, but its follower has {told:?}");
            self.oracle.report_unless_lossy(Checker::Events, fact);
        }
    }

    /// The number of an event's block. Reports a violation if the hash or the names are not its
    /// own.
    fn number_told(&self, told: &Told) -> Option<usize> {
        let number = (told.hash.words()[0] >> 32) as usize;
        let number = number.checked_sub(1).filter(|&number| self.shape.hash(number) == told.hash);
        if number.is_none_or(|number| told.names != names_of(number)) {
            let fact = format!("the follower received {told:?}, which does not match block {number:?}");
            self.oracle.report_unless_lossy(Checker::Events, fact);
        }
        number
    }
}
