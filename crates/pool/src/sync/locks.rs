//! The pool's locks (TraCT §3.3), in two tiers. Tier 1 is a robust process-shared mutex in the
//! host's memory and admits one process of a host. Tier 2 lies in the region and admits one host.
//! Where all participants share their caches there is one host, and tier 2 is skipped.
//!
//! Order: membership → heap → one of the others, which have both tiers.
//!
//! **A holder that dies.** A holder writes its intent, one word, before it changes anything. A dead
//! process is announced by its mutex, a dead host by the marks of other hosts. The next holder
//! repairs what the intent names before it does anything else: [`Locks::acquire`] calls the repair
//! of the module that owns the data. Only space and hits depend on this; readers trust checksums,
//! not locks.

use super::bakery::Bakery;
use super::breaker::Breaker;
use super::heartbeat::Pulse;
use super::manager::Managed;
use super::{Holds, Intent, Lock, Membership, Name, User};
use crate::log::Log;
use crate::log::recorder::Event;
use crate::region::Region;
use crate::region::config::HostsLock;
use crate::region::counters::Counter;
use crate::region::layout::{FIXED_LOCKS, LOCKS, POOL_LOCKS, SHARDS};
use cenote_base::fault::{self, Mistake, Point};
use cenote_mem::host::{HeldLock, LockTimeout};
use cenote_mem::{Fabric, HostLocal, LINE, Offset, Word};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// This worker's way to every lock of a region.
pub(crate) struct Locks<F: Fabric, H: HostLocal> {
    pub(super) region: Arc<Region<F, H>>,
    log: Arc<Log<F, H>>,
    pub(super) pulse: Pulse,
    /// Trips when locks time out too often.
    pub breaker: Breaker,
}

/// How long an acquisition waits.
#[derive(Clone, Copy)]
pub(crate) struct Timeout {
    /// For the mutex of this host.
    pub mutex: Duration,
    /// From the start, for both tiers.
    pub total: Duration,
}

impl Timeout {
    /// No wait: the lock is free now, or the attempt fails without being counted.
    pub const TRY: Self = Self { mutex: Duration::ZERO, total: Duration::ZERO };
}

impl From<Duration> for Timeout {
    fn from(time: Duration) -> Self {
        Self { mutex: time, total: time }
    }
}

/// The tier between hosts. At most one process of each host is inside these calls for one lock.
pub(super) trait Tier {
    /// Waits until this host is admitted, until `deadline` at the latest. `inherited`: a process of
    /// this host died inside; a lock granted to it is still granted.
    fn enter<F: Fabric, H: HostLocal>(
        &self,
        locks: &Locks<F, H>,
        lock: u64,
        intent: Intent,
        inherited: bool,
        deadline: Duration,
    ) -> Result<Entered, Late>;

    /// Admits the next host. All changes have been published.
    fn leave<F: Fabric, H: HostLocal>(&self, locks: &Locks<F, H>, lock: u64);
}

/// How a host was admitted.
#[derive(Default)]
pub(super) struct Entered {
    /// Hosts that died with the lock.
    pub dead: Vec<u64>,
    /// Whether other hosts wanted it, so that this one may have waited.
    pub contended: bool,
}

/// The deadline passed first. The caller leaves.
pub(super) struct Late;

/// Words of the line that a host writes for a lock (docs/internals/format.md#locks).
const TICKET: u64 = 0;
pub(super) const INCARNATION: u64 = 8;
const INTENT: u64 = 16;
/// Low bits of the ticket word that are the ticket. The bits above count the times that a process
/// of the host died with the lock while the host lived on. One word holds both, so a waiter that
/// sees the lock free also sees that it was abandoned.
const TICKET_BITS: u32 = 40;
pub(super) const TICKET_MASK: u64 = (1 << TICKET_BITS) - 1;

