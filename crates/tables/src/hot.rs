//! Rows that are read often, kept in private memory (Engram pooling §6).
//!
//! The cache is set-associative: a row may lie in eight places. A place has an age of two bits
//! (SRRIP): a new row is old, a hit makes it young, and the oldest is replaced. So a scan over rare
//! rows replaces other rare rows. A row in the cache equals the table's, because sealed tables do
//! not change; a dropped table empties the cache.

use crate::error::GatherError;
use crate::table::Table;
use cenote_mem::{Fabric, HostLocal};
use cenote_pool::Root;
use serde::Serialize;

/// Places of a row.
const WAYS: usize = 8;
/// Age of a new row, and the age of a row that is replaced next.
const NEW: u8 = 2;
const OLD: u8 = 3;
const EMPTY: u64 = u64::MAX;

/// What a cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HotCounts {
    /// Rows found in the cache.
    pub hits: u64,
    /// Rows read from the table.
    pub misses: u64,
}

impl HotCounts {
    /// Share of rows that were found.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }
}

/// A cache of stored rows of one table, for one thread.
pub struct HotRows {
    row_bytes: usize,
    sets: usize,
    tags: Vec<[u64; WAYS]>,
    ages: Vec<[u8; WAYS]>,
    rows: Vec<u8>,
    /// The table that its rows are of.
    table: Option<Root>,
    counts: HotCounts,
    /// Places in the list that a gather must read, and their rows.
    missing: Vec<(u32, u64)>,
    wanted: Vec<u64>,
    read: Vec<u8>,
}

impl HotRows {
    /// A cache of at most `bytes` bytes, rows and their tags together. Zero is a cache without
    /// places.
    #[must_use]
    pub fn new(row_bytes: usize, bytes: usize) -> Self {
        let sets = bytes / Self::set_bytes(row_bytes);
        Self {
            row_bytes,
            sets,
            tags: vec![[EMPTY; WAYS]; sets],
            ages: vec![[OLD; WAYS]; sets],
            rows: vec![0; sets * WAYS * row_bytes],
            table: None,
            counts: HotCounts::default(),
            missing: Vec::new(),
            wanted: Vec::new(),
            read: Vec::new(),
        }
    }

    const fn set_bytes(row_bytes: usize) -> usize {
        WAYS * (row_bytes + 9)
    }

    /// Rows that it has room for.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.sets * WAYS
    }

    /// Bytes of its rows and tags.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.sets * Self::set_bytes(self.row_bytes)
    }

    /// Hits and misses so far.
    #[must_use]
    pub const fn counts(&self) -> HotCounts {
        self.counts
    }

    /// Gives it another size. Rows that it has are kept as far as they fit.
    pub fn resize(&mut self, bytes: usize) {
        if bytes / Self::set_bytes(self.row_bytes) == self.sets {
            return;
        }
        let mut other = Self::new(self.row_bytes, bytes);
        for at in 0..self.capacity() {
            let (set, way) = (at / WAYS, at % WAYS);
            if self.tags[set][way] != EMPTY {
                other.insert(self.tags[set][way], &self.rows[at * self.row_bytes..][..self.row_bytes]);
            }
        }
        (other.counts, other.table) = (self.counts, self.table);
        *self = other;
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.tags.fill([EMPTY; WAYS]);
        self.ages.fill([OLD; WAYS]);
    }

    #[inline]
    fn set_of(&self, row: u64) -> usize {
        let mixed = row.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        ((u128::from(mixed) * self.sets as u128) >> 64) as usize
    }

    /// The place of a row; makes it young.
    #[inline]
    fn find(&mut self, row: u64) -> Option<usize> {
        // The number of empty places is no row.
        if self.sets == 0 || row == EMPTY {
            return None;
        }
        let set = self.set_of(row);
        let way = self.tags[set].iter().position(|&tag| tag == row)?;
        self.ages[set][way] = 0;
        Some(set * WAYS + way)
    }

    /// Puts a row in the place of the oldest of its set.
    fn insert(&mut self, row: u64, bytes: &[u8]) {
        if self.sets == 0 || row == EMPTY {
            return;
        }
        let set = self.set_of(row);
        if self.tags[set].contains(&row) {
            return;
        }
        let oldest = *self.ages[set].iter().max().expect("a set has ways");
        let way = self.ages[set].iter().position(|&age| age == oldest).expect("one is the oldest");
        for age in &mut self.ages[set] {
            *age += OLD - oldest;
        }
        self.tags[set][way] = row;
        self.ages[set][way] = NEW;
        let at = (set * WAYS + way) * self.row_bytes;
        self.rows[at..at + self.row_bytes].copy_from_slice(bytes);
    }

    /// As [`Table::gather`], from the cache where it has the row.
    ///
    /// # Errors
    /// See [`GatherError`]. A dropped table empties the cache, and so does another table.
    ///
    /// # Panics
    /// Rows of the table have another length than those of the cache.
    pub fn gather<F: Fabric, H: HostLocal>(
        &mut self,
        table: &Table<F, H>,
        rows: &[u64],
        to: &mut [u8],
    ) -> Result<(), GatherError> {
        assert_eq!(self.row_bytes, table.row_bytes(), "a cache of another table");
        table.verify(rows, to.len(), self.row_bytes)?;
        if self.table != Some(table.root()) {
            self.clear();
            self.table = Some(table.root());
        }
        let found = self.through(rows, to, |wanted, read| {
            table.copy(wanted, read);
            table.still_there()
        });
        if found.is_err() {
            self.clear();
        }
        found
    }

    /// Copies rows from the cache, and those that it lacks by one call of `read`, which it then keeps.
    ///
    /// # Errors
    /// Those of `read`; the cache does not change then.
    ///
    /// # Panics
    /// `to` does not have the size of all rows.
    pub fn through<E>(
        &mut self,
        rows: &[u64],
        to: &mut [u8],
        read: impl FnOnce(&[u64], &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        assert_eq!(to.len(), rows.len() * self.row_bytes, "the buffer does not have the size of {} rows", rows.len());
        self.look_up(rows, to);
        let wanted = std::mem::take(&mut self.wanted);
        let mut bytes = std::mem::take(&mut self.read);
        bytes.resize(wanted.len() * self.row_bytes, 0);
        let done = read(&wanted, &mut bytes);
        if done.is_ok() {
            self.accept(&bytes, to);
        }
        (self.wanted, self.read) = (wanted, bytes);
        done
    }

    /// Copies the rows that the cache has, and lists the others.
    fn look_up(&mut self, rows: &[u64], to: &mut [u8]) {
        self.missing.clear();
        self.wanted.clear();
        for (at, (&row, to)) in rows.iter().zip(to.chunks_exact_mut(self.row_bytes)).enumerate() {
            match self.find(row) {
                Some(place) => to.copy_from_slice(&self.rows[place * self.row_bytes..][..self.row_bytes]),
                None => {
                    self.missing.push((at as u32, row));
                    self.wanted.push(row);
                }
            }
        }
        self.counts.hits += (rows.len() - self.wanted.len()) as u64;
        self.counts.misses += self.wanted.len() as u64;
    }

    /// Takes the rows that were read.
    fn accept(&mut self, read: &[u8], to: &mut [u8]) {
        let missing = std::mem::take(&mut self.missing);
        for (&(at, row), bytes) in missing.iter().zip(read.chunks_exact(self.row_bytes)) {
            to[at as usize * self.row_bytes..][..self.row_bytes].copy_from_slice(bytes);
            self.insert(row, bytes);
        }
        self.missing = missing;
    }
}
