//! Parts that the device may still access although it failed: it refused to record the event behind their
//! copies, or to tell whether it occurred. Events that are recorded later tell it, and the parts end then.

use super::threads::Task;
use super::{Shared, lock};
use crate::driver::{DeviceError, EngineStream, Event};
use cenote_base::Deadline;
use std::sync::Arc;
use std::time::Duration;

/// Between two tries, if the device refuses.
const AGAIN: Duration = Duration::from_secs(1);

/// Lost parts. While a thread looks at them, it has the parts, and the queue an empty value.
#[derive(Default)]
pub(super) struct Lost {
    /// Parts on a stream of the engine, until that stream has an event behind them.
    of_engine: Vec<(Task, EngineStream)>,
    parts: Vec<(Task, Option<Arc<Event>>)>,
    /// Events behind all work of some parts.
    probe: Option<Probe>,
    is_due: bool,
    /// The device refused the last events.
    is_refused: bool,
    /// When it is asked again.
    again: Option<Deadline>,
    /// A thread looks, and has so many parts.
    looked_at: usize,
    /// The engine's thread has so many.
    with_engine: usize,
}

struct Probe {
    events: Vec<Event>,
    parts: Vec<(Task, Option<Arc<Event>>)>,
}

impl Lost {
    pub fn add(&mut self, task: Task, engine: Option<EngineStream>) {
        match engine {
            Some(engine) => self.of_engine.push((task, engine)),
            None => self.parts.push((task, None)),
        }
        self.is_due |= self.again.is_none();
    }

    const fn count(&self) -> usize {
        let probed = match &self.probe {
            Some(probe) => probe.parts.len(),
            None => 0,
        };
        self.of_engine.len() + self.parts.len() + probed + self.looked_at + self.with_engine
    }

    pub const fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Whether a look may end parts.
    pub const fn may_end(&self) -> bool {
        self.looked_at > 0 || self.probe.is_some() || (self.is_due && !self.parts.is_empty())
    }

    /// Whether the device does not tell when the parts end.
    pub const fn is_refused(&self) -> bool {
        self.is_refused && !self.is_empty()
    }

    /// Makes the next look due.
    pub const fn look_now(&mut self) {
        self.is_due = true;
    }

    /// Makes the next look due, at its time.
    pub fn tick(&mut self) {
        self.is_due |= self.probe.is_some() || self.again.is_some_and(Deadline::passed);
    }

    /// The parts, for a look that is due.
    pub fn take_due(&mut self) -> Option<Self> {
        if !self.is_due || self.looked_at > 0 || (self.parts.is_empty() && self.probe.is_none()) {
            return None;
        }
        let due = Self { parts: std::mem::take(&mut self.parts), probe: self.probe.take(), ..Self::default() };
        (self.is_due, self.again, self.looked_at) = (false, None, due.count());
        Some(due)
    }

    /// Asks the device. Returns parts that it has left.
    pub fn look(&mut self, shared: &Shared) -> Vec<Task> {
        let looked = match self.probe.take() {
            Some(probe) => self.look_at(probe),
            None => self.record(shared).map(|()| Vec::new()),
        };
        self.is_refused = looked.is_err();
        self.again = self.is_refused.then(|| shared.settings.clock.after(AGAIN));
        looked.unwrap_or_default()
    }

    fn look_at(&mut self, probe: Probe) -> Result<Vec<Task>, DeviceError> {
        let engines = probe.parts.iter().filter_map(|(_, event)| event.as_deref());
        let occurred = probe.events.iter().chain(engines).try_fold(true, |all, event| Ok(all && event.occurred()?));
        match occurred {
            Ok(true) => Ok(probe.parts.into_iter().map(|(task, _)| task).map(leave).collect()),
            Ok(false) => {
                self.probe = Some(probe);
                Ok(Vec::new())
            }
            Err(error) => {
                self.parts.extend(probe.parts);
                Err(error)
            }
        }
    }

    /// Records an event on each stream of the mover.
    fn record(&mut self, shared: &Shared) -> Result<(), DeviceError> {
        let path = shared.path()?;
        let kernels = path.kit.iter().flat_map(|kit| [&kit.loads, &kit.saves]);
        let streams = [&shared.loads, &shared.saves].into_iter().chain(kernels);
        let events = streams.map(|stream| shared.device.record(stream)).collect::<Result<_, _>>()?;
        self.probe = Some(Probe { events, parts: std::mem::take(&mut self.parts) });
        Ok(())
    }

    /// Gives back what [`Lost::take_due`] took.
    pub fn put_back(&mut self, looked: Self) {
        self.looked_at = 0;
        self.parts.extend(looked.parts);
        self.probe = looked.probe;
        (self.is_refused, self.again) = (looked.is_refused, looked.again);
        // Parts that were lost meanwhile.
        self.is_due |= !self.is_refused && self.probe.is_none() && !self.parts.is_empty();
    }
}

impl Shared {
    /// Records the event behind lost parts on this stream of the engine. Called in the engine's thread.
    pub(super) fn follow_engine(&self, engine: EngineStream) {
        let mut queue = lock(&self.queue);
        let parts: Vec<_> = queue.lost.of_engine.extract_if(.., |(_, stream)| stream.0 == engine.0).collect();
        if parts.is_empty() {
            return;
        }
        queue.lost.with_engine += parts.len();
        drop(queue);
        // An error was told when the parts were lost.
        let event = self.device.record_engine(engine).ok().map(Arc::new);
        self.change(|queue| {
            queue.lost.with_engine -= parts.len();
            match event {
                Some(event) => {
                    queue.lost.parts.extend(parts.into_iter().map(|(task, _)| (task, Some(Arc::clone(&event)))));
                    queue.lost.look_now();
                }
                None => queue.lost.of_engine.extend(parts),
            }
        });
    }
}

fn leave(mut task: Task) -> Task {
    task.leave_device();
    task
}
