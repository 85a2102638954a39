//! Loads and saves of blocks.
//!
//! - A *load* is split into parts. A native thread queues a part's copies, and when the device has
//!   done them, a native thread checks the blocks. `Mover::load` itself queues nothing.
//! - A *save* queues its copies in the engine's thread, which waits for no other thread, and a native
//!   thread publishes the blocks when the device has done them. The engine's stream waits for the
//!   copies, so the engine may reuse the blocks when its step is over.
//! - *Direct*: the device accesses the region, which is page-locked beside serving (`locking.rs`). Blocks
//!   of pieces that are not locked yet are staged.
//! - *Staged*: blocks pass through page-locked slots. A save without a free slot waits for one until
//!   the engine's step ends.
//!
//! With kernels (`kit.rs`), a save's pages are gathered in GPU memory on the engine's stream, and whole
//! blocks cross the bus behind it: the engine may reuse its pages as soon as the gather is done. The
//! GPU sums the blocks. Parts of saves take the buffer's places in turn (`ring.rs`).
//!
//! Memory that a device may still access has an owner: a part. Parts end only after the event behind
//! their copies. If the device does not tell when it occurs, they are kept until it tells (`lost.rs`).
//!
//! Locks, in this order: `Load::state` or `Shared::step`, then `Shared::queue`; `Ring::turns` and the free
//! boards alone. No lock is held while
//! a block is summed, and no lock of the queue during a call of the driver.

mod kit;
mod load;
mod lost;
mod proof;
mod queue;
mod ring;
mod save;
#[cfg(test)]
mod tests;
mod threads;
mod trial;

pub use load::{Load, Loading, Source};
pub use save::{Saving, Sink};

use crate::driver::{Device, DeviceError, EngineStream, Stream};
use crate::layout::Layout;
use crate::locking::{Pause, Progress};
use crate::memory::{Registered, Staging};
use cenote_base::Clock;
use kit::Kit;
use load::Unordered;
use queue::Queue;
use save::Step;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most blocks of a part that is staged, or without kernels: enough that its copies are a few calls of the driver, few enough that the
/// threads check the first parts of a short prompt side by side.
pub const PART_BLOCKS: usize = 32;

/// What a mover has beside its streams.
pub(crate) struct Path {
    /// The device accesses the region where it is page-locked. Other blocks, or all, pass through slots.
    registered: Option<Registered>,
    staging: Arc<Staging>,
    kit: Option<Kit>,
}

impl Path {
    /// Facilities for blocks that the device accesses in the region.
    fn kit(&self, is_staged: bool) -> Option<&Kit> {
        self.kit.as_ref().filter(|_| !is_staged)
    }
}

/// Settings of a mover.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Threads that queue loads, check blocks and publish them; at least 2, so that a save's end
    /// needs no thread that a load keeps busy.
    pub threads: usize,
    /// Most bytes of saves between their call and their end. Further blocks are dropped.
    pub backlog_bytes: u64,
    /// Bytes of the GPU's memory that blocks pass through. If less than two blocks fit, pages go one by
    /// one.
    pub gpu_buffer_bytes: u64,
    /// Loads of smaller pages pass through that buffer. `None`: if a trial at start finds that pages of
    /// this size are slower by themselves.
    pub scatter_below: Option<u64>,
    /// The clock of its deadlines.
    pub clock: Clock,
}

/// Blocks that were not saved, since the last call of [`Mover::take_counts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Their copies failed.
    pub failed: u64,
    /// They found no slot before the end of the engine's step.
    pub late: u64,
}

/// What the engine's thread and the mover's threads share.
pub(crate) struct Shared {
    device: Arc<Device>,
    layout: Layout,
    /// None after `close`.
    path: Mutex<Option<Arc<Path>>>,
    why_no_kernels: String,
    loads: Stream,
    saves: Stream,
    /// Most blocks of a part that is not staged, and of one that is.
    part_blocks: [usize; 2],
    settings: Settings,
    queue: Mutex<Queue>,
    bell: Condvar,
    step: Mutex<Step>,
    /// Number of the engine's step; changed under `step`.
    step_number: AtomicU64,
    /// A panic left memory that the device may still access. It is kept until the process ends, and so is
    /// this value.
    keeps: AtomicBool,
    unordered: Mutex<Unordered>,
    /// Bytes of saves that have not ended.
    saved_bytes: AtomicU64,
    counts: Mutex<Counts>,
    told: Mutex<Vec<String>>,
}

/// The blocks of an engine on a device, and the threads that move them.
pub struct Mover(Arc<Shared>, Mutex<Vec<JoinHandle<()>>>);

