//! Movers: copies between tiers that run beside a computation (CXL-SpecKV §3.4.2, §3.6.2).
//!
//! A [`Mover`] takes jobs and returns them when they have run. [`cenote_policy::transfer::Transfers`]
//! decides their order and bounds the outstanding ones. [`ThreadMover`] runs them on threads of its
//! own; a device with a copy engine would be another mover.

mod link;
mod threads;

pub use link::{Link, LinkSpeed};
pub use threads::ThreadMover;

use cenote_policy::transfer::{Class, Ticket, TransferCounts};

/// One copy.
pub trait Job: Send + 'static {
    /// Bytes that it moves.
    fn bytes(&self) -> u64;

    /// Copies, and keeps the result for the caller.
    fn run(&mut self);
}

/// End of a job.
#[derive(Debug)]
pub enum Moved<J> {
    /// It has run.
    Done(J),
    /// Its deadline passed before it started.
    Expired(J),
    /// It was cancelled after it had started, and has run.
    Discarded(J),
}

impl<J> Moved<J> {
    /// The job.
    pub fn into_job(self) -> J {
        match self {
            Self::Done(job) | Self::Expired(job) | Self::Discarded(job) => job,
        }
    }
}

/// Runs jobs beside its caller. Each submitted job comes back once, from [`Mover::poll`] or from
/// [`Mover::cancel`].
pub trait Mover<J: Job>: Send {
    /// Queues jobs. `deadline_ns` is in nanoseconds of [`Mover::now_ns`]; later the job is useless.
    fn submit(&mut self, class: Class, deadline_ns: Option<u64>, jobs: Vec<J>) -> Vec<Ticket>;

    /// A job that has ended. Does not wait.
    fn poll(&mut self) -> Option<(Ticket, Moved<J>)>;

    /// Withdraws a job. `Some`: it had not started and never will. `None`: it comes from
    /// [`Mover::poll`].
    fn cancel(&mut self, ticket: Ticket) -> Option<J>;

    /// Takes a job back that has not started, to run it now.
    fn take(&mut self, ticket: Ticket) -> Option<J>;

    /// Runs a job now, on the caller's thread, over the mover's link.
    fn run_now(&mut self, job: &mut J);

    /// Nanoseconds of the mover's clock.
    fn now_ns(&self) -> u64;

    /// Counters since the start.
    fn counts(&self) -> TransferCounts;
}
