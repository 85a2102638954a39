//! The thread that writes blocks, follows other processes, and opens the place.

use super::Shared;
use super::queue::{Turn, WAITING_MAX};
use crate::backend::Sealed;
use crate::counters::Count;
use crate::error::ColdError;
use crate::record::{Aligned, HEADER_BYTES, Head, Name, Sums, record_bytes};
use crate::settings::WriteBehind;
use cenote_base::Deadline;
use cenote_policy::temperature::{ColdBlock, Rung};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Most blocks and bytes of one write.
pub(super) const BATCH: usize = 64;
const BATCH_BYTES: u64 = 8 << 20;
/// Time between two looks for other processes' records.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Time until a place that failed is tried again.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Longest time for which written records may be lost with the machine's power.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Writes until the tier ends.
pub fn run(shared: &Shared) {
    let clock = shared.config.clock;
    let sums = Sums::of_place(&shared.config.seed, &shared.config.seal);
    let mut state = State { sums, memory: Aligned::default(), next_look: clock.after(Duration::ZERO), next_sync: None };
    while state.turn(shared) {}
    state.sync(shared);
}

struct State {
    sums: Sums,
    memory: Aligned,
    next_look: Deadline,
    /// When written records are synced; `None`: all are.
    next_sync: Option<Deadline>,
}

impl State {
    /// Does what is due. Returns false when the tier ends.
    fn turn(&mut self, shared: &Shared) -> bool {
        if shared.queue.is_over() {
            shared.count(Count::DroppedBusy, shared.queue.clear());
        }
        if !shared.is_open.load(Ordering::Acquire) && !self.open(shared) {
            // Blocks wait in the queue meanwhile; those that do not fit are dropped.
            if shared.queue.is_closed() {
                shared.count(Count::DroppedFailed, shared.queue.clear());
                return false;
            }
            shared.queue.pause(shared.config.clock.after(RETRY_AFTER));
            return true;
        }
        if self.next_look.passed() {
            self.look(shared);
        }
        if self.next_sync.is_some_and(Deadline::passed) {
            self.sync(shared);
        }
        match shared.queue.take(BATCH, self.next_look) {
            Turn::Write(names) => {
                self.write(shared, &names);
                shared.queue.done();
                true
            }
            Turn::Idle => true,
            Turn::End => false,
        }
    }

    /// Opens the place. Its list grows with the looks that follow, between which blocks are written: a
    /// list that takes minutes must not keep the tier from working.
    fn open(&mut self, shared: &Shared) -> bool {
        if let Err(error) = shared.backend.open(&shared.config.seed) {
            shared.fail(&error);
            return false;
        }
        shared.is_open.store(true, Ordering::Release);
        self.next_look = shared.config.clock.after(Duration::ZERO);
        true
    }

    /// Updates the list. Returns whether there is more to look at.
    fn refresh(shared: &Shared) -> Result<bool, ColdError> {
        let refreshed = shared.backend.refresh()?;
        shared.count(Count::Reclaimed, refreshed.removed);
        refreshed.damage.iter().for_each(|error| shared.fail(error));
        Ok(refreshed.has_more)
    }

    /// Learns what others did, and queues cold blocks if they are what is written.
    fn look(&mut self, shared: &Shared) {
        let refreshed = Self::refresh(shared);
        let has_more = matches!(refreshed, Ok(true));
        self.next_look = shared.config.clock.after(if has_more { Duration::ZERO } else { LOOK_EVERY });
        match refreshed {
            Ok(true) => return,
            Ok(false) if !shared.is_listed.swap(true, Ordering::AcqRel) => shared.queue.notify(),
            Ok(false) => {}
            Err(error) => Self::failed(shared, &error),
        }
        if shared.config.write == WriteBehind::Cold {
            // The same blocks are listed until they are evicted; only new ones count.
            let listed = shared.upper.coldest();
            shared.offer(listed.into_iter().filter(|name| shared.backend.length(name).is_none()));
        }
    }