impl Mover {
    /// Begins the threads. `place` is called in each of them. `region` begins the region's page-locking;
    /// without it, blocks pass through the slots of the staging memory.
    ///
    /// # Errors
    /// The device has no more streams, or the system no more threads.
    pub fn start(
        device: &Arc<Device>,
        layout: Layout,
        staging: Arc<Staging>,
        region: Option<impl FnOnce() -> Registered>,
        settings: Settings,
        place: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, DeviceError> {
        let pause = Pause::begin();
        let slot_blocks = part_blocks(staging.count());
        let kit = match region {
            Some(_) => Kit::new(device, &layout, &staging, &settings),
            None => Err(DeviceError::new("kernels", "blocks pass through the processor's memory")),
        };
        let (kit, why_no_kernels) = match kit {
            Ok(kit) => (Some(kit), String::new()),
            Err(error) => (None, error.to_string()),
        };
        let direct_blocks = kit.as_ref().map_or(PART_BLOCKS, |kit| kit.part_blocks);
        let (loads, saves) = (Stream::new(device)?, Stream::new(device)?);
        // Not before: the driver's calls for memory are slow while it locks pages.
        drop(pause);
        let registered = region.map(|begin| begin());
        let shared = Arc::new(Shared {
            device: Arc::clone(device),
            layout,
            path: Mutex::new(Some(Arc::new(Path { registered, staging, kit }))),
            why_no_kernels,
            loads,
            saves,
            part_blocks: [direct_blocks, slot_blocks],
            settings,
            queue: Mutex::default(),
            bell: Condvar::new(),
            step: Mutex::default(),
            step_number: AtomicU64::new(0),
            keeps: AtomicBool::new(false),
            unordered: Mutex::default(),
            saved_bytes: AtomicU64::new(0),
            counts: Mutex::default(),
            told: Mutex::default(),
        });
        let threads = threads::start(&shared, settings.threads.max(2), place)?;
        Ok(Self(shared, Mutex::new(threads)))
    }

    /// The places of the engine's blocks.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// Why the processor sums blocks, and each page crosses the bus by itself; empty if kernels do it.
    #[must_use]
    pub fn why_no_kernels(&self) -> &str {
        &self.0.why_no_kernels
    }

    /// Whether whole blocks of loads cross the bus, and a kernel scatters their pages.
    #[must_use]
    pub fn scatters(&self) -> bool {
        self.0.path().is_ok_and(|path| path.kit.as_ref().is_some_and(Kit::scatters))
    }

    /// Number of free slots of the staging memory.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.0.path().map_or(0, |path| path.staging.free())
    }

    /// Whether the device can access a payload in its place, from now on. Otherwise it is staged.
    #[must_use]
    pub fn is_direct(&self, address: u64, bytes: u64) -> bool {
        let path = self.0.path();
        path.is_ok_and(|path| path.registered.as_ref().is_some_and(|registered| registered.is_locked(address, bytes)))
    }

    /// Most blocks of one part.
    #[must_use]
    pub fn part_blocks(&self, is_staged: bool) -> usize {
        self.0.part_blocks[usize::from(is_staged)]
    }

    /// How much of the region is page-locked; `None` if no block is accessed in its place.
    #[must_use]
    pub fn page_locked(&self) -> Option<Progress> {
        self.0.path().ok()?.registered.as_ref().map(Registered::progress)
    }

    /// Waits until the region is page-locked, or a piece was refused. False after `timeout`.
    #[must_use]
    pub fn wait_locked(&self, timeout: Duration) -> bool {
        let path = self.0.path();
        path.is_ok_and(|path| path.registered.as_ref().is_none_or(|registered| registered.wait(timeout)))
    }

    /// Counts since the last call.
    #[must_use]
    pub fn take_counts(&self) -> Counts {
        std::mem::take(&mut *lock(&self.0.counts))
    }

    /// Errors of the device since the last call. Each was a miss, or a block that was not saved.
    #[must_use]
    pub fn take_errors(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.0.told))
    }

    /// Refuses further loads and saves, and waits for those in progress, for the mover's threads, and for a
    /// piece of the region that is being page-locked.
    ///
    /// Returns true if all ended and none was lost: then the device accesses no memory of theirs.
    /// Otherwise that memory is kept, until the device ends its work or the process does.
    #[must_use]
    pub fn close(&self, timeout: Duration) -> bool {
        let deadline = self.0.settings.clock.after(timeout);
        self.0.change(Queue::close);
        let is_active = |queue: &mut Queue| queue.under_way() > 0 || queue.threads > 0;
        let queue = deadline.wait_while(&self.0.bell, lock(&self.0.queue), is_active);
        let is_free = queue.under_way() == 0 && queue.lost.is_empty() && !self.0.keeps.load(Ordering::Acquire);
        let threads = if queue.threads == 0 { std::mem::take(&mut *lock(&self.1)) } else { Vec::new() };
        drop(queue);
        // None of them is within a call of the driver any more, which a process that ends would tear down.
        threads.into_iter().for_each(|thread| drop(thread.join()));
        let path = lock(&self.0.path).take_if(|_| is_free);
        if let Some(registered) = path.as_ref().and_then(|path| path.registered.as_ref()) {
            registered.leave(deadline.remaining());
        }
        is_free
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        // The threads end when nothing is under way. They keep what the device may access.
        self.0.change(Queue::close);
    }
}

impl Shared {
    fn path(&self) -> Result<Arc<Path>, DeviceError> {
        lock(&self.path).clone().ok_or_else(|| DeviceError::new("a load or save", "the memory was closed"))
    }

    /// Keeps the streams, the page-lock and the region until the process ends.
    fn keep(self: &Arc<Self>) {
        if !self.keeps.swap(true, Ordering::AcqRel) {
            std::mem::forget(Arc::clone(self));
        }
    }

    fn tell(&self, error: &DeviceError) {
        const MOST: usize = 64;
        let mut told = lock(&self.told);
        if told.len() < MOST {
            told.push(error.to_string());
        }
    }

    /// Orders all later work of the engine's stream after the work queued on this stream. False: it is
    /// not ordered, so the engine may write what that work still reads, or read what it writes.
    #[must_use]
    fn fence(&self, stream: &Stream, engine: EngineStream) -> bool {
        let once = || self.device.record(stream).and_then(|event| self.device.wait_engine(engine, &event));
        // Some errors are of the moment.
        let fenced = once().or_else(|error| {
            self.tell(&error);
            once()
        });
        fenced.inspect_err(|error| self.tell(error)).is_ok()
    }
}

/// Most blocks of a part that takes places of a buffer: several parts fit, so that copies and checks
/// overlap.
fn part_blocks(places: usize) -> usize {
    PART_BLOCKS.min(places / 2).max(1)
}

/// A poisoned lock is taken as it is.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
