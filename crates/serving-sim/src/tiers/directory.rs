//! Coherence messages: the paper's directory (CXL-SpecKV §3.3.2) beside Cenote's generations.
//!
//! Both serve the same reads and writes of blocks by several workers. A worker keeps copies of blocks
//! that it read. A write makes other copies stale: with a directory, by messages to all sharers; with
//! generations, by a new number that readers compare when they use their copy.
//!
//! | event | directory | generations |
//! |---|---|---|
//! | read miss | request, data | probe of the descriptor, data, probe again |
//! | read of an own copy | none | probe of the descriptor |
//! | write | request, an invalidation and an answer per other sharer, grant, data | data, descriptor |
//! | drop of a copy | notice | none |
//!
//! A message crosses the link once. A probe reads one line, which is a request and an answer.

use crate::cache::{BlockCache, MakeRoom, WHOLE};
use crate::workload::Workload;
use cenote_policy::Eviction;
use serde::Serialize;
use std::collections::BTreeMap;

/// Messages of one protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Messages {
    /// Control messages: requests, answers, probes, invalidations, notices.
    pub control: u64,
    /// Messages that carry a block.
    pub data: u64,
    /// Of the control messages, those on the path of a write, which the writer waits for.
    pub write_waits: u64,
    /// Of the control messages, those on the path of a read.
    pub read_waits: u64,
    /// Most entries of sharers that the directory held at once; 0 without one.
    pub entries_max: u64,
}

/// Both protocols on the same accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Coherence {
    /// Reads of blocks.
    pub reads: u64,
    /// Of them, reads of a copy that the worker had and that was fresh.
    pub copy_hits: u64,
    /// Writes of blocks.
    pub writes: u64,
    /// The paper's directory.
    pub directory: Messages,
    /// Generations.
    pub generations: Messages,
}

/// Replays a trace on `workers` workers by turns, with copies of at most `copies` blocks each (L1 and
/// L2), and a region of `region` blocks. A block that the region lacks is written; a write into the
/// slot of an evicted block makes copies of the evicted one stale.
///
/// # Panics
/// Panics without workers.
#[must_use]
pub fn replay(workload: &Workload, workers: usize, copies: usize, region: usize) -> Coherence {
    assert!(workers > 0, "workers read and write");
    let num_blocks = workload.num_blocks();
    let mut region = BlockCache::new(Eviction::Lru, Some(region), num_blocks);
    let mut near: Vec<Copies> = (0..workers).map(|_| Copies::new(copies)).collect();
    let mut generations = vec![0_u32; num_blocks];
    let mut sharers = Sharers::default();
    let mut told = Coherence::default();
    let mut instant = 0;
    for (turn, request) in workload.requests().iter().enumerate() {
        let worker = turn % workers;
        let blocks = workload.blocks(request);
        let found = region.num_found(blocks);
        for (depth, &block) in (0..).zip(blocks) {
            instant += 1;
            let is_hit = (depth as usize) < found;
            let mut left = None;
            region.touch_in(block, depth, instant, WHOLE, &mut |victim| {
                left = Some(victim.block);
                MakeRoom::Evict
            });
            if let Some(evicted) = left {
                // Its slot has a new owner: copies of the evicted block name bytes that are gone.
                generations[evicted as usize] += 1;
                let stale = sharers.take(evicted);
                told.directory.control += 2 * stale;
                told.directory.write_waits += 2 * stale;
            }
            if is_hit {
                let is_fresh = near[worker].read(block, generations[block as usize], instant);
                told.read(is_fresh);
            } else {
                let others = sharers.others(block, worker);
                sharers.clear(block);
                told.write(others);
                near[worker].keep(block, generations[block as usize], instant);
            }
            sharers.add(block, worker);
            for dropped in near[worker].shrink() {
                sharers.remove(dropped, worker);
                told.directory.control += 1;
            }
            told.directory.entries_max = told.directory.entries_max.max(sharers.count);
        }
    }
    told
}

