//! A mapping's bytes, with every bound and alignment checked: common code of all fabrics over
//! mapped memory.

use super::{around, flush};
use crate::checksum::Checksummer;
use crate::offset::LINE;
use crate::payload::{PIECE_BYTES, PayloadSum};
use crate::region::Mapping;
use crate::rows;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads of at least this size write their destination around the cache: it is most likely not
/// cached, and fetching it first would cost half as much again. One block of this size is half of a
/// core's own cache, and blocks are read many at a time, so the first would be evicted before it is
/// used. The result of smaller reads may be used at once.
const READ_STREAM_BYTES_MIN: u64 = 256 << 10;

/// Makes streamed stores of this thread visible to other threads, even when a copy panics midway.
struct DrainStreams;

impl Drop for DrainStreams {
    fn drop(&mut self) {
        flush::drain_streams();
    }
}

/// The bytes of one mapping, without regard to other hosts.
#[derive(Debug)]
pub(super) struct Bytes {
    mapping: Mapping,
}

impl Bytes {
    pub(super) const fn new(mapping: Mapping) -> Self {
        Self { mapping }
    }

    pub(super) const fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    #[inline(always)]
    #[track_caller]
    pub(super) fn load(&self, at: u64) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    #[inline(always)]
    #[track_caller]
    pub(super) fn store(&self, at: u64, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }

    /// The address of one word.
    #[track_caller]
    pub(super) fn word_address(&self, at: u64) -> *mut u64 {
        self.word(at).as_ptr()
    }

    #[inline(always)]
    #[track_caller]
    pub(super) fn load_line(&self, at: u64) -> [u64; 8] {
        self.words(at).each_ref().map(|word| word.load(Ordering::Acquire))
    }

    /// Stores a line, word 0 last.
    #[track_caller]
    pub(super) fn store_line(&self, at: u64, words: &[u64; 8]) {
        for (word, value) in self.words(at).iter().zip(words).rev() {
            word.store(*value, Ordering::Release);
        }
    }

    /// Copies a part in, around the cache if `stream` (as far as whole lines go), and adds it to
    /// `sum`.
    #[track_caller]
    pub(super) fn write(&self, at: u64, part: &[u8], stream: bool, sum: &mut PayloadSum) {
        let to = self.payload(at, part.len() as u64);
        if let Some(sum) = sum.checksum() {
            // SAFETY: `payload` checked that the part lies inside the mapping and starts on a line.
            return unsafe { sum.copy_in(part, to, stream) };
        }
        for (index, piece) in part.chunks(PIECE_BYTES).enumerate() {
            // SAFETY: as above; pieces are whole lines long, but for the last one.
            unsafe { copy_in(sum.outgoing(piece), to.add(index * PIECE_BYTES), stream) };
        }
    }

    /// Copies a part of a payload of `whole` bytes out and adds it to `sum`.
    #[track_caller]
    pub(super) fn read(&self, at: u64, part: &mut [u8], whole: u64, sum: &mut PayloadSum) {
        let from = self.payload(at, part.len() as u64).cast_const();
        let Some(sum) = sum.checksum() else {
            for (index, piece) in part.chunks_mut(PIECE_BYTES).enumerate() {
                // SAFETY: as in `write`, for reading. The seal is of the bytes that arrive in `piece`.
                unsafe {
                    std::ptr::copy_nonoverlapping(from.add(index * PIECE_BYTES), piece.as_mut_ptr(), piece.len())
                };
                sum.incoming(piece);
            }
            return;
        };
        let streams = (whole >= READ_STREAM_BYTES_MIN).then_some(DrainStreams);
        // SAFETY: as in `write`, for reading; the value `streams` executes the fence.
        unsafe { sum.copy_out(from, part, streams.is_some()) };
    }

    /// Copies rows out, of any alignment.
    #[track_caller]
    pub(super) fn copy_rows_at(&self, count: usize, start_of: impl Fn(usize) -> u64, bytes: usize, to: &mut [u8]) {
        let row = |at: usize| self.address(start_of(at), bytes as u64).cast_const();
        // SAFETY: `address` checks that each row lies inside the mapping; `to` is private memory
        // outside of it.
        unsafe { rows::copy_from(count, row, bytes, to) };
    }

