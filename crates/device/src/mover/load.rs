//! Loads: from page-locked memory to the engine's blocks.

use super::kit::{Board, Kit};
use super::queue::Lane;
use super::threads::{Next, Task};
use super::{Mover, Path, Shared, lock};
use crate::driver::{Copies, DeviceError, EngineStream, Event};
use crate::kernels::{LANES, SUM_WORDS};
use crate::layout::Way;
use crate::memory::Slots;
use cenote_base::{Clock, Deadline};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Longest wait of an engine's thread for copies that the device cannot order before its work: of all loads
/// together, until the device is well again or some time has passed.
const UNORDERED_PATIENCE: Duration = Duration::from_secs(5);
const UNORDERED_AGAIN: Duration = Duration::from_secs(60);

/// The wait for a device that does not order copies, of all loads.
#[derive(Default)]
pub(super) struct Unordered(Option<(Deadline, Deadline)>);

impl Unordered {
    /// The end of the wait that the first refusal began.
    fn deadline(&mut self, clock: Clock) -> Deadline {
        let begun = self.0.filter(|(_, again)| !again.passed());
        self.0.insert(begun.unwrap_or_else(|| (clock.after(UNORDERED_PATIENCE), clock.after(UNORDERED_AGAIN)))).0
    }
}

/// Some blocks of a load, in order. They stay where they are until the value is dropped.
pub trait Source: Send {
    /// Addresses of the payloads, for the device.
    fn places(&self) -> Vec<u64>;

    /// Whether each block has the bytes that were published. Called when the device has copied all
    /// of them.
    fn check(&mut self) -> Vec<bool>;

    /// The lanes' keys of each block's checksum.
    fn lane_keys(&self) -> Vec<[u64; LANES]>;

    /// As [`Source::check`], for copies that the device has summed.
    fn check_sums(&mut self, sums: &[[u64; SUM_WORDS]]) -> Vec<bool>;

    /// Copies each block into a slot. Returns whether the slot has the bytes that were published.
    fn read(&mut self, slots: &Slots) -> Vec<bool>;
}

/// A part of a load.
pub struct Loading {
    /// The blocks in the region.
    pub source: Box<dyn Source>,
    /// The engine's blocks, at most [`Mover::part_blocks`].
    pub blocks: Vec<usize>,
    /// Number of each block in the load.
    pub numbers: Vec<usize>,
    /// The blocks pass through slots: [`Mover::is_direct`] was false for one of them.
    pub is_staged: bool,
}

/// A load in progress.
pub struct Load {
    shared: Arc<Shared>,
    count: usize,
    deadline: Deadline,
    state: Mutex<State>,
    /// What [`State::is_done`] says. Apart, because the lock is held during a call of the driver.
    done: AtomicBool,
    bell: Condvar,
}

#[derive(Default)]
struct State {
    /// Parts that have not ended.
    parts: usize,
    failed: Vec<usize>,
    cancelled: bool,
    /// Parts that have failed while the device may still have some of their copies.
    lost: usize,
}

/// Blocks of a load that are moved together. Its drop ends the part.
pub(crate) struct LoadPart {
    load: Arc<Load>,
    source: ManuallyDrop<Box<dyn Source>>,
    blocks: Vec<usize>,
    /// Numbers of the blocks in the load.
    numbers: Vec<usize>,
    pub is_staged: bool,
    /// Its place in the order of all parts.
    pub ticket: u64,
    /// The copies begin after this event in the engine's stream.
    ready: Arc<Event>,
    /// The device may access the part's memory: its drop keeps that.
    pub is_on_device: bool,
    is_lost: bool,
    slots: Option<Slots>,
    /// Tables of the kernels, if they sum the blocks.
    board: Option<Board>,
    /// Invalid blocks, by their numbers in the part; `None` until they are known.
    failed: Option<Vec<usize>>,
    ended: bool,
}

impl Mover {
    /// Begins to load blocks. Parts that are not queued within `timeout` fail.
    ///
    /// Only the engine's stream may use the blocks before the load has ended.
    ///
    /// # Errors
    /// The mover is closed, or the device failed. Nothing is under way then.
    ///
    /// # Panics
    /// A block does not exist: a bug of the caller, which calls [`crate::layout::Layout::check`].
    pub fn load(&self, parts: Vec<Loading>, engine: EngineStream, timeout: Duration) -> Result<Arc<Load>, DeviceError> {
        let shared = &self.0;
        let exist = |part: &Loading| part.blocks.iter().all(|&block| block < shared.layout.num_blocks());
        assert!(parts.iter().all(exist), "a block that does not exist");
        assert!(parts.iter().all(|part| part.blocks.len() == part.numbers.len()), "a number for each block");
        // Copies begin after the work on these blocks that the engine has queued so far.
        let ready = Arc::new(shared.device.record_engine(engine)?);
        let load = Arc::new(Load {
            shared: Arc::clone(shared),
            count: parts.iter().map(|part| part.blocks.len()).sum(),
            deadline: shared.settings.clock.after(timeout),
            state: Mutex::new(State { parts: parts.len(), ..State::default() }),
            done: AtomicBool::new(parts.is_empty()),
            bell: Condvar::new(),
        });
        let count = parts.len();
        let tickets = shared.enter(count)?;
        let tasks = parts.into_iter().zip(tickets).map(|(Loading { source, blocks, numbers, is_staged }, ticket)| {
            let (ready, load) = (Arc::clone(&ready), Arc::clone(&load));
            Task::Load(LoadPart {
                load,
                source: ManuallyDrop::new(source),
                blocks,
                numbers,
                is_staged,
                ticket,
                ready,
                is_on_device: false,
                is_lost: false,
                slots: None,
                board: None,
                failed: None,
                ended: false,
            })
        });
        shared.hand_over(tasks);
        Ok(load)
    }
}

