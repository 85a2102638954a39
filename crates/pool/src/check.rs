//! `check` walks everything and reports; `gc` gives back what nobody uses.

use crate::blocks::Hit;
use crate::error::PoolError;
use crate::heap::{DRAINING, FREE, OBJECT, PUBLISHED};
use crate::history::Event;
use crate::locks::{Intent, Name};
use crate::pool::{Inner, Pool};
use crate::recovery::Recovered;
use crate::region::counters::Counter;
use crate::region::host_layout::CLASSES;
use crate::region::layout::{NAMESPACES, SHARDS};
use crate::region::lines::{BlockState, ChunkLine, Descriptor, Line};
use cenote_base::{BlockHash, BlockIndex};
use cenote_mem::{Fabric, HostLocal, Word};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

/// Something that is not as it must be, or not yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The thing: `chunk 3`, `block 17`.
    pub what: String,
    /// The fact.
    pub fact: String,
    /// What it means for those who use the region.
    pub means: &'static str,
    /// What ends it.
    pub repair: &'static str,
    /// Bytes that nobody can use as long as it lasts.
    pub bytes: u64,
}

/// What a walk over the region found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Chunks that were walked: those of this host, or of all hosts where [`crate::Inspector`] looked.
    pub chunks: u64,
    /// Block slots in them.
    pub slots: u64,
    /// Readable blocks.
    pub ready: u64,
    /// Free slots.
    pub free: u64,
    /// Slots that live workers are writing.
    pub reserved: u64,
    /// Slots with objects.
    pub objects: u64,
    /// Slots that wait for a pin to go.
    pub draining: u64,
    /// Blocks pinned by someone.
    pub pinned: u64,
    /// Payloads whose checksum was verified.
    pub payloads_verified: u64,
    /// Index entries.
    pub index_entries: u64,
    /// Index entries that lead nowhere: harmless, dropped by `gc`.
    pub index_stale: u64,
    /// Lines of event logs that hold.
    pub events: u64,
    /// What died before this check and was cleaned up when it attached.
    pub recovered: Recovered,
    /// Bytes that nobody can use and nobody will give back: the slots of the leaks, and chunks whose line names no
    /// owner that could be.
    pub leaked_bytes: u64,
    /// Space that nobody can use and nobody will give back.
    pub leaks: Vec<Finding>,
    /// Structures or payloads that do not hold.
    pub damage: Vec<Finding>,
    /// What the dead left and the living will clear up by themselves.
    pub pending: Vec<Finding>,
}

impl CheckReport {
    /// No leak and no damage. What is pending is no fault.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.leaks.is_empty() && self.damage.is_empty()
    }

    pub(crate) fn sum_leaked_bytes(&mut self) {
        self.leaked_bytes = self.leaks.iter().chain(&self.damage).map(|finding| finding.bytes).sum();
    }

    /// Moves what a host's memory and the region disagree about to what is pending: a worker of that host died, and
    /// perhaps in the middle of it. What was found before `leaks` and `damage` stays.
    pub(crate) fn blame_the_dead(&mut self, leaks: usize, damage: usize) {
        let (payloads, structures): (Vec<_>, Vec<_>) =
            self.damage.drain(damage..).partition(|finding| finding.fact == PAYLOAD_FACT);
        self.damage.extend(payloads);
        let left = self.leaks.drain(leaks..).chain(structures);
        self.pending.extend(left.map(|finding| Finding { means: UNSETTLED, repair: BY_THE_NEXT, ..finding }));
    }
}

const PAYLOAD_FACT: &str = "its payload does not have its checksum";

const UNSETTLED: &str = "its space is not to be had yet; nothing else is wrong with it";
const BY_THE_NEXT: &str = "whoever attaches next, or a worker of that host when it ticks; `cenote pool gc` does it now";
const SPACE: &str = "its space is lost to everybody";
const MISS: &str = "reads of it are misses, and its space serves nobody";
const UNFOUND: &str = "lookups miss it, and its space serves nobody";
const RISK: &str = "two users of its space could meet: whoever comes second costs the first a miss";
const GC: &str = "cenote pool gc";

/// How a walk looks at slots.
pub(crate) struct Walk<'a> {
    /// Free slots by the host's own lists.
    pub listed: BTreeSet<BlockIndex>,
    /// Blocks that rows of the object table name.
    pub objects: &'a BTreeSet<BlockIndex>,
    /// Whether the heap lock is held, so that nothing is just leaving.
    pub is_locked: bool,
    /// Whose payload is verified.
    pub payloads: &'a dyn Fn(BlockIndex) -> bool,
}

