//! Errors that prevent a model directory from being served.

use cenote_mem::files;
use std::path::{Path, PathBuf};

/// A checkpoint, configuration, tokenizer or setting that cannot be used. Every message names the
/// file or the setting, and the fault.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The file cannot be opened, or is none of the kind; the error names it.
    #[error("{0}")]
    Open(std::io::Error),
    /// The file is not JSON, or not JSON of the expected shape.
    #[error("{}: not valid JSON for this file: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's error, with line and column.
        source: serde_json::Error,
    },
    /// A tensor is missing, unexpected, truncated or of the wrong shape.
    #[error("{}: tensor `{tensor}` {fact}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The fault of the tensor.
        fact: String,
    },
    /// The content of the file is inconsistent or incomplete.
    #[error("{}: {fact}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The fault.
        fact: String,
    },
    /// A valid model that this engine cannot compute.
    #[error("{}: {fact}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The unsupported property.
        fact: String,
    },
    /// A setting is invalid in itself or does not fit the model.
    #[error("{setting}: {fact}")]
    Setting {
        /// The setting's name.
        setting: &'static str,
        /// The fault.
        fact: String,
    },
}

impl LoadError {
    pub(crate) fn invalid(path: &Path, fact: impl Into<String>) -> Self {
        Self::Invalid { path: path.to_owned(), fact: fact.into() }
    }

    pub(crate) fn unsupported(path: &Path, fact: impl Into<String>) -> Self {
        Self::Unsupported { path: path.to_owned(), fact: fact.into() }
    }

    pub(crate) fn tensor(path: &Path, tensor: &str, fact: impl Into<String>) -> Self {
        Self::Tensor { path: path.to_owned(), tensor: tensor.to_owned(), fact: fact.into() }
    }

    pub(crate) fn setting(setting: &'static str, fact: impl Into<String>) -> Self {
        Self::Setting { setting, fact: fact.into() }
    }
}

/// Longest text file. Tokenizers have some tens of megabytes.
const TEXT_BYTES_MAX: u64 = 1 << 30;

/// Reads a whole text file.
pub(crate) fn read(path: &Path) -> Result<String, LoadError> {
    files::read_input_text(path, TEXT_BYTES_MAX).map_err(LoadError::Open)
}

/// Reads and parses a JSON file.
pub(crate) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, LoadError> {
    serde_json::from_str(&read(path)?).map_err(|source| LoadError::Json { path: path.to_owned(), source })
}

/// As [`read_json`]; `None` if the file does not exist.
pub(crate) fn read_json_if_present<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, LoadError> {
    match read_json(path) {
        Ok(value) => Ok(Some(value)),
        Err(LoadError::Open(source)) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
