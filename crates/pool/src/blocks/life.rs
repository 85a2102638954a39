//! The life of a block, in the order of this file (docs/internals/protocol.md#publish):
//!
//! 1. `crate::eviction` reserves a slot: private to this worker, invisible in the region.
//! 2. [`Blocks::copy_in`] copies and sums the payload; [`Blocks::describe`] fences and writes the
//!    descriptor.
//! 3. [`Blocks::enter`] leads the index to it.
//! 4. [`Blocks::lookup`] finds it by hash.
//! 5. [`Blocks::read`] copies it out, then checks descriptor and checksum.
//! 6. [`Blocks::retract`] marks it, fences, looks for pins, unlinks it and frees the slot.

use super::Blocks;
use crate::index::Inserted;
use crate::log::events::Names;
use crate::log::recorder::Event;
use crate::region::cause::Cause;
use crate::region::counters::Counter;
use crate::region::hit::Hit;
use crate::region::host_layout::{DRAINING, PUBLISHED};
use crate::region::lines::{BlockState, Descriptor};
use crate::region::seal::Facts;
use crate::space::Slot;
use crate::sync::{Heap, Holds, Timeout};
use cenote_base::fault::{self, Mistake, Point};
use cenote_base::seal::SealWord;
use cenote_base::{BlockHash, BlockIndex, Generation};
use cenote_mem::{Fabric, HostLocal, PayloadSum, Tag, Word};
use cenote_policy::EvictionPolicy;
use cenote_policy::sharing::is_due;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

/// Result of publishing a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publish {
    /// Lookups find the block now.
    Published,
    /// The pool had a block of this hash already.
    Duplicate,
    /// No slot could be freed, or a lock was busy for too long.
    NoRoom,
    /// The namespace has used its quota, and evicting this host's blocks of it would not suffice.
    OverQuota,
}

impl Publish {
    const fn of(inserted: Inserted) -> Self {
        match inserted {
            Inserted::New => Self::Published,
            Inserted::Duplicate => Self::Duplicate,
            Inserted::Full | Inserted::Busy => Self::NoRoom,
        }
    }
}

/// Result of a read. Only [`ReadOutcome::Whole`] leaves usable bytes in the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// Every byte is as it was published.
    Whole,
    /// The block was evicted or reused meanwhile: a miss.
    Stale,
    /// The bytes do not have the published checksum: a miss.
    Damaged,
}

/// What a descriptor says of a block besides its place and its bytes.
#[derive(Clone, Copy)]
pub(crate) struct Label {
    pub hash: BlockHash,
    pub state: BlockState,
    /// See [`Descriptor::pack_kind`].
    pub kind: u64,
    pub names: Names,
}

impl Label {
    /// What tells a payload of this label from all others.
    pub const fn facts(&self, slot: Slot, generation: Generation, length: u64) -> Facts {
        Facts { hash: self.hash, block: slot.block, generation, kind: self.kind, length }
    }
}

/// A block with its payload in its slot, before readers accept it.
#[derive(Clone, Copy)]
pub(crate) struct Draft {
    /// The caller's number.
    pub at: usize,
    pub slot: Slot,
    pub label: Label,
    pub generation: Generation,
    /// Bytes of the payload.
    pub length: u64,
    pub tag: Tag,
    pub seal: SealWord,
}

/// Write.
impl<F: Fabric, H: HostLocal> Blocks<F, H> {
    /// Writes payload and descriptor into a reserved slot. From then on a reader that has the
    /// block's number can read it. Returns its generation.
    pub fn write(&self, slot: Slot, label: &Label, parts: &[&[u8]]) -> Generation {
        let draft = self.copy_in(slot, label, parts);
        self.describe(&[draft]);
        draft.generation
    }

