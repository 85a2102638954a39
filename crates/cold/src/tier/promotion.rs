//! Reads in progress, and the requests that wait for them.

use crate::record::Name;
use cenote_base::{Clock, Deadline};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most blocks that wait for a reader.
const READS_MAX: usize = 1 << 14;
/// Most questions that wait for one.
const ASKS_MAX: usize = 1 << 10;

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

/// A question of one request: which of these blocks does the place have? Those are read then.
pub struct Ask {
    /// The blocks.
    pub names: Vec<Name>,
    /// Only those before the first that is missing are wanted.
    pub leading: bool,
    /// What the request waits for; the question is one block of it.
    pub promotion: Promotion,
}

/// What a reader does next.
pub enum Turn {
    /// It reads a block, then calls [`Reads::done`].
    Read(Read),
    /// It asks, then calls [`Reads::answered`] with this number.
    Ask(Ask, u64),
}

#[derive(Default)]
struct State {
    asks: VecDeque<Ask>,
    queue: VecDeque<Name>,
    /// Requests of each queued or running read.
    waiters: HashMap<Name, Vec<Promotion>>,
    /// Start of each running read, in nanoseconds of the clock.
    running: HashMap<u64, u64>,
    started: u64,
    is_closed: bool,
}

impl State {
    /// The number of a read or question that begins.
    fn start(&mut self, clock: Clock) -> u64 {
        self.started += 1;
        self.running.insert(self.started, clock.now_ns());
        self.started
    }
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
        let refused = self.add(names, &promotion);
        (promotion, refused)
    }

    /// As [`Reads::begin`], for a promotion that is there.
    pub fn add(&self, names: &[Name], promotion: &Promotion) -> u64 {
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
        refused
    }

    /// Queues a question. `None`: too many wait.
    pub fn ask(&self, names: Vec<Name>, leading: bool, until: Deadline) -> Option<Promotion> {
        let promotion = Promotion::of(1, until);
        let mut state = self.state();
        if state.is_closed || state.asks.len() >= ASKS_MAX {
            return None;
        }
        state.asks.push_back(Ask { names, leading, promotion: promotion.clone() });
        drop(state);
        self.changed.notify_all();
        Some(promotion)
    }

    /// Takes a question or a read; waits for one. `None`: the tier ends. What no request waits for any more
    /// is taken off; reads are told to `late`.
    pub fn take(&self, late: impl Fn()) -> Option<Turn> {
        let mut state = self.state();
        loop {
            // Requests compute their blocks now, so nothing is read.
            if state.is_closed {
                let State { asks, queue, waiters, .. } = &mut *state;
                let unasked: Vec<Ask> = asks.drain(..).collect();
                let unread: Vec<_> = queue.drain(..).map(|name| waiters.remove(&name)).collect();
                drop(state);
                unasked.iter().for_each(|ask| ask.promotion.one_done());
                unread.into_iter().for_each(release);
                return None;
            }
            // A question is short, and its request waits for reads after it.
            if let Some(ask) = state.asks.pop_front() {
                if !ask.promotion.until().passed() {
                    return Some(Turn::Ask(ask, state.start(self.clock)));
                }
                drop(state);
                ask.promotion.one_done();
                state = self.state();
                continue;
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
                    let started = state.start(self.clock);
                    return Some(Turn::Read(Read { name, started }));
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

    /// Ends a question. The reads that it began count already.
    pub fn answered(&self, ask: &Ask, started: u64) {
        self.state().running.remove(&started);
        ask.promotion.one_done();
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
        let Some(Turn::Read(read)) = reads.take(|| assert_eq!(reads.len(), 1, "the late one is gone")) else {
            panic!("a read waits")
        };
        assert_eq!((read.name, woken.try_recv()), (name(1), Ok((0, 1))));
        reads.done(&read, |in_time| assert!(in_time));
        assert_eq!(woken.try_recv(), Ok((1, 0)));
        begin(2);
        reads.close();
        assert!(reads.take(|| panic!("not late")).is_none());
        assert_eq!(woken.try_recv(), Ok((2, 0)));
    }

    #[test]
    fn a_question_comes_before_reads_and_ends_with_its_request() {
        let time = ManualTime::start();
        let reads = Reads::new(time.clock());
        let name = Name { namespace: [1; 32], hash: BlockHash::from_words([1, 1]) };
        let second = || time.clock().after(Duration::from_secs(1));
        let late = reads.ask(vec![name], true, second()).unwrap();
        time.advance(Duration::from_secs(1));
        let (read, _) = reads.begin(&[name], second());
        let asked = reads.ask(vec![name], true, second()).unwrap();
        let Some(Turn::Ask(ask, started)) = reads.take(|| panic!("not late")) else { panic!("a question waits") };
        assert!(late.wait() && !asked.is_over(), "no reader asks for a request that waits no longer");
        assert_eq!(reads.add(&ask.names, &ask.promotion), 0);
        reads.answered(&ask, started);
        assert!(!asked.is_over(), "its block is being read");
        let Some(Turn::Read(block)) = reads.take(|| panic!("not late")) else { panic!("a read waits") };
        reads.done(&block, |in_time| assert!(in_time));
        assert!(asked.wait() && read.wait());
        let unasked = reads.ask(vec![name], true, second()).unwrap();
        reads.close();
        assert!(reads.take(|| ()).is_none() && unasked.wait());
        assert!(reads.ask(vec![name], true, second()).is_none());
    }
}
