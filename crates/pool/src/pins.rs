//! Pins: a block that is used in place, or promised to someone, must not be reused.
//!
//! A pin is a word in a hazard line that only this worker writes. Pins die with their worker: recovery
//! clears its lines.

use crate::blocks::Hit;
use crate::pool::{Inner, Pool};
use crate::region::lines::{BlockState, Descriptor, hazard_word};
use crate::strays::Strays;
use cenote_base::fault;
use cenote_mem::{Fabric, HostArea, HostLocal, Offset};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Which hazard slots of this worker are taken, for its threads. Nobody waits for anybody: a slot is taken and given
/// back by one atomic step each.
pub(crate) struct PinTable {
    /// A bit for each slot, set while it is free.
    free: Box<[AtomicU64]>,
    /// Lines that a scanner is led to: those before this one have an epoch, and other hosts can see it.
    used_lines: AtomicU32,
    epoch: u64,
}

/// Slots of a hazard line; its last word is the worker's epoch.
pub(crate) const SLOTS_PER_LINE: u32 = 7;

impl PinTable {
    pub fn new(lines: u64) -> Self {
        let slots = u32::try_from(lines).expect("validated") * SLOTS_PER_LINE;
        let free = (0..slots.div_ceil(64)).map(|word| match slots - word * 64 {
            64.. => AtomicU64::new(u64::MAX),
            last => AtomicU64::new((1 << last) - 1),
        });
        Self { free: free.collect(), used_lines: AtomicU32::new(0), epoch: 0 }
    }

