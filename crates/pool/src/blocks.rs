//! The life of a block: publish, look up, read.

use crate::events::Names;
use crate::heap::{PUBLISHED, Refusal, Slot};
use crate::history::Event;
use crate::index::Inserted;
use crate::locks::Name;
use crate::namespaces::Namespace;
use crate::pool::{Inner, Pool};
use crate::region::counters::Counter;
use crate::region::lines::{BlockState, Descriptor, checksum_key};
use crate::strays::Fill;
use cenote_base::{BlockHash, BlockIndex, Generation, fault};
use cenote_mem::{Fabric, HostLocal, LINE, Word};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

/// A block that a lookup found. A hint like everything from a lookup: reading it may still miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Where it is.
    pub block: BlockIndex,
    /// Which use of the descriptor.
    pub generation: Generation,
    /// Whose content.
    pub hash: BlockHash,
    /// Bytes of its payload, in whole lines.
    pub length: u64,
    /// What the payload is: what [`Pool::publish_encoded`] was told; 0: as [`Pool::publish`] was given it.
    pub encoding: u8,
    pub(crate) offset: u64,
    pub(crate) checksum: u64,
}

/// What a read came to. Only [`ReadOutcome::Whole`] leaves anything in the buffers that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// Every byte is as it was published.
    Whole,
    /// The block was evicted or reused meanwhile: a miss.
    Stale,
    /// The bytes do not have the published checksum: a miss.
    Damaged,
}

/// What publishing came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publish {
    /// The block can be found now.
    Published,
    /// It was there already.
    Duplicate,
    /// No slot could be made free, or a lock was busy for too long.
    NoRoom,
    /// The namespace has its quota, and nothing that this host has of it could make way.
    OverQuota,
}

