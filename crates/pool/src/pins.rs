//! Pins: a block that is used in place, or promised to someone, must not be reused.
//!
//! A pin is a word in a hazard line that only this worker writes. Pins die with their worker: recovery
//! clears its lines.

use crate::blocks::Hit;
use crate::lines::{BlockState, hazard_word};
use crate::pool::{Inner, Pool};
use cenote_base::fault;
use cenote_mem::{Fabric, HostArea, HostLocal, Offset};
use std::sync::Arc;

/// Which hazard slots of this worker are taken.
pub(crate) struct PinTable {
    free: Vec<u32>,
    used_lines: u32,
    epoch: u64,
}

/// Slots of a hazard line; its last word is the worker's epoch.
const SLOTS_PER_LINE: u32 = 7;

impl PinTable {
    pub fn new(lines: u64) -> Self {
        let slots = u32::try_from(lines).expect("validated") * SLOTS_PER_LINE;
        // Low slots first, so that scanners read few lines.
        Self { free: (0..slots).rev().collect(), used_lines: 0, epoch: 0 }
    }

    pub const fn adopt(&mut self, epoch: u64) {
        self.epoch = epoch;
    }
}

/// Keeps one block from being reused while it lives.
pub struct Pin<F: Fabric, H: HostLocal = HostArea> {
    inner: Arc<Inner<F, H>>,
    slot: u32,
    hit: Hit,
}

impl<F: Fabric, H: HostLocal> Pin<F, H> {
    /// The pinned block.
    #[must_use]
    pub const fn hit(&self) -> &Hit {
        &self.hit
    }

    /// Offset and length in bytes of the payload in the region, for use in place. Its bytes stay as they are
    /// while the pin lives, unless this host is declared dead meanwhile.
    #[must_use]
    pub const fn extent(&self) -> (u64, u64) {
        (self.hit.offset, self.hit.length)
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    fn hazard_slot(&self, slot: u32) -> (u64, Offset<u64>) {
        let line = self.layout.hazard(self.host, self.member.slot, u64::from(slot / SLOTS_PER_LINE));
        (line, Offset::new(line + u64::from(slot % SLOTS_PER_LINE) * 8))
    }
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Pins a block. `None`: it is gone already, or all of this worker's pins are taken.
    #[must_use]
    pub fn pin(&self, hit: &Hit) -> Option<Pin<F, H>> {
        let inner = &self.0;
        let slot = {
            let mut table = inner.pins.lock().expect("no panic while pins are held");
            let slot = table.free.pop()?;
            let (line, word) = inner.hazard_slot(slot);
            // Lines come into use in order, and a scanner stops at the first without an epoch.
            while table.used_lines <= slot / SLOTS_PER_LINE {
                let line = inner.layout.hazard(inner.host, inner.member.slot, u64::from(table.used_lines));
                inner.fabric.store(Offset::new(line + 56), table.epoch);
                inner.fabric.publish_unfenced(line);
                table.used_lines += 1;
            }
            inner.fabric.store(word, hazard_word(hit.block, hit.generation));
            inner.fabric.publish(&[line]);
            slot
        };
        let pin = Pin { inner: Arc::clone(inner), slot, hit: *hit };
        // The pin is visible; if the block still stands now, its owner will see the pin before reusing it.
        let at = inner.layout.descriptor(hit.block);
        inner.fabric.refresh(&[at]);
        let still = fault::sabotaged("pin.recheck-skipped")
            || inner.read_descriptor(hit.block).is_some_and(|descriptor| {
                descriptor.block_state() == Some(BlockState::Ready)
                    && descriptor.generation() == hit.generation
                    && descriptor.block_hash() == hit.hash
            });
        if still && !inner.has_seen(hit.block, hit.generation) {
            // Whoever uses the payload in place must not meet lines of an older use of the slot.
            inner.fabric.refresh_payload(hit.offset, hit.length);
            inner.set_seen(hit.block, hit.generation);
        }
        still.then_some(pin)
    }
}

impl<F: Fabric, H: HostLocal> Drop for Pin<F, H> {
    fn drop(&mut self) {
        let (line, word) = self.inner.hazard_slot(self.slot);
        if let Ok(mut table) = self.inner.pins.lock() {
            self.inner.fabric.store(word, 0);
            self.inner.fabric.publish_unfenced(line);
            table.free.push(self.slot);
        }
    }
}
