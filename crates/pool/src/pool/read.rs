//! Lookups, reads and pins.

use super::Pool;
use super::publish::TOGETHER_MAX;
use crate::blocks::life::ReadOutcome;
use crate::log::requests::Request;
use crate::members::Member;
use crate::region::counters::Counter;
use crate::region::hit::Hit;
use crate::region::lines::{BlockState, Descriptor, checksum_key};
use crate::region::seal::Facts;
use crate::space::strays::Strays;
use crate::sync::Timeout;
use crate::tables::namespaces::Namespace;
use cenote_base::BlockHash;
use cenote_base::fault::{self, Mistake};
use cenote_mem::{Fabric, HostArea, HostLocal, PayloadSum, Tag};
use std::sync::Arc;

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Finds the blocks of a prompt, in order, up to the first miss, and marks them as used. Takes
    /// no lock. ([`crate::Design::Plain`] marks them when the first of them is read or pinned.)
    #[must_use]
    pub fn lookup(&self, hashes: &[BlockHash]) -> Vec<Hit> {
        let hits = self.find(hashes);
        self.count_lookup(hashes.len(), hits.len());
        hits
    }

    /// As [`Pool::lookup`], without counting. An engine asks for a waiting request again and again, and
    /// counts with [`Pool::count_lookup`] when it admits the request.
    #[must_use]
    pub fn find(&self, hashes: &[BlockHash]) -> Vec<Hit> {
        if self.0.is_out() { Vec::new() } else { self.0.blocks.lookup(hashes) }
    }

    /// Counts a lookup of so many blocks, of which so many were found.
    pub fn count_lookup(&self, blocks: usize, found: usize) {
        let member = &*self.0;
        if !member.is_out() {
            member.region.counters().add(Counter::Lookups, blocks as u64);
            member.region.counters().add(Counter::Found, found as u64);
        }
    }

    /// Notes a request of this namespace in the record of requests, once, when an engine admits it. Returns
    /// its number for [`Pool::record_answer`]; `None`: the record has no block of it. Takes no lock and
    /// waits for nothing.
    pub fn record_request(&self, namespace: &Namespace, request: &Request<'_>) -> Option<u64> {
        let member = &*self.0;
        if member.is_out() || member.region.area.is_inherited() {
            return None;
        }
        member.log.note_request(namespace.id, namespace.block_bytes, request)
    }

    /// Notes that the answer to a recorded request has ended, after so many tokens.
    pub fn record_answer(&self, number: u64, tokens: u32) {
        if !self.0.is_out() && !self.0.region.area.is_inherited() {
            self.0.log.note_answer(number, tokens);
        }
    }

    /// Lets the record of requests of this host have all blocks until a time in seconds since 1970; 0: a
    /// sample again. For a reader that writes a trace: it calls this again before the time has passed.
    pub fn record_all_until(&self, unix_s: u64) {
        self.0.log.record_all_until(unix_s);
    }

    /// As [`Pool::lookup`], without marking or counting, so that repeated queries keep no block
    /// alive.
    #[must_use]
    pub fn peek(&self, hashes: &[BlockHash]) -> Vec<Hit> {
        if self.0.is_out() { Vec::new() } else { self.0.blocks.peek(hashes) }
    }

    /// Whether the pool has a block of this hash, so that publishing it would be a duplicate. As
    /// [`Pool::peek`], but for some minutes after a damaged read on this host it checks the payload, and
    /// a damaged block leaves the pool. Waits for no lock.
    #[must_use]
    pub fn has(&self, hash: BlockHash) -> bool {
        let mut there = [!self.peek(&[hash]).is_empty()];
        self.0.blocks.doubt_some(&[hash], &mut there);
        there[0]
    }

    /// Which of these blocks are there. They are duplicates of what the caller has: they are counted and
    /// marked as used, as if they had been published again. Waits for no lock. For some minutes after a
    /// damaged read on this host it also checks payloads, some MiB a call, and damaged blocks leave.
    #[must_use]
    pub fn duplicates(&self, hashes: &[BlockHash]) -> Vec<bool> {
        let (member, mut there) = (&*self.0, vec![false; hashes.len()]);
        if !member.is_out() {
            let together = hashes.chunks(TOGETHER_MAX).zip(there.chunks_mut(TOGETHER_MAX));
            together.for_each(|(hashes, there)| member.blocks.touch_those_there(hashes, |at| there[at] = true));
            member.blocks.doubt_some(hashes, &mut there);
            let count = there.iter().filter(|there| **there).count();
            member.region.counters().add(Counter::Duplicates, count as u64);
        }
        there
    }

    /// Copies a block's payload into `parts`, one after the other, and checks it.
    ///
    /// The protocol is optimistic: copy and sum, then read the descriptor again. The owner does not
    /// know of the read, so a block that leaves meanwhile is a miss and never wrong bytes.
    #[must_use]
    pub fn read(&self, hit: &Hit, parts: &mut [&mut [u8]]) -> ReadOutcome {
        let member = &*self.0;
        let wanted: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let outcome = if member.is_out() || wanted > hit.length || wanted.div_ceil(64) * 64 != hit.length {
            ReadOutcome::Stale
        } else {
            member.blocks.read(hit, wanted, parts)
        };
        let counters = member.region.counters();
        match outcome {
            ReadOutcome::Whole => {
                counters.add(Counter::Reads, 1);
                counters.add(Counter::ReadBytes, wanted);
            }
            ReadOutcome::Stale => counters.add(Counter::ReadsStale, 1),
            ReadOutcome::Damaged => {
                counters.add(Counter::ReadsDamaged, 1);
                member.blocks.discard_damaged(hit, Timeout::TRY);
            }
        }
        outcome
    }

    /// Pins a block. `None`: it is gone, or all pins of this worker are taken.
    #[must_use]
    pub fn pin(&self, hit: &Hit) -> Option<Pin<F, H>> {
        let member = &self.0;
        let region = &member.region;
        if member.is_out() || region.is_superseded() {
            return None;
        }
        let life = region.incarnation();
        if region.is_plain() {
            member.index.take_count(hit).then(|| {
                region.refresh_seal(hit.block);
                region.fabric.refresh_payload(hit.offset, hit.length);
            })?;
            return Some(Pin { member: Arc::clone(member), keeper: Keeper::Count, hit: *hit, life });
        }
        let slot = member.hosts.pins.take()?;
        // From here on the drop of the pin releases the slot.
        let pin = Pin { member: Arc::clone(member), keeper: Keeper::Hazard(slot), hit: *hit, life };
        member.hosts.show_pin(slot, hit.block, hit.generation);
        // The pin is visible. If the block is readable now, its owner sees the pin before it reuses
        // the slot. The lookup checked the whole descriptor, so these words suffice.
        let words = region.fresh_line(region.layout.descriptor(hit.block));
        let still = words[0] == Descriptor::state_word(BlockState::Ready, hit.generation)
            && words[1..3] == hit.hash.words()
            && words[4] == hit.checksum;
        if !still && !fault::makes(Mistake::PinRecheckSkipped) {
            return None;
        }
        if !member.blocks.drop_stale_lines(hit, hit.length) {
            region.set_seen(hit.block, hit.generation);
        }
        Some(pin)
    }

    /// Whether hosts that were declared dead may write into the memory of this block. Reads that
    /// copy it notice such writes; a use in place does not.
    #[must_use]
    pub fn strays(&self, hit: &Hit) -> Strays {
        self.0.space.strays(self.0.region.layout.chunk_of(hit.block))
    }
}

