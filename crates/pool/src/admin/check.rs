//! `check` walks a region and reports structures and payloads that are corrupt, leaked or pending.

use super::memory::MemoryInfo;
use crate::error::PoolError;
use crate::members::Member;
use crate::members::recovery::Recovered;
use crate::region::counters::Counter;
use crate::region::hit::Hit;
use crate::region::host_layout::{CLASSES, DRAINING, FREE, OBJECT, PUBLISHED};
use crate::region::layout::NAMESPACES;
use crate::region::lines::{BlockState, ChunkLine, Descriptor, EventLine, Line};
use crate::region::piece::Kind;
use crate::sync::{Heap, Holds};
use cenote_base::BlockIndex;
use cenote_mem::host::LockTimeout;
use cenote_mem::{Fabric, HostLocal, Word};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// A structure or payload that is wrong, or not settled yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its name: `chunk 3`, `block 17`.
    pub what: String,
    /// The fact.
    pub fact: String,
    /// The consequence for users of the region.
    pub means: &'static str,
    /// The step that repairs it.
    pub repair: &'static str,
    /// Bytes that stay unusable until then.
    pub bytes: u64,
}

/// Result of a walk over the region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Chunks walked: those of this host, or of all hosts from a [`crate::Inspector`].
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
    /// Slots with memory of users: pieces, or arenas of pieces.
    pub memory: u64,
    /// Slots of retracted blocks that are still pinned.
    pub draining: u64,
    /// Pinned blocks.
    pub pinned: u64,
    /// Payloads with a verified checksum.
    pub payloads_verified: u64,
    /// Memory of users in the whole region.
    pub memory_of_users: MemoryInfo,
    /// Index entries.
    pub index_entries: u64,
    /// Index entries without a readable block: harmless, dropped by `gc`.
    pub index_stale: u64,
    /// Intact lines of event logs.
    pub events: u64,
    /// Dead workers that were recovered when the check attached.
    pub recovered: Recovered,
    /// Bytes that stay unusable without a repair: leaked slots, and chunks whose line names an
    /// impossible owner.
    pub leaked_bytes: u64,
    /// Space that stays unusable without a repair.
    pub leaks: Vec<Finding>,
    /// Corrupt structures and payloads.
    pub damage: Vec<Finding>,
    /// Leftovers of dead workers and hosts, which recovery clears.
    pub pending: Vec<Finding>,
}

impl CheckReport {
    /// No leak and no damage. Pending findings are no faults.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.leaks.is_empty() && self.damage.is_empty()
    }

    pub(crate) fn sum_leaked_bytes(&mut self) {
        self.leaked_bytes = self.leaks.iter().chain(&self.damage).map(|finding| finding.bytes).sum();
    }

    /// Moves disagreements between a host's memory and the region to `pending`: a worker of that
    /// host died, perhaps in the middle of a change. Findings before `leaks` and `damage` stay.
    pub(crate) fn blame_the_dead(&mut self, leaks: usize, damage: usize) {
        let (payloads, structures): (Vec<_>, Vec<_>) =
            self.damage.drain(damage..).partition(|finding| finding.fact == PAYLOAD_FACT);
        self.damage.extend(payloads);
        let left = self.leaks.drain(leaks..).chain(structures);
        self.pending.extend(left.map(|finding| Finding { means: UNSETTLED, repair: BY_THE_NEXT, ..finding }));
    }
}

const PAYLOAD_FACT: &str = "its payload does not match its checksum";

const UNSETTLED: &str = "its space is not free yet; nothing else is wrong";
const BY_THE_NEXT: &str = "the next worker that attaches, or the next tick of that host; `cenote pool gc` does it now";
const UNUSED: &str = "it holds an object or memory that nothing leads to";
const SPACE: &str = "its space is lost";
const MISS: &str = "reads of it are misses, and its space is unusable";
const UNFOUND: &str = "lookups miss it, and its space is unusable";
const RISK: &str = "two workers could write to its space; the first block then becomes a miss";
const GC: &str = "cenote pool gc";

