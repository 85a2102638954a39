//! A tier: threads that write blocks behind their publisher and promote blocks for lookups.
//!
//! Calls of serving threads touch two short locks and the list in memory. One thread writes, looks
//! for other processes' records and opens the place; a few threads read.

mod promotion;
mod queue;
mod reader;
mod writer;

use crate::backend::Backend;
use crate::counters::{Counters, add};
use crate::error::ColdError;
use crate::record::{Head, Name};
use crate::settings::WriteBehind;
use cenote_base::{Deadline, HashSeed};
use cenote_mem::fork::ProcessStamp;
pub use promotion::Promotion;
use promotion::Reads;
use queue::Queue;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Threads that read. A disk answers several requests at once.
const READERS: usize = 4;
/// Longest wait for the threads when a tier is dropped. A thread that a disk keeps longer is left
/// behind.
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
}

/// Settings of a tier, beside its place.
#[derive(Clone, Debug)]
pub struct TierConfig {
    /// Hash seed of the region above.
    pub seed: HashSeed,
    /// Which blocks are written.
    pub write: WriteBehind,
    /// Longest time that a request waits for blocks.
    pub deadline: Duration,
}

/// State that the threads share.
struct Shared {
    upper: Box<dyn Upper>,
    backend: Box<dyn Backend>,
    config: TierConfig,
    counters: Counters,
    queue: Queue,
    reads: Reads,
    /// The place is open, and its list is complete.
    is_open: AtomicBool,
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
        let shared = Arc::new(Shared {
            upper,
            backend,
            config,
            counters: Counters::default(),
            queue: Queue::default(),
            reads: Reads::default(),
            is_open: AtomicBool::new(false),
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
        *shared.count() += 1;
        let body = move || {
            let _ended = Ended(&shared);
            run(&shared);
        };
        match std::thread::Builder::new().name(name.to_owned()).spawn(body) {
            Ok(handle) => self.handles.push(handle),
            Err(error) => {
                *self.shared.count() -= 1;
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
        let deadline = self.shared.config.deadline;
        if names.is_empty()
            || self.stamp.is_inherited()
            || !self.is_open()
            || self.shared.backend.length(&names[0]).is_none()
        {
            return 0;
        }
        if self.shared.reads.is_stuck(deadline) {
            let at = "a read of the cold tier".to_owned();
            self.shared.counters.fail(&ColdError::Slow { at, ms: deadline.as_millis() as u64 });
            return 0;
        }
        names.iter().take_while(|name| self.shared.backend.length(name).is_some()).count()
    }

    /// Whether the tier lists a block.
    #[must_use]
    pub fn has(&self, name: &Name) -> bool {
        self.count(std::slice::from_ref(name)) == 1
    }

    /// Begins to read blocks and to publish them above. `names` are those that
    /// [`Tier::count`] counted.
    #[must_use]
    pub fn promote(&self, names: &[Name]) -> Promotion {
        let shared = &self.shared;
        add(&shared.counters.found, names.len() as u64);
        let (promotion, refused) = shared.reads.begin(names, Deadline::after(shared.config.deadline));
        add(&shared.counters.reads_refused, refused);
        promotion
    }

    /// Waits until the place is open and its list is complete. Returns whether it is.
    pub fn wait_open(&self, deadline: Deadline) -> bool {
        self.shared.queue.wait(deadline, |_| self.is_open());
        self.is_open()
    }

    /// Waits until all offered blocks are written or dropped. Returns whether they are.
    pub fn settle(&self, deadline: Deadline) -> bool {
        self.shared.queue.wait(deadline, queue::Waiting::is_settled)
    }

    /// Whether the place is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.shared.is_open.load(Ordering::Acquire)
    }

    /// The counters of this process.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Counters and gauges by Prometheus name.
    #[must_use]
    pub fn stats(&self) -> BTreeMap<String, f64> {
        let mut stats = self.shared.counters.values();
        let (blocks, bytes) = self.shared.backend.used();
        for (name, value) in [
            ("cold_open", u64::from(self.is_open())),
            ("cold_blocks", blocks),
            ("cold_bytes", bytes),
            ("cold_write_queue", self.shared.queue.len() as u64),
            ("cold_read_queue", self.shared.reads.len() as u64),
        ] {
            stats.insert(name.to_owned(), value as f64);
        }
        stats
    }
}

impl Shared {
    fn offer(&self, names: impl IntoIterator<Item = Name>) {
        let dropped = self.queue.push(names, |name| self.backend.length(name).is_some());
        add(&self.counters.duplicates, dropped.duplicates);
        add(&self.counters.dropped_busy, dropped.busy);
    }

    fn count(&self) -> std::sync::MutexGuard<'_, usize> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a thread's end, also after a panic.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        *self.0.count() -= 1;
        self.0.ended.notify_all();
    }
}

impl Drop for Tier {
    fn drop(&mut self) {
        if self.stamp.is_inherited() {
            return;
        }
        self.shared.queue.close();
        self.shared.reads.close();
        let threads = self.shared.count();
        let waited = self.shared.ended.wait_timeout_while(threads, JOIN_TIMEOUT, |threads| *threads > 0);
        let all_ended = *waited.unwrap_or_else(PoisonError::into_inner).0 == 0;
        if all_ended {
            // They let go of the memory above, so that its worker leaves with the tier.
            self.handles.drain(..).for_each(|handle| drop(handle.join()));
        }
    }
}

#[cfg(test)]
mod tests;
