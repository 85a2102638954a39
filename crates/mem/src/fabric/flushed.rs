//! Memory that several hosts share without coherence, as CXL 2.0 offers it. A writer flushes every
//! line that another host reads, and a reader drops its copy before the load.
//!
//! The rules follow from what a host's cache may do on its own. It may keep a clean line forever,
//! so readers drop lines. It may keep a dirty line forever, or write it back at any time over newer
//! stores of another host. So a line has one writing host, and payload never becomes dirty in a
//! cache.

use super::bytes::Bytes;
use super::flush::{self, WholeLine};
use super::{Fabric, Flush, UnsupportedFlush};
use crate::offset::{LINE, Offset};
use crate::payload::PayloadSum;
use crate::region::{Mapping, RegionFile};

/// The fabric of several hosts without coherence between them. Within a host it is as coherent as
/// [`Coherent`](super::Coherent).
#[derive(Debug)]
pub struct Flushed {
    bytes: Bytes,
    flush: Flush,
    whole_line: WholeLine,
}

impl Flushed {
    /// A fabric over `mapping` that flushes lines with `flush`.
    ///
    /// # Errors
    /// This processor lacks the instruction, or it is [`Flush::None`].
    pub fn new(mapping: Mapping, flush: Flush) -> Result<Self, UnsupportedFlush> {
        if !Flush::available().contains(&flush) {
            return Err(UnsupportedFlush { flush });
        }
        let whole_line = *WholeLine::available().last().expect("there is always a way");
        Ok(Self { bytes: Bytes::new(mapping), flush, whole_line })
    }

    #[inline(always)]
    pub(super) const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The mapping.
    #[must_use]
    pub const fn mapping(&self) -> &Mapping {
        self.bytes.mapping()
    }

    /// Plain `memcpy` of payload out of the region, for comparison. `at` is a multiple of 64.
    #[track_caller]
    pub fn copy_plain_out(&self, at: u64, to: &mut [u8]) {
        self.bytes.copy_plain_out(at, to);
    }

    /// Plain `memcpy` of payload into the region, for comparison: it leaves dirty lines. `at` is a
    /// multiple of 64.
    #[track_caller]
    pub fn copy_plain_in(&self, at: u64, from: &[u8]) {
        self.bytes.copy_plain_in(at, from);
    }

    /// As `copy_plain_out`, around the cache if the processor can.
    #[track_caller]
    pub fn copy_around_out(&self, at: u64, to: &mut [u8]) {
        self.bytes.copy_around_out(at, to);
    }

    /// As `copy_plain_in`, around the cache if the processor can.
    #[track_caller]
    pub fn copy_around_in(&self, at: u64, from: &[u8]) {
        self.bytes.copy_around_in(at, from);
    }

    /// Starts writing one line back.
    #[track_caller]
    fn write_back(&self, line: u64) {
        let line = self.bytes.line(line);
        // SAFETY: `line` lies inside the mapping, and `new` saw that the processor has the
        // instruction.
        unsafe { self.flush.write_back(line) };
    }
}

impl Fabric for Flushed {
    fn len(&self) -> u64 {
        self.bytes.mapping().len()
    }

    #[inline(always)]
    fn load(&self, at: Offset<u64>) -> u64 {
        self.bytes.load(at.raw())
    }

    #[inline(always)]
    fn store(&self, at: Offset<u64>, value: u64) {
        self.bytes.store(at.raw(), value);
    }

    #[inline(always)]
    fn load_line(&self, at: u64) -> [u64; 8] {
        self.bytes.load_line(at)
    }

    #[inline]
    fn store_line(&self, at: u64, words: &[u64; 8]) {
        self.bytes.store_line(at, words);
    }

    #[inline]
    fn publish(&self, lines: &[u64]) {
        for line in lines {
            self.write_back(*line);
        }
        flush::drain();
    }

    fn write_line(&self, at: u64, words: &[u64; 8]) {
        if self.whole_line == WholeLine::No {
            self.store_line(at, words);
            return self.write_back(at);
        }
        let line = self.bytes.line(at);
        // SAFETY: `line` is a whole line inside the mapping, and `new` saw that the processor has
        // the instruction.
        unsafe { self.whole_line.store(line, words) };
    }

    fn write_word(&self, at: Offset<u64>, value: u64) {
        let at = at.raw();
        if self.whole_line == WholeLine::No {
            // The line goes back whole. A stale copy would undo what other hosts stored in its
            // other words.
            self.refresh(&[at / LINE * LINE]);
            self.bytes.store(at, value);
            return self.write_back(at / LINE * LINE);
        }
        let word = self.bytes.word_address(at);
        // SAFETY: `word` is eight aligned bytes inside the mapping.
        unsafe { WholeLine::store_word(word, value) };
    }

    #[inline]
    fn fence(&self) {
        flush::drain();
    }

    #[inline]
    fn publish_unfenced(&self, line: u64) {
        self.write_back(line);
    }

    #[inline]
    fn refresh(&self, lines: &[u64]) {
        flush::loads_first();
        for line in lines {
            let line = self.bytes.line(*line);
            // SAFETY: as in `write_back`.
            unsafe { self.flush.drop_line(line) };
        }
        flush::drain();
    }

    #[inline]
    fn refresh_unfenced(&self, line: u64) {
        flush::loads_first();
        let line = self.bytes.line(line);
        // SAFETY: as in `write_back`.
        unsafe { self.flush.drop_line(line) };
    }

    #[inline(always)]
    fn prefetch(&self, at: u64) {
        self.bytes.prefetch(at);
    }

    fn write_payload_part(&self, at: u64, part: &[u8], _whole: u64, sum: &mut PayloadSum) {
        self.bytes.write(at, part, true, sum);
        let len = part.len() as u64;
        // Flush what went through the cache: an incomplete last line, or everything if the
        // architecture cannot store around the cache.
        let streamed = if flush::STREAMS { len / LINE * LINE } else { 0 };
        for line in (at + streamed..at + len).step_by(LINE as usize) {
            self.write_back(line);
        }
    }

    fn publish_payload(&self) {
        flush::drain_streams();
        flush::drain();
    }

    fn read_payload_part(&self, at: u64, part: &mut [u8], whole: u64, sum: &mut PayloadSum) {
        self.bytes.read(at, part, whole, sum);
    }

    fn refresh_payload(&self, at: u64, len: u64) {
        let first = self.bytes.payload(at, len).cast_const();
        flush::loads_first();
        for line in 0..len.div_ceil(LINE) {
            // SAFETY: `payload` checked that the bytes lie inside the mapping, and so does their
            // last line, because a mapping is whole pages; `new` saw that the processor has the
            // instruction.
            unsafe { self.flush.drop_line(first.add((line * LINE) as usize)) };
        }
        flush::drain();
    }

    fn absorb_payload(&self, at: u64, len: u64, sum: &mut PayloadSum) {
        self.bytes.absorb(at, len, sum);
    }

    #[inline]
    fn copy_rows_at(&self, count: usize, start_of: impl Fn(usize) -> u64, bytes: usize, to: &mut [u8]) {
        self.bytes.copy_rows_at(count, start_of, bytes, to);
    }

    fn flush(&self) -> Flush {
        self.flush
    }

    fn region_file(&self) -> Option<RegionFile> {
        self.bytes.mapping().region_file()
    }

    fn still_whole(&self) -> bool {
        self.bytes.mapping().still_whole()
    }

    #[inline]
    fn has_read_lost(&self) -> bool {
        self.bytes.mapping().has_read_lost()
    }
}
