//! TraCT's two-tier lock (§3.3) by events: a manager scans a slot per lock and host in shared memory.
//!
//! A host writes *waiting* into its slot and reads the slot until the manager has written *granted*. It
//! keeps the lock for a while and writes *idle*. The manager reads one slot after another, and grants a
//! lock that no host has to the first host that waits, after the one that had it. A process takes its
//! host's local lock first, so a host has at most one request per lock; here it has one request at a
//! time. Each read and each write of shared memory takes one access, because no cache may keep a slot.

use crate::kernel::{Calendar, Time};
use crate::quantiles::Histogram;
use crate::workload::exponential;
use cenote_base::prng::Prng;

/// A lock service and its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedLocks {
    /// Hosts, each with a slot per lock.
    pub hosts: u32,
    /// Locks.
    pub locks: u32,
    /// Nanoseconds of an access to shared memory.
    pub access_ns: Time,
    /// Nanoseconds that a host keeps a lock.
    pub hold_ns: Time,
    /// Mean nanoseconds between a host's release and its next request; exponential.
    pub think_ns: Time,
}

/// Nanoseconds from a request until its host knows that it has the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockLatency {
    /// Mean.
    pub mean_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Idle,
    Waiting,
    Granted,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The host begins a request.
    Request(u32),
    /// The host's write of a state arrives.
    Write(u32, Slot),
    /// The host's read of its slot ends.
    Poll(u32),
    /// The manager's read of a slot ends.
    Scan(u32),
    /// The manager's grant of a slot arrives.
    Grant(u32),
}

/// A host's request: its lock, and when it began.
#[derive(Clone, Copy, Debug, Default)]
struct Wish {
    lock: u32,
    since: Time,
}

struct Locks {
    setup: ScannedLocks,
    calendar: Calendar<Event>,
    prng: Prng,
    /// By lock, then by host: the order of a scan.
    slots: Vec<Slot>,
    wishes: Vec<Wish>,
    /// By lock: the host that has it, as the manager knows. It learns of a release when it reads the slot.
    holders: Vec<Option<u32>>,
    latencies: Histogram,
}

/// Runs until `requests` requests had their locks.
///
/// # Panics
/// Panics if there are no hosts, locks or time.
#[must_use]
pub fn scanned_locks(setup: &ScannedLocks, requests: u64, seed: u64) -> LockLatency {
    assert!(setup.hosts > 0 && setup.locks > 0 && setup.access_ns > 0, "a scan takes time");
    let mut locks = Locks {
        setup: *setup,
        calendar: Calendar::default(),
        prng: Prng::new(seed),
        slots: vec![Slot::Idle; (setup.hosts * setup.locks) as usize],
        wishes: vec![Wish::default(); setup.hosts as usize],
        holders: vec![None; setup.locks as usize],
        latencies: Histogram::default(),
    };
    (0..setup.hosts).for_each(|host| locks.think(host));
    locks.calendar.schedule(setup.access_ns, Event::Scan(0));
    while locks.latencies.count() < requests {
        let event = locks.calendar.next_event().expect("the manager scans for ever");
        locks.take(event);
    }
    LockLatency { mean_ns: locks.latencies.mean(), p99_ns: locks.latencies.quantile(0.99) }
}

impl Locks {
    fn take(&mut self, event: Event) {
        let now = self.calendar.now();
        let access = self.setup.access_ns;
        match event {
            Event::Request(host) => {
                let lock = self.prng.below(u64::from(self.setup.locks)) as u32;
                self.wishes[host as usize] = Wish { lock, since: now };
                self.calendar.schedule(now + access, Event::Write(host, Slot::Waiting));
            }
            Event::Write(host, slot) => {
                let at = self.slot_of(host);
                self.slots[at] = slot;
                if slot == Slot::Waiting {
                    self.calendar.schedule(now + access, Event::Poll(host));
                } else {
                    self.think(host);
                }
            }
            Event::Poll(host) => {
                if self.slots[self.slot_of(host)] == Slot::Granted {
                    self.latencies.record(now - self.wishes[host as usize].since);
                    let released = now + self.setup.hold_ns + access;
                    self.calendar.schedule(released, Event::Write(host, Slot::Idle));
                } else {
                    self.calendar.schedule(now + access, Event::Poll(host));
                }
            }
            Event::Scan(at) => {
                let (slot, host) = (self.slots[at as usize], at % self.setup.hosts);
                let holder = &mut self.holders[(at / self.setup.hosts) as usize];
                let is_released = *holder == Some(host) && slot != Slot::Granted;
                if is_released {
                    *holder = None;
                }
                // A host that asks again at once comes after the others.
                if slot == Slot::Waiting && holder.is_none() && !is_released {
                    *holder = Some(host);
                    self.calendar.schedule(now + access, Event::Grant(at));
                } else {
                    self.scan_after(at);
                }
            }
            Event::Grant(at) => {
                self.slots[at as usize] = Slot::Granted;
                self.scan_after(at);
            }
        }
    }

    fn slot_of(&self, host: u32) -> usize {
        (self.wishes[host as usize].lock * self.setup.hosts + host) as usize
    }

    fn scan_after(&mut self, at: u32) {
        let next = (at + 1) % (self.setup.hosts * self.setup.locks);
        self.calendar.schedule(self.calendar.now() + self.setup.access_ns, Event::Scan(next));
    }

    fn think(&mut self, host: u32) {
        let think = exponential(&mut self.prng, self.setup.think_ns as f64) as Time;
        self.calendar.schedule(self.calendar.now() + think, Event::Request(host));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: ScannedLocks = ScannedLocks { hosts: 2, locks: 9, access_ns: 640, hold_ns: 2_000, think_ns: 1_000_000 };

    /// A write, half a scan with the read that finds it, a grant, and on average half a read until the
    /// host sees it.
    #[test]
    fn an_uncontended_lock_waits_for_half_a_scan() {
        let mean = scanned_locks(&CALM, 4_000, 1).mean_ns as f64;
        let expected = 640.0 * (1.0 + 9.0 + 1.0 + 0.5);
        assert!((mean / expected - 1.0).abs() < 0.1, "{mean} ns, {expected} ns");
        let many = scanned_locks(&ScannedLocks { locks: 72, ..CALM }, 4_000, 1);
        assert!(many.mean_ns as f64 > 5.0 * mean && many.p99_ns > many.mean_ns);
    }

    #[test]
    fn holders_exclude_each_other() {
        let one = ScannedLocks { hosts: 4, locks: 1, hold_ns: 100_000, think_ns: 1, ..CALM };
        // Each host waits for the three others.
        let mean = scanned_locks(&one, 400, 1).mean_ns;
        assert!((290_000..340_000).contains(&mean), "{mean} ns");
        assert_eq!(scanned_locks(&one, 400, 1), scanned_locks(&one, 400, 1), "equal seeds give equal results");
    }
}