/// A held lock, both tiers. Drop releases tier 2 first.
pub(crate) struct Guard<'a, L, F: Fabric, H: HostLocal> {
    locks: &'a Locks<F, H>,
    holds: Holds<L>,
    between: Option<u64>,
    /// Whether a holder died with the lock.
    pub abandoned: bool,
    /// Hosts that were declared dead while they held the lock or waited for it, and have not come
    /// back.
    passed: Vec<u64>,
    is_membership: bool,
    /// Whether drop abandons the lock, as if its holder had died.
    pub gives_up: bool,
    /// Whether the holder has fenced its changes.
    is_fenced: bool,
    /// `None` only while this is dropped.
    mutex: Option<H::Lock<'a>>,
}

impl<L, F: Fabric, H: HostLocal> Deref for Guard<'_, L, F, H> {
    type Target = Holds<L>;

    fn deref(&self) -> &Holds<L> {
        &self.holds
    }
}

impl<L, F: Fabric, H: HostLocal> Drop for Guard<'_, L, F, H> {
    fn drop(&mut self) {
        let locks = self.locks;
        let region = &locks.region;
        if region.area.is_inherited() {
            return;
        }
        // Changes must be visible before the next holder enters, on this host too.
        if !self.is_fenced {
            region.fabric.fence();
        }
        if self.is_membership {
            locks.pulse.set_holder(false);
        }
        self.leave();
        if let (true, Some(mutex)) = (self.gives_up, self.mutex.take()) {
            mutex.abandon();
        }
    }
}

impl<L, F: Fabric, H: HostLocal> Guard<'_, L, F, H> {
    /// Releases tier 2. The changes are fenced.
    fn leave(&mut self) {
        let Some(lock) = self.between.take() else { return };
        let region = &self.locks.region;
        let line = region.layout.lock(lock, region.host);
        if self.gives_up {
            self.locks.count_left(line);
        }
        // From here on nothing needs repair: the change is complete, or users know that it is not.
        region.fabric.store(Offset::new(line + INTENT), Intent::NONE.word());
        if !region.is_coherent() {
            self.locks.leave_tier(lock);
        }
    }
}

impl<F: Fabric, H: HostLocal> Locks<F, H> {
    pub fn new(region: Arc<Region<F, H>>, log: Arc<Log<F, H>>) -> Self {
        Self { region, log, pulse: Pulse::default(), breaker: Breaker::default() }
    }

    /// The wait of the serving path.
    pub fn serving(&self) -> Timeout {
        self.region.lock_timeout.into()
    }

    /// The wait of administration: ten seconds or more.
    pub fn patient(&self) -> Timeout {
        self.region.lock_timeout.max(Duration::from_secs(10)).into()
    }

