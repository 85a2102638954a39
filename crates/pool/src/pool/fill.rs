//! Blocks that are written piece by piece: an engine has one layer after the other and need not
//! keep them.

use super::Pool;
use super::publish::{NewBlock, TOGETHER_MAX, Wish, groups};
use crate::blocks::Label;
use crate::blocks::life::{Draft, Publish};
use crate::members::Member;
use crate::region::counters::Counter;
use crate::region::lines::checksum_key;
use crate::space::{Fill, Slot};
use cenote_base::Generation;
use cenote_base::seal::SealWord;
use cenote_mem::{Fabric, Guard, HostArea, HostLocal, PayloadSum, Tag};
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
    guard: Guard,
    seal: SealWord,
    sum: PayloadSum,
    published: bool,
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Reserves a slot for a block of the engine's pages, to be written piece by piece.
    ///
    /// # Errors
    /// What [`Pool::publish`] would return: the block is a duplicate, or there is no room.
    pub fn begin(&self, new: &NewBlock<'_>) -> Result<Filling<F, H>, Publish> {
        self.begin_all(std::slice::from_ref(new)).remove(0)
    }

    /// As [`Pool::begin`] for several blocks, which share locks. A repeated hash gets a slot of its
    /// own; the first one published stays.
    pub fn begin_all(&self, new: &[NewBlock<'_>]) -> Vec<Result<Filling<F, H>, Publish>> {
        self.begin_filling(new, Fill::Copied)
    }

    /// As [`Pool::begin`], for a block that a device writes, or a program through memory mapped
    /// elsewhere.
    ///
    /// # Errors
    /// As [`Pool::begin`]. There is also no room in chunks adopted from a dead host, because its
    /// caches may still write there: they take copies only, until that host has no worker of the
    /// time before and one of it has joined again. A [sealed](Pool::seal) region has no room for
    /// any: another writer could change the bytes before they are sealed.
    pub fn begin_in_place(&self, new: &NewBlock<'_>) -> Result<InPlace<F, H>, Publish> {
        self.begin_all_in_place(std::slice::from_ref(new)).remove(0)
    }

    /// As [`Pool::begin_in_place`] for several blocks, which share locks, as [`Pool::begin_all`].
    pub fn begin_all_in_place(&self, new: &[NewBlock<'_>]) -> Vec<Result<InPlace<F, H>, Publish>> {
        self.begin_filling(new, Fill::InPlace).into_iter().map(|filling| filling.map(InPlace)).collect()
    }

    fn begin_filling(&self, new: &[NewBlock<'_>], fill: Fill) -> Vec<Result<Filling<F, H>, Publish>> {
        assert!(new.iter().all(|new| new.encoding == 0), "an encoded block is published whole");
        if fill == Fill::InPlace && self.0.region.is_sealed() {
            self.0.region.counters().add(Counter::NoRoom, new.len() as u64);
            return new.iter().map(|_| Err(Publish::NoRoom)).collect();
        }
        // Before the reservation, which a later life may not keep.
        let life = self.0.region.incarnation();
        let mut wishes: Vec<Wish<'_>> = new.iter().map(Wish::of_pages).collect();
        wishes.chunks_mut(TOGETHER_MAX).for_each(|wishes| self.0.reserve_new(wishes, fill));
        let begun = |wish: Wish<'_>| {
            let (member, slot) = (Arc::clone(&self.0), wish.slot?);
            let generation = member.blocks.next_generation(slot.block);
            let (label, length) = (member.label(wish.new), wish.new.namespace.block_bytes);
            let (guard, seal) = member.region.guard_new(&label.facts(slot, generation, length));
            let sum = PayloadSum::writing(&guard);
            let written = 0;
            Ok(Filling { member, label, slot, life, generation, length, written, guard, seal, sum, published: false })
        };
        wishes.into_iter().map(begun).collect()
    }

    /// Publishes blocks of this pool, as [`Filling::publish`] does. They share fences and locks.
    /// Returns one outcome per block.
    ///
    /// # Panics
    /// Pieces are missing, or a block is of another pool: bugs of the caller.
    pub fn publish_filled(&self, fillings: Vec<Filling<F, H>>) -> Vec<Publish> {
        assert!(fillings.iter().all(|filling| filling.missing() == 0), "bytes of a block are missing");
        self.publish_summed(fillings, |filling| std::mem::replace(&mut filling.sum, PayloadSum::new(0)).finish())
    }

    /// Publishes blocks of this pool, as [`InPlace::publish`] does. They share fences and locks.
    /// Returns one outcome per block.
    ///
    /// # Panics
    /// A block is of another pool: a bug of the caller.
    pub fn publish_in_place(&self, fillings: Vec<InPlace<F, H>>) -> Vec<Publish> {
        let fillings = fillings.into_iter().map(|InPlace(filling)| filling).collect();
        self.publish_summed(fillings, |filling| filling.sum_in_place())
    }

    /// As [`Pool::publish_in_place`], for blocks that the device has summed under
    /// [`InPlace::checksum_key`]. The processor reads none of their bytes.
    ///
    /// # Panics
    /// As [`Pool::publish_in_place`].
    pub fn publish_with_sums(&self, fillings: Vec<(InPlace<F, H>, u64)>) -> Vec<Publish> {
        let (fillings, sums): (Vec<_>, Vec<_>) =
            fillings.into_iter().map(|(InPlace(filling), sum)| (filling, sum)).unzip();
        let mut sums = sums.into_iter();
        self.publish_summed(fillings, |filling| {
            let low = sums.next().expect("a sum for each block");
            let (offset, length) = filling.extent();
            filling.member.region.fabric.refresh_payload(offset, length);
            Tag { low, high: 0 }
        })
    }

    fn publish_summed(
        &self,
        mut fillings: Vec<Filling<F, H>>,
        mut sum: impl FnMut(&mut Filling<F, H>) -> Tag,
    ) -> Vec<Publish> {
        let member = &self.0;
        assert!(fillings.iter().all(|filling| Arc::ptr_eq(&filling.member, member)), "a block of another pool");
        let mut outcomes = vec![Publish::NoRoom; fillings.len()];
        if member.region.area.is_inherited() {
            return outcomes;
        }
        let lengths = fillings.iter().map(|filling| (filling.label.hash, filling.length));
        for group in groups(lengths) {
            let mut drafts = Vec::with_capacity(group.len());
            for at in group {
                let filling = &mut fillings[at];
                let tag = sum(filling);
                // The checksum must cover only bytes that were written and summed in one life. If
                // another host adopts the slot after this check, its bytes do not have this
                // checksum. (docs/internals/protocol.md#publish)
                if !member.space.still_reserved(filling.slot.block, filling.life) {
                    member.region.counters().add(Counter::NoRoom, 1);
                    continue;
                }
                filling.published = true;
                let Filling { slot, label, generation, length, seal, .. } = *filling;
                drafts.push(Draft { at, slot, label, generation, length, tag, seal });
            }
            member.enter_new(&drafts, |at, outcome| outcomes[at] = outcome);
        }
        outcomes
    }
}

impl<F: Fabric, H: HostLocal> Filling<F, H> {
    /// Writes the next piece. Another thread may write the one after it, or publish the block.
    ///
    /// # Panics
    /// The piece is longer than the rest, or an earlier piece was not of whole lines (64 bytes):
    /// bugs of the caller.
    pub fn append(&mut self, piece: &[u8]) {
        Self::append_all([(self, piece)]);
    }

    /// Writes the next piece of each block, as [`Filling::append`] does, and fences once.
    ///
    /// # Panics
    /// As [`Filling::append`].
    pub fn append_all<'a>(pieces: impl IntoIterator<Item = (&'a mut Self, &'a [u8])>)
    where
        F: 'a,
        H: 'a,
    {
        let mut fence_by = None;
        for (filling, piece) in pieces {
            let missing = filling.missing();
            assert!(piece.len() as u64 <= missing, "{} bytes, where {missing} are missing", piece.len());
            let region = &filling.member.region;
            if !region.area.is_inherited() {
                let at = filling.extent().0 + filling.written;
                region.fabric.write_payload_part(at, piece, filling.length, &mut filling.sum);
            }
            filling.written += piece.len() as u64;
            fence_by = Some(&filling.member);
        }
        // A fence completes only the flushes of its own thread, and another thread may publish.
        if let Some(member) = fence_by.filter(|member| !member.region.area.is_inherited()) {
            member.region.fabric.publish_payload();
        }
    }

    /// Bytes that are not written yet.
    #[must_use]
    pub const fn missing(&self) -> u64 {
        self.length - self.written
    }

    /// The tag of the bytes that the region has now.
    fn sum_in_place(&self) -> Tag {
        let (fabric, (offset, length)) = (&self.member.region.fabric, self.extent());
        // Bytes that went through this processor's caches are not on the device yet.
        fabric.refresh_payload(offset, length);
        let mut sum = PayloadSum::writing(&self.guard);
        fabric.absorb_payload(offset, length, &mut sum);
        sum.finish()
    }

    fn extent(&self) -> (u64, u64) {
        (self.member.region.layout.payload(self.slot.block, self.slot.bytes), self.length)
    }

    /// Publishes the block.
    ///
    /// # Panics
    /// Pieces are missing: a bug of the caller.
    pub fn publish(self) -> Publish {
        let pool = Pool(Arc::clone(&self.member));
        pool.publish_filled(vec![self]).remove(0)
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

    /// The key of the payload's checksum, for a device that sums it (`cenote_mem::checksum`).
    #[must_use]
    pub fn checksum_key(&self) -> u64 {
        checksum_key(self.0.label.hash, self.0.generation)
    }

    /// The block, for the processor to write.
    #[must_use]
    pub fn into_copied(self) -> Filling<F, H> {
        self.0
    }

    /// Reads the payload once more for its checksum, and publishes the block. The writes must
    /// happen before this call.
    ///
    /// Publishes nothing if this host was declared dead since [`Pool::begin_in_place`]: another
    /// host may have adopted the slot, and the bytes in it may be another block's.
    pub fn publish(self) -> Publish {
        let pool = Pool(Arc::clone(&self.0.member));
        pool.publish_in_place(vec![self]).remove(0)
    }
}
