//! Copies, the latest used first.

use lru::LruCache;
use std::hash::Hash;

/// Bytes of an entry besides its values, about: its place in the map and in the list, and the
/// allocation.
const OVERHEAD_BYTES: usize = 80;

/// Bytes that an entry of so many values counts.
pub(super) const fn entry_bytes<V>(values: usize) -> u64 {
    (values * size_of::<V>() + OVERHEAD_BYTES) as u64
}

/// Entries of at most so many bytes together; the one that was used longest ago leaves first.
pub(super) struct Kept<K: Hash + Eq, V> {
    entries: LruCache<K, Box<[V]>>,
    pub bytes: u64,
    bytes_max: u64,
    pub hits: u64,
    pub misses: u64,
}

impl<K: Hash + Eq, V> Kept<K, V> {
    pub fn new(bytes_max: u64) -> Self {
        Self { entries: LruCache::unbounded(), bytes: 0, bytes_max, hits: 0, misses: 0 }
    }

    /// The values of an entry, which is now the latest. Counts a hit or a miss.
    pub fn get(&mut self, key: &K) -> Option<&[V]> {
        let found = self.entries.get(key);
        self.hits += u64::from(found.is_some());
        self.misses += u64::from(found.is_none());
        found.map(|values| &values[..])
    }

    /// Keeps a copy, unless it does not fit.
    pub fn insert(&mut self, key: K, values: Box<[V]>) {
        let bytes = entry_bytes::<V>(values.len());
        if bytes > self.bytes_max {
            return;
        }
        self.bytes += bytes;
        if let Some(old) = self.entries.put(key, values) {
            self.bytes -= entry_bytes::<V>(old.len());
        }
        self.resize(self.bytes_max);
    }

    pub fn resize(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
        while self.bytes > bytes_max {
            let (_, values) = self.entries.pop_lru().expect("bytes belong to entries");
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
        assert_eq!(kept.get(&0), Some(&[0; 10][..]));
        kept.insert(3, vec![3; 10].into());
        assert!(kept.get(&1).is_none() && kept.get(&0).is_some() && kept.bytes == 3 * unit);
        kept.insert(0, vec![9; 10].into());
        assert_eq!(kept.get(&0), Some(&[9; 10][..]), "a second copy replaces the first");
        assert_eq!(kept.bytes, 3 * unit);
        kept.insert(4, vec![4; 1000].into());
        assert!(kept.get(&4).is_none(), "it does not fit");
        kept.resize(unit);
        assert!(kept.get(&0).is_some() && kept.bytes == unit, "the latest stays");
        kept.resize(0);
        kept.insert(5, vec![5; 10].into());
        assert_eq!((kept.bytes, kept.hits, kept.misses), (0, 4, 2));
    }
}