impl Load {
    /// Waits until the load has ended. Returns false after `timeout`; `None` has no timeout.
    #[must_use]
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        let deadline = self.shared.settings.clock.after(timeout.unwrap_or(Duration::MAX));
        deadline.wait_while(&self.bell, lock(&self.state), |state| !state.is_done()).is_done()
    }

    /// True if all parts have ended, or the load was cancelled.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Sorted numbers of the invalid blocks; all numbers until all parts have ended. Then later work of the
    /// engine on these blocks comes after the remaining copies; before, only [`Load::cancel`] orders it so.
    #[must_use]
    pub fn failed(&self, engine: EngineStream) -> Vec<usize> {
        let state = lock(&self.state);
        let state = if state.lost > 0 { self.fence(state, engine) } else { state };
        if state.parts > 0 || state.cancelled {
            return (0..self.count).collect();
        }
        let mut failed = state.failed.clone();
        failed.sort_unstable();
        failed
    }

    /// Cancels the load. Later work of the engine comes after the remaining copies.
    pub fn cancel(&self, engine: EngineStream) {
        // A thread that queues copies holds this lock for one call of the driver.
        let mut state = lock(&self.state);
        let has_ended = state.is_done();
        if !has_ended {
            state.cancelled = true;
            self.done.store(true, Ordering::Release);
            self.bell.notify_all();
        }
        if !has_ended || state.lost > 0 {
            drop(self.fence(state, engine));
        }
    }

    /// Orders the engine's later work after all copies and kernels of loads. If the device refuses, the
    /// calling thread waits for those of this load, because they could write what the engine computes.
    fn fence<'a>(&self, state: MutexGuard<'a, State>, engine: EngineStream) -> MutexGuard<'a, State> {
        let shared = &self.shared;
        let copied = shared.fence(&shared.loads, engine);
        let path = shared.path();
        let kit = path.as_ref().ok().and_then(|path| path.kit.as_ref());
        let moved = kit.is_none_or(|kit| shared.fence(&kit.loads, engine));
        if copied && moved {
            lock(&shared.unordered).0 = None;
            return state;
        }
        // Lost parts end when the device tells that it has left them.
        shared.change(|queue| queue.lost.look_now());
        let deadline = lock(&shared.unordered).deadline(shared.settings.clock);
        let may_write = |state: &mut State| state.lost > 0 || (state.cancelled && state.parts > 0);
        let mut state = deadline.wait_while(&self.bell, state, may_write);
        if may_write(&mut state) {
            let why = format!("the device did not tell within {UNORDERED_PATIENCE:?} when they end");
            shared.tell(&DeviceError::new("copies of a load that the engine no longer waits for", why));
        } else {
            lock(&shared.unordered).0 = None;
        }
        state
    }

    /// Number of blocks.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether the load has no blocks.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether parts that are not queued yet are given up: late, or of a load that was cancelled.
    fn is_over(&self) -> bool {
        self.deadline.passed() || self.is_done()
    }
}

impl State {
    const fn is_done(&self) -> bool {
        self.cancelled || self.parts == 0
    }
}

impl LoadPart {
    fn count(&self) -> usize {
        self.blocks.len()
    }

    /// Whether the part is given up, if it is not queued yet.
    pub fn is_over(&self) -> bool {
        self.load.is_over()
    }

    /// Whether kernels sum its blocks.
    pub const fn has_board(&self) -> bool {
        self.board.is_some()
    }

    /// Ends the part for its load, although the device may still have copies of it.
    pub(crate) fn lose(&mut self) {
        if !std::mem::replace(&mut self.is_lost, true) {
            lock(&self.load.state).lost += 1;
        }
        self.end(None);
    }

    fn end(&mut self, failed: Option<Vec<usize>>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let failed = failed.unwrap_or_else(|| (0..self.blocks.len()).collect());
        let mut state = lock(&self.load.state);
        state.failed.extend(failed.into_iter().map(|number| self.numbers[number]));
        state.parts -= 1;
        if state.is_done() {
            self.load.done.store(true, Ordering::Release);
        }
        self.load.bell.notify_all();
    }
}