impl Coherence {
    fn read(&mut self, is_fresh: bool) {
        self.reads += 1;
        self.copy_hits += u64::from(is_fresh);
        // Generations: the descriptor before, and after the copy once more.
        let (directory, probes) = if is_fresh { (0, 1) } else { (1, 2) };
        self.directory.control += directory;
        self.directory.read_waits += directory;
        self.generations.control += 2 * probes;
        self.generations.read_waits += 2 * probes;
        self.directory.data += u64::from(!is_fresh);
        self.generations.data += u64::from(!is_fresh);
    }

    fn write(&mut self, others: u64) {
        self.writes += 1;
        // Request and grant, and an invalidation and its answer per sharer.
        self.directory.control += 2 + 2 * others;
        self.directory.write_waits += 2 + 2 * others;
        self.directory.data += 1;
        // The descriptor. No side answers it.
        self.generations.control += 1;
        self.generations.data += 1;
    }
}

/// Sharers of each block, as the directory knows them.
#[derive(Debug, Default)]
struct Sharers {
    of: BTreeMap<u32, Vec<usize>>,
    count: u64,
}

impl Sharers {
    fn add(&mut self, block: u32, worker: usize) {
        let of = self.of.entry(block).or_default();
        if !of.contains(&worker) {
            of.push(worker);
            self.count += 1;
        }
    }

    fn remove(&mut self, block: u32, worker: usize) {
        if let Some(of) = self.of.get_mut(&block) {
            let before = of.len();
            of.retain(|other| *other != worker);
            self.count -= (before - of.len()) as u64;
        }
    }

    fn others(&self, block: u32, worker: usize) -> u64 {
        self.of.get(&block).map_or(0, |of| of.iter().filter(|other| **other != worker).count() as u64)
    }

    fn clear(&mut self, block: u32) {
        self.take(block);
    }

    /// Forgets all sharers of a block. Returns their number.
    fn take(&mut self, block: u32) -> u64 {
        let count = self.of.remove(&block).map_or(0, |of| of.len() as u64);
        self.count -= count;
        count
    }
}

/// A worker's own copies: block, generation and last use. The least recently used leaves.
#[derive(Debug)]
struct Copies {
    capacity: usize,
    of: BTreeMap<u32, (u32, u64)>,
    by_age: BTreeMap<u64, u32>,
}

impl Copies {
    const fn new(capacity: usize) -> Self {
        Self { capacity, of: BTreeMap::new(), by_age: BTreeMap::new() }
    }

    /// Whether a fresh copy was there. Keeps one from now on.
    fn read(&mut self, block: u32, generation: u32, instant: u64) -> bool {
        let is_fresh = self.of.get(&block).is_some_and(|(kept, _)| *kept == generation);
        self.keep(block, generation, instant);
        is_fresh
    }

    fn keep(&mut self, block: u32, generation: u32, instant: u64) {
        if let Some((_, age)) = self.of.insert(block, (generation, instant)) {
            self.by_age.remove(&age);
        }
        self.by_age.insert(instant, block);
    }

    fn shrink(&mut self) -> Vec<u32> {
        let mut dropped = Vec::new();
        while self.of.len() > self.capacity {
            let (_, block) = self.by_age.pop_first().expect("each copy has an age");
            self.of.remove(&block);
            dropped.push(block);
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Synthetic;

    #[test]
    fn generations_wait_for_nobody_on_writes_and_a_directory_for_no_fresh_read() {
        let workload =
            Synthetic { groups: 4, block_tokens: 64, ..Synthetic::tract('A', 200, 6.0).expect("workload A") }.draw(3);
        let told = replay(&workload, 4, 500, 2_000);
        assert_eq!(told.generations.write_waits, 0);
        assert!(told.directory.write_waits >= 2 * told.writes && told.reads > told.copy_hits && told.copy_hits > 0);
        assert_eq!(told.directory.read_waits, told.reads - told.copy_hits);
        assert_eq!(told.directory.data, told.generations.data, "both move the same blocks");
        assert!(told.directory.entries_max <= 4 * 500 + 1);
    }

    #[test]
    fn a_directory_without_sharers_still_asks() {
        let workload = Workload::alone(16, [(0, 64, 1), (1, 64, 1)]);
        let told = replay(&workload, 2, 100, 100);
        assert_eq!((told.reads, told.writes), (0, 8));
        assert_eq!((told.directory.control, told.generations.control), (16, 8));
    }
}
