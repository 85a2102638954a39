//! Publishing whole blocks, and repacking cold ones.

use super::Pool;
use crate::blocks::Label;
use crate::blocks::life::Publish;
use crate::eviction::Refusal;
use crate::eviction::repack::{ColdBlock, Shorter, slot_for};
use crate::log::events::Names;
use crate::log::recorder::Event;
use crate::members::Member;
use crate::region::counters::Counter;
use crate::region::hit::Hit;
use crate::region::lines::{BlockState, Descriptor};
use crate::space::{Fill, Slot};
use crate::tables::namespaces::Namespace;
use cenote_base::fault::{self, Point};
use cenote_base::{BlockHash, BlockIndex};
use cenote_mem::{Fabric, HostLocal, LINE};

/// A block to be published.
#[derive(Clone, Copy)]
pub struct NewBlock<'a> {
    /// The model's namespace.
    pub namespace: &'a Namespace,
    /// Name of the content.
    pub hash: BlockHash,
    /// Number of the block in its sequence, from 0.
    pub depth: u32,
    /// 0: the payload is the engine's pages, of exactly the namespace's block size. Otherwise the
    /// caller's number of an encoding; the payload is shorter, in whole lines (64 bytes). The pool
    /// records it.
    pub encoding: u8,
    /// Names by which other programs know the block; event followers get them.
    pub names: Names,
}

impl<'a> NewBlock<'a> {
    /// A block of the engine's pages, without names.
    #[must_use]
    pub const fn new(namespace: &'a Namespace, hash: BlockHash, depth: u32) -> Self {
        Self { namespace, hash, depth, encoding: 0, names: Names { name: 0, parent: 0 } }
    }

    /// Panics unless a payload of so many bytes suits the namespace and the encoding.
    fn assert_length(&self, length: u64) {
        let block_bytes = self.namespace.block_bytes;
        if self.encoding == 0 {
            assert_eq!(length, block_bytes, "a block of this namespace has another size");
        } else {
            let fits = length > 0 && length.is_multiple_of(LINE) && length <= block_bytes;
            assert!(fits, "{length} bytes of encoding {} are no payload of this namespace", self.encoding);
        }
    }
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Publishes a block. `parts`, one after the other, are its payload.
    ///
    /// # Panics
    /// The length of the payload does not suit the namespace and the encoding
    /// ([`NewBlock::encoding`]): a bug of the caller.
    pub fn publish(&self, new: &NewBlock<'_>, parts: &[&[u8]]) -> Publish {
        let member = &*self.0;
        let length: u64 = parts.iter().map(|part| part.len() as u64).sum();
        new.assert_length(length);
        let whole = new.namespace.slot_bytes();
        let slot_bytes = if new.encoding == 0 { whole } else { slot_for(length).min(whole) };
        let slot = match member.reserve_new(new, slot_bytes, Fill::Copied) {
            Ok(slot) => slot,
            Err(outcome) => return outcome,
        };
        member.blocks.write(slot, &member.label(new), parts);
        member.enter_new(slot.block, new.hash, length)
    }

    /// Whether a payload of so many bytes could be published without eviction. A hint: other
    /// processes publish too.
    #[must_use]
    pub fn has_room(&self, namespace: &Namespace, length: u64) -> bool {
        let space = &self.0.space;
        space.has_free_slot(slot_for(length).min(namespace.slot_bytes())) || space.has_free_chunk()
    }

    /// Bytes of a chunk: the unit in which slots change their size.
    #[must_use]
    pub fn chunk_bytes(&self) -> u64 {
        self.0.region.layout.chunk_bytes
    }

    /// Blocks of this host's cold chunks, by chunk, the one that was idle longest first. Only
    /// chunks whose blocks are all of this namespace, not pinned, and accepted by `wanted`; at most
    /// `most` chunks.
    #[must_use]
    pub fn coldest(&self, namespace: &Namespace, most: usize, wanted: &dyn Fn(&Hit) -> bool) -> Vec<Vec<ColdBlock>> {
        self.0.evictor.coldest(namespace.id.0, most, wanted)
    }

