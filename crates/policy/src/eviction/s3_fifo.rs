//! S3-FIFO (Yang et al., SOSP 2023): two queues in order of arrival, and a memory of keys that left
//! the first.
//!
//! A new block enters the *small* queue, a tenth of the pool. At its end, a block with more than
//! one hit moves to the *main* queue. Any other block leaves, and the *ghost* table remembers its
//! key. A block with a remembered key enters main at once. At the end of main, a block with hits
//! moves to the front with one hit less; any other block leaves.
//!
//! The queues are not stored. A bit of the word names the queue, and the block's place is the
//! instant at which it entered the queue. Blocks that move in one call get one instant; among them
//! the one touched longest ago comes first.

use super::tails::tails_first;
use super::word::{Word, deepest_first, place_rank};
use super::{Candidate, Choice, EvictionPolicy, State, rewrites};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// S3-FIFO that evicts tails before heads.
#[derive(Clone, Copy, Debug, Default)]
pub struct S3Fifo;

/// Flags of the word: the hits since the block entered its queue, and the queue.
const HITS_MAX: u64 = 3;
const MAIN: u64 = 4;

/// The small queue is one part in `SMALL_SHARE` of the pool.
const SMALL_SHARE: usize = 10;
/// A block with more hits than this moves from small to main (the paper's Algorithm 1).
const HITS_TO_STAY: u64 = 1;

fn hits(word: u64) -> u64 {
    Word(word).flags() & HITS_MAX
}

fn is_main(word: u64) -> bool {
    Word(word).flags() & MAIN != 0
}

impl EvictionPolicy for S3Fifo {
    fn name(&self) -> &'static str {
        "s3-fifo"
    }

    fn state_words(&self, num_blocks: u64) -> usize {
        ghost::words(num_blocks)
    }

    fn inserted(&self, clock: u64, key: u64, state: &State) -> u64 {
        Word::new(clock).with_flags(if ghost::take(state, key) { MAIN } else { 0 }).0
    }

    #[inline]
    fn accessed(&self, word: u64, clock: u64) -> u64 {
        let word = Word(word);
        if word.is_touched_at(clock) {
            return word.0;
        }
        let more = u64::from(hits(word.0) < HITS_MAX);
        word.with_touched(clock).with_flags(word.flags() + more).0
    }

    fn idle(&self, word: u64, clock: u64) -> u64 {
        Word(word).idle(clock)
    }

    /// Walks the ends of both queues. They are heaps, so that only walked blocks cost a logarithm.
    /// Takes 40 bytes of memory per candidate.
    fn victims(&self, clock: u64, state: &State, candidates: &[Candidate], want: usize) -> Choice {
        let want = want.min(candidates.len());
        if want == 0 {
            return Choice::default();
        }
        let mut queues = Queues::new(candidates, clock);
        let chosen: Vec<(usize, bool)> = (0..want).map(|_| queues.evict()).collect();
        let places: Vec<usize> = chosen.iter().map(|&(index, _)| index).collect();
        let mut words = queues.words;
        let victims = tails_first(candidates, &mut words, &places);
        ghost::set_reach(state, candidates.len() - candidates.len() / SMALL_SHARE);
        for (&index, _) in victims.iter().zip(&chosen).filter(|(_, (_, from_small))| *from_small) {
            ghost::remember(state, candidates[index].key);
        }
        Choice {
            victims: victims.iter().map(|&index| candidates[index].block).collect(),
            rewrites: rewrites(candidates, &words, victims),
        }
    }
}

/// Rank of place and last touch, order within an instant, candidate. The smallest is at the end of
/// its queue.
type Entry = Reverse<(u64, u64, usize)>;

struct Queues<'a> {
    candidates: &'a [Candidate],
    words: Vec<u64>,
    clock: u64,
    small: BinaryHeap<Entry>,
    small_share: usize,
    /// Built when first needed: most calls end in the small queue.
    main: Option<BinaryHeap<Entry>>,
    /// Candidates that entered main in this call; they come after all of `main`.
    main_front: VecDeque<usize>,
}

impl<'a> Queues<'a> {
    fn new(candidates: &'a [Candidate], clock: u64) -> Self {
        Self {
            candidates,
            words: candidates.iter().map(|candidate| candidate.word).collect(),
            clock,
            small: heap(candidates, clock, false),
            small_share: (candidates.len() / SMALL_SHARE).max(1),
            main: None,
            main_front: VecDeque::new(),
        }
    }

    /// Takes one candidate out; the flag is true if it was in the small queue. Panics if all are
    /// out.
    fn evict(&mut self) -> (usize, bool) {
        loop {
            let from_small = self.small.len() >= self.small_share || self.main_is_empty();
            let evicted = if from_small { self.evict_small() } else { self.evict_main() };
            if let Some(index) = evicted {
                return (index, from_small);
            }
        }
    }

