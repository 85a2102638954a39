//! The one error of this program: what was being read or written, and the fact that stopped it.

use std::path::{Path, PathBuf};

/// Result with this program's error.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a subcommand could not finish.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file was read, but what it holds is not what this program needs.
    #[error("{}: {fact}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fact: String,
    },
    /// A flag's value is outside what the program accepts.
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
    /// An I/O error on `path`, for `map_err`.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    /// A complaint about what `path` holds.
    pub fn content(path: &Path, fact: impl std::fmt::Display) -> Self {
        Self::Content { path: path.to_owned(), fact: fact.to_string() }
    }
}

/// Reads a whole UTF-8 file.
pub fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(Error::io(path))
}

/// Writes through a neighbouring temporary file and a rename, so that a reader, or an interruption, never meets half
/// a file.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = path.with_extension("partial");
    std::fs::write(&temporary, bytes).map_err(Error::io(&temporary))?;
    std::fs::rename(&temporary, path).map_err(Error::io(path))
}
