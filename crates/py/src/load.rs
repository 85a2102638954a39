//! Loads from the region into an engine's memory, layer by layer.
//!
//! The engine can compute the first layer while threads copy the others.

use crate::clock;
use crate::codec::Coding;
use crate::errors::wrong;
use crate::lease::{Lease, Pin};
use crate::memory::Pages;
use cenote_base::fault::{self, Point};
use cenote_mem::{Mapped, numa};
use cenote_pool::{ReadOutcome, Reading};
use cenote_store::PageFrame;
use pyo3::prelude::*;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SendError, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Blocks of one task. Enough to amortize its waits, few enough to occupy many threads.
const TASK_BLOCKS: usize = 32;

/// Byte that overwrites blocks failed for a test: finite in every element type, but not real KV.
const SPOILT: u8 = 0x41;

/// Progress of all tasks of one load.
struct Progress {
    state: Mutex<Done>,
    bell: Condvar,
    cancelled: AtomicBool,
}

struct Done {
    /// Per layer, the number of tasks that have not copied it.
    layers: Vec<usize>,
    /// Number of tasks that have not ended.
    tasks: usize,
    /// Indices in the load of failed blocks.
    failed: Vec<usize>,
}

impl Progress {
    fn change(&self, change: impl FnOnce(&mut Done)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.bell.notify_all();
    }

    /// Waits until `so` holds. Returns false after `timeout`.
    fn wait(&self, timeout: Option<Duration>, so: impl Fn(&Done) -> bool) -> bool {
        let deadline = clock().after(timeout.unwrap_or(Duration::MAX));
        let done = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        so(&deadline.wait_while(&self.bell, done, |done| !so(done)))
    }
}

/// Every n-th block of a load fails and is corrupted; 0: none. Tests set it.
static FAILING_LOADS: AtomicUsize = AtomicUsize::new(0);

/// Makes every n-th block of later loads of this process fail; 0: none.
pub fn fail_loads(every: usize) {
    FAILING_LOADS.store(every, Ordering::Relaxed);
}

/// The number given to [`fail_loads`].
pub fn failing_loads() -> usize {
    FAILING_LOADS.load(Ordering::Relaxed)
}

/// Whether a test makes the block with this number in its load fail.
pub fn is_refused(number: usize) -> bool {
    let every = failing_loads();
    every != 0 && number.is_multiple_of(every)
}

/// Reads blocks in this thread. `blocks` has per block its number in the load, its pin, and its place.
/// Returns the numbers of failed blocks.
pub fn read_now(pages: &Arc<Pages>, coding: Option<Arc<Coding>>, blocks: Vec<(usize, Arc<Pin>, usize)>) -> Vec<usize> {
    let layers = pages.num_layers();
    let done = Done { layers: vec![1; layers], tasks: 1, failed: Vec::new() };
    let progress = Progress { state: Mutex::new(done), bell: Condvar::new(), cancelled: AtomicBool::new(false) };
    let task = Task { region: None, pages: Arc::clone(pages), coding, progress: Arc::new(progress), blocks };
    task.copy(&Cell::new(0))
}

/// Some blocks of a load, for one thread.
pub struct Task {
    /// The region of the blocks, if it is open.
    region: Option<Arc<Mapped>>,
    pages: Arc<Pages>,
    coding: Option<Arc<Coding>>,
    progress: Arc<Progress>,
    blocks: Vec<(usize, Arc<Pin>, usize)>,
}

/// An encoded block after its frames were copied out of the region and checked.
struct Frames {
    number: usize,
    block: usize,
    frames: Vec<u8>,
    pages: Vec<PageFrame>,
    decodes: bool,
}

impl Frames {
    fn read(coding: &Coding, number: usize, pin: Pin, block: usize) -> Option<Self> {
        let mut frames = vec![0; usize::try_from(pin.hit().length).ok()?];
        let mut reading = pin.read();
        reading.copy(&mut frames);
        if reading.finish() != ReadOutcome::Whole {
            return None;
        }
        let pages = coding.split(&frames).ok()?;
        Some(Self { number, block, frames, pages, decodes: true })
    }
}

impl Task {
    /// Binds this thread near the blocks (TraCT §4.4). It copies as well from elsewhere, only more
    /// slowly.
    pub fn place_thread(&self) {
        if let Some(region) = &self.region {
            let _ = numa::stay_near(region.mapping());
        }
    }

    /// Copies the blocks layer by layer and records the failed ones in the progress.
    ///
    /// After a panic all blocks count as failed and all layers as copied, so that waits end.
    pub fn run(self) {
        let numbers: Vec<usize> = self.blocks.iter().map(|of| of.0).collect();
        let (progress, layers) = (Arc::clone(&self.progress), Cell::new(0));
        let copied = catch_unwind(AssertUnwindSafe(|| self.copy(&layers)));
        progress.change(|done| {
            done.layers[layers.get()..].iter_mut().for_each(|tasks| *tasks -= 1);
            done.failed.append(&mut copied.unwrap_or(numbers));
            done.tasks -= 1;
        });
    }

