//! What a soak's tasks count and find.

use super::engines::start_ticks;
use super::sample::{Counts, open_to_append};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Findings of an interval that are kept with their text.
const FINDINGS_MAX: usize = 10;

/// Counts and findings of all tasks.
pub struct Tally {
    interval: Mutex<Interval>,
    /// The numbers of all processes with their starts, for the next call to end those that this one leaves.
    processes: PathBuf,
}

/// What was counted since the last sample.
#[derive(Default)]
pub struct Interval {
    pub counts: Counts,
    /// Milliseconds to the first token.
    pub first_token_ms: Vec<f64>,
    pub findings: Vec<String>,
}

impl Tally {
    pub fn new(processes: PathBuf) -> Self {
        Self { interval: Mutex::default(), processes }
    }

    fn interval(&self) -> MutexGuard<'_, Interval> {
        // Every change stands alone.
        self.interval.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.interval().counts);
    }

    /// Counts an answer for which the region was asked.
    pub fn answered(&self, first_token_ms: f64, prompt_tokens: u64, cached_tokens: u64) {
        let mut interval = self.interval();
        interval.counts.answers += 1;
        interval.counts.prompt_tokens += prompt_tokens;
        interval.counts.cached_tokens += cached_tokens;
        interval.first_token_ms.push(first_token_ms);
    }

    /// An answer that differs from the one without the region.
    pub fn wrong(&self, what: String) {
        self.find(what, |counts| counts.wrong += 1);
    }

    /// A process that failed, or a request that was lost.
    pub fn fail(&self, what: String) {
        self.find(what, |counts| counts.failures += 1);
    }

    /// Something that did not end in time.
    pub fn hang(&self, what: String) {
        self.find(what, |counts| counts.hangs += 1);
    }

    fn find(&self, what: String, change: impl FnOnce(&mut Counts)) {
        let mut interval = self.interval();
        change(&mut interval.counts);
        if interval.findings.len() < FINDINGS_MAX {
            interval.findings.push(what);
        }
    }

    /// Notes a process.
    pub fn started(&self, pid: u32) {
        let line = format!("{pid} {}\n", start_ticks(pid).unwrap_or_default());
        let written = open_to_append(&self.processes).map(|mut file| file.write_all(line.as_bytes()));
        if !matches!(written, Ok(Ok(()))) {
            self.fail(format!("{} cannot be written", self.processes.display()));
        }
    }

    /// What was counted since the last call.
    pub fn take(&self) -> Interval {
        std::mem::take(&mut self.interval())
    }
}