    /// Copies and sums a payload, without a fence.
    pub fn copy_in(&self, slot: Slot, label: &Label, parts: &[&[u8]]) -> Draft {
        let generation = self.next_generation(slot.block);
        let offset = self.region.layout.payload(slot.block, slot.bytes);
        let length: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let (guard, seal) = self.region.guard_new(&label.facts(slot, generation, length));
        let (mut at, mut sum) = (offset, PayloadSum::writing(&guard));
        for part in parts {
            self.region.fabric.write_payload_part(at, part, length, &mut sum);
            at += part.len() as u64;
        }
        fault::point(Point::PublishCopied);
        Draft { at: 0, slot, label: *label, generation, length, tag: sum.finish(), seal }
    }

    /// The generation of the next block in a reserved slot.
    pub fn next_generation(&self, block: BlockIndex) -> Generation {
        let last = self.region.raw_generation(block);
        if fault::makes(Mistake::PublishGenerationKept) { last } else { last.next() }
    }

    /// Writes the descriptors of payloads that lie in their slots.
    pub fn describe(&self, drafts: &[Draft]) {
        let region = &self.region;
        let is_block = |draft: &&Draft| draft.label.state == BlockState::Ready;
        for draft in drafts.iter().filter(is_block) {
            self.log.put_names(draft.slot.block, draft.label.names);
        }
        for draft in drafts {
            region.put_seal(draft.slot.block, draft.seal, &draft.tag);
        }
        let early = fault::makes(Mistake::PublishReadyEarly);
        if !early {
            // Names, seals and payloads before the descriptors.
            region.fabric.publish_payload();
        }
        fault::point(Point::PublishPayload);
        let stamp = (region.area.unix_seconds() & 0xffff_ffff) | (region.incarnation() << 32);
        for draft in drafts {
            // No fence: taking the shard lock before indexing fences this store.
            region.write(region.layout.descriptor(draft.slot.block), self.descriptor(draft, stamp));
            // This host wrote the payload around its caches, so they hold no stale line of it.
            region.set_seen(draft.slot.block, draft.generation);
            fault::point(Point::PublishReady);
        }
        if early {
            region.fabric.publish_payload();
        }
        // Log before indexing, so that a crash cannot leave an unlogged block.
        let stored = |draft: &Draft| (draft.slot.block, self.descriptor(draft, stamp), draft.label.names);
        self.log.tell_all_stored(drafts.iter().filter(is_block).map(stored));
    }

    fn descriptor(&self, draft: &Draft, stamp: u64) -> Descriptor {
        let Draft { slot, label, generation, length, tag, .. } = *draft;
        Descriptor {
            state: Descriptor::state_word(label.state, generation),
            hash: label.hash.words(),
            place: Descriptor::pack_place(length, self.region.layout.payload(slot.block, slot.bytes)),
            checksum: tag.low,
            kind: label.kind,
            stamp,
            check: 0,
        }
    }

    /// Leads the index to readable blocks of this worker, or retracts them. `word` returns the
    /// eviction policy's word of a block that was repacked.
    pub fn enter(&self, drafts: &[Draft], word: impl Fn(&Draft) -> Option<u64>, mut told: impl FnMut(&Draft, Publish)) {
        let mut refused = Vec::new();
        let mut told_of = |index: usize, inserted: Inserted| {
            let draft = &drafts[index];
            let Draft { slot: Slot { block, .. }, label, .. } = *draft;
            if inserted == Inserted::New {
                fault::point(Point::PublishIndexed);
                match word(draft) {
                    Some(word) => self.region.policy_word(block).store(word, Relaxed),
                    None => self.place(block, label.hash),
                }
                self.region.slot_owner(block).store(PUBLISHED, Release);
            } else {
                refused.push(block);
            }
            told(draft, Publish::of(inserted));
        };
        if let [one] = drafts {
            told_of(0, self.index.insert(one.label.hash, one.slot.block));
        } else {
            let named = |(index, draft): (usize, &Draft)| (index, draft.label.hash, draft.slot.block);
            self.index.insert_all(drafts.iter().enumerate().map(named), told_of);
        }
        // Retract instead of freeing: a stale index entry may have led a reader here, which may
        // have pinned the block. Without the lock the slot stays reserved until this worker leaves.
        if !refused.is_empty()
            && let Ok(heap) = self.lock_heap()
        {
            self.retract(&heap, &refused, None, |block| self.drain(&heap, block, None));
        }
    }

