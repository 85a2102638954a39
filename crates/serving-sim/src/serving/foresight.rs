//! When the planner of the cold tier learns of requests: as they wait, are next, are announced or are
//! expected.

use super::world::{Event, World};
use crate::workload::BlockNumber;
use cenote_policy::prefetch::Source;

/// Blocks of a prompt before the first that no tier has: those that only L4 has, and the others.
struct Found {
    absent: Vec<BlockNumber>,
    present: Vec<BlockNumber>,
}

impl World<'_> {
    fn found(&self, blocks: &[BlockNumber]) -> Found {
        let (Some(cold), Some(shared)) = (&self.cold, self.shared.first()) else {
            return Found { absent: Vec::new(), present: Vec::new() };
        };
        let found = blocks.iter().take_while(|block| shared.pool.contains(**block) || cold.contains(**block));
        let (present, absent) = found.partition(|block| shared.pool.contains(**block));
        Found { absent, present }
    }

    /// A request waits. `is_new`: it has just arrived.
    pub(super) fn await_blocks(&mut self, index: usize, source: Source, is_new: bool) {
        if self.cold.is_none() {
            return;
        }
        let Found { absent, present } = self.found(self.workload.blocks(&self.workload.requests()[index]));
        let (Some(cold), now) = (&mut self.cold, self.calendar.now()) else { return };
        if is_new {
            cold.ahead().arrived_request(index, absent.len(), now);
        }
        cold.ahead().wait(index, source, &absent, &present);
        self.pump_cold();
    }

    /// The schedule of an instance names the requests of its next step.
    pub(super) fn await_next(&mut self, at: usize) {
        if !self.cold.as_mut().is_some_and(|cold| cold.ahead().config().waiting) {
            return;
        }
        let next: Vec<usize> = self.instances[at].scheduler.next_admissions().map(|id| id.0 as usize).collect();
        next.into_iter().for_each(|request| self.await_blocks(request, Source::NextStep(1), false));
    }

    /// A client announces a request: what its conversation's last prompt left in L4 is fetched.
    pub(super) fn hint(&mut self, request: usize) {
        let Some(previous) = self.cold.as_mut().and_then(|cold| cold.ahead().previous(request)) else { return };
        let absent = self.found(self.full_blocks(previous)).absent;
        if let Some(cold) = &mut self.cold {
            cold.ahead().hint(request, &absent);
        }
        self.pump_cold();
    }

    /// A conversation is expected to continue.
    pub(super) fn expect(&mut self, request: usize) {
        let absent = self.found(self.full_blocks(request)).absent;
        let now = self.calendar.now();
        if let Some(end) = self.cold.as_mut().and_then(|cold| cold.ahead().speculate(request, &absent, now)) {
            self.calendar.schedule(end, Event::Forgotten { request });
        }
        self.pump_cold();
    }

    /// It has not continued.
    pub(super) fn forget(&mut self, request: usize) {
        if let Some(cold) = &mut self.cold {
            cold.ahead().failed_speculation(request);
        }
        self.pump_cold();
    }

    fn full_blocks(&self, request: usize) -> &[BlockNumber] {
        let request = &self.workload.requests()[request];
        &self.workload.blocks(request)[..self.workload.num_full_blocks(request)]
    }
}
