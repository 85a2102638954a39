//! Parts of a payload that are read again and again, each checked by itself. The checksums stay in
//! this process, so nothing in the region can match other bytes.

use super::Pool;
use super::read::Pin;
use crate::blocks::life::ReadOutcome;
use crate::members::Member;
use crate::region::Region;
use crate::region::counters::Counter;
use crate::region::hit::Hit;
use cenote_mem::{Fabric, Guard, HostArea, HostLocal, PayloadSum, Tag};
use std::ops::Range;
use std::sync::Arc;

/// A part of a payload.
pub(super) struct Part {
    /// Offset in the payload, a multiple of 64, and length in bytes.
    pub at: u64,
    pub length: u64,
    pub guard: Guard,
    pub tag: Tag,
}

impl Part {
    /// Copies the part out of the payload at `payload`, and checks it. `around`: the copy does not
    /// displace other content of the caches.
    ///
    /// # Panics
    /// `bytes` has another length: a bug of the caller.
    pub fn read<F: Fabric, H: HostLocal>(
        &self,
        region: &Region<F, H>,
        payload: u64,
        bytes: &mut [u8],
        around: bool,
    ) -> ReadOutcome {
        assert_eq!(bytes.len() as u64, self.length, "a part is read whole");
        if region.area.is_inherited() {
            return ReadOutcome::Stale;
        }
        let mut sum = PayloadSum::reading(&self.guard);
        // The fabric copies a part of a long payload around the caches.
        let whole = if around { u64::MAX } else { self.length };
        region.fabric.read_payload_part(payload + self.at, bytes, whole, &mut sum);
        if sum.matches(&self.tag) { ReadOutcome::Whole } else { ReadOutcome::Damaged }
    }
}

/// Reads parts of a published block, from any thread.
///
/// The block is pinned if this worker had a pin left. Without one it may be evicted: then its parts
/// are misses, because the slot's next bytes have other checksums.
pub struct PartReader<F: Fabric, H: HostLocal = HostArea> {
    member: Arc<Member<F, H>>,
    hit: Hit,
    parts: Box<[Part]>,
    _pin: Option<Pin<F, H>>,
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Prepares to read parts of `hit`, of which the caller has read `payload`, the
    /// [whole](ReadOutcome::Whole) payload. Parts are ranges of it, and may overlap. `None`: the
    /// region is encrypted, so a payload is only read whole.
    ///
    /// # Panics
    /// A part begins within a line (64 bytes), or is not within the payload: bugs of the caller.
    #[must_use]
    pub fn part_reader(&self, hit: &Hit, payload: &[u8], parts: &[Range<usize>]) -> Option<PartReader<F, H>> {
        if self.0.region.is_encrypted() {
            return None;
        }
        let pin = self.pin(hit);
        let parts = parts.iter().map(|range| {
            assert!(range.start.is_multiple_of(64), "the part {range:?} begins within a line");
            let (at, bytes) = (range.start as u64, &payload[range.clone()]);
            let guard = self.0.region.guard_own([hit.offset, hit.generation.0, at]);
            let mut sum = PayloadSum::writing(&guard);
            sum.absorb(bytes);
            Part { at, length: bytes.len() as u64, guard, tag: sum.finish() }
        });
        Some(PartReader { member: Arc::clone(&self.0), hit: *hit, parts: parts.collect(), _pin: pin })
    }
}

impl<F: Fabric, H: HostLocal> PartReader<F, H> {
    /// Copies part `index` out, and checks it. `around`: around the caches, for a copy that is
    /// read so late that it would have left them.
    ///
    /// # Panics
    /// There is no such part, or it has another length: bugs of the caller.
    #[must_use]
    pub fn read(&self, index: usize, bytes: &mut [u8], around: bool) -> ReadOutcome {
        let region = &self.member.region;
        let outcome = self.parts[index].read(region, self.hit.offset, bytes, around);
        let counters = region.counters();
        match outcome {
            ReadOutcome::Whole => counters.add(Counter::ReadBytes, bytes.len() as u64),
            // Most likely the block was evicted.
            _ => counters.add(Counter::ReadsStale, 1),
        }
        outcome
    }
}
