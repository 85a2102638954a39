//! The set of blocks in a pool or in an instance's own cache, for replays and simulations.
//! [`crate::eviction`] chooses the victims.
//!
//! A block's name is its number in the trace, from 0; a slot of the cache holds one block. The
//! policy's words and shared state are the same as in the pool, but lie in vectors.
//!
//! A block has [`WHOLE`] units, and fewer if it is compressed. The caller decides how to make room, as
//! in the pool: it may compress the coldest whole block, or evict the policy's victim.

use crate::eviction::{Candidate, Eviction, EvictionPolicy, Plan, batch};
use cenote_base::BlockIndex;
use cenote_base::prng::Prng;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;

/// A block's number within its trace: 0, 1, 2, … in the order of first use.
pub type BlockNumber = u32;

/// No slot.
const NOWHERE: u32 = u32::MAX;

/// Units of a block that is not compressed.
pub const WHOLE: u32 = 64;
/// This part of the blocks, the youngest, is warm and is not compressed (`pool/src/eviction/repack.rs`).
const WARM_SHARE: usize = 4;

/// A block that leaves unless the caller finds a cheaper way to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The block.
    pub block: BlockNumber,
    /// Its units.
    pub units: u32,
    /// Whether a cold block is not compressed yet.
    pub may_compress: bool,
}

/// How to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MakeRoom {
    /// The victim leaves.
    Evict,
    /// The coldest whole block shrinks to so many units.
    Compress(u32),
}

/// A set of blocks with limited or unlimited capacity.
pub struct BlockCache {
    policy: &'static dyn EvictionPolicy,
    state: Vec<AtomicU64>,
    /// In units.
    capacity: usize,
    used: usize,
    /// Slot by block number, or `NOWHERE`.
    slot_of: Vec<u32>,
    /// Policy word, depth and key by slot.
    candidates: Vec<Candidate>,
    /// Block number by slot.
    numbers: Vec<BlockNumber>,
    /// Units by slot; 0: the slot is vacant.
    units: Vec<u32>,
    vacant: Vec<usize>,
    plan: Plan,
    /// The next victim: its slot and word.
    next: Option<(usize, u64)>,
    /// Cold blocks to compress, and their words.
    cold: VecDeque<(usize, u64)>,
    num_whole: usize,
    evicted: u64,
}

impl BlockCache {
    /// An empty cache for blocks numbered below `num_blocks`. `capacity` is in blocks; `None`: no
    /// eviction.
    #[must_use]
    pub fn new(eviction: Eviction, capacity: Option<usize>, num_blocks: usize) -> Self {
        let capacity = capacity.unwrap_or(num_blocks).min(num_blocks);
        Self::of_units(eviction, capacity * WHOLE as usize, capacity, num_blocks)
    }

    /// As [`Self::new`], with a capacity in units: that of about `capacity` blocks. A block may have any
    /// number of units.
    #[must_use]
    pub fn of_units(eviction: Eviction, units: usize, capacity: usize, num_blocks: usize) -> Self {
        let policy = eviction.policy();
        let state = (0..policy.state_words(capacity as u64)).map(|_| AtomicU64::new(0)).collect();
        Self {
            policy,
            state,
            capacity: units,
            used: 0,
            slot_of: vec![NOWHERE; num_blocks],
            candidates: Vec::new(),
            numbers: Vec::new(),
            units: Vec::new(),
            vacant: Vec::new(),
            plan: Plan::default(),
            next: None,
            cold: VecDeque::new(),
            num_whole: 0,
            evicted: 0,
        }
    }

    /// Whether the block is cached.
    #[must_use]
    pub fn contains(&self, block: BlockNumber) -> bool {
        self.slot_of[block as usize] != NOWHERE
    }

    /// Number of leading blocks that are cached.
    #[must_use]
    pub fn num_found(&self, blocks: &[BlockNumber]) -> usize {
        blocks.iter().take_while(|&&block| self.contains(block)).count()
    }

