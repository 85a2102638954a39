//! Errors of L4. They end in counters and log lines, never in an engine.

use cenote_base::seal::{KeyId, Seal};
use std::{fmt, io};
use thiserror::Error;

/// Reasons for which L4 does not read, write or open something.
#[derive(Debug, Error)]
pub enum ColdError {
    /// The record is not there any more.
    #[error("{0}: it is gone")]
    Gone(String),
    /// Bytes have a wrong checksum, or end too early.
    #[error("{at}: {what}")]
    Damaged {
        /// The file or object.
        at: String,
        /// The check that failed.
        what: &'static str,
    },
    /// The bytes are of another version of the format.
    #[error(
        "{at}: it has format version {found}, this program has version {known}; remove the place, or use another one"
    )]
    Version {
        /// The file or object.
        at: String,
        /// Its version.
        found: u32,
        /// This program's version.
        known: u32,
    },
    /// The place belongs to regions with another seed.
    #[error(
        "{0}: it keeps blocks of regions with another hash seed; create the region with --cold, or use another place"
    )]
    Foreign(String),
    /// The place is sealed, and the region above is not.
    #[error(
        "{at}: the place is sealed (`{seal}`) with the key whose name ends in {key:04x}, and the region is not sealed; \
         use another place, or a region with --seal {seal} and that key (--seal-key-file)"
    )]
    Sealed {
        /// The file or object.
        at: String,
        /// How.
        seal: Seal,
        /// Short name of its key.
        key: u16,
    },
    /// The place's key is not among those of the region.
    #[error(
        "{at}: the place is sealed with the key whose name ends in {key:04x}, and the key file has none of that name \
         (its first is {given}); add the key below the one that seals, or use another place"
    )]
    OtherKey {
        /// The file or object.
        at: String,
        /// Name of the first key.
        given: KeyId,
        /// Short name of its key.
        key: u16,
    },
    /// The region above is sealed, and the place is not.
    #[error(
        "{at}: the place is not sealed, so others could forge or read its blocks, and the region is (`{seal}`); \
         use another place"
    )]
    NotSealed {
        /// The file or object.
        at: String,
        /// The region's seal.
        seal: Seal,
    },
    /// Both are sealed, but not in one way.
    #[error(
        "{at}: the place is sealed by `{found}`, and the region by `{wanted}`; use another place, or --seal {found}"
    )]
    OtherSeal {
        /// The file or object.
        at: String,
        /// The place's seal.
        found: Seal,
        /// The region's seal.
        wanted: Seal,
    },
    /// No space, or the limit is reached and nothing can be reclaimed.
    #[error("{at}: no space: {what}")]
    Full {
        /// The file or directory.
        at: String,
        /// The reason.
        what: String,
    },
    /// An operation passed its deadline.
    #[error("{at}: no answer within {ms} ms")]
    Slow {
        /// The file or object.
        at: String,
        /// The deadline.
        ms: u64,
    },
    /// Another failure of the disk or the service.
    #[error("{at}: {error}")]
    Io {
        /// The file or object.
        at: String,
        /// The system's or the service's words.
        error: String,
    },
}

impl ColdError {
    /// The error of a system call on `at`.
    #[must_use]
    pub fn of(at: impl fmt::Display, error: &io::Error) -> Self {
        let at = format!("{at}");
        let text = error.to_string();
        // Some errors name their file already.
        let text = text.strip_prefix(&format!("{at}: ")).unwrap_or(&text).to_owned();
        match error.kind() {
            io::ErrorKind::NotFound => Self::Gone(at),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::Full { at, what: text }
            }
            io::ErrorKind::UnexpectedEof => Self::Damaged { at, what: "it ends before its record does" },
            io::ErrorKind::TimedOut => Self::Slow { at, ms: 0 },
            _ => Self::Io { at, error: text },
        }
    }

    /// The counter of this error.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Gone(_) => ErrorKind::Gone,
            Self::Damaged { .. } => ErrorKind::Damaged,
            Self::Version { .. } => ErrorKind::Version,
            Self::Full { .. } => ErrorKind::Full,
            Self::Slow { .. } => ErrorKind::Slow,
            Self::Io { .. } | Self::Foreign(_) => ErrorKind::Io,
            Self::Sealed { .. } | Self::OtherKey { .. } | Self::NotSealed { .. } | Self::OtherSeal { .. } => {
                ErrorKind::Io
            }
        }
    }

    /// Whether the place is one that the region above must not use.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Foreign(_)
                | Self::Sealed { .. }
                | Self::OtherKey { .. }
                | Self::NotSealed { .. }
                | Self::OtherSeal { .. }
        )
    }
}

/// Kinds of failures, each with a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ErrorKind {
    /// A file or object vanished.
    Gone,
    /// A wrong checksum or a short file.
    Damaged,
    /// Another format version.
    Version,
    /// No space.
    Full,
    /// A passed deadline.
    Slow,
    /// Any other failure.
    Io,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: [Self; 6] = [Self::Gone, Self::Damaged, Self::Version, Self::Full, Self::Slow, Self::Io];

    /// The kind in a counter's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Damaged => "damaged",
            Self::Version => "version",
            Self::Full => "full",
            Self::Slow => "slow",
            Self::Io => "io",
        }
    }
}
