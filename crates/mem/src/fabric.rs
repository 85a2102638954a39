//! The [`Fabric`] trait: how code touches a region, whatever stands between the hosts.
//!
//! Code above is written for the weakest fabric: memory without coherence between hosts, where another
//! host sees a line only after its writer published it and the reader refreshed it. On a coherent machine
//! the same calls cost a fence. The methods tell their callers' places (`#[track_caller]`), so that a model of
//! private caches can leave out the flush of one place and see whether anybody notices.
//!
//! [`Coherent`] is memory of one host, [`Flushed`] memory that several hosts share without coherence, and
//! [`Mapped`] either of them for programs that learn which when they open a region, [`ReadOnly`] either of them for
//! programs that only look.

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

use crate::checksum::PayloadSum;
use crate::offset::Offset;
use crate::region::RegionFile;
use std::sync::Arc;

/// Access to one region. Offsets are bytes from its start.
///
/// Control structures are words and 64-byte lines; payload is everything else (KV blocks, tables).
/// Offsets that are misaligned or out of bounds are a bug of the caller and panic; who reads an offset
/// out of a region checks it before it comes here.
pub trait Fabric: Send + Sync + 'static {
    /// Bytes of the region; a multiple of 64.
    fn len(&self) -> u64;

    /// Whether there is nothing to touch. Never so: a region has at least one page.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Loads one word atomically. `at` is a multiple of 8.
    #[track_caller]
    fn load(&self, at: Offset<u64>) -> u64;

    /// Stores one word atomically. `at` is a multiple of 8.
    #[track_caller]
    fn store(&self, at: Offset<u64>, value: u64);

    /// Loads the eight words of the line at `at`, a multiple of 64, word 0 first. Each word is whole,
    /// but they may come from different writes of the line.
    #[track_caller]
    fn load_line(&self, at: u64) -> [u64; 8];

    /// Stores the eight words of the line at `at`, a multiple of 64. Word 0 is stored last, so on one
    /// host whoever loads the new word 0 also finds the other seven.
    #[track_caller]
    fn store_line(&self, at: u64, words: &[u64; 8]);

    /// Flushes these lines and waits: from here on the other hosts can see what was stored in them.
    #[track_caller]
    fn publish(&self, lines: &[u64]);

    /// Stores all eight words of the line at `at`, a multiple of 64, for others to see after the next
    /// [`Fabric::fence`], or sooner. The words arrive in any order, on this host too, so the line carries a check word
    /// or each word stands alone.
    ///
    /// This and the calls below are for lines that another host may write next. Where the processor can store
    /// around its cache they never leave the line dirty in it: a process that dies in the middle must leave
    /// nothing that could be written back later, over what the other host wrote.
    #[track_caller]
    fn write_line(&self, at: u64, words: &[u64; 8]);

    /// As [`Fabric::write_line`] for one word. `at` is a multiple of 8.
    #[track_caller]
    fn write_word(&self, at: Offset<u64>, value: u64);

    /// Waits until others can see what this thread wrote and flushed. [`Fabric::publish`] and [`Fabric::refresh`] do as
    /// much.
    #[track_caller]
    fn fence(&self);

    /// Writes a line and waits.
    #[track_caller]
    fn publish_line(&self, at: u64, words: &[u64; 8]) {
        self.write_line(at, words);
        self.fence();
    }

    /// Writes several lines and waits once.
    #[track_caller]
    fn publish_lines(&self, lines: &[(u64, [u64; 8])]) {
        // A loop, because a closure would be the place that a panic names.
        for (at, words) in lines {
            self.write_line(*at, words);
        }
        self.fence();
    }

    /// Writes a word and waits.
    #[track_caller]
    fn publish_word(&self, at: Offset<u64>, value: u64) {
        self.write_word(at, value);
        self.fence();
    }

    /// Starts flushing one line and does not wait. For stores that others may see late without harm:
    /// unpinning, unlocking.
    #[track_caller]
    fn publish_unfenced(&self, line: u64);

    /// Drops cached copies of these lines and waits: later loads see values as of now or newer.
    #[track_caller]
    fn refresh(&self, lines: &[u64]);

    /// Starts dropping the cached copy of one line and does not wait: the loads that follow may still find it, later ones
    /// do not. For looks that are repeated.
    #[track_caller]
    fn refresh_unfenced(&self, line: u64) {
        self.refresh(&[line]);
    }

    /// Asks for the line at `at`, a multiple of 64, which will be loaded soon. Waits for nothing, and what is loaded
    /// is the same without it.
    #[track_caller]
    fn prefetch(&self, _at: u64) {}

    /// Writes `part` from `at` (a multiple of 64) on and adds it to `sum`; `whole` is how long the payload is of which
    /// this is a part. Each part but the last must be a multiple of 64 bytes long. Visible to others after
    /// [`Fabric::publish_payload`].
    #[track_caller]
    fn write_payload_part(&self, at: u64, part: &[u8], whole: u64, sum: &mut PayloadSum);

    /// Writes `parts` one after the other from `at` on, as [`Fabric::write_payload_part`] does, and returns the checksum
    /// of their concatenation under `key` (see [`crate::checksum`]).
    #[track_caller]
    fn write_payload(&self, at: u64, parts: &[&[u8]], key: u64) -> u64 {
        let whole = parts.iter().map(|part| part.len() as u64).sum();
        let (mut at, mut sum) = (at, PayloadSum::new(key));
        for part in parts {
            self.write_payload_part(at, part, whole, &mut sum);
            at += part.len() as u64;
        }
        sum.finish()
    }

    /// Waits until the payload that this thread wrote is visible to others. The descriptor that makes
    /// the payload findable is stored after this. It does not wait for what other threads wrote: each
    /// thread calls this before it hands its part over (docs/internals/format.md, assumptions about
    /// the fabric).
    #[track_caller]
    fn publish_payload(&self);

    /// Copies from `at` (a multiple of 64) on into `part` and adds exactly the bytes that were copied to `sum`; `whole` is
    /// how long the payload is of which this is a part. Each part but the last must be a multiple of 64 bytes long.
    /// The source may change meanwhile; then the checksum differs from the writer's.
    #[track_caller]
    fn read_payload_part(&self, at: u64, part: &mut [u8], whole: u64, sum: &mut PayloadSum);

    /// Copies from `at` on into `parts` one after the other, as [`Fabric::read_payload_part`] does, and returns the
    /// checksum of what was copied.
    #[track_caller]
    fn read_payload(&self, at: u64, parts: &mut [&mut [u8]], key: u64) -> u64 {
        let whole = parts.iter().map(|part| part.len() as u64).sum();
        let (mut at, mut sum) = (at, PayloadSum::new(key));
        for part in parts {
            self.read_payload_part(at, part, whole, &mut sum);
            at += part.len() as u64;
        }
        sum.finish()
    }

    /// Drops stale cached copies of these `len` bytes of payload and waits. Needed once per generation
    /// of a block and host; nothing to do where caches are coherent.
    #[track_caller]
    fn refresh_payload(&self, at: u64, len: u64);

    /// The checksum of `len` bytes from `at` (a multiple of 64) on, without copying them.
    #[track_caller]
    fn checksum_payload(&self, at: u64, len: u64, key: u64) -> u64;

    /// How lines reach other hosts, and come from them.
    fn flush(&self) -> Flush;

    /// The file or device that the region is, where it is one.
    fn region_file(&self) -> Option<RegionFile> {
        None
    }

    /// Whether all of the region is still there: [`Mapping::still_whole`](crate::Mapping::still_whole).
    fn still_whole(&self) -> bool {
        true
    }
}

impl<F: Fabric + ?Sized> Fabric for Arc<F> {
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
    fn checksum_payload(&self, at: u64, len: u64, key: u64) -> u64 {
        (**self).checksum_payload(at, len, key)
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
}
