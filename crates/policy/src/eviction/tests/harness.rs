//! A pool without bytes: what the real one and a simulator do with a policy, and nothing else.

use crate::eviction::{Candidate, Choice, Eviction, EvictionPolicy};
use cenote_base::BlockIndex;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;

/// A block's identity in a trace.
pub type Id = u64;

/// What the hash of a block would be: uniform bits.
pub fn key(id: Id) -> u64 {
    cenote_base::prng::Prng::new(id).next_u64()
}

pub fn zeroed(policy: &dyn EvictionPolicy, num_blocks: u64) -> Vec<AtomicU64> {
    (0..policy.state_words(num_blocks)).map(|_| AtomicU64::new(0)).collect()
}

#[derive(Clone, Copy)]
struct Slot {
    id: Id,
    word: u64,
    depth: u32,
    parent: Option<Id>,
}

pub struct Pool {
    policy: &'static dyn EvictionPolicy,
    state: Vec<AtomicU64>,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    index: HashMap<Id, usize>,
    clock: u64,
    batch: usize,
    pub evicted: u64,
    /// Victims that were the predecessor of a block that stayed.
    pub beheaded: u64,
}

impl Pool {
    pub fn new(eviction: Eviction, capacity: usize, batch: usize) -> Self {
        let policy = eviction.policy();
        Self {
            policy,
            state: zeroed(policy, capacity as u64),
            slots: vec![None; capacity],
            free: (0..capacity).rev().collect(),
            index: HashMap::new(),
            clock: 0,
            batch,
            evicted: 0,
            beheaded: 0,
        }
    }

    /// Looks a prompt up and publishes what was missing; returns how many of its blocks were found.
    pub fn request(&mut self, ids: &[Id]) -> usize {
        self.clock += 1;
        let found = ids.iter().take_while(|id| self.index.contains_key(id)).count();
        ids[..found].iter().for_each(|&id| self.touch(id));
        for depth in found..ids.len() {
            self.publish(ids[depth], depth as u32, depth.checked_sub(1).map(|parent| ids[parent]));
        }
        found
    }

    fn touch(&mut self, id: Id) {
        let slot = self.slots[self.index[&id]].as_mut().expect("indexed");
        slot.word = self.policy.accessed(slot.word, self.clock);
    }

    fn publish(&mut self, id: Id, depth: u32, parent: Option<Id>) {
        if self.index.contains_key(&id) {
            return self.touch(id);
        }
        if self.free.is_empty() {
            self.make_room();
        }
        let at = self.free.pop().expect("room was made");
        let word = self.policy.inserted(self.clock, key(id), &self.state);
        self.slots[at] = Some(Slot { id, word, depth, parent });
        self.index.insert(id, at);
    }

    fn make_room(&mut self) {
        let occupied = self.slots.iter().enumerate().filter_map(|(at, slot)| Some((at, (*slot)?)));
        let candidates: Vec<Candidate> = occupied
            .map(|(at, slot)| Candidate {
                block: BlockIndex(at as u64),
                word: slot.word,
                depth: slot.depth,
                key: key(slot.id),
            })
            .collect();
        let Choice { victims, rewrites } = self.policy.victims(self.clock, &self.state, &candidates, self.batch);
        for rewrite in rewrites {
            let slot = self.slots[rewrite.block.0 as usize].as_mut().expect("a candidate");
            assert_eq!(slot.word, rewrite.from);
            slot.word = rewrite.to;
        }
        self.evicted += victims.len() as u64;
        let gone: Vec<Id> = victims.iter().map(|block| self.remove(block.0 as usize)).collect();
        let gone: std::collections::HashSet<Id> = gone.into_iter().collect();
        let orphans = self.slots.iter().flatten().filter_map(|slot| slot.parent).filter(|id| gone.contains(id));
        self.beheaded += orphans.count() as u64;
    }

    fn remove(&mut self, at: usize) -> Id {
        let slot = self.slots[at].take().expect("a candidate");
        self.index.remove(&slot.id);
        self.free.push(at);
        slot.id
    }
}
