//! Use of space by namespace: how many bytes of slots a model's blocks take, and which limits
//! apply.
//!
//! A slot is charged to its namespace when it is reserved and discharged when it is free again,
//! both under the heap lock, so the sums of a host are exact; after a death the next holder counts
//! again. Each host publishes its sums in words that only it writes. A publisher adds up the words
//! of all living hosts, which may be a little old: that is the overshoot
//! (docs/internals/protocol.md#quotas).

use super::Space;
use crate::region::host_layout::{FREE, OBJECT};
use crate::region::layout::{LINE_WORDS, NAMESPACES};
use crate::region::lines::{NamespaceLine, QuotaLine};
use crate::sync::{Heap, Holds};
use cenote_base::BlockIndex;
use cenote_base::fault::{self, Point};
use cenote_mem::{Fabric, HostLocal, LINE, Offset, Word};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// An operator's limits of a namespace's bytes, over all hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Most bytes; 0: any.
    pub quota: u64,
    /// Bytes that stay while others need room.
    pub kept: u64,
}

impl Limits {
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

impl<F: Fabric, H: HostLocal> Space<F, H> {
    /// The first line of a namespace's row.
    pub fn namespace_line(&self, row: u64) -> Option<NamespaceLine> {
        self.region.read(self.region.layout.namespace(row))
    }

    /// The limits in a row; none where the line does not hold.
    pub fn read_limits(&self, row: u64) -> Limits {
        let line: Option<QuotaLine> = self.region.read(self.region.layout.quota(row));
        line.map_or_else(Limits::default, |line| Limits { quota: line.bytes, kept: line.kept })
    }

    /// Records limits in host memory. From then on, every tick of this host looks for new ones.
    pub fn know_limits(&self, row: u64, limits: Limits) {
        self.store_limits(row, limits);
        self.know_namespace(row);
    }

    fn store_limits(&self, row: u64, limits: Limits) {
        self.region.quota(row).store(limits.quota, Relaxed);
        self.region.kept(row).store(limits.kept, Relaxed);
    }

    fn know_namespace(&self, row: u64) {
        self.region.namespaces_known().fetch_max(row + 1, Relaxed);
    }

    /// Number of namespaces that this host may have charged.
    pub fn known(&self) -> u64 {
        self.region.namespaces_known().load(Relaxed).min(NAMESPACES)
    }

    /// Reads the limits that other hosts may have changed.
    pub fn refresh_limits(&self) {
        let known = self.known().min(self.region.layout.num_namespaces);
        self.region.refresh_range(self.region.layout.namespace(0), self.region.layout.namespace(known));
        for row in 0..known {
            self.store_limits(row, self.read_limits(row));
        }
    }

    /// Charges a slot that is no longer free, and publishes the sum.
    pub fn charge(&self, heap: &Holds<Heap>, block: BlockIndex, namespace: u16, slot_bytes: u64) {
        self.charge_here(heap, block, namespace, slot_bytes);
        self.show_usage(heap, namespace);
    }

    /// As [`Space::charge`], for a caller that charges several slots and then publishes the sum
    /// ([`Space::show_usage`]) before it releases the lock.
    pub fn charge_here(&self, _: &Holds<Heap>, block: BlockIndex, namespace: u16, slot_bytes: u64) {
        if u64::from(namespace) >= NAMESPACES {
            return;
        }
        if u64::from(namespace) >= self.known() {
            // A block adopted from another host.
            self.know_namespace(namespace.into());
        }
        self.region.slot_namespace(block).store(u32::from(namespace) + 1, Relaxed);
        let usage = self.region.usage(namespace.into());
        usage.store(usage.load(Relaxed).saturating_add(slot_bytes), Relaxed);
    }

    /// Removes the charge of a slot, if it has one.
    pub fn discharge(&self, heap: &Holds<Heap>, block: BlockIndex, slot_bytes: u64) {
        let Some(namespace) = self.region.slot_namespace(block).swap(0, Relaxed).checked_sub(1) else { return };
        let usage = self.region.usage(namespace.into());
        usage.store(usage.load(Relaxed).saturating_sub(slot_bytes), Relaxed);
        self.show_usage(heap, namespace as u16);
    }

    /// Publishes this host's use of a namespace without a fence: publishing the block fences.
    pub fn show_usage(&self, _: &Holds<Heap>, namespace: u16) {
        if u64::from(namespace) < NAMESPACES {
            self.show_line_of(namespace.into(), self.known());
            fault::point(Point::UsageStored);
        }
    }

    /// Writes around the caches, so that a death at this point leaves no line that only this host
    /// sees.
    fn show_line_of(&self, namespace: u64, known: u64) {
        let first = namespace / LINE_WORDS * LINE_WORDS;
        let usage = |namespace| if namespace < known { self.region.usage(namespace).load(Relaxed) } else { 0 };
        let words = std::array::from_fn(|at| usage(first + at as u64));
        self.region.fabric.write_line(self.region.layout.usage(self.region.host, first), &words);
    }

    /// Removes all charges except those of reservations. The caller charges what it finds and ends
    /// with [`Space::show_all_usage`].
    pub fn clear_usage(&self, _: &Holds<Heap>) {
        (0..self.known()).for_each(|namespace| self.region.usage(namespace).store(0, Relaxed));
        for (block, owner) in (0..).map(BlockIndex).zip(self.region.slot_owners()) {
            if !(FREE + 1..OBJECT).contains(&owner.load(Acquire)) {
                self.region.slot_namespace(block).store(0, Relaxed);
            }
        }
    }

    /// Publishes all sums again: a dead process may have left one unpublished, and an earlier life
    /// of this host may have charged more namespaces. The release of the lock fences.
    pub fn show_all_usage(&self, _: &Holds<Heap>) {
        let known = self.known();
        (0..NAMESPACES).step_by(LINE_WORDS as usize).for_each(|first| self.show_line_of(first, known));
    }

    /// Bytes that a namespace takes on this host and on living hosts, as these last published them.
    pub fn used_bytes(&self, namespace: u64) -> u64 {
        self.region.usage(namespace).load(Relaxed).saturating_add(self.usage_elsewhere(namespace))
    }

    /// Bytes that a namespace takes on other living hosts.
    pub fn usage_elsewhere(&self, namespace: u64) -> u64 {
        let others: Vec<u64> = (0..self.region.layout.max_hosts).filter(|&host| host != self.region.host).collect();
        for &host in &others {
            self.region.fabric.refresh_unfenced(self.region.layout.usage(host, namespace) / LINE * LINE);
        }
        let mut sum = 0_u64;
        for host in others {
            let bytes = self.region.fabric.load(Offset::new(self.region.layout.usage(host, namespace)));
            // The host that adopts a dead host's chunks charges them.
            let lives = || self.region.read_host(host).is_some_and(|line| !self.region.is_dead(host, line.incarnation));
            let counts = bytes > 0 && lives();
            sum = sum.saturating_add(if counts { bytes } else { 0 });
        }
        sum
    }
}

impl<F: Fabric, H: HostLocal> Space<F, H> {
    /// The sums that a host publishes, by namespace, as this host's caches have them.
    pub fn shown_by(&self, host: u64) -> Vec<u64> {
        let word = |namespace| self.region.layout.usage(host, namespace);
        (0..NAMESPACES).map(|namespace| self.region.fabric.load(Offset::new(word(namespace)))).collect()
    }
}