    /// Takes the membership lock. Its data need no repair.
    pub fn lock_membership(&self, timeout: Timeout) -> Result<Guard<'_, Membership, F, H>, LockTimeout> {
        self.acquire(Membership, Intent::ALL, timeout, |_, _| ())
    }

    /// Takes a user's lock. Users repair what it guards.
    pub fn lock_user(&self, number: u64, timeout: Timeout) -> Result<Guard<'_, User, F, H>, LockTimeout> {
        self.acquire(User(number), Intent::ALL, timeout, |_, _| ())
    }

    /// Takes a lock. `repair` mends what a dead holder left; it gets that holder's intent.
    pub fn acquire<L: Lock>(
        &self,
        lock: L,
        intent: Intent,
        timeout: Timeout,
        mut repair: impl FnMut(&Holds<L>, Intent),
    ) -> Result<Guard<'_, L, F, H>, LockTimeout> {
        let region = &*self.region;
        let name = lock.name();
        let deadline = region.area.now().saturating_add(timeout.total);
        let late = || self.count_timeout(name, timeout);
        let mutex = region.area.lock(name.mutex(), timeout.mutex).inspect_err(|error| {
            if matches!(error, LockTimeout::Passed { .. }) {
                late();
            }
        })?;
        let abandoned = mutex.abandoned();
        let is_membership = matches!(name, Name::Membership);
        let mut guard = Guard {
            locks: self,
            holds: Holds::new(lock),
            between: None,
            abandoned,
            passed: Vec::new(),
            is_membership,
            gives_up: false,
            is_fenced: false,
            mutex: Some(mutex),
        };
        let mut repair = |holds: &Holds<L>, left: Intent, host: u64| {
            if !fault::makes(Mistake::LockRepairSkipped) {
                region.counters().add(Counter::LocksAbandoned, 1);
                self.log.record(Event::LockRepaired, name.mutex().into(), host | left.word() << 8);
                repair(holds, left);
            }
        };
        if is_membership {
            self.pulse.set_holder(true);
        }
        let Some(number) = name.between_hosts() else {
            if abandoned {
                repair(&guard.holds, Intent::ALL, region.host);
            }
            return Ok(guard);
        };
        let intent_word = Offset::new(region.layout.lock(number, region.host) + INTENT);
        let left = Intent::from_word(region.fabric.load(intent_word));
        // The next holder repairs what a process of this host left, even if its mutex is new.
        let inherited = abandoned || left != Intent::NONE;
        guard.abandoned = inherited;
        let left = if abandoned && left == Intent::NONE { Intent::ALL } else { left };
        let intent = if inherited { left } else { intent };
        if region.is_coherent() {
            region.fabric.store(intent_word, intent.word());
            guard.between = Some(number);
        } else {
            let Ok(dead) = self.enter_tier(number, intent, inherited, deadline) else {
                late();
                // What a dead process left is still to be repaired.
                let intent = if inherited { intent } else { Intent::NONE };
                region.fabric.store(intent_word, intent.word());
                self.leave_tier(number);
                return Err(LockTimeout::Passed { index: name.mutex() });
            };
            guard.between = Some(number);
            for &host in &dead {
                let repaired = self.repair_once(number, host, |left| repair(&guard.holds, left, host));
                guard.abandoned |= repaired;
            }
            guard.passed = dead;
        }
        if inherited {
            repair(&guard.holds, left, region.host);
        }
        if let (Name::User(user), false) = (name, region.is_coherent()) {
            guard.abandoned |= self.heed_left_locks(user, number);
        }
        fault::point(Point::LockEntered);
        Ok(guard)
    }

    /// Names what this holder is about to write, before it writes. `false`: the life in which it
    /// took the lock was declared dead, so that it must write nothing.
    ///
    /// Either this host sees the mark of a host that passes it over, or that host sees the name and
    /// leaves the named thing alone ([`Locks::named_by_passed`]). So no store of a host that was
    /// paused in the lock meets another host's (docs/internals/protocol.md#named-changes).
    pub fn name<L: Lock>(&self, holds: &Holds<L>, thing: u64) -> bool {
        let region = &self.region;
        let Some(lock) = holds.name().between_hosts().filter(|_| !region.is_coherent()) else { return true };
        let line = region.layout.lock(lock, region.host);
        let word = Offset::new(line + INTENT);
        if Intent::from_word(region.fabric.load(word)).home().is_some() {
            // The thing named before is complete before its name goes.
            region.fabric.fence();
        }
        region.fabric.store(word, Intent::probe(thing).word());
        region.fabric.publish(&[line]);
        !region.is_dead(region.host, region.fabric.load(Offset::new(line + INCARNATION)))
    }

    /// What hosts that this holder passed over have named: they may write it at any time.
    pub fn named_by_passed<L: Lock>(&self, guard: &Guard<'_, L, F, H>) -> Vec<u64> {
        let region = &self.region;
        let Some(lock) = guard.between.filter(|_| !guard.passed.is_empty()) else { return Vec::new() };
        // Another process of this host may have stored the mark: on the device before the look.
        let marks = guard.passed.iter().map(|&host| region.layout.mark(region.host, host) / LINE * LINE);
        region.fabric.publish(&marks.collect::<Vec<_>>());
        let lines: Vec<u64> = guard.passed.iter().map(|&host| region.layout.lock(lock, host)).collect();
        region.fabric.refresh(&lines);
        let left = |&line: &u64| Intent::from_word(region.fabric.load(Offset::new(line + INTENT))).home();
        lines.iter().filter_map(left).collect()
    }

    /// Takes those of these locks that are free and need no repair, and holds all of them. The
    /// locks share fences. It waits for none, so holders of several locks cannot wait for one
    /// another.
    pub fn take_free<L: Lock>(&self, wanted: impl IntoIterator<Item = (L, Intent)>) -> Vec<Option<Guard<'_, L, F, H>>> {
        let region = &*self.region;
        let wanted: Vec<(L, Intent)> = wanted.into_iter().collect();
        for number in wanted.iter().filter_map(|(lock, _)| lock.name().between_hosts()) {
            region.fabric.prefetch(region.layout.lock(number, region.host));
        }
        let take = |(lock, intent): (L, Intent)| {
            let name = lock.name();
            let number = name.between_hosts()?;
            let mutex = region.area.lock(name.mutex(), Duration::ZERO).ok()?;
            let intent_word = Offset::new(region.layout.lock(number, region.host) + INTENT);
            if mutex.abandoned() {
                mutex.abandon();
                return None;
            }
            if Intent::from_word(region.fabric.load(intent_word)) != Intent::NONE {
                return None;
            }
            region.fabric.store(intent_word, intent.word());
            Some(Guard {
                locks: self,
                holds: Holds::new(lock),
                between: Some(number),
                abandoned: false,
                passed: Vec::new(),
                is_membership: false,
                gives_up: false,
                is_fenced: true,
                mutex: Some(mutex),
            })
        };
        let mut guards: Vec<_> = wanted.into_iter().map(take).collect();
        if !region.is_coherent() {
            let numbers: Vec<u64> = guards.iter().flatten().filter_map(|guard| guard.between).collect();
            let mut entered = match region.superblock.config.hosts_lock {
                HostsLock::Bakery => Bakery.enter_free(self, &numbers),
                // The manager grants one lock at a time.
                HostsLock::Manager => vec![false; numbers.len()],
            }
            .into_iter();
            for guard in &mut guards {
                if guard.is_some() && entered.next() != Some(true) {
                    *guard = None;
                }
            }
        }
        guards.iter_mut().flatten().for_each(|guard| guard.is_fenced = false);
        guards
    }

    /// Releases locks after one fence.
    pub fn release_all<L>(&self, mut guards: Vec<Option<Guard<'_, L, F, H>>>) {
        if self.region.area.is_inherited() {
            return;
        }
        self.region.fabric.fence();
        for guard in guards.iter_mut().flatten() {
            guard.is_fenced = true;
            // All tickets before all mutexes: an exchange waits for the flushes before it.
            guard.leave();
        }
    }

    /// Counts a lock that was not free in time. `try_lock` failures are not counted as timeouts.
    fn count_timeout(&self, name: Name, timeout: Timeout) {
        if timeout.mutex > Duration::ZERO {
            self.region.counters().add(Counter::LockTimeouts, 1);
            // Users may hold their locks for any time.
            if !matches!(name, Name::User(_)) {
                self.breaker.timed_out(self.region.area.now(), name);
            }
        }
    }

    /// Words with a bit for each lock that users have allocated, as the device has them.
    pub fn given_words(&self) -> Vec<u64> {
        let region = &self.region;
        let words: Vec<u64> = region.layout.given_locks().collect();
        let lines: Vec<u64> = words.iter().copied().filter(|at| at % LINE == 0).collect();
        region.fabric.refresh(&lines);
        words.into_iter().map(|at| region.fabric.load(Offset::new(at))).collect()
    }

    /// Whether users may take a lock: it needs no allocation, or is allocated.
    pub fn is_given(&self, user: u64) -> bool {
        user.checked_sub(FIXED_LOCKS).is_none_or(|bit| {
            let at = self.region.layout.given_locks().nth((bit / 64) as usize);
            at.is_some_and(|at| {
                self.region.fabric.refresh(&[at / LINE * LINE]);
                self.region.fabric.load(Offset::new(at)) >> (bit % 64) & 1 == 1
            })
        })
    }

    /// Numbers of the locks between hosts that processes may hold: the pool's, and those that users
    /// need not allocate or have allocated.
    pub fn in_use(&self) -> impl Iterator<Item = u64> + use<F, H> {
        let given = (0_u64..).zip(self.given_words());
        let bits = given
            .flat_map(|(index, word)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 64 * index + bit));
        // The plain design has one lock for all shards, the first one's.
        let shards = if self.region.is_plain() { 1 } else { SHARDS };
        (0..shards).chain(SHARDS..POOL_LOCKS + FIXED_LOCKS).chain(bits.map(|bit| POOL_LOCKS + FIXED_LOCKS + bit))
    }

    /// Whether any host has reported a dead holder of a user's lock since this host last held it.
    /// The lines of all hosts were refreshed to enter the lock.
    fn heed_left_locks(&self, user: u64, lock: u64) -> bool {
        let region = &self.region;
        (0..region.layout.max_hosts).fold(false, |news, host| {
            let left = region.fabric.load(Offset::new(region.layout.lock(lock, host) + TICKET)) >> TICKET_BITS;
            (region.heeded(user, host).swap(left, Relaxed) != left) | news
        })
    }

    /// Releases a user's lock that a dead process of this host held, and reports the death to all
    /// hosts: only users can repair what it guards, and they must not wait until this host wants
    /// it.
    pub fn release_dead_user_lock(&self, user: u64) {
        let region = &self.region;
        // Where all are one host, its mutex reports the death.
        if region.is_coherent() {
            return;
        }
        let name = Name::User(user);
        let Some(lock) = name.between_hosts() else { return };
        let Ok(_mutex) = region.area.lock(name.mutex(), Duration::ZERO) else { return };
        let line = region.layout.lock(lock, region.host);
        // Without an intent its holder died while it released the lock, with its change complete.
        if region.fabric.load(Offset::new(line + INTENT)) != Intent::NONE.word() {
            self.count_left(line);
        }
        region.fabric.store(Offset::new(line + INTENT), Intent::NONE.word());
        self.leave_tier(lock);
    }

    /// Counts in this host's line of a user's lock that a holder did not release it.
    fn count_left(&self, line: u64) {
        let ticket = Offset::new(line + TICKET);
        self.region.fabric.store(ticket, self.region.fabric.load(ticket).wrapping_add(1 << TICKET_BITS));
    }

    fn enter_tier(&self, lock: u64, intent: Intent, inherited: bool, deadline: Duration) -> Result<Vec<u64>, Late> {
        let region = &self.region;
        let entered = match region.superblock.config.hosts_lock {
            HostsLock::Bakery => Bakery.enter(self, lock, intent, inherited, deadline),
            HostsLock::Manager => Managed.enter(self, lock, intent, inherited, deadline),
        }?;
        // A host that waited may have been declared dead meanwhile; then other hosts pass over what
        // it holds. Clocks do not show it: the monotonic one stops in suspend, and all of them stop
        // while a virtual machine is paused.
        let is_dead = entered.contended && region.is_dead(region.host, region.incarnation());
        if is_dead { Err(Late) } else { Ok(entered.dead) }
    }

    /// Pauses between two looks at a lock that another host holds.
    pub(super) fn pause(&self, looks: u32) {
        self.region.area.pause(looks);
        self.beat_in_wait();
    }

    fn leave_tier(&self, lock: u64) {
        match self.region.superblock.config.hosts_lock {
            HostsLock::Bakery => Bakery.leave(self, lock),
            HostsLock::Manager => Managed.leave(self, lock),
        }
    }

    /// Publishes this host's intent for a lock, and its ticket.
    pub(super) fn announce(&self, lock: u64, intent: Intent, ticket: u64) {
        let region = &self.region;
        let line = region.layout.lock(lock, region.host);
        region.fabric.store(Offset::new(line + INTENT), intent.word());
        self.announce_all(&[lock], ticket);
    }

    /// Publishes this host's tickets for locks, with the intents that it has stored.
    pub(super) fn announce_all(&self, locks: &[u64], ticket: u64) {
        let region = &self.region;
        for &lock in locks {
            let life = Offset::new(region.layout.lock(lock, region.host) + INCARNATION);
            region.fabric.store(life, region.incarnation());
            self.set_ticket(lock, ticket);
        }
        let lines: Vec<u64> = locks.iter().map(|&lock| region.layout.lock(lock, region.host)).collect();
        region.fabric.publish(&lines);
    }

    pub(super) fn set_ticket(&self, lock: u64, ticket: u64) {
        let region = &self.region;
        let word = Offset::new(region.layout.lock(lock, region.host) + TICKET);
        region.fabric.store(word, region.fabric.load(word) & !TICKET_MASK | ticket);
    }

    /// A host's ticket, as this host's caches have it.
    pub(super) fn ticket(&self, lock: u64, host: u64) -> u64 {
        self.region.fabric.load(Offset::new(self.region.layout.lock(lock, host) + TICKET)) & TICKET_MASK
    }

    /// Withdraws the ticket. Other hosts see it, and earlier stores to the line, a little later.
    pub(super) fn retract(&self, lock: u64) {
        self.set_ticket(lock, 0);
        fault::point(Point::LockLeft);
        self.show_left(lock);
    }

    /// Publishes this host's line without a fence: other hosts may see the release late.
    fn show_left(&self, lock: u64) {
        self.region.fabric.publish_unfenced(self.region.layout.lock(lock, self.region.host));
    }

    /// Repairs what a dead host left under a lock, once for each of its lives. Its ticket stands
    /// until it returns, so later holders meet it again. Returns whether there was anything to
    /// repair.
    fn repair_once(&self, lock: u64, host: u64, mut repair: impl FnMut(Intent)) -> bool {
        let region = &self.region;
        let line = region.layout.lock(lock, host);
        let incarnation = region.fabric.load(Offset::new(line + INCARNATION));
        let left = Intent::from_word(region.fabric.load(Offset::new(line + INTENT)));
        let unrepaired = left != Intent::NONE && region.repaired(lock, host).load(Relaxed) != incarnation;
        if unrepaired {
            repair(left);
            region.repaired(lock, host).store(incarnation, Relaxed);
        }
        unrepaired
    }

    /// Ticket, incarnation and intent of a host's line for a lock. They may be those of the last
    /// look; every caller looks again.
    pub(super) fn lock_words(&self, lock: u64, host: u64) -> [u64; 3] {
        let region = &self.region;
        let line = region.layout.lock(lock, host);
        region.fabric.refresh_unfenced(line);
        let words = region.fabric.load_line(line);
        let [ticket, incarnation, intent] = [TICKET, INCARNATION, INTENT].map(|at| words[(at / 8) as usize]);
        [ticket & TICKET_MASK, incarnation, intent]
    }

    /// The pool's locks that a dead life of another host held and that this host has not repaired.
    pub fn locks_left_by(&self, host: u64) -> impl Iterator<Item = Name> + '_ {
        let region = &self.region;
        (0..POOL_LOCKS).filter_map(move |lock| {
            let [ticket, incarnation, left] = self.lock_words(lock, host);
            let held = ticket != 0 || region.superblock.config.hosts_lock == HostsLock::Manager;
            let unrepaired = left != Intent::NONE.word() && region.repaired(lock, host).load(Relaxed) != incarnation;
            (held && unrepaired && region.is_dead(host, incarnation)).then(|| Name::of_number(lock))
        })
    }

    /// Locks between hosts that a process of this host holds, living or dead. A process may have
    /// died with a lock that was freed: its next user, on another host, would wait for this host.
    pub fn locks_held_here(&self) -> impl Iterator<Item = Name> + '_ {
        let region = &self.region;
        (0..LOCKS).filter_map(move |lock| {
            let words = region.fabric.load_line(region.layout.lock(lock, region.host));
            let (ticket, left) = (self.ticket(lock, region.host), words[(INTENT / 8) as usize]);
            if ticket == 0 && left == 0 {
                // The process that released it may have died before other hosts saw the release.
                if words != [0; 8] {
                    self.show_left(lock);
                }
                return None;
            }
            Some(Name::of_number(lock))
        })
    }
}
