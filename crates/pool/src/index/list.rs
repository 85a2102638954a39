//! Guard of the plain design's lock, with access to the counts and the list of blocks under it.
//!
//! The list is a ring: member 0 is its two ends, member `b + 1` is block `b`. The guard refreshes
//! each line once, works on copies, and publishes the changed lines together before it releases the
//! lock. Links that disagree are a dead holder's or damage: the guard leaves them alone and
//! rebuilds the list when it is dropped.

use crate::index::Index;
use crate::sync::{Guard, Holds, Shard};
use cenote_base::BlockIndex;
use cenote_mem::{Fabric, HostLocal, LINE, Offset};
use std::collections::{BTreeMap, BTreeSet};

/// The member that is the list itself.
pub(crate) const LIST: u64 = 0;

/// Words of a member's line. A link is a member's number plus one; 0 is no link.
const COUNT: usize = 0;
const NEWER: usize = 1;
const OLDER: usize = 2;

pub(crate) const fn member_of(block: BlockIndex) -> u64 {
    block.0 + 1
}

pub(crate) const fn block_of(member: u64) -> BlockIndex {
    BlockIndex(member - 1)
}

/// A block's count, from this host's caches.
pub(super) fn stored_count<F: Fabric, H: HostLocal>(index: &Index<F, H>, block: BlockIndex) -> u64 {
    index.region.fabric.load(Offset::new(index.region.layout.plain(member_of(block)) + COUNT as u64 * 8))
}

/// The plain design's lock, which guards the list.
enum Lock<'a, F: Fabric, H: HostLocal> {
    Own(Guard<'a, Shard, F, H>),
    Callers(&'a Holds<Shard>),
}

pub(crate) struct ListGuard<'a, F: Fabric, H: HostLocal> {
    index: &'a Index<F, H>,
    /// By member; `true`: changed.
    lines: BTreeMap<u64, ([u64; 8], bool)>,
    broken: bool,
    /// Dropped last, after the changes are published.
    lock: Lock<'a, F, H>,
}

impl<'a, F: Fabric, H: HostLocal> ListGuard<'a, F, H> {
    /// A guard that releases the lock when it is dropped.
    pub(super) fn new(index: &'a Index<F, H>, lock: Guard<'a, Shard, F, H>) -> Self {
        Self { index, lines: BTreeMap::new(), broken: false, lock: Lock::Own(lock) }
    }

    /// A guard within a lock that the caller keeps.
    pub(super) fn within(index: &'a Index<F, H>, lock: &'a Holds<Shard>) -> Self {
        Self { index, lines: BTreeMap::new(), broken: false, lock: Lock::Callers(lock) }
    }

    /// The lock that guards the list.
    pub fn shard(&self) -> &Holds<Shard> {
        match &self.lock {
            Lock::Own(guard) => guard,
            Lock::Callers(held) => held,
        }
    }

    /// Fetches these members with one wait.
    pub fn fetch(&mut self, members: impl IntoIterator<Item = u64>) {
        let unknown: BTreeSet<u64> = members.into_iter().filter(|member| !self.lines.contains_key(member)).collect();
        if unknown.is_empty() {
            return;
        }
        let places: Vec<u64> = unknown.iter().map(|&member| self.index.region.layout.plain(member)).collect();
        self.index.region.fabric.refresh(&places);
        for (member, at) in unknown.into_iter().zip(places) {
            self.lines.insert(member, (self.index.region.fabric.load_line(at), false));
        }
    }

    /// Fetches these members and their neighbours in the list with two waits.
    pub fn fetch_around(&mut self, members: impl Iterator<Item = u64>) {
        let members: Vec<u64> = members.collect();
        self.fetch(members.iter().copied().chain([LIST]));
        let beside: Vec<u64> = members
            .into_iter()
            .chain([LIST])
            .flat_map(|member| [self.link(member, NEWER), self.link(member, OLDER)])
            .flatten()
            .collect();
        self.fetch(beside);
    }

    fn words(&mut self, member: u64) -> [u64; 8] {
        if let Some((words, _)) = self.lines.get(&member) {
            return *words;
        }
        self.fetch([member]);
        self.lines[&member].0
    }

    fn set(&mut self, member: u64, word: usize, value: u64) {
        self.words(member);
        let line = self.lines.get_mut(&member).expect("fetched just now");
        line.1 |= line.0[word] != value;
        line.0[word] = value;
    }

