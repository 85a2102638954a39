//! The pool's locks (TraCT §3.3), in two tiers. Tier 1 is a robust process-shared mutex in host-local
//! memory: at most one process of a host goes on. Tier 2 lies in the region and lets one host in at a time;
//! where all share their caches there is one host, and it vanishes.
//!
//! Order: [`Name::Membership`] → [`Name::Heap`] → one of the others, which are those of tier 2.
//!
//! **A holder that dies.** Who enters leaves an intent beforehand, one word that says what the lock is taken
//! for. A process that died is announced by its mutex, a host by the marks of those who watch it; whoever
//! enters next repairs what the intent names, before it does anything else. Nothing but space and hits
//! depends on that: what is read is believed for its checksum, never for a lock.

mod bakery;
mod manager;

pub use manager::{GrantReport, LockManager};

use crate::error::PoolError;
use crate::pool::{Inner, Pool};
use crate::region::config::HostsLock;
use crate::region::counters::Counter;
use crate::region::layout::{LOCKS, SHARDS, USER_LOCKS};
use cenote_base::fault;
use cenote_mem::host::{HeldLock, LockTimeout};
use cenote_mem::{Fabric, HostArea, HostLocal, Offset, Word};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// What a lock protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Worker slots of this host, and what it writes about itself and other hosts.
    Membership,
    /// Free lists, and eviction.
    Heap,
    /// Namespace and object tables.
    Tables,
    /// Which host owns which chunk.
    Chunks,
    /// One shard of the index.
    Shard(u64),
    /// A lock for whoever uses the pool.
    User(u64),
}

impl Name {
    /// The one lock of the plain design, which has no shards: the first shard's.
    pub const PLAIN: Self = Self::Shard(0);

    pub(crate) fn mutex(self) -> u32 {
        match self {
            Self::Membership => 0,
            Self::Heap => 1,
            Self::Tables => 2,
            Self::Chunks => 3,
            Self::Shard(shard) => 4 + u32::try_from(shard).expect("fewer than 2^32 shards"),
            Self::User(number) => 4 + (SHARDS + number) as u32,
        }
    }

    /// The lock's number in the region, if hosts contend for it.
    const fn between_hosts(self) -> Option<u64> {
        match self {
            Self::Membership | Self::Heap => None,
            Self::Shard(shard) => Some(shard),
            Self::Chunks => Some(SHARDS),
            Self::Tables => Some(SHARDS + 1),
            Self::User(number) => Some(SHARDS + 2 + number),
        }
    }

    /// The name of a lock's number in the region.
    const fn of_number(lock: u64) -> Self {
        match lock {
            0..SHARDS => Self::Shard(lock),
            SHARDS => Self::Chunks,
            _ if lock == SHARDS + 1 => Self::Tables,
            _ => Self::User(lock - SHARDS - 2),
        }
    }
}

/// What a holder is about to change, in one word, so that it is never half there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Intent(u64);

impl Intent {
    /// Nothing.
    const NONE: Self = Self(0);
    /// Anything that the lock protects.
    pub const ALL: Self = Self(1);

    /// A probe from this bucket of the shard on.
    pub const fn probe(home: u64) -> Self {
        Self(home + 2)
    }

    pub const fn word(self) -> u64 {
        self.0
    }

    /// The bucket where the probe began; `None` stands for everything.
    const fn home(self) -> Option<u64> {
        self.0.checked_sub(2)
    }
}

/// The tier between hosts. At most one process of each host is inside these calls for one lock.
trait Tier {
    /// Waits until this host may go on, `deadline` at the latest. `inherited`: a process of this host died inside; if the
    /// lock was granted to it, it still is.
    fn enter<F: Fabric, H: HostLocal>(
        &self,
        inner: &Inner<F, H>,
        lock: u64,
        intent: Intent,
        inherited: bool,
        deadline: Duration,
    ) -> Result<Entered, Late>;

    /// Lets the next host in. All changes have been published.
    fn leave<F: Fabric, H: HostLocal>(&self, inner: &Inner<F, H>, lock: u64);
}

