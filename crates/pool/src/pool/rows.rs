//! Rows of pinned blocks, gathered into one buffer: sparse attention reads a few tokens of each
//! block.
//!
//! A checksum covers a whole payload, so a row alone cannot be verified. A block is therefore
//! verified once after it was pinned, and a pinned block does not change. Each gather looks after
//! its copies whether the pins still count (docs/internals/protocol.md#gather).

use super::Pool;
use super::read::Pin;
use crate::blocks::life::ReadOutcome;
use crate::members::Member;
use crate::region::counters::Counter;
use crate::region::hit::Hit;
use cenote_mem::{Fabric, HostArea, HostLocal};
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Rows, or pieces of rows, that one call of the fabric copies.
const GROUP: usize = 512;

/// Longest offset, distance and row, in bytes: beyond the largest block.
const SPAN_MAX: u64 = 1 << 31;

/// One row of one block of [`PinnedRows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RowRef {
    /// Number of the block in its [`PinnedRows`].
    pub block: u32,
    /// Number of the row in the block, from 0.
    pub row: u32,
}

/// Where the rows of a block lie in its payload. A row is one piece of bytes, or several at equal
/// distances.
///
/// ```
/// use cenote_pool::RowShape;
/// // A page of 16 tokens × 8 heads × 128 values of 2 bytes, token after token.
/// let tokens = RowShape::packed(0, 8 * 128 * 2).first(16);
/// // The same page, head after head: a token has a piece in each head.
/// let heads = RowShape::strided(0, 128 * 2, 128 * 2).in_pieces(8, 16 * 128 * 2).first(16);
/// assert_eq!((tokens.row_bytes(), heads.row_bytes()), (2048, 2048));
/// assert_eq!((tokens.rows_in(1 << 20), heads.rows_in(1 << 20)), (16, 16));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowShape {
    /// Offset of row 0 in the payload, in bytes.
    pub offset: u64,
    /// Distance between the starts of neighbouring rows, in bytes.
    pub stride: u64,
    /// Bytes of a piece.
    pub bytes: u64,
    /// Pieces of a row.
    pub pieces: u64,
    /// Distance between the starts of neighbouring pieces of a row, in bytes.
    pub piece_stride: u64,
    /// Most rows of a block: the tokens of a page, so that a row behind them is an error and none
    /// of the next page.
    pub rows: u64,
}

impl RowShape {
    /// Rows of `bytes` bytes without gaps between them, from `offset` on.
    #[must_use]
    pub const fn packed(offset: u64, bytes: u64) -> Self {
        Self::strided(offset, bytes, bytes)
    }

    /// Rows of `bytes` bytes that start every `stride` bytes, from `offset` on.
    #[must_use]
    pub const fn strided(offset: u64, stride: u64, bytes: u64) -> Self {
        Self { offset, stride, bytes, pieces: 1, piece_stride: 0, rows: u64::MAX }
    }

    /// Rows of several such pieces each, `stride` bytes apart.
    #[must_use]
    pub const fn in_pieces(self, pieces: u64, stride: u64) -> Self {
        Self { pieces, piece_stride: stride, ..self }
    }

    /// Only the first `rows` rows of a block.
    #[must_use]
    pub const fn first(self, rows: u64) -> Self {
        Self { rows, ..self }
    }

    /// Bytes of a row in the buffer.
    #[must_use]
    pub const fn row_bytes(&self) -> u64 {
        self.bytes.saturating_mul(self.pieces)
    }

    /// Bytes from the start of a row to its end; `None` for a shape that no block has.
    fn span(&self) -> Option<u64> {
        let span = self.pieces.checked_sub(1)?.checked_mul(self.piece_stride)?.checked_add(self.bytes)?;
        let fits = self.bytes > 0 && [self.offset, self.stride, span, self.row_bytes()].iter().all(|&n| n <= SPAN_MAX);
        fits.then_some(span)
    }

    /// Number of rows in a payload of `length` bytes, at most 2³².
    #[must_use]
    pub fn rows_in(&self, length: u64) -> u64 {
        let room = self.span().and_then(|span| length.checked_sub(self.offset)?.checked_sub(span));
        let fitting = room.map_or(0, |room| room.checked_div(self.stride).map_or(1 << 32, |last| last + 1));
        fitting.min(self.rows).min(1 << 32)
    }
}