    /// The member that a link leads to; `None`: the link is corrupt.
    fn link(&mut self, member: u64, word: usize) -> Option<u64> {
        match self.words(member)[word] {
            // A list that was never written is empty.
            0 if member == LIST => Some(LIST),
            linked => linked.checked_sub(1).filter(|&to| to <= self.index.region.layout.num_descriptors()),
        }
    }

    /// The neighbour in one direction, if both links agree.
    fn neighbour(&mut self, member: u64, word: usize) -> Option<u64> {
        let other = if word == NEWER { OLDER } else { NEWER };
        let next = self.link(member, word).filter(|&next| next == LIST || next != member);
        let agreed = next.filter(|&next| self.link(next, other) == Some(member));
        self.broken |= agreed.is_none();
        agreed
    }

    pub fn count(&mut self, block: BlockIndex) -> u64 {
        self.words(member_of(block))[COUNT]
    }

    pub fn raise(&mut self, block: BlockIndex) {
        let count = self.count(block);
        self.set(member_of(block), COUNT, count.saturating_add(1));
    }

    pub fn lower(&mut self, block: BlockIndex, by: u64) {
        let count = self.count(block);
        self.set(member_of(block), COUNT, count.saturating_sub(by));
    }

    /// Removes a block from the list, if it is in it.
    pub fn remove(&mut self, block: BlockIndex) {
        let member = member_of(block);
        let words = self.words(member);
        if (words[NEWER], words[OLDER]) == (0, 0) {
            return;
        }
        let (Some(newer), Some(older)) = (self.neighbour(member, NEWER), self.neighbour(member, OLDER)) else { return };
        self.set(newer, OLDER, older + 1);
        self.set(older, NEWER, newer + 1);
        self.set(member, NEWER, 0);
        self.set(member, OLDER, 0);
    }

    /// Moves a block to the new end of the list.
    pub fn set_newest(&mut self, block: BlockIndex) {
        self.remove(block);
        if self.broken {
            return;
        }
        let member = member_of(block);
        let Some(second) = self.neighbour(LIST, OLDER) else { return };
        self.set(member, NEWER, LIST + 1);
        self.set(member, OLDER, second + 1);
        self.set(second, NEWER, member + 1);
        self.set(LIST, OLDER, member + 1);
    }

    /// The next newer member; [`LIST`] stands before the oldest. The walk ends, because links
    /// agree: a walk that returned to a member would reach it from two neighbours.
    pub fn newer(&mut self, member: u64) -> Option<u64> {
        self.neighbour(member, NEWER).filter(|&newer| newer != LIST)
    }

    /// All blocks in the list.
    pub fn all(&mut self) -> BTreeSet<BlockIndex> {
        let members = self.index.region.layout.num_descriptors() + 1;
        self.fetch(0..members);
        let mut all = BTreeSet::new();
        let mut at = LIST;
        while let Some(newer) = self.newer(at) {
            at = newer;
            all.insert(block_of(at));
        }
        all
    }

    /// Whether some links disagree.
    pub const fn is_broken(&self) -> bool {
        self.broken
    }

    /// Rebuilds the list from all findable blocks: first those that the old links still reach from
    /// the new end, in their order, then the others.
    pub fn relink(&mut self) {
        let members = self.index.region.layout.num_descriptors() + 1;
        self.fetch(0..members);
        let mut seen = BTreeSet::from([LIST]);
        let mut order = Vec::new();
        let mut at = LIST;
        while let Some(older) = self.link(at, OLDER).filter(|&older| seen.insert(older)) {
            order.push(older);
            at = older;
        }
        order.extend((1..members).filter(|member| !seen.contains(member)));
        order.retain(|&member| self.index.is_findable(block_of(member)));
        for member in 1..members {
            self.set(member, NEWER, 0);
            self.set(member, OLDER, 0);
        }
        let mut newer = LIST;
        for member in order.into_iter().chain([LIST]) {
            self.set(member, NEWER, newer + 1);
            self.set(newer, OLDER, member + 1);
            newer = member;
        }
        self.broken = false;
    }
}

impl<F: Fabric, H: HostLocal> Drop for ListGuard<'_, F, H> {
    fn drop(&mut self) {
        if self.broken {
            self.relink();
        }
        let changed: Vec<(u64, [u64; 8])> = std::mem::take(&mut self.lines)
            .into_iter()
            .filter(|(_, (_, changed))| *changed)
            .map(|(member, (words, _))| (self.index.region.layout.plain(member), words))
            .collect();
        if !changed.is_empty() {
            debug_assert!(changed.iter().all(|(at, _)| at % LINE == 0));
            self.index.region.fabric.publish_lines(&changed);
        }
    }
}
