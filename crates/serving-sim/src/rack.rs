//! A pool on several hosts, as the product implements it: every host owns chunks and evicts from
//! them alone, and hears of the other hosts' use at its ticks (docs/internals/protocol.md#offers).
//!
//! The decisions are [`cenote_policy::sharing`]'s and [`cenote_policy::eviction`]'s. This module
//! keeps what a region and its hosts keep: owners of chunks, demand lines, boards of offers, rings
//! of hits, each host's words of the eviction policy and its free slots. A call is one instant, so
//! no lock is busy and no line is torn.

mod host;
mod index;
mod share;

use crate::cache::key;
use crate::kernel::Time;
use crate::model::Link;
use crate::workload::BlockNumber;
use cenote_policy::eviction::{Eviction, EvictionPolicy};
use host::Host;
use index::Index;

/// Blocks of a chunk where the connectors make the region: a chunk is four blocks.
pub const CHUNK_BLOCKS: usize = 4;

/// Time between two ticks of a host, as `cenote serve` has it.
pub const TICK: Time = 1_000_000_000;

/// Most chunks that a host offers at once, as the region's format limits them.
const OFFERS_MAX: usize = 1024;
/// Fewest and most entries of a host's ring of hits; between them one for eight blocks.
const RING_MIN: usize = 16 * 8;
const RING_MAX: usize = 8192 * 8;

/// No slot, or no host.
const NONE: u32 = u32::MAX;

/// A host's network card, as reads of other hosts' memory see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// Line rate of each direction, and nanoseconds of a read without bytes.
    pub link: Link,
    /// Nanoseconds of the reader for each piece.
    pub message_ns: Time,
    /// Pieces on their way at once.
    pub outstanding: u64,
}

impl Card {
    /// Nanoseconds of the line for so many bytes.
    #[must_use]
    pub fn line_ns(&self, bytes: u64) -> Time {
        (u128::from(bytes) * 1_000_000_000 / u128::from(self.link.bytes_per_s)) as Time
    }

    /// Nanoseconds of a read of pieces of `bytes` each, on an idle line.
    #[must_use]
    pub fn messages_ns(&self, pieces: u64, bytes: u64) -> Time {
        let each = self.line_ns(bytes).max(self.message_ns).max(self.link.latency_ns / self.outstanding.max(1));
        self.link.latency_ns + pieces * each
    }
}

/// What connects hosts without common memory. Each has a region of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Hosts of a rack read each other's regions.
    Mesh(Card),
    /// All hosts write into one object store and read from it, each over such a link.
    Objects(Link),
}

/// The hosts of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// Number of hosts, at least 1.
    pub count: usize,
    /// Blocks of a chunk, at least 1.
    pub chunk_blocks: usize,
    /// Time between two ticks of a host, at least 1 ns.
    pub tick: Time,
    /// Whether each host has a link of its own to the region. Otherwise all share one.
    pub has_ports: bool,
    /// Number of equal racks with so many hosts and such a region each, at least 1.
    pub racks: usize,
    /// `None`: hosts of a rack share a region. Otherwise each has such a region of its own.
    pub network: Option<Network>,
}

impl Hosts {
    /// So many hosts of a region that the connectors made.
    #[must_use]
    pub const fn new(count: usize) -> Self {
        Self { count, chunk_blocks: CHUNK_BLOCKS, tick: TICK, has_ports: false, racks: 1, network: None }
    }

    /// Number of regions.
    pub(crate) const fn regions(&self) -> usize {
        match self.network {
            None => self.racks,
            Some(_) => self.racks * self.count,
        }
    }

    /// The time of a tick of the rack, counted from 0. The hosts tick by turns, evenly spread over
    /// the time between two ticks of one.
    pub(crate) const fn tick_at(&self, number: u64) -> Time {
        (number + 1) * self.tick / self.count as u64
    }

    /// The host of a tick of the rack.
    pub(crate) const fn ticks(&self, number: u64) -> usize {
        number as usize % self.count
    }
}

/// A region and its hosts.
pub struct Rack {
    policy: &'static dyn EvictionPolicy,
    shape: Hosts,
    /// Slot by block number, or [`NONE`]: the region's index.
    slot_of: Index,
    /// Descriptors by slot.
    slots: Vec<Slot>,
    chunks: Vec<Chunk>,
    /// Chunks before this one have owners, which no chunk loses; the others are free.
    claimed: usize,
    /// Words of the eviction policy by slot, which the last owner of a chunk wrote when it offered it.
    recency: Vec<u64>,
    hosts: Vec<Host>,
    /// Lookups, publications, and ticks that told something new.
    changes: u64,
}

