//! The [`Fabric`] trait: access to a region, independent of the coherence between hosts.
//!
//! Code above is written for the weakest fabric, memory without coherence between hosts. There,
//! another host sees a line only after its writer published it and the reader refreshed it. On a
//! coherent machine the same calls cost a fence. The methods are `#[track_caller]`, so that a model
//! of private caches can leave out the flush of one call site and test whether a check fails.
//!
//! - [`Coherent`]: memory of one host.
//! - [`Flushed`]: memory that several hosts share without coherence.
//! - [`Mapped`]: either of them, chosen when a region is opened.
//! - [`ReadOnly`]: either of them, without stores.

mod around;
mod bytes;
mod coherent;
mod flush;
mod flushed;
mod mapped;
mod read_only;

pub use coherent::Coherent;
pub use flush::{Flush, ParseFlushError, UnsupportedFlush};
pub use flushed::Flushed;
pub use mapped::Mapped;
pub use read_only::ReadOnly;

pub(crate) use flush::prefetch;

use crate::offset::{LINE, Offset};
use crate::payload::PayloadSum;
use crate::region::RegionFile;
use std::sync::Arc;

/// Access to one region. Offsets are bytes from its start.
///
/// Control structures are words and 64-byte lines; payload is everything else (KV blocks, tables).
/// Methods panic on misaligned or out-of-bounds offsets. Callers must check offsets that they read
/// from a region before they use them here.
pub trait Fabric: Sized + Send + Sync + 'static {
    /// Bytes of the region; a multiple of 64.
    fn len(&self) -> u64;

    /// Always false: a region has at least one page.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Loads one word atomically. `at` is a multiple of 8.
    #[track_caller]
    fn load(&self, at: Offset<u64>) -> u64;

    /// Stores one word atomically. `at` is a multiple of 8.
    #[track_caller]
    fn store(&self, at: Offset<u64>, value: u64);

    /// Loads the eight words of the line at `at`, a multiple of 64, word 0 first. Each word is
    /// atomic; the words may come from different writes of the line.
    #[track_caller]
    fn load_line(&self, at: u64) -> [u64; 8];

    /// Stores the eight words of the line at `at`, a multiple of 64. Word 0 is stored last: on one
    /// host, a load that returns the new word 0 makes the other seven visible.
    #[track_caller]
    fn store_line(&self, at: u64, words: &[u64; 8]);

    /// Flushes these lines and waits: when it returns, other hosts can see the stores to them.
    #[track_caller]
    fn publish(&self, lines: &[u64]);

    /// Stores all eight words of the line at `at`, a multiple of 64. Others may see the words at
    /// once, and can see them after the next [`Fabric::fence`]. The words arrive in any order, also
    /// on this host: the line needs a check word, or words that stand alone.
    ///
    /// [`Fabric::write_line`], [`Fabric::write_word`] and the `publish_line` methods on them serve
    /// lines that another host may write next. Where the processor has stores around its cache,
    /// they never leave the line dirty in it. A dirty line of a process that dies in the middle
    /// could be written back later, over the other host's stores.
    #[track_caller]
    fn write_line(&self, at: u64, words: &[u64; 8]);

    /// As [`Fabric::write_line`], for one word. `at` is a multiple of 8. The other words of the
    /// line stay as the device has them, also if this host's caches have older ones.
    #[track_caller]
    fn write_word(&self, at: Offset<u64>, value: u64);

    /// Waits until others can see what this thread wrote and flushed. [`Fabric::publish`] and
    /// [`Fabric::refresh`] include it.
    #[track_caller]
    fn fence(&self);

    /// [`Fabric::write_line`], then [`Fabric::fence`].
    #[track_caller]
    fn publish_line(&self, at: u64, words: &[u64; 8]) {
        self.write_line(at, words);
        self.fence();
    }

    /// [`Fabric::write_line`] for each line, then one [`Fabric::fence`].
    #[track_caller]
    fn publish_lines(&self, lines: &[(u64, [u64; 8])]) {
        // A loop: in a closure, `#[track_caller]` would report this place instead of the caller's.
        for (at, words) in lines {
            self.write_line(*at, words);
        }
        self.fence();
    }

    /// [`Fabric::write_word`], then [`Fabric::fence`].
    #[track_caller]
    fn publish_word(&self, at: Offset<u64>, value: u64) {
        self.write_word(at, value);
        self.fence();
    }

    /// Starts flushing one line and does not wait. For stores that others may see late without
    /// harm: unpinning, unlocking.
    #[track_caller]
    fn publish_unfenced(&self, line: u64);

    /// Drops cached copies of these lines and waits: later loads return current or newer values.
    #[track_caller]
    fn refresh(&self, lines: &[u64]);

    /// Starts dropping the cached copy of one line and does not wait. The next loads may still
    /// return the cached copy; later ones do not. For polling.
    #[track_caller]
    fn refresh_unfenced(&self, line: u64) {
        self.refresh(&[line]);
    }

    /// Prefetches the line at `at`, a multiple of 64. Does not wait, and does not change what later
    /// loads return.
    #[track_caller]
    fn prefetch(&self, _at: u64) {}

    /// Writes `part` at `at` (a multiple of 64) and adds it to `sum`. `whole` is the length in
    /// bytes of the complete payload. Each part but the last must be a multiple of 64 bytes long.
    /// Others see the bytes after [`Fabric::publish_payload`].
    #[track_caller]
    fn write_payload_part(&self, at: u64, part: &[u8], whole: u64, sum: &mut PayloadSum);

    /// Writes `parts` in sequence from `at` on, as [`Fabric::write_payload_part`] does. Returns the
    /// checksum of their concatenation under `key` (see [`crate::checksum`]).
    #[track_caller]
    fn write_payload(&self, at: u64, parts: &[&[u8]], key: u64) -> u64 {
        let whole = parts.iter().map(|part| part.len() as u64).sum();
        let (mut at, mut sum) = (at, PayloadSum::new(key));
        for part in parts {
            self.write_payload_part(at, part, whole, &mut sum);
            at += part.len() as u64;
        }
        sum.finish().low
    }

    /// Waits until the payload that this thread wrote is visible to others. Call it before storing
    /// the descriptor that makes the payload findable. It does not wait for writes of other
    /// threads: each thread calls it before it hands over its part (docs/internals/format.md,
    /// assumptions about the fabric).
    #[track_caller]
    fn publish_payload(&self);

    /// Copies `part.len()` bytes from `at` (a multiple of 64) and adds exactly the copied bytes to
    /// `sum`. `whole` is the length in bytes of the complete payload. Each part but the last must
    /// be a multiple of 64 bytes long. If the source changes during the copy, the checksum differs
    /// from the writer's.
    #[track_caller]
    fn read_payload_part(&self, at: u64, part: &mut [u8], whole: u64, sum: &mut PayloadSum);

    /// Copies from `at` on into `parts` in sequence, as [`Fabric::read_payload_part`] does. Returns
    /// the checksum of the copied bytes under `key`.
    #[track_caller]
    fn read_payload(&self, at: u64, parts: &mut [&mut [u8]], key: u64) -> u64 {
        let whole = parts.iter().map(|part| part.len() as u64).sum();
        let (mut at, mut sum) = (at, PayloadSum::new(key));
        for part in parts {
            self.read_payload_part(at, part, whole, &mut sum);
            at += part.len() as u64;
        }
        sum.finish().low
    }

    /// Drops stale cached copies of these `len` bytes of payload and waits. Needed once per
    /// generation of a block and host. Does nothing where caches are coherent.
    #[track_caller]
    fn refresh_payload(&self, at: u64, len: u64);

    /// Adds `len` bytes from `at` (a multiple of 64) to `sum`, without copying them anywhere.
    #[track_caller]
    fn absorb_payload(&self, at: u64, len: u64, sum: &mut PayloadSum);

    /// Checksum under `key` of `len` bytes from `at` (a multiple of 64), without copying them.
    #[track_caller]
    fn checksum_payload(&self, at: u64, len: u64, key: u64) -> u64 {
        let mut sum = PayloadSum::new(key);
        self.absorb_payload(at, len, &mut sum);
        sum.finish().low
    }

    /// Copies `bytes` bytes from each of `starts`, of any alignment, into `to`, one after the
    /// other and without a checksum. `to` has the size of all rows. If a row changes meanwhile, its
    /// copy is some mix of old and new bytes.
    #[track_caller]
    fn copy_rows(&self, starts: &[u64], bytes: usize, to: &mut [u8]) {
        self.copy_rows_at(starts.len(), |row| starts[row], bytes, to);
    }

    /// As [`Fabric::copy_rows`], for `count` rows that begin where `start_of` says.
    #[track_caller]
    fn copy_rows_at(&self, count: usize, start_of: impl Fn(usize) -> u64, bytes: usize, to: &mut [u8]) {
        assert_eq!(to.len(), count * bytes, "the buffer does not have the size of {count} rows");
        for (row, to) in to.chunks_exact_mut(bytes.max(1)).enumerate() {
            let (start, mut copied) = (start_of(row), 0);
            while copied < bytes {
                let at = start + copied as u64;
                let line = self.load_line(at / LINE * LINE).map(u64::to_le_bytes);
                let part = &line.as_flattened()[(at % LINE) as usize..];
                let part = &part[..part.len().min(bytes - copied)];
                to[copied..copied + part.len()].copy_from_slice(part);
                copied += part.len();
            }
        }
    }

    /// The instruction that moves lines to and from the device.
    fn flush(&self) -> Flush;

    /// The region's file or device; `None` for anonymous memory.
    fn region_file(&self) -> Option<RegionFile> {
        None
    }

    /// Whether all of the region's memory still exists:
    /// [`Mapping::still_whole`](crate::Mapping::still_whole).
    fn still_whole(&self) -> bool {
        true
    }

    /// Whether an access has found memory missing:
    /// [`Mapping::has_read_lost`](crate::Mapping::has_read_lost).
    fn has_read_lost(&self) -> bool {
        false
    }
}

