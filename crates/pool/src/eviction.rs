//! Reservations that evict: selects the blocks that leave for a new one, within the quota.

mod kept;
mod plain;
mod quota;
pub mod repack;
mod room;
mod sharing;

use crate::blocks::Blocks;
use crate::hosts::Hosts;
use crate::index::Index;
use crate::log::Log;
use crate::region::Region;
use crate::space::{Fill, Slot, Space};
use crate::sync::{Heap, Holds};
use cenote_base::fault::{self, Point};
use cenote_mem::{Fabric, HostLocal, Word};
use room::Room;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Reserves slots, and evicts blocks of this host for them.
pub(crate) struct Evictor<F: Fabric, H: HostLocal> {
    region: Arc<Region<F, H>>,
    log: Arc<Log<F, H>>,
    hosts: Arc<Hosts<F, H>>,
    index: Arc<Index<F, H>>,
    space: Arc<Space<F, H>>,
    blocks: Arc<Blocks<F, H>>,
}

/// The reason that no slot was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No block may be evicted, or a lock timed out.
    NoRoom,
    /// The namespace has used its quota, and evicting its blocks on this host would not suffice.
    OverQuota,
}

/// Attempts of one reservation to make room: a corrupt chunk may swallow the room that was made.
const RESERVE_ATTEMPTS: u32 = 16;

impl<F: Fabric, H: HostLocal> Evictor<F, H> {
    pub const fn new(
        region: Arc<Region<F, H>>,
        log: Arc<Log<F, H>>,
        hosts: Arc<Hosts<F, H>>,
        index: Arc<Index<F, H>>,
        space: Arc<Space<F, H>>,
        blocks: Arc<Blocks<F, H>>,
    ) -> Self {
        Self { region, log, hosts, index, space, blocks }
    }

    /// Reserves a slot of `slot_bytes`, or a little more, for this worker. Evicts blocks if it
    /// must.
    pub fn reserve(&self, slot_bytes: u64, fill: Fill) -> Result<Slot, Refusal> {
        let heap = self.blocks.lock_heap().map_err(|_| Refusal::NoRoom)?;
        self.reserve_under(&heap, slot_bytes, None, fill)
    }

    /// As [`Evictor::reserve`], and charges the slot to a namespace, which this worker has open.
    /// The caller then publishes the use of the namespace ([`Space::show_usage`]).
    pub fn reserve_under(
        &self,
        heap: &Holds<Heap>,
        slot_bytes: u64,
        namespace: Option<u16>,
        fill: Fill,
    ) -> Result<Slot, Refusal> {
        if !self.region.layout.is_slot(slot_bytes) {
            return Err(Refusal::NoRoom);
        }
        if !namespace.is_none_or(|namespace| self.evict_over_quota(heap, namespace, slot_bytes)) {
            return Err(Refusal::OverQuota);
        }
        let slot = self.take_slot(heap, slot_bytes, fill, namespace).ok_or(Refusal::NoRoom)?;
        if let Some(namespace) = namespace {
            self.space.charge_here(heap, slot.block, namespace, slot.bytes);
        }
        fault::point(Point::SlotTaken);
        Ok(slot)
    }

    fn take_slot(&self, heap: &Holds<Heap>, slot_bytes: u64, fill: Fill, asker: Option<u16>) -> Option<Slot> {
        for _ in 0..RESERVE_ATTEMPTS {
            let slot = self.space.take_free_slot(heap, slot_bytes, fill);
            if slot.is_some() {
                return slot;
            }
            if self.make_room(heap, self.space.class_of(heap, slot_bytes)?, fill, asker) == Room::None {
                // In the plain design, the next heartbeat asks hosts with more chunks for one.
                self.region.wants_chunk().store(1, Relaxed);
                return None;
            }
        }
        None
    }
}
