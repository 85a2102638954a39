//! A mover of modelled copies: [`Transfers`] decides, a [`TierLink`] takes time.

use crate::kernel::Time;
use crate::model::TierLink;
use cenote_policy::transfer::{Action, Class, Completed, Ticket, TransferConfig, TransferCounts, Transfers, Wanted};
use std::collections::BTreeMap;

/// A copy from a channel of a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job<T> {
    /// Channel of the tier.
    pub channel: u32,
    /// Bytes.
    pub bytes: u64,
    /// What is copied.
    pub item: T,
}

/// A mover and its link. A batch starts after the doorbell. A channel carries its copies one after
/// the other; latencies overlap.
#[derive(Clone, Debug)]
pub struct Mover<T> {
    transfers: Transfers<Job<T>>,
    tier: TierLink,
    /// Time at which the mover can ring the next doorbell.
    doorbell_at: Time,
    /// Time at which each channel is free.
    free_at: Vec<Time>,
    running: BTreeMap<Ticket, Job<T>>,
    bytes: u64,
    /// Channel-nanoseconds in use.
    busy_ns: u64,
}

impl<T: Clone> Mover<T> {
    /// An idle mover with the tier's window, in batches of at most `batch` copies.
    #[must_use]
    pub fn new(tier: TierLink, batch: u32) -> Self {
        let config = TransferConfig { batch_copies_max: batch, ..TransferConfig::window(tier.outstanding_max) };
        Self {
            transfers: Transfers::new(config),
            tier,
            doorbell_at: 0,
            free_at: vec![0; tier.channels as usize],
            running: BTreeMap::new(),
            bytes: 0,
            busy_ns: 0,
        }
    }

    /// Queues a copy.
    pub fn submit(&mut self, class: Class, job: Job<T>, deadline_ns: Option<u64>) -> Ticket {
        self.transfers.submit(Wanted { class, bytes: job.bytes, deadline_ns, item: job })
    }

    /// Starts what may start. Calls `schedule` with the end of each copy, and `expired` with each copy
    /// that missed its deadline.
    pub fn pump(&mut self, now: Time, mut schedule: impl FnMut(Time, Ticket), mut expired: impl FnMut(T)) {
        while let Some(action) = self.transfers.poll_action(now) {
            match action {
                Action::Start(batch) => {
                    self.doorbell_at = self.doorbell_at.max(now) + self.tier.doorbell_ns;
                    for (ticket, job) in batch.copies {
                        let end = self.carry(self.doorbell_at, job.channel, job.bytes);
                        self.running.insert(ticket, job);
                        schedule(end, ticket);
                    }
                }
                Action::Expired(_, job) => expired(job.item),
                Action::Late(_) => {}
            }
        }
    }

    /// Occupies a channel from `from` on. Returns the end of the copy.
    fn carry(&mut self, from: Time, channel: u32, bytes: u64) -> Time {
        let rate = u128::from(self.tier.link.bytes_per_s);
        let time = (u128::from(bytes) * 1_000_000_000 * u128::from(self.tier.channels) / rate) as u64;
        let free = &mut self.free_at[channel as usize];
        *free = (*free).max(from) + time;
        self.bytes += bytes;
        self.busy_ns += time;
        *free + self.tier.link.latency_ns
    }

    /// A synchronous read by the caller itself: it takes the link's next turn. Returns its end.
    pub fn read_now(&mut self, now: Time, bytes: u64) -> Time {
        if bytes == 0 { now } else { self.carry(now + self.tier.doorbell_ns, 0, bytes) }
    }

    /// Ends a copy. Returns it and whether its bytes count; `None` if it is not under way.
    pub fn completed(&mut self, ticket: Ticket) -> Option<(T, bool)> {
        let job = self.running.remove(&ticket)?;
        Some((job.item, self.transfers.completed(ticket) == Completed::Use))
    }

    /// The policy.
    pub const fn transfers(&mut self) -> &mut Transfers<Job<T>> {
        &mut self.transfers
    }

    /// Counters of the policy.
    #[must_use]
    pub const fn counts(&self) -> &TransferCounts {
        self.transfers.counts()
    }

    /// Bytes copied.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Nanoseconds of all channels together in which they carried copies.
    #[must_use]
    pub const fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// Share of the bandwidth that was in use during `span` nanoseconds, given [`Self::busy_ns`] at
    /// its begin.
    #[must_use]
    pub fn utilization(&self, busy_before: u64, span: Time) -> f64 {
        let whole = span.max(1) as f64 * f64::from(self.tier.channels);
        ((self.busy_ns - busy_before) as f64 / whole).min(1.0)
    }
}
