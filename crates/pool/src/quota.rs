//! Byte quotas of namespaces: how much of the region a model's blocks may take, over all hosts.
//!
//! A slot is charged to its namespace when it is reserved and discharged when it is free again, both under the heap
//! lock, so a host's own sums are exact; a process that dies between is seen by the lock, and everything is counted
//! anew. Each host shows its sums in words of the region that only it writes. Whoever publishes adds up the words of
//! the hosts that live, which may be a little behind: that is the overshoot (docs/format.md#usage).
//!
//! Over the quota a host evicts its own blocks of the namespace. It never touches another host's, and if its own do
//! not suffice, the block is not published.

use crate::check::{CheckReport, finding};
use crate::error::PoolError;
use crate::evict::BATCH_SHARE;
use crate::heap::{FREE, OBJECT};
use crate::locks::Name;
use crate::pool::{Inner, Pool};
use crate::region::layout::NAMESPACES;
use crate::region::lines::{ChunkLine, NamespaceLine, QuotaLine};
use cenote_base::{BlockIndex, NamespaceId, fault};
use cenote_mem::{Fabric, HostLocal, LINE, Offset, Word};
use cenote_policy::Candidate;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Limits the bytes that a namespace's blocks may take in the region, over all hosts; 0 lifts the limit. Processes
    /// of this host heed it at once, other hosts from their next tick on. Nothing is evicted before somebody publishes.
    ///
    /// # Errors
    /// There is no such namespace, or the table was busy for too long.
    pub fn set_quota(&self, namespace: NamespaceId, bytes: u64) -> Result<(), PoolError> {
        let inner = &*self.0;
        let row = u64::from(namespace.0);
        let _tables = inner.lock_patiently(Name::Tables).map_err(PoolError::lock("table"))?;
        if row >= NAMESPACES || inner.namespace_line(row).is_none() {
            return Err(PoolError::Config(format!("the region has no namespace {row}")));
        }
        let at = inner.layout.quota(row);
        inner.write(at, QuotaLine { bytes, ..QuotaLine::default() });
        inner.know_quota(row, bytes);
        Ok(())
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    pub(crate) fn namespace_line(&self, row: u64) -> Option<NamespaceLine> {
        let at = self.layout.namespace(row);
        self.read::<NamespaceLine>(at)
    }

    /// The limit in a row; 0 where the line does not hold.
    pub(crate) fn read_quota(&self, row: u64) -> u64 {
        let at = self.layout.quota(row);
        self.read::<QuotaLine>(at).map_or(0, |line| line.bytes)
    }

    /// Remembers the limit for all processes of this host, who then look for a new one when they tick.
    pub(crate) fn know_quota(&self, row: u64, bytes: u64) {
        self.quota(row).store(bytes, Relaxed);
        self.know_namespace(row);
    }

    fn know_namespace(&self, row: u64) {
        self.namespaces_known().fetch_max(row + 1, Relaxed);
    }

    /// What this host may have charged: namespaces up to the last that it has heard of.
    fn known(&self) -> u64 {
        self.namespaces_known().load(Relaxed).min(NAMESPACES)
    }

    /// Looks whether another host has changed limits.
    pub(crate) fn refresh_quotas(&self) {
        let known = self.known();
        self.refresh_range(self.layout.namespace(0), self.layout.namespace(known));
        for row in 0..known {
            self.quota(row).store(self.read_quota(row), Relaxed);
        }
    }

    /// Charges a slot that is no longer free. The caller holds the heap lock.
    pub(crate) fn charge(&self, block: BlockIndex, namespace: u16, slot_bytes: u64) {
        if u64::from(namespace) >= NAMESPACES {
            return;
        }
        if u64::from(namespace) >= self.known() {
            // A block of another host, which this one has adopted.
            self.know_namespace(namespace.into());
        }
        self.slot_namespace(block).store(u32::from(namespace) + 1, Relaxed);
        let usage = self.usage(namespace.into());
        usage.store(usage.load(Relaxed).saturating_add(slot_bytes), Relaxed);
        self.show_usage(namespace.into());
    }

    /// Takes a charge back, if there is one. The caller holds the heap lock.
    pub(crate) fn discharge(&self, block: BlockIndex, slot_bytes: u64) {
        let Some(namespace) = self.slot_namespace(block).swap(0, Relaxed).checked_sub(1) else { return };
        let usage = self.usage(namespace.into());
        usage.store(usage.load(Relaxed).saturating_sub(slot_bytes), Relaxed);
        self.show_usage(namespace.into());
    }

    /// Shows other hosts what this one uses. Nobody waits for it: the block that was charged is published with a
    /// fence, which takes the line along.
    fn show_usage(&self, namespace: u64) {
        self.show_line_of(namespace, self.known());
        fault::point("usage.stored");
    }

    /// Stored around the caches: who dies just then leaves nothing that only his own host would see.
    fn show_line_of(&self, namespace: u64, known: u64) {
        let first = namespace / LINE_WORDS * LINE_WORDS;
        let usage = |namespace| if namespace < known { self.usage(namespace).load(Relaxed) } else { 0 };
        let words = std::array::from_fn(|at| usage(first + at as u64));
        self.fabric.write_line(self.layout.usage(self.host, first), &words);
    }

    /// Forgets all charges but those of reservations, which their workers will end. The caller holds the heap lock,
    /// charges anew what it finds, and ends with [`Inner::show_all_usage`].
    pub(crate) fn recount_usage(&self) {
        (0..self.known()).for_each(|namespace| self.usage(namespace).store(0, Relaxed));
        for (block, owner) in (0..).map(BlockIndex).zip(self.slot_owners()) {
            if !(FREE + 1..OBJECT).contains(&owner.load(Acquire)) {
                self.slot_namespace(block).store(0, Relaxed);
            }
        }
    }

    /// Shows everything anew: who died while he showed something may have shown it to nobody, and a former life of this
    /// host knew more namespaces. The caller holds the heap lock, and fences when he lets go of it.
    pub(crate) fn show_all_usage(&self) {
        let known = self.known();
        (0..NAMESPACES).step_by(LINE_WORDS as usize).for_each(|first| self.show_line_of(first, known));
    }

    /// Bytes that a namespace takes: here, and on other hosts that live as they have shown it, or had when this host
    /// last asked.
    pub(crate) fn used_bytes(&self, namespace: u64) -> u64 {
        self.usage(namespace).load(Relaxed).saturating_add(self.usage_elsewhere(namespace))
    }

    fn usage_elsewhere(&self, namespace: u64) -> u64 {
        let others: Vec<u64> = (0..self.layout.max_hosts).filter(|&host| host != self.host).collect();
        for &host in &others {
            self.fabric.refresh_unfenced(self.layout.usage(host, namespace) / LINE * LINE);
        }
        let mut sum = 0_u64;
        for host in others {
            let bytes = self.fabric.load(Offset::new(self.layout.usage(host, namespace)));
            // What the dead hold is charged to whoever adopts it.
            let counts = bytes > 0 && self.read_host(host).is_some_and(|line| !self.is_dead(host, line.incarnation));
            sum = sum.saturating_add(if counts { bytes } else { 0 });
        }
        sum
    }

    /// Whether one more block of a namespace keeps within its quota, after evicting blocks of it if need be. The
    /// caller holds the heap lock.
    pub(crate) fn keeps_quota(&self, namespace: u16, slot_bytes: u64) -> bool {
        let limit = self.quota(namespace.into()).load(Relaxed);
        if limit == 0 {
            return true;
        }
        let elsewhere = if self.is_coherent() { 0 } else { self.usage_elsewhere(namespace.into()) };
        let room = limit.saturating_sub(elsewhere);
        let over = || (self.usage(namespace.into()).load(Relaxed).saturating_add(slot_bytes)).saturating_sub(room);
        if over() > 0 && slot_bytes <= room {
            self.retry_draining();
            self.evict_for_quota(namespace, slot_bytes, &over);
        }
        over() == 0
    }

    fn evict_for_quota(&self, namespace: u16, slot_bytes: u64, over: &dyn Fn() -> u64) {
        let own: Vec<Candidate> = (0..self.layout.num_chunks)
            .filter(|&chunk| self.chunk_class(chunk).load(Relaxed) != 0)
            .flat_map(|chunk| self.candidates(chunk))
            .filter(|candidate| self.slot_namespace(candidate.block).load(Relaxed) == u32::from(namespace) + 1)
            .collect();
        let need = || usize::try_from(over().div_ceil(slot_bytes)).unwrap_or(usize::MAX);
        let victims = self.victims(&own, need().max(own.len() / BATCH_SHARE));
        self.evict_blocks(&victims);
        if need() > 0 {
            // Some of them were pinned: whatever else may leave.
            let pinned = self.pinned_blocks();
            let others = own.iter().map(|candidate| candidate.block);
            let others: Vec<BlockIndex> = others
                .filter(|block| !pinned.contains(block) && self.slot_namespace(*block).load(Relaxed) != 0)
                .take(need())
                .collect();
            self.evict_blocks(&others);
        }
    }

    /// Compares what this host has charged with the slots that are charged, and with what it shows.
    pub(crate) fn check_usage(&self, report: &mut CheckReport) {
        let mut charged = BTreeMap::<u64, u64>::new();
        for block in (0..self.layout.num_descriptors()).map(BlockIndex) {
            let Some(namespace) = self.slot_namespace(block).load(Relaxed).checked_sub(1) else { continue };
            let class = self.chunk_class(self.layout.chunk_of(block)).load(Relaxed).checked_sub(1);
            let bytes = class.map_or(0, |class| self.class_bytes(class as usize).load(Relaxed));
            *charged.entry(namespace.into()).or_default() += bytes;
        }
        for (namespace, shown) in (0..).zip(self.shown_by(self.host)) {
            let usage = self.usage(namespace).load(Relaxed);
            let slots = charged.get(&namespace).copied().unwrap_or(0);
            if usage != slots || usage != shown {
                let fact =
                    format!("host {} accounts {usage} bytes, shows {shown}, and its slots have {slots}", self.host);
                report.damage.push(finding(format!("namespace {namespace}"), &fact, WRONG_SUM, "cenote pool gc"));
            }
        }
    }

    /// The same of a host whose memory is not to be seen.
    pub(crate) fn check_usage_from_outside(&self, host: u64, lines: &[(u64, ChunkLine)], report: &mut CheckReport) {
        let mut stored = BTreeMap::<u64, u64>::new();
        for (chunk, line) in lines.iter().filter(|(_, line)| line.owner == host + 1) {
            let first = chunk * self.layout.descriptors_per_chunk;
            for block in (first..first + self.layout.slots(line.slot_bytes)).map(BlockIndex) {
                if let Some(descriptor) = self.read_descriptor(block).filter(|d| d.is_charged()) {
                    *stored.entry(descriptor.namespace().into()).or_default() += line.slot_bytes;
                }
            }
        }
        self.refresh_range(self.layout.usage(host, 0), self.layout.usage(host, NAMESPACES));
        for (namespace, shown) in (0..).zip(self.shown_by(host)) {
            let stored = stored.get(&namespace).copied().unwrap_or(0);
            if shown != stored {
                let fact = format!("host {host} accounts {shown} bytes, and its blocks have {stored}");
                let what = format!("namespace {namespace}");
                report.pending.push(finding(what, &fact, WRONG_SUM, "the next life of that host counts anew"));
            }
        }
    }

    /// What a host shows, by namespace.
    fn shown_by(&self, host: u64) -> Vec<u64> {
        let word = |namespace| self.layout.usage(host, namespace);
        (0..NAMESPACES).map(|namespace| self.fabric.load(Offset::new(word(namespace)))).collect()
    }
}

/// Words of a line.
const LINE_WORDS: u64 = LINE / 8;

const WRONG_SUM: &str = "a quota of the namespace is applied to a wrong sum";
