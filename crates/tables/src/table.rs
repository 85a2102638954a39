//! Rows of a sealed table.

use crate::error::{GatherError, TableError};
use crate::extents;
use crate::facts::Facts;
use crate::record::Record;
use crate::registry::sealed;
use cenote_engram::RowFormat;
use cenote_mem::{Fabric, HostArea, HostLocal};
use cenote_pool::{Pool, Root};
use rayon::prelude::*;
use std::sync::Arc;

/// Rows whose addresses are computed at once: in a loop of its own that takes a nanosecond each.
const GROUP: usize = 128;
/// Rows that are decoded at once: few enough for the first-level cache.
const DECODED: usize = 32;

/// What opening a table does with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Opening {
    /// Compares every extent with its checksum, with all threads. A table of 100 GB takes as long as
    /// the machine needs to read 100 GB.
    #[default]
    Verified,
    /// Believes the bytes. Between hosts without coherence it still drops old copies from this
    /// processor's caches.
    Trusted,
}

/// An open table. It stays readable until it is dropped, which every gather detects.
pub struct Table<F: Fabric, H: HostLocal = HostArea> {
    pool: Pool<F, H>,
    name: String,
    root: Root,
    facts: Facts,
    format: RowFormat,
    values: usize,
    digest: String,
    /// Offset of each extent.
    starts: Vec<u64>,
    extent_rows: u64,
    /// `⌈2⁶⁴ / extent_rows⌉`: the quotient of a row below 2³² is one product.
    reciprocal: u64,
}

impl<F: Fabric, H: HostLocal> Table<F, H> {
    /// Opens a sealed table.
    ///
    /// # Errors
    /// There is no such table, its record does not hold, or bytes are not those that were loaded.
    pub fn open(pool: &Pool<F, H>, name: &str, opening: Opening) -> Result<Arc<Self>, TableError> {
        crate::facts::verify_name(name)?;
        let (root, record) = sealed(pool, name)?.ok_or_else(|| TableError::Missing(name.to_owned()))?;
        let numbers: Vec<u64> = (0..record.total()).collect();
        match opening {
            Opening::Verified => {
                let bad = numbers.par_iter().filter(|&&at| !extents::is_whole(pool, &record, at)).count() as u64;
                if bad > 0 {
                    return Err(TableError::Damaged { name: name.to_owned(), damaged: bad, total: record.total() });
                }
            }
            Opening::Trusted => numbers.par_iter().for_each(|&at| {
                pool.fabric().refresh_payload(record.extents[at as usize].offset, record.padded_bytes(at));
            }),
        }
        let table = Self::of(pool, name, root, record)?;
        // Until here it could have been dropped and its memory used again.
        match table.is_there() {
            true => Ok(Arc::new(table)),
            false => Err(TableError::Missing(name.to_owned())),
        }
    }

