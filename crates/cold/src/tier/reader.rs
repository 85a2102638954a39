//! A thread that reads blocks and publishes them above.

use super::promotion::{Ask, Turn};
use super::{READERS, Shared};
use crate::counters::Count;
use crate::error::ColdError;
use crate::record::{Aligned, HEADER_BYTES, Name};

/// Reads until the tier ends.
pub fn run(shared: &Shared) {
    let mut memory = Aligned::default();
    while let Some(turn) = shared.reads.take(|| shared.count(Count::Late, 1)) {
        let read = match turn {
            Turn::Read(read) => read,
            Turn::Ask(asked, started) => {
                ask(shared, &asked);
                shared.reads.answered(&asked, started);
                continue;
            }
        };
        let bytes = promote(shared, &read.name, &mut memory);
        shared.reads.done(&read, |in_time| match bytes {
            Some(bytes) => {
                shared.count(Count::ReadBytes, bytes);
                shared.count(if in_time { Count::Hits } else { Count::Late }, 1);
            }
            None => shared.count(Count::Misses, 1),
        });
    }
}

/// Asks the place for blocks, and queues the reads of those that it has.
fn ask(shared: &Shared, ask: &Ask) {
    if let Err(error) = shared.backend.ask(&ask.names, ask.leading) {
        shared.fail(&error);
    }
    let listed = shared.listed(&ask.names, ask.leading);
    let worth = shared.worth(&listed);
    shared.count(Count::ReadsRefused, shared.reads.add(&listed[..worth], &ask.promotion));
}

/// Reads one block and publishes it. Returns its length.
fn promote(shared: &Shared, name: &Name, memory: &mut Aligned) -> Option<u64> {
    let clock = shared.config.clock;
    let begin_ns = clock.now_ns();
    let length_max = shared.upper.length_max(name);
    let read = shared.backend.read(name, length_max, memory).inspect_err(|error| {
        if !(shared.backend.evicts() && matches!(error, ColdError::Gone(_))) {
            shared.fail(error);
        }
    });
    let head = read.ok()?;
    let payload = memory.bytes().get(HEADER_BYTES..HEADER_BYTES + usize::try_from(head.length).ok()?)?;
    let is_published = shared.upper.publish(&head, payload);
    // As many others read meanwhile.
    shared.ladder().has_read(1, head.length, clock.ns_since(begin_ns) / READERS as u64);
    is_published.then_some(head.length)
}
