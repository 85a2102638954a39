//! A thread that reads blocks and publishes them above.

use super::Shared;
use crate::counters::add;
use crate::record::{Aligned, HEADER_BYTES, Name};

/// Reads until the tier ends.
pub fn run(shared: &Shared) {
    let mut memory = Aligned::default();
    while let Some(read) = shared.reads.take(&shared.counters.late) {
        let bytes = promote(shared, &read.name, &mut memory);
        let counters = &shared.counters;
        shared.reads.done(&read, |in_time| match bytes {
            Some(bytes) => {
                add(&counters.bytes_in, bytes);
                add(if in_time { &counters.hits } else { &counters.late }, 1);
            }
            None => add(&counters.misses, 1),
        });
    }
}

/// Reads one block and publishes it. Returns its length.
fn promote(shared: &Shared, name: &Name, memory: &mut Aligned) -> Option<u64> {
    let head = shared.backend.read(name, memory).inspect_err(|error| shared.counters.fail(error)).ok()?;
    let payload = memory.bytes().get(HEADER_BYTES..HEADER_BYTES + usize::try_from(head.length).ok()?)?;
    shared.upper.publish(&head, payload).then_some(head.length)
}
