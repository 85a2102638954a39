//! Rows of safetensors files, read by position: a file that became shorter is an error and no
//! signal, and the page cache is not charged to this process.

use crate::error::TableError;
use crate::facts::{Facts, SourceFile, SourceTensor};
use crate::source::RowSource;
use cenote_mem::files::{self, Stamp};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest header of a file.
const HEADER_BYTES_MAX: u64 = 100 << 20;

/// An open file with its header.
pub struct TensorFile {
    file: File,
    path: PathBuf,
    /// Of the file before its header was read.
    stamp: Stamp,
    metadata: Metadata,
    /// Where tensors begin.
    data: u64,
    description: SourceFile,
}

impl TensorFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// It cannot be read, is no safetensors file, or is shorter than its header says.
    pub fn open(path: &Path) -> Result<Arc<Self>, TableError> {
        let failed = |error| TableError::File { path: path.to_owned(), error };
        let bad = |fact: String| TableError::Source(format!("{}: {fact}", path.display()));
        let file = files::open_input(path).map_err(TableError::Open)?;
        let stamp = Stamp::of(&file).map_err(failed)?;
        let mut length = [0; 8];
        file.read_exact_at(&mut length, 0).map_err(|_| bad("the file is too short for a header".to_owned()))?;
        let header = u64::from_le_bytes(length);
        if header > HEADER_BYTES_MAX {
            return Err(bad(format!("a header of {header} bytes is none")));
        }
        let mut bytes = vec![0; 8 + header as usize];
        file.read_exact_at(&mut bytes, 0).map_err(|_| bad("the file ends within its header".to_owned()))?;
        let metadata: Metadata = serde_json::from_slice(&bytes[8..]).map_err(|error| bad(error.to_string()))?;
        let data = 8 + header;
        let wanted = data + metadata.data_len() as u64;
        if stamp.size != wanted {
            return Err(bad(format!(
                "the file has {} bytes, and its header says {wanted}: it is truncated or damaged",
                stamp.size
            )));
        }
        let description = SourceFile {
            name: path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            bytes: stamp.size,
            modified_ns: u64::try_from(stamp.modified).unwrap_or(0),
            header: blake3::hash(&bytes).to_hex().to_string(),
        };
        Ok(Arc::new(Self { file, path: path.to_owned(), stamp, metadata, data, description }))
    }

    /// Names of its tensors.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.metadata.offset_keys().into_iter()
    }

    /// A tensor.
    ///
    /// # Errors
    /// The file does not have it.
    pub fn info(&self, name: &str) -> Result<&TensorInfo, TableError> {
        self.metadata
            .info(name)
            .ok_or_else(|| TableError::Source(format!("{}: there is no tensor `{name}`", self.path.display())))
    }

    /// The one value of an f32 tensor.
    ///
    /// # Errors
    /// It has another type or size, or cannot be read.
    pub fn scalar(&self, name: &str) -> Result<f32, TableError> {
        let info = self.info(name)?;
        if info.dtype != Dtype::F32 || info.shape.iter().product::<usize>() != 1 {
            return Err(TableError::Source(format!(
                "{}: `{name}` is a {:?} of shape {:?}; a scale is one F32",
                self.path.display(),
                info.dtype,
                info.shape
            )));
        }
        let mut bytes = [0; 4];
        self.read(self.data + info.data_offsets.0 as u64, &mut bytes)?;
        Ok(f32::from_le_bytes(bytes))
    }

    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), TableError> {
        self.file.read_exact_at(to, at).map_err(|error| match error.kind() {
            // It had all bytes of its header's tensors when it was opened.
            ErrorKind::UnexpectedEof => TableError::Changed(self.path.clone()),
            _ => TableError::File { path: self.path.clone(), error },
        })
    }

    /// Also at its path: beside files that were opened later, a replaced one is of another version.
    fn verify_unchanged(&self) -> Result<(), TableError> {
        let failed = |error| TableError::File { path: self.path.clone(), error };
        let open = Stamp::of(&self.file).map_err(failed)?;
        let named = Stamp::at(&self.path).map_err(|_| TableError::Changed(self.path.clone()))?;
        if [open, named] == [self.stamp; 2] { Ok(()) } else { Err(TableError::Changed(self.path.clone())) }
    }
}

/// A matrix of a file: some bytes of each row.
pub struct Column {
    file: Arc<TensorFile>,
    name: String,
    at: u64,
    width: u64,
    rows: u64,
    /// Type of its values.
    pub dtype: Dtype,
}