    fn of(pool: &Pool<F, H>, name: &str, root: Root, record: Record) -> Result<Self, TableError> {
        let facts = record.header.facts;
        let extent_rows = record.header.extent_rows;
        Ok(Self {
            pool: pool.clone(),
            name: name.to_owned(),
            root,
            format: facts.row_format()?,
            values: facts.row_values()?,
            digest: record.header.digest,
            starts: record.extents.iter().map(|extent| extent.offset).collect(),
            extent_rows,
            reciprocal: (u64::MAX / extent_rows).saturating_add(1),
            facts,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is.
    #[must_use]
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Digest of its rows, in hexadecimal: equal rows have equal digests in every region.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Bytes of a stored row.
    #[must_use]
    pub const fn row_bytes(&self) -> usize {
        self.facts.row_bytes as usize
    }

    /// Values of a row.
    #[must_use]
    pub const fn row_values(&self) -> usize {
        self.values
    }

    /// The pool that it lies in.
    #[must_use]
    pub const fn pool(&self) -> &Pool<F, H> {
        &self.pool
    }

    /// Its record, as it was opened.
    pub(crate) const fn root(&self) -> Root {
        self.root
    }

    /// Whether it has not been dropped. Rows that were copied before the call are right if it
    /// returns true: a drop destroys the table's row before it frees a byte.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.pool.holds(&self.root) && !self.pool.fabric().has_read_lost()
    }

    /// Offset in the region of a row, for devices.
    ///
    /// # Panics
    /// The table has no such row.
    #[must_use]
    pub fn offset_of(&self, row: u64) -> u64 {
        assert!(row < self.facts.rows, "row {row} of {}", self.facts.rows);
        self.place(row)
    }

    /// Offset in the region of each extent, and the rows of an extent, for devices that compute
    /// places by themselves.
    #[must_use]
    pub fn extents(&self) -> (&[u64], u64) {
        (&self.starts, self.extent_rows)
    }

    fn place(&self, row: u64) -> u64 {
        self.places()(row)
    }

    /// The offset of each row. What it needs is copied, so that it stays in registers.
    #[inline(always)]
    fn places(&self) -> impl Fn(u64) -> u64 + Copy + '_ {
        let (starts, extent_rows, reciprocal) = (self.starts.as_slice(), self.extent_rows, self.reciprocal);
        let row_bytes = self.facts.row_bytes;
        move |row| {
            let extent = match row >> 32 {
                0 => ((u128::from(row) * u128::from(reciprocal)) >> 64) as u64,
                _ => row / extent_rows,
            };
            starts[extent as usize] + (row - extent * extent_rows) * row_bytes
        }
    }

    /// Refuses lists with rows that the table does not have.
    pub(crate) fn verify(&self, rows: &[u64], got: usize, row_size: usize) -> Result<(), GatherError> {
        if got != rows.len() * row_size {
            return Err(GatherError::Buffer { got, wanted: rows.len() * row_size, rows: rows.len() });
        }
        // Without a branch per row.
        if rows.iter().fold(0, |most, &row| row.max(most)) < self.facts.rows {
            return Ok(());
        }
        match rows.iter().position(|&row| row >= self.facts.rows) {
            Some(at) => Err(self.no_row(at, rows[at])),
            None => Ok(()),
        }
    }

    fn no_row(&self, at: usize, row: u64) -> GatherError {
        GatherError::Row { at, row, rows: self.facts.rows, name: self.name.clone() }
    }

    /// Copies stored rows into `to`, in the order of the list and without gaps, in this thread.
    ///
    /// # Errors
    /// See [`GatherError`]. After an error the buffer's content is undefined.
    pub fn gather(&self, rows: &[u64], to: &mut [u8]) -> Result<(), GatherError> {
        self.verify(rows, to.len(), self.row_bytes())?;
        self.copy(rows, to);
        self.still_there()
    }

    /// As [`Table::gather`], decoded to bf16.
    ///
    /// # Errors
    /// See [`GatherError`].
    pub fn gather_bf16(&self, rows: &[u64], to: &mut [u16]) -> Result<(), GatherError> {
        self.verify(rows, to.len(), self.values)?;
        self.decode(rows, to);
        self.still_there()
    }

    pub(crate) fn still_there(&self) -> Result<(), GatherError> {
        if self.is_there() { Ok(()) } else { Err(GatherError::Dropped(self.name.clone())) }
    }

    /// Copies verified rows.
    pub(crate) fn copy(&self, rows: &[u64], to: &mut [u8]) {
        let (place, bytes, mut starts) = (self.places(), self.row_bytes(), [0; GROUP]);
        for (rows, to) in rows.chunks(GROUP).zip(to.chunks_mut(GROUP * bytes)) {
            starts.iter_mut().zip(rows).for_each(|(start, &row)| *start = place(row));
            self.pool.fabric().copy_rows(&starts[..rows.len()], bytes, to);
        }
    }

    /// Copies verified rows and decodes them while they are in the first-level cache.
    pub(crate) fn decode(&self, rows: &[u64], to: &mut [u16]) {
        let bytes = self.row_bytes();
        let mut stored = vec![0; DECODED.min(rows.len()) * bytes];
        for (rows, to) in rows.chunks(DECODED).zip(to.chunks_mut(DECODED * self.values)) {
            let stored = &mut stored[..rows.len() * bytes];
            self.copy(rows, stored);
            self.decode_stored(stored, to);
        }
    }

    /// Decodes stored rows.
    pub(crate) fn decode_stored(&self, stored: &[u8], to: &mut [u16]) {
        for (row, to) in stored.chunks_exact(self.row_bytes()).zip(to.chunks_exact_mut(self.values)) {
            self.format.to_bf16(row, to).expect("the facts were verified");
        }
    }
}
