//! The mover's threads: one polls the device's events, and all run what is ready.

use super::load::LoadPart;
use super::save::SavePart;
use super::{Shared, lock};
use crate::driver::{DeviceError, Event};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The driver has no wait with a deadline, so a thread asks it with this period.
const ASK: Duration = Duration::from_micros(50);
const IDLE: Duration = Duration::from_secs(1);

/// Work for a native thread.
pub(crate) enum Task {
    /// Copies to be queued.
    Load(LoadPart),
    Save(SavePart),
    /// Copies that the device has done.
    Loaded(LoadPart),
    Saved(SavePart),
}

/// A stream whose events are polled.
#[derive(Clone, Copy)]
pub(crate) enum Lane {
    Loads,
    Saves,
    /// The kernels behind their copies.
    LoadKernels,
    SaveKernels,
}

/// What is under way.
#[derive(Default)]
pub(crate) struct Queue {
    /// Parts of loads whose copies no thread has queued. They come first: the device works on them
    /// while the threads do all else.
    to_queue: VecDeque<Task>,
    ready: VecDeque<Task>,
    /// Parts that wait for slots.
    waiting: VecDeque<Task>,
    /// Parts on the device, per lane in the order of its stream.
    lanes: [VecDeque<(Event, Task)>; 4],
    /// Parts that have not ended.
    under_way: usize,
    /// A thread waits for the time to poll.
    watched: bool,
    /// A thread polls, and has the first parts of the lanes.
    polling: bool,
    closing: bool,
    /// Parts that the device may still access although it failed.
    lost: Vec<Task>,
}

impl Queue {
    pub(crate) const fn close(&mut self) {
        self.closing = true;
    }

    pub(crate) const fn under_way(&self) -> usize {
        self.under_way
    }

    pub(crate) const fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    fn has_events(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.is_empty())
    }
}

impl Task {
    fn lose(&mut self) {
        match self {
            Self::Load(part) | Self::Loaded(part) => part.lose(),
            Self::Save(part) | Self::Saved(part) => part.lose(),
        }
    }
}

/// Begins the threads.
pub(crate) fn start(
    shared: &Arc<Shared>,
    threads: usize,
    place: impl Fn() + Send + Sync + 'static,
) -> Result<(), DeviceError> {
    let place = Arc::new(place);
    for number in 0..threads {
        let (own, place) = (Arc::clone(shared), Arc::clone(&place));
        let begun = std::thread::Builder::new().name(format!("cenote-device-{number}")).spawn(move || {
            own.device.enter_thread();
            place();
            own.work();
        });
        if let Err(error) = begun {
            lock(&shared.queue).close();
            shared.bell.notify_all();
            return Err(DeviceError::new("a thread of the mover", error.to_string()));
        }
    }
    Ok(())
}

/// What becomes of a task that a thread has run.
pub(crate) enum Next {
    Ended,
    /// It waits for slots.
    Waits(Task),
    /// Its copies are queued on the device.
    Queued(Lane, Task),
    /// Its copies or kernels are queued, and no event can tell when they end.
    Lost(Task),
}

impl Shared {
    /// Counts parts that begin.
    pub(super) fn enter(&self, parts: usize) -> Result<(), DeviceError> {
        let mut queue = lock(&self.queue);
        if queue.closing {
            return Err(DeviceError::new("a load or save", "the memory was closed"));
        }
        queue.under_way += parts;
        Ok(())
    }

    /// Hands parts of loads to the threads.
    pub(super) fn hand_over(&self, loads: impl Iterator<Item = Task>) {
        lock(&self.queue).to_queue.extend(loads);
        self.bell.notify_all();
    }

    /// Ends parts of this kind, or lets the threads follow them.
    pub(super) fn go_on(&self, next: Next) {
        let (lane, task) = match next {
            Next::Ended => return self.change(|queue| queue.end(1)),
            Next::Waits(task) => return self.put_off(task),
            Next::Lost(task) => return self.lose(task),
            Next::Queued(lane, task) => (lane, task),
        };
        let recorded = match lane {
            Lane::Loads => self.device.record(&self.loads),
            Lane::Saves => self.device.record(&self.saves),
            Lane::LoadKernels | Lane::SaveKernels => self.path().and_then(|path| match &path.kit {
                Some(kit) if matches!(lane, Lane::LoadKernels) => self.device.record(&kit.loads),
                Some(kit) => self.device.record(&kit.saves),
                None => unreachable!("a part without kernels"),
            }),
        };
        match recorded {
            Ok(event) => self.change(|queue| queue.lanes[lane as usize].push_back((event, task))),
            Err(error) => {
                self.tell(&error);
                self.lose(task);
            }
        }
    }

