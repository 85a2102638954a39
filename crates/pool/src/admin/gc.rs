//! Garbage collection: frees what no worker uses.

use super::check::CheckReport;
use crate::error::PoolError;
use crate::log::recorder::Event;
use crate::members::Member;
use crate::members::recovery::Recovered;
use crate::region::cause::Cause;
use crate::region::host_layout::Peer;
use crate::region::layout::SHARDS;
use crate::region::lines::{ChunkLine, Line};
use crate::sync::{Chunks, Heap, Holds, Intent, Timeout};
use cenote_base::{BlockHash, BlockIndex};
use cenote_mem::{Fabric, HostLocal, Word};
use serde::Serialize;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Result of a garbage collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GcReport {
    /// Dead workers and their reservations.
    pub recovered: Recovered,
    /// Index entries dropped.
    pub index_dropped: u64,
    /// Overflow counts corrected.
    pub counts_mended: u64,
    /// Blocks freed that lookups could not find, corrupt ones among them.
    pub blocks_freed: u64,
    /// Chunks adopted from dead hosts after their quarantine.
    pub chunks_adopted: u64,
    /// Chunks released to the region.
    pub chunks_released: u64,
}

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// Recovers dead workers, drops index entries without a readable block, frees blocks that
    /// lookups cannot find or that are corrupt, and releases empty chunks. With `payloads` it
    /// verifies every payload. Waits `timeout` for each lock.
    pub fn collect_garbage(&self, payloads: bool, timeout: Timeout) -> Result<GcReport, PoolError> {
        let Self { region, index, space, blocks, .. } = self;
        let mut report = GcReport { recovered: self.recover_dead()?, ..GcReport::default() };
        {
            let membership = self.locks.lock_membership(timeout).map_err(PoolError::lock("membership"))?;
            self.hosts.clear_opened_of_none(&membership);
        }
        let heap = blocks.lock_heap_within(timeout).map_err(PoolError::lock("heap"))?;
        blocks.take_back_all(&heap);
        for host in 0..region.layout.max_hosts {
            // A line that an earlier garbage collection mended may name it as the owner.
            region.set_peer(host, Peer { emptied: 0, ..region.peer(host) });
        }
        report.chunks_adopted = blocks.adopt_chunks(&heap);
        let orphans = {
            let chunks = space.lock_all_chunks(timeout).map_err(PoolError::lock("chunk"))?;
            self.mend_chunks(&heap, &chunks);
            self.orphans(&chunks)
        };
        let mut patience = region.lock_timeout;
        let unlinked = orphans.into_iter().filter(|&(hash, block)| index.unlink(hash, block, &mut patience));
        report.index_dropped += unlinked.count() as u64;
        index.refresh_index();
        {
            let tables = self.tables.lock(timeout).map_err(PoolError::lock("table"))?;
            self.tables.recount_arenas(&tables);
        }
        // Before the check: a slot that counted as free may hold a block or an object.
        blocks.rebuild_heap(&heap);
        let mut checked = CheckReport::default();
        let lines = self.check_chunk_lines(&mut checked);
        let unsound = self.check_own(&lines, &|_| payloads, true, &mut checked);
        // A reserved slot belongs to its worker, or to the recovery of that worker.
        let workers = 1..=region.layout.workers_per_host;
        let is_reserved = |block| workers.contains(&u64::from(region.slot_owner(block).load(Acquire)));
        let unsound: Vec<BlockIndex> = unsound.into_iter().filter(|&block| !is_reserved(block)).collect();
        let cause = Some(Cause::Collected);
        report.blocks_freed += blocks.retract(&heap, &unsound, cause, |block| blocks.drain(&heap, block, cause)) as u64;
        blocks.retry_draining(&heap);
        for chunk in 0..region.layout.num_chunks {
            if space.is_empty(chunk) {
                space.release_chunk(&heap, chunk);
                report.chunks_released += 1;
            }
        }
        for shard in 0..SHARDS {
            let held = index.lock_shard(shard, Intent::ALL, timeout).map_err(PoolError::lock("index"))?;
            let repaired = index.repair_shard(&held, shard);
            report.index_dropped += repaired.entries_dropped;
            report.counts_mended += repaired.counts_mended;
        }
        if region.is_plain() {
            index.mend_list(&heap).map_err(PoolError::lock("index"))?;
        }
        self.log.record(Event::Collected, report.blocks_freed, report.chunks_released);
        Ok(report)
    }

    /// Rewrites corrupt chunk lines of this host's chunks, and clears lines with an impossible
    /// owner. The owner rewrites another host's line.
    fn mend_chunks(&self, _: &Holds<Heap>, chunks: &Holds<Chunks>) {
        let Self { region, space, .. } = self;
        let holds = |chunk: u64| {
            region.free_chunk(chunk).is_some()
                || region.read_chunk(chunk).is_some_and(|line| line.owner <= self.owners_max())
        };
        for chunk in (0..region.layout.num_chunks).filter(|&chunk| !holds(chunk)) {
            let at = region.layout.chunk(chunk);
            let words = region.fabric.load_line(at);
            let owner = ChunkLine::open(words, at, region.salt).map(|line| line.owner);
            let strays = ChunkLine::strays_of(words);
            // Of a chunk that this host offered, the line's first word decides.
            let offered = region.class_of_offered(chunk).filter(|_| words[0] == region.host + 1);
            if let Some(class) = region.class_of_chunk(chunk).or(offered) {
                let ours = ChunkLine {
                    owner: region.host + 1,
                    incarnation: region.incarnation(),
                    slot_bytes: region.class_bytes(class).load(Relaxed),
                    strays,
                    ..ChunkLine::default()
                };
                if !space.put_chunk(chunks, chunk, ours) {
                    return;
                }
            } else if region.is_coherent() || owner.is_some_and(|owner| owner > self.owners_max()) {
                if !space.put_chunk(chunks, chunk, ChunkLine { strays, ..ChunkLine::default() }) {
                    return;
                }
                self.log.tell_gap();
                space.hint_free_chunk(chunk);
            }
        }
    }

    /// Readable blocks in chunks without owner, which only a corrupt chunk line leaves. No host
    /// would evict them, and their hashes could not be published again.
    fn orphans(&self, _: &Holds<Chunks>) -> Vec<(BlockHash, BlockIndex)> {
        let region = &self.region;
        let mut orphans = Vec::new();
        for chunk in 0..region.layout.num_chunks {
            if region.class_of_chunk(chunk).is_some() || region.free_chunk(chunk).is_none() {
                continue;
            }
            let first = chunk * region.layout.descriptors_per_chunk;
            let blocks = first..first + region.layout.descriptors_per_chunk;
            region.refresh_descriptors(blocks.clone());
            orphans.extend(blocks.map(BlockIndex).filter_map(|block| Some((region.hit(block)?.hash, block))));
        }
        orphans
    }
}
