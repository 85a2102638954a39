//! What a table is: its rows, their format, and where they came from.

use crate::error::TableError;
use cenote_engram::{RowFormat, Stored};
use serde::{Deserialize, Serialize};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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

/// Letters of a folder's name in the default name of its tables.
const FOLDER_BYTES: usize = 21;

/// The name for the tables of a model's folder, without the layer: the folder's name as far as it fits,
/// and a digest of its whole path. Folders of one name, such as `run-1/final` and `run-2/final`, have
/// tables of their own.
#[must_use]
pub fn default_name(folder: &Path) -> String {
    let absolute = || std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let folder = folder.canonicalize().unwrap_or_else(|_| absolute());
    let name = folder.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let known = |letter: char| if letter.is_ascii_alphanumeric() || "._-".contains(letter) { letter } else { '_' };
    let name: String = name.chars().map(known).take(FOLDER_BYTES).collect();
    let digest = blake3::hash(folder.as_os_str().as_bytes()).to_hex();
    format!("{name}-{}", &digest[..8])
}

/// Refuses names that are no names of tables.
pub(crate) fn verify_name(name: &str) -> Result<(), TableError> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_good) {
        true => Err(TableError::Name(name.to_owned())),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `…/run-1/final` and `…/run-2/final` had one name, and so had folders whose names are equal in
    /// the first 30 letters.
    #[test]
    fn default_names_of_folders_differ() {
        let long = "a-model-with-a-name-of-more-than-thirty-letters";
        let folders =
            ["/m/run-1/final", "/m/run-2/final", &format!("/m/{long}-1"), &format!("/m/{long}-2"), "/", "/m/é ü"];
        let names = folders.map(|folder| default_name(Path::new(folder)));
        for (at, name) in names.iter().enumerate() {
            // Layers of four digits fit behind it.
            verify_name(&format!("{name}.L9999")).unwrap();
            assert!(!names[..at].contains(name), "{names:?}");
        }
        assert!(names[0].starts_with("final-") && names[2].starts_with("a-model-with-a-name-o-"), "{names:?}");
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("x/../.");
        std::fs::create_dir(folder.path().join("x")).unwrap();
        assert_eq!(default_name(&inside), default_name(folder.path()), "one folder, one name");
    }
}
