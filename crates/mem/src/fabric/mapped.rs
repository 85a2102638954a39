//! Either fabric over mapped memory, chosen at run time by the region.

use super::bytes::Bytes;
use super::{Coherent, Fabric, Flush, Flushed, UnsupportedFlush};
use crate::offset::Offset;
use crate::payload::PayloadSum;
use crate::region::{Mapping, RegionFile};

/// A mapped region, coherent or flushed.
#[derive(Debug)]
pub enum Mapped {
    /// Memory of one host.
    Coherent(Coherent),
    /// Memory that several hosts share without coherence.
    Flushed(Flushed),
}

/// Makes the same call on either fabric.
macro_rules! either {
    ($self:expr, $fabric:ident => $call:expr) => {
        match $self {
            Mapped::Coherent($fabric) => $call,
            Mapped::Flushed($fabric) => $call,
        }
    };
}

impl Mapped {
    /// A fabric over `mapping`: [`Coherent`] for [`Flush::None`], [`Flushed`] for an instruction.
    ///
    /// # Errors
    /// This processor lacks the instruction.
    pub fn new(mapping: Mapping, flush: Flush) -> Result<Self, UnsupportedFlush> {
        if flush.is_coherent() {
            return Ok(Self::Coherent(Coherent::new(mapping)));
        }
        Flushed::new(mapping, flush).map(Self::Flushed)
    }

    /// Calls that are the same for both fabrics.
    #[inline(always)]
    const fn bytes(&self) -> &Bytes {
        either!(self, fabric => fabric.bytes())
    }

    /// Address in this process of `len` bytes of payload at `at` (a multiple of 64), for programs
    /// in other languages and for devices. A writer must keep the rules of
    /// [`Fabric::write_payload`] itself.
    #[must_use]
    #[track_caller]
    pub fn address(&self, at: u64, len: u64) -> *mut u8 {
        self.bytes().payload(at, len)
    }

    /// The mapping.
    #[must_use]
    pub const fn mapping(&self) -> &Mapping {
        either!(self, fabric => fabric.mapping())
    }

    /// Plain `memcpy` of payload out of the region, for comparison. `at` is a multiple of 64.
    #[track_caller]
    pub fn copy_plain_out(&self, at: u64, to: &mut [u8]) {
        either!(self, fabric => fabric.copy_plain_out(at, to));
    }

    /// Plain `memcpy` of payload into the region, for comparison. `at` is a multiple of 64.
    #[track_caller]
    pub fn copy_plain_in(&self, at: u64, from: &[u8]) {
        either!(self, fabric => fabric.copy_plain_in(at, from));
    }

    /// As [`Mapped::copy_plain_out`], around the cache if the processor can.
    #[track_caller]
    pub fn copy_around_out(&self, at: u64, to: &mut [u8]) {
        either!(self, fabric => fabric.copy_around_out(at, to));
    }

    /// As [`Mapped::copy_plain_in`], around the cache if the processor can.
    #[track_caller]
    pub fn copy_around_in(&self, at: u64, from: &[u8]) {
        either!(self, fabric => fabric.copy_around_in(at, from));
    }
}

impl Fabric for Mapped {
    fn len(&self) -> u64 {
        either!(self, fabric => fabric.len())
    }
    #[inline(always)]
    fn load(&self, at: Offset<u64>) -> u64 {
        self.bytes().load(at.raw())
    }
    #[inline(always)]
    fn store(&self, at: Offset<u64>, value: u64) {
        self.bytes().store(at.raw(), value);
    }
    #[inline(always)]
    fn load_line(&self, at: u64) -> [u64; 8] {
        self.bytes().load_line(at)
    }
    #[inline]
    fn store_line(&self, at: u64, words: &[u64; 8]) {
        self.bytes().store_line(at, words);
    }
    #[inline]
    fn publish(&self, lines: &[u64]) {
        either!(self, fabric => fabric.publish(lines));
    }
    #[inline]
    fn write_line(&self, at: u64, words: &[u64; 8]) {
        either!(self, fabric => fabric.write_line(at, words));
    }
    #[inline]
    fn write_word(&self, at: Offset<u64>, value: u64) {
        either!(self, fabric => fabric.write_word(at, value));
    }
    #[inline]
    fn fence(&self) {
        either!(self, fabric => fabric.fence());
    }
    #[inline]
    fn publish_unfenced(&self, line: u64) {
        either!(self, fabric => fabric.publish_unfenced(line));
    }
    #[inline]
    fn refresh(&self, lines: &[u64]) {
        either!(self, fabric => fabric.refresh(lines));
    }
    #[inline]
    fn refresh_unfenced(&self, line: u64) {
        either!(self, fabric => fabric.refresh_unfenced(line));
    }
    #[inline(always)]
    fn prefetch(&self, at: u64) {
        self.bytes().prefetch(at);
    }
    fn write_payload_part(&self, at: u64, part: &[u8], whole: u64, sum: &mut PayloadSum) {
        either!(self, fabric => fabric.write_payload_part(at, part, whole, sum));
    }
    fn write_payload(&self, at: u64, parts: &[&[u8]], key: u64) -> u64 {
        either!(self, fabric => fabric.write_payload(at, parts, key))
    }
    fn publish_payload(&self) {
        either!(self, fabric => fabric.publish_payload());
    }
    fn read_payload_part(&self, at: u64, part: &mut [u8], whole: u64, sum: &mut PayloadSum) {
        either!(self, fabric => fabric.read_payload_part(at, part, whole, sum));
    }
    fn read_payload(&self, at: u64, parts: &mut [&mut [u8]], key: u64) -> u64 {
        either!(self, fabric => fabric.read_payload(at, parts, key))
    }
    fn refresh_payload(&self, at: u64, len: u64) {
        either!(self, fabric => fabric.refresh_payload(at, len));
    }
    fn absorb_payload(&self, at: u64, len: u64, sum: &mut PayloadSum) {
        either!(self, fabric => fabric.absorb_payload(at, len, sum));
    }
    #[inline]
    fn copy_rows_at(&self, count: usize, start_of: impl Fn(usize) -> u64, bytes: usize, to: &mut [u8]) {
        self.bytes().copy_rows_at(count, start_of, bytes, to);
    }
    fn flush(&self) -> Flush {
        either!(self, fabric => fabric.flush())
    }

    fn region_file(&self) -> Option<RegionFile> {
        self.mapping().region_file()
    }

    fn still_whole(&self) -> bool {
        self.mapping().still_whole()
    }
    #[inline]
    fn has_read_lost(&self) -> bool {
        self.mapping().has_read_lost()
    }
}
