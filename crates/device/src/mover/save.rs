//! Saves: from the engine's blocks to page-locked memory.

use super::kit::{Board, Kit};
use super::queue::Lane;
use super::threads::{Caller, Next, Task};
use super::{Mover, Shared, lock};
use crate::driver::{Copies, DeviceError, EngineStream, Event};
use crate::kernels::{LANES, SUM_WORDS};
use crate::layout::Way;
use crate::memory::Slots;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where the blocks of a save go, in order. The drop gives reserved memory back.
pub trait Sink: Send {
    /// Addresses of reserved memory that the device writes.
    fn places(&self) -> Vec<u64>;

    /// Publishes the blocks. Called when the device has written all of them.
    fn publish(&mut self);

    /// The lanes' keys of each block's checksum.
    fn lane_keys(&self) -> Vec<[u64; LANES]>;

    /// As [`Sink::publish`], for blocks that the device has summed.
    fn publish_with_sums(&mut self, sums: &[[u64; SUM_WORDS]]);

    /// Publishes the blocks from slots.
    fn publish_from(&mut self, slots: &Slots);
}

/// A part of a save.
pub struct Saving {
    /// Where the blocks go.
    pub sink: Box<dyn Sink>,
    /// The engine's blocks, at most [`Mover::part_blocks`].
    pub blocks: Vec<usize>,
    /// The blocks pass through slots: [`Mover::is_direct`] was false for one of them.
    pub is_staged: bool,
}

/// The engine's step, as far as saves depend on it.
#[derive(Default)]
pub(crate) struct Step {
    /// A native thread has queued copies that the engine's stream does not wait for yet.
    unfenced: bool,
    /// Steps before this one had copies that the engine's stream did not wait for.
    unordered_before: u64,
}

/// Blocks of a save that are moved together. Its drop ends the part.
pub(crate) struct SavePart {
    shared: Arc<Shared>,
    sink: ManuallyDrop<Box<dyn Sink>>,
    blocks: Vec<usize>,
    is_staged: bool,
    /// Its place in the order of all parts.
    pub ticket: u64,
    /// The device may access the part's memory: its drop keeps that.
    pub is_on_device: bool,
    /// The engine's stream of the call, and the event there after which the copies begin.
    pub engine: EngineStream,
    ready: Arc<Event>,
    /// The engine may reuse the blocks in a later step than this one.
    step: u64,
    slots: Option<Slots>,
    /// Tables of the kernels and places in the buffer, if the blocks pass through it.
    board: Option<Board>,
    outcome: Outcome,
}

/// What the mover counts if a part ends now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Failed,
    Late,
    /// Nothing: the sink counts what it publishes.
    Counted,
}

impl Mover {
    /// How many more blocks may be saved now. The others are dropped, before they delay a step.
    #[must_use]
    pub fn room(&self) -> usize {
        let left = self.0.settings.backlog_bytes.saturating_sub(self.0.saved_bytes.load(Ordering::Relaxed));
        (left / self.0.layout.block_bytes()) as usize
    }

    /// Saves blocks of a step, of all its requests; several calls may follow one another. The calling thread queues the copies. It waits for
    /// no other thread, but for one call of the driver that queues staged blocks of the same step. The
    /// engine may write the blocks after [`Mover::end_step`].
    ///
    /// Blocks without a slot of the staging memory wait for one until then.
    ///
    /// # Errors
    /// The mover is closed, or the device failed. The blocks are not saved.
    pub fn save(&self, parts: Vec<Saving>, engine: EngineStream) -> Result<(), DeviceError> {
        let shared = &self.0;
        let ready = Arc::new(shared.device.record_engine(engine)?);
        let tickets = shared.enter(parts.len())?;
        let blocks: usize = parts.iter().map(|part| part.blocks.len()).sum();
        shared.saved_bytes.fetch_add(blocks as u64 * shared.layout.block_bytes(), Ordering::Relaxed);
        let step = shared.step_number.load(Ordering::Acquire);
        for (Saving { sink, blocks, is_staged }, ticket) in parts.into_iter().zip(tickets) {
            let part = SavePart {
                shared: Arc::clone(shared),
                sink: ManuallyDrop::new(sink),
                blocks,
                is_staged,
                ticket,
                is_on_device: false,
                engine,
                ready: Arc::clone(&ready),
                step,
                slots: None,
                board: None,
                outcome: Outcome::Failed,
            };
            shared.go_on(shared.caught(|| shared.issue_for_engine(part, engine)), Caller::Engine);
        }
        self.fence_saves(&mut lock(&shared.step), engine);
        Ok(())
    }

