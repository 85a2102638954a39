//! Blocks that are written and read piece by piece: an engine has one layer after the other, and need not keep them.

use crate::blocks::{Hit, Publish, ReadOutcome};
use crate::events::Names;
use crate::heap::Slot;
use crate::namespaces::Namespace;
use crate::pins::Pin;
use crate::pool::{Inner, Pool};
use crate::region::counters::Counter;
use crate::region::lines::{BlockState, Descriptor, checksum_key};
use crate::strays::Fill;
use cenote_base::{BlockHash, Generation};
use cenote_mem::checksum::PayloadSum;
use cenote_mem::{Fabric, HostArea, HostLocal};
use std::sync::Arc;

/// A block that is being written. Nobody finds it before [`Filling::publish`]; dropped before, it gives its memory back, and
/// so it does if its process dies.
pub struct Filling<F: Fabric, H: HostLocal = HostArea> {
    inner: Arc<Inner<F, H>>,
    hash: BlockHash,
    kind: u64,
    names: Names,
    slot: Slot,
    /// Of the host, when the slot was reserved.
    life: u64,
    generation: Generation,
    length: u64,
    written: u64,
    sum: PayloadSum,
    published: bool,
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Reserves memory for a block, block number `depth` of its sequence, that is then written piece by piece.
    ///
    /// # Errors
    /// What [`Pool::publish`] would have come to: it is there already, or there is no room.
    pub fn begin(&self, namespace: &Namespace, hash: BlockHash, depth: u32) -> Result<Filling<F, H>, Publish> {
        self.begin_named(namespace, hash, depth, Names::default())
    }

    /// As [`Pool::begin`], for a block that other programs know by names of their own, which followers are told.
    ///
    /// # Errors
    /// As [`Pool::begin`].
    pub fn begin_named(
        &self,
        namespace: &Namespace,
        hash: BlockHash,
        depth: u32,
        names: Names,
    ) -> Result<Filling<F, H>, Publish> {
        self.begin_filling(namespace, hash, depth, names, Fill::Copied)
    }

    /// As [`Pool::begin`], for a block that a device writes, or a program through memory that is mapped elsewhere.
    ///
    /// # Errors
    /// As [`Pool::begin`]; and there is no room in memory that is this host's alone. In chunks that were taken over from a
    /// host that was declared dead, its caches may still write. They take copies only, until that host has no worker of the
    /// time before and one of it has joined again.
    pub fn begin_in_place(&self, namespace: &Namespace, hash: BlockHash, depth: u32) -> Result<InPlace<F, H>, Publish> {
        self.begin_in_place_named(namespace, hash, depth, Names::default())
    }

    /// As [`Pool::begin_in_place`], for a block that other programs know by names of their own, which followers are told.
    ///
    /// # Errors
    /// As [`Pool::begin_in_place`].
    pub fn begin_in_place_named(
        &self,
        namespace: &Namespace,
        hash: BlockHash,
        depth: u32,
        names: Names,
    ) -> Result<InPlace<F, H>, Publish> {
        self.begin_filling(namespace, hash, depth, names, Fill::InPlace).map(InPlace)
    }

    fn begin_filling(
        &self,
        namespace: &Namespace,
        hash: BlockHash,
        depth: u32,
        names: Names,
        fill: Fill,
    ) -> Result<Filling<F, H>, Publish> {
        let inner = Arc::clone(&self.0);
        // Before the reservation, which a later life may not keep.
        let life = inner.incarnation();
        let slot = inner.reserve_for(namespace, hash, namespace.slot_bytes(), fill)?;
        let generation = inner.next_generation(slot.block);
        let kind = Descriptor::pack_kind(namespace.id.0, 0, inner.slot() as u16, depth);
        let sum = PayloadSum::new(checksum_key(hash, generation));
        let length = namespace.block_bytes;
        Ok(Filling { inner, hash, kind, names, slot, life, generation, length, written: 0, sum, published: false })
    }
}

impl<F: Fabric, H: HostLocal> Filling<F, H> {
    /// Writes the next piece. Another thread may write the one after it, or publish the block.
    ///
    /// # Panics
    /// The piece is longer than what is missing, or one before it was not of whole lines (64 bytes): bugs of the caller.
    pub fn append(&mut self, piece: &[u8]) {
        let missing = self.missing();
        assert!(piece.len() as u64 <= missing, "{} bytes, where {missing} are missing", piece.len());
        if self.inner.area.is_inherited() {
            self.written += piece.len() as u64;
            return;
        }
        let at = self.extent().0 + self.written;
        self.inner.fabric.write_payload_part(at, piece, self.length, &mut self.sum);
        // A fence completes only what its own thread has flushed, and the publisher may be another thread.
        self.inner.fabric.publish_payload();
        self.written += piece.len() as u64;
    }

    /// Bytes that are not written yet.
    #[must_use]
    pub const fn missing(&self) -> u64 {
        self.length - self.written
    }

    fn extent(&self) -> (u64, u64) {
        (self.inner.layout.payload(self.slot.block, self.slot.bytes), self.length)
    }

