//! Reads in progress, and the requests that wait for them.

use crate::record::Name;
use cenote_base::{Clock, Deadline};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most blocks that wait for a reader.
const READS_MAX: usize = 1 << 14;

/// Blocks that one request waits for. Dropping it abandons nothing: blocks that are read become
/// shared.
#[derive(Clone)]
pub struct Promotion(Arc<Progress>);

struct Progress {
    until: Deadline,
    state: Mutex<Left>,
    done: Condvar,
}

type Wake = Box<dyn FnOnce() + Send>;

struct Left {
    /// Blocks that are neither published nor failed.
    blocks: usize,
    /// Called when no block is left.
    wakes: Vec<Wake>,
}

impl Promotion {
    /// A promotion of so many blocks, which other code than a tier reads.
    #[must_use]
    pub fn of(blocks: usize, until: Deadline) -> Self {
        let state = Mutex::new(Left { blocks, wakes: Vec::new() });
        Self(Arc::new(Progress { until, state, done: Condvar::new() }))
    }

    /// A promotion that is over when both are. Each must end by its own deadline, whatever its reader
    /// does, so that the later one keeps no request waiting.
    #[must_use]
    pub fn both(one: &Self, other: &Self) -> Self {
        let until = if one.until().at_ns() < other.until().at_ns() { other.until() } else { one.until() };
        let both = Self::of(2, until);
        for part in [one, other] {
            let both = both.clone();
            part.on_over(move || both.one_done());
        }
        both
    }

    /// When its request stops waiting.
    #[must_use]
    pub fn until(&self) -> Deadline {
        self.0.until
    }

    /// Whether all blocks are published or failed, or the deadline has passed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state().blocks == 0 || self.0.until.passed()
    }

    /// Calls `wake` once when all blocks are published or failed: at once, or from the thread that reads
    /// the last one. The deadline calls nothing: see [`Promotion::until`].
    pub fn on_over(&self, wake: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        if state.blocks > 0 {
            state.wakes.push(Box::new(wake));
        } else {
            drop(state);
            wake();
        }
    }

    /// Waits until [`Promotion::is_over`], at most until the promotion's own deadline. Returns
    /// whether every block was published or failed.
    pub fn wait(&self) -> bool {
        self.0.until.wait_while(&self.0.done, self.state(), |left| left.blocks > 0).blocks == 0
    }

    fn state(&self) -> MutexGuard<'_, Left> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block is published, or failed.
    pub fn one_done(&self) {
        let mut state = self.state();
        state.blocks = state.blocks.saturating_sub(1);
        if state.blocks > 0 {
            return;
        }
        let wakes = std::mem::take(&mut state.wakes);
        drop(state);
        self.0.done.notify_all();
        wakes.into_iter().for_each(|wake| wake());
    }
}

/// A read for the requests that wait for it.
pub struct Read {
    /// The block.
    pub name: Name,
    started: u64,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Name>,
    /// Requests of each queued or running read.
    waiters: HashMap<Name, Vec<Promotion>>,
    /// Start of each running read, in nanoseconds of the clock.
    running: HashMap<u64, u64>,
    started: u64,
    is_closed: bool,
}

/// All reads of a tier.
pub struct Reads {
    clock: Clock,
    state: Mutex<State>,
    changed: Condvar,
}