/// How a host got in.
#[derive(Default)]
struct Entered {
    /// Hosts that died with the lock.
    dead: Vec<u64>,
    /// Whether other hosts wanted it, so that this one may have waited.
    contended: bool,
}

/// The deadline passed first. The caller leaves.
struct Late;

/// Words of the line that a host writes for a lock (docs/format.md#locks).
const TICKET: u64 = 0;
const INCARNATION: u64 = 8;
const INTENT: u64 = 16;
/// Bits of the ticket's word that are the ticket. Those above count how often a process of the host died with the lock
/// while the host lived on: in one word, so that who sees the lock free sees that it was left.
const TICKET_BITS: u32 = 40;
const TICKET_MASK: u64 = (1 << TICKET_BITS) - 1;

/// A held lock, both tiers; released on drop, the outer one first.
pub(crate) struct Guard<'a, F: Fabric, H: HostLocal> {
    inner: &'a Inner<F, H>,
    between: Option<u64>,
    abandoned: bool,
    /// It is that of membership: its holder beats the host's heart.
    keeps: bool,
    /// The holder goes without having finished.
    gives_up: bool,
    /// `None` only while this is dropped.
    host: Option<H::Lock<'a>>,
}

impl<F: Fabric, H: HostLocal> Drop for Guard<'_, F, H> {
    fn drop(&mut self) {
        let inner = self.inner;
        if inner.area.is_inherited() {
            return;
        }
        // What was written under the lock is there for all before anybody else has it, on this host too.
        inner.fabric.fence();
        if self.keeps {
            inner.beats.keep(false);
        }
        if let Some(lock) = self.between {
            let line = inner.layout.lock(lock, inner.host);
            if self.gives_up {
                inner.count_left(line);
            }
            // Everything is done, or its users were told: from here on there is nothing to repair.
            inner.fabric.store(Offset::new(line + INTENT), Intent::NONE.0);
            if !inner.is_coherent() {
                inner.leave_tier(lock);
            }
        }
        if let (true, Some(host)) = (self.gives_up, self.host.take()) {
            host.abandon();
        }
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// Takes a lock within the serving path's timeout and repairs what a dead holder left.
    pub(crate) fn lock(&self, name: Name) -> Result<Guard<'_, F, H>, LockTimeout> {
        self.lock_within(name, Intent::ALL, self.lock_timeout)
    }

    /// As [`Inner::lock`], for a change that is known beforehand.
    pub(crate) fn lock_for(&self, name: Name, intent: Intent) -> Result<Guard<'_, F, H>, LockTimeout> {
        self.lock_within(name, intent, self.lock_timeout)
    }

    /// As [`Inner::lock`], for administration, which may wait longer.
    pub(crate) fn lock_patiently(&self, name: Name) -> Result<Guard<'_, F, H>, LockTimeout> {
        self.lock_within(name, Intent::ALL, self.patience())
    }

    /// How long administration waits.
    pub(crate) fn patience(&self) -> Duration {
        self.lock_timeout.max(Duration::from_secs(10))
    }

    /// As [`Inner::lock`], if it is free on this host.
    pub(crate) fn try_lock(&self, name: Name) -> Option<Guard<'_, F, H>> {
        self.lock_within(name, Intent::ALL, Duration::ZERO).ok()
    }

    /// As [`Inner::lock_for`], waiting for `timeout` at most.
    pub(crate) fn lock_within(
        &self,
        name: Name,
        intent: Intent,
        timeout: Duration,
    ) -> Result<Guard<'_, F, H>, LockTimeout> {
        self.lock_tiers(name, intent, timeout, timeout)
    }

    fn lock_tiers(
        &self,
        name: Name,
        intent: Intent,
        host_timeout: Duration,
        timeout: Duration,
    ) -> Result<Guard<'_, F, H>, LockTimeout> {
        let deadline = self.area.now().saturating_add(timeout);
        let late = || {
            // A caller that only tries has lost no time.
            if host_timeout > Duration::ZERO {
                self.counters().add(Counter::LockTimeouts, 1);
                // Users may hold their locks for as long as they like.
                if !matches!(name, Name::User(_)) {
                    self.breaker.timed_out(self.area.now(), name);
                }
            }
        };
        let host = self.area.lock(name.mutex(), host_timeout).inspect_err(|error| {
            if matches!(error, LockTimeout::Passed { .. }) {
                late();
            }
        })?;
        let abandoned = host.abandoned();
        let keeps = matches!(name, Name::Membership);
        let mut guard = Guard { inner: self, between: None, abandoned, keeps, gives_up: false, host: Some(host) };
        if keeps {
            self.beats.keep(true);
        }
        let Some(lock) = name.between_hosts() else {
            if abandoned {
                self.repair(name, Intent::ALL, self.host);
            }
            return Ok(guard);
        };
        let line = self.layout.lock(lock, self.host);
        let left = Intent(self.fabric.load(Offset::new(line + INTENT)));
        // What a process of this host left is repaired by whoever is next, also where its mutex is gone.
        let inherited = abandoned || left != Intent::NONE;
        guard.abandoned = inherited;
        let left = if abandoned && left == Intent::NONE { Intent::ALL } else { left };
        let intent = if inherited { left } else { intent };
        if self.is_coherent() {
            self.fabric.store(Offset::new(line + INTENT), intent.0);
            guard.between = Some(lock);
        } else {
            let Ok(dead) = self.enter_tier(lock, intent, inherited, deadline) else {
                late();
                // What the dead left stays to be repaired.
                let intent = if inherited { intent } else { Intent::NONE };
                self.fabric.store(Offset::new(line + INTENT), intent.0);
                self.leave_tier(lock);
                return Err(LockTimeout::Passed { index: name.mutex() });
            };
            guard.between = Some(lock);
            self.acquire(name);
            for host in dead {
                // Its ticket stands until it returns; only the first to meet it is told.
                guard.abandoned |= self.repair_for(name, lock, host);
            }
        }
        if inherited {
            self.repair(name, left, self.host);
        }
        if let (Name::User(number), false) = (name, self.is_coherent()) {
            guard.abandoned |= self.heed_left_locks(number, lock);
        }
        Ok(guard)
    }

    /// Drops cached copies of what a lock guards, where that is little: whoever holds it goes by what the last holder
    /// left. Buckets of a shard are refreshed one by one.
    fn acquire(&self, name: Name) {
        match name {
            Name::Tables => self.refresh_tables(),
            Name::Chunks => self.refresh_chunks(),
            Name::Membership | Name::Heap | Name::Shard(_) | Name::User(_) => {}
        }
    }

    /// Whether some host has said that its holder of a user's lock died, since this host last had the lock. All hosts'
    /// lines were looked at to enter it.
    fn heed_left_locks(&self, number: u64, lock: u64) -> bool {
        (0..self.layout.max_hosts).fold(false, |news, host| {
            let left = self.fabric.load(Offset::new(self.layout.lock(lock, host) + TICKET)) >> TICKET_BITS;
            (self.heeded(number, host).swap(left, Relaxed) != left) | news
        })
    }

    /// Gives back a user's lock that a dead process of this host held, and tells all hosts: what it guards only they
    /// can repair, and they must not wait for this host to want it.
    fn give_back_user_lock(&self, name: Name, lock: u64) {
        // Where all are one host, its mutex tells the next.
        if self.is_coherent() {
            return;
        }
        let Ok(_mutex) = self.area.lock(name.mutex(), Duration::ZERO) else { return };
        let line = self.layout.lock(lock, self.host);
        // Without an intent its holder died on the way out, with everything done.
        if self.fabric.load(Offset::new(line + INTENT)) != Intent::NONE.0 {
            self.count_left(line);
        }
        self.fabric.store(Offset::new(line + INTENT), Intent::NONE.0);
        self.leave_tier(lock);
    }

    /// Counts in this host's line of a user's lock that a holder left it without releasing it.
    fn count_left(&self, line: u64) {
        let ticket = Offset::new(line + TICKET);
        self.fabric.store(ticket, self.fabric.load(ticket).wrapping_add(1 << TICKET_BITS));
    }

    fn enter_tier(&self, lock: u64, intent: Intent, inherited: bool, deadline: Duration) -> Result<Vec<u64>, Late> {
        let entered = match self.superblock.config.hosts_lock {
            HostsLock::Bakery => bakery::Bakery.enter(self, lock, intent, inherited, deadline),
            HostsLock::Manager => manager::Managed.enter(self, lock, intent, inherited, deadline),
        }?;
        // A host that was held up in a wait may have been declared dead, and then others pass over what it holds. No clock
        // tells: the monotonic one stands still while a machine is suspended, and all of them while a virtual one is paused.
        let is_dead = entered.contended && self.is_dead(self.host, self.incarnation());
        if is_dead { Err(Late) } else { Ok(entered.dead) }
    }

    /// Between two looks at a lock that another host has.
    fn wait(&self, looks: u32) {
        self.area.pause(looks);
        self.beat_in_wait();
    }

    fn leave_tier(&self, lock: u64) {
        match self.superblock.config.hosts_lock {
            HostsLock::Bakery => bakery::Bakery.leave(self, lock),
            HostsLock::Manager => manager::Managed.leave(self, lock),
        }
    }

    /// Shows other hosts what this one is about to do with a lock, and its ticket.
    fn announce(&self, lock: u64, intent: Intent, ticket: u64) {
        let line = self.layout.lock(lock, self.host);
        self.fabric.store(Offset::new(line + INTENT), intent.0);
        self.fabric.store(Offset::new(line + INCARNATION), self.incarnation());
        self.set_ticket(lock, ticket);
        self.fabric.publish(&[line]);
    }

    fn set_ticket(&self, lock: u64, ticket: u64) {
        let word = Offset::new(self.layout.lock(lock, self.host) + TICKET);
        self.fabric.store(word, self.fabric.load(word) & !TICKET_MASK | ticket);
    }

    /// A host's ticket, in the copy of its line that this host has.
    fn ticket(&self, lock: u64, host: u64) -> u64 {
        self.fabric.load(Offset::new(self.layout.lock(lock, host) + TICKET)) & TICKET_MASK
    }

    /// Takes the ticket back. Others see it, and what was stored in the line before, a little later.
    fn retract(&self, lock: u64) {
        self.set_ticket(lock, 0);
        fault::point("lock.left");
        self.show_left(lock);
    }

    /// Nobody waits until others see it.
    fn show_left(&self, lock: u64) {
        self.fabric.publish_unfenced(self.layout.lock(lock, self.host));
    }

    /// Repairs what a dead host left, once for each of its lives; its line was looked at to enter the lock. Returns whether there was anything to repair.
    fn repair_for(&self, name: Name, lock: u64, host: u64) -> bool {
        let line = self.layout.lock(lock, host);
        let incarnation = self.fabric.load(Offset::new(line + INCARNATION));
        let left = Intent(self.fabric.load(Offset::new(line + INTENT)));
        let unrepaired = left != Intent::NONE && self.repaired(lock, host).load(Relaxed) != incarnation;
        if unrepaired {
            self.repair(name, left, host);
            self.repaired(lock, host).store(incarnation, Relaxed);
        }
        unrepaired
    }

    /// Repairs what a process of `host` left that died with the lock.
    fn repair(&self, name: Name, left: Intent, host: u64) {
        if fault::sabotaged("lock.repair-skipped") {
            return;
        }
        self.counters().add(Counter::LocksAbandoned, 1);
        self.record_repair(name, left, host);
        match name {
            // A row of a table that is torn is no row, and who puts an object clears all other rows of its key.
            Name::Membership | Name::Tables | Name::User(_) => {}
            Name::Heap => {
                self.rebuild_heap();
                self.finish_adoption();
            }
            Name::Chunks => self.repair_chunks(),
            Name::Shard(_) if self.is_plain() => self.repair_plain(),
            Name::Shard(shard) => {
                match left.home() {
                    Some(home) => self.repair_probe(shard, home),
                    None => self.repair_shard(shard),
                };
            }
        }
    }

    /// Ticket, incarnation and intent of a host's line for a lock, as the device has it, or had it at the last look:
    /// who asks looks again, sooner or later.
    fn lock_words(&self, lock: u64, host: u64) -> [u64; 3] {
        let line = self.layout.lock(lock, host);
        self.fabric.refresh_unfenced(line);
        let words = self.fabric.load_line(line);
        let [ticket, incarnation, intent] = [TICKET, INCARNATION, INTENT].map(|at| words[(at / 8) as usize]);
        [ticket & TICKET_MASK, incarnation, intent]
    }

    /// The locks that a host holds, as its lines say, in a life that is over, and that this host has not repaired.
    pub(crate) fn locks_left_by(&self, host: u64) -> impl Iterator<Item = Name> + '_ {
        (0..LOCKS).filter_map(move |lock| {
            let [ticket, incarnation, left] = self.lock_words(lock, host);
            let held = ticket != 0 || self.superblock.config.hosts_lock == HostsLock::Manager;
            let unrepaired = left != Intent::NONE.0 && self.repaired(lock, host).load(Relaxed) != incarnation;
            (held && unrepaired && self.is_dead(host, incarnation)).then(|| Name::of_number(lock))
        })
    }

    /// Takes and gives back every lock between hosts that a dead process of this host holds, which repairs what it
    /// guards: others would wait for this host, which lives. Locks of the living are left alone.
    pub(crate) fn settle_locks(&self) {
        // One deadline for all: another host that stands in every lock must not hold this one up for each.
        let deadline = self.area.now().saturating_add(self.lock_timeout);
        for lock in 0..crate::region::layout::LOCKS {
            let line = self.layout.lock(lock, self.host);
            let words = self.fabric.load_line(line);
            let (ticket, left) = (self.ticket(lock, self.host), words[(INTENT / 8) as usize]);
            if ticket == 0 && left == 0 {
                // Whoever gave it back may have died before anybody else could see it.
                if words != [0; 8] {
                    self.show_left(lock);
                }
                continue;
            }
            match Name::of_number(lock) {
                name @ Name::User(_) => self.give_back_user_lock(name, lock),
                // Without the lock the intent stays, and the next to take it repairs.
                name => {
                    let left = deadline.saturating_sub(self.area.now());
                    drop(self.lock_tiers(name, Intent::ALL, Duration::ZERO, left));
                }
            }
        }
    }
}

