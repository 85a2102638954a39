//! Byte quotas of namespaces: how much of the region a model's blocks may take, over all hosts.
//!
//! A host over a quota evicts its own blocks of the namespace, never another host's. If its own do
//! not suffice, the block is not published.

use super::Evictor;
use crate::region::cause::Cause;
use crate::sync::{Heap, Holds};
use cenote_base::BlockIndex;
use cenote_mem::{Fabric, HostLocal, Word};
use cenote_policy::{Candidate, eviction::batch};
use std::sync::atomic::Ordering::Relaxed;

impl<F: Fabric, H: HostLocal> Evictor<F, H> {
    /// Evicts blocks of a namespace until one more slot fits its quota. Returns whether it fits.
    pub(super) fn evict_over_quota(&self, heap: &Holds<Heap>, namespace: u16, slot_bytes: u64) -> bool {
        let region = &self.region;
        let limit = region.quota(namespace.into()).load(Relaxed);
        if limit == 0 {
            return true;
        }
        let elsewhere = if region.is_coherent() { 0 } else { self.space.usage_elsewhere(namespace.into()) };
        let room = limit.saturating_sub(elsewhere);
        let used = || region.usage(namespace.into()).load(Relaxed);
        let over = || used().saturating_add(slot_bytes).saturating_sub(room);
        if over() > 0 && slot_bytes <= room {
            self.blocks.take_back_all(heap);
            self.blocks.retry_draining(heap);
            self.evict_namespace(heap, namespace, slot_bytes, &over);
        }
        over() == 0
    }

    fn evict_namespace(&self, heap: &Holds<Heap>, namespace: u16, slot_bytes: u64, over: &dyn Fn() -> u64) {
        let charge = |block: BlockIndex| self.region.slot_namespace(block).load(Relaxed);
        let own: Vec<Candidate> =
            self.all_candidates().filter(|candidate| charge(candidate.block) == u32::from(namespace) + 1).collect();
        let need = || usize::try_from(over().div_ceil(slot_bytes)).unwrap_or(usize::MAX);
        let victims = self.victims(&own, need().max(batch(own.len())));
        self.evict_blocks(heap, &victims, Cause::Quota);
        if need() > 0 {
            // Some victims were pinned: take any others.
            let pinned = self.blocks.pinned();
            let others = own.iter().map(|candidate| candidate.block);
            let others = others.filter(|block| !pinned.contains(block) && charge(*block) != 0);
            let others: Vec<BlockIndex> = others.take(need()).collect();
            self.evict_blocks(heap, &others, Cause::Quota);
        }
    }
}
