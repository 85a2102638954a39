//! Swap space of an engine: blocks that only their worker knows. Each has a slot, but no descriptor
//! and no index entry, so lookups and eviction do not see it. It is a reservation: recovery frees
//! it when its worker dies.

use super::Pool;
use super::parts::Part;
use crate::blocks::life::{Publish, ReadOutcome};
use crate::members::Member;
use crate::region::counters::Counter;
use crate::space::{Fill, Slot};
use crate::tables::namespaces::Namespace;
use cenote_base::fault::{self, Point};
use cenote_mem::{Fabric, HostArea, HostLocal, PayloadSum};
use std::sync::Arc;

/// A block of this worker alone. Dropping it frees its slot.
pub struct SwapSlot<F: Fabric, H: HostLocal = HostArea> {
    member: Arc<Member<F, H>>,
    slot: Slot,
    parts: Box<[Part]>,
    /// Life of the host when it was written.
    life: u64,
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Copies a block of this namespace's size into the region, for this worker alone. It may evict
    /// published blocks, and it counts towards the namespace's quota.
    ///
    /// # Errors
    /// There is no room, or the namespace has used its quota.
    ///
    /// # Panics
    /// The parts do not make up a block of this namespace, or one but the last is not of whole lines
    /// (64 bytes): bugs of the caller.
    pub fn swap_out(&self, namespace: &Namespace, parts: &[&[u8]]) -> Result<SwapSlot<F, H>, Publish> {
        let length: u64 = parts.iter().map(|part| part.len() as u64).sum();
        assert_eq!(length, namespace.block_bytes, "a block of this namespace has another size");
        let member = Arc::clone(&self.0);
        let slot = member.reserve_charged(namespace, namespace.slot_bytes(), Fill::Copied)?;
        fault::point(Point::SwapReserved);
        let offset = member.region.layout.payload(slot.block, slot.bytes);
        let generation = member.blocks.next_generation(slot.block).0;
        let mut at = 0;
        let parts = parts.iter().map(|part| {
            let guard = member.region.guard_own([offset, generation, at]);
            let mut sum = PayloadSum::writing(&guard);
            member.region.fabric.write_payload_part(offset + at, part, length, &mut sum);
            at += part.len() as u64;
            Part { at: at - part.len() as u64, length: part.len() as u64, guard, tag: sum.finish() }
        });
        let parts = parts.collect();
        // Another thread may read it back.
        member.region.fabric.publish_payload();
        fault::point(Point::SwapWritten);
        let life = member.region.incarnation();
        Ok(SwapSlot { member, slot, parts, life })
    }
}

impl<F: Fabric, H: HostLocal> SwapSlot<F, H> {
    /// Copies it back into parts of the same lengths, and checks it. It is damaged if this host was
    /// declared dead and the slot adopted, or if the memory is bad.
    ///
    /// # Panics
    /// The parts have other lengths: a bug of the caller.
    #[must_use]
    pub fn read(&self, parts: &mut [&mut [u8]]) -> ReadOutcome {
        assert_eq!(parts.len(), self.parts.len(), "a kept block is read whole");
        for (index, bytes) in parts.iter_mut().enumerate() {
            let outcome = self.read_part(index, bytes, false);
            if outcome != ReadOutcome::Whole {
                return outcome;
            }
        }
        ReadOutcome::Whole
    }

    /// Copies one part back, and checks it. Threads may read at the same time. `around`: around the
    /// caches, for a copy that is read so late that it would have left them.
    ///
    /// # Panics
    /// There is no such part, or it has another length: bugs of the caller.
    #[must_use]
    pub fn read_part(&self, index: usize, bytes: &mut [u8], around: bool) -> ReadOutcome {
        let region = &self.member.region;
        let outcome =
            self.parts[index].read(region, region.layout.payload(self.slot.block, self.slot.bytes), bytes, around);
        if outcome == ReadOutcome::Damaged {
            region.counters().add(Counter::ReadsDamaged, 1);
        }
        outcome
    }
}

impl<F: Fabric, H: HostLocal> Drop for SwapSlot<F, H> {
    fn drop(&mut self) {
        self.member.blocks.unreserve_in(self.slot.block, self.life);
    }
}