/// What garbage collection gave back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GcReport {
    /// Dead workers and what they held.
    pub recovered: Recovered,
    /// Index entries dropped.
    pub index_dropped: u64,
    /// Overflow counts mended.
    pub counts_mended: u64,
    /// Blocks freed that nobody could find, damaged ones among them.
    pub blocks_freed: u64,
    /// Chunks taken over from dead hosts whose quarantine has ended.
    pub chunks_adopted: u64,
    /// Chunks given back to the region.
    pub chunks_released: u64,
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Walks chunks, descriptors, free lists and index of this host, and with `payloads` every byte.
    /// Others may work meanwhile; the heap lock keeps space from changing hands.
    ///
    /// # Errors
    /// The heap was busy for too long.
    pub fn check(&self, payloads: bool) -> Result<CheckReport, PoolError> {
        let inner = &*self.0;
        let mut report = CheckReport { recovered: inner.recover_dead()?, ..CheckReport::default() };
        let _heap = inner.lock_patiently(Name::Heap).map_err(PoolError::lock("heap"))?;
        let objects: BTreeSet<BlockIndex> = inner.object_blocks().into_iter().collect();
        (report.index_entries, report.index_stale) = inner.look_at_index();
        let lines = {
            let _chunks = inner.lock_patiently(Name::Chunks).map_err(PoolError::lock("chunk"))?;
            inner.check_chunk_lines(&mut report)
        };
        inner.check_own(&lines, &objects, &|_| payloads, true, &mut report);
        if inner.is_plain() {
            inner.check_list(&mut report).map_err(PoolError::lock("index"))?;
        }
        inner.check_events(inner.host, &mut report);
        report.pinned = inner.pinned_blocks().len() as u64;
        report.sum_leaked_bytes();
        inner.counters().add(Counter::Damaged, report.damage.len() as u64);
        Ok(report)
    }

    /// Cleans up after the dead, drops index entries that lead nowhere, frees blocks that cannot be found or
    /// do not hold, and gives empty chunks back.
    ///
    /// # Errors
    /// A lock was busy for too long.
    pub fn gc(&self) -> Result<GcReport, PoolError> {
        self.0.collect_garbage(true, self.0.patience())
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// As [`Pool::gc`]; with `payloads` every byte is read. Waits `patience` for each lock.
    pub(crate) fn collect_garbage(&self, payloads: bool, patience: Duration) -> Result<GcReport, PoolError> {
        let inner = self;
        let lock = |name: Name, what: &'static str| {
            inner.lock_within(name, Intent::ALL, patience).map_err(PoolError::lock(what))
        };
        let mut report = GcReport { recovered: inner.recover_dead()?, ..GcReport::default() };
        let _heap = lock(Name::Heap, "heap")?;
        report.chunks_adopted = inner.adopt_chunks();
        let found = {
            let orphans = {
                let _chunks = lock(Name::Chunks, "chunk")?;
                inner.mend_chunks();
                inner.orphans()
            };
            let mut patience = inner.lock_timeout;
            let unlinked = orphans.into_iter().filter(|&(hash, block)| inner.unlink(hash, block, &mut patience));
            report.index_dropped += unlinked.count() as u64;
            inner.refresh_index();
            let mut checked = CheckReport::default();
            let objects: BTreeSet<BlockIndex> = inner.object_blocks().into_iter().collect();
            let lines = inner.check_chunk_lines(&mut checked);
            inner.check_own(&lines, &objects, &|_| payloads, true, &mut checked)
        };
        let pinned = inner.pinned_blocks();
        // What a worker has reserved is its own, or its recoverer's.
        let reserved = |block: BlockIndex| {
            (1..=inner.layout.workers_per_host).contains(&u64::from(inner.slot_owner(block).load(Acquire)))
        };
        let mut patience = inner.lock_timeout;
        for block in found.into_iter().filter(|block| !pinned.contains(block) && !reserved(*block)) {
            inner.finish_eviction(block, &mut patience);
            report.blocks_freed += 1;
        }
        inner.rebuild_heap();
        inner.retry_draining();
        for chunk in 0..inner.layout.num_chunks {
            if inner.chunk_is_empty(chunk) {
                inner.release_chunk(chunk);
                report.chunks_released += 1;
            }
        }
        for shard in 0..SHARDS {
            let name = if inner.is_plain() { Name::PLAIN } else { Name::Shard(shard) };
            let _shard = lock(name, "index")?;
            let repaired = inner.repair_shard(shard);
            report.index_dropped += repaired.entries_dropped;
            report.counts_mended += repaired.counts_mended;
        }
        if inner.is_plain() {
            inner.mend_list().map_err(PoolError::lock("index"))?;
        }
        inner.record(Event::Collected, report.blocks_freed, report.chunks_released);
        Ok(report)
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    pub(crate) fn chunk_is_empty(&self, chunk: u64) -> bool {
        let Some(line) = self.read_chunk(chunk).filter(|line| line.owner == self.host + 1) else { return false };
        let first = chunk * self.layout.descriptors_per_chunk;
        (first..first + self.layout.slots(line.slot_bytes))
            .all(|block| self.slot_owner(BlockIndex(block)).load(Acquire) == FREE)
    }

    /// The highest owner that a chunk line may name.
    fn owners_max(&self) -> u64 {
        if self.is_coherent() { 1 } else { self.layout.max_hosts }
    }

    /// Gives chunk lines that do not hold back their owner, if it is this host, or makes them free where nobody can
    /// own them. The caller holds the heap lock and the chunk lock.
    fn mend_chunks(&self) {
        let holds = |chunk: u64| {
            let words = self.fabric.load_line(self.layout.chunk(chunk));
            let is_free = |line: ChunkLine| line.owner == 0;
            words == [0; 8]
                || ChunkLine::open(words, self.layout.chunk(chunk), self.salt).is_some_and(is_free)
                || self.read_chunk(chunk).is_some_and(|line| line.owner <= self.owners_max())
        };
        for chunk in (0..self.layout.num_chunks).filter(|&chunk| !holds(chunk)) {
            let at = self.layout.chunk(chunk);
            let words = self.fabric.load_line(at);
            let owner = ChunkLine::open(words, at, self.salt).map(|line| line.owner);
            let strays = ChunkLine::strays_of(words);
            if let Some(class) = self.chunk_class(chunk).load(Relaxed).checked_sub(1) {
                let ours = ChunkLine {
                    owner: self.host + 1,
                    incarnation: self.incarnation(),
                    slot_bytes: self.class_bytes(class as usize).load(Relaxed),
                    strays,
                    ..ChunkLine::default()
                };
                self.put_chunk(chunk, &ours);
            } else if self.is_coherent() || owner.is_some_and(|owner| owner > self.owners_max()) {
                self.put_chunk(chunk, &ChunkLine { strays, ..ChunkLine::default() });
                self.tell_gap();
                self.chunk_hint().fetch_min(u32::try_from(chunk).unwrap_or(u32::MAX), Relaxed);
            }
            // Another host may own it and know it; it mends the line itself.
        }
    }

    /// Readable blocks in chunks that no host owns: only a chunk line that was damaged leaves them behind. Nobody would ever
    /// take them out, and their hashes could not be published anew. The caller holds the chunk lock.
    fn orphans(&self) -> Vec<(BlockHash, BlockIndex)> {
        let mut orphans = Vec::new();
        for chunk in 0..self.layout.num_chunks {
            let is_listed = self.chunk_class(chunk).load(Relaxed) != 0;
            if is_listed || self.free_chunk(chunk).is_none() {
                continue;
            }
            let first = chunk * self.layout.descriptors_per_chunk;
            let blocks = first..first + self.layout.descriptors_per_chunk;
            self.refresh_descriptors(blocks.clone());
            orphans.extend(blocks.map(BlockIndex).filter_map(|block| Some((self.hit(block)?.hash, block))));
        }
        orphans
    }

    /// The lines of all chunks that some host owns. What cannot be a chunk's line is reported. The caller has refreshed
    /// them, or looks at this host's only.
    pub(crate) fn check_chunk_lines(&self, report: &mut CheckReport) -> Vec<(u64, ChunkLine)> {
        let mut lines = Vec::new();
        for chunk in 0..self.layout.num_chunks {
            let at = self.layout.chunk(chunk);
            let words = self.fabric.load_line(at);
            if words == [0; 8] || ChunkLine::open(words, at, self.salt).is_some_and(|line| line.owner == 0) {
                continue;
            }
            let lost = |fact: &str, repair| Finding {
                what: format!("chunk {chunk}"),
                fact: fact.to_owned(),
                means: "no block can be put into it, and those in it stay as long as their host knows them",
                repair,
                bytes: self.layout.chunk_bytes,
            };
            match self.read_chunk(chunk) {
                Some(line) if line.owner <= self.owners_max() => lines.push((chunk, line)),
                Some(_) => report.leaks.push(lost("its owner is a host that cannot be", GC)),
                None => report.damage.push(lost("its line does not hold", "cenote pool gc, on each host")),
            }
        }
        lines
    }

    /// Checks this host's free lists and chunks, with the heap lock held or not; returns blocks that `gc` should discard.
    pub(crate) fn check_own(
        &self,
        lines: &[(u64, ChunkLine)],
        objects: &BTreeSet<BlockIndex>,
        payloads: &dyn Fn(BlockIndex) -> bool,
        is_locked: bool,
        report: &mut CheckReport,
    ) -> BTreeSet<BlockIndex> {
        let walk = Walk { listed: self.check_free_lists(report), objects, is_locked, payloads };
        let own = lines.iter().filter(|(_, line)| line.owner == self.host + 1);
        let unsound = own.flat_map(|(chunk, line)| self.check_chunk(*chunk, line, &walk, report)).collect();
        self.check_usage(report);
        unsound
    }

    fn check_free_lists(&self, report: &mut CheckReport) -> BTreeSet<BlockIndex> {
        let mut listed = BTreeSet::new();
        for class in 0..CLASSES {
            for block in self.free_list(class) {
                let what = || format!("block {block}");
                if !listed.insert(block) {
                    report.damage.push(finding(what(), "it is in two free lists", RISK, GC));
                }
                if self.slot_owner(block).load(Acquire) != FREE {
                    report.damage.push(finding(what(), "it is in a free list but taken", RISK, GC));
                }
            }
        }
        listed
    }

    /// Checks one chunk of this host; returns blocks that `gc` should discard.
    fn check_chunk(&self, chunk: u64, line: &ChunkLine, walk: &Walk<'_>, report: &mut CheckReport) -> Vec<BlockIndex> {
        report.chunks += 1;
        let first = chunk * self.layout.descriptors_per_chunk;
        let (mut unsound, mut unnamed) = (Vec::new(), Vec::new());
        for slot in 0..self.layout.slots(line.slot_bytes) {
            let block = BlockIndex(first + slot);
            report.slots += 1;
            let findings = (report.leaks.len(), report.damage.len());
            self.check_slot(block, line.slot_bytes, walk, &mut unnamed, report);
            if findings != (report.leaks.len(), report.damage.len()) {
                unsound.push(block);
            }
        }
        if !unnamed.is_empty() {
            // They may have been put since the rows were read. One more look serves for the whole chunk: a damaged
            // region may be full of objects without names.
            let named = self.object_blocks();
            for block in unnamed.into_iter().filter(|block| !named.contains(block)) {
                let nameless = finding(format!("block {block}"), "it holds an object that no key names", SPACE, GC);
                report.leaks.push(nameless.costs(line.slot_bytes));
                unsound.push(block);
            }
        }
        unsound
    }

    fn check_slot(
        &self,
        block: BlockIndex,
        slot_bytes: u64,
        walk: &Walk<'_>,
        unnamed: &mut Vec<BlockIndex>,
        report: &mut CheckReport,
    ) {
        let what = || format!("block {block}");
        let state = self.read_descriptor(block).and_then(|d| d.block_state());
        match self.slot_owner(block).load(Acquire) {
            FREE => {
                report.free += 1;
                if !walk.listed.contains(&block) {
                    let lost = finding(what(), "it is free but in no free list", SPACE, GC);
                    report.leaks.push(lost.costs(slot_bytes));
                }
                if matches!(state, Some(BlockState::Ready | BlockState::Object)) {
                    let fact = "it is free but its descriptor says it is in use";
                    report.damage.push(finding(what(), fact, RISK, GC));
                }
            }
            PUBLISHED => {
                if state == Some(BlockState::Evicting) && !walk.is_locked {
                    report.draining += 1;
                    return;
                }
                report.ready += 1;
                let charged = self.slot_namespace(block).load(Relaxed).checked_sub(1);
                let namespace = self.read_descriptor(block).map(|descriptor| u32::from(descriptor.namespace()));
                if namespace.is_some_and(|namespace| Some(namespace) != charged && u64::from(namespace) < NAMESPACES) {
                    let fact = "it is not charged to its namespace";
                    report.damage.push(finding(what(), fact, "a quota is applied to a wrong sum", GC));
                }
                let Some(hit) = self.hit(block) else {
                    let fact = "it is published but its descriptor does not hold";
                    report.damage.push(finding(what(), fact, MISS, GC));
                    return;
                };
                if !self.leads_to(hit.hash, block) {
                    let fact = "it is published but the index does not lead to it";
                    report.leaks.push(finding(what(), fact, UNFOUND, GC).costs(slot_bytes));
                }
                if (walk.payloads)(block) {
                    self.check_payload(&hit, true, report);
                }
            }
            DRAINING => report.draining += 1,
            OBJECT => {
                report.objects += 1;
                if !walk.objects.contains(&block) {
                    unnamed.push(block);
                }
            }
            worker if u64::from(worker) > self.layout.workers_per_host => {
                let fact = format!("it is reserved by worker slot {worker}, which cannot be");
                report.damage.push(finding(what(), &fact, SPACE, GC).costs(slot_bytes));
            }
            worker if self.area.slot_alive(worker - 1) => report.reserved += 1,
            worker => {
                let fact = format!("it is reserved by worker slot {}, which is dead", worker - 1);
                report.pending.push(finding(what(), &fact, UNSETTLED, BY_THE_NEXT));
            }
        }
    }

    /// Verifies a block's payload, unless it leaves meanwhile. `own`: this host writes its descriptor.
    fn check_payload(&self, hit: &Hit, own: bool, report: &mut CheckReport) {
        self.sweep(hit, hit.length);
        report.payloads_verified += 1;
        if self.verify(hit) {
            return;
        }
        if !own {
            self.refresh_descriptors(hit.block.0..hit.block.0 + 1);
        }
        let state = self.fabric.load_line(self.layout.descriptor(hit.block))[0];
        if state == Descriptor::state_word(BlockState::Ready, hit.generation) {
            report.damage.push(finding(format!("block {}", hit.block), PAYLOAD_FACT, MISS, GC));
        }
    }

    /// Checks a chunk of a host whose own memory is not to be seen: what the region itself says. `lives`: its host
    /// may, and may be changing what is looked at.
    pub(crate) fn check_from_outside(
        &self,
        chunk: u64,
        line: &ChunkLine,
        lives: bool,
        walk: &Walk<'_>,
        report: &mut CheckReport,
    ) {
        report.chunks += 1;
        let first = chunk * self.layout.descriptors_per_chunk;
        let slots = first..first + self.layout.slots(line.slot_bytes);
        let place = |block| self.layout.descriptor(BlockIndex(block));
        self.refresh_range(place(slots.start), place(slots.end));
        for block in slots.map(BlockIndex) {
            report.slots += 1;
            let mut pend = |fact: &str| {
                report.pending.push(finding(format!("block {block}"), fact, UNSETTLED, BY_THE_NEXT));
            };
            let words = self.fabric.load_line(self.layout.descriptor(block));
            match self.read_descriptor(block).map(|descriptor| descriptor.block_state()) {
                Some(Some(BlockState::Ready)) => {
                    let Some(hit) = self.hit(block) else { continue };
                    if !self.leads_to(hit.hash, block) {
                        pend("it is whole but the index does not lead to it");
                    }
                    report.ready += 1;
                    if (walk.payloads)(block) {
                        self.check_payload(&hit, false, report);
                    }
                }
                Some(Some(BlockState::Evicting)) => {
                    if !lives {
                        pend("it was being evicted when its host died");
                    }
                    report.draining += 1;
                }
                Some(Some(BlockState::Object)) => {
                    if !walk.objects.contains(&block) {
                        pend("it holds an object that no key names");
                    }
                    report.objects += 1;
                }
                Some(Some(BlockState::Free)) => report.free += 1,
                Some(None) | None if words == [0; 8] => report.free += 1,
                Some(None) | None if lives => report.reserved += 1,
                Some(None) | None => pend("its descriptor does not hold: its writer died"),
            }
        }
    }
}

impl Finding {
    /// A finding that keeps this many bytes from everybody.
    const fn costs(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }
}

pub(crate) fn finding(what: String, fact: &str, means: &'static str, repair: &'static str) -> Finding {
    Finding { what, fact: fact.to_owned(), means, repair, bytes: 0 }
}
