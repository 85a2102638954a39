//! Least recently used (TraCT §4.2).

use super::{Candidate, Choice, EvictionPolicy, State};
use cenote_base::BlockIndex;
use std::cmp::Reverse;

/// Least recently used. The word is the instant of the last touch, in all 64 bits. It is the
/// baseline for the other policies. Only here, a block that was ever found leaves after all its
/// successors.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lru;

impl EvictionPolicy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn state_words(&self, _: u64) -> usize {
        0
    }

    fn inserted(&self, clock: u64, _: u64, _: &State) -> u64 {
        clock
    }

    #[inline]
    fn accessed(&self, _: u64, clock: u64) -> u64 {
        clock
    }

    fn idle(&self, word: u64, clock: u64) -> u64 {
        clock.saturating_sub(word)
    }

    fn evicts_by_age(&self) -> bool {
        true
    }

    /// A linear selection, then a sort of the chosen; 24 bytes of memory per candidate.
    fn victims(&self, _: u64, _: &State, candidates: &[Candidate], want: usize) -> Choice {
        let want = want.min(candidates.len());
        if want == 0 {
            return Choice::default();
        }
        let mut keys: Vec<(u64, Reverse<u32>, BlockIndex)> =
            candidates.iter().map(|c| (c.word, Reverse(c.depth), c.block)).collect();
        let (first, _, _) = keys.select_nth_unstable(want - 1);
        first.sort_unstable();
        Choice { victims: keys[..want].iter().map(|&(_, _, block)| block).collect(), rewrites: Vec::new() }
    }
}