/// Keeps one block from being reused while it lives.
pub struct Pin<F: Fabric, H: HostLocal = HostArea> {
    member: Arc<Member<F, H>>,
    keeper: Keeper,
    hit: Hit,
    /// Life of the host when the block was pinned.
    life: u64,
}

/// What keeps a pinned block.
#[derive(Clone, Copy)]
enum Keeper {
    /// A word in one of this worker's hazard lines.
    Hazard(u32),
    /// A reference count of the block, in the plain design.
    Count,
}

impl<F: Fabric, H: HostLocal> Pin<F, H> {
    /// The pinned block.
    #[must_use]
    pub const fn hit(&self) -> &Hit {
        &self.hit
    }

    /// Whether this worker made the pin in this life of its host.
    pub(super) fn is_of(&self, member: &Arc<Member<F, H>>, life: u64) -> bool {
        Arc::ptr_eq(&self.member, member) && self.life == life
    }

    /// Whether the pin has kept the block until now, so that bytes used in place are the verified
    /// ones. It has not if this host was suspended for longer than the host timeout and declared
    /// dead, or if the chunk was adopted from a dead host whose caches may still write there. A
    /// copy that is verified after it was made ([`Pin::verify`], [`Pin::read`]) needs neither.
    /// Whether the bytes are the published ones to begin with, [`Pin::confirm`] says.
    #[must_use]
    pub fn protects(&self) -> bool {
        let region = &self.member.region;
        !region.area.is_inherited()
            && region.incarnation() == self.life
            && !region.is_superseded()
            && !region.is_dead(region.host, self.life)
            && self.member.space.strays(region.layout.chunk_of(self.hit.block)) != Strays::Possible
    }

    /// Whether the bytes in the region are the published ones, and stay so while the pin
    /// [protects](Pin::protects) them: the check before a use in place.
    #[must_use]
    pub fn confirm(&self) -> bool {
        // Before the sum, because a host that was declared dead may write after it and end its writes before
        // the second question; and after it, because this host may be declared dead meanwhile.
        self.protects() && self.verify() == ReadOutcome::Whole && self.protects()
    }

