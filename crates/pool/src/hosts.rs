//! Hosts among each other: who is dead, and what becomes of what it had.
//!
//! A host's heart beats as long as one of its workers ticks. Who sees it stand still for the host timeout of its
//! own clock marks that life of the host as dead, in a line that only the observer's host writes; a life is
//! dead once anybody says so. No agreement is needed, because marks are never taken back: a host that finds
//! itself marked begins a new life.
//!
//! **What is assumed.** That a host is dead when it was silent for so long. If it only slept, it may go on
//! writing for a while: then two hosts may hold one lock or one chunk. Index entries may be lost, blocks may
//! turn out damaged and be misses; no reader takes wrong bytes, because every payload is believed for its
//! checksum under hash and generation. Chunks of the dead are reused only after a quarantine, so that even
//! this needs a sleeper that outlasts both times.

use crate::error::PoolError;
use crate::history::Event;
use crate::locks::Name;
use crate::pool::{Inner, Pool};
use crate::region::counters::Counter;
use crate::region::host_layout::Beat;
use crate::region::lines::ChunkLine;
use cenote_base::{BlockIndex, HostId, fault};
use cenote_mem::{Fabric, HostLocal, LINE, Offset, Word};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// Whether this life of a host was declared dead by anybody.
    pub(crate) fn is_dead(&self, host: u64, incarnation: u64) -> bool {
        incarnation != 0 && self.highest_mark(host) >= incarnation
    }

    /// The last life of a host that somebody declared dead; 0: none.
    pub(crate) fn highest_mark(&self, host: u64) -> u64 {
        if self.is_coherent() || host >= self.layout.max_hosts {
            return 0;
        }
        let observers = 0..self.layout.max_hosts;
        let words: Vec<u64> = observers.clone().map(|observer| self.layout.mark(observer, host)).collect();
        let others = observers.zip(&words).filter(|(observer, _)| *observer != self.host);
        let lines: Vec<u64> = others.map(|(_, word)| word / LINE * LINE).collect();
        self.fabric.refresh(&lines);
        words.into_iter().map(|word| self.fabric.load(Offset::new(word))).max().unwrap_or(0)
    }

    /// Declares a life of a host dead. The caller holds the membership lock.
    pub(crate) fn mark_dead(&self, host: u64, incarnation: u64) {
        let word = self.layout.mark(self.host, host);
        if self.fabric.load(Offset::new(word)) < incarnation {
            // What it was just doing is told by nobody, as long as nobody takes its chunks over.
            self.tell_gap();
            self.fabric.write_word(Offset::new(word), incarnation);
            self.counters().add(Counter::HostsDeclaredDead, 1);
            self.record(Event::HostDead, host, incarnation);
            fault::point("host.marked");
        }
    }

    /// Beats this host's heart, looks after the others', and begins a new life if this one was declared dead.
    pub(crate) fn watch_hosts(&self) -> Result<(), PoolError> {
        if self.is_coherent() {
            return Ok(());
        }
        // Another worker of this host is at it, or will be.
        let Some(_membership) = self.try_lock(Name::Membership) else { return Ok(()) };
        if self.is_dead(self.host, self.incarnation()) {
            self.register_host(true);
            return self.begin_life();
        }
        self.beat_heart();
        self.refresh_quotas();
        let now = u64::try_from(self.area.now().as_nanos()).unwrap_or(u64::MAX);
        let timeout = u64::try_from(self.host_timeout.as_nanos()).unwrap_or(u64::MAX);
        let mut wanting = Vec::new();
        for host in (0..self.layout.max_hosts).filter(|&host| host != self.host) {
            let Some(line) = self.read_host(host) else { continue };
            if line.wants != 0 && line.incarnation > self.highest_mark(host) {
                wanting.push(host);
            }
            let known = self.beat(host);
            let seen = Beat { incarnation: line.incarnation, heartbeat: line.heartbeat, since: known.since };
            if seen != known {
                self.set_beat(host, Beat { since: now, ..seen });
            } else if now.saturating_sub(known.since) > timeout && !self.is_dead(host, line.incarnation) {
                self.mark_dead(host, line.incarnation);
            }
        }
        self.repair_after_dead();
        // Others may have given chunks back since this host last found none, and destroyed objects of its own.
        self.chunk_hint().store(0, Relaxed);
        self.free_unnamed_objects();
        if !wanting.is_empty() {
            self.share_chunks(&wanting);
        }
        Ok(())
    }

    /// Takes every lock that a dead host died with, which repairs what it guards: nobody may want that lock soon.
    fn repair_after_dead(&self) {
        for host in (0..self.layout.max_hosts).filter(|&host| host != self.host && self.highest_mark(host) > 0) {
            // What users guard they repair themselves, when they are told.
            let locks = self.locks_left_by(host).filter(|name| !matches!(name, Name::User(_)));
            locks.for_each(|name| drop(self.lock(name)));
        }
    }

    /// Gives a chunk back if a host that wants one has at least two fewer than this one: the one that was idle
    /// longest.
    fn share_chunks(&self, wanting: &[u64]) {
        let Ok(_heap) = self.lock(Name::Heap) else { return };
        let mut owned = vec![0_u64; self.layout.max_hosts as usize];
        let Ok(chunks) = self.lock(Name::Chunks) else { return };
        for chunk in 0..self.layout.num_chunks {
            // One that is free is there for whoever wants it.
            let Some(line) = self.read_chunk(chunk) else { return };
            owned.get_mut((line.owner - 1) as usize).into_iter().for_each(|count| *count += 1);
        }
        drop(chunks);
        let ours = owned[self.host as usize];
        if wanting.iter().any(|&host| owned[host as usize] + 2 <= ours) && self.yield_chunk() {
            self.counters().add(Counter::ChunksShared, 1);
        }
    }

    /// Takes note of a new life of this host: nothing is known of the region any more. The caller holds the membership
    /// lock and has registered the host.
    pub(crate) fn begin_life(&self) -> Result<(), PoolError> {
        let _heap = self.lock_patiently(Name::Heap).map_err(PoolError::lock("heap"))?;
        self.forget_region();
        fault::point("host.reborn");
        self.tell_gap();
        self.settle_locks();
        self.reclaim_chunks();
        self.rebuild_heap();
        Ok(())
    }

    /// Puts this life's number on chunks that an earlier life of this host owned, unless others have adopted
    /// them meanwhile.
    fn reclaim_chunks(&self) {
        let Ok(_chunks) = self.lock_patiently(Name::Chunks) else { return };
        for chunk in 0..self.layout.num_chunks {
            let Some(line) = self.read_chunk(chunk).filter(|line| line.owner == self.host + 1) else { continue };
            if line.incarnation != self.incarnation() {
                self.put_chunk(chunk, &ChunkLine { incarnation: self.incarnation(), ..line });
            }
        }
    }

    /// Takes over the chunks of hosts that are dead and past their quarantine; returns how many. The caller
    /// holds the heap lock.
    pub(crate) fn adopt_chunks(&self) -> u64 {
        if self.is_coherent() {
            return 0;
        }
        let gone: Vec<u64> = (0..self.layout.max_hosts)
            .map(|host| if self.is_past_quarantine(host) { self.highest_mark(host) } else { 0 })
            .collect();
        if gone.iter().all(|&incarnation| incarnation == 0) {
            return 0;
        }
        let Ok(chunks) = self.lock(Name::Chunks) else { return 0 };
        let pinned = self.pinned_blocks();
        let mut adopted = 0;
        for chunk in 0..self.layout.num_chunks {
            let Some(line) = self.read_chunk(chunk) else { continue };
            let owner = line.owner - 1;
            // No life has the number zero, which stands for the living here.
            if gone.get(owner as usize).is_none_or(|&dead| dead == 0 || line.incarnation > dead) {
                continue;
            }
            let Some(class) = self.class_of(line.slot_bytes) else { continue };
            // First and by itself: a line that is torn at the change of its owner has this list in any case.
            let line = self.with_stray_owner(line);
            self.put_chunk(chunk, &line);
            let ours = ChunkLine {
                owner: self.host + 1,
                incarnation: self.incarnation(),
                generation: line.generation.wrapping_add(1),
                ..line
            };
            // Before the chunk is ours: who dies from here on leaves it to the next holder of the heap.
            self.adopting().store(1, Relaxed);
            self.put_chunk(chunk, &ours);
            fault::point("chunk.adopted");
            self.take_over(chunk, class, &ours, &pinned);
            self.record(Event::ChunkAdopted, chunk, owner);
            adopted += 1;
        }
        drop(chunks);
        self.counters().add(Counter::ChunksAdopted, adopted);
        self.finish_adoption();
        adopted
    }

    /// Enters blocks of adopted chunks that were whole when their host died on the way to the index. A shard that is
    /// busy for too long leaves them to the next adoption, or to `gc`. The caller holds the heap lock.
    pub(crate) fn finish_adoption(&self) {
        if self.adopting().load(Relaxed) == 1 && self.enter_unfindable().is_ok() {
            self.adopting().store(0, Relaxed);
        }
    }

    fn is_past_quarantine(&self, host: u64) -> bool {
        if host == self.host {
            return false;
        }
        let beat = self.beat(host);
        let waited = self.area.now().saturating_sub(Duration::from_nanos(beat.since));
        beat.incarnation != 0 && waited > self.host_timeout + self.quarantine
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// Rebuilds what this host knows of a chunk that was another's.
    fn take_over(&self, chunk: u64, class: usize, line: &ChunkLine, pinned: &BTreeSet<BlockIndex>) {
        let first = chunk * self.layout.descriptors_per_chunk;
        let slots = first..first + self.layout.slots(line.slot_bytes);
        self.refresh_taken(slots.clone());
        self.chunk_class(chunk).store(class as u32 + 1, Relaxed);
        for block in slots.rev().map(BlockIndex) {
            self.slot_owner(block).store(crate::heap::FREE, Relaxed);
            self.slot_namespace(block).store(0, Relaxed);
            self.rebuild_slot(block, line.slot_bytes, pinned);
        }
    }
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Declares a host dead on the operator's word that it will not write again: no timeout, no quarantine
    /// (by this host). Its blocks stay readable; its chunks may be reused.
    ///
    /// # Errors
    /// There is no such host, it is this one, or the lock was busy for too long.
    pub fn fence_host(&self, host: HostId) -> Result<(), PoolError> {
        let inner = &*self.0;
        let number = u64::from(host.0);
        let refuse = |fact: &str| Err(PoolError::Config(format!("host {number}: {fact}")));
        if inner.is_coherent() || number >= inner.layout.max_hosts {
            return refuse("the region has no such host");
        }
        if number == inner.host {
            return refuse("it is the one that asks");
        }
        let _membership = inner.lock_patiently(Name::Membership).map_err(PoolError::lock("membership"))?;
        let Some(line) = inner.read_host(number) else { return refuse("it never attached") };
        inner.mark_dead(number, line.incarnation);
        inner.set_beat(number, Beat { incarnation: line.incarnation, heartbeat: line.heartbeat, since: 0 });
        Ok(())
    }
}