    /// Counts the copied layers in `copied`. Returns the indices of failed blocks.
    fn copy(self, copied: &Cell<usize>) -> Vec<usize> {
        let Self { pages, coding, progress, blocks, .. } = self;
        let refused: Vec<usize> = blocks.iter().filter(|of| is_refused(of.0)).map(|of| of.2).collect();
        let mut failed = Vec::new();
        let mut encoded = Vec::new();
        let mut readings: Vec<(usize, Reading<Arc<Mapped>>, usize)> = Vec::with_capacity(blocks.len());
        for (number, pin, block) in blocks {
            // A read consumes the pin. A pin shared with a view counts as failed.
            let own = Arc::try_unwrap(pin).ok();
            match (own, &coding) {
                (Some(pin), Some(coding)) if pin.hit().encoding != 0 => {
                    match Frames::read(coding, number, pin, block) {
                        Some(frames) => encoded.push(frames),
                        None => failed.push(number),
                    }
                }
                (Some(pin), _) => readings.push((number, pin.read(), block)),
                (None, _) => failed.push(number),
            }
        }
        for layer in 0..pages.num_layers() {
            for (_, reading, block) in &mut readings {
                if progress.cancelled.load(Ordering::Acquire) {
                    break;
                }
                // SAFETY: nothing else accesses the page until the load has ended: callers of
                // `KvMemory.load` guarantee it for the engine, and `KvMemory::load` refused block
                // numbers that are named twice, so no other task has this block.
                reading.copy(unsafe { pages.page_mut(layer, *block) });
            }
            for of in &mut encoded {
                if progress.cancelled.load(Ordering::Acquire) {
                    break;
                }
                let Some(coding) = coding.as_ref().filter(|_| of.decodes) else { continue };
                // SAFETY: as above: this load alone accesses its blocks until it has ended.
                let page = unsafe { pages.page_mut(layer, of.block) };
                of.decodes = coding.decode(layer, &of.pages, &of.frames, page).is_ok();
            }
            for &block in &refused {
                // SAFETY: as above: this load alone accesses its blocks until it has ended.
                unsafe { pages.page_mut(layer, block) }.fill(SPOILT);
            }
            fault::point(Point::LoadLayer);
            progress.change(|done| done.layers[layer] -= 1);
            copied.set(layer + 1);
        }
        let cancelled = progress.cancelled.load(Ordering::Acquire);
        let raw = readings.into_iter().map(|(number, reading, _)| (number, reading.finish() == ReadOutcome::Whole));
        let decoded = encoded.iter().map(|of| (of.number, of.decodes && !cancelled));
        for (number, is_whole) in raw.chain(decoded) {
            if !is_whole || is_refused(number) {
                failed.push(number);
            }
        }
        failed
    }
}

/// A load in progress.
#[pyclass(frozen, module = "cenote")]
pub struct Load {
    progress: Arc<Progress>,
    blocks: usize,
    num_layers: usize,
}

impl Load {
    pub fn begin(
        pages: Arc<Pages>,
        lease: &Lease,
        pins: Vec<Arc<Pin>>,
        blocks: &[usize],
        tasks: &Sender<Task>,
    ) -> Self {
        let all: Vec<(usize, Arc<Pin>, usize)> =
            pins.into_iter().zip(blocks).enumerate().map(|(number, (pin, &block))| (number, pin, block)).collect();
        let (count, num_layers) = (all.len().div_ceil(TASK_BLOCKS), pages.num_layers());
        let done = Done { layers: vec![count; num_layers], tasks: count, failed: Vec::new() };
        let progress =
            Arc::new(Progress { state: Mutex::new(done), bell: Condvar::new(), cancelled: AtomicBool::new(false) });
        let load = Self { progress: Arc::clone(&progress), blocks: all.len(), num_layers };
        let (mut rest, region) = (all.into_iter(), lease.fabric());
        for _ in 0..count {
            let blocks = rest.by_ref().take(TASK_BLOCKS).collect();
            let (pages, progress) = (Arc::clone(&pages), Arc::clone(&progress));
            let task = Task { region: region.clone(), pages, coding: lease.coding.clone(), progress, blocks };
            // Threads end only after `close` has dropped the sender. If they ended for another
            // reason, run the task here.
            if let Err(SendError(task)) = tasks.send(task) {
                task.run();
            }
        }
        load
    }

    fn timeout(seconds: Option<f64>) -> PyResult<Option<Duration>> {
        let duration = seconds.map(Duration::try_from_secs_f64).transpose();
        duration.map_err(|_| wrong("the timeout is negative or not a number; give seconds or None"))
    }
}

#[pymethods]
impl Load {
    /// Waits until this layer of all blocks is copied. Returns false after `timeout` seconds.
    #[pyo3(signature = (layer, timeout))]
    fn wait_layer(&self, py: Python<'_>, layer: usize, timeout: Option<f64>) -> PyResult<bool> {
        if layer >= self.num_layers {
            return Err(wrong(format!("layer {layer} of {}", self.num_layers)));
        }
        let timeout = Self::timeout(timeout)?;
        Ok(py.detach(|| self.progress.wait(timeout, |done| done.layers[layer] == 0)))
    }

    /// Waits until the load has ended. Returns false after `timeout` seconds.
    #[pyo3(signature = (timeout))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let timeout = Self::timeout(timeout)?;
        Ok(py.detach(|| self.progress.wait(timeout, |done| done.tasks == 0)))
    }

    /// True if the load has ended.
    #[getter]
    fn done(&self) -> bool {
        self.progress.state.lock().unwrap_or_else(PoisonError::into_inner).tasks == 0
    }

    /// Sorted indices of the failed blocks in the load. The content of their pages is invalid.
    ///
    /// Before the load has ended these are all blocks.
    fn failed(&self) -> Vec<usize> {
        let done = self.progress.state.lock().unwrap_or_else(PoisonError::into_inner);
        if done.tasks != 0 {
            return (0..self.blocks).collect();
        }
        let mut failed = done.failed.clone();
        failed.sort_unstable();
        failed
    }

    /// Stops copying. Returns when no thread writes any more, after at most one page per thread.
    fn cancel(&self, py: Python<'_>) {
        self.progress.cancelled.store(true, Ordering::Release);
        py.detach(|| self.progress.wait(None, |done| done.tasks == 0));
    }

    fn __len__(&self) -> usize {
        self.blocks
    }
}