impl Reads {
    /// No reads yet. `clock` measures them.
    pub fn new(clock: Clock) -> Self {
        Self { clock, state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No statement leaves the state inconsistent, so a poisoned lock is usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the reads, for tests.
    #[cfg(test)]
    pub fn hold(&self) -> impl Sized + '_ {
        self.state()
    }

    /// Queues reads. A block that is being read for another request is not read again. Also returns
    /// the number of blocks that were refused.
    pub fn begin(&self, names: &[Name], until: Deadline) -> (Promotion, u64) {
        let promotion = Promotion::of(0, until);
        let (mut state, mut refused) = (self.state(), 0);
        for name in names {
            let is_new = !state.waiters.contains_key(name);
            if is_new && (state.is_closed || state.queue.len() >= READS_MAX) {
                refused += 1;
                continue;
            }
            if is_new {
                state.queue.push_back(*name);
            }
            promotion.state().blocks += 1;
            state.waiters.entry(*name).or_default().push(promotion.clone());
        }
        drop(state);
        self.changed.notify_all();
        (promotion, refused)
    }

    /// Takes a read; waits for one. `None`: the tier ends. Reads that no request waits for any more
    /// are taken off and told to `late`.
    pub fn take(&self, late: impl Fn()) -> Option<Read> {
        let mut state = self.state();
        loop {
            // Requests compute their blocks now, so nothing is read.
            if state.is_closed {
                let State { queue, waiters, .. } = &mut *state;
                let unread: Vec<_> = queue.drain(..).map(|name| waiters.remove(&name)).collect();
                drop(state);
                unread.into_iter().for_each(release);
                return None;
            }
            match state.queue.pop_front() {
                Some(name) if state.waiters[&name].iter().all(|waiter| waiter.0.until.passed()) => {
                    let waiters = state.waiters.remove(&name);
                    drop(state);
                    late();
                    release(waiters);
                    state = self.state();
                }
                Some(name) => {
                    state.started += 1;
                    let started = state.started;
                    state.running.insert(started, self.clock.now_ns());
                    return Some(Read { name, started });
                }
                None => {
                    // The bound only limits a missed wake-up.
                    let waited = self.changed.wait_timeout(state, Duration::from_secs(1));
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Ends a read. `count` learns whether a request still waits for it, before the request
    /// continues.
    pub fn done(&self, read: &Read, count: impl FnOnce(bool)) {
        let mut state = self.state();
        state.running.remove(&read.started);
        let waiters = state.waiters.remove(&read.name);
        let in_time = waiters.iter().flatten().any(|waiter| !waiter.0.until.passed());
        drop(state);
        count(in_time);
        release(waiters);
    }

    /// Whether a read has taken longer than requests wait. Then no request should wait for further
    /// ones.
    pub fn is_stuck(&self, deadline: Duration) -> bool {
        self.state().running.values().any(|&since_ns| self.clock.since(since_ns) > deadline)
    }

    /// Ends all takers.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }

    pub fn len(&self) -> usize {
        self.state().waiters.len()
    }
}

fn release(waiters: Option<Vec<Promotion>>) {
    waiters.into_iter().flatten().for_each(|waiter| waiter.one_done());
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::BlockHash;
    use cenote_base::testing::ManualTime;
    use std::sync::mpsc::channel;

    #[test]
    fn the_last_block_wakes_each_waiter_once_and_the_deadline_none() {
        let time = ManualTime::start();
        let promotion = Promotion::of(2, time.clock().after(Duration::from_secs(1)));
        let (sender, woken) = channel();
        for waiter in 0..2 {
            let sender = sender.clone();
            promotion.on_over(move || sender.send(waiter).unwrap());
        }
        promotion.one_done();
        assert!(!promotion.is_over());
        time.advance(Duration::from_secs(1));
        assert!(promotion.is_over() && !promotion.wait());
        assert!(woken.try_recv().is_err(), "a block is still being read");
        promotion.one_done();
        promotion.on_over(move || sender.send(2).unwrap());
        assert_eq!(woken.iter().collect::<Vec<_>>(), [0, 1, 2]);
        assert!(promotion.wait());
    }

    #[test]
    fn two_promotions_are_over_when_both_are() {
        let time = ManualTime::start();
        let after = |seconds| time.clock().after(Duration::from_secs(seconds));
        let (short, long) = (Promotion::of(1, after(1)), Promotion::of(1, after(3)));
        let both = Promotion::both(&short, &long);
        assert_eq!(both.until().remaining(), Duration::from_secs(3));
        long.one_done();
        assert!(!both.is_over());
        short.one_done();
        assert!(both.is_over() && both.wait());
        let both = Promotion::both(&Promotion::of(0, after(1)), &Promotion::of(1, after(1)));
        assert!(!both.is_over());
        time.advance(Duration::from_secs(1));
        assert!(both.is_over() && !both.wait());
    }

    /// Reads of a tier that ends, and reads that come too late, wake their requests too; none holds the
    /// lock of the reads meanwhile.
    #[test]
    fn every_end_of_a_read_wakes_its_request_without_a_lock() {
        let time = ManualTime::start();
        let reads = Arc::new(Reads::new(time.clock()));
        let name = |at: u64| Name { namespace: [1; 32], hash: BlockHash::from_words([at, at]) };
        let (sender, woken) = channel();
        let begin = |at: u64| {
            let (promotion, refused) = reads.begin(&[name(at)], time.clock().after(Duration::from_secs(1)));
            assert_eq!(refused, 0);
            let (sender, reads) = (sender.clone(), Arc::clone(&reads));
            promotion.on_over(move || sender.send((at, reads.len())).unwrap());
        };
        begin(0);
        time.advance(Duration::from_secs(1));
        begin(1);
        let read = reads.take(|| assert_eq!(reads.len(), 1, "the late one is gone")).unwrap();
        assert_eq!((read.name, woken.try_recv()), (name(1), Ok((0, 1))));
        reads.done(&read, |in_time| assert!(in_time));
        assert_eq!(woken.try_recv(), Ok((1, 0)));
        begin(2);
        reads.close();
        assert!(reads.take(|| panic!("not late")).is_none());
        assert_eq!(woken.try_recv(), Ok((2, 0)));
    }
}