    /// Units of a cached block; 0 if it is absent.
    #[must_use]
    pub fn units(&self, block: BlockNumber) -> u32 {
        let slot = self.slot_of[block as usize];
        if slot == NOWHERE { 0 } else { self.units[slot as usize] }
    }

    /// Looks up or publishes a block at an instant. Inserts it unless the capacity is 0. Returns
    /// whether it was cached before.
    pub fn touch(&mut self, block: BlockNumber, depth: u32, instant: u64) -> bool {
        self.touch_in(block, depth, instant, WHOLE, &mut |_| MakeRoom::Evict)
    }

    /// As [`Self::touch`]. A new block has `units` units, and `room` decides how to make room for it.
    pub fn touch_in(
        &mut self,
        block: BlockNumber,
        depth: u32,
        instant: u64,
        units: u32,
        room: &mut dyn FnMut(Victim) -> MakeRoom,
    ) -> bool {
        let slot = self.slot_of[block as usize];
        if slot != NOWHERE {
            let word = &mut self.candidates[slot as usize].word;
            *word = self.policy.accessed(*word, instant);
            return true;
        }
        if units as usize > self.capacity {
            return false;
        }
        while self.used + units as usize > self.capacity {
            let at = self.victim(instant);
            let may_compress = self.num_whole > self.len() / WARM_SHARE;
            let victim = Victim { block: self.numbers[at], units: self.units[at], may_compress };
            match room(victim) {
                MakeRoom::Compress(units) if may_compress => self.compress(instant, units),
                _ => self.evict(at),
            }
        }
        let key = key(block);
        let word = self.policy.inserted(instant, key, &self.state);
        let at = self.vacant.pop().unwrap_or(self.candidates.len());
        let candidate = Candidate { block: BlockIndex(at as u64), word, depth, key };
        if at == self.candidates.len() {
            self.candidates.push(candidate);
            self.numbers.push(block);
            self.units.push(units);
        } else {
            (self.candidates[at], self.numbers[at], self.units[at]) = (candidate, block, units);
        }
        self.used += units as usize;
        self.num_whole += usize::from(units == WHOLE);
        self.slot_of[block as usize] = u32::try_from(at).expect("fewer than four billion blocks");
        false
    }

    /// Gives it another capacity, in blocks. Blocks that no longer fit leave in the policy's order. The
    /// policy's shared state keeps its size, which only the order of S3-FIFO depends on.
    pub fn resize(&mut self, capacity: usize, instant: u64) {
        self.capacity = capacity * WHOLE as usize;
        while self.used > self.capacity {
            let at = self.victim(instant);
            self.evict(at);
        }
    }

    fn evict(&mut self, at: usize) {
        self.next = None;
        self.slot_of[self.numbers[at] as usize] = NOWHERE;
        self.used -= self.units[at] as usize;
        self.num_whole -= usize::from(self.units[at] == WHOLE);
        self.units[at] = 0;
        self.vacant.push(at);
        self.evicted += 1;
    }

    /// The slot of the block that leaves next.
    fn victim(&mut self, instant: u64) -> usize {
        let is_live = |&(at, word): &(usize, u64)| self.units[at] > 0 && self.candidates[at].word == word;
        if let Some((at, _)) = self.next.filter(is_live) {
            return at;
        }
        let at = self.planned().unwrap_or_else(|| {
            let live: Vec<Candidate>;
            let candidates = if self.vacant.is_empty() {
                &self.candidates
            } else {
                live =
                    self.candidates.iter().zip(&self.units).filter(|(_, units)| **units > 0).map(|(c, _)| *c).collect();
                &live
            };
            let choice = self.policy.victims(instant, &self.state, candidates, batch(candidates.len()));
            for rewrite in &choice.rewrites {
                self.candidates[rewrite.block.0 as usize].word = rewrite.to;
            }
            let candidates = &self.candidates;
            self.plan.keep(&choice.victims, |block| candidates[block.0 as usize].word);
            self.planned().expect("a full cache has a victim")
        });
        self.next = Some((at, self.candidates[at].word));
        at
    }

