//! A host's memory, and how it makes room (`eviction/room.rs` of the pool).

use super::{Chunk, Hosts, NONE, Rack, Slot};
use crate::cache::key;
use cenote_base::BlockIndex;
use cenote_policy::eviction::{Candidate, Eviction, EvictionPolicy, batch};
use cenote_policy::sharing::is_due;
use std::sync::atomic::AtomicU64;

/// How a host sees a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It is free or another host's.
    Elsewhere,
    /// This host evicts from it and reserves in it.
    Listed,
    /// This host offers it, or offered it until another host took it.
    Offered,
}

/// What a host has heard of another one.
#[derive(Clone, Copy, Default)]
pub(super) struct Peer {
    pub lookups: u64,
    pub evicted: u64,
    pub hits: usize,
    /// Ticks since it has last evicted.
    pub calm_ticks: u64,
}

/// A host's demand line: what it has told the others at its last tick.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Demand {
    pub lookups: u64,
    pub evicted: u64,
    /// Instant of the blocks that leave next.
    pub oldest: Option<u64>,
    /// Instant of the oldest chunk on its board.
    pub offered: Option<u64>,
}

pub(super) struct Host {
    /// Words of the eviction policy by slot, also of other hosts' slots.
    pub words: Vec<u64>,
    pub state: Vec<AtomicU64>,
    /// How it sees each chunk, and those that it sees as listed and as offered, ascending.
    chunks: Vec<Seen>,
    listed: Vec<usize>,
    offered: Vec<usize>,
    /// Free slots of listed chunks, the next one last.
    pub free: Vec<u32>,
    /// Lookups of this host, and those of others that it has heard of.
    pub clock: u64,
    /// Lookups of others that the clock has counted.
    pub heard: u64,
    pub peers: Vec<Peer>,
    pub demand: Demand,
    /// Offered chunks with their instants, the oldest first.
    pub board: Vec<(usize, u64)>,
    /// Hits in other hosts' blocks.
    pub hits: Vec<u32>,
    pub reserved: u64,
    pub reserved_before: u64,
    pub quiet_ticks: u64,
    /// The rack's number of changes at its last tick, and ticks since then.
    pub changes: u64,
    pub still_ticks: u64,
    pub offers_all: bool,
    pub best_offer: Option<u64>,
    pub report_pace: u64,
    pub evicted: u64,
    pub no_room: u64,
    pub moved: u64,
}

impl Host {
    pub fn new(eviction: Eviction, chunks: usize, hosts: &Hosts) -> Self {
        let slots = chunks * hosts.chunk_blocks;
        let state = 0..eviction.policy().state_words(slots as u64);
        Self {
            words: vec![0; slots],
            state: state.map(|_| AtomicU64::new(0)).collect(),
            chunks: vec![Seen::Elsewhere; chunks],
            listed: Vec::new(),
            offered: Vec::new(),
            free: Vec::new(),
            clock: 0,
            heard: 0,
            peers: vec![Peer::default(); hosts.count],
            demand: Demand::default(),
            board: Vec::new(),
            hits: Vec::new(),
            reserved: 0,
            reserved_before: 0,
            quiet_ticks: 0,
            changes: 0,
            still_ticks: 0,
            offers_all: false,
            best_offer: None,
            report_pace: 0,
            evicted: 0,
            no_room: 0,
            moved: 0,
        }
    }

    /// Marks blocks as used now. A block of another host is marked when it is reported.
    pub fn touch(&mut self, policy: &dyn EvictionPolicy, chunk_blocks: usize, slots: &[u32]) {
        for &slot in slots {
            let word = &mut self.words[slot as usize];
            let is_listed = self.chunks[slot as usize / chunk_blocks] == Seen::Listed;
            if !is_listed {
                if !is_due(policy.idle(*word, self.clock), self.report_pace) {
                    continue;
                }
                self.hits.push(slot);
            }
            *word = policy.accessed(*word, self.clock);
        }
    }

