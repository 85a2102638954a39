//! Bare hash tables, which lookups are compared with: the same hashes, the same memory, the same
//! prefetching, and a comparison of the whole hash, but no check words, no eviction and no other
//! user.

use super::worker::bare_memory;
use cenote_base::BlockHash;
use cenote_console::failure::Failure;
use cenote_mem::{Fabric, Flush, Mapped, Offset};

/// Hashes with lines in flight together.
const GROUP: usize = 16;
/// Groups that are prefetched before the first is read.
const GROUPS_AHEAD: usize = 2;

/// A table from hashes to numbers.
pub trait Table {
    /// Inserts `value` under a hash that is not in the table yet.
    fn insert(&self, hash: BlockHash, value: u64);

    /// Writes the values of `hashes` into `values`, in order; returns the number of hits before the
    /// first miss.
    fn probe(&self, hashes: &[BlockHash], values: &mut Vec<u64>) -> usize;
}

/// The index's form: buckets of a line with seven words, each a tag and a record's number; records
/// of a line.
pub struct TwoLevels {
    memory: Mapped,
    buckets: u64,
}

impl TwoLevels {
    pub fn new(buckets: u64, entries: u64) -> Result<Self, Failure> {
        Ok(Self { memory: bare_memory((buckets + entries) * 64, Flush::None)?, buckets })
    }

    #[inline]
    fn bucket(&self, hash: BlockHash, step: u64) -> u64 {
        ((hash.words()[0] + step) & (self.buckets - 1)) * 64
    }

    #[inline]
    const fn record(&self, number: u64) -> u64 {
        (self.buckets + number) * 64
    }

    /// The value in a record, if its hash is this one.
    #[inline]
    fn value(&self, number: u64, hash: BlockHash) -> Option<u64> {
        let words = self.memory.load_line(self.record(number));
        (words[..2] == hash.words()).then_some(words[2])
    }

    #[inline]
    fn likely(hash: BlockHash, bucket: &[u64; 8]) -> Option<u64> {
        let tag = hash.words()[1] >> 40;
        let mut entry = 0;
        for &word in &bucket[..7] {
            entry = if word >> 40 == tag { word } else { entry };
        }
        (entry & ((1 << 40) - 1)).checked_sub(1)
    }

    /// Looks one hash up.
    fn find(&self, hash: BlockHash) -> Option<u64> {
        let tag = hash.words()[1] >> 40;
        for step in 0..self.buckets {
            let words = self.memory.load_line(self.bucket(hash, step));
            for word in words[..7].iter().filter(|&&word| word >> 40 == tag && word != 0) {
                if let Some(value) = self.value((word & ((1 << 40) - 1)) - 1, hash) {
                    return Some(value);
                }
            }
            if words[..7].contains(&0) {
                return None;
            }
        }
        None
    }
}

impl Table for TwoLevels {
    /// The value is the record's number as well.
    fn insert(&self, hash: BlockHash, value: u64) {
        let words = hash.words();
        self.memory.store_line(self.record(value), &[words[0], words[1], value, 0, 0, 0, 0, 0]);
        let places = (0..self.buckets).flat_map(|step| (0..7).map(move |word| (step, word * 8)));
        let mut places = places.map(|(step, word)| Offset::new(self.bucket(hash, step) + word));
        let free = places.find(|&at| self.memory.load(at) == 0).expect("half of it is free");
        self.memory.store(free, (words[1] >> 40 << 40) | (value + 1));
    }

    fn probe(&self, hashes: &[BlockHash], values: &mut Vec<u64>) -> usize {
        let ask = |group: &[BlockHash]| {
            for &hash in group {
                self.memory.prefetch(self.bucket(hash, 0));
            }
        };
        values.clear();
        let mut ahead = hashes.chunks(GROUP);
        ahead.by_ref().take(GROUPS_AHEAD).for_each(ask);
        let mut likely = [None; GROUP];
        for group in hashes.chunks(GROUP) {
            for (&hash, likely) in group.iter().zip(&mut likely) {
                *likely = Self::likely(hash, &self.memory.load_line(self.bucket(hash, 0)));
                if let Some(number) = *likely {
                    self.memory.prefetch(self.record(number));
                }
            }
            if let Some(next) = ahead.next() {
                ask(next);
            }
            for (&hash, likely) in group.iter().zip(&likely) {
                let there = likely.and_then(|number| self.value(number, hash)).or_else(|| self.find(hash));
                let Some(value) = there else { return values.len() };
                values.push(value);
            }
        }
        values.len()
    }
}

/// The form of a program's own table: hash and value side by side, two of them per line, at most
/// half of the table used. A lookup waits for one line, where the index waits for two.
pub struct Flat {
    memory: Mapped,
    slots: u64,
}

impl Flat {
    pub fn new(entries: u64) -> Result<Self, Failure> {
        let slots = (entries * 2).next_power_of_two();
        Ok(Self { memory: bare_memory(slots * 32, Flush::None)?, slots })
    }

    #[inline]
    const fn line(&self, low: u64, step: u64) -> u64 {
        ((low.wrapping_add(step)) & (self.slots / 2 - 1)) * 64
    }

    #[inline]
    fn find(&self, hash: BlockHash) -> Option<u64> {
        let [low, high] = hash.words();
        for step in 0..self.slots / 2 {
            let words = self.memory.load_line(self.line(low, step));
            if (words[0] == low) & (words[1] == high) {
                return Some(words[2]);
            }
            if (words[4] == low) & (words[5] == high) {
                return Some(words[6]);
            }
            if (words[0] == 0) | (words[4] == 0) {
                return None;
            }
        }
        None
    }
}

impl Table for Flat {
    fn insert(&self, hash: BlockHash, value: u64) {
        let [low, high] = hash.words();
        let places = (0..self.slots / 2).flat_map(|step| [0, 32].map(|half| self.line(low, step) + half));
        let at = { places }.find(|&at| self.memory.load(Offset::new(at)) == 0).expect("half of it is free");
        for (word, content) in [(0, low), (8, high), (16, value)] {
            self.memory.store(Offset::new(at + word), content);
        }
    }

    fn probe(&self, hashes: &[BlockHash], values: &mut Vec<u64>) -> usize {
        values.clear();
        for hash in &hashes[..hashes.len().min(GROUP * GROUPS_AHEAD)] {
            self.memory.prefetch(self.line(hash.words()[0], 0));
        }
        for (at, &hash) in hashes.iter().enumerate() {
            if let Some(later) = hashes.get(at + GROUP * GROUPS_AHEAD) {
                self.memory.prefetch(self.line(later.words()[0], 0));
            }
            let Some(value) = self.find(hash) else { break };
            values.push(value);
        }
        values.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::worker::hash_of;
    use super::*;

    #[test]
    fn tables_find_entries_up_to_the_first_miss() {
        let tables: [Box<dyn Table>; 2] =
            [Box::new(TwoLevels::new(256, 1000).expect("memory")), Box::new(Flat::new(1000).expect("memory"))];
        for table in tables {
            (0..1000).for_each(|block| table.insert(hash_of(block), block));
            let mut values = Vec::new();
            let hashes: Vec<BlockHash> = (0..1000).rev().map(hash_of).collect();
            assert_eq!(table.probe(&hashes, &mut values), 1000);
            assert!(values.iter().copied().eq((0..1000).rev()));
            let some: Vec<BlockHash> = [5, 7, 1001, 9].map(hash_of).to_vec();
            assert_eq!(table.probe(&some, &mut values), 2);
            assert_eq!(values, [5, 7]);
        }
    }
}
