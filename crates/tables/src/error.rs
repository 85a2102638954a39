//! Errors.

use crate::facts::NAME_BYTES_MAX;
use cenote_base::units::ByteSize;
use cenote_engram::FormatError;
use cenote_pool::PoolError;
use std::path::PathBuf;
use std::time::Duration;

/// A table cannot be loaded, opened, checked or dropped.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The pool refuses.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The name is none.
    #[error("`{0}` is no name of a table; use 1 to {NAME_BYTES_MAX} letters, digits, dots, hyphens and underscores")]
    Name(String),
    /// The rows are none of the format.
    #[error(transparent)]
    Format(FormatError),
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What happened.
        error: std::io::Error,
    },
    /// A file cannot be opened, or is none of the kind; the error names it.
    #[error("{0}")]
    Open(std::io::Error),
    /// A file changed while its rows were read.
    #[error("{}: the file changed while it was read; load the table again when nothing writes to it", .0.display())]
    Changed(PathBuf),
    /// The files have no such table.
    #[error("{0}")]
    Source(String),
    /// There is no such table.
    #[error("the region has no table `{0}`; `cenote engram info` lists its tables")]
    Missing(String),
    /// There is another table of this name.
    #[error("the region has another table `{name}`: {difference}; drop it first, or choose another name")]
    Different {
        /// The name.
        name: String,
        /// What differs.
        difference: String,
    },
    /// The table does not fit.
    #[error("the table needs {} and the region has room for {}; make a larger region", ByteSize(*wanted), ByteSize(*room))]
    NoRoom {
        /// Bytes that the table needs.
        wanted: u64,
        /// Bytes that could be made free for it.
        room: u64,
    },
    /// The region's chunks are too small.
    #[error("the region's chunks of {} are too small for {what}; make a region with larger chunks", ByteSize(*chunk_bytes))]
    Chunks {
        /// Bytes of a chunk.
        chunk_bytes: u64,
        /// What does not fit.
        what: String,
    },
    /// Another worker loads or drops the table.
    #[error("worker {owner} {verb} table `{name}` ({done} of {total} extents) {}", after(*waited))]
    Busy {
        /// The name.
        name: String,
        /// The worker, as host.slot.epoch.
        owner: String,
        /// "loads" or "drops".
        verb: &'static str,
        /// Extents that are complete.
        done: u64,
        /// All extents.
        total: u64,
        /// How long the caller has waited for it.
        waited: Duration,
    },
    /// Another worker has taken the load over.
    #[error("another worker took over table `{0}`: this one was taken for dead")]
    Lost(String),
    /// The table's bytes are not those that were loaded.
    #[error("table `{name}` is damaged in {damaged} of {total} extents; drop it and load it again")]
    Damaged {
        /// The name.
        name: String,
        /// Damaged extents.
        damaged: u64,
        /// All extents.
        total: u64,
    },
    /// There is no thread for the heartbeat of long work.
    #[error("a thread for the heartbeat: {0}")]
    Thread(std::io::Error),
    /// Other workers load and drop tables all the time.
    #[error("tables are being loaded or dropped at this moment; try again")]
    Unsettled,
    /// A record does not hold, or another version of this program wrote it.
    #[error("the record of table `{0}` is damaged or of another version; drop the table and load it again")]
    Record(String),
}

/// What a caller can do that has waited so long.
fn after(waited: Duration) -> String {
    match waited.as_secs_f64() {
        0.0 => "at this moment; wait for it, or end it".to_owned(),
        seconds => format!("and was not done within {seconds:.1} s; wait longer, or end it"),
    }
}

/// Rows that were not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GatherError {
    /// A row number is none of the table: a bug of the caller.
    #[error("row {row} at place {at} of the list is none of table `{name}`, which has {rows} rows")]
    Row {
        /// Index in the list.
        at: usize,
        /// The number.
        row: u64,
        /// Rows of the table.
        rows: u64,
        /// The table.
        name: String,
    },
    /// The buffer has another size.
    #[error("the buffer has {got} bytes, and {rows} rows of the table have {wanted}")]
    Buffer {
        /// Bytes of the buffer.
        got: usize,
        /// Bytes of the rows.
        wanted: usize,
        /// Number of rows.
        rows: usize,
    },
    /// The table was dropped; the buffer has undefined content.
    #[error("table `{0}` was dropped; open it again")]
    Dropped(String),
    /// The rows did not arrive in time. They may still arrive.
    #[error("the rows did not arrive in time")]
    Late,
    /// A thread of the gatherer ended.
    #[error("a gathering thread failed")]
    Failed,
}
