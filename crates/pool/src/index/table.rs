//! The prefix index: a fixed hash table of one-word hints (TraCT §4.2).
//!
//! A bucket is a line of seven entries and an overflow count. If its home bucket is full, an entry
//! goes to a later one of the same shard, and the overflow count of every bucket that it passed is
//! raised. A lookup continues only while the count is not zero (as in Facebook's F14). Deleting
//! zeroes the entry in place. Entries never move, so a reader without a lock cannot miss one that
//! stays. An entry is a hint; its descriptor decides.

use crate::index::Index;
use crate::index::probe::{PROBES_MAX, Probe, named};
use crate::region::lines::{BlockState, Descriptor, Entry, tag_of};
use crate::sync::{Guard, Holds, Intent, Shard, Timeout};
use cenote_base::fault::{self, Mistake, Point};
use cenote_base::{BlockHash, BlockIndex};
use cenote_mem::host::LockTimeout;
use cenote_mem::{Fabric, HostLocal, Offset};
use std::time::Duration;

/// The word of a bucket that counts entries which passed it.
const OVERFLOW: usize = 7;

/// Number of a prompt's blocks that are fetched together: as many misses as a core has in flight.
const GROUP: usize = 16;

/// Number of groups that are prefetched before the first is read.
const GROUPS_AHEAD: usize = 2;

/// The copy of a line that a search may use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum View {
    /// The cached copy, however old.
    Cache,
    /// The device's current copy.
    Device,
}

/// Result of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// The entry is written.
    New,
    /// Another readable block has this hash.
    Duplicate,
    /// All buckets of the probe are full.
    Full,
    /// The shard's lock timed out.
    Busy,
}

/// A block on its way into the index.
pub(super) struct Inserting {
    probe: Probe,
    /// The caller's number.
    at: usize,
    pub hash: BlockHash,
    pub block: BlockIndex,
    pub outcome: Inserted,
}

impl Inserting {
    /// Shard and intent of a group that shares a lock.
    fn lock(group: &[Self]) -> (u64, Intent) {
        let Probe { shard, home, .. } = group[0].probe;
        // A death between two entries must leave an intent for both.
        (shard, if group.len() == 1 { Intent::probe(home) } else { Intent::ALL })
    }
}

/// Changes of a shard's repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Repaired {
    pub entries_dropped: u64,
    pub counts_mended: u64,
}

impl<F: Fabric, H: HostLocal> Index<F, H> {
    #[inline]
    fn probe(&self, hash: BlockHash) -> Probe {
        Probe::of(hash, &self.region.layout)
    }

    fn entry_at(&self, bucket: u64, entry: usize) -> Offset<u64> {
        Offset::new(self.region.layout.bucket(bucket) + entry as u64 * 8)
    }

    /// The block that an entry names, if it may have this hash.
    fn named(&self, entry: u64, hash: BlockHash) -> Option<BlockIndex> {
        named(entry, hash, &self.region.layout)
    }

    /// The descriptor of an entry's block, if it is readable and has this hash.
    fn follow(&self, entry: u64, hash: BlockHash, from: View) -> Option<(BlockIndex, Descriptor)> {
        let block = self.named(entry, hash)?;
        if from == View::Device {
            self.region.fabric.refresh(&[self.region.layout.descriptor(block)]);
        }
        Some((block, self.ready(block, hash)?))
    }

    /// Finds the readable block of this hash. Takes no lock.
    ///
    /// Searches cached lines first: if a stale line misleads, the read that follows notices. Only a
    /// miss searches the device.
    pub fn find(&self, hash: BlockHash) -> Option<(BlockIndex, Descriptor)> {
        let probe = self.probe(hash);
        let search = |words: &[u64; 8], from| words[..7].iter().find_map(|&entry| self.follow(entry, hash, from));
        for step in 0..probe.steps() {
            let at = self.region.layout.bucket(probe.bucket(step));
            let mut words = self.region.fabric.load_line(at);
            let mut found = search(&words, View::Cache);
            if found.is_none() && !self.region.is_coherent() {
                words = self.region.fresh_line(at);
                found = search(&words, View::Device);
            }
            if found.is_some() || words[7] == 0 {
                return found;
            }
        }
        None
    }

