//! A mover whose jobs run on threads.

use super::{Job, Link, LinkSpeed, Moved, Mover};
use cenote_base::Clock;
use cenote_policy::transfer::{
    Action, Cancelled, Class, Completed, Ticket, TransferConfig, TransferCounts, Transfers, Wanted,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Looks at the queue before an idle thread sleeps. A step's requests follow each other within
/// microseconds, and waking a thread takes longer.
const LOOKS: u32 = 2_000;
/// Longest sleep of an idle thread. A wake-up ends it earlier.
const SLEEP: Duration = Duration::from_millis(100);

/// A mover whose jobs run on threads. Dropping it waits for the jobs under way.
pub struct ThreadMover<J: Job> {
    shared: Arc<Shared<J>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<J> {
    state: Mutex<State<J>>,
    /// Signalled for each submitted job while a thread sleeps.
    wake: Condvar,
    /// Whether `ended` has a job, so that polling takes no lock.
    has_ended: AtomicBool,
    /// Whether the queue may have a job to start.
    has_queued: AtomicBool,
    link: Link,
    clock: Clock,
}

struct State<J> {
    transfers: Transfers<J>,
    ended: VecDeque<(Ticket, Moved<J>)>,
    sleeping: u32,
    is_stopping: bool,
}

impl<J> Shared<J> {
    fn state(&self) -> MutexGuard<'_, State<J>> {
        // Jobs run outside of the lock, and no statement within leaves the state inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J: Job> ThreadMover<J> {
    /// Starts `threads` threads over a link of this speed; `None`: of memory's own. Without a thread
    /// only [`Mover::run_now`] copies.
    ///
    /// # Errors
    /// The operating system cannot create a thread.
    pub fn start(
        threads: usize,
        config: TransferConfig,
        speed: Option<LinkSpeed>,
        clock: Clock,
    ) -> std::io::Result<Self> {
        let state =
            State { transfers: Transfers::new(config), ended: VecDeque::new(), sleeping: 0, is_stopping: false };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            wake: Condvar::new(),
            has_ended: AtomicBool::new(false),
            has_queued: AtomicBool::new(false),
            link: Link::new(speed),
            clock,
        });
        let mut mover = Self { shared, threads: Vec::new() };
        for index in 0..threads {
            let shared = Arc::clone(&mover.shared);
            let thread = std::thread::Builder::new().name(format!("cenote-mover-{index}"));
            mover.threads.push(thread.spawn(move || Worker { shared, under_way: BTreeMap::new() }.run())?);
        }
        Ok(mover)
    }
}

impl<J: Job> Drop for ThreadMover<J> {
    fn drop(&mut self) {
        self.shared.state().is_stopping = true;
        self.shared.has_queued.store(true, Ordering::Release);
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // A job that panicked has printed its message.
            let _ = thread.join();
        }
    }
}

impl<J: Job> Mover<J> for ThreadMover<J> {
    fn submit(&mut self, class: Class, deadline_ns: Option<u64>, jobs: Vec<J>) -> Vec<Ticket> {
        let mut state = self.shared.state();
        let wanted = jobs.into_iter().map(|item| Wanted { class, bytes: item.bytes(), deadline_ns, item });
        let tickets = wanted.map(|wanted| state.transfers.submit(wanted)).collect();
        self.shared.has_queued.store(true, Ordering::Release);
        if state.sleeping > 0 {
            self.shared.wake.notify_one();
        }
        tickets
    }

    fn poll(&mut self) -> Option<(Ticket, Moved<J>)> {
        if !self.shared.has_ended.load(Ordering::Acquire) {
            return None;
        }
        let mut state = self.shared.state();
        let ended = state.ended.pop_front();
        self.shared.has_ended.store(!state.ended.is_empty(), Ordering::Release);
        ended
    }

    fn cancel(&mut self, ticket: Ticket) -> Option<J> {
        match self.shared.state().transfers.cancel(ticket) {
            Cancelled::Queued(job) => Some(job),
            Cancelled::Started | Cancelled::Unknown => None,
        }
    }

