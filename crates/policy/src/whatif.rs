//! Hit rates that a pool of another size or another eviction policy would have had, from a sample of its
//! requests.
//!
//! The sample has the blocks with a hash below a threshold, of all requests: a part `rate` of all blocks
//! (SHARDS: Waldspurger et al., FAST '15). The same blocks are sampled in each request. A cache with
//! the part `rate` of the pool's size treats them as the pool treats all blocks.
//!
//! The estimate is of misses. A missed block is rarely missed again soon, so the misses are spread over
//! many names, and those of the sample divided by `rate` are close to all misses. Hits are not: a system
//! prompt's few blocks have a large part of them, and are in the sample or not. The number of all blocks
//! asked for is known exactly, and the hits are the rest. (This is the adjustment SHARDS-adj.)
//!
//! Requests before [`Trace::warm`] fill the caches and do not count. A block hits only if every
//! sampled block before it in its request does.

use crate::block_cache::{BlockCache, BlockNumber, MakeRoom};
use crate::eviction::Eviction;
use std::collections::{BTreeMap, VecDeque};

/// Sampled requests in order, with their blocks numbered.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Part of all blocks that is sampled; 0 in an empty trace.
    rate: f64,
    requests: Vec<Request>,
    blocks: Vec<BlockNumber>,
    numbers: BTreeMap<(u16, u64), BlockNumber>,
    warm: usize,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    end: usize,
    /// Row in [`Replayed::missed`].
    model: u16,
    units: u32,
    asked: u64,
    requests: u64,
}

/// A request of the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled<'a> {
    /// Number of the model; blocks of two models are never the same.
    pub model: u16,
    /// Size of each of its blocks, in units of [`Trace::replay`]'s sizes, at least 1.
    pub units: u32,
    /// Names of its sampled blocks, in order.
    pub names: &'a [u64],
    /// Number of all blocks that were asked for since the request before, sampled or not, its own
    /// included.
    pub asked: u64,
    /// Number of requests since the request before, itself included.
    pub requests: u64,
}

/// Result of a replay. Counts are those after the warm part.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replayed {
    /// All blocks asked for.
    pub asked: f64,
    /// All requests.
    pub requests: f64,
    /// Estimated misses by model, without a cold tier.
    pub missed: Vec<f64>,
    /// Of these: blocks that hit with the cold tier, which has them or fills the gap before them.
    pub cold: Vec<f64>,
    /// Standard error of the misses that sampling causes; 0 if all blocks are in the sample.
    pub error: f64,
    /// Whether the cache was ever full. Otherwise the trace is too short to tell this size from an
    /// unlimited one.
    pub was_full: bool,
}