    /// `None`: the block at the end moved to main.
    fn evict_small(&mut self) -> Option<usize> {
        let Reverse((_, _, index)) = self.small.pop().expect("not everything is out");
        if hits(self.words[index]) <= HITS_TO_STAY {
            return Some(index);
        }
        self.enter_main(index, 0);
        None
    }

    /// `None`: the block at the end moved to the front.
    fn evict_main(&mut self) -> Option<usize> {
        let oldest = self.main_heap().pop().map(|Reverse((_, _, index))| index);
        let index = oldest.or_else(|| self.main_front.pop_front()).expect("main has a block");
        match hits(self.words[index]) {
            0 => Some(index),
            hits => {
                self.enter_main(index, hits - 1);
                None
            }
        }
    }

    fn enter_main(&mut self, index: usize, hits: u64) {
        self.words[index] = Word(self.words[index]).with_place(self.clock).with_flags(MAIN | hits).0;
        self.main_front.push_back(index);
    }

    fn main_heap(&mut self) -> &mut BinaryHeap<Entry> {
        let (candidates, clock) = (self.candidates, self.clock);
        self.main.get_or_insert_with(|| heap(candidates, clock, true))
    }

    fn main_is_empty(&mut self) -> bool {
        self.main_front.is_empty() && self.main_heap().is_empty()
    }
}

fn heap(candidates: &[Candidate], clock: u64, main: bool) -> BinaryHeap<Entry> {
    let entry = |(index, candidate): (usize, &Candidate)| {
        let word = Word(candidate.word);
        let rank = (place_rank(word.place(), clock) << 31) | word.touched_rank(clock);
        Reverse((rank, deepest_first(candidate), index))
    };
    candidates.iter().enumerate().filter(|(_, candidate)| is_main(candidate.word) == main).map(entry).collect()
}

/// Keys that left the small queue: a table of buckets, each one cache line. An entry is a
/// fingerprint and the number of its departure. An entry expires when as many later keys have left
/// as main holds. Younger entries replace the oldest one of a full bucket.
mod ghost {
    use super::State;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    /// Number of departures so far, and how many of the latest are valid.
    const DEPARTURES: usize = 0;
    const REACH: usize = 1;
    /// The table starts on a line of its own.
    const TABLE: usize = 8;
    const BUCKET: usize = 8;

    /// 1.5 entries per block, because buckets do not fill evenly.
    pub fn words(num_blocks: u64) -> usize {
        let entries = usize::try_from(num_blocks).unwrap_or(usize::MAX / 4);
        TABLE + (entries + entries / 2).div_ceil(BUCKET).max(1) * BUCKET
    }

    /// High bits of the key select the bucket; low bits are the fingerprint.
    fn bucket(state: &State, key: u64) -> &State {
        let count = (state.len() - TABLE) / BUCKET;
        let start = TABLE + ((u128::from(key) * count as u128) >> 64) as usize * BUCKET;
        &state[start..start + BUCKET]
    }

    const fn entry(key: u64, departure: u32) -> u64 {
        ((key & 0xffff_ffff) << 32) | departure as u64
    }

    fn departures(state: &State) -> u32 {
        state[DEPARTURES].load(Relaxed) as u32
    }

    /// Number of departures after this entry; for an empty entry a value above all others.
    fn age(entry: u64, departures: u32) -> u64 {
        if entry == 0 { u64::MAX } else { u64::from(departures.wrapping_sub(entry as u32)) }
    }

    pub fn set_reach(state: &State, reach: usize) {
        state[REACH].store(reach as u64, Relaxed);
    }

    pub fn remember(state: &State, key: u64) {
        let now = departures(state).wrapping_add(1);
        state[DEPARTURES].store(u64::from(now), Relaxed);
        let bucket = bucket(state, key);
        let same = |slot: &&AtomicU64| {
            let word = slot.load(Relaxed);
            word != 0 && word >> 32 == key & 0xffff_ffff
        };
        let oldest = || bucket.iter().max_by_key(|slot| age(slot.load(Relaxed), now));
        if let Some(slot) = bucket.iter().find(same).or_else(oldest) {
            slot.store(entry(key, now), Relaxed);
        }
    }

    /// Whether the key is remembered. Removes its entry.
    pub fn take(state: &State, key: u64) -> bool {
        let (now, reach) = (departures(state), state[REACH].load(Relaxed));
        for slot in bucket(state, key) {
            let word = slot.load(Relaxed);
            if word != 0 && word >> 32 == key & 0xffff_ffff && age(word, now) < reach {
                slot.store(0, Relaxed);
                return true;
            }
        }
        false
    }
}
