//! Stores of blocks, and the links to them.

use super::cold::ColdTier;
use super::near::NearCache;
use crate::cache::{BlockCache, MakeRoom, Victim, WHOLE};
use crate::kernel::Time;
use crate::model::Link;
use crate::rack::{Hosts, Rack};
use crate::workload::{BlockNumber, Workload};
use cenote_base::RequestId;
use cenote_policy::scheduler::PrefixSource;

/// A link, the end of its last transfer and its byte counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Busy {
    pub(super) link: Link,
    pub(super) free_at: Time,
    pub(super) read: u64,
    pub(super) written: u64,
}

impl Busy {
    pub(super) const fn new(link: Link) -> Self {
        Self { link, free_at: 0, read: 0, written: 0 }
    }

    /// Queues a transfer behind the earlier ones. Returns the time at which it is complete.
    pub(super) fn carry(&mut self, now: Time, bytes: u64) -> Time {
        if bytes == 0 {
            return now;
        }
        self.free_at = self.free_at.max(now) + self.link.time(bytes);
        self.free_at
    }
}

/// A cache and the link to it.
pub(super) struct Store {
    pub(super) cache: BlockCache,
    pub(super) busy: Busy,
}

/// The pool that all instances share.
pub(super) enum SharedPool {
    Ideal(BlockCache),
    Hosts { rack: Rack, hosts: Hosts },
}

impl SharedPool {
    pub(super) fn contains(&self, block: BlockNumber) -> bool {
        match self {
            Self::Ideal(cache) => cache.contains(block),
            Self::Hosts { rack, .. } => rack.contains(block),
        }
    }

    /// An instance looks up blocks, and some are in its own cache only.
    pub(super) fn lookup(&mut self, instance: usize, blocks: &[BlockNumber], instant: u64) {
        match self {
            Self::Ideal(cache) => {
                for (depth, &block) in (0..).zip(blocks) {
                    if cache.contains(block) {
                        cache.touch(block, depth, instant);
                    }
                }
            }
            Self::Hosts { rack, hosts } => {
                rack.lookup(instance % hosts.count, blocks);
            }
        }
    }

    /// Inserts a block, of `units` units in an ideal pool. `room` decides how to make room there.
    pub(super) fn insert(
        &mut self,
        (depth, block): (u32, BlockNumber),
        units: u32,
        instant: u64,
        room: &mut dyn FnMut(Victim) -> MakeRoom,
    ) -> bool {
        let Self::Ideal(cache) = self else { return false };
        !cache.touch_in(block, depth, instant, units, room)
    }

    /// Units of a block in an ideal pool.
    pub(super) fn units(&self, block: BlockNumber) -> u32 {
        match self {
            Self::Ideal(cache) => cache.units(block),
            Self::Hosts { .. } => WHOLE,
        }
    }

    /// An instance publishes a prompt's blocks. Returns the number of new ones. `room` decides how an
    /// ideal pool makes room.
    pub(super) fn publish(
        &mut self,
        instance: usize,
        blocks: &[BlockNumber],
        instant: u64,
        room: &mut dyn FnMut(Victim) -> MakeRoom,
    ) -> u64 {
        let is_new = |(depth, &block): (u32, &BlockNumber)| match self {
            Self::Ideal(_) => self.insert((depth, block), WHOLE, instant, room),
            Self::Hosts { rack, hosts } => rack.publish(instance % hosts.count, block, depth),
        };
        (0..).zip(blocks).map(is_new).map(u64::from).sum()
    }

    pub(super) fn evicted(&self) -> u64 {
        match self {
            Self::Ideal(cache) => cache.evicted(),
            Self::Hosts { rack, .. } => rack.evicted(),
        }
    }
}

/// The pool of a rack and the links to it: one, or one of each host.
pub(super) struct Shared {
    pub(super) pool: SharedPool,
    pub(super) links: Vec<Busy>,
    /// Instances that are next to each other on one link are so far apart.
    pub(super) stride: usize,
}

impl Shared {
    /// The link of an instance.
    pub(super) fn link(&mut self, instance: usize) -> &mut Busy {
        let links = self.links.len();
        &mut self.links[instance / self.stride % links]
    }
}

/// Prefix source of an instance: its memory, its own cache and the shared pool.
pub(super) struct Prefix<'a> {
    pub(super) workload: &'a Workload,
    pub(super) near: Option<&'a NearCache>,
    pub(super) private: Option<&'a BlockCache>,
    pub(super) shared: Option<&'a SharedPool>,
    pub(super) cold: Option<&'a mut ColdTier>,
    pub(super) lookups: u64,
}

impl Prefix<'_> {
    pub(super) fn num_found(&mut self, request: usize) -> usize {
        let blocks = self.workload.blocks(&self.workload.requests()[request]);
        match (self.private, self.shared, &mut self.cold) {
            (None, Some(shared), Some(cold)) => {
                let found = blocks.iter().take_while(|&&block| shared.contains(block) || cold.contains(block)).count();
                // Those before the first block that is not worth its way up.
                let listed = (0..found).filter(|&at| !shared.contains(blocks[at])).collect::<Vec<_>>();
                let worth = if listed.is_empty() { 0 } else { cold.worth_promoting(listed.len()) };
                listed.get(worth).copied().unwrap_or(found)
            }
            _ => {
                let has = |block| {
                    self.near.is_some_and(|near| near.contains(block))
                        || self.private.is_some_and(|private| private.contains(block))
                        || self.shared.is_some_and(|shared| shared.contains(block))
                };
                blocks.iter().take_while(|&&block| has(block)).count()
            }
        }
    }
}

impl PrefixSource for Prefix<'_> {
    fn num_matched_tokens(&mut self, id: RequestId) -> u32 {
        self.lookups += 1;
        let request = &self.workload.requests()[id.0 as usize];
        let found = self.num_found(id.0 as usize) as u64 * u64::from(self.workload.block_tokens());
        found.min(u64::from(request.input_tokens)) as u32
    }
}