    #[track_caller]
    pub(super) fn absorb(&self, at: u64, len: u64, sum: &mut PayloadSum) {
        let from = self.payload(at, len).cast_const();
        if let Some(sum) = sum.checksum() {
            // SAFETY: `payload` checked that the bytes lie inside the mapping and start on a line.
            return unsafe { sum.absorb_shared(from, len as usize) };
        }
        // A seal is made of private bytes: others may write the shared ones between two looks.
        let mut copy = vec![0; PIECE_BYTES.min(len as usize)];
        for start in (0..len as usize).step_by(PIECE_BYTES) {
            let piece = &mut copy[..PIECE_BYTES.min(len as usize - start)];
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(from.add(start), piece.as_mut_ptr(), piece.len()) };
            sum.absorb(piece);
        }
    }

    #[track_caller]
    pub(super) fn copy_plain_out(&self, at: u64, to: &mut [u8]) {
        let from = self.payload(at, to.len() as u64).cast_const();
        // SAFETY: `payload` checked the bounds; `to` is private memory outside of the mapping.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }

    #[track_caller]
    pub(super) fn copy_plain_in(&self, at: u64, from: &[u8]) {
        let to = self.payload(at, from.len() as u64);
        // SAFETY: as in `copy_plain_out`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    #[track_caller]
    pub(super) fn copy_around_out(&self, at: u64, to: &mut [u8]) {
        let from = self.payload(at, to.len() as u64).cast_const();
        // SAFETY: as in `copy_plain_out`.
        unsafe { around::copy(from, to.as_mut_ptr(), to.len()) };
    }

    #[track_caller]
    pub(super) fn copy_around_in(&self, at: u64, from: &[u8]) {
        let to = self.payload(at, from.len() as u64);
        // SAFETY: as in `copy_plain_out`.
        unsafe { around::copy(from.as_ptr(), to, from.len()) };
    }

    #[inline(always)]
    #[track_caller]
    pub(super) fn prefetch(&self, at: u64) {
        flush::prefetch(self.line(at));
    }

    /// The address of the line at `at`, all inside the mapping and aligned to 64 bytes.
    #[inline(always)]
    #[track_caller]
    pub(super) fn line(&self, at: u64) -> *mut u8 {
        assert!(at.is_multiple_of(LINE), "line at {at:#x} is not aligned to 64 bytes");
        self.address(at, LINE)
    }

    /// The address of `len` bytes from `at` on, all inside the mapping and aligned to 64 bytes.
    #[track_caller]
    pub(super) fn payload(&self, at: u64, len: u64) -> *mut u8 {
        assert!(at.is_multiple_of(LINE), "payload at {at:#x} is not aligned to 64 bytes");
        self.address(at, len)
    }

    #[inline(always)]
    #[track_caller]
    fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at.is_multiple_of(8), "word at {at:#x} is not aligned to 8 bytes");
        #[allow(clippy::cast_ptr_alignment, reason = "asserted above, and mappings are page aligned")]
        let address = self.address(at, 8).cast::<AtomicU64>();
        // SAFETY: `address` checked that the eight bytes lie inside the mapping, which `self` keeps
        // alive and which is mapped readable and writable. Mappings are page aligned, so `at`
        // decides the alignment. Words of a region are accessed by atomics only.
        unsafe { &*address }
    }

    #[inline(always)]
    #[track_caller]
    fn words(&self, at: u64) -> &[AtomicU64; 8] {
        #[allow(clippy::cast_ptr_alignment, reason = "`line` asserts the alignment of a line")]
        let address = self.line(at).cast::<[AtomicU64; 8]>();
        // SAFETY: as in `word`, for the 64 bytes of a line.
        unsafe { &*address }
    }

    #[inline(always)]
    #[track_caller]
    fn address(&self, at: u64, len: u64) -> *mut u8 {
        let end = at.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.mapping.len()),
            "{len} bytes at {at:#x} lie outside the region of {:#x} bytes",
            self.mapping.len()
        );
        // SAFETY: `at <= len` of the mapping, so the result stays inside the same mapped object; a
        // mapping is never larger than `isize::MAX`.
        unsafe { self.mapping.base().add(at as usize) }
    }
}

/// Copies private bytes into shared memory, around the cache if `stream`, as [`Checksummer::copy_in`]
/// does.
///
/// # Safety
/// As for [`Checksummer::copy_in`].
unsafe fn copy_in(from: &[u8], to: *mut u8, stream: bool) {
    // The checksum costs little beside the copy, and has the copy of each instruction set.
    // SAFETY: callers guarantee what it needs.
    unsafe { Checksummer::new(0).copy_in(from, to, stream) };
}
