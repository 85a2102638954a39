//! Cost-aware eviction: keeps the blocks that would be most expensive to lose.
//!
//! The value of a block is its chance of a hit soon, times the time that a hit saves. The chance is
//! estimated as hits divided by idle time. Hyperbolic caching (Blankstein et al., USENIX ATC 2017)
//! uses the time since arrival; this policy uses the time since the last touch, so that it is LRU
//! for equal hits and costs. A hit saves the computation of the block's tokens. Blocks differ in
//! the part that grows with the preceding tokens, attention. The weight is such that a block
//! [`COST_DEPTH`] blocks into its prompt counts twice.
//!
//! Deeper blocks are worth more. But a head is of use without its tail, and a tail is of no use
//! without its head. So, as in every policy here, the deepest block of an instant leaves first.

use super::tails::tails_first;
use super::word::{Word, deepest_first};
use super::{Candidate, Choice, EvictionPolicy, State};

/// Evicts by hits over idle time, weighted with the time that a hit saves.
#[derive(Clone, Copy, Debug, Default)]
pub struct CostAware;

/// Depth at which attention to the preceding tokens takes as long as all else. For an
/// 8-billion-parameter Llama it is about 30,000 tokens, that is 60 blocks of 512.
const COST_DEPTH: u64 = 60;
/// Cap of the hit count.
const HITS_MAX: u64 = 7;

/// Value of a block: grows with hits and depth, and falls with idle time.
fn worth(candidate: &Candidate, clock: u64) -> u64 {
    let word = Word(candidate.word);
    let cost = COST_DEPTH + u64::from(candidate.depth).min(COST_DEPTH);
    let hits = 1 + word.flags().min(HITS_MAX);
    // The numerator is between 2^37 and 2^42, the idle time at most 2^31: no overflow, never zero.
    ((cost * hits) << 32) / (1 + word.idle(clock))
}

impl EvictionPolicy for CostAware {
    fn name(&self) -> &'static str {
        "cost-aware"
    }

    fn state_words(&self, _: u64) -> usize {
        0
    }

    fn inserted(&self, clock: u64, _: u64, _: &State) -> u64 {
        Word::new(clock).0
    }

    #[inline]
    fn accessed(&self, word: u64, clock: u64) -> u64 {
        let word = Word(word);
        if word.is_touched_at(clock) {
            return word.0;
        }
        word.with_touched(clock).with_flags((word.flags() + 1).min(HITS_MAX)).0
    }

    fn idle(&self, word: u64, clock: u64) -> u64 {
        Word(word).idle(clock)
    }

    fn age(&self, word: u64, clock: u64) -> u64 {
        let word = Word(word);
        word.idle(clock) / (1 + word.flags().min(HITS_MAX))
    }

    /// A linear selection, then a sort of the chosen; 32 bytes of memory per candidate.
    fn victims(&self, clock: u64, _: &State, candidates: &[Candidate], want: usize) -> Choice {
        let want = want.min(candidates.len());
        if want == 0 {
            return Choice::default();
        }
        let key = |(index, candidate): (usize, &Candidate)| (worth(candidate, clock), deepest_first(candidate), index);
        let mut keys: Vec<(u64, u64, usize)> = candidates.iter().enumerate().map(key).collect();
        let (first, _, _) = keys.select_nth_unstable(want - 1);
        first.sort_unstable();
        let chosen: Vec<usize> = keys[..want].iter().map(|&(_, _, index)| index).collect();
        // Values come from the words, which store no queue places, so blocks that stay keep their
        // words.
        let mut words: Vec<u64> = candidates.iter().map(|candidate| candidate.word).collect();
        let victims = tails_first(candidates, &mut words, &chosen);
        Choice { victims: victims.iter().map(|&index| candidates[index].block).collect(), rewrites: Vec::new() }
    }
}
