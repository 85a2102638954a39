//! Lamport's bakery over words that one host writes each: no manager and no atomic instruction between hosts.
//!
//! A host says that it chooses, takes a number higher than all it sees, then waits for every lower one. Number and
//! "choosing" share one word, because as two they could be seen torn. Giving up is leaving: only the host itself writes
//! its word, so a waiter that cancels at its deadline confuses nobody. First come, first served; a host waits for
//! at most one turn of each other.
//!
//! **Nobody else.** Whoever says that it chooses, and then sees no ticket at all, goes in at once: whoever comes later sees
//! it choosing, and waits. So a lock that nobody else wants costs one line shown and one look at each host's, and
//! Lamport's second round is for those who meet.
//!
//! A silent host is passed over once it is marked dead (see [`crate::hosts`]). If it lives after all, two
//! may be inside: then hits and space suffer, bytes do not.

use super::{Entered, INCARNATION, Intent, Late, TICKET_MASK, Tier};
use crate::pool::Inner;
use cenote_base::fault;
use cenote_mem::{Fabric, HostLocal, Offset};
use std::time::Duration;

pub(super) struct Bakery;

/// Ticket of a host that is about to take a number, or went in without one.
const CHOOSING: u64 = 1;
/// Number of a host that met nobody: lower than all that are taken. Others may see it choosing instead, for as long as it is inside.
const ALONE: u64 = 1;

const fn ticket(number: u64) -> u64 {
    number << 1
}

/// Whether a host with this number need not wait for another's ticket.
fn goes_before(number: u64, host: u64, other_ticket: u64, other: u64) -> bool {
    let other_number = other_ticket >> 1;
    other_ticket == 0
        || (other_ticket == CHOOSING && fault::sabotaged("bakery.choosing-ignored"))
        || (other_ticket & CHOOSING == 0 && (other_number > number || (other_number == number && other > host)))
}

impl Tier for Bakery {
    fn enter<F: Fabric, H: HostLocal>(
        &self,
        inner: &Inner<F, H>,
        lock: u64,
        intent: Intent,
        inherited: bool,
        deadline: Duration,
    ) -> Result<Entered, Late> {
        let own = inner.layout.lock(lock, inner.host);
        let incarnation = |line: u64| inner.fabric.load(Offset::new(line + INCARNATION));
        let others: Vec<u64> = (0..inner.layout.max_hosts).filter(|&host| host != inner.host).collect();
        let lines: Vec<u64> = others.iter().map(|&host| inner.layout.lock(lock, host)).collect();
        let held = inner.ticket(lock, inner.host);
        let still_granted = inherited && held != 0 && held & CHOOSING == 0 && incarnation(own) == inner.incarnation();
        let number = if still_granted {
            held >> 1
        } else {
            inner.announce(lock, intent, CHOOSING);
            inner.fabric.refresh(&lines);
            let highest = others.iter().map(|&host| inner.ticket(lock, host)).max().unwrap_or(0);
            if highest == 0 {
                // For the processes of this host, of which the next must know whether a dead one was inside.
                if !fault::sabotaged("bakery.alone-unsaid") {
                    inner.set_ticket(lock, ticket(ALONE));
                }
                return Ok(Entered::default());
            }
            // A number from a rotten line must not end all others.
            let number = ((highest >> 1).max(ALONE) + 1).min(TICKET_MASK >> 2);
            inner.set_ticket(lock, ticket(number));
            number
        };
        inner.fabric.publish(&[own]);
        inner.fabric.refresh(&lines);
        let mut dead = Vec::new();
        for (&other, &line) in others.iter().zip(&lines) {
            let mut looks = 0;
            let (mut ticket, mut life) = (inner.ticket(lock, other), incarnation(line));
            while !goes_before(number, inner.host, ticket, other) {
                // It has not said yet that it chooses, and may have died at it: when it has, it sees this host's number.
                if life == 0 {
                    break;
                }
                if inner.is_dead(other, life) {
                    dead.push(other);
                    break;
                }
                if inner.area.now() >= deadline {
                    return Err(Late);
                }
                inner.wait(looks);
                looks += 1;
                [ticket, life, _] = inner.lock_words(lock, other);
            }
        }
        Ok(Entered { dead, contended: true })
    }

    fn leave<F: Fabric, H: HostLocal>(&self, inner: &Inner<F, H>, lock: u64) {
        // Others may learn of it late: they only wait longer.
        inner.retract(lock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_number_goes_first_and_hosts_break_ties() {
        assert!(goes_before(5, 1, 0, 0), "nobody");
        assert!(!goes_before(5, 1, CHOOSING, 0), "it may take a lower one");
        assert!(goes_before(5, 1, ticket(6), 0) && !goes_before(5, 1, ticket(4), 2));
        assert!(goes_before(5, 1, ticket(5), 2) && !goes_before(5, 1, ticket(5), 0));
        assert!(!goes_before(ALONE + 1, 0, ticket(ALONE), 1), "who met nobody is inside");
    }
}