/// A gather that cannot be: a bug of the caller. Nothing was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// No row has this shape.
    #[error("{0:?} is no shape of rows; use at least one piece of at least one byte, within a block")]
    Shape(RowShape),
    /// The list has a block that the set does not have.
    #[error("row {at} of the list is of block {block}, but the set has {blocks} blocks")]
    Block {
        /// Index in the list.
        at: usize,
        /// Number of the block.
        block: u32,
        /// Blocks of the set.
        blocks: usize,
    },
    /// The list has a row that its block does not have.
    #[error("row {at} of the list is row {row} of block {block}, which has {rows} rows of this shape")]
    Row {
        /// Index in the list.
        at: usize,
        /// Number of the block.
        block: u32,
        /// Number of the row.
        row: u32,
        /// Rows of the block.
        rows: u64,
    },
    /// The buffer is not exactly as long as the rows.
    #[error("the buffer has {got} bytes, and {rows} rows of this shape need {wanted}")]
    Buffer {
        /// Bytes of the buffer.
        got: usize,
        /// Bytes of all rows.
        wanted: u64,
        /// Rows of the list.
        rows: usize,
    },
}

/// Result of a gather.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "the rows of missed blocks are not in the buffer"]
pub struct Gathered {
    /// Numbers of the blocks of the list that are misses, in ascending order. The bytes of their
    /// rows in the buffer are meaningless; compute them again.
    pub missed: Vec<u32>,
}

impl Gathered {
    /// Whether the buffer has the bytes of all rows as they were published.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.missed.is_empty()
    }
}

/// Not verified yet.
const PINNED: u8 = 0;
/// Verified since it was pinned.
const VERIFIED: u8 = 1;
/// Never pinned, or its bytes did not have their checksum.
const GONE: u8 = 2;

/// Length of a block that was not found: beyond the largest block.
const UNKNOWN: u32 = u32::MAX;

/// What a gather reads of a block. Small, because each row of a list reads it.
struct Place {
    offset: u64,
    /// Blocks have at most 512 MiB.
    length: u32,
    state: AtomicU8,
}

/// Blocks that stay pinned so that their rows can be gathered. Threads may share it.
///
/// Blocks keep the numbers in which they were added. A block that is gone keeps its number too and
/// is a miss of each gather, until [`PinnedRows::replace`] finds it again.
pub struct PinnedRows<F: Fabric, H: HostLocal = HostArea> {
    member: Arc<Member<F, H>>,
    places: Vec<Place>,
    pins: Vec<Option<Pin<F, H>>>,
    /// Life of the host in which all pins were made.
    life: u64,
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Pins blocks so that their rows can be gathered. Blocks that are gone, and those for which
    /// this worker has no pin left ([`PoolConfig::hazard_lines_for`](crate::PoolConfig)), are
    /// misses.
    #[must_use]
    pub fn pin_rows(&self, hits: &[Hit]) -> PinnedRows<F, H> {
        let life = self.0.region.incarnation();
        let mut rows = PinnedRows { member: Arc::clone(&self.0), places: Vec::new(), pins: Vec::new(), life };
        hits.iter().for_each(|hit| _ = rows.push(hit));
        rows
    }
}

impl<F: Fabric, H: HostLocal> PinnedRows<F, H> {
    /// Number of blocks, missing ones too.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether the set has no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Pins one more block and returns its number. The block is a miss if it is gone, or if the
    /// life of the host in which the set was made has ended.
    ///
    /// # Panics
    /// The set has 2³² blocks.
    pub fn push(&mut self, hit: &Hit) -> u32 {
        let (place, pin) = self.pinned(hit);
        self.add(place, pin)
    }

    /// Adds a block that was not found, so that later blocks have the numbers of the caller's list,
    /// and returns its number. It is a miss, and has any row.
    ///
    /// # Panics
    /// As [`PinnedRows::push`].
    pub fn push_missing(&mut self) -> u32 {
        self.add(Place { offset: 0, length: UNKNOWN, state: AtomicU8::new(GONE) }, None)
    }

