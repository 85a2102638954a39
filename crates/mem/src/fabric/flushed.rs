//! Memory that several hosts share without coherence, as CXL 2.0 offers it: every line that another host is
//! to see is flushed by its writer, and dropped by its reader before the load.
//!
//! All of it follows from what a host's cache may do on its own: keep a clean line for ever (so readers
//! drop lines), keep a dirty one for ever or write it back at any time, over what another host wrote since
//! (so a line has one writing host, and payload never becomes dirty in a cache at all).

use super::bytes::Bytes;
use super::flush::{self, WholeLine};
use super::{Fabric, Flush, UnsupportedFlush};
use crate::checksum::PayloadSum;
use crate::offset::{LINE, Offset};
use crate::region::{Mapping, RegionFile};

/// The fabric of several hosts without coherence between them. Within a host it is as good as
/// [`Coherent`](super::Coherent).
#[derive(Debug)]
pub struct Flushed {
    bytes: Bytes,
    flush: Flush,
    whole_line: WholeLine,
}

impl Flushed {
    /// A fabric over `mapping` whose lines are flushed by `flush`.
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

    /// The memory beneath.
    #[must_use]
    pub const fn mapping(&self) -> &Mapping {
        self.bytes.mapping()
    }

    /// Plain `memcpy` of payload out of the region, to compare with. `at` is a multiple of 64.
    #[track_caller]
    pub fn copy_plain_out(&self, at: u64, to: &mut [u8]) {
        self.bytes.copy_plain_out(at, to);
    }

    /// Plain `memcpy` of payload into the region, to compare with: it leaves dirty lines behind. `at` is a
    /// multiple of 64.
    #[track_caller]
    pub fn copy_plain_in(&self, at: u64, from: &[u8]) {
        self.bytes.copy_plain_in(at, from);
    }

    /// As `copy_plain_out`, around the cache where the processor can.
    #[track_caller]
    pub fn copy_around_out(&self, at: u64, to: &mut [u8]) {
        self.bytes.copy_around_out(at, to);
    }

    /// As `copy_plain_in`, around the cache where the processor can.
    #[track_caller]
    pub fn copy_around_in(&self, at: u64, from: &[u8]) {
        self.bytes.copy_around_in(at, from);
    }

    /// Starts writing one line back.
    #[track_caller]
    fn write_back(&self, line: u64) {
        let line = self.bytes.line(line);
        // SAFETY: `line` lies inside the mapping, and `new` saw that the processor has the instruction.
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
        // SAFETY: `line` is a whole line inside the mapping, and `new` saw that the processor has the instruction.
        unsafe { self.whole_line.store(line, words) };
    }

    fn write_word(&self, at: Offset<u64>, value: u64) {
        let at = at.raw();
        if self.whole_line == WholeLine::No {
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
        // What went through the cache after all: the last line if it is not whole, or everything where
        // the architecture has no way around the cache.
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
            // SAFETY: `payload` checked that the bytes lie inside the mapping, and so does their last
            // line, because a mapping is whole pages; `new` saw that the processor has the instruction.
            unsafe { self.flush.drop_line(first.add((line * LINE) as usize)) };
        }
        flush::drain();
    }

    fn checksum_payload(&self, at: u64, len: u64, key: u64) -> u64 {
        self.bytes.checksum(at, len, key)
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
}
