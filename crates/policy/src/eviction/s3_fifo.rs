//! S3-FIFO (Yang et al., SOSP 2023): two queues in order of arrival, and a memory of who left the first.
//!
//! A new block enters the *small* queue, a tenth of the pool. At its end a block that was hit more than once goes
//! over to the *main* queue; any other leaves, and the *ghost* table remembers its key. A block whose key is
//! remembered enters main at once. At the end of main a block that was hit goes to the front again with one hit less;
//! any other leaves.
//!
//! The queues are never stored: a bit of the word names the queue, its place is the instant at which the block
//! entered it. Blocks that change places in one call get one instant; among them the one touched longest ago comes
//! first.

use super::tails::tails_first;
use super::word::{Word, deepest_first, place_rank};
use super::{Candidate, Choice, EvictionPolicy, State, rewrites};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// S3-FIFO, with tails before heads.
#[derive(Clone, Copy, Debug, Default)]
pub struct S3Fifo;

/// Flags: hits since the block entered its queue, and the queue.
const HITS_MAX: u64 = 3;
const MAIN: u64 = 4;

/// The small queue's part of the pool.
const SMALL_SHARE: usize = 10;
/// More hits than this lead from small to main (the paper's Algorithm 1).
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

    /// Walks the ends of both queues, which are heaps, so that only blocks walked over cost a logarithm; 40 bytes
    /// for each candidate.
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

/// Place, last touch, order within an instant, candidate: the smallest is at the end of its queue.
type Entry = Reverse<(u64, u64, usize)>;

struct Queues<'a> {
    candidates: &'a [Candidate],
    words: Vec<u64>,
    clock: u64,
    small: BinaryHeap<Entry>,
    small_share: usize,
    /// Built when it is first needed: most calls end in the small queue.
    main: Option<BinaryHeap<Entry>>,
    /// Who entered main in this call, behind all of `main`.
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

    /// Takes one candidate out, and tells whether it was in the small queue. Not all may be out.
    fn evict(&mut self) -> (usize, bool) {
        loop {
            let from_small = self.small.len() >= self.small_share || self.main_is_empty();
            let evicted = if from_small { self.evict_small() } else { self.evict_main() };
            if let Some(index) = evicted {
                return (index, from_small);
            }
        }
    }

    /// `None`: what was at the end went over to main.
    fn evict_small(&mut self) -> Option<usize> {
        let Reverse((_, _, index)) = self.small.pop().expect("not everything is out");
        if hits(self.words[index]) <= HITS_TO_STAY {
            return Some(index);
        }
        self.enter_main(index, 0);
        None
    }

    /// `None`: what was at the end went to the front.
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

/// Who left the small queue: a table of buckets, a bucket being a line of memory. An entry is a fingerprint and the
/// number of the departure; it is forgotten when main's worth of others have left since, or when its bucket is full
/// of younger ones.
mod ghost {
    use super::State;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    /// Departures so far, and how many of the last are remembered.
    const DEPARTURES: usize = 0;
    const REACH: usize = 1;
    /// The table starts with a line of its own.
    const TABLE: usize = 8;
    const BUCKET: usize = 8;

    /// Half as many entries again as there are blocks, because buckets do not fill evenly.
    pub fn words(num_blocks: u64) -> usize {
        let entries = usize::try_from(num_blocks).unwrap_or(usize::MAX / 4);
        TABLE + (entries + entries / 2).div_ceil(BUCKET).max(1) * BUCKET
    }

    /// High bits of the key choose the bucket, low bits tell the keys in it apart.
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

    /// How many left after this one; more than can be for an empty entry.
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

    /// Whether the key is remembered; it is forgotten with that.
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