    /// How it sees a chunk.
    pub fn sees(&self, chunk: usize) -> Seen {
        self.chunks[chunk]
    }

    pub fn see(&mut self, chunk: usize, seen: Seen) {
        let before = std::mem::replace(&mut self.chunks[chunk], seen);
        if before == seen {
            return;
        }
        if let Some(list) = self.list_of(before) {
            let at = list.binary_search(&chunk).expect("its list has it");
            list.remove(at);
        }
        if let Some(list) = self.list_of(seen) {
            let at = list.binary_search(&chunk).expect_err("no list has it");
            list.insert(at, chunk);
        }
    }

    const fn list_of(&mut self, seen: Seen) -> Option<&mut Vec<usize>> {
        match seen {
            Seen::Listed => Some(&mut self.listed),
            Seen::Offered => Some(&mut self.offered),
            Seen::Elsewhere => None,
        }
    }

    pub fn listed(&self) -> &[usize] {
        &self.listed
    }

    pub fn offered(&self) -> &[usize] {
        &self.offered
    }

    pub fn age_of(&self, instant: u64) -> u64 {
        self.clock.saturating_sub(instant)
    }
}

impl Rack {
    /// Takes a free slot, of a free chunk too, or makes room. `None`: the host has no block to evict.
    pub(super) fn reserve(&mut self, host: usize) -> Option<u32> {
        loop {
            if self.hosts[host].free.is_empty() {
                self.claim(host);
            }
            if let Some(slot) = self.hosts[host].free.pop() {
                self.hosts[host].reserved += 1;
                return Some(slot);
            }
            if !self.make_room(host) {
                return None;
            }
        }
    }

    /// Takes the first free chunk.
    fn claim(&mut self, host: usize) {
        let chunk = self.claimed;
        let Some(free) = self.chunks.get_mut(chunk) else { return };
        *free = Chunk { owner: host as u32, is_offered: false };
        self.claimed += 1;
        self.list(host, chunk);
    }

    /// Enters a chunk and its free slots in a host's lists.
    pub(super) fn list(&mut self, host: usize, chunk: usize) {
        self.hosts[host].see(chunk, Seen::Listed);
        for slot in self.slots_of(chunk).rev() {
            if self.is_free(slot as u32) {
                self.hosts[host].free.push(slot as u32);
            }
        }
    }

    /// Makes slots free. `false`: no block may leave.
    fn make_room(&mut self, host: usize) -> bool {
        if self.shape.count > 1 {
            self.hear_hits(host);
            if std::mem::take(&mut self.hosts[host].offers_all) {
                self.take_back_all(host);
                if !self.hosts[host].free.is_empty() {
                    return true;
                }
            }
        }
        let mut own = self.candidates(host);
        if self.shape.count > 1 && self.take_offers(host, &own) {
            if !self.hosts[host].free.is_empty() {
                return true;
            }
            own = self.candidates(host);
        }
        let one = &mut self.hosts[host];
        let choice = self.policy.victims(one.clock, &one.state, &own, batch(own.len()));
        for rewrite in choice.rewrites {
            one.words[rewrite.block.0 as usize] = rewrite.to;
        }
        for victim in &choice.victims {
            let slot = &mut self.slots[victim.0 as usize];
            self.slot_of.set(slot.block, NONE);
            *slot = Slot { block: NONE, depth: 0 };
            one.free.push(victim.0 as u32);
        }
        one.evicted += choice.victims.len() as u64;
        !choice.victims.is_empty()
    }

    /// The blocks of a host's listed chunks.
    pub(super) fn candidates(&self, host: usize) -> Vec<Candidate> {
        let one = &self.hosts[host];
        let slots = one.listed().iter().flat_map(|&chunk| self.slots_of(chunk));
        let candidate = |slot: usize| {
            let Slot { block, depth } = self.slots[slot];
            (block != NONE).then(|| Candidate {
                block: BlockIndex(slot as u64),
                word: one.words[slot],
                depth,
                key: key(block),
            })
        };
        slots.filter_map(candidate).collect()
    }
}
