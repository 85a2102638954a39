//! Health: finds damage, trips the breaker, repairs, and closes the breaker.
//!
//! Damage costs hits and never returns wrong bytes, but it may cost unbounded time: calls wait for
//! locks whose lines are corrupt, or walk corrupt structures. So a worker that finds damage leaves
//! the region alone: serving calls return at once, and its engine computes. Its tick then repairs
//! what this host may write, and closes the breaker when a walk finds no damage.
//!
//! The breaker trips on lock timeouts (`crate::sync::breaker`). It also trips when a tick finds
//! that the superblock, an own line or a chunk line of this host is corrupt, or that memory is
//! gone.

use super::check::CheckReport;
use crate::error::PoolError;
use crate::members::Member;
use crate::region::lines::{HostLine, WorkerLine};
use crate::region::superblock::Superblock;
use crate::sync::Timeout;
use cenote_mem::{Fabric, HostLocal};

/// Chunk lines that one tick checks.
const CHUNKS_A_TICK: u64 = 256;

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// Checks the region and trips the breaker, or repairs and closes it.
    pub fn look_after_health(&self) {
        self.look_for_troubles();
        let now = self.region.area.now();
        if !self.locks.breaker.is_out() {
            if let Some(reason) = self.first_damage() {
                self.locks.breaker.found(now, reason);
            }
        } else if self.locks.breaker.is_due(now) {
            match self.mend() {
                Ok(()) => self.locks.breaker.close(),
                Err(reason) => self.locks.breaker.failed(self.region.area.now(), reason),
            }
        }
    }

    /// The first damage that a short check finds.
    fn first_damage(&self) -> Option<String> {
        if let Err(reason) = self.whole_region() {
            return Some(reason);
        }
        let (worker, host) = (
            self.region.layout.worker(self.region.host, self.region.slot()),
            self.region.layout.host(self.region.host),
        );
        if self.region.read::<WorkerLine>(worker).is_none() {
            return Some("this worker's line is corrupt".to_owned());
        }
        if self.region.read::<HostLine>(host).is_none() {
            // Another process of the host may be writing it.
            let _membership = self.locks.lock_membership(Timeout::TRY).ok()?;
            if self.region.read::<HostLine>(host).is_none() {
                return Some("this host's line is corrupt".to_owned());
            }
        }
        if !self.tables.shows_opened() {
            // Another thread may be opening a namespace.
            let _tables = self.tables.lock(Timeout::TRY).ok()?;
            if !self.tables.shows_opened() {
                return Some("the line with this worker's open namespaces is corrupt".to_owned());
            }
        }
        let first = self.locks.breaker.next_chunk(CHUNKS_A_TICK);
        let count = CHUNKS_A_TICK.min(self.region.layout.num_chunks);
        let torn = (0..count)
            .map(|chunk| (first + chunk) % self.region.layout.num_chunks)
            .find(|&chunk| self.is_lost(chunk))?;
        // It may be in the middle of a change.
        let _heap = self.blocks.lock_heap_within(Timeout::TRY).ok()?;
        self.is_lost(torn).then(|| format!("the line of chunk {torn} is corrupt"))
    }

    /// Whether this host lists a chunk that, by its line, it does not own.
    fn is_lost(&self, chunk: u64) -> bool {
        self.region.class_of_chunk(chunk).is_some()
            && self.region.own_chunk(chunk).is_none()
            && !self.region.is_dead(self.region.host, self.region.incarnation())
    }

    /// Whether the whole region is mapped, and is the one that was opened.
    fn whole_region(&self) -> Result<(), String> {
        if !self.region.fabric.still_whole() {
            return Err("part of the region's memory is gone: its file was truncated, or the hardware failed; \
                        create a new region and restart its users"
                .to_owned());
        }
        if self.region.is_superseded_now() {
            return Err(
                "another machine or container has taken this host slot, or the host memory's file was removed \
                        from /dev/shm and this process was silent for the host timeout; restart it"
                    .to_owned(),
            );
        }
        match Superblock::read(&self.region.fabric) {
            Ok(now) if now == self.region.superblock => Ok(()),
            Ok(_) => Err("the region was formatted again while it was in use; restart its users".to_owned()),
            Err(error) => Err(format!("the superblock is corrupt: {error}")),
        }
    }

    /// Repairs what this host may write, then checks its data.
    fn mend(&self) -> Result<(), String> {
        if self.region.fabric.still_whole() {
            self.region.superblock.mend(&self.region.fabric);
        }
        self.whole_region()?;
        let busy = |error: PoolError| error.to_string();
        {
            let membership = self.locks.lock_membership(self.locks.serving());
            let membership = membership.map_err(PoolError::lock("membership")).map_err(busy)?;
            self.hosts.rewrite_own_lines(&membership, self.name());
        }
        {
            let tables = self.tables.lock(self.locks.serving()).map_err(PoolError::lock("table")).map_err(busy)?;
            self.tables.show_opened(&tables);
        }
        self.collect_garbage(false, self.locks.serving()).map_err(busy)?;
        let mut report = CheckReport::default();
        {
            let _heap = self.blocks.lock_heap().map_err(PoolError::lock("heap")).map_err(busy)?;
            if let Some(chunk) = (0..self.region.layout.num_chunks).find(|&chunk| self.is_lost(chunk)) {
                return Err(format!("the line of chunk {chunk} is corrupt"));
            }
            // Other hosts repair their own lines.
            let lines = self.check_chunk_lines(&mut CheckReport::default());
            self.check_own(&lines, &|_| false, true, &mut report);
        }
        match report.damage.first() {
            None => Ok(()),
            Some(finding) => Err(format!("{} is corrupt: {}", finding.what, finding.fact)),
        }
    }
}