    /// Tells that the engine's step has ended: it may write its blocks from now on. Its stream waits for
    /// the copies that native threads queued since [`Mover::save`]; blocks that still have no slot are
    /// dropped.
    pub fn end_step(&self, engine: EngineStream) {
        // A thread that queues copies holds this lock for one call of the driver.
        let mut step = lock(&self.0.step);
        self.fence_saves(&mut step, engine);
        self.0.step_number.fetch_add(1, Ordering::Release);
        drop(step);
        self.0.follow_engine(engine);
    }

    fn fence_saves(&self, step: &mut Step, engine: EngineStream) {
        if step.unfenced {
            step.unfenced = !self.0.fence(&self.0.saves, engine);
            if step.unfenced {
                step.unordered_before = self.0.step_number.load(Ordering::Relaxed) + 1;
            }
        }
    }
}

impl SavePart {
    /// Whether the engine has ended the step of these blocks.
    pub fn is_late(&self) -> bool {
        self.shared.step_number.load(Ordering::Acquire) != self.step
    }

    /// Whether kernels sum its blocks.
    pub const fn has_board(&self) -> bool {
        self.board.is_some()
    }

    /// Counts the part as failed, although the device may still have copies of it.
    pub(crate) fn lose(&mut self) {
        self.outcome = Outcome::Failed;
        self.count();
    }

    fn count(&mut self) {
        let count = self.blocks.len() as u64;
        let mut counts = lock(&self.shared.counts);
        match std::mem::replace(&mut self.outcome, Outcome::Counted) {
            Outcome::Failed => counts.failed += count,
            Outcome::Late => counts.late += count,
            Outcome::Counted => {}
        }
    }
}

impl Drop for SavePart {
    fn drop(&mut self) {
        if self.is_on_device {
            // A panic. Nothing tells any more when the device has left the part.
            self.shared.keep();
            std::mem::forget((self.slots.take(), self.board.take()));
        } else {
            // SAFETY: the part ends here, so nothing uses the sink after its drop.
            unsafe { ManuallyDrop::drop(&mut self.sink) };
        }
        let count = self.blocks.len() as u64;
        self.shared.saved_bytes.fetch_sub(count * self.shared.layout.block_bytes(), Ordering::Relaxed);
        self.count();
    }
}

impl Shared {
    /// Queues the copies of a part in the engine's thread: through the GPU's buffer, or page by page.
    fn issue_for_engine(&self, mut part: SavePart, engine: EngineStream) -> Next {
        let Ok(path) = self.path() else { return Next::Ended };
        let Some(kit) = path.kit(part.is_staged) else { return self.issue_save(part) };
        let Some((mut board, before)) = kit.for_save(part.blocks.len()) else { return self.issue_save(part) };
        board.fill(&self.layout, &part.blocks, &part.sink.lane_keys());
        let mut copies = Copies::default();
        for (slot, place) in board.mirror().into_iter().zip(part.sink.places()) {
            self.layout.add_whole(&mut copies, Way::FromDevice, slot, place, path.registered.as_ref());
        }
        part.is_on_device = true;
        let board = part.board.insert(board);
        // Earlier parts have left the places then.
        let begins = before.iter().try_for_each(|event| self.device.wait_engine(engine, event));
        // SAFETY: the tables name the engine's pages, which the layout checked, and places in the
        // buffer; the part keeps buffer and board until the event behind the kernels.
        let gathers = begins.and_then(|()| unsafe { kit.kernels.move_for_engine(engine, board.gather()) });
        let moves = gathers.is_ok().then(|| self.move_gathered(kit, board, &copies, engine));
        match moves {
            None => self.queued(part, &gathers.map(|()| true), Lane::SaveKernels),
            Some(Ok(moved)) => self.queued(part, &moved.map(|()| true), Lane::SaveKernels),
            Some(Err(error)) => {
                self.tell(&error);
                Next::Lost(Task::Saved(part))
            }
        }
    }