/// Settings of a walk over slots.
pub(crate) struct Walk<'a> {
    /// Slots in this host's free lists.
    pub listed: BTreeSet<BlockIndex>,
    /// Whether the heap lock is held, so that no block is being evicted.
    pub is_locked: bool,
    /// Whether to verify a block's payload.
    pub payloads: &'a dyn Fn(BlockIndex) -> bool,
}

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// See [`crate::Pool::check`].
    pub fn check(&self, payloads: bool) -> Result<CheckReport, PoolError> {
        let mut report = CheckReport { recovered: self.recover_dead()?, ..CheckReport::default() };
        let heap = self.blocks.lock_heap_patiently().map_err(PoolError::lock("heap"))?;
        (report.index_entries, report.index_stale) = self.index.look_at_index();
        let lines = {
            let patient = self.locks.patient();
            let _chunks = self.space.lock_all_chunks(patient).map_err(PoolError::lock("chunk"))?;
            self.check_chunk_lines(&mut report)
        };
        self.check_own(&lines, &|_| payloads, true, &mut report);
        {
            let _tables = self.tables.lock(self.locks.patient()).map_err(PoolError::lock("table"))?;
            self.check_arenas(&mut report);
            report.memory_of_users = self.memory(|host, slot| self.slot_alive(host, slot));
        }
        if self.region.is_plain() {
            self.check_list(&heap, &mut report).map_err(PoolError::lock("index"))?;
        }
        self.check_events(self.region.host, &mut report);
        self.check_opened(self.region.host, &mut report);
        report.pinned = self.blocks.pinned().len() as u64;
        report.sum_leaked_bytes();
        self.region.counters().add(Counter::Damaged, report.damage.len() as u64);
        Ok(report)
    }
}

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// The highest valid owner in a chunk line.
    pub(super) fn owners_max(&self) -> u64 {
        if self.region.is_coherent() { 1 } else { self.region.layout.max_hosts }
    }

    /// The lines of all chunks that some host owns. Reports lines that cannot be a chunk's. The
    /// caller has refreshed them, or checks this host's only.
    pub(crate) fn check_chunk_lines(&self, report: &mut CheckReport) -> Vec<(u64, ChunkLine)> {
        let mut lines = Vec::new();
        for chunk in 0..self.region.layout.num_chunks {
            let at = self.region.layout.chunk(chunk);
            let words = self.region.fabric.load_line(at);
            if words == [0; 8] || ChunkLine::open(words, at, self.region.salt).is_some_and(|line| line.owner == 0) {
                continue;
            }
            let lost = |fact: &str, repair| Finding {
                what: format!("chunk {chunk}"),
                fact: fact.to_owned(),
                means: "it takes no new block, and its blocks stay only as long as their host's memory lists them",
                repair,
                bytes: self.region.layout.chunk_bytes,
            };
            match self.region.read_chunk(chunk) {
                Some(line) if line.owner <= self.owners_max() => lines.push((chunk, line)),
                Some(_) => report.leaks.push(lost("its owner is an impossible host number", GC)),
                None => report.damage.push(lost("its line is corrupt", "cenote pool gc, on each host")),
            }
        }
        lines
    }

    /// Checks this host's free lists and chunks, with or without the heap lock. Returns blocks that
    /// `gc` should discard.
    pub(crate) fn check_own(
        &self,
        lines: &[(u64, ChunkLine)],
        payloads: &dyn Fn(BlockIndex) -> bool,
        is_locked: bool,
        report: &mut CheckReport,
    ) -> BTreeSet<BlockIndex> {
        let walk = Walk { listed: self.check_free_lists(report), is_locked, payloads };
        let own = lines.iter().copied().filter(|(_, line)| line.owner == self.region.host + 1);
        let is_offered =
            |(chunk, line): &(u64, ChunkLine)| line.offered == 1 || self.region.class_of_offered(*chunk).is_some();
        let (offered, kept): (Vec<_>, Vec<_>) = own.partition(is_offered);
        offered.into_iter().for_each(|(chunk, line)| self.check_offered(chunk, &line, &walk, report));
        let unsound =
            kept.into_iter().flat_map(|(chunk, line)| self.check_chunk(chunk, &line, &walk, report)).collect();
        self.check_usage(report);
        unsound
    }

    fn check_free_lists(&self, report: &mut CheckReport) -> BTreeSet<BlockIndex> {
        let mut listed = BTreeSet::new();
        for class in 0..CLASSES {
            for block in self.space.free_list(class) {
                let what = || format!("block {block}");
                if !listed.insert(block) {
                    report.damage.push(finding(what(), "it is in two free lists", RISK, GC));
                }
                if self.region.slot_owner(block).load(Acquire) != FREE {
                    report.damage.push(finding(what(), "it is in a free list but in use", RISK, GC));
                }
            }
        }
        listed
    }

    /// Checks one chunk of this host. Returns blocks that `gc` should discard.
    fn check_chunk(&self, chunk: u64, line: &ChunkLine, walk: &Walk<'_>, report: &mut CheckReport) -> Vec<BlockIndex> {
        report.chunks += 1;
        let first = chunk * self.region.layout.descriptors_per_chunk;
        let (mut unsound, mut unnamed) = (Vec::new(), Vec::new());
        for slot in 0..self.region.layout.slots(line.slot_bytes) {
            let block = BlockIndex(first + slot);
            report.slots += 1;
            let findings = (report.leaks.len(), report.damage.len());
            self.check_slot(block, line.slot_bytes, walk, &mut unnamed, report);
            if findings != (report.leaks.len(), report.damage.len()) {
                unsound.push(block);
            }
        }
        if !unnamed.is_empty() {
            // A row may have been replaced while it was looked for.
            for block in unnamed.into_iter().filter(|&block| !self.tables.is_used(block)) {
                let nameless = finding(format!("block {block}"), UNUSED, SPACE, GC);
                report.leaks.push(nameless.costs(line.slot_bytes));
                unsound.push(block);
            }
        }
        unsound
    }

    /// Checks a chunk that this host offers. Another host may have taken it meanwhile, so only this
    /// host's memory says something.
    fn check_offered(&self, chunk: u64, line: &ChunkLine, walk: &Walk<'_>, report: &mut CheckReport) {
        report.chunks += 1;
        if walk.is_locked && self.region.class_of_offered(chunk).is_none() {
            let fact = "it is offered to other hosts, and this host's memory does not say so";
            report.leaks.push(finding(format!("chunk {chunk}"), fact, SPACE, GC).costs(self.region.layout.chunk_bytes));
        }
        for block in self.region.layout.blocks_of(chunk, line.slot_bytes).map(BlockIndex) {
            report.slots += 1;
            let owner = self.region.slot_owner(block).load(Acquire);
            report.free += u64::from(owner == FREE);
            report.ready += u64::from(owner == PUBLISHED);
            if walk.listed.contains(&block) {
                let fact = "it is in a free list, and its chunk is offered to other hosts";
                report.damage.push(finding(format!("block {block}"), fact, RISK, GC));
            }
        }
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
        let state = self.region.read_descriptor(block).and_then(|d| d.block_state());
        match self.region.slot_owner(block).load(Acquire) {
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
                let charged = self.region.slot_namespace(block).load(Relaxed).checked_sub(1);
                let namespace = self.region.read_descriptor(block).map(|descriptor| u32::from(descriptor.namespace()));
                if namespace.is_some_and(|namespace| Some(namespace) != charged && u64::from(namespace) < NAMESPACES) {
                    let fact = "it is not charged to its namespace";
                    report.damage.push(finding(what(), fact, "its quota is applied to a wrong sum", GC));
                }
                let Some(hit) = self.region.hit(block) else {
                    let fact = "it is published but its descriptor is corrupt";
                    report.damage.push(finding(what(), fact, MISS, GC));
                    return;
                };
                if !self.index.leads_to(hit.hash, block) {
                    let fact = "it is published but the index does not lead to it";
                    report.leaks.push(finding(what(), fact, UNFOUND, GC).costs(slot_bytes));
                }
                if (walk.payloads)(block) {
                    self.check_payload(&hit, true, report);
                }
            }
            DRAINING => report.draining += 1,
            OBJECT => {
                self.count_object(block, report);
                if !self.tables.is_used(block) {
                    unnamed.push(block);
                }
            }
            worker if u64::from(worker) > self.region.layout.workers_per_host => {
                let fact = format!("it is reserved by worker slot {worker}, which does not exist");
                report.damage.push(finding(what(), &fact, SPACE, GC).costs(slot_bytes));
            }
            worker if self.region.area.slot_alive(worker - 1) => report.reserved += 1,
            worker => {
                let fact = format!("it is reserved by worker slot {}, which is dead", worker - 1);
                report.pending.push(finding(what(), &fact, UNSETTLED, BY_THE_NEXT));
            }
        }
    }

    fn count_object(&self, block: BlockIndex, report: &mut CheckReport) {
        let kind = self.region.read_descriptor(block).map_or(Kind::Other, |found| Kind::of(&found));
        *(if kind.is_memory() { &mut report.memory } else { &mut report.objects }) += 1;
    }

    /// Verifies a block's payload, unless the block leaves meanwhile. `own`: this host writes its
    /// descriptor.
    fn check_payload(&self, hit: &Hit, own: bool, report: &mut CheckReport) {
        self.blocks.drop_stale_lines(hit, hit.length);
        let Some(is_whole) = self.region.verify(hit) else { return };
        report.payloads_verified += 1;
        if is_whole {
            return;
        }
        if !own {
            self.region.refresh_descriptors(hit.block.0..hit.block.0 + 1);
        }
        let state = self.region.fabric.load_line(self.region.layout.descriptor(hit.block))[0];
        if state == Descriptor::state_word(BlockState::Ready, hit.generation) {
            report.damage.push(finding(format!("block {}", hit.block), PAYLOAD_FACT, MISS, GC));
        }
    }

    /// Checks a chunk of a host whose memory is not accessible, from the region alone. `lives`: the
    /// host may live, and may be changing it.
    pub(crate) fn check_from_outside(
        &self,
        chunk: u64,
        line: &ChunkLine,
        lives: bool,
        walk: &Walk<'_>,
        report: &mut CheckReport,
    ) {
        report.chunks += 1;
        let first = chunk * self.region.layout.descriptors_per_chunk;
        let slots = first..first + self.region.layout.slots(line.slot_bytes);
        let place = |block| self.region.layout.descriptor(BlockIndex(block));
        self.region.refresh_range(place(slots.start), place(slots.end));
        for block in slots.map(BlockIndex) {
            report.slots += 1;
            let mut pend = |fact: &str| {
                report.pending.push(finding(format!("block {block}"), fact, UNSETTLED, BY_THE_NEXT));
            };
            let words = self.region.fabric.load_line(self.region.layout.descriptor(block));
            match self.region.read_descriptor(block).map(|descriptor| descriptor.block_state()) {
                Some(Some(BlockState::Ready)) => {
                    let Some(hit) = self.region.hit(block) else { continue };
                    if !self.index.leads_to(hit.hash, block) {
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
                    if !self.tables.is_used(block) {
                        pend(UNUSED);
                    }
                    self.count_object(block, report);
                }
                Some(Some(BlockState::Free)) => report.free += 1,
                Some(None) | None if words == [0; 8] => report.free += 1,
                Some(None) | None if lives => report.reserved += 1,
                Some(None) | None => pend("its descriptor is corrupt: its writer died"),
            }
        }
    }
}

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// Checks a host's ring, from this host's caches: counts the intact lines, reports the others.
    pub(crate) fn check_events(&self, host: u64, report: &mut CheckReport) {
        let (mut used, mut broken) = (0, 0);
        for position in 0..self.region.layout.events_per_host {
            if self.log.line_at::<EventLine>(host, position).is_some() {
                used += 1;
            } else if self.region.fabric.load_line(self.region.layout.event(host, position)) != [0; 8] {
                broken += 1;
            }
        }
        report.events += used;
        if broken > 0 {
            report.pending.push(finding(
                format!("event log of host {host}"),
                &format!("{broken} of its lines are corrupt: their writers died, or are still writing"),
                "followers of the log detect it and walk the descriptors once",
                "later events overwrite them",
            ));
        }
    }

    /// Checks the lines with the namespaces that a host's workers have open, from this host's
    /// caches.
    pub(crate) fn check_opened(&self, host: u64, report: &mut CheckReport) {
        let torn = self.tables.torn_opened(host);
        if torn > 0 {
            report.pending.push(finding(
                format!("namespaces of host {host}'s workers"),
                &format!("{torn} lines are corrupt: their writers died, or are still writing"),
                "each counts as a worker that has every namespace open, so no row of the table is reclaimed",
                "living workers repair theirs at their next tick; `cenote pool gc` on that host clears the others",
            ));
        }
    }

    /// Checks the plain design's list against the blocks that it must have.
    fn check_list(&self, heap: &Holds<Heap>, report: &mut CheckReport) -> Result<(), LockTimeout> {
        const STAY: &str = "blocks may stay that should be evicted";
        const RELINK: &str = "`cenote pool gc` rebuilds the list";
        let faults = self.index.check_list(heap)?;
        if faults.is_broken {
            let what = "the list of the plain design".to_owned();
            report.damage.push(finding(what, "its links do not agree", STAY, RELINK));
        }
        for block in faults.unready {
            let fact = "it is listed as evictable but not published";
            report.damage.push(finding(format!("block {block}"), fact, STAY, RELINK));
        }
        for block in faults.unlisted {
            let fact = "it is published but not in the list of evictable blocks";
            report.leaks.push(finding(format!("block {block}"), fact, "it can be found but is never evicted", RELINK));
        }
        Ok(())
    }
}

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// Checks this host's charges against the charged slots, and against the published sums.
    pub(crate) fn check_usage(&self, report: &mut CheckReport) {
        let mut charged = BTreeMap::<u64, u64>::new();
        for block in (0..self.region.layout.num_descriptors()).map(BlockIndex) {
            let Some(namespace) = self.region.slot_namespace(block).load(Relaxed).checked_sub(1) else { continue };
            let chunk = self.region.layout.chunk_of(block);
            // A chunk that another host took stays charged until this host notices.
            let class = self.region.class_of_chunk(chunk).or_else(|| self.region.class_of_offered(chunk));
            let bytes = class.map_or(0, |class| self.region.class_bytes(class).load(Relaxed));
            *charged.entry(namespace.into()).or_default() += bytes;
        }
        for (namespace, shown) in (0..).zip(self.space.shown_by(self.region.host)) {
            let usage = self.region.usage(namespace).load(Relaxed);
            let slots = charged.get(&namespace).copied().unwrap_or(0);
            if usage != slots || usage != shown {
                let fact = format!(
                    "host {} counts {usage} bytes, publishes {shown}, and its slots have {slots}",
                    self.region.host
                );
                report.damage.push(finding(format!("namespace {namespace}"), &fact, WRONG_SUM, "cenote pool gc"));
            }
        }
    }

    /// As [`Self::check_usage`], for a host without accessible memory.
    pub(crate) fn check_usage_from_outside(&self, host: u64, lines: &[(u64, ChunkLine)], report: &mut CheckReport) {
        let mut stored = BTreeMap::<u64, u64>::new();
        for (chunk, line) in lines.iter().filter(|(_, line)| line.owner == host + 1) {
            let first = chunk * self.region.layout.descriptors_per_chunk;
            for block in (first..first + self.region.layout.slots(line.slot_bytes)).map(BlockIndex) {
                if let Some(descriptor) = self.region.read_descriptor(block).filter(|d| d.is_charged()) {
                    *stored.entry(descriptor.namespace().into()).or_default() += line.slot_bytes;
                }
            }
        }
        self.region.refresh_range(self.region.layout.usage(host, 0), self.region.layout.usage(host, NAMESPACES));
        for (namespace, shown) in (0..).zip(self.space.shown_by(host)) {
            let stored = stored.get(&namespace).copied().unwrap_or(0);
            if shown != stored {
                let fact = format!("host {host} publishes {shown} bytes, and its blocks have {stored}");
                let what = format!("namespace {namespace}");
                report.pending.push(finding(what, &fact, WRONG_SUM, "the next life of that host recounts"));
            }
        }
    }
}

const WRONG_SUM: &str = "the namespace's quota is applied to a wrong sum";

impl Finding {
    /// The finding, with the bytes that it makes unusable.
    const fn costs(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }
}

pub(crate) fn finding(what: String, fact: &str, means: &'static str, repair: &'static str) -> Finding {
    Finding { what, fact: fact.to_owned(), means, repair, bytes: 0 }
}
