//! Publishing whole blocks, and repacking cold ones.

use super::Pool;
use crate::blocks::Label;
use crate::blocks::life::{Draft, Publish};
use crate::eviction::Refusal;
use crate::eviction::repack::{ColdBlock, Shorter, slot_for};
use crate::log::events::Names;
use crate::log::recorder::Event;
use crate::members::Member;
use crate::region::counters::Counter;
use crate::region::hit::Hit;
use crate::region::lines::{BlockState, Descriptor};
use crate::space::{Fill, Slot};
use crate::sync::{Guard, Heap, Holds};
use crate::tables::namespaces::Namespace;
use cenote_base::BlockHash;
use cenote_base::fault::{self, Point};
use cenote_mem::{Fabric, HostLocal, LINE};
use std::collections::BTreeSet;
use std::ops::Range;

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

/// A new block that wants a slot.
pub(super) struct Wish<'a> {
    pub new: &'a NewBlock<'a>,
    slot_bytes: u64,
    /// Its slot, or the outcome.
    pub slot: Result<Slot, Publish>,
}

impl<'a> Wish<'a> {
    /// For a block of the engine's pages.
    pub const fn of_pages(new: &'a NewBlock<'a>) -> Self {
        Self { new, slot_bytes: new.namespace.slot_bytes(), slot: Err(Publish::NoRoom) }
    }

    fn of_payload(new: &'a NewBlock<'a>, parts: &[&[u8]]) -> Self {
        let length = length_of(parts);
        new.assert_length(length);
        let whole = Self::of_pages(new);
        if new.encoding == 0 { whole } else { Self { slot_bytes: slot_for(length).min(whole.slot_bytes), ..whole } }
    }

    const fn is_duplicate(&self) -> bool {
        matches!(self.slot, Err(Publish::Duplicate))
    }

    fn outcome(&self) -> Publish {
        self.slot.map_or_else(|outcome| outcome, |_| Publish::Published)
    }
}

fn length_of(parts: &[&[u8]]) -> u64 {
    parts.iter().map(|part| part.len() as u64).sum()
}

/// Most blocks that share fences and locks.
pub(super) const TOGETHER_MAX: usize = 64;

/// Most bytes of payload that share fences and locks, unless one block has more. Copying them takes
/// a thousand times as long as a fence, and no reader finds the first block before the last is
/// copied.
const TOGETHER_BYTES: u64 = 8 << 20;

