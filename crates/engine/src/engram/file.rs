//! Tables in the model's folder: `engram.safetensors`, or tensors of the checkpoint.
//!
//! | tensor of `model.layers.<layer>.engram.embed` | type | rows |
//! |---|---|---|
//! | `weight` `[rows, values]` | BF16, F16 | as stored |
//! | `weight` and `scale` `[rows, values / 32]` | F8_E4M3, F8_E8M0 | `e4m3-ue8m0` |
//! | `weight` and `weight_scale` `[1]` | F8_E4M3, F32 | `e4m3` |

use super::{Fetch, FetchError, Fetched, RowBuffer, RowTables, TableShape};
use crate::checkpoint::{Checkpoint, Place};
use crate::error::LoadError;
use cenote_base::Deadline;
use cenote_engram::{Addresses, RowFormat, Stored, TableDigest};
use cenote_mem::files::Stamp;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// The file with the tables, beside the checkpoint.
const FILE: &str = "engram.safetensors";
/// Bytes that are read at a time when a whole table is read.
const READ_BYTES: usize = 1 << 20;

/// Identifies the content of a model's tables: equal rows in equal formats have equal digests, wherever
/// they lie. Tables are added in the order of the configuration, each by its [`TableDigest`].
pub struct TablesDigest(blake3::Hasher);

impl Default for TablesDigest {
    fn default() -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"cenote n-gram tables 1");
        Self(hasher)
    }
}

impl TablesDigest {
    /// Adds a table.
    pub fn table(&mut self, shape: &TableShape, digest: &[u8; 32]) {
        self.0.update(format!("; layer {}: {} values; ", shape.layer, shape.values).as_bytes());
        self.0.update(digest);
    }

