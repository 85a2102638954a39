//! Lamport's bakery over words that one host writes each: no manager and no atomic instruction
//! between hosts.
//!
//! A host marks itself as choosing, takes a number above all that it sees, then waits for every
//! lower one. Number and mark share one word, because two words could be seen torn. Giving up is
//! leaving: only the host itself writes its word, so a waiter that stops at its deadline confuses
//! no other. Order is first come, first served; a host waits for at most one turn of each other
//! host.
//!
//! **Alone.** A host that marks itself as choosing and then sees no ticket enters at once: a later
//! host sees the mark and waits. So an uncontended lock costs one published line and one look at
//! each host's line. Lamport's second round runs only under contention.
//!
//! A silent host is passed over once it is marked dead. If it lives after all, two hosts may be
//! inside: then hits and space suffer, bytes do not.

use super::locks::{Entered, INCARNATION, Late, TICKET_MASK, Tier};
use super::{Intent, Locks};
use cenote_base::fault::{self, Mistake};
use cenote_mem::{Fabric, HostLocal, Offset};
use std::time::Duration;

pub(super) struct Bakery;

/// Ticket of a host that is about to take a number, or that entered without one.
const CHOOSING: u64 = 1;
/// Number of a host that entered alone, below all numbers taken. Other hosts may still see it
/// choosing.
const ALONE: u64 = 1;

const fn ticket(number: u64) -> u64 {
    number << 1
}

/// Whether a host with this number need not wait for another's ticket.
fn goes_before(number: u64, host: u64, other_ticket: u64, other: u64) -> bool {
    let other_number = other_ticket >> 1;
    other_ticket == 0
        || (other_ticket == CHOOSING && fault::makes(Mistake::BakeryChoosingIgnored))
        || (other_ticket & CHOOSING == 0 && (other_number > number || (other_number == number && other > host)))
}

impl Bakery {
    /// Enters those of these locks that no other host wants, and leaves the others. This host has
    /// stored its intents.
    pub fn enter_free<F: Fabric, H: HostLocal>(self, locks: &Locks<F, H>, numbers: &[u64]) -> Vec<bool> {
        let region = &locks.region;
        let others = || (0..region.layout.max_hosts).filter(|&host| host != region.host);
        locks.announce_all(numbers, CHOOSING);
        let lines = numbers.iter().flat_map(|&lock| others().map(move |host| region.layout.lock(lock, host)));
        let lines: Vec<u64> = lines.collect();
        region.fabric.refresh(&lines);
        lines.iter().for_each(|&line| region.fabric.prefetch(line));
        let enter = |&lock: &u64| {
            let is_free = others().all(|host| locks.ticket(lock, host) == 0);
            if is_free && !fault::makes(Mistake::BakeryAloneUnsaid) {
                locks.set_ticket(lock, ticket(ALONE));
            }
            is_free
        };
        numbers.iter().map(enter).collect()
    }
}

impl Tier for Bakery {
    fn enter<F: Fabric, H: HostLocal>(
        &self,
        locks: &Locks<F, H>,
        lock: u64,
        intent: Intent,
        inherited: bool,
        deadline: Duration,
    ) -> Result<Entered, Late> {
        let own = locks.region.layout.lock(lock, locks.region.host);
        let incarnation = |line: u64| locks.region.fabric.load(Offset::new(line + INCARNATION));
        let others: Vec<u64> = (0..locks.region.layout.max_hosts).filter(|&host| host != locks.region.host).collect();
        let lines: Vec<u64> = others.iter().map(|&host| locks.region.layout.lock(lock, host)).collect();
        let held = locks.ticket(lock, locks.region.host);
        let still_granted =
            inherited && held != 0 && held & CHOOSING == 0 && incarnation(own) == locks.region.incarnation();
        let number = if still_granted {
            held >> 1
        } else {
            locks.announce(lock, intent, CHOOSING);
            locks.region.fabric.refresh(&lines);
            let highest = others.iter().map(|&host| locks.ticket(lock, host)).max().unwrap_or(0);
            if highest == 0 {
                // For the next process of this host, which must know whether a dead one was inside.
                if !fault::makes(Mistake::BakeryAloneUnsaid) {
                    locks.set_ticket(lock, ticket(ALONE));
                }
                return Ok(Entered::default());
            }
            // A number from a corrupt line must not exhaust the numbers.
            let number = ((highest >> 1).max(ALONE) + 1).min(TICKET_MASK >> 2);
            locks.set_ticket(lock, ticket(number));
            number
        };
        locks.region.fabric.publish(&[own]);
        locks.region.fabric.refresh(&lines);
        let mut dead = Vec::new();
        for (&other, &line) in others.iter().zip(&lines) {
            let mut looks = 0;
            let (mut ticket, mut life) = (locks.ticket(lock, other), incarnation(line));
            while !goes_before(number, locks.region.host, ticket, other) {
                // The other host has not marked itself yet. When it does, it sees this host's
                // number.
                if life == 0 {
                    break;
                }
                if locks.region.is_dead(other, life) {
                    dead.push(other);
                    break;
                }
                if locks.region.area.now() >= deadline {
                    return Err(Late);
                }
                locks.pause(looks);
                looks += 1;
                [ticket, life, _] = locks.lock_words(lock, other);
            }
        }
        Ok(Entered { dead, contended: true })
    }

    fn leave<F: Fabric, H: HostLocal>(&self, locks: &Locks<F, H>, lock: u64) {
        // A host that sees this late only waits longer.
        locks.retract(lock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_ticket_enters_first_and_hosts_break_ties() {
        assert!(goes_before(5, 1, 0, 0), "no other ticket");
        assert!(!goes_before(5, 1, CHOOSING, 0), "it may take a lower one");
        assert!(goes_before(5, 1, ticket(6), 0) && !goes_before(5, 1, ticket(4), 2));
        assert!(goes_before(5, 1, ticket(5), 2) && !goes_before(5, 1, ticket(5), 0));
        assert!(!goes_before(ALONE + 1, 0, ticket(ALONE), 1), "a lone host is inside");
    }
}
