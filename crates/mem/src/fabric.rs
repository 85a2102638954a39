//! The [`Fabric`] trait: how code touches a region, whatever stands between the hosts.
//!
//! Code above is written for the weakest fabric: memory without coherence between hosts, where another
//! host sees a line only after its writer published it and the reader refreshed it. On a coherent machine
//! the same calls cost a fence. The methods tell their callers' places (`#[track_caller]`), so that a model of
//! private caches can leave out the flush of one place and see whether anybody notices.

use crate::checksum::Checksummer;
use crate::offset::{LINE, Offset};
use crate::region::Mapping;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The instruction that moves a line between a cache and the device: chosen once per region, recorded in
/// its superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Flush {
    /// None: all who share the region share their caches too. One host.
    None = 0,
    /// x86 `clflush`: writes the line back and drops it, ordered with stores and other `clflush`.
    Clflush = 1,
    /// x86 `clflushopt`: the same, ordered by fences only.
    ClflushOpt = 2,
    /// x86 `clwb` to publish, which may keep the line, and `clflushopt` to refresh, which must not.
    Clwb = 3,
    /// Arm `dc civac`: clean and invalidate to the point of coherency, ordered by `dsb`.
    DcCivac = 4,
}

impl Flush {
    const ALL: [Self; 5] = [Self::None, Self::Clflush, Self::ClflushOpt, Self::Clwb, Self::DcCivac];

    /// Name on command lines and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Clflush => "clflush",
            Self::ClflushOpt => "clflushopt",
            Self::Clwb => "clwb",
            Self::DcCivac => "dc-civac",
        }
    }

    /// As a superblock records it; `None` for a number of another program.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|flush| *flush as u64 == number)
    }

    /// Whether caches are equal without help.
    #[must_use]
    pub const fn is_coherent(self) -> bool {
        matches!(self, Self::None)
    }
}

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

    /// Starts flushing one line and does not wait. For stores that others may see late without harm:
    /// unpinning, unlocking.
    #[track_caller]
    fn publish_unfenced(&self, line: u64);

    /// Drops cached copies of these lines and waits: later loads see values as of now or newer.
    #[track_caller]
    fn refresh(&self, lines: &[u64]);

    /// Writes `parts` one after the other from `at` (a multiple of 64) on, and returns the checksum of
    /// their concatenation under `key` (see [`crate::checksum`]). Each part but the last must be a
    /// multiple of 64 bytes long. Visible to others after [`Fabric::publish_payload`].
    #[track_caller]
    fn write_payload(&self, at: u64, parts: &[&[u8]], key: u64) -> u64;

    /// Waits until the payload that this thread wrote is visible to others. The descriptor that makes
    /// the payload findable is stored after this.
    #[track_caller]
    fn publish_payload(&self);

    /// Copies from `at` (a multiple of 64) on into `parts` one after the other, and returns the checksum
    /// of exactly the bytes that were copied. Each part but the last must be a multiple of 64 bytes long.
    /// The source may change meanwhile; then the checksum differs from the writer's.
    #[track_caller]
    fn read_payload(&self, at: u64, parts: &mut [&mut [u8]], key: u64) -> u64;

    /// Drops stale cached copies of these `len` bytes of payload and waits. Needed once per generation
    /// of a block and host; nothing to do where caches are coherent.
    #[track_caller]
    fn refresh_payload(&self, at: u64, len: u64);

    /// The checksum of `len` bytes from `at` (a multiple of 64) on, without copying them.
    #[track_caller]
    fn checksum_payload(&self, at: u64, len: u64, key: u64) -> u64;

    /// How lines reach other hosts, and come from them.
    fn flush(&self) -> Flush;
}

impl<F: Fabric + ?Sized> Fabric for Arc<F> {
    fn len(&self) -> u64 {
        (**self).len()
    }
    fn load(&self, at: Offset<u64>) -> u64 {
        (**self).load(at)
    }
    fn store(&self, at: Offset<u64>, value: u64) {
        (**self).store(at, value);
    }
    fn load_line(&self, at: u64) -> [u64; 8] {
        (**self).load_line(at)
    }
    fn store_line(&self, at: u64, words: &[u64; 8]) {
        (**self).store_line(at, words);
    }
    fn publish(&self, lines: &[u64]) {
        (**self).publish(lines);
    }
    fn publish_unfenced(&self, line: u64) {
        (**self).publish_unfenced(line);
    }
    fn refresh(&self, lines: &[u64]) {
        (**self).refresh(lines);
    }
    fn write_payload(&self, at: u64, parts: &[&[u8]], key: u64) -> u64 {
        (**self).write_payload(at, parts, key)
    }
    fn publish_payload(&self) {
        (**self).publish_payload();
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
    fn flush(&self) -> Flush {
        (**self).flush()
    }
}

/// The fabric of one host: the processor keeps all caches equal, so publishing and refreshing are
/// fences only.
#[derive(Debug)]
pub struct Coherent {
    mapping: Mapping,
}

/// Payloads from this size on are written around the cache: below it a reader on this host is likely to
/// come soon, and the write-combining buffers cost more than they save.
const STREAM_BYTES_MIN: u64 = 16 << 10;

impl Coherent {
    /// A fabric over `mapping`.
    #[must_use]
    pub const fn new(mapping: Mapping) -> Self {
        Self { mapping }
    }