    /// Gives a block that was just published its word of the eviction policy.
    pub fn place(&self, block: BlockIndex, hash: BlockHash) {
        let clock = self.region.access_clock().load(Relaxed);
        let word = self.policy().inserted(clock, hash.words()[0], self.region.policy_state());
        self.region.policy_word(block).store(word, Relaxed);
    }

    /// The region's eviction policy.
    pub fn policy(&self) -> &'static dyn EvictionPolicy {
        self.region.superblock.config.eviction.policy()
    }
}

/// Find.
impl<F: Fabric, H: HostLocal> Blocks<F, H> {
    /// Finds the blocks of a prompt, in order, up to the first miss, and marks them as used.
    pub fn lookup(&self, hashes: &[BlockHash]) -> Vec<Hit> {
        if self.region.is_plain() {
            return self.index.lookup_plainly(hashes);
        }
        let hits = self.peek(hashes);
        let now = self.region.access_clock().fetch_add(1, Relaxed).wrapping_add(1);
        self.touch(now, hits.iter().map(|hit| hit.block));
        hits
    }

    /// As [`Blocks::lookup`], without marking or counting.
    pub fn peek(&self, hashes: &[BlockHash]) -> Vec<Hit> {
        let mut hits = Vec::with_capacity(hashes.len());
        self.index.find_all(hashes, |block, descriptor| hits.push(Hit::of(block, descriptor)));
        hits
    }

    /// Whether the pool has a readable block of this hash, which is then marked as used.
    pub fn touch_if_there(&self, hash: BlockHash) -> bool {
        if self.region.is_plain() {
            let mut is_there = false;
            self.index.use_those_there(&[hash], |_| is_there = true);
            return is_there;
        }
        let found = self.index.find(hash);
        self.touch(self.region.access_clock().load(Relaxed), found.map(|(block, _)| block));
        found.is_some()
    }

    /// As [`Blocks::touch_if_there`] for several hashes, which wait together for memory. Calls
    /// `there` with the number of each hash that is there.
    pub fn touch_those_there(&self, hashes: &[BlockHash], mut there: impl FnMut(usize)) {
        if self.region.is_plain() {
            return self.index.use_those_there(hashes, there);
        }
        let now = self.region.access_clock().load(Relaxed);
        self.index.find_each_now(hashes, |at, found| {
            if let Some((block, _)) = found {
                self.touch(now, Some(block));
                there(at);
            }
            true
        });
    }

    /// Marks blocks as used at an instant. Only lookups advance the recency clock: the blocks that
    /// a prompt finds and those published for it share one instant, and of equal blocks eviction
    /// takes the deepest first.
    ///
    /// A block of another host is marked when its owner is told, which is once in a while. So the
    /// word of such a block says when this host last told of it, or heard of it from a third host.
    fn touch(&self, now: u64, blocks: impl IntoIterator<Item = BlockIndex>) {
        let region = &self.region;
        if !self.hosts.shares() {
            return self.mark(now, blocks);
        }
        let (pace, policy) = (region.report_pace().load(Relaxed), self.policy());
        let mut told = Vec::new();
        let is_marked = |block: &BlockIndex| {
            if region.lists(*block) {
                return true;
            }
            let is_due = is_due(policy.idle(region.policy_word(*block).load(Relaxed), now), pace);
            told.extend(is_due.then_some(*block));
            is_due
        };
        self.mark(now, blocks.into_iter().filter(is_marked));
        if !told.is_empty() {
            self.hosts.report_hits(&told);
        }
    }

