//! A mover whose jobs run on its caller's thread.

use super::{Job, Link, LinkSpeed, Moved, Mover};
use cenote_base::Clock;
use cenote_policy::transfer::{
    Action, Cancelled, Class, Completed, Ticket, TransferConfig, TransferCounts, Transfers, Wanted,
};
use std::collections::BTreeMap;

/// A mover that copies when its caller polls, in the order of [`Transfers`]. Its jobs end when the link
/// delivers them. So what arrives when depends on the calls and the clock alone, and a test with its own
/// time repeats exactly.
pub struct InlineMover<J: Job> {
    transfers: Transfers<J>,
    link: Link,
    clock: Clock,
    /// Copied jobs whose bytes the link has not delivered, by delivery.
    under_way: BTreeMap<(u64, Ticket), J>,
}

impl<J: Job> InlineMover<J> {
    /// A mover over a link of this speed; `None`: of memory's own.
    #[must_use]
    pub fn new(config: TransferConfig, speed: Option<LinkSpeed>, clock: Clock) -> Self {
        Self { transfers: Transfers::new(config), link: Link::new(speed), clock, under_way: BTreeMap::new() }
    }

    /// Copies, and returns when the link delivers the bytes.
    fn copy(&self, job: &mut J) -> u64 {
        let begin_ns = self.clock.now_ns();
        job.run();
        self.link.deliver(begin_ns, job.bytes())
    }
}

impl<J: Job> Mover<J> for InlineMover<J> {
    fn submit(&mut self, class: Class, deadline_ns: Option<u64>, jobs: Vec<J>) -> Vec<Ticket> {
        let wanted = jobs.into_iter().map(|item| Wanted { class, bytes: item.bytes(), deadline_ns, item });
        wanted.map(|wanted| self.transfers.submit(wanted)).collect()
    }

    fn poll(&mut self) -> Option<(Ticket, Moved<J>)> {
        while let Some(action) = self.transfers.poll_action(self.clock.now_ns()) {
            match action {
                Action::Start(batch) => {
                    for (ticket, mut job) in batch.copies {
                        let delivered_ns = self.copy(&mut job);
                        self.under_way.insert((delivered_ns, ticket), job);
                    }
                }
                Action::Expired(ticket, job) => return Some((ticket, Moved::Expired(job))),
                Action::Late(_) => {}
            }
        }
        let entry = self.under_way.first_entry().filter(|entry| entry.key().0 <= self.clock.now_ns())?;
        let ((_, ticket), job) = entry.remove_entry();
        Some((
            ticket,
            match self.transfers.completed(ticket) {
                Completed::Discard => Moved::Discarded(job),
                Completed::Use | Completed::Unknown => Moved::Done(job),
            },
        ))
    }

    fn cancel(&mut self, ticket: Ticket) -> Option<J> {
        match self.transfers.cancel(ticket) {
            Cancelled::Queued(job) => Some(job),
            Cancelled::Started | Cancelled::Unknown => None,
        }
    }

    fn take(&mut self, ticket: Ticket) -> Option<J> {
        self.transfers.take(ticket)
    }

    fn run_now(&mut self, job: &mut J) {
        let delivered_ns = self.copy(job);
        self.clock.at(delivered_ns).spin();
    }

    fn pause(&mut self) {
        match self.under_way.first_key_value() {
            Some(((due_ns, _), _)) => self.clock.at(*due_ns).spin(),
            None => std::hint::spin_loop(),
        }
    }

    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn counts(&self) -> TransferCounts {
        *self.transfers.counts()
    }
}
