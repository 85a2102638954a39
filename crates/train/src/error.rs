//! The error type of this program. Errors name the file or flag at fault.

use std::path::{Path, PathBuf};

/// Result with this program's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why a subcommand failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The content of a file is not usable.
    #[error("{}: {fact}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault in the content.
        fact: String,
    },
    /// A flag's value is invalid, or has led to an invalid result.
    #[error("{0}")]
    Flag(String),
    /// The tensor library failed.
    #[error("tensor operation: {0}")]
    Tensor(#[from] candle_core::Error),
    /// The tokenizer library failed.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
}

impl Error {
    /// Wraps an I/O error on `path`, for `map_err`.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    /// An error about the content of `path`.
    pub fn content(path: &Path, fact: impl std::fmt::Display) -> Self {
        Self::Content { path: path.to_owned(), fact: fact.to_string() }
    }
}

/// Reads a whole UTF-8 file.
pub fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(Error::io(path))
}

/// Writes a whole file through a temporary file and a rename, so that neither a reader nor an
/// interruption leaves half a file.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = path.with_extension("partial");
    std::fs::write(&temporary, bytes).map_err(Error::io(&temporary))?;
    std::fs::rename(&temporary, path).map_err(Error::io(path))
}