    fn mark(&self, now: u64, blocks: impl IntoIterator<Item = BlockIndex>) {
        let words = blocks.into_iter().map(|block| self.region.policy_word(block));
        let (load, store) = (|word: &&H::Word64| word.load(Relaxed), |word: &&H::Word64, now| word.store(now, Relaxed));
        self.region.superblock.config.eviction.touch(now, words, load, store);
    }
}

impl<F: Fabric, H: HostLocal> Blocks<F, H> {
    /// Marks the blocks that other hosts have reported as used. Words of other hosts' blocks are
    /// marked too: this host may take their chunks.
    pub fn hear_hits(&self, heap: &Holds<Heap>, peers: &[u64]) {
        let now = self.region.access_clock().load(Relaxed);
        for &peer in peers {
            let mut used = Vec::new();
            self.hosts.hear_hits(heap, peer, |block| used.push(block));
            self.mark(now, used);
        }
    }
}

/// Read.
impl<F: Fabric, H: HostLocal> Blocks<F, H> {
    /// Copies a payload out and checks it. `wanted` is the length of `parts`.
    pub fn read(&self, hit: &Hit, wanted: u64, parts: &mut [&mut [u8]]) -> ReadOutcome {
        if self.region.is_plain() {
            self.read_counted(hit, wanted, parts)
        } else {
            self.read_freely(hit, wanted, parts)
        }
    }

    fn read_freely(&self, hit: &Hit, wanted: u64, parts: &mut [&mut [u8]]) -> ReadOutcome {
        let region = &self.region;
        let seen = self.drop_stale_lines(hit, wanted);
        // A block whose key this worker lacks is good for others: it stays.
        let Some(is_whole) = region.copy_out(hit, parts) else { return ReadOutcome::Stale };
        fault::point(Point::ReadCopied);
        let state = region.fresh_line(region.layout.descriptor(hit.block))[0];
        let same = state == Descriptor::state_word(BlockState::Ready, hit.generation);
        if !same && !fault::makes(Mistake::ReadRecheckSkipped) {
            return ReadOutcome::Stale;
        }
        if !is_whole && !fault::makes(Mistake::ReadChecksumSkipped) {
            region.forget_seen(hit.block);
            return ReadOutcome::Damaged;
        }
        if !seen {
            // After the drop was fenced and the descriptor has confirmed the generation.
            region.set_seen(hit.block, hit.generation);
        }
        ReadOutcome::Whole
    }

    /// Reads a payload that a reference count keeps in its place, in the plain design.
    fn read_counted(&self, hit: &Hit, wanted: u64, parts: &mut [&mut [u8]]) -> ReadOutcome {
        if !self.index.take_count(hit) {
            return ReadOutcome::Stale;
        }
        self.region.refresh_seal(hit.block);
        self.region.fabric.refresh_payload(hit.offset, wanted);
        let is_whole = self.region.copy_out(hit, parts);
        fault::point(Point::ReadCopied);
        self.index.give_count(hit);
        let Some(is_whole) = is_whole else { return ReadOutcome::Stale };
        if is_whole { ReadOutcome::Whole } else { ReadOutcome::Damaged }
    }

    /// Drops payload lines of an older use of the slot from this host's caches, once per
    /// generation. Returns whether they had been dropped. If not, the caller records it after the
    /// descriptor has confirmed the generation.
    pub fn drop_stale_lines(&self, hit: &Hit, bytes: u64) -> bool {
        let region = &self.region;
        let seen = region.has_seen(hit.block, hit.generation);
        if !seen {
            if fault::makes(Mistake::ReadSeenEarly) {
                region.set_seen(hit.block, hit.generation);
            }
            fault::point(Point::ReadUnseen);
            region.refresh_seal(hit.block);
            region.fabric.refresh_payload(hit.offset, bytes);
        }
        seen
    }

