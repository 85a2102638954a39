//! A tier: threads that write blocks behind their publisher and promote blocks for lookups.
//!
//! Calls of serving threads touch two short locks and the list in memory. One thread writes, looks
//! for other processes' records and opens the place; a few threads read.

mod promotion;
mod queue;
mod reader;
mod writer;

use crate::backend::{Backend, Used};
use crate::counters::{Count, Counters};
use crate::error::{ColdError, ErrorKind};
use crate::record::{Head, Name};
use crate::settings::WriteBehind;
use crate::sums::Sealing;
use cenote_base::time::nanoseconds;
use cenote_base::{Clock, Deadline, HashSeed};
use cenote_mem::fork::ProcessStamp;
use cenote_policy::fetch::Way;
use cenote_policy::temperature::{ColdBlock, MeasuredLadder};
pub use promotion::Promotion;
use promotion::Reads;
use queue::Queue;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Threads that read. A disk answers several requests at once.
const READERS: usize = 4;
/// Longest time for waiting blocks when a tier is dropped.
const FAREWELL: Duration = Duration::from_secs(2);
/// Longest wait for the threads when a tier is dropped: a second more than they write. A thread that a
/// disk keeps longer is left behind.
const JOIN_TIMEOUT: Duration = Duration::from_secs(3);

/// The memory above a tier: a region.
pub trait Upper: Send + Sync + 'static {
    /// Describes a block; `None`: it is gone.
    fn describe(&self, name: &Name) -> Option<Head>;
    /// Copies a block's payload out. False: the block is gone, damaged, or not as described any
    /// more.
    fn copy(&self, head: &Head, payload: &mut [u8]) -> bool;
    /// Publishes a block. False: it does not suit its namespace, or there is no room.
    fn publish(&self, head: &Head, payload: &[u8]) -> bool;
    /// Blocks that will be evicted next, if there is no free space.
    fn coldest(&self) -> Vec<Name>;
    /// Tokens of a block; 0: not known.
    fn tokens(&self, name: &Name) -> u64;
    /// Bytes of the longest payload that a block of this name can have; 0: it cannot be published.
    fn length_max(&self, name: &Name) -> u64;
    /// Counts for all processes, where the counter outlives this one.
    fn count(&self, count: Count, by: u64);
}

/// Settings of a tier, beside its place.
#[derive(Clone, Debug)]
pub struct TierConfig {
    /// Hash seed of the region above.
    pub seed: HashSeed,
    /// Its seal, which the place has as well.
    pub seal: Sealing,
    /// Which blocks are written.
    pub write: WriteBehind,
    /// Longest time that a request waits for blocks.
    pub deadline: Duration,
    /// Clock of all its waits, retries and measured times.
    pub clock: Clock,
}

/// State that the threads share.
struct Shared {
    upper: Box<dyn Upper>,
    backend: Box<dyn Backend>,
    config: TierConfig,
    counters: Counters,
    /// Measured times, and what they decide.
    ladder: Mutex<MeasuredLadder>,
    queue: Queue,
    reads: Reads,
    /// The place is open. Its list may still grow.
    is_open: AtomicBool,
    /// The list was complete once since then.
    is_listed: AtomicBool,
    /// Threads that have not ended.
    threads: Mutex<usize>,
    ended: Condvar,
}

/// L4 below a region, for one process. Dropping it writes what is waiting, within a deadline.
pub struct Tier {
    shared: Arc<Shared>,
    /// A forked child has the memory of a tier, but none of its threads, and locks that they held.
    stamp: ProcessStamp,
    handles: Vec<JoinHandle<()>>,
}

impl Tier {
    /// Starts the threads. The place is opened by them: until then, and while it cannot be opened,
    /// lookups miss.
    #[must_use]
    pub fn start(upper: Box<dyn Upper>, backend: Box<dyn Backend>, config: TierConfig) -> Self {
        let clock = config.clock;
        let shared = Arc::new(Shared {
            upper,
            backend,
            config,
            counters: Counters::default(),
            ladder: Mutex::default(),
            queue: Queue::default(),
            reads: Reads::new(clock),
            is_open: AtomicBool::new(false),
            is_listed: AtomicBool::new(false),
            threads: Mutex::new(0),
            ended: Condvar::new(),
        });
        let mut tier = Self { shared, stamp: ProcessStamp::current(), handles: Vec::new() };
        tier.spawn("cold-write", writer::run);
        (0..READERS).for_each(|_| tier.spawn("cold-read", reader::run));
        tier
    }

