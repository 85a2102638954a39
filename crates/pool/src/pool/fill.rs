//! Blocks that are written piece by piece: an engine has one layer after the other and need not
//! keep them.

use super::Pool;
use super::publish::NewBlock;
use crate::blocks::Label;
use crate::blocks::life::Publish;
use crate::members::Member;
use crate::region::counters::Counter;
use crate::region::lines::checksum_key;
use crate::space::{Fill, Slot};
use cenote_base::Generation;
use cenote_mem::checksum::PayloadSum;
use cenote_mem::{Fabric, HostArea, HostLocal};
use std::sync::Arc;

/// A block that is being written. Lookups do not find it before [`Filling::publish`]. Dropping it
/// earlier frees its slot, and so does recovery if its process dies.
pub struct Filling<F: Fabric, H: HostLocal = HostArea> {
    member: Arc<Member<F, H>>,
    label: Label,
    slot: Slot,
    /// Life of the host when the slot was reserved.
    life: u64,
    generation: Generation,
    length: u64,
    written: u64,
    sum: PayloadSum,
    published: bool,
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Reserves a slot for a block of the engine's pages, to be written piece by piece.
    ///
    /// # Errors
    /// What [`Pool::publish`] would return: the block is a duplicate, or there is no room.
    pub fn begin(&self, new: &NewBlock<'_>) -> Result<Filling<F, H>, Publish> {
        self.begin_filling(new, Fill::Copied)
    }

    /// As [`Pool::begin`], for a block that a device writes, or a program through memory mapped
    /// elsewhere.
    ///
    /// # Errors
    /// As [`Pool::begin`]. There is also no room in chunks adopted from a dead host, because its
    /// caches may still write there: they take copies only, until that host has no worker of the
    /// time before and one of it has joined again.
    pub fn begin_in_place(&self, new: &NewBlock<'_>) -> Result<InPlace<F, H>, Publish> {
        self.begin_filling(new, Fill::InPlace).map(InPlace)
    }

    fn begin_filling(&self, new: &NewBlock<'_>, fill: Fill) -> Result<Filling<F, H>, Publish> {
        assert_eq!(new.encoding, 0, "an encoded block is published whole");
        let member = Arc::clone(&self.0);
        // Before the reservation, which a later life may not keep.
        let life = member.region.incarnation();
        let slot = member.reserve_new(new, new.namespace.slot_bytes(), fill)?;
        let generation = member.blocks.next_generation(slot.block);
        let sum = PayloadSum::new(checksum_key(new.hash, generation));
        let (label, length) = (member.label(new), new.namespace.block_bytes);
        Ok(Filling { member, label, slot, life, generation, length, written: 0, sum, published: false })
    }
}

impl<F: Fabric, H: HostLocal> Filling<F, H> {
    /// Writes the next piece. Another thread may write the one after it, or publish the block.
    ///
    /// # Panics
    /// The piece is longer than the rest, or an earlier piece was not of whole lines (64 bytes):
    /// bugs of the caller.
    pub fn append(&mut self, piece: &[u8]) {
        let missing = self.missing();
        assert!(piece.len() as u64 <= missing, "{} bytes, where {missing} are missing", piece.len());
        let region = &self.member.region;
        if !region.area.is_inherited() {
            let at = self.extent().0 + self.written;
            region.fabric.write_payload_part(at, piece, self.length, &mut self.sum);
            // A fence completes only the flushes of its own thread, and another thread may publish.
            region.fabric.publish_payload();
        }
        self.written += piece.len() as u64;
    }

    /// Bytes that are not written yet.
    #[must_use]
    pub const fn missing(&self) -> u64 {
        self.length - self.written
    }

    fn extent(&self) -> (u64, u64) {
        (self.member.region.layout.payload(self.slot.block, self.slot.bytes), self.length)
    }

    /// Publishes the block.
    ///
    /// # Panics
    /// Pieces are missing: a bug of the caller.
    pub fn publish(mut self) -> Publish {
        assert_eq!(self.missing(), 0, "bytes of the block are missing");
        if self.member.region.area.is_inherited() {
            return Publish::NoRoom;
        }
        let sum = std::mem::replace(&mut self.sum, PayloadSum::new(0));
        self.describe(sum.finish())
    }

    fn describe(mut self, checksum: u64) -> Publish {
        let member = Arc::clone(&self.member);
        // The checksum must cover only bytes that were written and summed in one life. If another
        // host adopts the slot after this check, its bytes do not have this checksum.
        // (docs/internals/protocol.md#publish)
        if !member.space.still_reserved(self.slot.block, self.life) {
            member.region.counters().add(Counter::NoRoom, 1);
            return Publish::NoRoom;
        }
        member.blocks.describe(self.slot, &self.label, self.generation, self.length, checksum);
        self.published = true;
        member.enter_new(self.slot.block, self.label.hash, self.length)
    }
}

impl<F: Fabric, H: HostLocal> Drop for Filling<F, H> {
    fn drop(&mut self) {
        if !self.published {
            self.member.blocks.unreserve_in(self.slot.block, self.life);
        }
    }
}

/// A block that is written in place; otherwise as [`Filling`].
pub struct InPlace<F: Fabric, H: HostLocal = HostArea>(Filling<F, H>);

impl<F: Fabric, H: HostLocal> InPlace<F, H> {
    /// Offset and length in bytes of the payload in the region.
    #[must_use]
    pub fn extent(&self) -> (u64, u64) {
        self.0.extent()
    }

    /// Reads the payload once more for its checksum, and publishes the block. The writes must
    /// happen before this call.
    ///
    /// Publishes nothing if this host was declared dead since [`Pool::begin_in_place`]: another
    /// host may have adopted the slot, and the bytes in it may be another block's.
    pub fn publish(self) -> Publish {
        let Self(filling) = self;
        let region = &filling.member.region;
        if region.area.is_inherited() {
            return Publish::NoRoom;
        }
        let (offset, length) = filling.extent();
        // Bytes that went through this processor's caches are not on the device yet.
        region.fabric.refresh_payload(offset, length);
        let key = checksum_key(filling.label.hash, filling.generation);
        let sum = region.fabric.checksum_payload(offset, length, key);
        filling.describe(sum)
    }
}
