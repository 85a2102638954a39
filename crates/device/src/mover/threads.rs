//! The mover's threads: one polls the device's events, and all run what is ready.

use super::load::LoadPart;
use super::lost::Lost;
use super::queue::{Lane, Looked, Queue};
use super::save::SavePart;
use super::{Shared, lock};
use crate::driver::{DeviceError, EngineStream, Event};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

const IDLE: Duration = Duration::from_secs(1);
/// The same if the thread that looks at the device may be kept by a lock.
const IDLE_BESIDE: Duration = Duration::from_millis(10);

/// Work for a native thread.
pub(crate) enum Task {
    /// Copies to be queued.
    Load(LoadPart),
    Save(SavePart),
    /// Copies that the device has done.
    Loaded(LoadPart),
    Saved(SavePart),
}

impl Task {
    pub(super) fn lose(&mut self) {
        match self {
            Self::Load(part) | Self::Loaded(part) => part.lose(),
            Self::Save(part) | Self::Saved(part) => part.lose(),
        }
    }

    /// The device accesses nothing of the part any more.
    pub(super) const fn leave_device(&mut self) {
        match self {
            Self::Load(part) | Self::Loaded(part) => part.is_on_device = false,
            Self::Save(part) | Self::Saved(part) => part.is_on_device = false,
        }
    }

    /// Whether the thread that runs it is away for long: it calls the driver, or sums or copies payloads. Others
    /// take the region's locks, which are rarely held for long.
    const fn is_long(&self) -> bool {
        match self {
            Self::Load(_) | Self::Save(_) => true,
            Self::Loaded(part) => !part.has_board(),
            Self::Saved(part) => !part.has_board(),
        }
    }

    /// Whether a part that waits is given up.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Load(part) | Self::Loaded(part) => part.is_over(),
            Self::Save(part) | Self::Saved(part) => part.is_late(),
        }
    }

    pub(super) const fn ticket(&self) -> u64 {
        match self {
            Self::Load(part) | Self::Loaded(part) => part.ticket,
            Self::Save(part) | Self::Saved(part) => part.ticket,
        }
    }

    /// What the part waits for.
    pub(super) const fn wants(&self) -> Wants {
        match self {
            Self::Load(part) | Self::Loaded(part) if !part.is_staged => Wants::Tables,
            _ => Wants::Slots,
        }
    }
}

/// What parts wait for.
#[derive(Clone, Copy)]
pub(super) enum Wants {
    /// Slots of the staging memory.
    Slots,
    /// Tables of the kernels, and places in the GPU's buffer.
    Tables,
}

/// Begins the threads.
pub(crate) fn start(
    shared: &Arc<Shared>,
    threads: usize,
    place: impl Fn() + Send + Sync + 'static,
) -> Result<Vec<JoinHandle<()>>, DeviceError> {
    let (place, mut begun) = (Arc::new(place), Vec::new());
    for number in 0..threads {
        let (own, place) = (Arc::clone(shared), Arc::clone(&place));
        lock(&shared.queue).threads += 1;
        let thread = std::thread::Builder::new().name(format!("cenote-device-{number}")).spawn(move || {
            let _ended = Ended(&own);
            own.device.enter_thread();
            // It only makes the thread's work faster.
            let _ = catch_unwind(AssertUnwindSafe(|| place()));
            own.work();
        });
        match thread {
            Ok(thread) => begun.push(thread),
            Err(error) => {
                shared.change(|queue| {
                    queue.threads -= 1;
                    queue.close();
                });
                return Err(DeviceError::new("a thread of the mover", error.to_string()));
            }
        }
    }
    Ok(begun)
}

/// Tells the end of a thread, also that of a panic.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.change(|queue| queue.threads -= 1);
    }
}

/// What becomes of a task that a thread has run.
pub(crate) enum Next {
    Ended,
    /// It waits for what others give back.
    Waits(Task),
    /// Its copies are queued on the device.
    Queued(Lane, Task),
    /// Its copies or kernels are queued, and no event can tell when they end.
    Lost(Task),
}

/// Whose thread changes the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    Engine,
    Mover,
}

impl Shared {
    /// Counts parts that begin. Returns their tickets.
    pub(super) fn enter(&self, parts: usize) -> Result<Range<u64>, DeviceError> {
        let mut queue = lock(&self.queue);
        if queue.is_closing() {
            return Err(DeviceError::new("a load or save", "the memory was closed"));
        }
        Ok(queue.begin(parts))
    }

    /// Hands parts of loads to the threads.
    pub(super) fn hand_over(&self, loads: impl Iterator<Item = Task>) {
        self.change(|queue| queue.hand_over(loads));
    }

    /// Ends a part, or lets the threads follow it.
    pub(super) fn go_on(&self, next: Next, caller: Caller) {
        let (lane, task) = match next {
            Next::Ended => return self.change_as(caller, Queue::end),
            Next::Waits(task) => return self.put_off(task, caller),
            Next::Lost(task) => return self.lose(task),
            Next::Queued(lane, task) => (lane, task),
        };
        match self.record_lane(lane) {
            Ok(event) => self.change_as(caller, |queue| queue.follow(lane, event, task)),
            Err(error) => {
                self.tell(&error);
                self.lose_behind(task, None);
            }
        }
    }