    /// Offset and length in bytes of the payload in the region, for use in place. The bytes do not
    /// change while the pin lives and [protects](Pin::protects) them. `None`: the region
    /// is sealed, so a block is only copied out.
    #[must_use]
    pub fn extent(&self) -> Option<(u64, u64)> {
        (!self.member.region.is_sealed()).then_some((self.hit.offset, self.hit.length))
    }

    /// Begins to read the block piece by piece. It stays pinned until the read is finished.
    #[must_use]
    pub fn read(self) -> Reading<F, H> {
        let guard = self.member.region.guard_of(&Facts::of(&self.hit), self.hit.checksum);
        let sum = guard.map(|(guard, tag)| (PayloadSum::reading(&guard), tag));
        Reading { pin: self, read: 0, sum }
    }

    /// Sums the payload in place and compares. A device that has copied it under this pin has
    /// copied the same bytes: a pinned slot is not written, and the checksum's key contains the
    /// generation, so bytes of another use of the slot do not match.
    #[must_use]
    pub fn verify(&self) -> ReadOutcome {
        let region = &self.member.region;
        if region.area.is_inherited() {
            return ReadOutcome::Stale;
        }
        match region.verify(&self.hit) {
            Some(is_whole) => self.member.count_pinned_read(&self.hit, is_whole),
            None => self.member.count_stale_read(),
        }
    }
}

impl<F: Fabric, H: HostLocal> Pin<F, H> {
    /// The key of the payload's checksum, for a device that sums its copy (`cenote_mem::checksum`).
    #[must_use]
    pub fn checksum_key(&self) -> u64 {
        checksum_key(self.hit.hash, self.hit.generation)
    }

    /// As [`Pin::verify`], for a copy that a device has summed. A sum says nothing of a block
    /// without an [extent](Pin::extent).
    #[must_use]
    pub fn verify_sum(&self, sum: u64) -> ReadOutcome {
        if self.extent().is_none() {
            return self.member.count_stale_read();
        }
        if self.member.region.area.is_inherited() {
            return ReadOutcome::Stale;
        }
        self.member.count_pinned_read(&self.hit, sum == self.hit.checksum)
    }
}

impl<F: Fabric, H: HostLocal> Drop for Pin<F, H> {
    fn drop(&mut self) {
        // The hazard lines of a slot that another host memory has taken have its pins.
        if self.member.region.area.is_inherited() || self.member.region.is_superseded() {
            return;
        }
        match self.keeper {
            Keeper::Hazard(slot) => self.member.hosts.clear_pin(slot),
            Keeper::Count => self.member.index.give_count(&self.hit),
        }
    }
}

/// A pinned block that is being read piece by piece. The bytes are usable only if
/// [`Reading::finish`] returns [`ReadOutcome::Whole`].
pub struct Reading<F: Fabric, H: HostLocal = HostArea> {
    pin: Pin<F, H>,
    read: u64,
    /// `None`: this worker has no key of the block.
    sum: Option<(PayloadSum, Tag)>,
}

impl<F: Fabric, H: HostLocal> Reading<F, H> {
    /// Copies the next piece out.
    ///
    /// # Panics
    /// The piece is longer than the rest, or an earlier piece was not of whole lines (64 bytes):
    /// bugs of the caller.
    pub fn copy(&mut self, piece: &mut [u8]) {
        let Hit { offset, length, .. } = self.pin.hit;
        let left = length - self.read;
        assert!(piece.len() as u64 <= left, "{} bytes, where {left} are left", piece.len());
        if let Some((sum, _)) = &mut self.sum {
            self.pin.member.region.fabric.read_payload_part(offset + self.read, piece, length, sum);
        }
        self.read += piece.len() as u64;
    }

    /// Whether all bytes are as they were published. A block that was not read to its end is
    /// damaged.
    #[must_use]
    pub fn finish(self) -> ReadOutcome {
        let Self { pin, read, sum } = self;
        if pin.member.region.area.is_inherited() {
            return ReadOutcome::Stale;
        }
        let Some((sum, tag)) = sum else { return pin.member.count_stale_read() };
        let whole = read == pin.hit.length && sum.matches(&tag);
        pin.member.count_pinned_read(&pin.hit, whole)
    }
}

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// Counts a read of a pinned block that has a key which this worker lacks.
    fn count_stale_read(&self) -> ReadOutcome {
        self.region.counters().add(Counter::ReadsStale, 1);
        ReadOutcome::Stale
    }

    /// Counts the outcome of reading a pinned block.
    fn count_pinned_read(&self, hit: &Hit, whole: bool) -> ReadOutcome {
        let counters = self.region.counters();
        if whole {
            counters.add(Counter::Reads, 1);
            counters.add(Counter::ReadBytes, hit.length);
            return ReadOutcome::Whole;
        }
        self.region.forget_seen(hit.block);
        counters.add(Counter::ReadsDamaged, 1);
        self.blocks.discard_damaged(hit, Timeout::TRY);
        ReadOutcome::Damaged
    }
}
