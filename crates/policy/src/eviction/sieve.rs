//! SIEVE (Zhang et al., NSDI 2024): a queue in order of arrival, one bit per block, one hand.
//!
//! The hand moves from the oldest block to the newest and starts over. A block that was hit since
//! the hand's last visit loses its bit and stays in place; any other block leaves. So a block that
//! is never hit leaves after one visit, and blocks that are hit stay without being moved.
//!
//! The queue is not stored: a block's place is the instant of its arrival, and the hand is its last
//! place. The published algorithm does not store at a hit if the bit is set already. Here a hit
//! also stores its instant, as in LRU. The instant shows which blocks form a prompt (see the module
//! above), and how long a chunk has been idle.

use super::tails::tails_first;
use super::word::{Word, deepest_first, place_rank};
use super::{Candidate, Choice, EvictionPolicy, State, rewrites};
use std::sync::atomic::Ordering::Relaxed;

/// SIEVE that evicts tails before heads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sieve;

const VISITED: u64 = 1;

/// The hand's last place: the instant with [`SET`], and the order within that instant.
const HAND_PLACE: usize = 0;
const HAND_ORDER: usize = 1;
/// Unset, as in zeroed memory, the hand starts at the oldest block.
const SET: u64 = 1 << 63;

/// Ordered from the oldest place to the newest.
type QueueKey = (u64, u64);

fn queue_key(candidate: &Candidate, clock: u64) -> QueueKey {
    (place_rank(Word(candidate.word).place(), clock), deepest_first(candidate))
}

fn is_visited(word: u64) -> bool {
    Word(word).flags() & VISITED != 0
}

impl EvictionPolicy for Sieve {
    fn name(&self) -> &'static str {
        "sieve"
    }

    fn state_words(&self, _: u64) -> usize {
        2
    }

    fn inserted(&self, clock: u64, _: u64, _: &State) -> u64 {
        Word::new(clock).0
    }

    #[inline]
    fn accessed(&self, word: u64, clock: u64) -> u64 {
        let word = Word(word);
        if word.is_touched_at(clock) { word.0 } else { word.with_touched(clock).with_flags(VISITED).0 }
    }

    fn idle(&self, word: u64, clock: u64) -> u64 {
        Word(word).idle(clock)
    }

    /// The hand's path is known without walking it. It ends at the `want`-th block without the bit.
    /// If there are fewer, the hand goes around once and takes the first blocks that had the bit.
    /// So two selections suffice; 24 bytes of memory per candidate.
    fn victims(&self, clock: u64, state: &State, candidates: &[Candidate], want: usize) -> Choice {
        let want = want.min(candidates.len());
        if want == 0 {
            return Choice::default();
        }
        let hand = load_hand(state, clock);
        // Blocks that the hand has passed come after the rest.
        let ring_key = |index: usize| {
            let key = queue_key(&candidates[index], clock);
            (hand.is_some_and(|hand| key <= hand), key)
        };
        let mut words: Vec<u64> = candidates.iter().map(|candidate| candidate.word).collect();
        let (kept, mut chosen): (Vec<usize>, Vec<usize>) =
            (0..candidates.len()).partition(|&index| is_visited(candidates[index].word));
        let last = if chosen.len() >= want {
            let (_, &mut last, _) = chosen.select_nth_unstable_by_key(want - 1, |&index| ring_key(index));
            chosen.truncate(want);
            let end = ring_key(last);
            for index in kept.into_iter().filter(|&index| ring_key(index) < end) {
                words[index] = Word(words[index]).with_flags(0).0;
            }
            chosen.sort_unstable_by_key(|&index| ring_key(index));
            last
        } else {
            let mut second = kept;
            second.iter().for_each(|&index| words[index] = Word(words[index]).with_flags(0).0);
            let more = want - chosen.len();
            let (_, &mut last, _) = second.select_nth_unstable_by_key(more - 1, |&index| ring_key(index));
            second.truncate(more);
            chosen.sort_unstable_by_key(|&index| ring_key(index));
            second.sort_unstable_by_key(|&index| ring_key(index));
            chosen.extend(second);
            last
        };
        let hand = queue_key(&candidates[last], clock);
        // At the newest block the hand starts over, before newer blocks arrive.
        let at_the_end = candidates.iter().all(|candidate| queue_key(candidate, clock) <= hand);
        store_hand(state, (!at_the_end).then_some(&candidates[last]));

        let victims = tails_first(candidates, &mut words, &chosen);
        Choice {
            victims: victims.iter().map(|&index| candidates[index].block).collect(),
            rewrites: rewrites(candidates, &words, victims),
        }
    }
}

fn load_hand(state: &State, clock: u64) -> Option<QueueKey> {
    let place = state[HAND_PLACE].load(Relaxed);
    (place & SET != 0).then(|| (place_rank(place & !SET, clock), state[HAND_ORDER].load(Relaxed)))
}

fn store_hand(state: &State, at: Option<&Candidate>) {
    state[HAND_ORDER].store(at.map_or(0, deepest_first), Relaxed);
    state[HAND_PLACE].store(at.map_or(0, |at| Word(at.word).place() | SET), Relaxed);
}
