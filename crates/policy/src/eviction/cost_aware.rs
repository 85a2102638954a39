//! Cost-aware: what would cost most to be without stays.
//!
//! A block is worth its chance to be asked for soon times the time that a hit saves. The chance is taken as hits over time
//! idle (as in hyperbolic caching, Blankstein et al., USENIX ATC 2017, with the time since the last touch instead of that since
//! arrival, so that with equal hits and costs it is LRU). What a hit saves is computing the block's tokens: the part
//! of it that grows with the tokens before it, attention's, is what blocks differ in. It is weighed so that a
//! block [`COST_DEPTH`] blocks into its prompt counts twice.
//!
//! Deeper blocks count more, and a head without its tail is still worth something, but not the other way round. So the block
//! that leaves of an instant is the deepest one all the same, as in every policy here.

use super::tails::tails_first;
use super::word::{Word, deepest_first};
use super::{Candidate, Choice, EvictionPolicy, State};

/// Hits over idle time, weighed by what a hit saves.
#[derive(Clone, Copy, Debug, Default)]
pub struct CostAware;

/// At this depth attention to what comes before takes as long as all else (of an 8-billion-parameter Llama: some 30,000 tokens,
/// that is 60 blocks of 512).
const COST_DEPTH: u64 = 60;
/// Hits are counted up to this.
const HITS_MAX: u64 = 7;

/// What a block is worth: it grows with hits and depth, and falls with idle time.
fn worth(candidate: &Candidate, clock: u64) -> u64 {
    let word = Word(candidate.word);
    let cost = COST_DEPTH + u64::from(candidate.depth).min(COST_DEPTH);
    let hits = 1 + word.flags().min(HITS_MAX);
    // 2^45 over an idle time of at most 2^31: never zero for what was asked for, and never too large.
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

    /// A linear selection, then a sort of the chosen; 32 bytes for each candidate.
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
        // Worth is computed from the words, which nobody's place is stored in: what stays keeps its own.
        let mut words: Vec<u64> = candidates.iter().map(|candidate| candidate.word).collect();
        let victims = tails_first(candidates, &mut words, &chosen);
        Choice { victims: victims.iter().map(|&index| candidates[index].block).collect(), rewrites: Vec::new() }
    }
}