    /// A thread that cannot be started leaves a tier that does less, and nothing else.
    fn spawn(&mut self, name: &str, run: fn(&Shared)) {
        let shared = Arc::clone(&self.shared);
        *shared.living() += 1;
        let body = move || {
            let _ended = Ended(&shared);
            run(&shared);
        };
        match std::thread::Builder::new().name(name.to_owned()).spawn(body) {
            Ok(handle) => self.handles.push(handle),
            Err(error) => {
                *self.shared.living() -= 1;
                tracing::warn!(%error, name, "no thread for the cold tier");
            }
        }
    }

    /// Queues published blocks for writing. Never waits: blocks that do not fit into the queue are
    /// dropped and counted. Does nothing if only cold blocks are written.
    pub fn offer(&self, names: impl IntoIterator<Item = Name>) {
        if self.shared.config.write == WriteBehind::Published && !self.stamp.is_inherited() {
            self.shared.offer(names);
        }
    }

    /// Number of leading blocks that the tier lists, and that it is able to read now.
    #[must_use]
    pub fn count(&self, names: &[Name]) -> usize {
        self.leading(names, |name| self.shared.backend.length(name).is_some())
    }

    /// Number of leading blocks that the tier lists or must ask its place for. It never is less than
    /// [`Tier::count`], and more only for places without a list.
    #[must_use]
    pub fn may_have(&self, names: &[Name]) -> usize {
        self.leading(names, |name| self.shared.backend.may_have(name))
    }

    fn leading(&self, names: &[Name], is_there: impl Fn(&Name) -> bool) -> usize {
        let deadline = self.shared.config.deadline;
        if names.is_empty() || self.stamp.is_inherited() || !self.is_open() || !is_there(&names[0]) {
            return 0;
        }
        if self.shared.reads.is_stuck(deadline) {
            let at = "a read of the cold tier".to_owned();
            self.shared.fail(&ColdError::Slow { at, ms: deadline.as_millis() as u64 });
            return 0;
        }
        names.iter().take_while(|name| is_there(name)).count()
    }

    /// Begins to read blocks and to publish them above: the leading ones that the tier lists, as many
    /// as [`MeasuredLadder::worth_promoting`] says. A place without a list is asked first. `None`: there is
    /// nothing to wait for.
    #[must_use]
    pub fn promote(&self, names: &[Name]) -> Option<Promotion> {
        self.begin(&names[..self.may_have(names)], true)
    }

    /// As [`Tier::promote`], for blocks in any order: all that the tier has.
    #[must_use]
    pub fn promote_any(&self, names: &[Name]) -> Option<Promotion> {
        let is_there = |name: &&Name| self.may_have(std::slice::from_ref(*name)) == 1;
        self.begin(&names.iter().filter(is_there).copied().collect::<Vec<Name>>(), false)
    }

    /// Begins with blocks that the place may have.
    fn begin(&self, names: &[Name], leading: bool) -> Option<Promotion> {
        let shared = &self.shared;
        if names.is_empty() {
            return None;
        }
        let until = shared.config.clock.after(shared.config.deadline);
        if names.iter().any(|name| shared.backend.length(name).is_none()) {
            let asked = shared.reads.ask(names.to_vec(), leading, until);
            if asked.is_none() {
                shared.count(Count::ReadsRefused, names.len() as u64);
            }
            return asked;
        }
        let worth = shared.worth(names);
        if worth == 0 {
            return None;
        }
        let (promotion, refused) = shared.reads.begin(&names[..worth], until);
        shared.count(Count::ReadsRefused, refused);
        Some(promotion)
    }

    /// What reading these blocks costs now, all of which the tier lists. `None`: there are none.
    #[must_use]
    pub fn way(&self, listed: &[Name]) -> Option<Way> {
        if self.stamp.is_inherited() {
            return None;
        }
        let (shared, block) = (&self.shared, self.shared.described(listed.first()?));
        let (waiting, deadline_ns) = (shared.reads.len() as u64, nanoseconds(shared.config.deadline));
        Some(shared.ladder().way(&block, listed.len() as u64, waiting, deadline_ns))
    }

    /// KV of so many tokens was computed in `ns`: what a read from the tier saves.
    pub fn has_computed(&self, tokens: u64, ns: u64) {
        if !self.stamp.is_inherited() {
            self.shared.ladder().has_computed(tokens, ns);
        }
    }

    /// Waits until the place is open and its list is complete. Returns whether it is.
    pub fn wait_open(&self, deadline: Deadline) -> bool {
        !self.stamp.is_inherited() && self.shared.queue.wait(deadline, |_| self.is_open() && self.is_listed())
    }

    /// Waits until all offered blocks are written or dropped. Returns whether they are.
    pub fn settle(&self, deadline: Deadline) -> bool {
        !self.stamp.is_inherited() && self.shared.queue.wait(deadline, queue::Waiting::is_settled)
    }

