//! Movers: copies between tiers that run beside a computation (CXL-SpecKV §3.4.2, §3.6.2).
//!
//! A [`Mover`] takes jobs and returns them when they have run. [`cenote_policy::transfer::Transfers`]
//! decides their order and bounds the outstanding ones. [`ThreadMover`] runs them on threads of its
//! own, and [`InlineMover`] on its caller's; a device with a copy engine would be another mover.

mod inline;
mod link;
mod threads;

pub use inline::InlineMover;
pub use link::{Link, LinkSpeed};
pub use threads::ThreadMover;

use cenote_base::Clock;
use cenote_policy::transfer::{Class, Ticket, TransferConfig, TransferCounts};

/// Where a mover runs its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoverKind {
    /// On so many threads. 0: only [`Mover::run_now`] copies.
    Threads(usize),
    /// On the caller's thread when it polls, for tests with a clock of their own.
    Inline,
}

impl MoverKind {
    /// Number of threads of its own.
    #[must_use]
    pub const fn threads(self) -> usize {
        match self {
            Self::Threads(threads) => threads,
            Self::Inline => 0,
        }
    }
}

/// Settings of a mover.
#[derive(Clone, Copy, Debug)]
pub struct MoverConfig {
    /// Where its jobs run.
    pub kind: MoverKind,
    /// Speed of its link; `None`: of memory's own.
    pub link: Option<LinkSpeed>,
    /// Its clock.
    pub clock: Clock,
}

impl MoverConfig {
    /// Starts a mover.
    ///
    /// # Errors
    /// The operating system cannot create a thread.
    pub fn start<J: Job>(&self) -> std::io::Result<Box<dyn Mover<J>>> {
        self.start_with(TransferConfig::default())
    }

    /// As [`Self::start`], with limits for its outstanding jobs.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with<J: Job>(&self, limits: TransferConfig) -> std::io::Result<Box<dyn Mover<J>>> {
        Ok(match self.kind {
            MoverKind::Threads(threads) => Box::new(ThreadMover::start(threads, limits, self.link, self.clock)?),
            MoverKind::Inline => Box::new(InlineMover::new(limits, self.link, self.clock)),
        })
    }
}

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

    /// Lets a moment pass in which the caller waits for a job.
    fn pause(&mut self);

    /// Nanoseconds of the mover's clock.
    fn now_ns(&self) -> u64;

    /// Counters since the start.
    fn counts(&self) -> TransferCounts;
}

#[cfg(test)]
mod tests;