    /// Publishes blocks of some chunks again in a shorter form, with their depth and age. Blocks
    /// that are pinned or have changed stay as they are; blocks that find no slot are evicted.
    /// Returns the number of blocks that became shorter.
    ///
    /// # Panics
    /// A payload is not of whole lines or longer than its block, or an encoding is 0: bugs of the
    /// caller.
    pub fn repack(&self, namespace: &Namespace, shorter: &[Shorter<'_>]) -> usize {
        let fits = |one: &Shorter<'_>| {
            let length = one.payload.len() as u64;
            length.is_multiple_of(LINE) && length <= one.of.hit.length && one.encoding != 0
        };
        assert!(shorter.iter().all(fits), "not payloads, or longer than what they replace");
        let member = &*self.0;
        let left = match member.blocks.lock_heap() {
            Ok(heap) if !member.region.is_plain() => member.evictor.reserve_shorter(&heap, namespace.id.0, shorter),
            _ => return 0,
        };
        fault::point(Point::RepackReserved);
        let (mut published, count) = (0, left.len());
        for (at, slot) in left {
            let (Shorter { of, encoding, payload }, Some(slot)) = (shorter[at], slot) else { continue };
            let ColdBlock { hit, names, depth, word } = *of;
            let new = NewBlock { namespace, hash: hit.hash, depth, encoding, names };
            member.blocks.write(slot, &member.label(&new), &[payload]);
            published += usize::from(member.blocks.enter(slot.block, hit.hash, Some(word)) == Publish::Published);
        }
        member.region.counters().add(Counter::Repacked, published as u64);
        member.region.counters().add(Counter::Evicted, (count - published) as u64);
        published
    }
}

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// The label of a new block of this worker.
    pub(super) fn label(&self, new: &NewBlock<'_>) -> Label {
        let slot = self.region.slot() as u16;
        let kind = Descriptor::pack_kind(new.namespace.id.0, new.encoding, slot, new.depth);
        Label { hash: new.hash, state: BlockState::Ready, kind, names: new.names }
    }

    /// Reserves a slot for a block, unless the pool has one of its hash.
    pub(super) fn reserve_new(&self, new: &NewBlock<'_>, slot_bytes: u64, fill: Fill) -> Result<Slot, Publish> {
        if self.is_out() {
            return Err(Publish::NoRoom);
        }
        if self.blocks.touch_if_there(new.hash) {
            self.region.counters().add(Counter::Duplicates, 1);
            return Err(Publish::Duplicate);
        }
        let slot = self.reserve_charged(new.namespace, slot_bytes, fill)?;
        fault::point(Point::PublishReserved);
        Ok(slot)
    }

    /// Reserves a slot that counts towards a namespace's quota.
    pub(super) fn reserve_charged(&self, namespace: &Namespace, slot_bytes: u64, fill: Fill) -> Result<Slot, Publish> {
        if self.is_out() {
            return Err(Publish::NoRoom);
        }
        self.evictor.reserve(slot_bytes, Some(namespace.id.0), fill).map_err(|refusal| match refusal {
            Refusal::NoRoom => {
                self.region.counters().add(Counter::NoRoom, 1);
                Publish::NoRoom
            }
            Refusal::OverQuota => {
                self.region.counters().add(Counter::QuotaRefused, 1);
                self.log.record(Event::QuotaRefused, namespace.id.0.into(), slot_bytes);
                Publish::OverQuota
            }
        })
    }

    /// Leads the index to a block that was just written, and counts the outcome.
    pub(super) fn enter_new(&self, block: BlockIndex, hash: BlockHash, length: u64) -> Publish {
        let outcome = self.blocks.enter(block, hash, None);
        let counters = self.region.counters();
        match outcome {
            Publish::Published => {
                counters.add(Counter::Published, 1);
                counters.add(Counter::PublishedBytes, length);
            }
            Publish::Duplicate => counters.add(Counter::Duplicates, 1),
            Publish::NoRoom | Publish::OverQuota => counters.add(Counter::NoRoom, 1),
        }
        outcome
    }
}