impl Replayed {
    /// Share of the blocks that hit in the pool; 0 without blocks.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        self.rate_without(self.missed.iter().sum())
    }

    /// Share of the blocks that hit in the pool or in the cold tier.
    #[must_use]
    pub fn hit_rate_with_cold(&self) -> f64 {
        self.rate_without(self.missed.iter().sum::<f64>() - self.cold.iter().sum::<f64>())
    }

    fn rate_without(&self, missed: f64) -> f64 {
        if self.asked > 0.0 { (1.0 - missed / self.asked).clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Standard error of a hit rate that sampling causes.
    #[must_use]
    pub fn rate_error(&self) -> f64 {
        if self.asked > 0.0 { self.error / self.asked } else { 0.0 }
    }
}

impl Trace {
    /// An empty trace of a sample with this part of all blocks.
    #[must_use]
    pub fn new(rate: f64) -> Self {
        Self { rate, ..Self::default() }
    }

    /// Adds the next request.
    pub fn push(&mut self, request: &Sampled<'_>) {
        for &name in request.names {
            let next = BlockNumber::try_from(self.numbers.len()).unwrap_or(BlockNumber::MAX);
            self.blocks.push(*self.numbers.entry((request.model, name)).or_insert(next));
        }
        let &Sampled { model, units, asked, requests, .. } = request;
        self.requests.push(Request { end: self.blocks.len(), model, units: units.max(1), asked, requests });
    }

    /// Lets the first requests, with this share of all blocks asked for, only fill the caches.
    pub fn warm(&mut self, share: f64) {
        let wanted = share * self.asked() as f64;
        let mut sum = 0;
        let is_before = |request: &&Request| {
            sum += request.asked;
            sum as f64 <= wanted
        };
        self.warm = self.requests.iter().take_while(is_before).count();
    }

    /// Part of all blocks that is sampled.
    #[must_use]
    pub const fn rate(&self) -> f64 {
        self.rate
    }

    /// Number of requests that have a sampled block.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is no request.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Number of all blocks that were asked for, sampled or not.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.requests.iter().map(|request| request.asked).sum()
    }

    /// Number of sampled blocks that were asked for, and of different ones.
    #[must_use]
    pub fn sampled(&self) -> (usize, usize) {
        (self.blocks.len(), self.numbers.len())
    }

    /// Replays the requests in a pool of so many units, before a cold tier of so many: `None` has all
    /// blocks that were ever computed. The oldest blocks leave a full cold tier, by the time of writing.
    #[must_use]
    pub fn replay(&self, eviction: Eviction, size: u64, cold: Option<u64>) -> Replayed {
        let scaled = |units: u64| (units as f64 * self.rate) as usize;
        let (units, num_blocks) = (scaled(size), self.numbers.len());
        let largest = self.requests.iter().map(|request| request.units).max().unwrap_or(1);
        let capacity = (units / largest as usize).min(num_blocks);
        let mut cache = BlockCache::of_units(eviction, units, capacity, num_blocks);
        let mut below = Cold::new(cold.map(scaled), num_blocks);
        let models = self.requests.iter().map(|request| usize::from(request.model) + 1).max().unwrap_or(0);
        let mut replayed = Replayed { missed: vec![0.0; models], cold: vec![0.0; models], ..Replayed::default() };
        let mut misses_of = vec![0_u32; num_blocks];
        let mut begin = 0;
        for (at, request) in self.requests.iter().enumerate() {
            let blocks = &self.blocks[begin..request.end];
            begin = request.end;
            let in_pool = cache.num_found(blocks);
            let found = blocks.iter().take_while(|&&block| cache.contains(block) || below.has(block)).count();
            if at >= self.warm {
                replayed.asked += request.asked as f64;
                replayed.requests += request.requests as f64;
                replayed.missed[usize::from(request.model)] += (blocks.len() - in_pool) as f64;
                replayed.cold[usize::from(request.model)] += (found - in_pool) as f64;
                blocks[in_pool..].iter().for_each(|&block| misses_of[block as usize] += 1);
            }
            let instant = at as u64 + 1;
            for (depth, &block) in (0..).zip(blocks) {
                if !cache.touch_in(block, depth, instant, request.units, &mut |_| MakeRoom::Evict) {
                    below.write(block, request.units);
                }
            }
        }
        replayed.was_full = cache.evicted() > 0;
        let squares: f64 = misses_of.iter().map(|&misses| f64::from(misses) * f64::from(misses)).sum();
        replayed.error = ((1.0 - self.rate).max(0.0) * squares).sqrt() / self.rate;
        for estimates in [&mut replayed.missed, &mut replayed.cold] {
            estimates.iter_mut().for_each(|count| *count /= self.rate);
        }
        replayed
    }
}

/// A cold tier: what was written to it last.
struct Cold {
    /// In units; `None`: unlimited.
    capacity: Option<usize>,
    used: usize,
    units: Vec<u32>,
    order: VecDeque<BlockNumber>,
}

impl Cold {
    fn new(capacity: Option<usize>, num_blocks: usize) -> Self {
        Self { capacity, used: 0, units: vec![0; num_blocks], order: VecDeque::new() }
    }

    fn has(&self, block: BlockNumber) -> bool {
        self.units[block as usize] > 0
    }

    fn write(&mut self, block: BlockNumber, units: u32) {
        if self.has(block) || self.capacity.is_some_and(|capacity| units as usize > capacity) {
            return;
        }
        self.units[block as usize] = units;
        self.used += units as usize;
        let Some(capacity) = self.capacity else { return };
        self.order.push_back(block);
        while self.used > capacity {
            let oldest = self.order.pop_front().expect("used units are of blocks in order");
            self.used -= std::mem::take(&mut self.units[oldest as usize]) as usize;
        }
    }
}

#[cfg(test)]
mod tests;
