//! Who follows the event log: each host has one follower, which any of its processes looks with.

use crate::oracle::Checker;
use crate::scenario::{Actor, RECOVERED, SimPool, UNLIKE, names_of};
use cenote_pool::Resync;
use std::collections::{BTreeMap, BTreeSet};

/// Looks that a follower may take until it waits for nothing that is missing, and the time between two.
const LOOKS_MAX: u32 = 20;
const LOOK_NS: u64 = 20_000_000;

impl Actor {
    /// Looks once; returns whether nothing was new and nothing is waited for.
    pub fn follow(&self, pool: &SimPool) -> bool {
        let host = self.process.host();
        let mut follower = self.oracle.notes().followers.remove(&host).unwrap_or_default();
        let followed = match pool.follow(&mut follower) {
            Ok(followed) => followed,
            Err(error) => {
                self.oracle.report(Checker::Events, format!("no events: {error}"));
                return true;
            }
        };
        // The dead read zeros.
        if !self.process.lives(self.process.number()) {
            return true;
        }
        self.process.note(&format!("followed {followed:?}"));
        let mut notes = self.oracle.notes();
        notes.events_lost += u64::from(followed.resync == Some(Resync::Lost));
        let is_settled = follower.is_settled() && followed.events.is_empty() && followed.resync.is_none();
        notes.followers.insert(host, follower);
        is_settled
    }

    /// When nobody changes anything, a follower holds for there what this host finds, by the names that it was given.
    pub fn check_followed(&self, pool: &SimPool) {
        let host = self.process.host();
        for look in 0.. {
            if self.follow(pool) {
                break;
            }
            if look == LOOKS_MAX {
                self.oracle.report_unless_sleepers(Checker::Events, format!("host {host} goes on following for ever"));
                return;
            }
            if !self.process.sleep(LOOK_NS) {
                return;
            }
        }
        let numbers = (0..self.shape.universe.max(RECOVERED)).chain(UNLIKE..UNLIKE + self.shape.hosts);
        let known: BTreeMap<_, _> = numbers.map(|number| (self.shape.hash(number), number)).collect();
        let notes = self.oracle.notes();
        let Some(follower) = notes.followers.get(&host) else { return };
        let mut wrong = Vec::new();
        let mut told = BTreeSet::new();
        for block in follower.all() {
            match known.get(&block.hash) {
                Some(&number) if block.names == names_of(number) => drop(told.insert(number)),
                number => wrong.push(format!("a follower was told of {block:?}, which is {number:?}")),
            }
        }
        told.retain(|&number| number < UNLIKE);
        let found: BTreeSet<usize> =
            notes.found.iter().filter(|(other, _)| *other == host).map(|(_, number)| *number).collect();
        drop(notes);
        if told != found {
            wrong.push(format!("host {host} finds {found:?}, and its follower was told of {told:?}"));
        }
        if self.process.lives(self.process.number()) {
            wrong.into_iter().for_each(|fact| self.oracle.report_unless_sleepers(Checker::Events, fact));
        }
    }
}
