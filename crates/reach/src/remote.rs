//! The one thing that a fabric between hosts must do.

use cenote_base::Deadline;
use std::ops::Range;
use std::time::Duration;
use thiserror::Error;

/// Some bytes of a peer's region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the region.
    pub at: u64,
    /// Bytes.
    pub length: usize,
}

/// Most pieces of one read.
pub const PIECES_MAX: usize = 1024;
/// Most bytes of a read, unless a single block is longer.
pub const BYTES_MAX: usize = 8 << 20;

/// Why a read brought nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The deadline has passed. The peer may be slow, paused or gone.
    #[error("the deadline has passed")]
    Late,
    /// The connection is of no use any more.
    #[error("{0}")]
    Gone(String),
    /// Another region has the place of the one that was opened.
    #[error("its region was made anew")]
    Remade,
}

/// Times of a lookup or a fetch, which are several reads.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// When its request stops waiting: no step begins later. The connection stays of use.
    pub until: Deadline,
    /// Longest time of one read, from its begin: what is asked of the peer.
    pub read_timeout: Duration,
}

impl Pace {
    /// One read by this deadline.
    #[must_use]
    pub fn by(until: Deadline) -> Self {
        Self { until, read_timeout: until.remaining() }
    }

    /// The deadline of a read that begins now.
    pub(crate) fn of_read(&self) -> Deadline {
        self.until.clock().after(self.read_timeout)
    }
}

/// Where the bytes of a read land. Each has memory of its own, so that a read of lines leaves the
/// payloads of the read before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// Lines of the index and of descriptors.
    Lines,
    /// Payloads, with what belongs to them.
    Payloads,
}

/// A peer's region, as far as its bytes can be read. The bytes mean nothing yet.
///
/// After an error the value is of no further use: the caller drops it and connects again.
pub trait Remote: Send {
    /// Bytes of the region, as the peer says.
    fn region_bytes(&self) -> u64;

    /// Reads pieces, at most 1,024. Other hosts may write meanwhile, so what lands may be torn.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn read(&mut self, pieces: &[Piece], landing: Landing, deadline: Deadline) -> Result<(), ReadError>;

    /// The bytes of the last read that landed here, one piece after the other.
    fn landed(&mut self, landing: Landing) -> &mut [u8];
}

/// Checks that pieces lie in a region of so many bytes, and returns their sum.
///
/// # Errors
/// One does not, or they are too many: a mistake of this program, or a peer that lied about its size.
pub(crate) fn checked_sum(pieces: &[Piece], region_bytes: u64) -> Result<usize, ReadError> {
    let is_inside = |piece: &Piece| piece.at.checked_add(piece.length as u64).is_some_and(|end| end <= region_bytes);
    let sum: usize = pieces.iter().map(|piece| piece.length).sum();
    if pieces.len() > PIECES_MAX || !pieces.iter().all(is_inside) {
        return Err(ReadError::Gone(format!("{} pieces of {sum} bytes do not lie in the region", pieces.len())));
    }
    Ok(sum)
}

/// Pieces for one read, and where each one's bytes will be.
#[derive(Default)]
pub(crate) struct Batch {
    pub pieces: Vec<Piece>,
    bytes: usize,
}

impl Batch {
    /// Adds a piece.
    pub fn add(&mut self, at: u64, length: usize) -> Range<usize> {
        let start = self.bytes;
        self.pieces.push(Piece { at, length });
        self.bytes += length;
        start..self.bytes
    }
}

/// What one read has taken of its limits.
#[derive(Default)]
pub(crate) struct Room {
    pieces: usize,
    bytes: usize,
}

impl Room {
    /// Takes room for a block with so many pieces and bytes, and one piece of the batch. The first one always fits.
    pub fn take(&mut self, pieces: usize, bytes: usize) -> bool {
        let (all_pieces, all_bytes) = (self.pieces + pieces, self.bytes + bytes);
        let fits = self.pieces == 0 || (all_pieces < PIECES_MAX && all_bytes <= BYTES_MAX);
        if fits {
            (self.pieces, self.bytes) = (all_pieces, all_bytes);
        }
        fits
    }
}

impl<R: Remote + ?Sized> Remote for Box<R> {
    fn region_bytes(&self) -> u64 {
        (**self).region_bytes()
    }

    fn read(&mut self, pieces: &[Piece], landing: Landing, deadline: Deadline) -> Result<(), ReadError> {
        (**self).read(pieces, landing, deadline)
    }

    fn landed(&mut self, landing: Landing) -> &mut [u8] {
        (**self).landed(landing)
    }
}
