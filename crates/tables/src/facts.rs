//! What a table is: its rows, their format, and where they came from.

use crate::error::TableError;
use cenote_engram::{RowFormat, Stored};
use serde::{Deserialize, Serialize};

/// Longest name of a table.
pub const NAME_BYTES_MAX: usize = 36;

/// A file whose rows a table has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// Its name, without the folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Time of the last change, nanoseconds since 1970.
    pub modified_ns: u64,
    /// BLAKE3 of its header, in hexadecimal.
    pub header: String,
}

/// A tensor whose rows a table has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceTensor {
    /// Its name.
    pub name: String,
    /// Index of its file in the list of files.
    pub file: u64,
    /// Offset of its first byte in the file.
    pub begin: u64,
}

/// A table without its place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Format of a row: `e4m3-ue8m0`, `e4m3`, `f16` or `bf16`.
    pub format: String,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Number of rows.
    pub rows: u64,
    /// The table's scale (`e4m3` only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f32>,
    /// The layer that reads it, counted as the model's configuration counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<u64>,
    /// The model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// The files that its rows came from.
    #[serde(default)]
    pub source: Vec<SourceFile>,
    /// The tensors that its rows came from, shard by shard: values, then scales.
    #[serde(default)]
    pub tensors: Vec<SourceTensor>,
}

impl Facts {
    /// The format of rows.
    ///
    /// # Errors
    /// The format is unknown, or its scale is missing or has no meaning.
    pub fn row_format(&self) -> Result<RowFormat, TableError> {
        let stored: Stored = self.format.parse().map_err(TableError::Format)?;
        RowFormat::new(stored, self.scale).map_err(TableError::Format)
    }

    /// Values of a row.
    ///
    /// # Errors
    /// Rows of this length are none of the format.
    pub fn row_values(&self) -> Result<usize, TableError> {
        let stored: Stored = self.format.parse().map_err(TableError::Format)?;
        stored.row_values(usize::try_from(self.row_bytes).unwrap_or(0)).map_err(TableError::Format)
    }

    /// Bytes of all rows.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.rows.saturating_mul(self.row_bytes)
    }

    /// Refuses what is no table.
    pub(crate) fn verify(&self) -> Result<(), TableError> {
        self.row_format()?;
        self.row_values()?;
        match self.rows.checked_mul(self.row_bytes) {
            Some(1..) => Ok(()),
            _ => Err(TableError::Source(format!("a table of {} rows of {} bytes is none", self.rows, self.row_bytes))),
        }
    }
}

/// Refuses names that are no names of tables.
pub(crate) fn verify_name(name: &str) -> Result<(), TableError> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_good) {
        true => Err(TableError::Name(name.to_owned())),
        false => Ok(()),
    }
}