impl Column {
    /// A tensor of two dimensions.
    ///
    /// # Errors
    /// The file does not have it, or it has another number of dimensions.
    pub fn of(file: &Arc<TensorFile>, name: &str) -> Result<Self, TableError> {
        let info = file.info(name)?;
        let [rows, values] = info.shape[..] else {
            return Err(TableError::Source(format!(
                "{}: `{name}` has the shape {:?}; a table has two dimensions",
                file.path.display(),
                info.shape
            )));
        };
        let width = info.dtype.bitsize() as u64 * values as u64 / 8;
        Ok(Self {
            file: Arc::clone(file),
            name: name.to_owned(),
            at: file.data + info.data_offsets.0 as u64,
            width,
            rows: rows as u64,
            dtype: info.dtype,
        })
    }

    /// Rows.
    #[must_use]
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of a row.
    #[must_use]
    pub const fn width(&self) -> u64 {
        self.width
    }

    fn read(&self, rows: &Range<u64>, to: &mut [u8]) -> Result<(), TableError> {
        self.file.read(self.at + rows.start * self.width, to)
    }
}

/// Rows of columns side by side, of shards one after the other.
pub struct TensorRows {
    facts: Facts,
    /// Columns of each shard, and the first row behind it.
    shards: Vec<(Vec<Column>, u64)>,
}

impl TensorRows {
    /// Puts shards together; `facts` has the format, the scale, the layer and the model.
    ///
    /// # Errors
    /// Columns or shards do not fit each other, or their rows are none of the format.
    pub fn new(mut facts: Facts, shards: Vec<Vec<Column>>) -> Result<Self, TableError> {
        let mut end = 0;
        let mut joined = Vec::with_capacity(shards.len());
        for (number, columns) in shards.into_iter().enumerate() {
            let width: u64 = columns.iter().map(Column::width).sum();
            let rows = columns.first().map_or(0, Column::rows);
            if columns.iter().any(|column| column.rows != rows) {
                return Err(TableError::Source(format!(
                    "shard {number}: values and scales have different numbers of rows"
                )));
            }
            if number == 0 {
                facts.row_bytes = width;
            }
            if width != facts.row_bytes {
                return Err(TableError::Source(format!(
                    "shard {number} has rows of {width} bytes, and the first shard has rows of {}",
                    facts.row_bytes
                )));
            }
            end += rows;
            for column in &columns {
                let known = facts.source.iter().position(|file| *file == column.file.description);
                let file = known.unwrap_or_else(|| {
                    facts.source.push(column.file.description.clone());
                    facts.source.len() - 1
                });
                facts.tensors.push(SourceTensor { name: column.name.clone(), file: file as u64, begin: column.at });
            }
            joined.push((columns, end));
        }
        facts.rows = end;
        facts.verify()?;
        Ok(Self { facts, shards: joined })
    }
}

impl RowSource for TensorRows {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn read(&self, rows: Range<u64>, mut to: &mut [u8]) -> Result<(), TableError> {
        let row_bytes = self.facts.row_bytes as usize;
        let mut next = rows.start;
        let first = self.shards.partition_point(|&(_, end)| end <= next);
        let mut begin = first.checked_sub(1).map_or(0, |before| self.shards[before].1);
        for (columns, end) in &self.shards[first..] {
            if next >= rows.end {
                break;
            }
            let within = next - begin..rows.end.min(*end) - begin;
            let count = (within.end - within.start) as usize;
            let (part, rest) = to.split_at_mut(count * row_bytes);
            read_columns(columns, &within, row_bytes, part)?;
            (to, next, begin) = (rest, *end, *end);
        }
        Ok(())
    }

    fn verify_unchanged(&self) -> Result<(), TableError> {
        self.shards.iter().flat_map(|(columns, _)| columns).try_for_each(|column| column.file.verify_unchanged())
    }
}

fn read_columns(columns: &[Column], rows: &Range<u64>, row_bytes: usize, to: &mut [u8]) -> Result<(), TableError> {
    if let [column] = columns {
        return column.read(rows, to);
    }
    let mut left = 0;
    for column in columns {
        let width = column.width as usize;
        let mut bytes = vec![0; (rows.end - rows.start) as usize * width];
        column.read(rows, &mut bytes)?;
        for (row, bytes) in to.chunks_exact_mut(row_bytes).zip(bytes.chunks_exact(width)) {
            row[left..left + width].copy_from_slice(bytes);
        }
        left += width;
    }
    Ok(())
}