    /// The memory beneath.
    #[must_use]
    pub const fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Plain `memcpy` of payload out of the region, to compare with. `at` is a multiple of 64.
    pub fn copy_plain_out(&self, at: u64, to: &mut [u8]) {
        let from = self.payload(at, to.len() as u64).cast_const();
        // SAFETY: `payload` checked the bounds; `to` is private memory outside of the mapping.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }

    /// Plain `memcpy` of payload into the region, to compare with. `at` is a multiple of 64.
    pub fn copy_plain_in(&self, at: u64, from: &[u8]) {
        let to = self.payload(at, from.len() as u64);
        // SAFETY: as in `copy_plain_out`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at.is_multiple_of(8), "word at {at:#x} is not aligned to 8 bytes");
        #[allow(clippy::cast_ptr_alignment, reason = "asserted above, and mappings are page aligned")]
        let address = self.address(at, 8).cast::<AtomicU64>();
        // SAFETY: `address` checked that the eight bytes lie inside the mapping, which `self` keeps alive
        // and which is mapped readable and writable; mappings are page aligned, so `at` decides the
        // alignment. Words of a region are touched by atomics only.
        unsafe { &*address }
    }

    fn line(&self, at: u64) -> [&AtomicU64; 8] {
        self.check_line(at);
        std::array::from_fn(|word| self.word(at + 8 * word as u64))
    }

    fn check_line(&self, at: u64) {
        assert!(at.is_multiple_of(LINE), "line at {at:#x} is not aligned to 64 bytes");
        let _ = self.address(at, LINE);
    }

    /// The address of `len` bytes from `at` on, all inside the mapping.
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

    fn payload(&self, at: u64, len: u64) -> *mut u8 {
        assert!(at.is_multiple_of(LINE), "payload at {at:#x} is not aligned to 64 bytes");
        self.address(at, len)
    }
}

fn total(lengths: impl Iterator<Item = usize>) -> u64 {
    lengths.fold(0_u64, |sum, len| sum.saturating_add(len as u64))
}

impl Fabric for Coherent {
    fn len(&self) -> u64 {
        self.mapping.len()
    }

    fn load(&self, at: Offset<u64>) -> u64 {
        self.word(at.raw()).load(Ordering::Acquire)
    }

    fn store(&self, at: Offset<u64>, value: u64) {
        self.word(at.raw()).store(value, Ordering::Release);
    }

    fn load_line(&self, at: u64) -> [u64; 8] {
        self.line(at).map(|word| word.load(Ordering::Acquire))
    }

    fn store_line(&self, at: u64, words: &[u64; 8]) {
        let line = self.line(at);
        for (word, value) in line.iter().zip(words).rev() {
            word.store(*value, Ordering::Release);
        }
    }

    fn publish(&self, lines: &[u64]) {
        lines.iter().for_each(|line| self.check_line(*line));
        fence(Ordering::SeqCst);
    }

    fn publish_unfenced(&self, line: u64) {
        self.check_line(line);
    }

    fn refresh(&self, lines: &[u64]) {
        lines.iter().for_each(|line| self.check_line(*line));
        fence(Ordering::SeqCst);
    }

    fn write_payload(&self, at: u64, parts: &[&[u8]], key: u64) -> u64 {
        let len = total(parts.iter().map(|part| part.len()));
        let mut to = self.payload(at, len);
        let mut sum = Checksummer::new(key);
        for part in parts {
            // SAFETY: `payload` checked that all parts together lie inside the mapping and start on a
            // line; parts before the last are whole lines (the checksummer asserts it), so each part
            // starts on a line too.
            unsafe {
                sum.copy_in(part, to, len >= STREAM_BYTES_MIN);
                to = to.add(part.len());
            }
        }
        sum.finish()
    }

    fn publish_payload(&self) {
        // Non-temporal stores are not ordered by a release store; only this fence drains them.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE is part of x86-64, and the instruction touches no memory of its own.
        #[allow(unused_unsafe)]
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
        fence(Ordering::SeqCst);
    }

    fn read_payload(&self, at: u64, parts: &mut [&mut [u8]], key: u64) -> u64 {
        let len = total(parts.iter().map(|part| part.len()));
        let mut from = self.payload(at, len).cast_const();
        let mut sum = Checksummer::new(key);
        for part in parts {
            // SAFETY: as in `write_payload`, for reading.
            unsafe {
                sum.copy_out(from, part);
                from = from.add(part.len());
            }
        }
        sum.finish()
    }

    fn refresh_payload(&self, at: u64, len: u64) {
        let _ = self.payload(at, len);
    }

    fn checksum_payload(&self, at: u64, len: u64, key: u64) -> u64 {
        let from = self.payload(at, len).cast_const();
        let mut sum = Checksummer::new(key);
        // SAFETY: `payload` checked that the bytes lie inside the mapping and start on a line.
        unsafe { sum.absorb_shared(from, len as usize) };
        sum.finish()
    }

    fn flush(&self) -> Flush {
        Flush::None
    }
}
