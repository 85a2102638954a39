//! Hosts among each other: which are dead, and what becomes of their data.
//!
//! A host's heartbeat advances as long as one of its workers ticks. A host that sees it stand still
//! for the host timeout, by its own clock, marks that life as dead in a line that only it writes. A
//! life is dead once any host has marked it. Hosts need not agree, because marks are never
//! withdrawn: a host that finds itself marked begins a new life.
//!
//! **Assumption.** A host that was silent for so long is dead. If it was only suspended, it may
//! write for a while, and two hosts may hold one lock or one chunk. Index entries may be lost, and
//! blocks may become corrupt and be misses. No reader takes wrong bytes, because every payload has
//! a checksum keyed by hash and generation. Chunks of dead hosts are reused only after a
//! quarantine, so even this takes a suspended host that outlasts both times.

use super::Member;
use crate::error::PoolError;
use crate::region::host_layout::{Beat, LONG_AGO};
use crate::sync::{Heap, Holds, Intent, Membership, Name, Timeout};
use cenote_base::HostId;
use cenote_base::fault::{self, Point};
use cenote_mem::{Fabric, HostLocal, Word};
use std::sync::atomic::Ordering::Relaxed;

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// Advances this host's heartbeat, watches the other hosts, and begins a new life if this one
    /// was declared dead.
    pub fn watch_hosts(&self) -> Result<(), PoolError> {
        let region = &self.region;
        // If the lock is busy, another worker of this host watches.
        let Ok(membership) = self.locks.lock_membership(Timeout::TRY) else { return Ok(()) };
        if region.is_coherent() {
            // For processes that have another host memory.
            self.locks.beat(&membership);
            return Ok(());
        }
        if region.is_dead(region.host, region.incarnation()) {
            // With the heap lock, because other threads must not reserve slots in the new life
            // before the heap is of that life. Without it the host stays dead until its next tick.
            let heap = self.blocks.lock_heap_patiently().map_err(PoolError::lock("heap"))?;
            self.hosts.register_host(&membership, true);
            self.begin_life(&membership, &heap);
            return Ok(());
        }
        self.locks.beat(&membership);
        self.space.refresh_limits();
        let now = u64::try_from(region.area.now().as_nanos()).unwrap_or(u64::MAX);
        let timeout = u64::try_from(region.host_timeout.as_nanos()).unwrap_or(u64::MAX);
        let mut wanting = Vec::new();
        for host in (0..region.layout.max_hosts).filter(|&host| host != region.host) {
            let Some(line) = region.read_host(host) else { continue };
            if line.wants != 0 && line.incarnation > region.highest_mark(host) {
                wanting.push(host);
            }
            let known = region.beat(host);
            let seen = Beat { incarnation: line.incarnation, heartbeat: line.heartbeat, since: known.since };
            if seen != known {
                region.set_beat(host, Beat { since: now.max(LONG_AGO + 1), ..seen });
            } else if now.saturating_sub(known.since) > timeout && !region.is_dead(host, line.incarnation) {
                self.hosts.mark_dead(&membership, host, line.incarnation);
            }
        }
        self.repair_after_dead();
        // Other hosts may have returned chunks, and destroyed objects of this host.
        region.chunk_hint().store(0, Relaxed);
        self.tables.free_unused();
        if region.is_plain() && !wanting.is_empty() {
            self.evictor.share_plain_chunks(&wanting);
        }
        self.evictor.share(&membership);
        Ok(())
    }

    /// Takes every lock that a dead host held, which repairs what it guards: no other process may
    /// want that lock soon.
    fn repair_after_dead(&self) {
        let region = &self.region;
        for host in (0..region.layout.max_hosts).filter(|&host| host != region.host && region.highest_mark(host) > 0) {
            self.locks.locks_left_by(host).for_each(|name| self.pass_through(name, self.locks.serving()));
        }
    }

    /// Takes and releases a lock between hosts, which repairs what a dead holder left. Without the
    /// lock the intent stays, and its next holder repairs. Users repair what their locks guard.
    pub(super) fn pass_through(&self, name: Name, timeout: Timeout) {
        match name {
            Name::Shard(shard) => drop(self.index.lock_shard(shard, Intent::ALL, timeout)),
            Name::Chunks => drop(self.space.lock_chunks(timeout)),
            Name::Tables => drop(self.tables.lock(timeout)),
            Name::Membership | Name::Heap | Name::User(_) => {}
        }
    }

    /// Begins a new life of this host, which is registered: host memory of the earlier life is
    /// stale.
    pub(super) fn begin_life(&self, _: &Holds<Membership>, heap: &Holds<Heap>) {
        self.region.forget_region();
        fault::point(Point::HostReborn);
        self.log.tell_gap();
        self.settle_locks();
        self.space.reclaim_chunks();
        self.tables.mend();
        if self.region.rebuilt().load(Relaxed) == 0 {
            self.hosts.continue_demand(heap);
        }
        self.blocks.rebuild_heap(heap);
    }

    /// See [`crate::Pool::fence_host`].
    pub fn fence_host(&self, host: HostId) -> Result<(), PoolError> {
        let region = &self.region;
        let number = u64::from(host.0);
        let refuse = |fact: &str| Err(PoolError::Config(format!("host {number}: {fact}")));
        if region.is_coherent() || number >= region.layout.max_hosts {
            return refuse("the region has no such host");
        }
        if number == region.host {
            return refuse("it is the one that asks");
        }
        let membership = self.locks.lock_membership(self.locks.patient()).map_err(PoolError::lock("membership"))?;
        let Some(line) = region.read_host(number) else { return refuse("it never attached") };
        self.hosts.mark_dead(&membership, number, line.incarnation);
        region.set_beat(number, Beat { incarnation: line.incarnation, heartbeat: line.heartbeat, since: LONG_AGO });
        Ok(())
    }
}
