//! Block set reconstructed from the event log. Events may arrive in any order and repeatedly: the
//! highest generation of a slot counts, and within a generation a removal counts more than a store.

use crate::log::events::Names;
use cenote_base::{BlockHash, Generation, NamespaceId};
use serde::Serialize;
use std::collections::BTreeMap;

/// A block became readable, or left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum BlockEvent {
    /// The block is readable.
    Stored(LoggedBlock),
    /// The block is no longer readable.
    Removed(LoggedBlock),
}

impl BlockEvent {
    /// The block of the event.
    #[must_use]
    pub const fn told(&self) -> &LoggedBlock {
        match self {
            Self::Stored(told) | Self::Removed(told) => told,
        }
    }
}

/// A block, as an event describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedBlock {
    /// Its namespace.
    pub namespace: NamespaceId,
    /// Its hash in the pool.
    pub hash: BlockHash,
    /// Its names in an engine.
    pub names: Names,
    /// Its index in its sequence; 65,535: that or more.
    pub depth: u16,
}

impl Serialize for LoggedBlock {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let name = |name: u64| (name != 0).then_some(name);
        let mut map = serializer.serialize_struct("LoggedBlock", 5)?;
        map.serialize_field("namespace", &self.namespace.0)?;
        map.serialize_field("hash", &self.hash.to_string())?;
        map.serialize_field("name", &name(self.names.name))?;
        map.serialize_field("parent", &name(self.names.parent))?;
        map.serialize_field("depth", &self.depth)?;
        map.end()
    }
}

/// What an event says about one generation of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// It is readable.
    Stored(LoggedBlock),
    /// It is marked as evicting, which may be reverted.
    Leaving(LoggedBlock),
    /// It is gone for good.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    generation: Generation,
    news: News,
}

type Key = (u16, BlockHash);

fn key(told: &LoggedBlock) -> Key {
    (told.namespace.0, told.hash)
}

/// The readable blocks. Two slots may hold one hash for a while; the block is gone when both are.
#[derive(Default)]
pub(super) struct View {
    blocks: BTreeMap<u64, Known>,
    /// Number of slots with a hash, and the last logged block of it.
    holders: BTreeMap<Key, (u32, LoggedBlock)>,
    /// Hashes with a changed number of slots since the last query, in order.
    changed: Vec<Key>,
    before: BTreeMap<Key, Option<LoggedBlock>>,
}

/// Whether one generation follows another; generations wrap at 48 bits.
const fn is_after(generation: Generation, other: Generation) -> bool {
    let ahead = generation.0.wrapping_sub(other.0) & ((1 << 48) - 1);
    ahead != 0 && ahead < 1 << 47
}

impl View {
    pub fn learn(&mut self, block: u64, generation: Generation, news: News) {
        let mut old = None;
        if let Some(known) = self.blocks.get(&block) {
            let is_same = known.generation == generation;
            if is_after(known.generation, generation) || is_same && (known.news == News::Gone || known.news == news) {
                return;
            }
            old = Some(known.news);
        }
        self.blocks.insert(block, Known { generation, news });
        // Add the new block before the old one of the slot is removed.
        if let News::Stored(told) = news {
            self.note(&told);
            let holder = self.holders.entry(key(&told)).or_insert((0, told));
            *holder = (holder.0 + 1, told);
        }
        if let Some(News::Stored(told)) = old {
            self.note(&told);
            let holder = self.holders.get_mut(&key(&told)).expect("it was counted");
            holder.0 -= 1;
            if holder.0 == 0 {
                self.holders.remove(&key(&told));
            }
        }
    }

    fn note(&mut self, told: &LoggedBlock) {
        let key = key(told);
        if !self.before.contains_key(&key) {
            self.before.insert(key, self.holders.get(&key).map(|(_, told)| *told));
            self.changed.push(key);
        }
    }

    /// Changes since the last call. A block that came and left again is no change.
    pub fn take_changes(&mut self) -> Vec<BlockEvent> {
        let mut before = std::mem::take(&mut self.before);
        let changed = std::mem::take(&mut self.changed);
        let change = |key| match (before.remove(&key).flatten(), self.holders.get(&key)) {
            (None, Some((_, told))) => Some(BlockEvent::Stored(*told)),
            (Some(told), None) => Some(BlockEvent::Removed(told)),
            _ => None,
        };
        changed.into_iter().filter_map(change).collect()
    }