    fn take(&mut self, ticket: Ticket) -> Option<J> {
        self.shared.state().transfers.take(ticket)
    }

    fn run_now(&mut self, job: &mut J) {
        let begin_ns = self.shared.clock.now_ns();
        job.run();
        let delivered_ns = self.shared.link.deliver(begin_ns, job.bytes());
        self.shared.clock.at(delivered_ns).spin();
    }

    fn pause(&mut self) {
        std::hint::spin_loop();
    }

    fn now_ns(&self) -> u64 {
        self.shared.clock.now_ns()
    }

    fn counts(&self) -> TransferCounts {
        *self.shared.state().transfers.counts()
    }
}

/// One thread.
struct Worker<J: Job> {
    shared: Arc<Shared<J>>,
    /// Copied jobs whose bytes the link has not delivered, by delivery.
    under_way: BTreeMap<(u64, Ticket), J>,
}

impl<J: Job> Worker<J> {
    fn run(mut self) {
        let mut looks = 0;
        loop {
            let (jobs, is_stopping) = self.exchange();
            if is_stopping && jobs.is_empty() && self.under_way.is_empty() {
                return;
            }
            looks = if jobs.is_empty() && self.under_way.is_empty() { looks + 1 } else { 0 };
            for (ticket, mut job) in jobs {
                let begin_ns = self.shared.clock.now_ns();
                job.run();
                let delivered_ns = self.shared.link.deliver(begin_ns, job.bytes());
                self.under_way.insert((delivered_ns, ticket), job);
                self.deliver();
            }
            if looks >= LOOKS {
                self.sleep();
                looks = 0;
            } else if looks > 0 {
                std::hint::spin_loop();
            }
        }
    }

    /// Hands delivered jobs over and takes the next batch. Returns it, and whether the mover stops.
    fn exchange(&mut self) -> (Vec<(Ticket, J)>, bool) {
        let first = self.under_way.first_key_value();
        let has_due = first.is_some_and(|((due_ns, _), _)| *due_ns <= self.shared.clock.now_ns());
        if !has_due && !self.shared.has_queued.load(Ordering::Acquire) {
            return (Vec::new(), false);
        }
        self.deliver();
        let mut state = self.shared.state();
        let now = self.shared.clock.now_ns();
        loop {
            match state.transfers.poll_action(now) {
                Some(Action::Start(batch)) => return (batch.copies, state.is_stopping),
                Some(Action::Expired(ticket, job)) => {
                    state.ended.push_back((ticket, Moved::Expired(job)));
                    self.shared.has_ended.store(true, Ordering::Release);
                }
                Some(Action::Late(_)) => {}
                None => {
                    let queued = Class::ALL.iter().any(|class| state.transfers.num_queued(*class) > 0);
                    self.shared.has_queued.store(queued || state.is_stopping, Ordering::Release);
                    return (Vec::new(), state.is_stopping);
                }
            }
        }
    }

    /// Hands over the jobs that the link has delivered.
    fn deliver(&mut self) {
        let now = self.shared.clock.now_ns();
        while let Some(entry) = self.under_way.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((_, ticket), job) = entry.remove_entry();
            let mut state = self.shared.state();
            let moved = match state.transfers.completed(ticket) {
                Completed::Discard => Moved::Discarded(job),
                Completed::Use | Completed::Unknown => Moved::Done(job),
            };
            state.ended.push_back((ticket, moved));
            self.shared.has_ended.store(true, Ordering::Release);
        }
    }

    fn sleep(&self) {
        let mut state = self.shared.state();
        if self.shared.has_queued.load(Ordering::Acquire) {
            return;
        }
        state.sleeping += 1;
        let (mut state, _) = self.shared.wake.wait_timeout(state, SLEEP).unwrap_or_else(PoisonError::into_inner);
        state.sleeping -= 1;
    }
}