/// The block of a slot.
#[derive(Clone, Copy)]
struct Slot {
    /// [`NONE`]: the slot is free.
    block: BlockNumber,
    depth: u32,
}

/// A chunk's line.
#[derive(Clone, Copy)]
struct Chunk {
    /// [`NONE`]: the chunk is free.
    owner: u32,
    is_offered: bool,
}

impl Rack {
    /// An empty region of the chunks that hold `capacity` blocks; the last chunk may reach beyond.
    /// `None`: no eviction. Blocks are numbered below `num_blocks`.
    ///
    /// # Panics
    /// Panics if a number of `hosts` is 0.
    #[must_use]
    pub fn new(eviction: Eviction, capacity: Option<usize>, num_blocks: usize, hosts: Hosts) -> Self {
        let Hosts { count, chunk_blocks, tick, .. } = hosts;
        assert!(count > 0 && chunk_blocks > 0 && tick > 0, "hosts, blocks of a chunk, and time between ticks");
        // Each host may have one chunk that is not full.
        let unlimited = num_blocks.div_ceil(chunk_blocks) + count;
        let chunks = capacity.map_or(unlimited, |capacity| capacity.div_ceil(chunk_blocks).min(unlimited));
        let slots = chunks * chunk_blocks;
        Self {
            policy: eviction.policy(),
            shape: hosts,
            slot_of: Index::new(num_blocks, hosts.racks),
            slots: vec![Slot { block: NONE, depth: 0 }; slots],
            chunks: vec![Chunk { owner: NONE, is_offered: false }; chunks],
            claimed: 0,
            recency: vec![0; slots],
            hosts: (0..count).map(|_| Host::new(eviction, chunks, &hosts)).collect(),
            changes: 0,
        }
    }

    /// Whether the region has the block.
    #[must_use]
    pub fn contains(&self, block: BlockNumber) -> bool {
        self.slot_of.get(block) != NONE
    }

    /// Number of leading blocks that the region has.
    #[must_use]
    pub fn num_found(&self, blocks: &[BlockNumber]) -> usize {
        blocks.iter().take_while(|&&block| self.contains(block)).count()
    }

    /// A host looks a prompt up and marks the blocks that it finds. Returns their number.
    pub fn lookup(&mut self, host: usize, blocks: &[BlockNumber]) -> usize {
        let found = self.num_found(blocks);
        let slots: Vec<u32> = blocks[..found].iter().map(|&block| self.slot_of.get(block)).collect();
        self.changes += 1;
        let host = &mut self.hosts[host];
        host.clock += 1;
        host.touch(self.policy, self.shape.chunk_blocks, &slots);
        found
    }

    /// A host publishes a block, or marks it if the region has it. Returns whether it is new.
    pub fn publish(&mut self, host: usize, block: BlockNumber, depth: u32) -> bool {
        self.changes += 1;
        let slot = self.slot_of.get(block);
        if slot != NONE {
            self.hosts[host].touch(self.policy, self.shape.chunk_blocks, &[slot]);
            return false;
        }
        let Some(slot) = self.reserve(host) else {
            self.hosts[host].no_room += 1;
            return false;
        };
        self.slots[slot as usize] = Slot { block, depth };
        self.slot_of.set(block, slot);
        let host = &mut self.hosts[host];
        host.words[slot as usize] = self.policy.inserted(host.clock, key(block), &host.state);
        true
    }

    /// A host looks a prompt up and publishes the blocks that it did not find. Returns the number of
    /// blocks found.
    pub fn serve(&mut self, host: usize, blocks: &[BlockNumber]) -> usize {
        let found = self.lookup(host, blocks);
        for (depth, &block) in (0..).zip(blocks).skip(found) {
            self.publish(host, block, depth);
        }
        found
    }

    /// Number of evicted blocks.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.hosts.iter().map(|host| host.evicted).sum()
    }

    /// Number of chunks that a host took from another one.
    #[must_use]
    pub fn moved_chunks(&self) -> u64 {
        self.hosts.iter().map(|host| host.moved).sum()
    }

    /// Slots of a chunk.
    fn slots_of(&self, chunk: usize) -> std::ops::Range<usize> {
        chunk * self.shape.chunk_blocks..(chunk + 1) * self.shape.chunk_blocks
    }

    fn is_free(&self, slot: u32) -> bool {
        self.slots[slot as usize].block == NONE
    }

    /// Entries of a host's ring of hits.
    fn ring(&self) -> usize {
        (self.slots.len() / 8).clamp(RING_MIN, RING_MAX)
    }
}
