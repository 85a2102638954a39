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
}