/// One of the region's locks for its users, held; see [`Pool::lock_user`].
pub struct UserLock<'a, F: Fabric, H: HostLocal = HostArea>(Guard<'a, F, H>);

impl<F: Fabric, H: HostLocal> UserLock<'_, F, H> {
    /// Whether a holder died with it, so that what it guards may be half changed. The next holder is told, and so is one
    /// of each other host.
    #[must_use]
    pub const fn abandoned(&self) -> bool {
        self.0.abandoned
    }

    /// Releases it without having finished: the next holder is told, as if this one had died.
    pub fn abandon(mut self) {
        self.0.gives_up = true;
    }
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// How many locks users have.
    pub const USER_LOCKS: u8 = USER_LOCKS as u8;

    /// Takes a lock that all processes of all hosts contend for, for what the caller keeps in the region. Between
    /// taking and using, what it guards must be refreshed; before letting go, published, by calls of the fabric that
    /// leave no line dirty ([`Fabric::publish_lines`], [`Fabric::publish_word`]).
    ///
    /// # Errors
    /// It was not free within `timeout`, or there is no such lock.
    pub fn lock_user(&self, number: u8, timeout: Duration) -> Result<UserLock<'_, F, H>, PoolError> {
        if number >= Self::USER_LOCKS {
            return Err(PoolError::Config(format!("there is no lock {number}; users have {}", Self::USER_LOCKS)));
        }
        let guard =
            self.0.lock_within(Name::User(number.into()), Intent::ALL, timeout).map_err(PoolError::lock("user"))?;
        fault::point("user.locked");
        Ok(UserLock(guard))
    }
}