    /// Adds a block that is pinned already; otherwise as [`PinnedRows::push`].
    ///
    /// # Panics
    /// As [`PinnedRows::push`].
    pub fn push_pin(&mut self, pin: Pin<F, H>) -> u32 {
        let (place, pin) = self.place(*pin.hit(), Some(pin));
        self.add(place, pin)
    }

    fn add(&mut self, place: Place, pin: Option<Pin<F, H>>) -> u32 {
        let number = u32::try_from(self.places.len()).expect("at most 2³² blocks");
        self.places.push(place);
        self.pins.push(pin);
        number
    }

    /// Gives a number to another block, or to the same one after it was published again, and
    /// unpins the block that had it. Returns whether the new block is there.
    ///
    /// # Panics
    /// The set has no block of this number.
    pub fn replace(&mut self, block: u32, hit: &Hit) -> bool {
        let at = block as usize;
        // Before the new pin, because pins are few.
        self.pins[at] = None;
        let (place, pin) = self.pinned(hit);
        self.places[at] = place;
        self.pins[at] = pin;
        self.is_there(block)
    }

    fn pinned(&self, hit: &Hit) -> (Place, Option<Pin<F, H>>) {
        self.place(*hit, Pool(Arc::clone(&self.member)).pin(hit))
    }

    /// A block and its pin, without it if it is of another life or of another pool.
    fn place(&self, hit: Hit, pin: Option<Pin<F, H>>) -> (Place, Option<Pin<F, H>>) {
        let length = u32::try_from(hit.length).unwrap_or(0);
        // A sealed block is only copied whole.
        let is_ours = |pin: &Pin<F, H>| pin.is_of(&self.member, self.life) && pin.extent().is_some();
        let pin = pin.filter(|pin| is_ours(pin) && length > 0);
        let state = if pin.is_some() { PINNED } else { GONE };
        (Place { offset: hit.offset, length, state: AtomicU8::new(state) }, pin)
    }

    /// Whether a block is pinned and its bytes have not been found damaged.
    #[must_use]
    pub fn is_there(&self, block: u32) -> bool {
        self.places.get(block as usize).is_some_and(|place| place.state.load(Relaxed) != GONE)
    }

    /// Verifies all blocks now, which reads each of them once. Otherwise the first gather that has
    /// a row of a block verifies it. Returns the numbers of those that are misses.
    pub fn verify(&self) -> Vec<u32> {
        (0..self.places.len()).filter(|&at| !self.is_verified(at)).map(|at| at as u32).collect()
    }

    /// Whether the pins still keep the blocks in their places. False for good once this host was
    /// declared dead: make another set.
    #[must_use]
    pub fn protects(&self) -> bool {
        let region = &self.member.region;
        // A fence between the copies and the words that say whether the pins counted until then.
        region.fabric.fence();
        !region.area.is_inherited()
            && !region.is_superseded()
            && !region.is_dead(region.host, self.life)
            && region.incarnation() == self.life
    }

    /// Copies rows into `to`, in the order of the list and without gaps.
    ///
    /// The bytes of a row are those that were published, unless its block is among the
    /// [misses](Gathered::missed). A block is a miss if it was gone when it was pinned, if its
    /// payload does not have its checksum, if a host that was declared dead may write to it, or if
    /// this host was declared dead before the copy was complete.
    ///
    /// # Errors
    /// See [`RowError`]: bugs of the caller, found before anything is copied.
    pub fn gather(&self, rows: &[RowRef], shape: &RowShape, to: &mut [u8]) -> Result<Gathered, RowError> {
        let mut missed = self.check(rows, shape, to.len())?;
        let mut missed_rows = self.copy(rows, shape, to, &missed);
        if !self.protects() {
            missed = blocks_of(rows, |_| true);
            missed_rows = rows.len();
        }
        let counters = self.member.region.counters();
        counters.add(Counter::RowsGathered, (rows.len() - missed_rows) as u64);
        if missed_rows > 0 {
            counters.add(Counter::RowsMissed, missed_rows as u64);
        }
        Ok(Gathered { missed })
    }

