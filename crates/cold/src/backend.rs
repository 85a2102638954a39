//! What a tier needs of a place.

use crate::error::ColdError;
use crate::record::{Aligned, Head, Name};
use cenote_base::HashSeed;

/// A record to be written: its head, and its sealed bytes with padding.
pub struct Sealed<'a> {
    /// The block.
    pub head: Head,
    /// Header, payload and padding.
    pub bytes: &'a [u8],
}

/// What a look for other processes' changes found.
#[derive(Debug, Default)]
pub struct Refreshed {
    /// Files or objects that this process has removed since the last look, to keep the limit.
    pub removed: u64,
    /// Files that are damaged, or of another version. Each is told once.
    pub damage: Vec<ColdError>,
    /// The list is not complete: the next look reads more, and need not wait.
    pub has_more: bool,
}

/// What a place holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Listed blocks.
    pub blocks: u64,
    /// Bytes of all files or objects.
    pub bytes: u64,
    /// The limit that lies in the place; 0: not known.
    pub bytes_max: u64,
}

/// Records in a place. The tier's writer thread calls [`Backend::write`], [`Backend::refresh`] and
/// [`Backend::sync`]; any thread calls the others.
pub trait Backend: Send + Sync {
    /// Opens the place for regions with this seed. [`Backend::refresh`] then lists what it holds, in
    /// steps. Called again after a failure.
    ///
    /// # Errors
    /// The place cannot be opened, or belongs to regions with another seed.
    fn open(&self, seed: &HashSeed) -> Result<(), ColdError>;

    /// Bytes of a block, with or without its header and padding, by the list in memory; `None`: the
    /// list lacks it.
    fn length(&self, name: &Name) -> Option<u64>;

    /// Whether a lookup of this block may find it. A place without a list must be [asked](Backend::ask) for
    /// what it has; one that does not answer has nothing.
    fn may_have(&self, name: &Name) -> bool {
        self.length(name).is_some()
    }

    /// Asks a place without a list for blocks, and lists those that it has. With `leading`, those behind the
    /// first that it lacks need not be asked for.
    ///
    /// # Errors
    /// The place does not answer.
    fn ask(&self, names: &[Name], leading: bool) -> Result<(), ColdError> {
        let _ = (names, leading);
        Ok(())
    }

    /// Whether blocks leave the place by themselves. Then one that is gone is a miss and no error.
    fn evicts(&self) -> bool {
        false
    }

    /// What the place holds, by the list in memory.
    fn used(&self) -> Used;

    /// Lists a place from outside, without opening or changing it.
    ///
    /// # Errors
    /// The place is not there or cannot be read.
    fn survey(&self) -> Result<Used, ColdError>;

    /// Reads a record into `record` and checks it. A record that fails leaves the list. Memory is taken
    /// for a payload of at most `length_max` bytes, whatever the place says.
    ///
    /// # Errors
    /// The record is gone, damaged or longer, or cannot be read.
    fn read(&self, name: &Name, length_max: u64, record: &mut Aligned) -> Result<Head, ColdError>;

    /// Appends records. `bytes` is their concatenation in aligned memory.
    ///
    /// # Errors
    /// There is no space, or the place cannot be written. Only records that were written nevertheless are
    /// listed then.
    fn write(&self, records: &[Sealed<'_>], bytes: &[u8]) -> Result<(), ColdError>;

    /// Learns what other processes wrote and removed.
    ///
    /// # Errors
    /// The place cannot be read.
    fn refresh(&self) -> Result<Refreshed, ColdError>;

    /// Makes written records survive a loss of power.
    ///
    /// # Errors
    /// The place cannot be written.
    fn sync(&self) -> Result<(), ColdError>;

    /// Sets the limit that lies in the place, and removes what exceeds it. The place need not be open.
    ///
    /// # Errors
    /// There is no place, or it cannot be written.
    fn resize(&self, bytes_max: u64) -> Result<(), ColdError>;
}