    /// Makes the block findable.
    ///
    /// # Panics
    /// Pieces are missing: a bug of the caller.
    pub fn publish(mut self) -> Publish {
        assert_eq!(self.missing(), 0, "bytes of the block are missing");
        if self.inner.area.is_inherited() {
            return Publish::NoRoom;
        }
        let sum = std::mem::replace(&mut self.sum, PayloadSum::new(0));
        self.describe(sum.finish())
    }

    fn describe(mut self, checksum: u64) -> Publish {
        // Only bytes that were summed in the life that wrote them are vouched for. If the slot is taken over after this
        // look, what is then in it does not have this sum. (docs/format.md#publish)
        if !self.inner.still_reserved(self.slot.block, self.life) {
            self.inner.counters().add(Counter::NoRoom, 1);
            return Publish::NoRoom;
        }
        let block = self.slot.block;
        let state = BlockState::Ready;
        let (kind, names, generation) = (self.kind, self.names, self.generation);
        self.inner.describe_block(block, self.extent(), self.hash, state, kind, names, generation, checksum);
        self.published = true;
        self.inner.enter_new(block, self.hash, self.length)
    }
}

impl<F: Fabric, H: HostLocal> Drop for Filling<F, H> {
    fn drop(&mut self) {
        if !self.published {
            self.inner.unreserve_in(self.slot.block, self.life);
        }
    }
}

/// A block that is written in place, as [`Filling`] in all else.
pub struct InPlace<F: Fabric, H: HostLocal = HostArea>(Filling<F, H>);

impl<F: Fabric, H: HostLocal> InPlace<F, H> {
    /// Offset and length in bytes of the payload in the region.
    #[must_use]
    pub fn extent(&self) -> (u64, u64) {
        self.0.extent()
    }

    /// Makes the block findable, after its payload was read once more for its checksum. The writes must happen before this
    /// call.
    ///
    /// If this host was declared dead since [`Pool::begin_in_place`], another host may have taken the slot over, and the
    /// bytes in it may be another block's: nothing is published.
    pub fn publish(self) -> Publish {
        let Self(filling) = self;
        if filling.inner.area.is_inherited() {
            return Publish::NoRoom;
        }
        let (offset, length) = filling.extent();
        // What went through this processor's caches is not on the device yet.
        filling.inner.fabric.refresh_payload(offset, length);
        let sum = filling.inner.fabric.checksum_payload(offset, length, checksum_key(filling.hash, filling.generation));
        filling.describe(sum)
    }
}

/// A pinned block that is being read piece by piece. What was read may be used only if [`Reading::finish`] says so.
pub struct Reading<F: Fabric, H: HostLocal = HostArea> {
    pin: Pin<F, H>,
    read: u64,
    sum: PayloadSum,
}

impl<F: Fabric, H: HostLocal> Pin<F, H> {
    /// Begins to read the block. It stays pinned until that is done.
    #[must_use]
    pub fn read(self) -> Reading<F, H> {
        let hit = self.hit();
        let sum = PayloadSum::new(checksum_key(hit.hash, hit.generation));
        Reading { pin: self, read: 0, sum }
    }

    /// Whether the payload is as it was published, by reading it in place. A device that has copied it by itself under this
    /// pin has copied just these bytes: a pinned slot is not written, and the checksum's key has the generation in it, so
    /// what another use of the slot has written does not hold.
    #[must_use]
    pub fn verify(&self) -> ReadOutcome {
        if self.inner.area.is_inherited() {
            return ReadOutcome::Stale;
        }
        self.inner.count_read(self.hit(), self.inner.verify(self.hit()))
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// Counts what a read of a pinned block came to.
    fn count_read(&self, hit: &Hit, whole: bool) -> ReadOutcome {
        if whole {
            self.counters().add(Counter::Reads, 1);
            self.counters().add(Counter::ReadBytes, hit.length);
            return ReadOutcome::Whole;
        }
        self.forget_seen(hit.block);
        self.counters().add(Counter::ReadsDamaged, 1);
        self.discard_damaged(hit);
        ReadOutcome::Damaged
    }
}

impl<F: Fabric, H: HostLocal> Reading<F, H> {
    /// Copies the next piece out.
    ///
    /// # Panics
    /// The piece is longer than what is left, or one before it was not of whole lines (64 bytes): bugs of the caller.
    pub fn copy(&mut self, piece: &mut [u8]) {
        let (offset, length) = self.pin.extent();
        let left = length - self.read;
        assert!(piece.len() as u64 <= left, "{} bytes, where {left} are left", piece.len());
        self.pin.inner.fabric.read_payload_part(offset + self.read, piece, length, &mut self.sum);
        self.read += piece.len() as u64;
    }

    /// Whether all that was copied is as it was published. A block that was not read to its end is not whole.
    #[must_use]
    pub fn finish(self) -> ReadOutcome {
        if self.pin.inner.area.is_inherited() {
            return ReadOutcome::Stale;
        }
        let (_, length) = self.pin.extent();
        let whole = self.read == length && self.sum.finish() == self.pin.hit().checksum;
        self.pin.inner.count_read(self.pin.hit(), whole)
    }
}
