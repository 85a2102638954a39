//! Pins: a pinned block must not be reused, because it is used in place or promised.
//!
//! A pin is a word in a hazard line that only its worker writes. Pins end with their worker:
//! recovery clears its lines.

use super::Hosts;
use crate::region::layout::PINS_PER_LINE;
use crate::region::lines::{hazard_block, hazard_word};
use crate::sync::{Holds, Membership};
use cenote_base::fault::{self, Mistake};
use cenote_base::{BlockIndex, Generation};
use cenote_mem::{Fabric, HostLocal, Offset};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Which hazard slots of this worker are taken by its threads. One atomic step takes a slot and one
/// releases it.
pub(crate) struct PinTable {
    /// One bit per slot, set while it is free.
    free: Box<[AtomicU64]>,
    /// Lines that scanners reach: lines before this one have an epoch, and other hosts can see it.
    used_lines: AtomicU32,
    epoch: AtomicU64,
}

impl PinTable {
    pub fn new(lines: u64) -> Self {
        let slots = u32::try_from(lines).expect("validated") * PINS_PER_LINE;
        let free = (0..slots.div_ceil(64)).map(|word| match slots - word * 64 {
            64.. => AtomicU64::new(u64::MAX),
            last => AtomicU64::new((1 << last) - 1),
        });
        Self { free: free.collect(), used_lines: AtomicU32::new(0), epoch: AtomicU64::new(0) }
    }

    /// Sets the epoch under which this worker has joined.
    pub fn adopt(&self, epoch: u64) {
        self.epoch.store(epoch, Relaxed);
    }

    /// Takes the lowest free slot, so that scanners read few lines. `None`: all are taken.
    pub fn take(&self) -> Option<u32> {
        for (word, free) in (0..).zip(&self.free) {
            let mut known = free.load(Relaxed);
            while known != 0 {
                let bit = known.trailing_zeros();
                known = free.fetch_and(!(1 << bit), AcqRel);
                if known & (1 << bit) != 0 {
                    return Some(word * 64 + bit);
                }
            }
        }
        None
    }

    /// Releases a slot.
    pub fn give_back(&self, slot: u32) {
        self.free[(slot / 64) as usize].fetch_or(1 << (slot % 64), Release);
    }
}

impl<F: Fabric, H: HostLocal> Hosts<F, H> {
    /// A hazard line of this worker.
    fn own_line(&self, line: u64) -> u64 {
        self.region.layout.hazard(self.region.host, self.region.slot(), line)
    }

    fn own_word(&self, slot: u32) -> Offset<u64> {
        let line = self.own_line(u64::from(slot / PINS_PER_LINE));
        Offset::new(line + u64::from(slot % PINS_PER_LINE) * 8)
    }

    /// Stores a pin in a slot of this worker and makes it visible to scanners.
    ///
    /// Lines come into use in order, and a scanner stops at the first line without an epoch, so all
    /// lines before this one are published with it. Concurrent threads store the same epochs.
    pub fn show_pin(&self, slot: u32, block: BlockIndex, generation: Generation) {
        let fabric = &self.region.fabric;
        fabric.store(self.own_word(slot), hazard_word(block, generation));
        let line = slot / PINS_PER_LINE;
        let used = self.pins.used_lines.load(Acquire);
        let own = [self.own_line(line.into())];
        let new: Vec<u64> = (used..=line).map(|line| self.own_line(line.into())).collect();
        let epoch = self.pins.epoch.load(Relaxed);
        new.iter().for_each(|&line| fabric.store(Offset::new(line + 56), epoch));
        fabric.publish(if new.is_empty() { &own } else { &new });
        if !new.is_empty() {
            self.pins.used_lines.fetch_max(line + 1, Release);
        }
    }

    /// Clears a pin of this worker and releases its slot. Scanners may see it for a little longer.
    pub fn clear_pin(&self, slot: u32) {
        self.region.fabric.store(self.own_word(slot), 0);
        self.region.fabric.publish_unfenced(self.own_line(u64::from(slot / PINS_PER_LINE)));
        self.pins.give_back(slot);
    }