impl Drop for LoadPart {
    fn drop(&mut self) {
        let failed = self.failed.take();
        if self.is_on_device {
            // A panic. Nothing tells any more when the device has left the part.
            self.load.shared.keep();
            std::mem::forget((self.slots.take(), self.board.take()));
            return self.lose();
        }
        // SAFETY: the part ends here, so nothing uses the source after its drop.
        unsafe { ManuallyDrop::drop(&mut self.source) };
        drop((self.slots.take(), self.board.take()));
        if self.is_lost {
            lock(&self.load.state).lost -= 1;
        }
        self.end(failed);
        self.load.bell.notify_all();
    }
}

impl Shared {
    /// Queues the copies of a part.
    pub(crate) fn issue_load(&self, mut part: LoadPart) -> Next {
        if part.is_over() {
            return Next::Ended;
        }
        // A part under way keeps the path.
        let Ok(path) = self.path() else { return Next::Ended };
        let kit = path.kit(part.is_staged);
        if let Some(kit) = kit {
            // Others give their tables back when they end.
            part.board = kit.for_load(part.count());
            let Some(board) = &mut part.board else { return Next::Waits(Task::Load(part)) };
            board.fill(&self.layout, &part.blocks, &part.source.lane_keys());
        }
        let (places, locked) = if part.is_staged {
            let Some(places) = read_into_slots(&path, &mut part) else { return Next::Waits(Task::Load(part)) };
            (places, None)
        } else {
            (part.source.places(), path.registered.as_ref())
        };
        let mut copies = Copies::default();
        let skipped = part.failed.as_deref().unwrap_or_default();
        let mirror = part.board.as_ref().map(Board::mirror).unwrap_or_default();
        for (number, (&block, &place)) in part.blocks.iter().zip(&places).enumerate() {
            match mirror.get(number) {
                Some(&mirror) => self.layout.add_whole(&mut copies, Way::ToDevice, mirror, place, locked),
                None if skipped.contains(&number) => {}
                None => self.layout.add(&mut copies, Way::ToDevice, block, place, locked),
            }
        }
        part.is_on_device = true;
        let queued = self.device.wait(&self.loads, &part.ready).and_then(|()| self.queue_load(&part, &copies));
        if let Err(error) = &queued {
            self.tell(error);
            part.lose();
        }
        let Some(kit) = kit else { return Next::Queued(Lane::Loads, Task::Loaded(part)) };
        // After an error too, the part ends behind its copies.
        let ordered = self.device.record(&self.loads).and_then(|copied| self.device.wait(&kit.loads, &copied));
        let ran = match (&ordered, queued.is_ok()) {
            (Ok(()), true) => self.queue_kernels(&part, kit),
            _ => Ok(()),
        };
        if let Err(error) = ordered {
            self.tell(&error);
            return Next::Lost(Task::Loaded(part));
        }
        if let Err(error) = ran {
            self.tell(&error);
            part.lose();
        }
        Next::Queued(Lane::LoadKernels, Task::Loaded(part))
    }

    /// Queues the kernels that scatter and sum the blocks of a part.
    fn queue_kernels(&self, part: &LoadPart, kit: &Kit) -> Result<(), DeviceError> {
        let state = lock(&part.load.state);
        let Some(board) = part.board.as_ref().filter(|_| !state.cancelled) else { return Ok(()) };
        // SAFETY: the tables name the engine's pages, which the layout checked, and places in the
        // buffer and on the board; the part keeps both until the event behind the kernels.
        unsafe {
            kit.kernels.move_pages(&kit.loads, board.upload())?;
            if kit.scatters() {
                kit.kernels.move_pages(&kit.loads, board.scatter())?;
            }
            kit.kernels.sum(&kit.loads, board.sum_places())
        }
    }

    fn queue_load(&self, part: &LoadPart, copies: &Copies) -> Result<(), DeviceError> {
        for call in copies.calls() {
            // Under the lock, so that a cancelled load queues nothing behind the engine's fence.
            let state = lock(&part.load.state);
            if state.cancelled {
                break;
            }
            // The engine leaves the blocks to the load until it has ended.
            // SAFETY: the layout checked the engine's places; others on the device are the board's. Sources
            // are payloads that `source` keeps in registered memory, or `slots`; all outlive the copies' event.
            unsafe { self.device.copy(&self.loads, copies, call)? };
        }
        Ok(())
    }

    /// Ends a part whose copies the device has done.
    pub(crate) fn end_load(&self, mut part: LoadPart) -> Next {
        // Blocks in slots were checked before.
        if part.slots.is_none() && !part.ended && !lock(&part.load.state).cancelled {
            let whole = match &part.board {
                Some(board) => part.source.check_sums(&board.take_sums()),
                None => part.source.check(),
            };
            part.failed = Some((0..whole.len()).filter(|&number| !whole[number]).collect());
        }
        Next::Ended
    }
}

/// The addresses of the part's slots, which have its blocks now; `None` if no slots are free.
fn read_into_slots(path: &Path, part: &mut LoadPart) -> Option<Vec<u64>> {
    let slots = path.staging.take(part.count())?;
    let whole = part.source.read(&slots);
    let failed = whole.iter().enumerate().filter(|(_, whole)| !**whole).map(|(number, _)| number);
    part.failed = Some(failed.collect());
    let places = slots.places();
    part.slots = Some(slots);
    Some(places)
}
