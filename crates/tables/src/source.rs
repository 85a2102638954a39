//! Where rows come from.

use crate::error::TableError;
use crate::facts::Facts;
use std::ops::Range;

/// Rows of files, in their stored format.
pub trait RowSource: Sync {
    /// The table that the rows make.
    fn facts(&self) -> &Facts;

    /// Writes rows one after the other into `to`, which has their size.
    ///
    /// # Errors
    /// A file cannot be read.
    fn read(&self, rows: Range<u64>, to: &mut [u8]) -> Result<(), TableError>;

    /// Refuses files that have changed since they were opened: rows that were read may be of both
    /// contents. A load asks before it seals a table.
    ///
    /// # Errors
    /// A file has changed, was replaced, or cannot be asked.
    fn verify_unchanged(&self) -> Result<(), TableError>;
}