impl Hit {
    #[inline]
    pub(crate) fn of(block: BlockIndex, descriptor: &Descriptor) -> Self {
        let (length, offset) = descriptor.extent();
        Self {
            block,
            generation: descriptor.generation(),
            hash: descriptor.block_hash(),
            length,
            encoding: descriptor.encoding(),
            offset,
            checksum: descriptor.checksum,
        }
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// Whether the payload that a hit names still has its checksum.
    pub(crate) fn verify(&self, hit: &Hit) -> bool {
        let key = checksum_key(hit.hash, hit.generation);
        self.fabric.checksum_payload(hit.offset, hit.length, key) == hit.checksum
    }

    pub(crate) fn hit(&self, block: BlockIndex) -> Option<Hit> {
        let descriptor = self.read_descriptor(block)?;
        (descriptor.block_state() == Some(BlockState::Ready)).then(|| Hit::of(block, &descriptor))
    }

    /// Writes payload and descriptor into a reserved slot; the block is readable for whoever knows it.
    pub(crate) fn write_block(
        &self,
        block: BlockIndex,
        offset: u64,
        hash: BlockHash,
        state: BlockState,
        kind: u64,
        names: Names,
        parts: &[&[u8]],
    ) -> Generation {
        let generation = self.next_generation(block);
        let length: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let checksum = self.fabric.write_payload(offset, parts, checksum_key(hash, generation));
        self.describe_block(block, (offset, length), hash, state, kind, names, generation, checksum);
        generation
    }

    /// The generation of what is written into a reserved slot next.
    pub(crate) fn next_generation(&self, block: BlockIndex) -> Generation {
        let last = self.raw_generation(block);
        if fault::sabotaged("publish.generation-kept") { last } else { last.next() }
    }

    /// Writes the descriptor of a payload that lies in its slot.
    pub(crate) fn describe_block(
        &self,
        block: BlockIndex,
        (offset, length): (u64, u64),
        hash: BlockHash,
        state: BlockState,
        kind: u64,
        names: Names,
        generation: Generation,
        checksum: u64,
    ) {
        // The fence before the descriptor takes them along.
        if state == BlockState::Ready {
            self.put_names(block, names);
        }
        let early = fault::sabotaged("publish.ready-early");
        if !early {
            self.fabric.publish_payload();
        }
        fault::point("publish.payload");
        let descriptor = Descriptor {
            state: Descriptor::state_word(state, generation),
            hash: hash.words(),
            place: Descriptor::pack_place(length, offset),
            checksum,
            kind,
            stamp: (self.area.unix_seconds() & 0xffff_ffff) | (self.incarnation() << 32),
            check: 0,
        };
        let at = self.layout.descriptor(block);
        // Nobody is led here before a lock between hosts was taken, which waits for this too.
        self.write(at, descriptor);
        if early {
            self.fabric.publish_payload();
        }
        // What this host wrote around its caches is not stale in them.
        self.set_seen(block, generation);
        fault::point("publish.ready");
        // Told before anybody can be led to it: whoever dies from here on leaves a block that was told of.
        if state == BlockState::Ready {
            self.tell_stored(block, &descriptor, names);
        }
    }

    /// Makes a readable block of this worker findable and evictable, or gives it back. `word`: what the eviction policy
    /// knows of it; none, where it is new.
    pub(crate) fn enter(&self, block: BlockIndex, hash: BlockHash, word: Option<u64>) -> Publish {
        let outcome = match self.insert(hash, block) {
            Ok(Inserted::New) => {
                fault::point("publish.indexed");
                match word {
                    Some(word) => self.policy_word(block).store(word, Relaxed),
                    None => self.place(block, hash),
                }
                self.slot_owner(block).store(PUBLISHED, Release);
                return Publish::Published;
            }
            Ok(Inserted::Duplicate) => Publish::Duplicate,
            Ok(Inserted::Full) | Err(_) => Publish::NoRoom,
        };
        // Not just given back: an entry that an eviction left behind may have led here already, and somebody may
        // have pinned what he found. Without the lock the block stays this worker's until it leaves.
        if let Ok(_heap) = self.lock(Name::Heap) {
            self.withdraw(block);
        }
        outcome
    }

    /// Whether a readable block of this hash is there; if so it is used now.
    fn touch_if_there(&self, hash: BlockHash) -> bool {
        if self.is_plain() {
            return self.use_if_there(hash);
        }
        let found = self.find(hash);
        self.touch(self.access_clock().load(Relaxed), found.map(|(block, _)| block));
        found.is_some()
    }

    fn peek_freely(&self, hashes: &[BlockHash]) -> Vec<Hit> {
        let mut hits = Vec::with_capacity(hashes.len());
        self.find_all(hashes, |block, descriptor| hits.push(Hit::of(block, descriptor)));
        hits
    }

    fn lookup_freely(&self, hashes: &[BlockHash]) -> Vec<Hit> {
        let hits = self.peek_freely(hashes);
        let now = self.access_clock().fetch_add(1, Relaxed).wrapping_add(1);
        self.touch(now, hits.iter().map(|hit| hit.block));
        hits
    }

    /// Lines of an older use of the slot may still be in this host's caches: they go once in a generation. Returns whether
    /// they had gone. The caller notes that they have, when the descriptor has confirmed the generation since.
    pub(crate) fn sweep(&self, hit: &Hit, bytes: u64) -> bool {
        let seen = self.has_seen(hit.block, hit.generation);
        if !seen {
            if fault::sabotaged("read.seen-early") {
                self.set_seen(hit.block, hit.generation);
            }
            fault::point("read.unseen");
            self.fabric.refresh_payload(hit.offset, bytes);
        }
        seen
    }

    /// Takes a block out of the pool whose payload does not have its checksum: readers would find it again and again, and
    /// publishers would take it for a duplicate. One of another host, or of none that is known, only leaves the index.
    pub(crate) fn discard_damaged(&self, hit: &Hit) {
        if self.is_plain() {
            return;
        }
        if self.chunk_class(self.layout.chunk_of(hit.block)).load(Relaxed) == 0 {
            self.refresh_descriptors(hit.block.0..hit.block.0 + 1);
            let is_there = self.hit(hit.block).is_some_and(|now| now == *hit);
            self.fabric.refresh_payload(hit.offset, hit.length);
            if is_there && !self.verify(hit) {
                self.counters().add(Counter::Damaged, 1);
                // If the shard's lock is busy, the next reader unlinks it.
                let mut no_patience = Duration::ZERO;
                self.unlink(hit.hash, hit.block, &mut no_patience);
            }
            return;
        }
        // If the lock is busy, the next reader discards it.
        let Some(_heap) = self.try_lock(Name::Heap) else { return };
        let is_published = self.slot_owner(hit.block).load(Acquire) == PUBLISHED;
        let Some(now) = self.hit(hit.block).filter(|now| is_published && now == hit) else { return };
        self.fabric.refresh_payload(now.offset, now.length);
        if !self.verify(&now) {
            self.counters().add(Counter::Damaged, 1);
            self.withdraw(now.block);
        }
    }

    /// Copies a payload and tells whether it is whole.
    fn read_freely(&self, hit: &Hit, wanted: u64, parts: &mut [&mut [u8]]) -> ReadOutcome {
        let seen = self.sweep(hit, wanted);
        let checksum = self.fabric.read_payload(hit.offset, parts, checksum_key(hit.hash, hit.generation));
        fault::point("read.copied");
        let at = self.layout.descriptor(hit.block);
        let state = self.fresh_line(at)[0];
        let same = state == Descriptor::state_word(BlockState::Ready, hit.generation);
        if !same && !fault::sabotaged("read.recheck-skipped") {
            return ReadOutcome::Stale;
        }
        if checksum != hit.checksum && !fault::sabotaged("read.checksum-skipped") {
            self.forget_seen(hit.block);
            return ReadOutcome::Damaged;
        }
        if !seen {
            // After the drop was fenced and the descriptor has confirmed the generation.
            self.set_seen(hit.block, hit.generation);
        }
        ReadOutcome::Whole
    }

    /// Marks blocks as used at this instant. Only lookups move the recency clock: what a prompt finds and what is
    /// then published for it bear the same instant, and among equals eviction takes the deepest block first.
    pub(crate) fn touch(&self, now: u64, blocks: impl IntoIterator<Item = BlockIndex>) {
        let words = blocks.into_iter().map(|block| self.policy_word(block));
        let (load, store) = (|word: &&H::Word64| word.load(Relaxed), |word: &&H::Word64, now| word.store(now, Relaxed));
        self.superblock.config.eviction.touch(now, words, load, store);
    }

    /// Tells the eviction policy of a block that was just published.
    pub(crate) fn place(&self, block: BlockIndex, hash: BlockHash) {
        let word = self.policy().inserted(self.access_clock().load(Relaxed), hash.words()[0], self.policy_state());
        self.policy_word(block).store(word, Relaxed);
    }
}

/// The slot for a payload of any length: sixteen sizes to each doubling, so that few sizes serve all and a sixteenth is lost
/// at most.
pub(crate) const fn slot_for(length: u64) -> u64 {
    let length = if length < LINE { LINE } else { length };
    let step = 1 << length.ilog2().saturating_sub(4);
    // Past the last multiple no chunk has such a slot, and reserving it fails.
    match length.checked_next_multiple_of(if step > LINE { step } else { LINE }) {
        Some(slot_bytes) => slot_bytes,
        None => u64::MAX,
    }
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Looks up the blocks of a prompt, in order, up to the first that is missing. Takes no lock, waits for
    /// nobody, and marks what it found as used. ([`crate::Design::Plain`] takes its lock, and nothing is found if that
    /// is busy for too long.)
    #[must_use]
    pub fn lookup(&self, hashes: &[BlockHash]) -> Vec<Hit> {
        let inner = &*self.0;
        if inner.is_out() {
            return Vec::new();
        }
        let hits = if inner.is_plain() { inner.lookup_counted(hashes) } else { inner.lookup_freely(hashes) };
        inner.counters().add(Counter::Lookups, hashes.len() as u64);
        inner.counters().add(Counter::Found, hits.len() as u64);
        hits
    }

    /// As [`Pool::lookup`], for whoever only asks: nothing is marked as used and nothing is counted, so what is
    /// looked at again and again stays no longer for it.
    #[must_use]
    pub fn peek(&self, hashes: &[BlockHash]) -> Vec<Hit> {
        if self.0.is_out() { Vec::new() } else { self.0.peek_freely(hashes) }
    }

    /// Copies a block's payload into `parts`, one after the other, and tells whether it is whole.
    ///
    /// The protocol is optimistic: copy and sum, then look at the descriptor again. Nothing is announced to
    /// the owner, so a block that leaves meanwhile is a miss and never wrong bytes.
    #[must_use]
    pub fn read(&self, hit: &Hit, parts: &mut [&mut [u8]]) -> ReadOutcome {
        let inner = &*self.0;
        let wanted: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let outcome = if inner.is_out() || wanted > hit.length || wanted.div_ceil(64) * 64 != hit.length {
            ReadOutcome::Stale
        } else if inner.is_plain() {
            inner.read_counted(hit, wanted, parts)
        } else {
            inner.read_freely(hit, wanted, parts)
        };
        match outcome {
            ReadOutcome::Whole => {
                inner.counters().add(Counter::Reads, 1);
                inner.counters().add(Counter::ReadBytes, wanted);
            }
            ReadOutcome::Stale => inner.counters().add(Counter::ReadsStale, 1),
            ReadOutcome::Damaged => {
                inner.counters().add(Counter::ReadsDamaged, 1);
                inner.discard_damaged(hit);
            }
        }
        outcome
    }

    /// Publishes a block: `parts`, one after the other, are its payload of exactly the namespace's block
    /// size; `depth` is its place in its sequence.
    ///
    /// # Panics
    /// The parts do not make up a block of this namespace: a bug of the caller.
    pub fn publish(&self, namespace: &Namespace, hash: BlockHash, depth: u32, parts: &[&[u8]]) -> Publish {
        self.publish_named(namespace, hash, depth, Names::default(), parts)
    }

    /// As [`Pool::publish`], for a block that other programs know by names of their own, which followers are told.
    ///
    /// # Panics
    /// As [`Pool::publish`].
    pub fn publish_named(
        &self,
        namespace: &Namespace,
        hash: BlockHash,
        depth: u32,
        names: Names,
        parts: &[&[u8]],
    ) -> Publish {
        let length: u64 = parts.iter().map(|part| part.len() as u64).sum();
        assert_eq!(length, namespace.block_bytes, "a block of this namespace has another size");
        self.publish_parts(namespace, hash, depth, 0, names, parts, length)
    }

    /// Publishes a block whose payload is something else than the engine's pages, and shorter: whole lines. `encoding` says
    /// what; the pool keeps it beside the block and does not ask.
    ///
    /// # Panics
    /// The payload is empty, not of whole lines or longer than a block of this namespace, or the encoding is 0: bugs of the
    /// caller.
    pub fn publish_encoded(
        &self,
        namespace: &Namespace,
        hash: BlockHash,
        depth: u32,
        encoding: u8,
        parts: &[&[u8]],
    ) -> Publish {
        self.publish_encoded_named(namespace, hash, depth, encoding, Names::default(), parts)
    }

    /// As [`Pool::publish_encoded`], for a block that other programs know by names of their own, which followers are told.
    ///
    /// # Panics
    /// As [`Pool::publish_encoded`].
    pub fn publish_encoded_named(
        &self,
        namespace: &Namespace,
        hash: BlockHash,
        depth: u32,
        encoding: u8,
        names: Names,
        parts: &[&[u8]],
    ) -> Publish {
        let length: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let fits = length > 0 && length.is_multiple_of(LINE) && length <= namespace.block_bytes;
        assert!(fits && encoding != 0, "{length} bytes of encoding {encoding} are no payload of this namespace");
        self.publish_parts(namespace, hash, depth, encoding, names, parts, length)
    }

    fn publish_parts(
        &self,
        namespace: &Namespace,
        hash: BlockHash,
        depth: u32,
        encoding: u8,
        names: Names,
        parts: &[&[u8]],
        length: u64,
    ) -> Publish {
        let inner = &*self.0;
        let slot_bytes =
            if encoding == 0 { namespace.slot_bytes() } else { slot_for(length).min(namespace.slot_bytes()) };
        let Slot { block, bytes } = match inner.reserve_for(namespace, hash, slot_bytes, Fill::Copied) {
            Ok(slot) => slot,
            Err(outcome) => return outcome,
        };
        let kind = Descriptor::pack_kind(namespace.id.0, encoding, inner.slot() as u16, depth);
        let offset = inner.layout.payload(block, bytes);
        inner.write_block(block, offset, hash, BlockState::Ready, kind, names, parts);
        inner.enter_new(block, hash, length)
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// A slot for a block that is not there yet; otherwise what publishing it comes to.
    pub(crate) fn reserve_for(
        &self,
        namespace: &Namespace,
        hash: BlockHash,
        slot_bytes: u64,
        fill: Fill,
    ) -> Result<Slot, Publish> {
        if self.is_out() {
            return Err(Publish::NoRoom);
        }
        if self.touch_if_there(hash) {
            self.counters().add(Counter::Duplicates, 1);
            return Err(Publish::Duplicate);
        }
        let slot = self.reserve_slot(namespace, slot_bytes, fill)?;
        fault::point("publish.reserved");
        Ok(slot)
    }

    /// A slot that counts towards a namespace's quota.
    pub(crate) fn reserve_slot(&self, namespace: &Namespace, slot_bytes: u64, fill: Fill) -> Result<Slot, Publish> {
        if self.is_out() {
            return Err(Publish::NoRoom);
        }
        self.reserve(slot_bytes, Some(namespace.id.0), fill).map_err(|refusal| match refusal {
            Refusal::NoRoom => {
                self.counters().add(Counter::NoRoom, 1);
                Publish::NoRoom
            }
            Refusal::OverQuota => {
                self.counters().add(Counter::QuotaRefused, 1);
                self.record(Event::QuotaRefused, namespace.id.0.into(), slot_bytes);
                Publish::OverQuota
            }
        })
    }

    /// Makes a block that was just written findable, and counts what came of it.
    pub(crate) fn enter_new(&self, block: BlockIndex, hash: BlockHash, length: u64) -> Publish {
        let outcome = self.enter(block, hash, None);
        match outcome {
            Publish::Published => {
                self.counters().add(Counter::Published, 1);
                self.counters().add(Counter::PublishedBytes, length);
            }
            Publish::Duplicate => self.counters().add(Counter::Duplicates, 1),
            Publish::NoRoom | Publish::OverQuota => self.counters().add(Counter::NoRoom, 1),
        }
        outcome
    }
}
