//! Victims chosen ahead, taken one at a time.
//!
//! Choosing looks at every candidate, so whoever needs one victim at a time would look at all of them for each. A plan keeps a
//! choice of many and hands its victims out in order, leaving out those whose word has changed since: they were hit.
//!
//! For LRU this is exactly what choosing anew each time would give: a hit only ever makes a block younger than all that were
//! chosen. For the others it is near: who was chosen and then hit stays, but what the choice already changed of the shared words
//! (SIEVE's hand, S3-FIFO's ghosts) was changed a little early.

use cenote_base::BlockIndex;
use std::collections::VecDeque;

/// Victims to come, the next one first.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    next: VecDeque<(BlockIndex, u64)>,
}

impl Plan {
    /// Keeps these victims; `word` tells what each has now. What was planned before is forgotten.
    pub fn keep(&mut self, victims: &[BlockIndex], word: impl Fn(BlockIndex) -> u64) {
        self.next.clear();
        self.next.extend(victims.iter().map(|&block| (block, word(block))));
    }

    /// The next victim whose word still is what it was; `word` tells it. `None`: choose again.
    pub fn take(&mut self, word: impl Fn(BlockIndex) -> u64) -> Option<BlockIndex> {
        while let Some((block, planned)) = self.next.pop_front() {
            if word(block) == planned {
                return Some(block);
            }
        }
        None
    }
}
