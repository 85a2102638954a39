//! The set of blocks in a pool or in an instance's own cache. [`cenote_policy::eviction`] chooses
//! the victims.
//!
//! A block's name is its number in the workload, from 0; a slot of the cache holds one block. The
//! policy's words and shared state are the same as in the pool, but lie in vectors.

use crate::workload::BlockNumber;
use cenote_base::BlockIndex;
use cenote_base::prng::Prng;
use cenote_policy::eviction::{Candidate, Eviction, EvictionPolicy, Plan, batch};
use std::sync::atomic::AtomicU64;

/// No slot.
const NOWHERE: u32 = u32::MAX;

/// A set of blocks with limited or unlimited capacity.
pub struct BlockCache {
    policy: &'static dyn EvictionPolicy,
    state: Vec<AtomicU64>,
    capacity: usize,
    /// Slot by block number, or `NOWHERE`.
    slot_of: Vec<u32>,
    /// Policy word, depth and key by slot.
    candidates: Vec<Candidate>,
    /// Block number by slot.
    numbers: Vec<BlockNumber>,
    plan: Plan,
    evicted: u64,
    /// The last evicted block, until the caller takes it.
    last_evicted: Option<BlockNumber>,
}

impl BlockCache {
    /// An empty cache for blocks numbered below `num_blocks`. `capacity` is in blocks; `None`: no
    /// eviction.
    #[must_use]
    pub fn new(eviction: Eviction, capacity: Option<usize>, num_blocks: usize) -> Self {
        let policy = eviction.policy();
        let capacity = capacity.unwrap_or(num_blocks).min(num_blocks);
        let state = (0..policy.state_words(capacity as u64)).map(|_| AtomicU64::new(0)).collect();
        Self {
            policy,
            state,
            capacity,
            slot_of: vec![NOWHERE; num_blocks],
            candidates: Vec::new(),
            numbers: Vec::new(),
            plan: Plan::default(),
            evicted: 0,
            last_evicted: None,
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

    /// Looks up or publishes a block at an instant. Inserts it unless the capacity is 0. Returns
    /// whether it was cached before.
    pub fn touch(&mut self, block: BlockNumber, depth: u32, instant: u64) -> bool {
        let slot = self.slot_of[block as usize];
        if slot != NOWHERE {
            let word = &mut self.candidates[slot as usize].word;
            *word = self.policy.accessed(*word, instant);
            return true;
        }
        if self.capacity == 0 {
            return false;
        }
        let key = key(block);
        let at = if self.candidates.len() < self.capacity {
            self.candidates.push(Candidate { block: BlockIndex(0), word: 0, depth, key });
            self.numbers.push(block);
            self.candidates.len() - 1
        } else {
            self.evict(instant)
        };
        let word = self.policy.inserted(instant, key, &self.state);
        self.candidates[at] = Candidate { block: BlockIndex(at as u64), word, depth, key };
        self.numbers[at] = block;
        self.slot_of[block as usize] = u32::try_from(at).expect("fewer than four billion blocks");
        false
    }

    /// Evicts a block of a full cache. Returns its slot, which the caller must fill.
    fn evict(&mut self, instant: u64) -> usize {
        let at = self.planned().unwrap_or_else(|| {
            let choice = self.policy.victims(instant, &self.state, &self.candidates, batch(self.capacity));
            for rewrite in &choice.rewrites {
                self.candidates[rewrite.block.0 as usize].word = rewrite.to;
            }
            let candidates = &self.candidates;
            self.plan.keep(&choice.victims, |block| candidates[block.0 as usize].word);
            self.planned().expect("a full cache has a victim")
        });
        self.slot_of[self.numbers[at] as usize] = NOWHERE;
        self.evicted += 1;
        self.last_evicted = Some(self.numbers[at]);
        at
    }

    /// The block that the last [`Self::touch`] evicted, if any.
    pub const fn take_evicted(&mut self) -> Option<BlockNumber> {
        self.last_evicted.take()
    }

    fn planned(&mut self) -> Option<usize> {
        let candidates = &self.candidates;
        self.plan.take(|block| candidates[block.0 as usize].word).map(|block| block.0 as usize)
    }

    /// Number of cached blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.candidates.len()
    }

    /// Whether no block is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }

    /// Number of evictions so far.
    #[must_use]
    pub const fn evicted(&self) -> u64 {
        self.evicted
    }
}

/// Stand-in for the block's hash: uniform bits.
pub(crate) fn key(block: BlockNumber) -> u64 {
    Prng::new(u64::from(block)).next_u64()
}