    /// Counts a failure. A place that is gone is opened again, which makes it anew.
    fn failed(shared: &Shared, error: &ColdError) {
        shared.fail(error);
        if matches!(error, ColdError::Gone(_)) || error.is_refusal() {
            shared.is_open.store(false, Ordering::Release);
            shared.is_listed.store(false, Ordering::Release);
        }
    }

    fn sync(&mut self, shared: &Shared) {
        self.next_sync = None;
        if let Err(error) = shared.backend.sync() {
            shared.fail(&error);
        }
    }

    /// Copies blocks out of the region and writes them, in batches of bounded memory.
    fn write(&mut self, shared: &Shared, names: &[Name]) {
        // A place that does not answer takes no blocks.
        if let Err(error) = shared.backend.ask(names, false) {
            shared.count(Count::DroppedFailed, names.len() as u64);
            Self::failed(shared, &error);
            shared.queue.pause(shared.config.clock.after(RETRY_AFTER));
            return;
        }
        let mut heads: Vec<Head> = Vec::with_capacity(names.len());
        let mut bytes = 0;
        for name in names {
            // Names that were queued before the list was complete.
            if shared.backend.length(name).is_some() {
                shared.count(Count::Duplicates, 1);
                continue;
            }
            let Some(head) = shared.upper.describe(name) else {
                shared.count(Count::DroppedGone, 1);
                continue;
            };
            let block = ColdBlock { bytes: head.length, tokens: shared.upper.tokens(name), is_in_l4: false };
            if shared.ladder().rung_of(&block, None, shared.queue.len() as u64, WAITING_MAX as u64) != Rung::Demote {
                shared.count(Count::Skipped, 1);
                continue;
            }
            if bytes + record_bytes(head.length) > BATCH_BYTES && !heads.is_empty() {
                self.write_batch(shared, &heads);
                heads.clear();
                bytes = 0;
            }
            bytes += record_bytes(head.length);
            heads.push(head);
        }
        if !heads.is_empty() {
            self.write_batch(shared, &heads);
        }
    }

    fn write_batch(&mut self, shared: &Shared, heads: &[Head]) {
        let size = |head: &Head| usize::try_from(record_bytes(head.length)).expect("a block in memory");
        self.memory.resize(heads.iter().map(size).sum());
        // Blocks that are gone leave no gap: the next one takes their place.
        let (mut kept, mut end) = (Vec::with_capacity(heads.len()), 0);
        for head in heads {
            let record = &mut self.memory.bytes_mut()[end..end + size(head)];
            let payload = HEADER_BYTES..HEADER_BYTES + usize::try_from(head.length).expect("a block in memory");
            if shared.upper.copy(head, &mut record[payload]) {
                self.sums.seal(head, record);
                kept.push((*head, end..end + size(head)));
                end += size(head);
            } else {
                shared.count(Count::DroppedGone, 1);
            }
        }
        if kept.is_empty() {
            return;
        }
        let bytes = &self.memory.bytes()[..end];
        let records: Vec<Sealed<'_>> =
            kept.iter().map(|(head, range)| Sealed { head: *head, bytes: &bytes[range.clone()] }).collect();
        let clock = shared.config.clock;
        let begin_ns = clock.now_ns();
        let result = shared.backend.write(&records, bytes);
        // Of a batch in which one fails others may be there.
        let is_written = |head: &Head| result.is_ok() || shared.backend.length(&head.name).is_some();
        let written: Vec<u64> = kept.iter().filter(|(head, _)| is_written(head)).map(|(head, _)| head.length).collect();
        let (blocks, length) = (written.len() as u64, written.iter().sum());
        if blocks > 0 {
            shared.count(Count::Written, blocks);
            shared.count(Count::WrittenBytes, length);
            self.next_sync.get_or_insert_with(|| clock.after(SYNC_EVERY));
        }
        match result {
            Ok(()) => shared.ladder().has_written(blocks, length, clock.ns_since(begin_ns)),
            Err(error) => {
                shared.count(Count::DroppedFailed, kept.len() as u64 - blocks);
                Self::failed(shared, &error);
                shared.queue.pause(shared.config.clock.after(RETRY_AFTER));
            }
        }
    }
}