    fn planned(&mut self) -> Option<usize> {
        let (candidates, units) = (&self.candidates, &self.units);
        loop {
            let at = self.plan.take(|block| candidates[block.0 as usize].word)?.0 as usize;
            if units[at] > 0 {
                return Some(at);
            }
        }
    }

    /// Compresses the coldest whole block.
    fn compress(&mut self, instant: u64, to: u32) {
        let at = loop {
            match self.cold.pop_front() {
                Some((at, word)) if self.units[at] == WHOLE && self.candidates[at].word == word => break at,
                Some(_) => {}
                None => self.find_cold(instant),
            }
        };
        let to = to.clamp(1, WHOLE - 1);
        self.units[at] = to;
        self.used -= (WHOLE - to) as usize;
        self.num_whole -= 1;
    }

    /// Lists the coldest whole blocks; there is one.
    fn find_cold(&mut self, instant: u64) {
        let aged = |at: &usize| Reverse(self.policy.age(self.candidates[*at].word, instant));
        let mut whole: Vec<usize> = (0..self.units.len()).filter(|at| self.units[*at] == WHOLE).collect();
        whole.sort_by_key(aged);
        whole.truncate(batch(self.len()).max(1));
        self.cold = whole.into_iter().map(|at| (at, self.candidates[at].word)).collect();
    }

    /// Number of cached blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.candidates.len() - self.vacant.len()
    }

    /// Whether no block is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of evictions so far.
    #[must_use]
    pub const fn evicted(&self) -> u64 {
        self.evicted
    }
}

/// Stand-in for the block's hash: uniform bits.
#[must_use]
pub fn key(block: BlockNumber) -> u64 {
    Prng::new(u64::from(block)).next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_cache_keeps_the_latest_blocks_and_grows_again() {
        let mut cache = BlockCache::new(Eviction::Lru, Some(50), 100);
        (0..50).for_each(|block| _ = cache.touch(block, 0, u64::from(block) + 1));
        cache.resize(20, 51);
        assert!(cache.len() == 20 && (30..50).all(|block| cache.contains(block)));
        cache.resize(30, 51);
        (60..70).for_each(|block| _ = cache.touch(block, 0, u64::from(block)));
        assert!(cache.len() == 30 && (30..50).all(|block| cache.contains(block)), "none had to leave");
        cache.resize(0, 100);
        assert!(cache.is_empty() && !cache.touch(1, 0, 101) && cache.is_empty());
    }

    #[test]
    fn compressed_blocks_make_room_for_others() {
        let mut cache = BlockCache::new(Eviction::Lru, Some(8), 100);
        let mut room =
            |victim: Victim| if victim.may_compress { MakeRoom::Compress(WHOLE / 4) } else { MakeRoom::Evict };
        for block in 0..100 {
            cache.touch_in(block, 0, u64::from(block) + 1, WHOLE, &mut room);
            let units = |cache: &BlockCache| (0..100).map(|block| cache.units(block) as usize).sum::<usize>();
            assert!(units(&cache) == cache.used && cache.used <= 8 * WHOLE as usize);
            let cached = (0..100).filter(|block| cache.contains(*block)).count();
            assert_eq!(cached, cache.len());
        }
        // A quarter of the blocks stays whole: n/4 · 64 + 3n/4 · 16 units are 512 for n = 18.
        assert!((16..=19).contains(&cache.len()), "{}", cache.len());
        assert!(cache.units(99) == WHOLE && cache.units(100 - 1 - cache.len() as u32 + 2) < WHOLE);
        assert!((0..100).filter(|block| cache.contains(*block)).min() >= Some(80), "the oldest left");
    }
}