    /// Takes a block without its checksum out of the pool: readers would miss it again and again,
    /// and publishers would take it for a duplicate. Another host's block only leaves the index.
    /// Returns whether it left. If a lock is busy for `timeout`, the next reader tries again.
    pub fn discard_damaged(&self, hit: &Hit, timeout: Timeout) -> bool {
        let region = &self.region;
        if region.is_plain() {
            return false;
        }
        if !region.lists(hit.block) {
            region.refresh_seal(hit.block);
            region.fabric.refresh_payload(hit.offset, hit.length);
            if region.verify(hit) != Some(false) {
                return false;
            }
            // Its owner may have published the hash again meanwhile, in the same slot.
            let mut damaged = None;
            self.index.unlink_if(hit.hash, hit.block, timeout.total, || {
                region.refresh_descriptors(hit.block.0..hit.block.0 + 1);
                damaged = region.read_descriptor(hit.block).filter(|now| Hit::of(hit.block, now) == *hit);
                damaged.is_some()
            });
            if let Some(descriptor) = damaged {
                self.note_damage(hit);
                self.log.note_removal(hit.block, &descriptor, Cause::Damaged);
            }
            return damaged.is_some();
        }
        let Ok(heap) = self.lock_heap_within(timeout) else { return false };
        let is_published = region.slot_owner(hit.block).load(Acquire) == PUBLISHED && region.lists(hit.block);
        let Some(now) = region.hit(hit.block).filter(|now| is_published && now == hit) else { return false };
        region.refresh_seal(now.block);
        region.fabric.refresh_payload(now.offset, now.length);
        let is_damaged = region.verify(&now) == Some(false);
        if is_damaged {
            self.note_damage(&now);
            self.withdraw(&heap, now.block, Some(Cause::Damaged), timeout.total);
        }
        is_damaged
    }

    fn note_damage(&self, hit: &Hit) {
        self.region.counters().add(Counter::Damaged, 1);
        self.log.record(Event::ReadDamaged, hit.block.0, hit.hash.words()[0]);
    }
}

/// Leave.
///
/// The owner host marks a block `EVICTING`, publishes the mark, and then looks for pins. A reader
/// stores its pin, publishes it, and then looks at the state. So one of the two sees the other.
impl<F: Fabric, H: HostLocal> Blocks<F, H> {
    /// Every block that a worker pins, or that has a reference count in the plain design.
    pub fn pinned(&self) -> BTreeSet<BlockIndex> {
        if self.region.is_plain() { self.index.counted_blocks() } else { self.hosts.pinned_blocks() }
    }

    /// Retracts readable blocks of this host: marks them, then frees those without pins and calls
    /// `if_pinned` for the others. Returns the number of slots that became free. Without a cause nothing
    /// is lost: another block has the hash, or the removal is noted already.
    pub fn retract(
        &self,
        heap: &Holds<Heap>,
        blocks: &[BlockIndex],
        cause: Option<Cause>,
        if_pinned: impl FnMut(BlockIndex),
    ) -> usize {
        self.retract_within(heap, blocks, cause, self.region.lock_timeout, if_pinned)
    }

    /// As [`Blocks::retract`], with a time for all waits for the index. A block whose shard is busy
    /// drains.
    fn retract_within(
        &self,
        heap: &Holds<Heap>,
        blocks: &[BlockIndex],
        cause: Option<Cause>,
        mut patience: Duration,
        mut if_pinned: impl FnMut(BlockIndex),
    ) -> usize {
        // A chunk that was offered since is another host's to change.
        let blocks: Vec<BlockIndex> = blocks.iter().copied().filter(|&block| self.region.lists(block)).collect();
        if blocks.is_empty() {
            return 0;
        }
        for &block in &blocks {
            // A corrupt descriptor needs no mark: readers miss it already.
            if let Some(descriptor) = self.region.read_descriptor(block) {
                self.region.write(self.region.layout.descriptor(block), descriptor.with_state(BlockState::Evicting));
            }
        }
        self.region.fabric.fence();
        fault::point(Point::EvictMarked);
        let pinned = self.pinned();
        let mut freed = 0;
        for &block in &blocks {
            if pinned.contains(&block) {
                if_pinned(block);
            } else if self.finish_eviction(heap, block, cause, &mut patience) {
                freed += 1;
            }
        }
        freed
    }

