//! What is under way, and in which order the threads take it.

use super::lost::Lost;
use super::threads::Task;
use crate::driver::{EngineStream, Event};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// Looks at the device between two looks at all parts that wait: some may be over behind the first ones.
const TICKS_A_SWEEP: u64 = 20;

/// A stream whose events are polled.
#[derive(Clone, Copy)]
pub(crate) enum Lane {
    Loads,
    Saves,
    /// The kernels behind their copies.
    LoadKernels,
    SaveKernels,
}

/// Between two looks at the device, which wake a thread. The driver has no wait with a deadline.
const LOOK: Duration = Duration::from_micros(50);
const LOOK_MAX: Duration = Duration::from_micros(500);

/// What is under way.
#[derive(Default)]
pub(crate) struct Queue {
    /// Parts of loads whose copies no thread has queued. They come first: the device works on them
    /// while the threads do all else.
    to_queue: VecDeque<Task>,
    ready: VecDeque<Task>,
    /// Parts that wait, by what they want, in the order of their tickets.
    waiting: [BTreeMap<u64, Task>; 2],
    /// The next part's ticket.
    ticket: u64,
    /// Parts on the device, per lane in the order of its stream.
    lanes: [VecDeque<(Event, Task)>; 4],
    paces: [Pace; 4],
    /// Parts that have not ended.
    under_way: usize,
    /// A thread waits for the time to poll.
    pub watched: bool,
    /// A thread polls, and has the first parts of the lanes.
    polling: bool,
    closing: bool,
    ticks: u64,
    /// Parts that the device may still access although it failed.
    pub lost: Lost,
    /// Threads that have not ended.
    pub threads: usize,
}

/// The ends of a lane's parts, which follow each other at about the bus's speed.
#[derive(Default)]
struct Pace {
    last_ns: u64,
    /// Between the last two ends; 0: unknown.
    between_ns: u64,
}

/// A part on the device, after a look at its event.
pub(super) enum Looked {
    Done(Task),
    NotYet(Event, Task),
    Lost(Task),
    /// A panic has ended the part.
    Ended,
}

impl Queue {
    pub fn close(&mut self) {
        self.closing = true;
        self.lost.look_now();
    }

    pub const fn is_closing(&self) -> bool {
        self.closing
    }

    pub const fn under_way(&self) -> usize {
        self.under_way
    }

    /// Whether the threads end.
    pub const fn has_ended(&self) -> bool {
        self.closing && self.under_way == 0 && !self.lost.may_end()
    }

    fn has_events(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.is_empty())
    }

    /// Whether a thread looks at the device, and at the parts that wait, from time to time.
    pub fn wants_watch(&self) -> bool {
        self.has_events() || self.lost.may_end() || self.waiting.iter().any(|waiting| !waiting.is_empty())
    }

    /// Whether there is more than the thread does that asks, or something that a caller of `close` waits for.
    pub fn wants_others(&self) -> bool {
        self.to_queue.len() + self.ready.len() > 1 || self.closing || self.under_way == 0
    }

    pub fn has_tasks(&self) -> bool {
        !self.to_queue.is_empty() || !self.ready.is_empty()
    }

    /// Counts parts that begin. Returns their tickets.
    pub const fn begin(&mut self, parts: usize) -> Range<u64> {
        self.under_way += parts;
        let first = self.ticket;
        self.ticket += parts as u64;
        first..self.ticket
    }

    pub fn hand_over(&mut self, loads: impl Iterator<Item = Task>) {
        self.to_queue.extend(loads);
    }

    /// The next task to run. New parts line up behind those that wait for the same.
    pub fn take_task(&mut self) -> Option<Task> {
        while let Some(task) = self.to_queue.pop_front() {
            let waiting = &mut self.waiting[task.wants() as usize];
            if waiting.is_empty() {
                return Some(task);
            }
            waiting.insert(task.ticket(), task);
        }
        self.ready.pop_front()
    }

    pub fn end(&mut self) {
        self.under_way -= 1;
        self.retry();
    }

    /// Follows a part that is on the device.
    pub fn follow(&mut self, lane: Lane, event: Event, task: Task) {
        self.lanes[lane as usize].push_back((event, task));
        // What this part has left may suffice for the next one.
        self.retry();
    }

    /// Keeps a part until the device is seen to have ended its work for it.
    pub fn lose(&mut self, task: Task, engine: Option<EngineStream>) {
        self.lost.add(task, engine);
        self.end();
    }

    /// Lets a part wait for its turn. Gives it back if the device refuses to tell when it ends its work for
    /// lost parts, which may keep what this one wants.
    pub fn put_off(&mut self, task: Task) -> Option<Task> {
        if self.lost.is_refused() {
            return Some(task);
        }
        self.waiting[task.wants() as usize].insert(task.ticket(), task);
        None
    }

    /// The first part that waits for each kind tries again.
    pub fn retry(&mut self) {
        self.ready.extend(self.waiting.iter_mut().filter_map(|waiting| waiting.pop_first()).map(|(_, task)| task));
    }

    /// After a moment without work.
    pub fn tick(&mut self) {
        self.ticks += 1;
        self.retry();
        if self.ticks.is_multiple_of(TICKS_A_SWEEP) {
            self.lost.tick();
            let gives_up = self.lost.is_refused();
            for waiting in &mut self.waiting {
                let (over, others) =
                    std::mem::take(waiting).into_iter().partition(|(_, task)| gives_up || task.is_over());
                *waiting = others;
                self.ready.extend(BTreeMap::into_values(over));
            }
        }
    }

    pub fn may_poll(&self) -> bool {
        !self.polling && self.has_events()
    }

    pub fn take_heads(&mut self) -> [Option<(Event, Task)>; 4] {
        self.polling = true;
        self.lanes.each_mut().map(VecDeque::pop_front)
    }

    /// How long no part is expected to end: the first look is at three quarters of the usual time.
    pub fn until_look(&self, now_ns: u64) -> Duration {
        let lanes = self.lanes.iter().zip(&self.paces).filter(|(lane, _)| !lane.is_empty());
        let until = lanes.map(|(_, pace)| (pace.last_ns + pace.between_ns / 4 * 3).saturating_sub(now_ns)).min();
        Duration::from_nanos(until.unwrap_or(0)).clamp(LOOK, LOOK_MAX)
    }

    /// Returns true if a part goes on.
    pub fn put_back(&mut self, looked: [Option<Looked>; 4], now_ns: u64) -> bool {
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
                Some(Looked::Lost(task)) => self.lose(task, None),
                Some(Looked::Ended) => self.end(),
            }
            goes_on = true;
            let (pace, follows) = (&mut self.paces[lane], !self.lanes[lane].is_empty());
            let since = if pace.last_ns > 0 { now_ns.saturating_sub(pace.last_ns) } else { 0 };
            *pace = if follows { Pace { last_ns: now_ns, between_ns: since } } else { Pace::default() };
        }
        goes_on
    }
}
