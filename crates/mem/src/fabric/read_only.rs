//! Read-only access to a region, for inspection.

use super::{Fabric, Flush, Mapped, UnsupportedFlush};
use crate::offset::Offset;
use crate::payload::PayloadSum;
use crate::region::{Mapping, ReadMapping, RegionFile};

/// The fabric of a region that this process may only read. Dropping cached lines changes nothing,
/// so refreshing works. Every method that stores panics; the store itself would raise SIGSEGV.
///
/// Loads are atomic loads of at most eight bytes, plain load instructions on all supported
/// processors.
#[derive(Debug)]
pub struct ReadOnly(Mapped);

impl ReadOnly {
    /// A fabric over `mapping` that drops stale lines with `flush`.
    ///
    /// # Errors
    /// This processor lacks the instruction.
    pub fn new(mapping: ReadMapping, flush: Flush) -> Result<Self, UnsupportedFlush> {
        Mapped::new(mapping.into_inner(), flush).map(Self)
    }

    /// Address in this process of `len` bytes at `at` (a multiple of 64), for a device that reads them.
    #[must_use]
    #[track_caller]
    pub fn address(&self, at: u64, len: u64) -> *const u8 {
        self.0.address(at, len)
    }

    /// The mapping.
    #[must_use]
    pub const fn mapping(&self) -> &Mapping {
        self.0.mapping()
    }
}

#[track_caller]
fn refuse() -> ! {
    panic!("this region was opened to be read")
}

impl Fabric for ReadOnly {
    fn len(&self) -> u64 {
        self.0.len()
    }
    #[inline]
    fn load(&self, at: Offset<u64>) -> u64 {
        self.0.load(at)
    }
    fn store(&self, _at: Offset<u64>, _value: u64) {
        refuse()
    }
    #[inline]
    fn load_line(&self, at: u64) -> [u64; 8] {
        self.0.load_line(at)
    }
    fn store_line(&self, _at: u64, _words: &[u64; 8]) {
        refuse()
    }
    fn publish(&self, _lines: &[u64]) {
        refuse()
    }
    fn write_line(&self, _at: u64, _words: &[u64; 8]) {
        refuse()
    }
    fn write_word(&self, _at: Offset<u64>, _value: u64) {
        refuse()
    }
    fn fence(&self) {
        self.0.fence();
    }
    fn publish_unfenced(&self, _line: u64) {
        refuse()
    }
    #[inline]
    fn refresh(&self, lines: &[u64]) {
        self.0.refresh(lines);
    }
    #[inline]
    fn refresh_unfenced(&self, line: u64) {
        self.0.refresh_unfenced(line);
    }
    fn prefetch(&self, at: u64) {
        self.0.prefetch(at);
    }
    fn write_payload_part(&self, _at: u64, _part: &[u8], _whole: u64, _sum: &mut PayloadSum) {
        refuse()
    }
    fn publish_payload(&self) {
        refuse()
    }
    fn read_payload_part(&self, at: u64, part: &mut [u8], whole: u64, sum: &mut PayloadSum) {
        self.0.read_payload_part(at, part, whole, sum);
    }
    fn refresh_payload(&self, at: u64, len: u64) {
        self.0.refresh_payload(at, len);
    }
    fn absorb_payload(&self, at: u64, len: u64, sum: &mut PayloadSum) {
        self.0.absorb_payload(at, len, sum);
    }
    #[inline]
    fn copy_rows_at(&self, count: usize, start_of: impl Fn(usize) -> u64, bytes: usize, to: &mut [u8]) {
        self.0.copy_rows_at(count, start_of, bytes, to);
    }
    fn flush(&self) -> Flush {
        self.0.flush()
    }

    fn region_file(&self) -> Option<RegionFile> {
        self.0.region_file()
    }
}
