//! A thread that reads blocks and publishes them above.

use super::{READERS, Shared};
use crate::counters::Count;
use crate::record::{Aligned, HEADER_BYTES, Name};

/// Reads until the tier ends.
pub fn run(shared: &Shared) {
    let mut memory = Aligned::default();
    while let Some(read) = shared.reads.take(|| shared.count(Count::Late, 1)) {
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

/// Reads one block and publishes it. Returns its length.
fn promote(shared: &Shared, name: &Name, memory: &mut Aligned) -> Option<u64> {
    let clock = shared.config.clock;
    let begin_ns = clock.now_ns();
    let length_max = shared.upper.length_max(name);
    let head = shared.backend.read(name, length_max, memory).inspect_err(|error| shared.fail(error)).ok()?;
    let payload = memory.bytes().get(HEADER_BYTES..HEADER_BYTES + usize::try_from(head.length).ok()?)?;
    let is_published = shared.upper.publish(&head, payload);
    // As many others read meanwhile.
    shared.ladder().has_read(1, head.length, clock.ns_since(begin_ns) / READERS as u64);
    is_published.then_some(head.length)
}
