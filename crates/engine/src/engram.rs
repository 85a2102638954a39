//! Engram: tables of n-grams, whose rows some layers add to the residual stream (arXiv 2601.07372).
//!
//! A row's number depends on token ids only, so a step starts the fetches of all layers when it
//! begins. The *window* of a layer is the time from there until the layer needs its rows: the sum of
//! the times of the layers before it ("Pooling Engram Conditional Memory in Large Language Models
//! using CXL", §3.2). A fetch that takes longer stalls the layer by the rest.
//!
//! Where rows come from is a [`RowTables`]: [`InMemoryTables`] holds those of the model's folder, and
//! a region's tables are another implementation. Rows change KV, so a missing row is never replaced:
//! it is read from the model's own file ([`FileTables`]), or its request ends with an error.

mod file;
mod module;
mod step;

pub use file::{FileTables, InMemoryTables, TablesDigest};
pub use step::{RowCounts, Rows};

pub(crate) use module::Module;

use cenote_base::Deadline;
use cenote_engram::{Addresses, FormatError, NgramConfig, RowFormat, Stored};
use half::bf16;
use std::sync::Arc;

/// Longest wait of a layer for its rows.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

/// Shape of one layer's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableShape {
    /// The layer, from 0.
    pub layer: u64,
    /// Rows of all heads.
    pub rows: u64,
    /// Values of a row.
    pub values: usize,
    /// Format of the stored rows.
    pub stored: Stored,
}

impl TableShape {
    /// Bytes of a stored row.
    ///
    /// # Errors
    /// The format has no rows of so many values.
    pub const fn row_bytes(&self) -> Result<usize, FormatError> {
        self.stored.row_bytes(self.values)
    }
}

/// The tables of a model, one for each layer that has one.
pub trait RowTables: Send + Sync {
    /// The tables in the order of the configuration (`engram_layer_ids`).
    fn layers(&self) -> &[TableShape];

    /// Identifies the content: formats and rows, by [`TablesDigest`]. KV depends on it, so it is part
    /// of the namespace in which engines share KV.
    fn digest(&self) -> [u8; 32];

    /// Starts to fetch rows of a table, in their order, into `into`, which has room for them. Must not
    /// wait. `rows` may have duplicates.
    fn start(&self, table: usize, rows: &[u64], into: RowBuffer) -> Box<dyn Fetch>;
}

/// Rows that are on their way. Dropping it abandons them.
///
/// The fetch owns its buffer, so one that is late cannot write into rows that a layer reads.
pub trait Fetch: Send {
    /// Whether the fetch has ended, well or not. Does not wait.
    fn poll(&mut self) -> bool;

    /// Waits for the end.
    ///
    /// # Errors
    /// The deadline passed, or no row could be fetched.
    fn finish(self: Box<Self>, deadline: Deadline) -> Result<Fetched, FetchError>;
}

/// The result of a fetch.
#[derive(Debug)]
pub struct Fetched {
    /// The rows. The content of missing ones is undefined.
    pub rows: RowBuffer,
    /// Indexes of rows that could not be fetched: damaged, evicted or gone.
    pub missing: Vec<usize>,
    /// Why they are missing, if that is known.
    pub failure: Option<FetchError>,
    /// Nanoseconds from the start until the last row had arrived, if they passed beside the caller; 0
    /// if `finish` itself copied the rows.
    pub ns: u64,
}

/// The reason why a fetch has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The deadline passed.
    #[error("the rows did not arrive within {} ms", PATIENCE.as_millis())]
    Late,
    /// The source failed.
    #[error("{0}")]
    Failed(String),
}

/// Memory for decoded rows: `[row][value]`, bf16 widened to f32.
#[derive(Debug, Default)]
pub struct RowBuffer {
    data: Vec<f32>,
    values: usize,
    bits: Vec<u16>,
}

impl RowBuffer {
    /// Room for `rows` rows of `values` values, all zero.
    #[must_use]
    pub fn new(rows: usize, values: usize) -> Self {
        Self { data: vec![0.0; rows * values], values, bits: vec![0; values] }
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.data.len() / self.values.max(1)
    }

