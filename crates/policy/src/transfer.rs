//! Admission of copies between tiers (CXL-SpecKV §3.4.2, §3.5, §3.6.2).
//!
//! A mover has a window of at most *Ω* outstanding copies ([`OUTSTANDING_MAX`]). [`Transfers`]
//! decides which of the submitted copies start, in which order and in which batches. It copies
//! nothing. The engine's movers and the simulator's tiers drive one value per mover:
//!
//! 1. [`Transfers::submit`] for each wanted copy, whenever it is wanted.
//! 2. [`Transfers::poll_action`] until it returns `None`: start the batch, or note the deadline.
//! 3. [`Transfers::completed`] for each finished copy; then poll again.
//! 4. [`Transfers::poll_timeout`] names the instant at which polling again can matter.
//!
//! **Order.** The classes are [`Class::Demand`], [`Class::Exact`], [`Class::Speculative`] and
//! [`Class::WriteBack`]. Within a class the earliest deadline starts first, then the earliest
//! submission.
//!
//! **Window.** A class starts a copy only while the number of all outstanding copies is below its
//! limit ([`TransferConfig::limits`]). Lower classes have lower limits, so a demand copy finds a free
//! slot even if the window is full of speculation. Write-back starts only on a nearly idle mover
//! (§3.3.2).
//!
//! **Batches.** Starting *m* copies with one request costs one doorbell: *σ(m) ≈ m* while the
//! doorbell dominates (§3.6.2, [`batch_gain`]). A batch has one class, so no copy waits for the
//! completion of a less urgent one. A saturated mover frees its slots one by one. So a class waits
//! for the slots of a whole batch, but only while a completion is still to come. Demand waits so only
//! while a whole batch of demand copies is outstanding, which keeps the device busy.
//!
//! **Deadlines.** A copy that has not started at its deadline never starts: [`Action::Expired`]
//! returns it, and the caller reads synchronously or drops it. A copy that has started is reported
//! once with [`Action::Late`] and stays outstanding until it completes.

use std::collections::{BTreeMap, BTreeSet};

/// *Ω*: the most outstanding copies (CXL-SpecKV §3.5.1).
pub const OUTSTANDING_MAX: u32 = 16;
/// Number of [`Class`]es.
pub const CLASSES: usize = 4;
/// Sorts behind all deadlines.
const NEVER: u64 = u64::MAX;

/// Urgency of a copy, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A computation waits for it.
    Demand,
    /// The schedule will need it.
    Exact,
    /// A predictor expects that it will be needed.
    Speculative,
    /// New KV leaves for a lower tier.
    WriteBack,
}

impl Class {
    /// All classes, the most urgent first.
    pub const ALL: [Self; CLASSES] = [Self::Demand, Self::Exact, Self::Speculative, Self::WriteBack];
}

/// A tier of KV memory, the nearest first. `L1` is the engine's memory and `L2` its staging area;
/// `L3` is the region and `L4` a disk or an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// The engine's own KV memory.
    L1,
    /// The staging area beside it.
    L2,
    /// The region.
    L3,
    /// The cold tier.
    L4,
}

impl Tier {
    /// All tiers, the nearest first.
    pub const ALL: [Self; 4] = [Self::L1, Self::L2, Self::L3, Self::L4];
}

/// Name of a submitted copy, unique within its [`Transfers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// Limits of one mover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferConfig {
    /// Per class: a copy starts only while fewer copies than this are outstanding. The limit of
    /// [`Class::Demand`] is *Ω*.
    pub limits: [u32; CLASSES],
    /// *m*: the most copies of a batch.
    pub batch_copies_max: u32,
    /// The most bytes of a batch, unless its first copy alone is larger.
    pub batch_bytes_max: u64,
}

impl TransferConfig {
    /// Limits for a window of `outstanding_max`: all of it for demand, all but an eighth for exact
    /// copies, half for speculation, a quarter for write-back; each at least 1. What a class may not
    /// use costs it bandwidth, so the reserve for demand is small.
    ///
    /// # Panics
    /// Panics if `outstanding_max` is 0.
    #[must_use]
    pub fn window(outstanding_max: u32) -> Self {
        assert!(outstanding_max > 0, "a mover without a window never starts a copy");
        let part = |eighths: u32| (outstanding_max * eighths / 8).max(1);
        Self { limits: [outstanding_max, part(7), part(4), part(2)], batch_copies_max: 4, batch_bytes_max: 1 << 20 }
    }