    /// The digest.
    #[must_use]
    pub fn finish(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

/// Tables that are read from the model's folder row by row. Every read fails once a file has changed
/// since it was opened: its rows are no longer those that have the digest.
pub struct FileTables {
    tables: Vec<Table>,
    shapes: Vec<TableShape>,
}

struct Table {
    format: RowFormat,
    scale: Option<f32>,
    row_bytes: usize,
    /// The values, then the scales if each row has its own.
    parts: Vec<Part>,
}

struct Part {
    place: Place,
    row_bytes: usize,
}

impl FileTables {
    /// Opens the tables in `dir`. `None`: the folder has none.
    ///
    /// # Errors
    /// A file is damaged or cannot be read, or a table does not fit the configuration.
    pub fn open(dir: &Path, addresses: &Addresses) -> Result<Option<Self>, LoadError> {
        let path = dir.join(FILE);
        let own = if path.exists() { Some(Checkpoint::open_file(&path)?) } else { None };
        let checkpoint = match own {
            Some(own) => own,
            None => Checkpoint::open(dir)?,
        };
        let name = |layer: u64, part: &str| format!("model.layers.{layer}.engram.embed.{part}");
        let has_file = path.exists();
        if !has_file && addresses.layers().iter().all(|hash| !checkpoint.contains(&name(hash.layer, "weight"))) {
            return Ok(None);
        }
        let values = addresses.config().row_values;
        let (mut tables, mut shapes) = (Vec::new(), Vec::new());
        for hash in addresses.layers() {
            let (rows, layer) = (hash.padded_rows, hash.layer);
            let part = |part: &str, width: usize, bytes: usize| {
                let place =
                    checkpoint.place(&name(layer, part), &[rows, width as u64], (width * bytes) as u64 * rows)?;
                Ok(Part { row_bytes: width * bytes, place })
            };
            let dtype = checkpoint.dtype(&name(layer, "weight"))?;
            let (stored, parts, scale) = match dtype.as_str() {
                "BF16" => (Stored::Bf16, vec![part("weight", values, 2)?], None),
                "F16" => (Stored::F16, vec![part("weight", values, 2)?], None),
                "F8_E4M3" if checkpoint.contains(&name(layer, "scale")) => {
                    let blocks = values.div_ceil(32);
                    (Stored::E4m3Ue8m0, vec![part("weight", values, 1)?, part("scale", blocks, 1)?], None)
                }
                "F8_E4M3" => {
                    let place = checkpoint.place(&name(layer, "weight_scale"), &[1], 4)?;
                    let mut scale = [0; 4];
                    place.read(0, &mut scale)?;
                    (Stored::E4m3, vec![part("weight", values, 1)?], Some(f32::from_le_bytes(scale)))
                }
                other => {
                    let fact = format!("has element type {other}; rows are BF16, F16 or F8_E4M3");
                    return Err(LoadError::tensor(checkpoint.listing(), &name(layer, "weight"), fact));
                }
            };
            let shape = TableShape { layer, rows, values, stored };
            let invalid = |error: cenote_engram::FormatError| {
                LoadError::tensor(checkpoint.listing(), &name(layer, "weight"), error.to_string())
            };
            let format = RowFormat::new(stored, scale).map_err(invalid)?;
            tables.push(Table { format, scale, row_bytes: shape.row_bytes().map_err(invalid)?, parts });
            shapes.push(shape);
        }
        Ok(Some(Self { tables, shapes }))
    }

    /// The tables, as [`RowTables::layers`].
    #[must_use]
    pub fn layers(&self) -> &[TableShape] {
        &self.shapes
    }

    /// Identifies the content, as [`RowTables::digest`]. Reads all rows.
    ///
    /// # Errors
    /// A file cannot be read, or has changed since it was opened.
    pub fn digest(&self) -> Result<[u8; 32], LoadError> {
        self.for_all(|_, _| {})
    }

    /// Calls `take` with the number of each table and all of its rows, some at a time. Returns the
    /// digest of what it was called with.
    fn for_all(&self, mut take: impl FnMut(usize, &[u8])) -> Result<[u8; 32], LoadError> {
        let mut digest = TablesDigest::default();
        for (number, (table, shape)) in self.tables.iter().zip(&self.shapes).enumerate() {
            let mut hasher = TableDigest::new(shape.stored, table.row_bytes, shape.rows, table.scale);
            table.for_all(shape.rows, |rows| {
                hasher.rows(rows);
                take(number, rows);
            })?;
            digest.table(shape, &hasher.finish());
        }
        Ok(digest.finish())
    }

    /// Reads row `row` of a table into place `index` of `buffer`.
    ///
    /// # Errors
    /// The file cannot be read, has no such row, or has changed since it was opened.
    pub fn read(&self, table: usize, row: u64, index: usize, buffer: &mut RowBuffer) -> Result<(), String> {
        let (table, shape) = (&self.tables[table], &self.shapes[table]);
        if row >= shape.rows {
            return Err(format!("row {row} is outside the {} rows of the table", shape.rows));
        }
        let mut bytes = vec![0; table.row_bytes];
        let mut rest = &mut bytes[..];
        for part in &table.parts {
            let (own, behind) = rest.split_at_mut(part.row_bytes);
            part.place.read(row * part.row_bytes as u64, own).map_err(|error| error.to_string())?;
            rest = behind;
        }
        buffer.decode(index, &table.format, &bytes).map_err(|error| error.to_string())
    }
}

impl Table {
    /// Calls `take` with all rows, some at a time.
    fn for_all(&self, rows: u64, mut take: impl FnMut(&[u8])) -> Result<(), LoadError> {
        let together = (READ_BYTES / self.row_bytes).max(1) as u64;
        let mut bytes = Vec::new();
        for first in (0..rows).step_by(together as usize) {
            let count = together.min(rows - first) as usize;
            bytes.resize(count * self.row_bytes, 0);
            let mut before = 0;
            for part in &self.parts {
                let mut own = vec![0; count * part.row_bytes];
                part.place.read(first * part.row_bytes as u64, &mut own)?;
                for (row, own) in bytes.chunks_exact_mut(self.row_bytes).zip(own.chunks_exact(part.row_bytes)) {
                    row[before..before + part.row_bytes].copy_from_slice(own);
                }
                before += part.row_bytes;
            }
            take(&bytes);
        }
        Ok(())
    }
}

impl Place {
    /// Reads bytes of the tensor from `from` on.
    fn read(&self, from: u64, bytes: &mut [u8]) -> Result<(), LoadError> {
        let io = |source: io::Error| LoadError::Io { path: self.path.clone(), source };
        self.file.read_exact_at(bytes, self.at + from).map_err(io)?;
        // Behind the read: what was read before the file changed is as it was opened.
        if Stamp::of(&self.file).map_err(io)? != self.stamp {
            return Err(LoadError::invalid(&self.path, "the file has changed since it was opened; start again"));
        }
        Ok(())
    }
}

/// Tables in private memory. Their rows need no fetch ahead: a layer copies them when it needs them,
/// and the time counts as stall.
#[derive(Clone)]
pub struct InMemoryTables {
    shared: Arc<Memory>,
}

struct Memory {
    tables: Vec<(RowFormat, Vec<u8>)>,
    shapes: Vec<TableShape>,
    digest: [u8; 32],
}

impl InMemoryTables {
    /// Reads all rows, once.
    ///
    /// # Errors
    /// The file cannot be read, or has changed since it was opened.
    pub fn load(file: &FileTables) -> Result<Self, LoadError> {
        let mut tables: Vec<_> = file.tables.iter().map(|table| (table.format.clone(), Vec::new())).collect();
        // The digest of the very rows that stay in memory.
        let digest = file.for_all(|table, rows| tables[table].1.extend_from_slice(rows))?;
        let shapes = file.shapes.clone();
        Ok(Self { shared: Arc::new(Memory { tables, shapes, digest }) })
    }
}

impl RowTables for InMemoryTables {
    fn layers(&self) -> &[TableShape] {
        &self.shared.shapes
    }

    fn digest(&self) -> [u8; 32] {
        self.shared.digest
    }

    fn start(&self, table: usize, rows: &[u64], into: RowBuffer) -> Box<dyn Fetch> {
        Box::new(MemoryFetch { memory: Arc::clone(&self.shared), table, rows: rows.to_vec(), into })
    }
}

struct MemoryFetch {
    memory: Arc<Memory>,
    table: usize,
    rows: Vec<u64>,
    into: RowBuffer,
}

impl Fetch for MemoryFetch {
    fn poll(&mut self) -> bool {
        true
    }

    fn finish(self: Box<Self>, _: Deadline) -> Result<Fetched, FetchError> {
        let Self { memory, table, rows, mut into } = *self;
        let (format, bytes) = &memory.tables[table];
        let row_bytes = memory.shapes[table].row_bytes().map_err(|error| FetchError::Failed(error.to_string()))?;
        let mut missing = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            let at = usize::try_from(*row).ok().and_then(|row| row.checked_mul(row_bytes));
            let stored = at.and_then(|at| bytes.get(at..at.checked_add(row_bytes)?));
            match stored.map(|stored| into.decode(index, format, stored)) {
                Some(Ok(())) => {}
                Some(Err(_)) | None => missing.push(index),
            }
        }
        Ok(Fetched { rows: into, missing, failure: None, ns: 0 })
    }
}
