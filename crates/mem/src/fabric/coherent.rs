//! Memory of one host: the processor keeps all caches coherent, so publishing and refreshing are
//! fences only.

use super::bytes::Bytes;
use super::{Fabric, Flush, flush};
use crate::offset::Offset;
use crate::payload::PayloadSum;
use crate::region::{Mapping, RegionFile};
use std::sync::atomic::{Ordering, fence};

/// The fabric of one host.
#[derive(Debug)]
pub struct Coherent {
    bytes: Bytes,
}

/// Payloads of at least this size are written around the cache. A smaller one is likely to be read
/// on this host soon, and write-combining buffers would cost more than they save.
const STREAM_BYTES_MIN: u64 = 16 << 10;

impl Coherent {
    /// A fabric over `mapping`.
    #[must_use]
    pub const fn new(mapping: Mapping) -> Self {
        Self { bytes: Bytes::new(mapping) }
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

    /// Plain `memcpy` of payload into the region, for comparison. `at` is a multiple of 64.
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
}

impl Fabric for Coherent {
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
            let _ = self.bytes.line(*line);
        }
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn write_line(&self, at: u64, words: &[u64; 8]) {
        self.bytes.store_line(at, words);
    }

    #[inline]
    fn write_word(&self, at: Offset<u64>, value: u64) {
        self.bytes.store(at.raw(), value);
    }

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn publish_unfenced(&self, line: u64) {
        let _ = self.bytes.line(line);
    }

    #[inline]
    fn refresh(&self, lines: &[u64]) {
        for line in lines {
            let _ = self.bytes.line(*line);
        }
        fence(Ordering::SeqCst);
    }

    #[inline(always)]
    fn prefetch(&self, at: u64) {
        self.bytes.prefetch(at);
    }

    fn write_payload_part(&self, at: u64, part: &[u8], whole: u64, sum: &mut PayloadSum) {
        self.bytes.write(at, part, whole >= STREAM_BYTES_MIN, sum);
    }

    fn publish_payload(&self) {
        flush::drain_streams();
        fence(Ordering::SeqCst);
    }

    fn read_payload_part(&self, at: u64, part: &mut [u8], whole: u64, sum: &mut PayloadSum) {
        self.bytes.read(at, part, whole, sum);
    }

    fn refresh_payload(&self, at: u64, len: u64) {
        let _ = self.bytes.payload(at, len);
    }

    fn absorb_payload(&self, at: u64, len: u64, sum: &mut PayloadSum) {
        self.bytes.absorb(at, len, sum);
    }

    #[inline]
    fn copy_rows_at(&self, count: usize, start_of: impl Fn(usize) -> u64, bytes: usize, to: &mut [u8]) {
        self.bytes.copy_rows_at(count, start_of, bytes, to);
    }

    fn flush(&self) -> Flush {
        Flush::None
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
