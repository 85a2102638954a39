//! Operations on blocks that are filled in place, with stalls during the fill, and on inherited
//! handles in forked children.

use crate::oracle::Checker;
use crate::scenario::{Actor, LOCK_TIMEOUT, SimPool, UNLIKE, names_of};
use cenote_base::prng::Prng;
use cenote_mem::{Fabric, Offset};
use cenote_pool::{Filling, Namespace, NewBlock, Publish, ReadOutcome};

/// Most blocks of one call.
pub const SEVERAL_MAX: u64 = 5;

impl Actor {
    /// Publishes a block with a payload written in place through the host's caches, as a program
    /// with its own mapping does. The writer may stall at any word, and the other hosts may declare
    /// its host dead meanwhile.
    pub fn publish_in_place(&self, pool: &SimPool, namespace: &Namespace, number: usize, payload: &[u8]) -> Publish {
        let (hash, depth, names) = (self.shape.hash(number), number as u32, names_of(number));
        let filling = match pool.begin_in_place(&NewBlock { names, ..NewBlock::new(namespace, hash, depth) }) {
            Ok(filling) => filling,
            Err(outcome) => return outcome,
        };
        let (offset, _) = filling.extent();
        // A third of the fills stall after the last word. The others may stall at any word.
        let is_held_up = self.process.time().is_multiple_of(3);
        for (word, bytes) in (0..).zip(payload.chunks_exact(8)) {
            let word_value = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            pool.fabric().store(Offset::new(offset + 8 * word), word_value);
        }
        self.process.change_thread();
        if is_held_up {
            self.process.hold_up_host();
        }
        // One in seven abandons the fill.
        if self.process.time().is_multiple_of(7) { Publish::NoRoom } else { filling.publish() }
    }

    /// Uses and drops all inherited handles in a forked child. Every call must fail, without one
    /// operation on memory, locks or slots. The parent loses the handles, so it must detach
    /// afterwards.
    pub fn fork(&self, pool: &SimPool, namespace: &Namespace, number: usize) {
        let (hash, depth, names) = (self.shape.hash(number), number as u32, names_of(number));
        let unlike = self.shape.hash(UNLIKE + number);
        let payload = self.shape.payload(number);
        let pin = pool.lookup(&[hash]).first().and_then(|hit| pool.pin(hit));
        let reading = pool.lookup(&[hash]).first().and_then(|hit| pool.pin(hit)).map(cenote_pool::Pin::read);
        let kept = pool.swap_out(namespace, &[&payload]).ok();
        let filling = pool.begin_in_place(&NewBlock { names, ..NewBlock::new(namespace, unlike, depth) }).ok();
        let memory = self.oracle.notes().pieces.first().map(|piece| piece.offset);
        let (outcomes, operations) = self.process.in_child(|| {
            let hit = pin.as_ref().map(|pin| *pin.hit());
            let mut bytes = payload.clone();
            let found = pool.lookup(&[hash]).len() + pool.peek(&[hash]).len();
            let read = hit.is_some_and(|hit| pool.read(&hit, &mut [&mut bytes]) == ReadOutcome::Whole);
            let pinned = hit.is_some_and(|hit| pool.pin(&hit).is_some());
            let verified = pin.as_ref().is_some_and(|pin| pin.verify() == ReadOutcome::Whole);
            let published = self.publish_plainly(pool, namespace, number) != Publish::NoRoom;
            let kept_there = kept.as_ref().is_some_and(|kept| kept.read(&mut [&mut bytes]) == ReadOutcome::Whole);
            let kept_more = pool.swap_out(namespace, &[&payload]).is_ok();
            let freed = memory.is_some_and(|memory| pool.free(memory).is_ok());
            let locked = pool.lock_user(4, LOCK_TIMEOUT).is_ok() || pool.put_object("a", b"b").is_ok();
            let gone = pool.evict(3) + pool.forget(namespace);
            let ticked = pool.tick().workers;
            let filled = filling.map(|filling| filling.publish()) == Some(Publish::Published);
            drop((pin, reading, kept));
            let any = [read, pinned, verified, published, kept_there, kept_more, freed, locked, filled];
            (found, gone, ticked, any.contains(&true))
        });
        if outcomes != (0, 0, 0, false) || operations != 0 {
            let fact = format!("a forked child did {operations} operations, and its calls returned {outcomes:?}");
            self.oracle.report(Checker::Allocator, fact);
        }
        self.process.note("forked");
    }

    /// Publishes several blocks in one call: copied whole, copied in pieces, or written in place. A
    /// hash may be repeated, and some blocks are there already.
    pub fn publish_several(&self, pool: &SimPool, namespace: &Namespace, prng: &mut Prng) {
        let count = 2 + prng.below(SEVERAL_MAX - 1);
        let numbers: Vec<usize> = (0..count).map(|_| prng.below(self.shape.universe as u64) as usize).collect();
        numbers.iter().for_each(|&number| self.notes_published(namespace, number));
        let payloads: Vec<Vec<u8>> = numbers.iter().map(|&number| self.shape.payload(number)).collect();
        let new = |&number: &usize| NewBlock {
            names: names_of(number),
            ..NewBlock::new(namespace, self.shape.hash(number), number as u32)
        };
        let new: Vec<NewBlock<'_>> = numbers.iter().map(new).collect();
        let outcomes = match prng.below(4) {
            0 => {
                let begun = pool.begin_all(&new).into_iter().zip(&payloads);
                let (mut fillings, payloads): (Vec<_>, Vec<&Vec<u8>>) =
                    begun.filter_map(|(filling, payload)| Some((filling.ok()?, payload))).unzip();
                for piece in [0..64, 64..self.shape.block_bytes as usize] {
                    Filling::append_all(
                        fillings.iter_mut().zip(payloads.iter().map(|payload| &payload[piece.clone()])),
                    );
                }
                // One thread may write the pieces and another publish them.
                self.process.change_thread();
                pool.publish_filled(fillings)
            }
            1 => {
                let begun = pool.begin_all_in_place(&new).into_iter().zip(&payloads);
                let begun = begun.filter_map(|(filling, payload)| Some((filling.ok()?, payload)));
                let written = begun.map(|(filling, payload)| {
                    for (word, bytes) in (0..).zip(payload.chunks_exact(8)) {
                        let value = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
                        pool.fabric().store(Offset::new(filling.extent().0 + 8 * word), value);
                    }
                    filling
                });
                pool.publish_in_place(written.collect())
            }
            _ => {
                let parts: Vec<[&[u8]; 2]> =
                    payloads.iter().map(|payload| payload.split_at(64)).map(|(left, right)| [left, right]).collect();
                let blocks: Vec<(NewBlock<'_>, &[&[u8]])> =
                    new.iter().zip(&parts).map(|(new, parts)| (*new, parts.as_slice())).collect();
                pool.publish_all(&blocks)
            }
        };
        self.process.note(&format!("publish {numbers:?}: {outcomes:?}"));
    }

    fn publish_plainly(&self, pool: &SimPool, namespace: &Namespace, number: usize) -> Publish {
        let payload = self.shape.payload(number);
        pool.publish(
            &NewBlock { names: names_of(number), ..NewBlock::new(namespace, self.shape.hash(number), number as u32) },
            &[&payload],
        )
    }
}
