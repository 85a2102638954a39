//! The pool's ends of loads and saves.

use super::{Order, Outcomes, add};
use crate::codec::Coding;
use crate::lease::Pin;
use crate::load::{is_refused, read_now};
use crate::memory::Pages;
use crate::namespace::outcome;
use crate::save::{Save, Target};
use cenote_base::BlockHash;
use cenote_device::memory::Slots;
use cenote_device::mover::{Saving, Sink, Source};
use cenote_mem::Mapped;
use cenote_mem::checksum::{ACCUMULATORS, LANES, fold_lanes, lane_keys};
use cenote_pool::{Filling, InPlace, Names, NewBlock, Publish, ReadOutcome};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Pinned blocks of a load. No process writes a pinned block, and the checksum's key covers the block
/// and the use of its slot. So a checksum that matches after the copy also matched during the copy.
pub struct Pinned {
    pub fabric: Arc<Mapped>,
    pub coding: Option<Arc<Coding>>,
    /// The staging memory's slots as blocks.
    pub slots: Arc<Pages>,
    pub pins: Vec<Arc<Pin>>,
    /// Ascending numbers of the blocks in the load.
    pub numbers: Vec<usize>,
}

impl Source for Pinned {
    fn places(&self) -> Vec<u64> {
        let place = |pin: &Arc<Pin>| {
            let (at, length) = pin.extent().expect("blocks without an extent are staged");
            self.fabric.address(at, length).addr() as u64
        };
        self.pins.iter().map(place).collect()
    }

    fn check(&mut self) -> Vec<bool> {
        let pins = std::mem::take(&mut self.pins).into_iter().zip(&self.numbers);
        let is_whole = |pin: Arc<Pin>| pin.verify() == ReadOutcome::Whole;
        pins.map(|(pin, &number)| is_whole(pin) && !is_refused(number)).collect()
    }

    fn lane_keys(&self) -> Vec<[u64; LANES]> {
        self.pins.iter().map(|pin| lane_keys(pin.checksum_key())).collect()
    }

    fn check_sums(&mut self, sums: &[[u64; ACCUMULATORS]]) -> Vec<bool> {
        let pins = std::mem::take(&mut self.pins).into_iter().zip(sums).zip(&self.numbers);
        let is_whole = |pin: &Pin, sums| {
            let sum = fold_lanes(sums, pin.hit().length, pin.checksum_key());
            pin.verify_sum(sum) == ReadOutcome::Whole
        };
        pins.map(|((pin, sums), &number)| is_whole(&pin, sums) && !is_refused(number)).collect()
    }

    fn read(&mut self, slots: &Slots) -> Vec<bool> {
        let blocks = self.numbers.iter().zip(std::mem::take(&mut self.pins)).zip(slots.numbers());
        let blocks = blocks.map(|((&number, pin), &slot)| (number, pin, slot)).collect();
        let failed = read_now(&self.slots, self.coding.clone(), blocks);
        self.numbers.iter().map(|number| !failed.contains(number)).collect()
    }
}

/// Reserved blocks of the region, which the GPU writes, or the processor from the staging memory.
pub struct Reserved {
    to: Target,
    fillings: Vec<InPlace<Arc<Mapped>>>,
    hashes: Vec<BlockHash>,
    outcomes: Outcomes,
    /// Held until memory is reserved for all blocks of the save.
    gate: Arc<Mutex<()>>,
}

/// A reserved block, its name, and the engine's block.
type New = (InPlace<Arc<Mapped>>, BlockHash, usize);