    /// Lets a part wait for slots, unless a lost part may keep them for ever: then it fails.
    fn put_off(&self, task: Task) {
        let mut queue = lock(&self.queue);
        if !queue.has_lost() {
            queue.waiting.push_back(task);
            drop(queue);
            return self.bell.notify_all();
        }
        drop(queue);
        drop(task);
        self.change(|queue| queue.end(1));
    }

    fn lose(&self, mut task: Task) {
        task.lose();
        self.change(|queue| queue.lose(task));
    }

    fn change(&self, change: impl FnOnce(&mut Queue)) {
        change(&mut lock(&self.queue));
        self.bell.notify_all();
    }

    fn work(self: &Arc<Self>) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(task) = queue.to_queue.pop_front().or_else(|| queue.ready.pop_front()) {
                if queue.has_events() && !queue.watched {
                    // Another thread polls meanwhile.
                    self.bell.notify_all();
                }
                drop(queue);
                self.run(task);
                queue = lock(&self.queue);
                continue;
            }
            if !queue.polling && queue.has_events() {
                let heads = queue.take_heads();
                drop(queue);
                let looked = heads.map(|head| head.map(|head| self.look(head)));
                queue = lock(&self.queue);
                if queue.put_back(looked) {
                    self.bell.notify_all();
                    continue;
                }
            }
            if queue.closing && queue.under_way == 0 {
                return;
            }
            let watches = !queue.watched && (queue.has_events() || !queue.waiting.is_empty());
            queue.watched |= watches;
            let patience = self.settings.clock.after(if watches { ASK } else { IDLE }).block_for();
            let waited;
            (queue, waited) = self.bell.wait_timeout(queue, patience).unwrap_or_else(PoisonError::into_inner);
            if watches {
                queue.watched = false;
                // Not after each wake: parts that wait wake others when they are put off again.
                if waited.timed_out() {
                    queue.retry();
                }
            }
        }
    }

    fn run(self: &Arc<Self>, task: Task) {
        let ran = catch_unwind(AssertUnwindSafe(|| match task {
            Task::Load(part) => self.issue_load(part),
            Task::Save(part) => self.issue_waiting(part),
            Task::Loaded(part) => self.end_load(part),
            Task::Saved(part) => self.end_save(part),
        }));
        self.go_on(ran.unwrap_or_else(|_| {
            self.tell(&DeviceError::new("a bug in cenote", "a part of a load or save panicked"));
            Next::Ended
        }));
    }

    fn look(&self, (event, mut task): (Event, Task)) -> Looked {
        match event.occurred() {
            Ok(true) => Looked::Done(task),
            Ok(false) => Looked::NotYet(event, task),
            Err(error) => {
                self.tell(&error);
                task.lose();
                Looked::Lost(task)
            }
        }
    }
}

/// A part on the device, after a look at its event.
enum Looked {
    Done(Task),
    NotYet(Event, Task),
    Lost(Task),
}

impl Queue {
    fn end(&mut self, parts: usize) {
        self.under_way -= parts;
        self.retry();
    }

    fn lose(&mut self, task: Task) {
        self.lost.push(task);
        self.end(1);
    }

    /// Parts that wait for slots try again. Those that are over end so.
    fn retry(&mut self) {
        self.ready.append(&mut self.waiting);
    }

    fn take_heads(&mut self) -> [Option<(Event, Task)>; 4] {
        self.polling = true;
        self.lanes.each_mut().map(VecDeque::pop_front)
    }

    /// Returns true if a part goes on.
    fn put_back(&mut self, looked: [Option<Looked>; 4]) -> bool {
        self.polling = false;
        let mut goes_on = false;
        for (lane, looked) in looked.into_iter().enumerate() {
            match looked {
                None => continue,
                Some(Looked::NotYet(event, task)) => {
                    self.lanes[lane].push_front((event, task));
                    continue;
                }
                Some(Looked::Done(task)) => self.ready.push_back(task),
                Some(Looked::Lost(task)) => self.lose(task),
            }
            goes_on = true;
        }
        goes_on
    }
}