    /// Checks the list against the set, and verifies the blocks that it reaches first. Returns the
    /// blocks that are misses.
    fn check(&self, rows: &[RowRef], shape: &RowShape, bytes: usize) -> Result<Vec<u32>, RowError> {
        let span = shape.span().ok_or(RowError::Shape(*shape))?;
        let wanted = shape.row_bytes().saturating_mul(rows.len() as u64);
        if bytes as u64 != wanted {
            return Err(RowError::Buffer { got: bytes, wanted, rows: rows.len() });
        }
        let mut is_verified = true;
        for (at, &RowRef { block, row }) in rows.iter().enumerate() {
            let Some(place) = self.places.get(block as usize) else {
                return Err(RowError::Block { at, block, blocks: self.places.len() });
            };
            // No overflow: each factor and summand was checked to be at most 2³².
            let end = shape.offset + u64::from(row) * shape.stride + span;
            let is_in = end <= place.length.into() || place.length == UNKNOWN;
            if !is_in || u64::from(row) >= shape.rows {
                return Err(RowError::Row { at, block, row, rows: shape.rows_in(place.length.into()) });
            }
            is_verified &= place.state.load(Acquire) == VERIFIED;
        }
        if is_verified {
            return Ok(Vec::new());
        }
        // Only now, so that a wrong list costs no read.
        Ok(blocks_of(rows, |block| !self.is_verified(block as usize)))
    }

    fn is_verified(&self, at: usize) -> bool {
        match self.places[at].state.load(Acquire) {
            VERIFIED => true,
            PINNED => self.verify_block(at),
            _ => false,
        }
    }

    /// Sums a pinned block. Afterwards its rows need no checksum.
    fn verify_block(&self, at: usize) -> bool {
        let Some(pin) = &self.pins[at] else { return false };
        // Before the sum. A host that loses the chunk later holds no reservation in a slot whose
        // block was readable by then, so it has nothing to write there.
        if !pin.protects() {
            return false;
        }
        let state = if pin.verify() == ReadOutcome::Whole { VERIFIED } else { GONE };
        self.places[at].state.store(state, Release);
        state == VERIFIED
    }

    /// Copies the rows of blocks that are not `missed`, and leaves the places of the others as they
    /// are. Returns the number of the others.
    fn copy(&self, rows: &[RowRef], shape: &RowShape, to: &mut [u8], missed: &[u32]) -> usize {
        let (fabric, bytes) = (&self.member.region.fabric, shape.bytes as usize);
        let mut batch = Batch { fabric, bytes, starts: [0; GROUP], count: 0, to };
        let mut missed_rows = 0;
        for row in rows {
            if !missed.is_empty() && missed.binary_search(&row.block).is_ok() {
                missed_rows += 1;
                batch.skip(shape.row_bytes() as usize);
                continue;
            }
            let start = self.places[row.block as usize].offset + shape.offset + u64::from(row.row) * shape.stride;
            for piece in 0..shape.pieces {
                batch.push(start + piece * shape.piece_stride);
            }
        }
        batch.copy();
        missed_rows
    }
}

/// The blocks of a list that `wanted` accepts, in ascending order.
fn blocks_of(rows: &[RowRef], wanted: impl Fn(u32) -> bool) -> Vec<u32> {
    let mut blocks: Vec<u32> = rows.iter().map(|row| row.block).filter(|&block| wanted(block)).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

/// Pieces that wait for their copy.
struct Batch<'a, F> {
    fabric: &'a F,
    /// Bytes of a piece.
    bytes: usize,
    starts: [u64; GROUP],
    count: usize,
    /// What is not copied yet.
    to: &'a mut [u8],
}

impl<F: Fabric> Batch<'_, F> {
    #[inline]
    fn push(&mut self, start: u64) {
        if self.count == GROUP {
            self.copy();
        }
        self.starts[self.count] = start;
        self.count += 1;
    }

    fn copy(&mut self) {
        let starts = &self.starts[..std::mem::take(&mut self.count)];
        let to = self.to.split_off_mut(..starts.len() * self.bytes).expect("the length was checked");
        self.fabric.copy_rows(starts, self.bytes, to);
    }

    fn skip(&mut self, bytes: usize) {
        self.copy();
        self.to.split_off_mut(..bytes).expect("the length was checked");
    }
}