    /// Finds the readable blocks of a prompt, in order, up to the first miss.
    ///
    /// One lookup waits twice for memory, for its bucket and for its descriptor. The blocks of a
    /// group wait together while the next group's buckets are prefetched. The first candidate of
    /// the home bucket is nearly always right; [`Index::find`] handles the rest.
    pub fn find_all(&self, hashes: &[BlockHash], mut found: impl FnMut(BlockIndex, &Descriptor)) {
        let ask = |group: &[BlockHash]| {
            for &hash in group {
                self.region.fabric.prefetch(self.home(self.probe(hash)));
            }
        };
        let mut ahead = hashes.chunks(GROUP);
        ahead.by_ref().take(GROUPS_AHEAD).for_each(ask);
        let mut likely = [None; GROUP];
        for group in hashes.chunks(GROUP) {
            for (&hash, likely) in group.iter().zip(&mut likely) {
                *likely = self.likely(hash, &self.region.fabric.load_line(self.home(self.probe(hash))));
                if let Some(block) = *likely {
                    self.region.fabric.prefetch(self.region.layout.descriptor(block));
                }
            }
            if let Some(next) = ahead.next() {
                ask(next);
            }
            for (&hash, likely) in group.iter().zip(&likely) {
                let there = likely.and_then(|block| Some((block, self.ready(block, hash)?)));
                let Some((block, descriptor)) = there.or_else(|| self.find(hash)) else { return };
                found(block, &descriptor);
            }
        }
    }

    /// The last block in a bucket that may have this hash. The entry's position is unpredictable,
    /// so no branch depends on it.
    #[inline(always)]
    fn likely(&self, hash: BlockHash, bucket: &[u64; 8]) -> Option<BlockIndex> {
        let tag = tag_of(hash);
        let mut entry = Entry(0);
        for &word in &bucket[..7] {
            entry = if Entry(word).tag() == tag { Entry(word) } else { entry };
        }
        entry.block().filter(|block| block.0 < self.region.layout.num_descriptors())
    }

    /// The descriptor of `block`, if it is readable and has this hash.
    #[inline(always)]
    fn ready(&self, block: BlockIndex, hash: BlockHash) -> Option<Descriptor> {
        let descriptor = self.region.read_descriptor(block)?;
        (descriptor.is_ready() & (descriptor.hash == hash.words())).then_some(descriptor)
    }

    /// The home bucket of a probe.
    #[inline]
    fn home(&self, probe: Probe) -> u64 {
        self.region.layout.bucket(probe.bucket(0))
    }

    /// Whether an entry leads from this hash to this block, in this host's copies of buckets.
    /// Another block of the same hash may be found before it: one that was being evicted when this
    /// one was published, and stayed because of a pin.
    pub fn leads_to(&self, hash: BlockHash, block: BlockIndex) -> bool {
        let (probe, wanted) = (self.probe(hash), Entry::new(block, tag_of(hash)).0);
        for step in 0..probe.steps() {
            let words = self.region.fabric.load_line(self.region.layout.bucket(probe.bucket(step)));
            if words[..7].contains(&wanted) {
                return true;
            }
            if words[7] == 0 {
                return false;
            }
        }
        false
    }

    /// As [`Index::find_all`], from the device's current copies, for a caller whose lock keeps them
    /// current.
    pub fn find_all_now(&self, hashes: &[BlockHash], mut found: impl FnMut(BlockIndex, &Descriptor)) {
        self.find_each_now(hashes, |_, there| there.inspect(|(block, descriptor)| found(*block, descriptor)).is_some());
    }