    /// Last known generation of a slot.
    pub fn generation(&self, block: u64) -> Option<Generation> {
        self.blocks.get(&block).map(|known| known.generation)
    }

    /// Hides a block with a corrupt descriptor.
    pub fn hide(&mut self, block: u64) {
        if let Some(Known { generation, news: News::Stored(told) }) = self.blocks.get(&block).copied() {
            self.learn(block, generation, News::Leaving(told));
        }
    }

    /// Slots of blocks that are not known to be gone.
    pub fn there(&self) -> Vec<u64> {
        let there = self.blocks.iter().filter(|(_, known)| known.news != News::Gone);
        there.map(|(block, _)| *block).collect()
    }

    pub fn told(&self, namespace: NamespaceId, hash: BlockHash) -> Option<LoggedBlock> {
        self.holders.get(&(namespace.0, hash)).map(|(_, told)| *told)
    }

    pub fn all(&self) -> impl Iterator<Item = LoggedBlock> + '_ {
        self.holders.values().map(|(_, told)| *told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::prng::Prng;

    fn told(hash: u64) -> LoggedBlock {
        let names = Names { name: hash, parent: 0 };
        LoggedBlock { namespace: NamespaceId(0), hash: BlockHash::from_words([hash, 1]), names, depth: 0 }
    }

    /// In any order and with repetitions, events lead to the same last state as in order.
    #[test]
    fn the_order_of_news_does_not_matter() {
        for seed in 0..300 {
            let mut prng = Prng::new(seed);
            let mut news = Vec::new();
            let mut there = BTreeMap::new();
            for block in 0..4 {
                let mut generation = Generation((1 << 48) - 2);
                for _ in 0..prng.below(4) {
                    let hash = prng.below(3);
                    news.push((block, generation, News::Stored(told(hash))));
                    there.insert(block, hash);
                    if prng.below(3) > 0 {
                        news.push((block, generation, News::Gone));
                        there.remove(&block);
                    }
                    generation = generation.next();
                }
            }
            let again: Vec<_> = news.iter().copied().filter(|_| prng.below(3) == 0).collect();
            news.extend(again);
            for at in (1..news.len()).rev() {
                news.swap(at, prng.below(at as u64 + 1) as usize);
            }
            let mut view = View::default();
            let mut followed = BTreeMap::new();
            for (block, generation, news) in news {
                view.learn(block, generation, news);
                if prng.below(2) == 0 {
                    apply(&mut followed, view.take_changes());
                }
            }
            apply(&mut followed, view.take_changes());
            let mut expected: Vec<u64> = there.into_values().collect();
            expected.sort_unstable();
            expected.dedup();
            assert_eq!(view.all().map(|told| told.names.name).collect::<Vec<_>>(), expected, "seed {seed}");
            assert_eq!(followed.into_keys().collect::<Vec<_>>(), expected, "what was told, seed {seed}");
        }
    }

    fn apply(followed: &mut BTreeMap<u64, ()>, events: Vec<BlockEvent>) {
        for event in events {
            match event {
                BlockEvent::Stored(told) => assert!(followed.insert(told.names.name, ()).is_none(), "told twice"),
                BlockEvent::Removed(told) => assert!(followed.remove(&told.names.name).is_some(), "was not there"),
            }
        }
    }

    #[test]
    fn a_mark_that_is_taken_back_leaves_the_block() {
        let mut view = View::default();
        let generation = Generation(5);
        view.learn(3, generation, News::Stored(told(1)));
        assert_eq!(view.take_changes(), [BlockEvent::Stored(told(1))]);
        view.learn(3, generation, News::Leaving(told(1)));
        assert_eq!(view.take_changes(), [BlockEvent::Removed(told(1))]);
        view.learn(3, generation, News::Stored(told(1)));
        view.learn(3, generation, News::Leaving(told(1)));
        view.learn(3, generation, News::Stored(told(1)));
        assert_eq!(view.take_changes(), [BlockEvent::Stored(told(1))]);
        view.learn(3, generation, News::Gone);
        view.learn(3, generation, News::Stored(told(1)));
        assert_eq!(view.take_changes(), [BlockEvent::Removed(told(1))], "what is gone does not come back");
    }
}