    pub const fn adopt(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Takes a free slot, a low one, so that scanners read few lines. `None`: all are taken.
    fn take(&self) -> Option<u32> {
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

    fn give_back(&self, slot: u32) {
        self.free[(slot / 64) as usize].fetch_or(1 << (slot % 64), Release);
    }
}

/// Keeps one block from being reused while it lives.
pub struct Pin<F: Fabric, H: HostLocal = HostArea> {
    pub(crate) inner: Arc<Inner<F, H>>,
    keeper: Keeper,
    hit: Hit,
    /// Of the host, when the block was pinned.
    life: u64,
}

/// What keeps a pinned block.
#[derive(Clone, Copy)]
enum Keeper {
    /// A word in one of this worker's hazard lines.
    Hazard(u32),
    /// One of the block's counts, in the plain design.
    Count,
}

impl<F: Fabric, H: HostLocal> Pin<F, H> {
    /// The pinned block.
    #[must_use]
    pub const fn hit(&self) -> &Hit {
        &self.hit
    }

    /// Whether the pin has kept the block until now, so that what was read in place is what was verified. Two cases where it
    /// has not: this host was suspended for longer than the host timeout, and others have declared it dead; or the block lies
    /// in memory of another host that was declared dead, whose caches may still write there. A copy, which is verified
    /// after it was made ([`Pin::verify`], [`Pin::read`]), needs neither.
    #[must_use]
    pub fn protects(&self) -> bool {
        let inner = &self.inner;
        !inner.area.is_inherited()
            && inner.incarnation() == self.life
            && !inner.is_dead(inner.host, self.life)
            && inner.strays(inner.layout.chunk_of(self.hit.block)) != Strays::Possible
    }

    /// Offset and length in bytes of the payload in the region, for use in place. Its bytes stay as they are
    /// while the pin lives and [protects](Pin::protects) it.
    #[must_use]
    pub const fn extent(&self) -> (u64, u64) {
        (self.hit.offset, self.hit.length)
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    fn hazard_slot(&self, slot: u32) -> (u64, Offset<u64>) {
        let line = self.layout.hazard(self.host, self.slot(), u64::from(slot / SLOTS_PER_LINE));
        (line, Offset::new(line + u64::from(slot % SLOTS_PER_LINE) * 8))
    }

    /// Shows a pin in this line to scanners. Lines come into use in order, and a scanner stops at the first without an
    /// epoch, so all lines before it are shown with it. Threads that come here at once store the same.
    fn show_pin(&self, line: u32) {
        let place = |line: u32| self.layout.hazard(self.host, self.slot(), u64::from(line));
        let used = self.pins.used_lines.load(Acquire);
        let own = [place(line)];
        let new: Vec<u64> = (used..=line).map(place).collect();
        new.iter().for_each(|&line| self.fabric.store(Offset::new(line + 56), self.pins.epoch));
        self.fabric.publish(if new.is_empty() { &own } else { &new });
        if !new.is_empty() {
            self.pins.used_lines.fetch_max(line + 1, Release);
        }
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// Clears what this worker's hazard lines say beyond its pins: only damage puts it there.
    pub(crate) fn clear_free_pins(&self) {
        let taken: Vec<u32> = std::iter::from_fn(|| self.pins.take()).collect();
        for &slot in &taken {
            self.fabric.store(self.hazard_slot(slot).1, 0);
        }
        let lines = (0..self.layout.hazard_lines_per_worker)
            .map(|line| (line, self.layout.hazard(self.host, self.slot(), line)));
        for (line, at) in lines {
            // Without its epoch, a scanner would not look behind this line.
            if line < u64::from(self.pins.used_lines.load(Acquire)) {
                self.fabric.store(Offset::new(at + 56), self.pins.epoch);
            }
            self.fabric.publish_unfenced(at);
        }
        self.fabric.fence();
        taken.into_iter().for_each(|slot| self.pins.give_back(slot));
    }
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Pins a block. `None`: it is gone already, or all of this worker's pins are taken.
    #[must_use]
    pub fn pin(&self, hit: &Hit) -> Option<Pin<F, H>> {
        let inner = &self.0;
        if inner.is_out() {
            return None;
        }
        let life = inner.incarnation();
        if inner.is_plain() {
            inner.take_count(hit).then(|| inner.fabric.refresh_payload(hit.offset, hit.length))?;
            return Some(Pin { inner: Arc::clone(inner), keeper: Keeper::Count, hit: *hit, life });
        }
        let slot = inner.pins.take()?;
        // From here on the slot is given back when the pin goes.
        let pin = Pin { inner: Arc::clone(inner), keeper: Keeper::Hazard(slot), hit: *hit, life };
        let (_, word) = inner.hazard_slot(slot);
        inner.fabric.store(word, hazard_word(hit.block, hit.generation));
        inner.show_pin(slot / SLOTS_PER_LINE);
        // The pin is visible; if the block still stands now, its owner will see the pin before reusing it. The hit was
        // checked when it was found, so the words that it came from are enough.
        let words = inner.fresh_line(inner.layout.descriptor(hit.block));
        let still = words[0] == Descriptor::state_word(BlockState::Ready, hit.generation)
            && words[1..3] == hit.hash.words()
            && words[4] == hit.checksum;
        if !still && !fault::sabotaged("pin.recheck-skipped") {
            return None;
        }
        if !inner.sweep(hit, hit.length) {
            inner.set_seen(hit.block, hit.generation);
        }
        Some(pin)
    }
}

impl<F: Fabric, H: HostLocal> Drop for Pin<F, H> {
    fn drop(&mut self) {
        if self.inner.area.is_inherited() {
            return;
        }
        let Keeper::Hazard(slot) = self.keeper else { return self.inner.give_count(&self.hit) };
        let (line, word) = self.inner.hazard_slot(slot);
        self.inner.fabric.store(word, 0);
        self.inner.fabric.publish_unfenced(line);
        self.inner.pins.give_back(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_low_first_and_each_once() {
        for lines in [1, 9, 64, 1024] {
            let table = PinTable::new(lines);
            let slots = lines as u32 * SLOTS_PER_LINE;
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
        let held: Vec<AtomicU32> = (0..SLOTS_PER_LINE).map(|_| AtomicU32::new(0)).collect();
        let work = || {
            for _ in 0..20_000 {
                let Some(slot) = table.take() else { continue };
                assert_eq!(held[slot as usize].fetch_add(1, AcqRel), 0, "slot {slot} was given out twice");
                held[slot as usize].fetch_sub(1, AcqRel);
                table.give_back(slot);
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
        assert_eq!((0..SLOTS_PER_LINE).map(|_| table.take()).collect::<Option<Vec<_>>>().map(|all| all.len()), Some(7));
    }
}