    /// Finds the readable block of each hash by the device's current copies, and calls `found` with
    /// the number of the hash. The blocks of a group wait together for memory. Stops when `found`
    /// returns `false`.
    pub fn find_each_now(
        &self,
        hashes: &[BlockHash],
        mut found: impl FnMut(usize, Option<(BlockIndex, Descriptor)>) -> bool,
    ) {
        for (first, group) in (0..).step_by(GROUP).zip(hashes.chunks(GROUP)) {
            let places: Vec<u64> = group.iter().map(|&hash| self.home(self.probe(hash))).collect();
            self.region.fabric.refresh(&places);
            let homes: Vec<[u64; 8]> = places.into_iter().map(|at| self.region.fabric.load_line(at)).collect();
            let named = group.iter().zip(&homes).flat_map(|(&hash, home)| {
                home[..7].iter().filter_map(move |&entry| Some(self.region.layout.descriptor(self.named(entry, hash)?)))
            });
            self.region.fabric.refresh(&named.collect::<Vec<_>>());
            for (at, (&hash, home)) in (first..).zip(group.iter().zip(&homes)) {
                if !found(at, self.find_now(hash, *home)) {
                    return;
                }
            }
        }
    }

    /// As [`Index::find_all_now`] for one hash, after its home bucket and descriptors were
    /// refreshed.
    fn find_now(&self, hash: BlockHash, home: [u64; 8]) -> Option<(BlockIndex, Descriptor)> {
        let probe = self.probe(hash);
        for step in 0..probe.steps() {
            let (words, from) = match step {
                0 => (home, View::Cache),
                _ => (self.region.fresh_line(self.region.layout.bucket(probe.bucket(step))), View::Device),
            };
            let found = words[..7].iter().find_map(|&entry| self.follow(entry, hash, from));
            if found.is_some() || words[7] == 0 {
                return found;
            }
        }
        None
    }

    /// Whether a block is readable and indexed, by the device's current copies.
    pub fn is_findable(&self, block: BlockIndex) -> bool {
        self.region.fabric.refresh(&[self.region.layout.descriptor(block)]);
        let mut found = None;
        if let Some(hit) = self.region.hit(block) {
            self.find_all_now(&[hit.hash], |block, _| found = Some(block));
        }
        found == Some(block)
    }