    /// Makes a marked block readable again because it is pinned: its payload has not changed.
    pub fn restore(&self, _: &Holds<Heap>, block: BlockIndex) {
        let region = &self.region;
        if let Some(descriptor) = region.read_descriptor(block) {
            region.write(region.layout.descriptor(block), descriptor.with_state(BlockState::Ready));
            // A follower that walked the descriptors meanwhile took the block for leaving.
            self.log.tell_stored(block, &descriptor, self.log.names_of(block));
            region.slot_owner(block).store(PUBLISHED, Release);
        }
    }

    /// Retracts a readable block for good. If it is pinned, its slot becomes free with the last
    /// pin.
    pub fn withdraw(&self, heap: &Holds<Heap>, block: BlockIndex, cause: Option<Cause>, patience: Duration) {
        self.retract_within(heap, &[block], cause, patience, |block| self.drain(heap, block, cause));
    }

    /// Leaves a marked block to drain: it is unreadable, and freed when no pin is left.
    pub fn drain(&self, _: &Holds<Heap>, block: BlockIndex, cause: Option<Cause>) {
        self.tell_removed(block, cause);
        self.region.slot_owner(block).store(DRAINING, Release);
    }

    /// Takes a marked block out of the index and frees its slot. `false`: the index was busy, and
    /// the block drains.
    fn finish_eviction(
        &self,
        heap: &Holds<Heap>,
        block: BlockIndex,
        cause: Option<Cause>,
        patience: &mut Duration,
    ) -> bool {
        // The mark is final. Taking the shard's lock fences the event.
        self.tell_removed(block, cause);
        if let Some(descriptor) = self.region.read_descriptor(block)
            && !self.index.unlink(descriptor.block_hash(), block, patience)
        {
            self.region.slot_owner(block).store(DRAINING, Release);
            return false;
        }
        fault::point(Point::EvictUnlinked);
        self.space.write_free(block);
        self.space.push_free(heap, block);
        fault::point(Point::EvictFreed);
        true
    }

    fn tell_removed(&self, block: BlockIndex, cause: Option<Cause>) {
        self.log.tell_removed(block);
        // Without a descriptor its name is not known.
        if let Some(cause) = cause
            && let Some(descriptor) = self.region.read_descriptor(block)
        {
            self.log.note_removal(block, &descriptor, cause);
        }
    }

    /// Frees draining blocks that are no longer pinned. Returns their number.
    pub fn retry_draining(&self, heap: &Holds<Heap>) -> usize {
        let draining: Vec<BlockIndex> = (0_u64..)
            .zip(self.region.slot_owners())
            .filter(|(_, owner)| owner.load(Relaxed) == DRAINING)
            .map(|(block, _)| BlockIndex(block))
            .collect();
        // Marked again: the process that marked a block may have died before other hosts saw the
        // mark.
        let freed = self.retract(heap, &draining, None, |_| ());
        self.region.counters().add(Counter::Evicted, freed as u64);
        freed
    }

    /// Frees a slot that this worker reserved in a life of its host, unless it has lost the slot.
    pub fn unreserve_in(&self, block: BlockIndex, life: u64) {
        if self.space.still_reserved(block, life) {
            self.unreserve(block);
        }
    }

    /// Frees a slot that this worker reserved and does not use.
    pub fn unreserve(&self, block: BlockIndex) {
        self.space.write_free(block);
        // Without the lock the slot stays reserved until this worker leaves.
        if let Ok(heap) = self.lock_heap() {
            self.space.push_free(&heap, block);
        }
    }
}