/// Reserves memory for these blocks of an order, as far as they are new and have room. Returns them, and the
/// outcomes of the others.
pub fn reserve(order: &Order, some: Range<usize>) -> (Vec<New>, Vec<(BlockHash, &'static str)>) {
    let hashes = &order.hashes[some.clone()];
    let new = hashes.iter().zip(&order.depths[some.clone()]).zip(&order.names[some.clone()]);
    let new =
        new.map(|((&hash, &depth), &names)| NewBlock { names, ..NewBlock::new(&order.to.namespace, hash, depth) });
    let begun = order.to.pool.begin_all_in_place(&new.collect::<Vec<_>>());
    let (mut reserved, mut refused) = (Vec::new(), Vec::new());
    for ((begun, &hash), &block) in begun.into_iter().zip(hashes).zip(&order.blocks[some]) {
        match begun {
            Ok(filling) => reserved.push((filling, hash, block)),
            Err(why) => refused.push((hash, outcome(why))),
        }
    }
    (reserved, refused)
}

impl Reserved {
    /// A part of a save, of blocks that were reserved for this order.
    pub fn part(order: &Order, new: Vec<New>, is_staged: bool, outcomes: &Outcomes, gate: &Arc<Mutex<()>>) -> Saving {
        let (to, outcomes, gate) = (order.to.clone(), Arc::clone(outcomes), Arc::clone(gate));
        let (fillings, hashes, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
        let mut part = Self { to, fillings, hashes, outcomes, gate };
        for (filling, hash, block) in new {
            part.fillings.push(filling);
            part.hashes.push(hash);
            blocks.push(block);
        }
        Saving { sink: Box::new(part), blocks, is_staged }
    }
}

impl Reserved {
    /// Waits until the engine's thread has reserved memory for all blocks of the save. Its waits for the region's
    /// locks have deadlines.
    fn await_all(&self) {
        drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn published(&self, ended: &[Publish]) {
        ended.iter().for_each(|&ended| add(&self.outcomes, outcome(ended), 1));
        if let Some(below) = &self.to.below {
            let is_there = |ended: &Publish| matches!(ended, Publish::Published | Publish::Duplicate);
            let there = self.hashes.iter().zip(ended).filter(|(_, ended)| is_there(ended));
            below.offer(there.map(|(&hash, _)| hash));
        }
    }
}

impl Sink for Reserved {
    fn places(&self) -> Vec<u64> {
        let place = |filling: &InPlace<Arc<Mapped>>| {
            let (at, length) = filling.extent();
            self.to.pool.fabric().address(at, length).addr() as u64
        };
        self.fillings.iter().map(place).collect()
    }

    fn publish(&mut self) {
        self.await_all();
        let ended = self.to.pool.publish_in_place(std::mem::take(&mut self.fillings));
        self.published(&ended);
    }

    fn lane_keys(&self) -> Vec<[u64; LANES]> {
        self.fillings.iter().map(|filling| lane_keys(filling.checksum_key())).collect()
    }

    fn publish_with_sums(&mut self, sums: &[[u64; ACCUMULATORS]]) {
        self.await_all();
        let summed = |(filling, sums): (InPlace<Arc<Mapped>>, _)| {
            let sum = fold_lanes(sums, filling.extent().1, filling.checksum_key());
            (filling, sum)
        };
        let fillings = std::mem::take(&mut self.fillings).into_iter().zip(sums).map(summed);
        let ended = self.to.pool.publish_with_sums(fillings.collect());
        self.published(&ended);
    }

    fn publish_from(&mut self, slots: &Slots) {
        self.await_all();
        let mut fillings: Vec<_> = std::mem::take(&mut self.fillings).into_iter().map(InPlace::into_copied).collect();
        // SAFETY: the device has written the slots, and they are this part's until it ends.
        let payload = |number| unsafe { slots.payload(number) };
        Filling::append_all(fillings.iter_mut().enumerate().map(|(number, filling)| (filling, payload(number))));
        let ended = self.to.pool.publish_filled(fillings);
        self.published(&ended);
    }
}

/// Blocks that the processor copies from the staging memory into the region, encoded if need be.
pub struct Copied {
    to: Target,
    pages: Arc<Pages>,
    hashes: Vec<BlockHash>,
    depths: Vec<u32>,
    names: Vec<Names>,
    outcomes: Outcomes,
}

impl Copied {
    /// Adds parts for the blocks of an order.
    pub fn add_parts(order: &Order, size: usize, slots: &Arc<Pages>, outcomes: &Outcomes, parts: &mut Vec<Saving>) {
        for part in (0..order.hashes.len()).collect::<Vec<_>>().chunks(size) {
            let copied = Self {
                to: order.to.clone(),
                pages: Arc::clone(slots),
                hashes: part.iter().map(|&number| order.hashes[number]).collect(),
                depths: part.iter().map(|&number| order.depths[number]).collect(),
                names: part.iter().map(|&number| order.names[number]).collect(),
                outcomes: Arc::clone(outcomes),
            };
            let blocks = part.iter().map(|&number| order.blocks[number]).collect();
            parts.push(Saving { sink: Box::new(copied), blocks, is_staged: true });
        }
    }
}

impl Sink for Copied {
    fn places(&self) -> Vec<u64> {
        unreachable!("the blocks go through the staging memory");
    }

    fn publish(&mut self) {
        unreachable!("the blocks go through the staging memory");
    }

    fn lane_keys(&self) -> Vec<[u64; LANES]> {
        unreachable!("the blocks go through the staging memory");
    }

    fn publish_with_sums(&mut self, _sums: &[[u64; ACCUMULATORS]]) {
        unreachable!("the blocks go through the staging memory");
    }

    fn publish_from(&mut self, slots: &Slots) {
        let (to, pages) = (self.to.clone(), Arc::clone(&self.pages));
        let save = Save::begin(to, pages, &self.hashes, &self.depths, slots.numbers(), &self.names);
        save.end().into_iter().for_each(|(outcome, count)| add(&self.outcomes, outcome, count));
    }
}