    /// Takes the lock of a shard; in the plain design shard 0 has the only one. Repairs what a dead
    /// holder left.
    pub fn lock_shard(
        &self,
        shard: u64,
        intent: Intent,
        timeout: Timeout,
    ) -> Result<Guard<'_, Shard, F, H>, LockTimeout> {
        let shard = if self.region.is_plain() { 0 } else { shard };
        self.locks.acquire(Shard(shard), intent, timeout, |shard, left| match left.home() {
            _ if self.region.is_plain() => self.repair_plain(shard),
            Some(home) => drop(self.repair_probe(shard, home)),
            None => drop(self.repair_shard(shard, shard.0)),
        })
    }

    fn lock_probe(&self, probe: Probe, timeout: Timeout) -> Result<Guard<'_, Shard, F, H>, LockTimeout> {
        self.lock_shard(probe.shard, Intent::probe(probe.home), timeout)
    }

    /// Indexes a readable block, unless its hash is indexed already.
    pub fn insert(&self, hash: BlockHash, block: BlockIndex) -> Inserted {
        if self.region.is_plain() {
            let mut one = [self.inserting((0, hash, block))];
            self.insert_all_plain(&mut one);
            return one[0].outcome;
        }
        let shard = self.lock_probe(self.probe(hash), self.locks.serving());
        shard.map_or(Inserted::Busy, |shard| self.insert_locked(&shard, hash, block))
    }

    fn inserting(&self, (at, hash, block): (usize, BlockHash, BlockIndex)) -> Inserting {
        Inserting { probe: self.probe(hash), at, hash, block, outcome: Inserted::Busy }
    }

    /// Indexes readable blocks, each unless its hash is indexed already, and calls `told` with the
    /// caller's number of each block. `told` may take locks.
    ///
    /// Takes the lock of each shard once: first all locks that are free together, then the others
    /// one by one. The blocks share one patience: after a timeout the rest are indexed only if no
    /// lock is busy.
    pub fn insert_all(
        &self,
        blocks: impl IntoIterator<Item = (usize, BlockHash, BlockIndex)>,
        mut told: impl FnMut(usize, Inserted),
    ) {
        let mut all: Vec<Inserting> = blocks.into_iter().map(|block| self.inserting(block)).collect();
        if self.region.is_plain() {
            self.insert_all_plain(&mut all);
            return all.iter().for_each(|one| told(one.at, one.outcome));
        }
        all.sort_unstable_by_key(|one| (one.probe.shard, one.at));
        let mut groups: Vec<&mut [Inserting]> =
            all.chunk_by_mut(|one, next| one.probe.shard == next.probe.shard).collect();
        if groups.len() > 1 {
            self.insert_where_free(&mut groups);
        }
        let mut patience = self.region.lock_timeout;
        for group in groups {
            if group[0].outcome == Inserted::Busy {
                let (shard, intent) = Inserting::lock(group);
                match self.lock_shard(shard, intent, patience.into()) {
                    Ok(shard) => self.insert_group(&shard, group),
                    Err(_) => patience = Duration::ZERO,
                }
            }
            group.iter().for_each(|one| told(one.at, one.outcome));
        }
    }

    /// Indexes the groups of shards with free locks.
    fn insert_where_free(&self, groups: &mut [&mut [Inserting]]) {
        let locks = groups.iter().map(|group| Inserting::lock(group)).map(|(shard, intent)| (Shard(shard), intent));
        let guards = self.locks.take_free(locks);
        let held = || groups.iter().zip(&guards).filter(|(_, guard)| guard.is_some());
        let homes: Vec<u64> = held().map(|(group, _)| self.home(group[0].probe)).collect();
        self.region.fabric.refresh(&homes);
        homes.iter().for_each(|&home| self.region.fabric.prefetch(home));
        for (group, guard) in groups.iter_mut().zip(&guards) {
            if let (Some(shard), [first, others @ ..]) = (guard, &mut **group) {
                first.outcome = self.insert_refreshed(shard, first.hash, first.block);
                // They may share the first one's bucket, which has changed.
                self.insert_group(shard, others);
            }
        }
        self.locks.release_all(guards);
    }

    fn insert_group(&self, shard: &Holds<Shard>, group: &mut [Inserting]) {
        group.iter_mut().for_each(|one| one.outcome = self.insert_locked(shard, one.hash, one.block));
    }

    /// As [`Index::insert`].
    pub(super) fn insert_locked(&self, shard: &Holds<Shard>, hash: BlockHash, block: BlockIndex) -> Inserted {
        self.region.fabric.refresh(&[self.home(self.probe(hash))]);
        self.insert_refreshed(shard, hash, block)
    }

    /// As [`Index::insert`]. The home bucket was refreshed under the lock.
    fn insert_refreshed(&self, shard: &Holds<Shard>, hash: BlockHash, block: BlockIndex) -> Inserted {
        let probe = self.probe(hash);
        let outcome = self.insert_once(shard, hash, block, probe);
        if outcome == Inserted::Full && self.repair_shard(shard, probe.shard).entries_dropped > 0 {
            return self.insert_once(shard, hash, block, probe);
        }
        outcome
    }

    fn insert_once(&self, shard: &Holds<Shard>, hash: BlockHash, block: BlockIndex, probe: Probe) -> Inserted {
        let mut free: Option<(u64, usize)> = None;
        let mut entered = false;
        for step in 0..probe.steps() {
            let bucket = probe.bucket(step);
            let words = match step {
                0 => self.region.fabric.load_line(self.region.layout.bucket(bucket)),
                _ => self.bucket_now(shard, bucket),
            };
            for (entry, &word) in words[..7].iter().enumerate() {
                match self.follow(word, hash, View::Device) {
                    // The entry is left over from an earlier use, or a worker that died wrote it.
                    // Another may follow.
                    Some((other, _)) if other == block => entered = true,
                    Some(_) => return Inserted::Duplicate,
                    None if word == 0 && free.is_none() => free = Some((step, entry)),
                    None => {}
                }
            }
            if words[7] == 0 && (entered || free.is_some()) {
                break;
            }
        }
        if entered {
            return Inserted::New;
        }
        let Some((step, entry)) = free else { return Inserted::Full };
        // In any order: a reader that stops too early has a miss. A death in between leaves an
        // intent, for which the next holder recounts the probe.
        for passed in 0..step {
            if !fault::makes(Mistake::IndexOverflowUncounted) {
                self.add_overflow(shard, probe.bucket(passed), 1);
            }
        }
        fault::point(Point::IndexCounted);
        let bucket = probe.bucket(step);
        self.put(shard, bucket, entry, Entry::new(block, tag_of(hash)).0);
        Inserted::New
    }

    fn add_overflow(&self, shard: &Holds<Shard>, bucket: u64, change: i64) {
        let count = self.region.fabric.load(self.entry_at(bucket, OVERFLOW));
        self.put(shard, bucket, OVERFLOW, count.saturating_add_signed(change));
    }

    /// A bucket as the last holder of the shard's lock left it.
    fn bucket_now(&self, _: &Holds<Shard>, bucket: u64) -> [u64; 8] {
        self.region.fresh_line(self.region.layout.bucket(bucket))
    }

    /// Writes a word of a bucket.
    fn put(&self, _: &Holds<Shard>, bucket: u64, word: usize, value: u64) {
        self.region.fabric.write_word(self.entry_at(bucket, word), value);
    }

    /// Removes the entry that leads from this hash to this block, if there is one. `false`: the
    /// lock timed out, or, in the plain design, the block has a reference count.
    ///
    /// A caller that removes many blocks passes one `patience` for all: a timeout sets it to zero,
    /// so the remaining blocks are removed only if no lock is busy.
    pub fn unlink(&self, hash: BlockHash, block: BlockIndex, patience: &mut Duration) -> bool {
        if self.region.is_plain() {
            return self.unlink_plain(hash, block, patience);
        }
        let Ok(shard) = self.lock_probe(self.probe(hash), (*patience).into()) else {
            *patience = Duration::ZERO;
            return false;
        };
        self.unlink_locked(&shard, hash, block);
        true
    }

    /// As [`Index::unlink`], if `still` says so under the shard's lock, or nothing if that is busy for the
    /// whole time.
    pub fn unlink_if(&self, hash: BlockHash, block: BlockIndex, patience: Duration, still: impl FnOnce() -> bool) {
        if let Ok(shard) = self.lock_probe(self.probe(hash), patience.into())
            && still()
        {
            self.unlink_locked(&shard, hash, block);
        }
    }

    /// As [`Index::unlink`].
    pub fn unlink_locked(&self, shard: &Holds<Shard>, hash: BlockHash, block: BlockIndex) {
        let probe = self.probe(hash);
        let wanted = Entry::new(block, tag_of(hash)).0;
        for step in 0..probe.steps() {
            let bucket = probe.bucket(step);
            let words = self.bucket_now(shard, bucket);
            if let Some(entry) = words[..7].iter().position(|&word| word == wanted) {
                self.put(shard, bucket, entry, 0);
                fault::point(Point::IndexUnlinked);
                for passed in 0..step {
                    self.add_overflow(shard, probe.bucket(passed), -1);
                }
                return;
            }
            if words[7] == 0 {
                return;
            }
        }
    }

    /// Drops entries of a shard without a readable block and recounts its overflows.
    pub fn repair_shard(&self, held: &Holds<Shard>, shard: u64) -> Repaired {
        self.repair_buckets(held, shard, 0, self.region.layout.buckets_per_shard())
    }

    /// As [`Index::repair_shard`], for the buckets that a probe from `home` visits.
    fn repair_probe(&self, held: &Holds<Shard>, home: u64) -> Repaired {
        let buckets = self.region.layout.buckets_per_shard();
        self.repair_buckets(held, held.0, home % buckets, PROBES_MAX.min(buckets))
    }

    /// Repairs `count` buckets of a shard from `first` on. Entries that passed one of them are at
    /// most a probe behind the last.
    fn repair_buckets(&self, held: &Holds<Shard>, shard: u64, first: u64, count: u64) -> Repaired {
        let buckets = self.region.layout.buckets_per_shard();
        let mut repaired = Repaired::default();
        let mut counts = vec![0_u64; count as usize];
        for offset in 0..(count + PROBES_MAX).min(buckets) {
            let local = (first + offset) % buckets;
            let bucket = shard * buckets + local;
            let words = self.bucket_now(held, bucket);
            for (entry, &word) in words[..7].iter().enumerate().filter(|(_, word)| **word != 0) {
                match self.way_to(word, shard, local) {
                    Some(passed) => passed
                        .map(|passed| (passed + buckets - first) % buckets)
                        .filter(|&passed| passed < count)
                        .for_each(|passed| counts[passed as usize] += 1),
                    None if offset < count => {
                        self.put(held, bucket, entry, 0);
                        repaired.entries_dropped += 1;
                    }
                    None => {}
                }
            }
        }
        for (offset, &count) in (0..).zip(&counts) {
            let bucket = shard * buckets + (first + offset) % buckets;
            if self.region.fabric.load(self.entry_at(bucket, OVERFLOW)) != count {
                self.put(held, bucket, OVERFLOW, count);
                repaired.counts_mended += 1;
            }
        }
        repaired
    }

    /// Buckets of the shard that an entry in bucket `local` passed, if the entry leads to a
    /// readable or evicting block with `local` in its probe.
    fn way_to(&self, word: u64, shard: u64, local: u64) -> Option<impl Iterator<Item = u64> + use<F, H>> {
        let block = Entry(word).block().filter(|block| block.0 < self.region.layout.num_descriptors())?;
        self.region.fabric.refresh(&[self.region.layout.descriptor(block)]);
        let descriptor = self.region.read_descriptor(block)?;
        let alive = matches!(descriptor.block_state(), Some(BlockState::Ready | BlockState::Evicting));
        let hash = descriptor.block_hash();
        let probe = self.probe(hash);
        let distance = (local + probe.buckets - probe.home) % probe.buckets;
        let here = alive && Entry(word).tag() == tag_of(hash) && probe.shard == shard && distance < probe.steps();
        here.then(|| (0..distance).map(move |step| (probe.home + step) % probe.buckets))
    }

    /// Refreshes all buckets.
    pub fn refresh_index(&self) {
        self.region
            .refresh_range(self.region.layout.bucket(0), self.region.layout.bucket(self.region.layout.num_buckets));
    }

    /// Counts entries by the device's current copies: (all, without a readable block).
    pub fn look_at_index(&self) -> (u64, u64) {
        self.refresh_index();
        let (mut all, mut stale) = (0, 0);
        let buckets = self.region.layout.buckets_per_shard();
        for bucket in 0..self.region.layout.num_buckets {
            let words = self.region.fabric.load_line(self.region.layout.bucket(bucket));
            for &word in words[..7].iter().filter(|word| **word != 0) {
                all += 1;
                stale += u64::from(self.way_to(word, bucket / buckets, bucket % buckets).is_none());
            }
        }
        (all, stale)
    }
}