    fn record_lane(&self, lane: Lane) -> Result<Event, DeviceError> {
        match lane {
            Lane::Loads => self.device.record(&self.loads),
            Lane::Saves => self.device.record(&self.saves),
            Lane::LoadKernels | Lane::SaveKernels => self.path().and_then(|path| match &path.kit {
                Some(kit) if matches!(lane, Lane::LoadKernels) => self.device.record(&kit.loads),
                Some(kit) => self.device.record(&kit.saves),
                None => unreachable!("a part without kernels"),
            }),
        }
    }

    /// Lets a part wait, unless the device keeps what it waits for: then it fails.
    fn put_off(&self, task: Task, caller: Caller) {
        let refused = lock(&self.queue).put_off(task);
        if let Some(task) = refused {
            drop(task);
            self.change(Queue::end);
        } else if caller == Caller::Engine {
            // What it waits for may have been given back since, so a thread looks.
            self.bell.notify_all();
        }
    }

    /// Keeps a part that the device may still access. A save's may be on the engine's stream.
    fn lose(&self, task: Task) {
        let engine = match &task {
            Task::Saved(part) => Some(part.engine),
            _ => None,
        };
        self.lose_behind(task, engine);
    }

    fn lose_behind(&self, mut task: Task, engine: Option<EngineStream>) {
        task.lose();
        self.change(|queue| queue.lose(task, engine));
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Queue)) {
        self.change_as(Caller::Engine, change);
    }

    /// A thread of the mover goes on itself, and wakes the others if there is more than it can do.
    fn change_as(&self, caller: Caller, change: impl FnOnce(&mut Queue)) {
        let mut queue = lock(&self.queue);
        change(&mut queue);
        let wakes = caller == Caller::Engine || queue.wants_others();
        drop(queue);
        if wakes {
            self.bell.notify_all();
        }
    }

    fn work(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(task) = queue.take_task() {
                if task.is_long() && queue.wants_watch() && !queue.watched {
                    // Another thread polls meanwhile.
                    self.bell.notify_all();
                }
                drop(queue);
                self.run(task);
                queue = lock(&self.queue);
                continue;
            }
            if queue.may_poll() {
                let heads = queue.take_heads();
                drop(queue);
                let looked = heads.map(|head| head.map(|head| self.look(head)));
                queue = lock(&self.queue);
                let goes_on = queue.put_back(looked, self.settings.clock.now_ns());
                if goes_on && queue.wants_others() {
                    self.bell.notify_all();
                }
                // Others may have brought tasks meanwhile, and rung no bell that this thread has heard.
                if goes_on || queue.has_tasks() {
                    continue;
                }
            }
            if let Some(lost) = queue.lost.take_due() {
                drop(queue);
                self.look_after(lost);
                queue = lock(&self.queue);
                continue;
            }
            if queue.has_ended() {
                return;
            }
            let watches = !queue.watched && queue.wants_watch();
            queue.watched |= watches;
            let clock = self.settings.clock;
            let patience = match (watches, queue.wants_watch()) {
                (true, _) => queue.until_look(clock.now_ns()),
                (false, true) => IDLE_BESIDE,
                (false, false) => IDLE,
            };
            let patience = clock.after(patience).block_for();
            let waited;
            (queue, waited) = self.bell.wait_timeout(queue, patience).unwrap_or_else(PoisonError::into_inner);
            queue.watched &= !watches;
            // Not after each wake: what ends wakes all threads, and retries by itself.
            match (waited.timed_out(), watches) {
                (true, true) => queue.tick(),
                (true, false) => queue.lost.tick(),
                _ => {}
            }
        }
    }

    fn look_after(&self, mut lost: Lost) {
        let ended = catch_unwind(AssertUnwindSafe(|| lost.look(self))).unwrap_or_else(|_| {
            self.tell_panic();
            Vec::new()
        });
        self.change(|queue| queue.lost.put_back(lost));
        // Outside of the lock of the queue, because parts give memory back.
        drop(ended);
        self.change(Queue::retry);
    }

    fn run(&self, task: Task) {
        let next = self.caught(|| match task {
            Task::Load(part) => self.issue_load(part),
            Task::Save(part) => self.issue_waiting(part),
            Task::Loaded(part) => self.end_load(part),
            Task::Saved(part) => self.end_save(part),
        });
        self.go_on(next, Caller::Mover);
    }

    /// A panic ends the part. Its drop keeps what the device may access.
    pub(super) fn caught(&self, run: impl FnOnce() -> Next) -> Next {
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
            self.tell_panic();
            Next::Ended
        })
    }

    fn tell_panic(&self) {
        self.tell(&DeviceError::new("a bug in cenote", "a part of a load or save panicked"));
    }

    fn look(&self, head: (Event, Task)) -> Looked {
        catch_unwind(AssertUnwindSafe(|| self.look_at(head))).unwrap_or_else(|_| {
            self.tell_panic();
            Looked::Ended
        })
    }

    fn look_at(&self, (event, mut task): (Event, Task)) -> Looked {
        match event.occurred() {
            Ok(true) => {
                task.leave_device();
                Looked::Done(task)
            }
            Ok(false) => Looked::NotYet(event, task),
            Err(error) => {
                self.tell(&error);
                task.lose();
                Looked::Lost(task)
            }
        }
    }
}