    /// Clears all words of this worker's hazard lines that are no pins of it: damage.
    pub(super) fn clear_free_pins(&self) {
        let fabric = &self.region.fabric;
        let taken: Vec<u32> = std::iter::from_fn(|| self.pins.take()).collect();
        for &slot in &taken {
            fabric.store(self.own_word(slot), 0);
        }
        let epoch = self.pins.epoch.load(Relaxed);
        for line in 0..self.region.layout.hazard_lines_per_worker {
            // A scanner stops at a line without an epoch.
            if line < u64::from(self.pins.used_lines.load(Acquire)) {
                fabric.store(Offset::new(self.own_line(line) + 56), epoch);
            }
            fabric.publish_unfenced(self.own_line(line));
        }
        fabric.fence();
        taken.into_iter().for_each(|slot| self.pins.give_back(slot));
    }

    /// Clears the pins of a worker of this host that has died or leaves.
    pub fn clear_hazards(&self, _: &Holds<Membership>, slot: u64) {
        let region = &self.region;
        for index in 0..region.layout.hazard_lines_per_worker {
            let at = region.layout.hazard(region.host, slot, index);
            if region.fabric.load_line(at) != [0; 8] {
                region.clear(at);
            }
        }
    }

    /// Every block that a worker of a host not declared dead pins. Lines of worker slots never used
    /// are not read.
    pub fn pinned_blocks(&self) -> BTreeSet<BlockIndex> {
        let region = &self.region;
        let mut pinned = BTreeSet::new();
        if fault::makes(Mistake::EvictScanSkipped) {
            return pinned;
        }
        let others = (0..region.layout.max_hosts).filter(|&host| host != region.host);
        for host in std::iter::once(region.host).chain(others) {
            let Some(line) = region.read_host(host) else { continue };
            if host != region.host && region.is_dead(host, line.incarnation) {
                continue;
            }
            for slot in 0..line.workers_high.min(region.layout.workers_per_host) {
                self.add_pins(host, slot, &mut pinned);
            }
        }
        pinned
    }

    /// Adds the blocks that one worker pins.
    pub fn add_pins(&self, host: u64, slot: u64, pinned: &mut BTreeSet<BlockIndex>) {
        let region = &self.region;
        let lines = 0..region.layout.hazard_lines_per_worker;
        let lines: Vec<u64> = lines.map(|line| region.layout.hazard(host, slot, line)).collect();
        if host != region.host {
            region.fabric.refresh(&lines);
        }
        for at in lines {
            let words = region.fabric.load_line(at);
            if words[7] == 0 {
                // Lines come into use in order.
                break;
            }
            pinned.extend(words[..7].iter().filter_map(|&word| hazard_block(word)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_low_first_and_each_once() {
        for lines in [1, 9, 64, 1024] {
            let table = PinTable::new(lines);
            let slots = lines as u32 * PINS_PER_LINE;
            assert_eq!((0..slots).map(|_| table.take()).collect::<Option<Vec<_>>>(), Some((0..slots).collect()));
            assert_eq!(table.take(), None);
            table.give_back(slots - 1);
            table.give_back(slots / 2);
            assert_eq!([table.take(), table.take(), table.take()], [Some(slots / 2), Some(slots - 1), None]);
        }
    }

    #[test]
    fn threads_never_hold_the_same_slot() {
        let table = PinTable::new(1);
        let held: Vec<AtomicU32> = (0..PINS_PER_LINE).map(|_| AtomicU32::new(0)).collect();
        let work = || {
            for _ in 0..20_000 {
                let Some(slot) = table.take() else { continue };
                assert_eq!(held[slot as usize].fetch_add(1, AcqRel), 0, "slot {slot} was given out twice");
                held[slot as usize].fetch_sub(1, AcqRel);
                table.give_back(slot);
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
        assert_eq!((0..PINS_PER_LINE).map(|_| table.take()).collect::<Option<Vec<_>>>().map(|all| all.len()), Some(7));
    }
}
