//! Swap space of an engine: blocks that only their worker knows. Each has a slot, but no descriptor
//! and no index entry, so lookups and eviction do not see it. It is a reservation: recovery frees
//! it when its worker dies.

use super::Pool;
use crate::blocks::life::{Publish, ReadOutcome};
use crate::members::Member;
use crate::region::counters::Counter;
use crate::space::{Fill, Slot};
use crate::tables::namespaces::Namespace;
use cenote_base::fault::{self, Point};
use cenote_mem::{Fabric, HostArea, HostLocal};
use std::sync::Arc;

/// A block of this worker alone. Dropping it frees its slot.
pub struct SwapSlot<F: Fabric, H: HostLocal = HostArea> {
    member: Arc<Member<F, H>>,
    slot: Slot,
    length: u64,
    key: u64,
    /// Of the written bytes. It stays in this process, so nothing in the region can match other
    /// bytes.
    checksum: u64,
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
    /// The parts do not make up a block of this namespace: a bug of the caller.
    pub fn swap_out(&self, namespace: &Namespace, parts: &[&[u8]]) -> Result<SwapSlot<F, H>, Publish> {
        let length: u64 = parts.iter().map(|part| part.len() as u64).sum();
        assert_eq!(length, namespace.block_bytes, "a block of this namespace has another size");
        let member = Arc::clone(&self.0);
        let slot = member.reserve_charged(namespace, namespace.slot_bytes(), Fill::Copied)?;
        fault::point(Point::SwapReserved);
        let offset = member.region.layout.payload(slot.block, slot.bytes);
        let key = member.region.salt ^ offset ^ member.blocks.next_generation(slot.block).0.rotate_left(32);
        let checksum = member.region.fabric.write_payload(offset, parts, key);
        // Another thread may read it back.
        member.region.fabric.publish_payload();
        fault::point(Point::SwapWritten);
        let life = member.region.incarnation();
        Ok(SwapSlot { member, slot, length, key, checksum, life })
    }
}

impl<F: Fabric, H: HostLocal> SwapSlot<F, H> {
    /// Copies it back into parts of the same total length, and checks it. It is damaged if this
    /// host was declared dead and the slot adopted, or if the memory is bad.
    ///
    /// # Panics
    /// The parts have another length: a bug of the caller.
    #[must_use]
    pub fn read(&self, parts: &mut [&mut [u8]]) -> ReadOutcome {
        let wanted: u64 = parts.iter().map(|part| part.len() as u64).sum();
        assert_eq!(wanted, self.length, "a kept block is read whole");
        let offset = self.member.region.layout.payload(self.slot.block, self.slot.bytes);
        if self.member.region.area.is_inherited() {
            return ReadOutcome::Stale;
        }
        if self.member.region.fabric.read_payload(offset, parts, self.key) == self.checksum {
            return ReadOutcome::Whole;
        }
        self.member.region.counters().add(Counter::ReadsDamaged, 1);
        ReadOutcome::Damaged
    }
}

impl<F: Fabric, H: HostLocal> Drop for SwapSlot<F, H> {
    fn drop(&mut self) {
        self.member.blocks.unreserve_in(self.slot.block, self.life);
    }
}