    /// Behind a gather, queues the blocks' way over the bus and their sums, and behind both the end of
    /// the kernels' stream. Returns an error if nothing tells that end, and as a result whether all is
    /// queued.
    fn move_gathered(
        &self,
        kit: &Kit,
        board: &Board,
        copies: &Copies,
        engine: EngineStream,
    ) -> Result<Result<(), DeviceError>, DeviceError> {
        let gathered = self.device.record_engine(engine)?;
        self.device.wait(&kit.saves, &gathered)?;
        let queued = self.device.wait(&self.saves, &gathered).and_then(|()| {
            for call in copies.calls() {
                // SAFETY: the copies are from the buffer to memory that the sink has reserved, which
                // the part keeps until the event behind them.
                unsafe { self.device.copy(&self.saves, copies, call)? };
            }
            // SAFETY: as for the gather.
            unsafe {
                kit.kernels.move_pages(&kit.saves, board.upload())?;
                kit.kernels.sum(&kit.saves, board.sum_mirror())
            }
        });
        let copied = self.device.record(&self.saves)?;
        self.device.wait(&kit.saves, &copied)?;
        board.end_behind(self.device.record(&kit.saves)?);
        Ok(queued)
    }

    /// Queues the copies of a part, page by page.
    fn issue_save(&self, mut part: SavePart) -> Next {
        // A part under way keeps the path.
        let Ok(path) = self.path() else { return Next::Ended };
        let (places, locked) = if part.is_staged {
            let Some(slots) = path.staging.take(part.blocks.len()) else { return Next::Waits(Task::Save(part)) };
            let places = slots.places();
            part.slots = Some(slots);
            (places, None)
        } else {
            (part.sink.places(), path.registered.as_ref())
        };
        let mut copies = Copies::default();
        for (&block, &place) in part.blocks.iter().zip(&places) {
            self.layout.add(&mut copies, Way::FromDevice, block, place, locked);
        }
        part.is_on_device = true;
        let queued = self.queue_save(&part, &copies);
        self.queued(part, &queued, Lane::Saves)
    }

    /// Notes what became of the copies of a part.
    fn queued(&self, mut part: SavePart, queued: &Result<bool, DeviceError>, lane: Lane) -> Next {
        part.outcome = match queued {
            Ok(true) => Outcome::Counted,
            Ok(false) => Outcome::Late,
            Err(_) => Outcome::Failed,
        };
        if let Err(error) = queued {
            self.tell(error);
        }
        Next::Queued(lane, Task::Saved(part))
    }

    /// Returns false if the engine has begun another step meanwhile.
    fn queue_save(&self, part: &SavePart, copies: &Copies) -> Result<bool, DeviceError> {
        self.device.wait(&self.saves, &part.ready)?;
        for call in copies.calls() {
            // Under the lock, so that nothing is queued behind the fence of the next step.
            let mut step = lock(&self.step);
            if part.is_late() {
                return Ok(false);
            }
            step.unfenced = true;
            // SAFETY: the layout checked the device's places. The others are memory that `sink` has
            // reserved, or `slots`; both live until the event behind the copies. The engine's stream
            // waits for the copies before it writes the blocks again.
            unsafe { self.device.copy(&self.saves, copies, call)? };
        }
        Ok(true)
    }

    /// Queues the copies of a part that had no slots.
    pub(crate) fn issue_waiting(&self, mut part: SavePart) -> Next {
        if !part.is_late() {
            return self.issue_save(part);
        }
        part.outcome = Outcome::Late;
        Next::Ended
    }

    /// Publishes a part whose copies the device has done.
    pub(crate) fn end_save(&self, mut part: SavePart) -> Next {
        // The engine may have written the blocks under the copies, unless these were of the gathered ones.
        if part.board.is_none() && part.step < lock(&self.step).unordered_before {
            part.outcome = Outcome::Failed;
        }
        if part.outcome == Outcome::Counted {
            // A panic counts the part as failed.
            part.outcome = Outcome::Failed;
            match (&part.slots, &part.board) {
                (Some(slots), _) => part.sink.publish_from(slots),
                (None, Some(board)) => part.sink.publish_with_sums(&board.take_sums()),
                (None, None) => part.sink.publish(),
            }
            part.outcome = Outcome::Counted;
        }
        Next::Ended
    }
}
