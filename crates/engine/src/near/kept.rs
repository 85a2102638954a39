//! Copies in the order of their last use.

use std::collections::BTreeMap;

/// Bytes of an entry besides its values: two map entries and an allocation, about.
const OVERHEAD_BYTES: usize = 96;

/// Bytes that an entry of so many values counts.
pub(super) const fn entry_bytes<V>(values: usize) -> u64 {
    (values * size_of::<V>() + OVERHEAD_BYTES) as u64
}

/// Entries of at most so many bytes together; the one that was used longest ago leaves first.
pub(super) struct Kept<K, V> {
    entries: BTreeMap<K, (u64, Box<[V]>)>,
    by_use: BTreeMap<u64, K>,
    uses: u64,
    bytes: u64,
    bytes_max: u64,
    hits: u64,
    misses: u64,
}

impl<K: Copy + Ord, V: Copy> Kept<K, V> {
    pub fn new(bytes_max: u64) -> Self {
        Self { entries: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0, bytes: 0, bytes_max, hits: 0, misses: 0 }
    }

    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub const fn hits(&self) -> u64 {
        self.hits
    }

    pub const fn misses(&self) -> u64 {
        self.misses
    }

    /// The values of an entry, which is now the latest. Counts a hit or a miss.
    pub fn get(&mut self, key: K) -> Option<&[V]> {
        let Some((used, values)) = self.entries.get_mut(&key) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        self.uses += 1;
        self.by_use.remove(used);
        self.by_use.insert(self.uses, key);
        *used = self.uses;
        Some(values)
    }

    /// Keeps a copy, unless there is one or it does not fit.
    pub fn insert(&mut self, key: K, values: Box<[V]>) {
        let bytes = entry_bytes::<V>(values.len());
        if bytes > self.bytes_max || self.entries.contains_key(&key) {
            return;
        }
        self.shrink_to(self.bytes_max - bytes);
        self.uses += 1;
        self.by_use.insert(self.uses, key);
        self.entries.insert(key, (self.uses, values));
        self.bytes += bytes;
    }

    pub fn resize(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
        self.shrink_to(bytes_max);
    }

    fn shrink_to(&mut self, bytes: u64) {
        while self.bytes > bytes {
            let (_, key) = self.by_use.pop_first().expect("bytes belong to entries");
            let (_, values) = self.entries.remove(&key).expect("both maps have the same entries");
            self.bytes -= entry_bytes::<V>(values.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_that_was_used_longest_ago_leaves_and_bytes_hold() {
        let unit = entry_bytes::<u8>(10);
        let mut kept: Kept<u32, u8> = Kept::new(3 * unit);
        (0..3).for_each(|key| kept.insert(key, vec![key as u8; 10].into()));
        assert_eq!(kept.get(0), Some(&[0; 10][..]));
        kept.insert(3, vec![3; 10].into());
        assert!(kept.get(1).is_none() && kept.get(0).is_some() && kept.bytes() == 3 * unit);
        kept.insert(4, vec![4; 1000].into());
        assert!(kept.get(4).is_none(), "it does not fit");
        kept.resize(unit);
        assert!(kept.get(0).is_some() && kept.bytes() == unit, "the latest stays");
        kept.resize(0);
        kept.insert(5, vec![5; 10].into());
        assert_eq!((kept.bytes(), kept.hits(), kept.misses()), (0, 3, 2));
    }
}