    /// Whether the place is open. Its list may not be complete.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.shared.is_open.load(Ordering::Acquire)
    }

    /// Whether the list was complete since the place was opened.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.shared.is_listed.load(Ordering::Acquire)
    }

    /// The counters of this process.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// The most recent error of this process.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        if self.stamp.is_inherited() { None } else { self.shared.counters.last_error() }
    }

    /// The kind of the last error of this process, if it happened in the last minutes.
    #[must_use]
    pub fn recent_error(&self) -> Option<ErrorKind> {
        if self.stamp.is_inherited() { None } else { self.shared.counters.recent_error(self.shared.config.clock) }
    }

    /// Counters and gauges by Prometheus name.
    #[must_use]
    pub fn stats(&self) -> BTreeMap<String, f64> {
        let mut stats = self.shared.counters.values();
        // Locks that a thread of the parent held stay locked.
        if self.stamp.is_inherited() {
            return stats;
        }
        let Used { blocks, bytes, bytes_max } = self.shared.backend.used();
        for (name, value) in [
            ("cold_open", u64::from(self.is_open())),
            ("cold_listed", u64::from(self.is_listed())),
            ("cold_blocks", blocks),
            ("cold_bytes", bytes),
            ("cold_bytes_max", bytes_max),
            ("cold_write_queue", self.shared.queue.len() as u64),
            ("cold_read_queue", self.shared.reads.len() as u64),
        ] {
            stats.insert(name.to_owned(), value as f64);
        }
        stats
    }
}

impl Shared {
    /// A block that the tier lists.
    fn described(&self, name: &Name) -> ColdBlock {
        let bytes = self.backend.length(name).unwrap_or(0);
        ColdBlock { bytes, tokens: self.upper.tokens(name), is_in_l4: true }
    }

    /// Of these blocks those that the tier lists now; with `leading`, those before the first other one.
    fn listed(&self, names: &[Name], leading: bool) -> Vec<Name> {
        let is_listed = |name: &&Name| self.backend.length(name).is_some();
        if leading {
            names.iter().take_while(is_listed).copied().collect()
        } else {
            names.iter().filter(is_listed).copied().collect()
        }
    }

    /// Number of leading blocks that are read, of listed ones. Counts all of them.
    fn worth(&self, listed: &[Name]) -> usize {
        let Some(first) = listed.first() else { return 0 };
        self.count(Count::Found, listed.len() as u64);
        let block = self.described(first);
        let (waiting, deadline_ns) = (self.reads.len() as u64, nanoseconds(self.config.deadline));
        let worth = self.ladder().worth_promoting(&block, listed.len() as u64, waiting, deadline_ns);
        let worth = usize::try_from(worth).unwrap_or(usize::MAX).min(listed.len());
        self.count(Count::ReadsSkipped, (listed.len() - worth) as u64);
        worth
    }

    fn offer(&self, names: impl IntoIterator<Item = Name>) {
        let offered = self.queue.push(
            names,
            |name| self.backend.length(name).is_some(),
            |count| {
                // Before the writer can take them, so that a death leaves no block uncounted.
                self.count(Count::Offered, count);
            },
        );
        self.count(Count::Duplicates, offered.duplicates);
        self.count(Count::DroppedBusy, offered.busy);
    }

    /// Adds to a counter of this process, and to that of all processes.
    fn count(&self, count: Count, by: u64) {
        if by > 0 {
            self.counters.add(count, by);
            self.upper.count(count, by);
        }
    }

    /// Counts and logs an error.
    fn fail(&self, error: &ColdError) {
        self.count(Count::Errors, 1);
        self.counters.fail(error, self.config.clock);
    }

    fn ladder(&self) -> MutexGuard<'_, MeasuredLadder> {
        // Averages of times: usable after a panic.
        self.ladder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn living(&self) -> MutexGuard<'_, usize> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a thread's end, also after a panic.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        *self.0.living() -= 1;
        self.0.ended.notify_all();
    }
}

impl Drop for Tier {
    fn drop(&mut self) {
        if self.stamp.is_inherited() {
            return;
        }
        let clock = self.shared.config.clock;
        let end = clock.after(JOIN_TIMEOUT);
        self.shared.queue.close(clock.after(FAREWELL));
        self.shared.reads.close();
        let all_ended = *end.wait_while(&self.shared.ended, self.shared.living(), |threads| *threads > 0) == 0;
        if all_ended {
            // They let go of the memory above, so that its worker leaves with the tier.
            self.handles.drain(..).for_each(|handle| drop(handle.join()));
        }
    }
}

#[cfg(test)]
mod tests;
