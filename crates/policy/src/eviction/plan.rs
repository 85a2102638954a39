//! Victims chosen ahead, handed out one at a time.
//!
//! A choice looks at every candidate, which is expensive for a single victim. A plan keeps a choice
//! of many victims and hands them out in order. It skips blocks with a word that changed since,
//! because those were hit.
//!
//! For LRU the result equals choosing anew each time: a hit only makes a block younger than all
//! chosen ones. For the other policies it is close: a block that is hit after the choice stays. But
//! the choice has already changed the shared words (SIEVE's hand, S3-FIFO's ghosts), a little
//! early.

use cenote_base::BlockIndex;
use std::collections::VecDeque;

/// Chosen victims, the next one first.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    next: VecDeque<(BlockIndex, u64)>,
}

impl Plan {
    /// Replaces the plan by these victims; `word` returns the current word of a block.
    pub fn keep(&mut self, victims: &[BlockIndex], word: impl Fn(BlockIndex) -> u64) {
        self.next.clear();
        self.next.extend(victims.iter().map(|&block| (block, word(block))));
    }

    /// Takes the next victim with an unchanged word; `word` returns the current word of a block.
    /// `None`: the plan is used up, choose again.
    pub fn take(&mut self, word: impl Fn(BlockIndex) -> u64) -> Option<BlockIndex> {
        while let Some((block, planned)) = self.next.pop_front() {
            if word(block) == planned {
                return Some(block);
            }
        }
        None
    }
}