impl<F: Fabric> Fabric for Arc<F> {
    fn len(&self) -> u64 {
        (**self).len()
    }
    #[inline]
    fn load(&self, at: Offset<u64>) -> u64 {
        (**self).load(at)
    }
    #[inline]
    fn store(&self, at: Offset<u64>, value: u64) {
        (**self).store(at, value);
    }
    #[inline]
    fn load_line(&self, at: u64) -> [u64; 8] {
        (**self).load_line(at)
    }
    #[inline]
    fn store_line(&self, at: u64, words: &[u64; 8]) {
        (**self).store_line(at, words);
    }
    #[inline]
    fn publish(&self, lines: &[u64]) {
        (**self).publish(lines);
    }
    fn write_line(&self, at: u64, words: &[u64; 8]) {
        (**self).write_line(at, words);
    }
    fn write_word(&self, at: Offset<u64>, value: u64) {
        (**self).write_word(at, value);
    }
    fn fence(&self) {
        (**self).fence();
    }
    #[inline]
    fn publish_unfenced(&self, line: u64) {
        (**self).publish_unfenced(line);
    }
    #[track_caller]
    fn refresh_unfenced(&self, line: u64) {
        (**self).refresh_unfenced(line);
    }
    #[inline]
    fn refresh(&self, lines: &[u64]) {
        (**self).refresh(lines);
    }
    #[inline]
    fn prefetch(&self, at: u64) {
        (**self).prefetch(at);
    }
    fn write_payload_part(&self, at: u64, part: &[u8], whole: u64, sum: &mut PayloadSum) {
        (**self).write_payload_part(at, part, whole, sum);
    }
    fn write_payload(&self, at: u64, parts: &[&[u8]], key: u64) -> u64 {
        (**self).write_payload(at, parts, key)
    }
    fn publish_payload(&self) {
        (**self).publish_payload();
    }
    fn read_payload_part(&self, at: u64, part: &mut [u8], whole: u64, sum: &mut PayloadSum) {
        (**self).read_payload_part(at, part, whole, sum);
    }
    fn read_payload(&self, at: u64, parts: &mut [&mut [u8]], key: u64) -> u64 {
        (**self).read_payload(at, parts, key)
    }
    fn refresh_payload(&self, at: u64, len: u64) {
        (**self).refresh_payload(at, len);
    }
    fn absorb_payload(&self, at: u64, len: u64, sum: &mut PayloadSum) {
        (**self).absorb_payload(at, len, sum);
    }
    #[inline]
    fn copy_rows_at(&self, count: usize, start_of: impl Fn(usize) -> u64, bytes: usize, to: &mut [u8]) {
        (**self).copy_rows_at(count, start_of, bytes, to);
    }
    #[inline]
    fn flush(&self) -> Flush {
        (**self).flush()
    }
    fn region_file(&self) -> Option<RegionFile> {
        (**self).region_file()
    }
    fn still_whole(&self) -> bool {
        (**self).still_whole()
    }
    fn has_read_lost(&self) -> bool {
        (**self).has_read_lost()
    }
}