    /// Whether there is room for no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Takes rows that their source has decoded: the bf16 bits of their values, for the places from
    /// `first` on.
    ///
    /// # Panics
    /// The values are no whole rows, or more than there is room for.
    pub fn set_bf16(&mut self, first: usize, bits: &[u16]) {
        assert!(bits.len().is_multiple_of(self.values), "whole rows");
        let places = &mut self.data[first * self.values..][..bits.len()];
        places.iter_mut().zip(bits).for_each(|(value, bits)| *value = bf16::from_bits(*bits).to_f32());
    }

    /// Decodes a stored row into place `index`.
    ///
    /// # Errors
    /// The bytes are no row of the format with the buffer's number of values.
    ///
    /// # Panics
    /// `index` is not below [`Self::len`].
    pub fn decode(&mut self, index: usize, format: &RowFormat, row: &[u8]) -> Result<(), FormatError> {
        if format.stored().row_values(row.len())? != self.values {
            let (bytes, unit) = (row.len(), format.stored().row_bytes(self.values)?);
            return Err(FormatError::RowBytes { format: format.stored().name(), bytes, unit });
        }
        let mut bits = std::mem::take(&mut self.bits);
        let decoded = format.to_bf16(row, &mut bits);
        self.set_bf16(index, &bits);
        self.bits = bits;
        decoded
    }

    /// Makes a row zero.
    pub(crate) fn clear(&mut self, index: usize) {
        self.data[index * self.values..][..self.values].fill(0.0);
    }

    /// The values of all rows.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.data
    }
}

/// The tables of a model and the addresses in them.
pub struct Tables {
    /// Computes row numbers.
    pub(crate) addresses: Addresses,
    /// Where rows come from.
    pub(crate) source: Arc<dyn RowTables>,
    /// The model's own copy, for rows that the source does not bring.
    pub(crate) own: Option<FileTables>,
}

impl Tables {
    /// Tables of a model.
    ///
    /// # Errors
    /// The source has other tables than the configuration or than the model's own copy, which is read
    /// as a whole, or that copy cannot be read.
    pub fn new(addresses: Addresses, source: Arc<dyn RowTables>, own: Option<FileTables>) -> Result<Self, String> {
        let expected = addresses.layers();
        let shapes = source.layers();
        if shapes.len() != expected.len() {
            return Err(format!("there are {} tables; the model has {}", shapes.len(), expected.len()));
        }
        for (found, hash) in shapes.iter().zip(expected) {
            let values = addresses.config().row_values;
            if (found.layer, found.rows, found.values) != (hash.layer, hash.padded_rows, values) {
                return Err(format!(
                    "the table of layer {} has {} rows of {} values; layer {} of the model has {} of {values}",
                    found.layer, found.rows, found.values, hash.layer, hash.padded_rows
                ));
            }
        }
        if let Some(own) = &own
            && own.digest().map_err(|error| error.to_string())? != source.digest()
        {
            return Err("the rows differ from those in the model's folder".to_owned());
        }
        Ok(Self { addresses, source, own })
    }

    /// The sizes that `config.json` gives.
    #[must_use]
    pub const fn config(&self) -> &NgramConfig {
        self.addresses.config()
    }

    /// Identifies everything about the tables that KV depends on: rows, and how tokens find them.
    #[must_use]
    pub fn identity(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{:?}", self.addresses.layers()).as_bytes());
        hasher.update(&self.addresses.pad().to_le_bytes());
        if let Some(token) = self.config().masked_token() {
            hasher.update(format!("; masks {token}; ").as_bytes());
        }
        if let Some(map) = self.addresses.map() {
            hasher.update(&map.sha256());
        }
        hasher.update(&self.source.digest());
        *hasher.finalize().as_bytes()
    }

    /// The number of previous tokens that a position's rows depend on.
    #[must_use]
    pub const fn reach(&self) -> usize {
        self.addresses.config().orders()
    }
}
