//! Names of blocks that wait for the writer: bounded, so that a slow disk costs blocks and no time.

use crate::record::Name;
use cenote_base::Deadline;
use std::collections::{HashSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Most waiting blocks.
pub const WAITING_MAX: usize = 1 << 14;

/// The waiting blocks.
#[derive(Default)]
pub struct Waiting {
    names: VecDeque<Name>,
    /// The same names, so that none waits twice.
    set: HashSet<Name>,
    /// The writer has taken names and has not finished them.
    is_writing: bool,
    /// Nothing more is queued, and what waits is written until then.
    closed: Option<Deadline>,
}

impl Waiting {
    /// Whether every offered block is written or dropped.
    pub fn is_settled(&self) -> bool {
        self.names.is_empty() && !self.is_writing
    }
}

/// Blocks that were not queued.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// They are written already.
    pub duplicates: u64,
    /// The queue is full or closed.
    pub busy: u64,
}

/// What the writer does next.
pub enum Turn {
    /// It writes these blocks, then calls [`Queue::done`].
    Write(Vec<Name>),
    /// Nothing is waiting.
    Idle,
    /// Nothing is waiting, and nothing will.
    End,
}

/// A queue with one taker.
#[derive(Default)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // No statement leaves the state inconsistent, so a poisoned lock is usable.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues names, except those that `is_written` knows. `offered` learns the number of all names
    /// before one can be taken.
    pub fn push(
        &self,
        names: impl IntoIterator<Item = Name>,
        is_written: impl Fn(&Name) -> bool,
        offered: impl FnOnce(u64),
    ) -> Dropped {
        let mut dropped = Dropped::default();
        let mut count = 0;
        let mut waiting = self.waiting();
        for name in names {
            count += 1;
            if waiting.set.contains(&name) || is_written(&name) {
                dropped.duplicates += 1;
            } else if waiting.closed.is_some() || waiting.names.len() >= WAITING_MAX {
                dropped.busy += 1;
            } else {
                waiting.set.insert(name);
                waiting.names.push_back(name);
            }
        }
        offered(count);
        drop(waiting);
        self.changed.notify_all();
        dropped
    }

    /// Takes up to `most` names. Waits for them until the deadline.
    pub fn take(&self, most: usize, deadline: Deadline) -> Turn {
        let idle = |waiting: &mut Waiting| waiting.names.is_empty() && waiting.closed.is_none();
        let mut waiting = deadline.wait_while(&self.changed, self.waiting(), idle);
        if waiting.names.is_empty() {
            return if waiting.closed.is_some() { Turn::End } else { Turn::Idle };
        }
        let count = most.min(waiting.names.len());
        let names: Vec<Name> = waiting.names.drain(..count).collect();
        for name in &names {
            waiting.set.remove(name);
        }
        waiting.is_writing = true;
        Turn::Write(names)
    }

    /// Ends a turn of writing.
    pub fn done(&self) {
        self.waiting().is_writing = false;
        self.changed.notify_all();
    }

    /// Waits until the deadline, or until the queue is closed.
    pub fn pause(&self, deadline: Deadline) {
        drop(deadline.wait_while(&self.changed, self.waiting(), |waiting| waiting.closed.is_none()));
    }

    /// Drops all waiting names. Returns their number.
    pub fn clear(&self) -> u64 {
        let mut waiting = self.waiting();
        waiting.set.clear();
        let count = waiting.names.len();
        waiting.names.clear();
        drop(waiting);
        self.changed.notify_all();
        count as u64
    }

    /// Whether nothing more is queued.
    pub fn is_closed(&self) -> bool {
        self.waiting().closed.is_some()
    }

    /// Whether the queue is closed, and the time for what waits is over.
    pub fn is_over(&self) -> bool {
        self.waiting().closed.is_some_and(Deadline::passed)
    }

    /// Refuses further names. The writer takes those that wait, until the deadline.
    pub fn close(&self, deadline: Deadline) {
        self.waiting().closed = Some(deadline);
        self.changed.notify_all();
    }

    /// Wakes the waits of [`Queue::wait`] after a change elsewhere.
    pub fn notify(&self) {
        // Under the lock, so that a wait between its check and its sleep is woken too.
        drop(self.waiting());
        self.changed.notify_all();
    }

    /// Waits until `so` holds. Returns whether it does.
    pub fn wait(&self, deadline: Deadline, so: impl Fn(&Waiting) -> bool) -> bool {
        so(&deadline.wait_while(&self.changed, self.waiting(), |waiting| !so(waiting)))
    }

    pub fn len(&self) -> usize {
        self.waiting().names.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::{BlockHash, Clock};
    use std::time::Duration;

    #[test]
    fn a_full_queue_drops_and_never_waits() {
        let (queue, now) = (Queue::default(), Clock::stopped().after(Duration::ZERO));
        let name = |number: usize| {
            let mut hash = [1; 16];
            hash[..8].copy_from_slice(&(number as u64).to_le_bytes());
            Name { namespace: [0; 32], hash: BlockHash(hash) }
        };
        let mut offered = 0;
        let dropped = queue.push((0..WAITING_MAX + 10).map(name), |_| false, |count| offered = count);
        assert_eq!((dropped, offered), (Dropped { duplicates: 0, busy: 10 }, WAITING_MAX as u64 + 10));
        let dropped = queue.push((0..5).map(name), |_| false, drop);
        assert_eq!(dropped, Dropped { duplicates: 5, busy: 0 });
        let Turn::Write(names) = queue.take(3, now) else { panic!("names wait") };
        assert_eq!(names, [name(0), name(1), name(2)]);
        assert_eq!(queue.push([name(0)], |_| true, drop), Dropped { duplicates: 1, busy: 0 });
        queue.done();
        queue.close(now);
        assert_eq!(queue.push([name(0)], |_| false, drop), Dropped { duplicates: 0, busy: 1 });
        assert_eq!(queue.clear() as usize, WAITING_MAX - 3);
        assert!(matches!(queue.take(1, now), Turn::End));
    }
}