    /// *Ω*.
    #[must_use]
    pub const fn outstanding_max(&self) -> u32 {
        self.limits[0]
    }
}

impl Default for TransferConfig {
    fn default() -> Self {
        Self::window(OUTSTANDING_MAX)
    }
}

/// A wanted copy. `item` is the caller's: what to copy, from where and to where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted<T> {
    /// Urgency.
    pub class: Class,
    /// Bytes to move.
    pub bytes: u64,
    /// Instant, in nanoseconds of the caller's clock, after which the copy has no use.
    pub deadline_ns: Option<u64>,
    /// The caller's description of the copy.
    pub item: T,
}

/// Copies to start with one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch<T> {
    /// Class of all of them.
    pub class: Class,
    /// Sum of their bytes.
    pub bytes: u64,
    /// At least one copy, in starting order. Report each to [`Transfers::completed`].
    pub copies: Vec<(Ticket, T)>,
}

/// What the caller must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<T> {
    /// Start these copies.
    Start(Batch<T>),
    /// The copy missed its deadline before it started. It is forgotten.
    Expired(Ticket, T),
    /// The copy is outstanding beyond its deadline. Reported once; its completion is still due.
    Late(Ticket),
}

/// Result of [`Transfers::cancel`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cancelled<T> {
    /// The copy had not started and never will.
    Queued(T),
    /// The copy is outstanding; [`Transfers::completed`] will return [`Completed::Discard`].
    Started,
    /// No such copy: it completed, expired or was cancelled before.
    Unknown,
}

/// Result of [`Transfers::completed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// Use the copied bytes.
    Use,
    /// The copy was cancelled after it started: discard the bytes.
    Discard,
    /// No such copy is outstanding.
    Unknown,
}

/// Result of [`Transfers::promote`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promoted {
    /// The copy waits in the more urgent class.
    Queued,
    /// The copy has started already, or it was at least as urgent.
    Unchanged,
    /// No such copy.
    Unknown,
}

/// Numbers of copies since the start, per class in the order of [`Class::ALL`]. A promoted copy
/// counts as submitted in its first class, and in its last class from then on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferCounts {
    /// Submitted copies.
    pub submitted: [u64; CLASSES],
    /// Started copies.
    pub started: [u64; CLASSES],
    /// Bytes of the started copies.
    pub bytes: [u64; CLASSES],
    /// Batches, which is the number of doorbells.
    pub batches: [u64; CLASSES],
    /// Copies that completed and were not cancelled.
    pub completed: [u64; CLASSES],
    /// Copies cancelled before they started.
    pub cancelled: [u64; CLASSES],
    /// Copies cancelled after they started: their bytes moved in vain.
    pub discarded: [u64; CLASSES],
    /// Copies that did not start before their deadline.
    pub expired: [u64; CLASSES],
    /// Copies that were outstanding beyond their deadline.
    pub late: [u64; CLASSES],
}

#[derive(Clone, Debug)]
struct Queued<T> {
    bytes: u64,
    item: T,
}

#[derive(Clone, Copy, Debug)]
struct Started {
    class: Class,
    is_cancelled: bool,
}

/// The queue and the window of one mover.
#[derive(Clone, Debug)]
pub struct Transfers<T> {
    config: TransferConfig,
    next_ticket: u64,
    /// Waiting copies per class, by deadline and then by ticket.
    queues: [BTreeMap<(u64, Ticket), Queued<T>>; CLASSES],
    /// Class and deadline of each waiting copy.
    places: BTreeMap<Ticket, (Class, u64)>,
    outstanding: BTreeMap<Ticket, Started>,
    /// Outstanding copies that started as demand.
    num_demand: u32,
    /// Deadlines of waiting and of outstanding copies that were not reported.
    deadlines: BTreeSet<(u64, Ticket)>,
    /// Deadline of each outstanding copy in `deadlines`.
    started_deadlines: BTreeMap<Ticket, u64>,
    counts: TransferCounts,
}

