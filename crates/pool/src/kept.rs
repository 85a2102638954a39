//! Blocks that only their worker knows: an engine's swap space. They have a slot like any block and no descriptor and no index
//! entry, so nobody finds them and eviction does not see them. They are reservations: what a worker kept is given back when it dies.

use crate::blocks::{Publish, ReadOutcome};
use crate::heap::Slot;
use crate::namespaces::Namespace;
use crate::pool::{Inner, Pool};
use crate::region::counters::Counter;
use crate::strays::Fill;
use cenote_base::fault;
use cenote_mem::{Fabric, HostArea, HostLocal};
use std::sync::Arc;

/// A block of this worker's own. Dropping it gives its memory back.
pub struct Kept<F: Fabric, H: HostLocal = HostArea> {
    inner: Arc<Inner<F, H>>,
    slot: Slot,
    length: u64,
    key: u64,
    /// Of what was written. It stays in this process, so nothing in the region can vouch for other bytes.
    checksum: u64,
    /// Of the host, when it was written.
    life: u64,
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Copies a block of this namespace's size into the region, for this worker alone. Published blocks may have to leave for it,
    /// and it counts towards the namespace's quota.
    ///
    /// # Errors
    /// There is no room, or the namespace has its quota.
    ///
    /// # Panics
    /// The parts do not make up a block of this namespace: a bug of the caller.
    pub fn keep(&self, namespace: &Namespace, parts: &[&[u8]]) -> Result<Kept<F, H>, Publish> {
        let length: u64 = parts.iter().map(|part| part.len() as u64).sum();
        assert_eq!(length, namespace.block_bytes, "a block of this namespace has another size");
        let inner = Arc::clone(&self.0);
        let slot = inner.reserve_slot(namespace, namespace.slot_bytes(), Fill::Copied)?;
        fault::point("keep.reserved");
        let offset = inner.layout.payload(slot.block, slot.bytes);
        let key = inner.salt ^ offset ^ inner.next_generation(slot.block).0.rotate_left(32);
        let checksum = inner.fabric.write_payload(offset, parts, key);
        // Whoever reads it back may be another thread.
        inner.fabric.publish_payload();
        fault::point("keep.written");
        let life = inner.incarnation();
        Ok(Kept { inner, slot, length, key, checksum, life })
    }
}

impl<F: Fabric, H: HostLocal> Kept<F, H> {
    /// Copies it back, into parts that are together as long as it is, and tells whether it is whole. It may not be: this host may
    /// have been declared dead meanwhile and its space given away, or the memory may be bad.
    ///
    /// # Panics
    /// The parts have another length: a bug of the caller.
    #[must_use]
    pub fn read(&self, parts: &mut [&mut [u8]]) -> ReadOutcome {
        let wanted: u64 = parts.iter().map(|part| part.len() as u64).sum();
        assert_eq!(wanted, self.length, "a kept block is read whole");
        let offset = self.inner.layout.payload(self.slot.block, self.slot.bytes);
        if self.inner.area.is_inherited() {
            return ReadOutcome::Stale;
        }
        if self.inner.fabric.read_payload(offset, parts, self.key) == self.checksum {
            return ReadOutcome::Whole;
        }
        self.inner.counters().add(Counter::ReadsDamaged, 1);
        ReadOutcome::Damaged
    }
}

impl<F: Fabric, H: HostLocal> Drop for Kept<F, H> {
    fn drop(&mut self) {
        self.inner.unreserve_in(self.slot.block, self.life);
    }
}