/// Divides the blocks of a call, by hash and length, into groups that share fences and locks. The
/// hashes of a group differ, so that a repeated hash meets the first block's outcome.
pub(super) fn groups(blocks: impl IntoIterator<Item = (BlockHash, u64)>) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let (mut hashes, mut bytes) = (BTreeSet::new(), 0);
    for (at, (hash, length)) in blocks.into_iter().enumerate() {
        bytes += length;
        match groups.last_mut() {
            Some(group) if group.len() < TOGETHER_MAX && bytes <= TOGETHER_BYTES && hashes.insert(hash) => {
                group.end = at + 1;
            }
            _ => {
                groups.push(at..at + 1);
                (hashes, bytes) = (BTreeSet::from([hash]), length);
            }
        }
    }
    groups
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Publishes a block. `parts`, one after the other, are its payload.
    ///
    /// # Panics
    /// The length of the payload does not suit the namespace and the encoding
    /// ([`NewBlock::encoding`]): a bug of the caller.
    pub fn publish(&self, new: &NewBlock<'_>, parts: &[&[u8]]) -> Publish {
        // Without the memory that several blocks need.
        let (member, mut one) = (&*self.0, [Wish::of_payload(new, parts)]);
        member.reserve_new(&mut one, Fill::Copied);
        let [Wish { slot, .. }] = one;
        slot.map_or_else(
            |outcome| outcome,
            |slot| {
                let mut outcome = Publish::NoRoom;
                let draft = member.blocks.copy_in(slot, &member.label(new), parts);
                member.enter_new(&[draft], |_, entered| outcome = entered);
                outcome
            },
        )
    }

    /// Publishes blocks with their payloads, as [`Pool::publish`] would one after the other.
    /// Returns one outcome per block; a block that is not published does not keep others from it.
    ///
    /// Neighbours share fences and locks, up to 64 blocks or 8 MiB of payload. Readers find them
    /// when the payloads of all of them are written. Their slots are reserved together, so none of
    /// them is evicted for another: if they do not fit, the later ones find no room.
    ///
    /// # Panics
    /// As [`Pool::publish`], before any block is published.
    pub fn publish_all(&self, blocks: &[(NewBlock<'_>, &[&[u8]])]) -> Vec<Publish> {
        let mut wishes: Vec<Wish<'_>> = blocks.iter().map(|(new, parts)| Wish::of_payload(new, parts)).collect();
        for group in groups(blocks.iter().map(|(new, parts)| (new.hash, length_of(parts)))) {
            let first = group.start;
            self.0.publish_together(&mut wishes[group], |at| blocks[first + at].1);
        }
        wishes.iter().map(Wish::outcome).collect()
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
            Ok(heap) if !member.region.is_plain() && member.tables.has_open(namespace) => {
                member.evictor.reserve_shorter(&heap, namespace.id.0, shorter)
            }
            _ => return 0,
        };
        fault::point(Point::RepackReserved);
        let drafted = left.iter().filter_map(|&(at, slot)| {
            let Shorter { of: ColdBlock { hit, names, depth, .. }, encoding, payload } = shorter[at];
            let new = NewBlock { namespace, hash: hit.hash, depth: *depth, encoding, names: *names };
            Some(Draft { at, ..member.blocks.copy_in(slot?, &member.label(&new), &[payload]) })
        });
        let drafts: Vec<Draft> = drafted.collect();
        member.blocks.describe(&drafts);
        let mut published = 0;
        let word = |draft: &Draft| Some(shorter[draft.at].of.word);
        member.blocks.enter(&drafts, word, |_, outcome| published += usize::from(outcome == Publish::Published));
        member.region.counters().add(Counter::Repacked, published as u64);
        member.region.counters().add(Counter::Evicted, (left.len() - published) as u64);
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

    /// Publishes a group of blocks. `parts` returns the payload of each.
    fn publish_together<'a>(&self, wishes: &mut [Wish<'_>], parts: impl Fn(usize) -> &'a [&'a [u8]]) {
        self.reserve_new(wishes, Fill::Copied);
        let copied = wishes.iter().enumerate().filter_map(|(at, wish)| {
            let slot = wish.slot.ok()?;
            Some(Draft { at, ..self.blocks.copy_in(slot, &self.label(wish.new), parts(at)) })
        });
        let drafts: Vec<Draft> = copied.collect();
        self.enter_new(&drafts, |at, outcome| {
            if outcome != Publish::Published {
                wishes[at].slot = Err(outcome);
            }
        });
    }

    /// Reserves slots for the blocks of which the pool has none of the same hash. In doubt, damaged
    /// ones leave the pool first.
    pub(super) fn reserve_new(&self, wishes: &mut [Wish<'_>], fill: Fill) {
        if self.is_out() {
            return;
        }
        let there = |wish: &mut Wish<'_>| wish.slot = Err(Publish::Duplicate);
        if let [one] = wishes {
            if self.blocks.touch_if_there(one.new.hash) {
                there(one);
            }
        } else {
            let hashes: Vec<BlockHash> = wishes.iter().map(|wish| wish.new.hash).collect();
            self.blocks.touch_those_there(&hashes, |at| there(&mut wishes[at]));
        }
        self.doubt_duplicates(wishes);
        let mut wanted = wishes.iter_mut().filter(|wish| !wish.is_duplicate()).peekable();
        if wanted.peek().is_none() {
            return;
        }
        self.renew_rows();
        let heap = self.blocks.lock_heap().map_err(|_| Refusal::NoRoom);
        let mut charged = BTreeSet::new();
        for wish in wanted {
            let Wish { new: NewBlock { namespace, .. }, slot_bytes, .. } = *wish;
            let reserve = |heap: &Guard<'_, Heap, F, H>| self.reserve_open(heap, namespace, slot_bytes, fill);
            let reserved = heap.as_ref().map_err(|refusal| *refusal).and_then(reserve);
            wish.slot = reserved.map_err(|refusal| self.refused(refusal, namespace, slot_bytes));
            charged.insert(namespace.id.0);
        }
        if let Ok(heap) = heap {
            // Once for all blocks. The fence before their descriptors makes it visible.
            charged.into_iter().for_each(|namespace| self.space.show_usage(&heap, namespace));
        }
        fault::point(Point::PublishReserved);
    }

    /// Counts duplicates, except those that are damaged: these leave the pool, and their wishes need
    /// slots.
    fn doubt_duplicates(&self, wishes: &mut [Wish<'_>]) {
        if !wishes.iter().any(Wish::is_duplicate) {
            return;
        }
        let hashes: Vec<BlockHash> = wishes.iter().map(|wish| wish.new.hash).collect();
        let mut there: Vec<bool> = wishes.iter().map(Wish::is_duplicate).collect();
        self.blocks.doubt_some(&hashes, &mut there);
        for (wish, there) in wishes.iter_mut().zip(there).filter(|(wish, _)| wish.is_duplicate()) {
            if there {
                self.region.counters().add(Counter::Duplicates, 1);
            } else {
                wish.slot = Err(Publish::NoRoom);
            }
        }
    }

    /// Reserves a slot that counts towards a namespace's quota.
    pub(super) fn reserve_charged(&self, namespace: &Namespace, slot_bytes: u64, fill: Fill) -> Result<Slot, Publish> {
        if self.is_out() {
            return Err(Publish::NoRoom);
        }
        self.renew_rows();
        let heap = self.blocks.lock_heap().map_err(|_| Refusal::NoRoom);
        let slot = heap.and_then(|heap| {
            let slot = self.reserve_open(&heap, namespace, slot_bytes, fill);
            self.space.show_usage(&heap, namespace.id.0);
            slot
        });
        slot.map_err(|refusal| self.refused(refusal, namespace, slot_bytes))
    }

    /// Reserves a slot for a namespace that this worker has open. Its row cannot be another's then.
    fn reserve_open(
        &self,
        heap: &Holds<Heap>,
        namespace: &Namespace,
        slot_bytes: u64,
        fill: Fill,
    ) -> Result<Slot, Refusal> {
        if !self.tables.has_open(namespace) {
            return Err(Refusal::NoRoom);
        }
        self.evictor.reserve_under(heap, slot_bytes, Some(namespace.id.0), fill)
    }

    /// After a new life of the host began: gives up rows that others reclaimed, and withdraws
    /// blocks that this worker published under them before it noticed.
    pub(super) fn renew_rows(&self) {
        for row in self.tables.renew_rows(self.locks.serving()) {
            self.evictor.forget(row as u16);
        }
    }

    /// Counts a refusal.
    fn refused(&self, refusal: Refusal, namespace: &Namespace, slot_bytes: u64) -> Publish {
        match refusal {
            Refusal::NoRoom => {
                self.region.counters().add(Counter::NoRoom, 1);
                Publish::NoRoom
            }
            Refusal::OverQuota => {
                self.region.counters().add(Counter::QuotaRefused, 1);
                self.log.record(Event::QuotaRefused, namespace.id.0.into(), slot_bytes);
                Publish::OverQuota
            }
        }
    }

    /// Makes blocks with payloads in their slots readable, leads the index to them, and counts
    /// the outcomes.
    pub(super) fn enter_new(&self, drafts: &[Draft], mut told: impl FnMut(usize, Publish)) {
        if drafts.is_empty() {
            return;
        }
        self.blocks.describe(drafts);
        let (mut published, mut bytes, mut duplicates) = (0, 0, 0);
        self.blocks.enter(
            drafts,
            |_| None,
            |draft, outcome| {
                match outcome {
                    Publish::Published => (published, bytes) = (published + 1, bytes + draft.length),
                    Publish::Duplicate => duplicates += 1,
                    Publish::NoRoom | Publish::OverQuota => {}
                }
                told(draft.at, outcome);
            },
        );
        let counters = self.region.counters();
        counters.add(Counter::Published, published);
        counters.add(Counter::PublishedBytes, bytes);
        if published < drafts.len() as u64 {
            counters.add(Counter::Duplicates, duplicates);
            counters.add(Counter::NoRoom, drafts.len() as u64 - published - duplicates);
        }
    }
}