impl<T> Transfers<T> {
    /// A mover without copies.
    ///
    /// # Panics
    /// Panics if a limit or a size of a batch is 0, or a class has a higher limit than a more urgent
    /// one.
    #[must_use]
    pub fn new(config: TransferConfig) -> Self {
        assert!(config.limits.iter().all(|limit| *limit > 0), "a class with limit 0 never starts");
        assert!(config.limits.is_sorted_by(|a, b| a >= b), "limits must not rise with lower urgency");
        assert!(config.batch_copies_max > 0, "a batch has copies");
        Self {
            config,
            next_ticket: 0,
            queues: std::array::from_fn(|_| BTreeMap::new()),
            places: BTreeMap::new(),
            outstanding: BTreeMap::new(),
            num_demand: 0,
            deadlines: BTreeSet::new(),
            started_deadlines: BTreeMap::new(),
            counts: TransferCounts::default(),
        }
    }

    /// Queues a copy.
    pub fn submit(&mut self, wanted: Wanted<T>) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let deadline = wanted.deadline_ns.unwrap_or(NEVER);
        if deadline != NEVER {
            self.deadlines.insert((deadline, ticket));
        }
        self.counts.submitted[wanted.class as usize] += 1;
        self.places.insert(ticket, (wanted.class, deadline));
        self.queues[wanted.class as usize]
            .insert((deadline, ticket), Queued { bytes: wanted.bytes, item: wanted.item });
        ticket
    }

    /// The next action at `now` (nanoseconds). Call it until it returns `None`.
    #[must_use]
    pub fn poll_action(&mut self, now: u64) -> Option<Action<T>> {
        self.due(now).or_else(|| self.start().map(Action::Start))
    }

    /// Instant of the next deadline, at which [`Self::poll_action`] may return an action without
    /// any call in between.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.deadlines.first().map(|&(deadline, _)| deadline.saturating_add(1))
    }

    /// Reports that a started copy finished, whether or not it succeeded. Its slot is free.
    pub fn completed(&mut self, ticket: Ticket) -> Completed {
        let Some(started) = self.outstanding.remove(&ticket) else { return Completed::Unknown };
        self.num_demand -= u32::from(started.class == Class::Demand);
        if let Some(deadline) = self.started_deadlines.remove(&ticket) {
            self.deadlines.remove(&(deadline, ticket));
        }
        if started.is_cancelled {
            return Completed::Discard;
        }
        self.counts.completed[started.class as usize] += 1;
        Completed::Use
    }

    /// Withdraws a copy.
    pub fn cancel(&mut self, ticket: Ticket) -> Cancelled<T> {
        if let Some(item) = self.take(ticket) {
            return Cancelled::Queued(item);
        }
        match self.outstanding.get_mut(&ticket) {
            Some(started) if !started.is_cancelled => {
                started.is_cancelled = true;
                self.counts.discarded[started.class as usize] += 1;
                if let Some(deadline) = self.started_deadlines.remove(&ticket) {
                    self.deadlines.remove(&(deadline, ticket));
                }
                Cancelled::Started
            }
            _ => Cancelled::Unknown,
        }
    }

    /// Takes a copy back that has not started, because the caller makes it itself. It counts as
    /// cancelled. `None`: it has started, or is not known.
    pub fn take(&mut self, ticket: Ticket) -> Option<T> {
        let (class, queued) = self.remove_queued(ticket)?;
        self.counts.cancelled[class as usize] += 1;
        Some(queued.item)
    }

    /// Raises the urgency of a copy, for example because the step that needs it begins.
    pub fn promote(&mut self, ticket: Ticket, class: Class) -> Promoted {
        match self.places.get(&ticket) {
            Some(&(old, _)) if old <= class => Promoted::Unchanged,
            Some(&(old, deadline)) => {
                let key = (deadline, ticket);
                let queued = self.queues[old as usize].remove(&key).expect("a place names a queued copy");
                self.queues[class as usize].insert(key, queued);
                self.places.insert(ticket, (class, deadline));
                Promoted::Queued
            }
            None if self.outstanding.contains_key(&ticket) => Promoted::Unchanged,
            None => Promoted::Unknown,
        }
    }

    /// Number of outstanding copies, at most *Ω*.
    #[must_use]
    pub fn num_outstanding(&self) -> u32 {
        self.outstanding.len() as u32
    }

    /// Number of waiting copies of a class.
    #[must_use]
    pub fn num_queued(&self, class: Class) -> usize {
        self.queues[class as usize].len()
    }

    /// Share of the window that is in use, 0 to 1: *U* of eq. 7 for a mover without a byte counter.
    #[must_use]
    pub fn utilization(&self) -> f64 {
        f64::from(self.num_outstanding()) / f64::from(self.config.outstanding_max())
    }

    /// The counters.
    #[must_use]
    pub const fn counts(&self) -> &TransferCounts {
        &self.counts
    }

    fn remove_queued(&mut self, ticket: Ticket) -> Option<(Class, Queued<T>)> {
        let (class, deadline) = self.places.remove(&ticket)?;
        self.deadlines.remove(&(deadline, ticket));
        let queued = self.queues[class as usize].remove(&(deadline, ticket)).expect("a place names a queued copy");
        Some((class, queued))
    }

    /// The oldest deadline before `now`, if any.
    fn due(&mut self, now: u64) -> Option<Action<T>> {
        let &(deadline, ticket) = self.deadlines.first()?;
        if deadline >= now {
            return None;
        }
        if let Some((class, queued)) = self.remove_queued(ticket) {
            self.counts.expired[class as usize] += 1;
            return Some(Action::Expired(ticket, queued.item));
        }
        self.deadlines.remove(&(deadline, ticket));
        self.started_deadlines.remove(&ticket);
        let started = self.outstanding.get(&ticket).expect("a deadline belongs to a queued or an outstanding copy");
        self.counts.late[started.class as usize] += 1;
        Some(Action::Late(ticket))
    }

    /// A batch of the most urgent class that may start one.
    fn start(&mut self) -> Option<Batch<T>> {
        Class::ALL.into_iter().find_map(|class| {
            let room = self.config.limits[class as usize].saturating_sub(self.num_outstanding());
            let queued = u32::try_from(self.num_queued(class)).unwrap_or(u32::MAX);
            let whole = self.config.batch_copies_max.min(queued).min(self.config.limits[class as usize]);
            let is_busy = match class {
                Class::Demand => self.num_demand >= self.config.batch_copies_max,
                _ => !self.outstanding.is_empty(),
            };
            let waits = is_busy && room < whole;
            (room > 0 && queued > 0 && !waits).then(|| self.batch(class, room))
        })
    }

    fn batch(&mut self, class: Class, room: u32) -> Batch<T> {
        let mut batch = Batch { class, bytes: 0, copies: Vec::new() };
        for _ in 0..room.min(self.config.batch_copies_max) {
            let Some(entry) = self.queues[class as usize].first_entry() else { break };
            if !batch.copies.is_empty() && batch.bytes + entry.get().bytes > self.config.batch_bytes_max {
                break;
            }
            let ((deadline, ticket), queued) = entry.remove_entry();
            self.places.remove(&ticket);
            if deadline != NEVER {
                self.started_deadlines.insert(ticket, deadline);
            }
            self.outstanding.insert(ticket, Started { class, is_cancelled: false });
            self.num_demand += u32::from(class == Class::Demand);
            batch.bytes += queued.bytes;
            batch.copies.push((ticket, queued.item));
        }
        self.counts.batches[class as usize] += 1;
        self.counts.started[class as usize] += batch.copies.len() as u64;
        self.counts.bytes[class as usize] += batch.bytes;
        batch
    }
}

/// *σ(m)*: how many times more requests a second a mover accepts in batches of `copies` than one by
/// one, for a doorbell of `doorbell_ns` and `copy_ns` of work per copy (CXL-SpecKV §3.6.2).
///
/// The paper divides *T_MMIO* by the amortized latency, which is below 1 for *m* = 1. Here a single
/// request, *T_MMIO + T_proc*, is the numerator, so *σ(1) = 1*.
///
/// # Panics
/// Panics if `copies` is 0 or both times are 0.
#[must_use]
pub fn batch_gain(doorbell_ns: u64, copy_ns: u64, copies: u32) -> f64 {
    assert!(copies > 0 && doorbell_ns + copy_ns > 0, "a request takes time and copies something");
    let (doorbell, copy, m) = (doorbell_ns as f64, copy_ns as f64, f64::from(copies));
    m * (doorbell + copy) / (doorbell + m * copy)
}

#[cfg(test)]
mod tests;
