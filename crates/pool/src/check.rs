//! `check` walks everything and reports; `gc` gives back what nobody uses.

use crate::error::PoolError;
use crate::heap::{DRAINING, FREE, OBJECT, PUBLISHED};
use crate::history::Event;
use crate::host_words::CLASSES;
use crate::layout::SHARDS;
use crate::lines::{BlockState, ChunkLine};
use crate::locks::Name;
use crate::pool::{Inner, Pool};
use crate::recovery::Recovered;
use crate::stats::Counter;
use cenote_base::BlockIndex;
use cenote_mem::{Fabric, HostLocal};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Acquire;

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The thing: `chunk 3`, `block 17`.
    pub what: String,
    /// The fact.
    pub fact: String,
}

/// What a walk over the region found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Chunks owned by this host.
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
    /// What died before this check and was cleaned up when it attached.
    pub recovered: Recovered,
    /// Space that nobody can use and nobody will give back.
    pub leaks: Vec<Finding>,
    /// Structures or payloads that do not hold.
    pub damage: Vec<Finding>,
}

impl CheckReport {
    /// No leak and no damage.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.leaks.is_empty() && self.damage.is_empty()
    }
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
        let listed = inner.check_free_lists(&mut report);
        let objects: BTreeSet<BlockIndex> = inner.object_blocks().into_iter().collect();
        for chunk in 0..inner.layout.num_chunks {
            inner.check_chunk(chunk, &listed, &objects, payloads, &mut report);
        }
        report.pinned = inner.pinned_blocks().len() as u64;
        (report.index_entries, report.index_stale) = inner.count_entries();
        inner.counters().add(Counter::Damaged, report.damage.len() as u64);
        Ok(report)
    }

    /// Cleans up after the dead, drops index entries that lead nowhere, frees blocks that cannot be found or
    /// do not hold, and gives empty chunks back.
    ///
    /// # Errors
    /// A lock was busy for too long.
    pub fn gc(&self) -> Result<GcReport, PoolError> {
        let inner = &*self.0;
        let mut report = GcReport { recovered: inner.recover_dead()?, ..GcReport::default() };
        let _heap = inner.lock_patiently(Name::Heap).map_err(PoolError::lock("heap"))?;
        report.chunks_adopted = inner.adopt_chunks();
        let found = {
            let mut checked = CheckReport::default();
            let objects: BTreeSet<BlockIndex> = inner.object_blocks().into_iter().collect();
            let listed = inner.check_free_lists(&mut checked);
            let mut unsound = BTreeSet::new();
            for chunk in 0..inner.layout.num_chunks {
                unsound.extend(inner.check_chunk(chunk, &listed, &objects, true, &mut checked));
            }
            unsound
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
        for chunk in 0..inner.layout.num_chunks {
            if inner.chunk_is_empty(chunk) {
                inner.release_chunk(chunk);
                report.chunks_released += 1;
            }
        }
        for shard in 0..SHARDS {
            let _shard = inner.lock_patiently(Name::Shard(shard)).map_err(PoolError::lock("index"))?;
            let repaired = inner.repair_shard(shard);
            report.index_dropped += repaired.entries_dropped;
            report.counts_mended += repaired.counts_mended;
        }
        inner.record(Event::Collected, report.blocks_freed, report.chunks_released);
        Ok(report)
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    fn chunk_is_empty(&self, chunk: u64) -> bool {
        let Some(line) = self.read_chunk(chunk).filter(|line| line.owner == self.host + 1) else { return false };
        let first = chunk * self.layout.descriptors_per_chunk;
        (first..first + self.layout.slots(line.slot_bytes))
            .all(|block| self.slot_owner(BlockIndex(block)).load(Acquire) == FREE)
    }

    fn check_free_lists(&self, report: &mut CheckReport) -> BTreeSet<BlockIndex> {
        let mut listed = BTreeSet::new();
        for class in 0..CLASSES {
            for block in self.free_list(class) {
                if !listed.insert(block) {
                    report.damage.push(finding(format!("block {block}"), "it is in two free lists".to_owned()));
                }
                if self.slot_owner(block).load(Acquire) != FREE {
                    report.damage.push(finding(format!("block {block}"), "it is in a free list but taken".to_owned()));
                }
            }
        }
        listed
    }

    /// Checks one chunk; returns blocks that `gc` should discard.
    fn check_chunk(
        &self,
        chunk: u64,
        listed: &BTreeSet<BlockIndex>,
        objects: &BTreeSet<BlockIndex>,
        payloads: bool,
        report: &mut CheckReport,
    ) -> Vec<BlockIndex> {
        let at = self.layout.chunk(chunk);
        let holds = |words: &[u64; 8]| *words == [0; 8] || ChunkLine::open(*words, at, self.salt).is_some();
        // A line that another host is just writing is whole at the next look.
        let words = (0..3).map(|_| self.fresh_line(at)).find(holds).unwrap_or_else(|| self.fresh_line(at));
        if words == [0; 8] || ChunkLine::open(words, at, self.salt).is_some_and(|line| line.owner == 0) {
            return Vec::new();
        }
        let Some(line) = self.read_chunk(chunk) else {
            report.damage.push(finding(format!("chunk {chunk}"), "its line does not hold".to_owned()));
            return Vec::new();
        };
        if line.owner != self.host + 1 {
            // Another host's: only it knows its free lists.
            return Vec::new();
        }
        report.chunks += 1;
        let first = chunk * self.layout.descriptors_per_chunk;
        let (mut unsound, mut unnamed) = (Vec::new(), Vec::new());
        for slot in 0..self.layout.slots(line.slot_bytes) {
            let block = BlockIndex(first + slot);
            report.slots += 1;
            let findings = (report.leaks.len(), report.damage.len());
            self.check_slot(block, listed, &mut unnamed, objects, payloads, report);
            if findings != (report.leaks.len(), report.damage.len()) {
                unsound.push(block);
            }
        }
        if !unnamed.is_empty() {
            // They may have been put since the rows were read. One more look serves for the whole chunk: a damaged
            // region may be full of objects without names.
            let named = self.object_blocks();
            for block in unnamed.into_iter().filter(|block| !named.contains(block)) {
                report.leaks.push(finding(format!("block {block}"), "it holds an object that no key names".to_owned()));
                unsound.push(block);
            }
        }
        unsound
    }

    fn check_slot(
        &self,
        block: BlockIndex,
        listed: &BTreeSet<BlockIndex>,
        unnamed: &mut Vec<BlockIndex>,
        objects: &BTreeSet<BlockIndex>,
        payloads: bool,
        report: &mut CheckReport,
    ) {
        let what = || format!("block {block}");
        let state = self.read_descriptor(block).and_then(|d| d.block_state());
        match self.slot_owner(block).load(Acquire) {
            FREE => {
                report.free += 1;
                if !listed.contains(&block) {
                    report.leaks.push(finding(what(), "it is free but in no free list".to_owned()));
                }
                if matches!(state, Some(BlockState::Ready | BlockState::Object)) {
                    report.damage.push(finding(what(), "it is free but its descriptor says it is in use".to_owned()));
                }
            }
            PUBLISHED => {
                report.ready += 1;
                let Some(hit) = self.hit(block) else {
                    report.damage.push(finding(what(), "it is published but its descriptor does not hold".to_owned()));
                    return;
                };
                if self.find(hit.hash).is_none_or(|(found, _)| found != block) {
                    report.leaks.push(finding(what(), "it is published but the index does not lead to it".to_owned()));
                }
                if payloads {
                    report.payloads_verified += 1;
                    if !self.verify(&hit) {
                        report.damage.push(finding(what(), "its payload does not have its checksum".to_owned()));
                    }
                }
            }
            DRAINING => report.draining += 1,
            OBJECT => {
                report.objects += 1;
                if !objects.contains(&block) {
                    unnamed.push(block);
                }
            }
            worker => {
                report.reserved += 1;
                if u64::from(worker) > self.layout.workers_per_host {
                    report
                        .damage
                        .push(finding(what(), format!("it is reserved by worker slot {worker}, which cannot be")));
                } else if !self.area.slot_alive(worker - 1) {
                    report
                        .leaks
                        .push(finding(what(), format!("it is reserved by worker slot {}, which is dead", worker - 1)));
                }
            }
        }
    }
}

const fn finding(what: String, fact: String) -> Finding {
    Finding { what, fact }
}
