//! Layout of a host's memory. It is rebuilt from the region if it is new, so it is no format:
//! processes of one host and one version share it.

use crate::region::Region;
use crate::region::counters::{Counters, SET_WORDS};
use crate::region::layout::{LOCKS, Layout, MUTEXES, NAMESPACES, USER_LOCKS};
use cenote_base::{BlockIndex, Generation};
use cenote_mem::{Fabric, HostLocal, HostSpec, Word};
use cenote_policy::Eviction;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Owner word of a free slot, which is in its class's free list. A reserved slot has its worker's
/// slot plus one.
pub(crate) const FREE: u32 = 0;
/// Owner word of a readable block, which eviction may take.
pub(crate) const PUBLISHED: u32 = u32::MAX;
/// Owner word of a retracted block that is still pinned.
pub(crate) const DRAINING: u32 = u32::MAX - 1;
/// Bit of a chunk's class word: other hosts may take the chunk, so this host leaves it alone.
const OFFERED: u32 = 1 << 31;
/// Bit of a chunk's class word: caches of this host may have dirty lines of the chunk's payload,
/// because memory in it was written in place.
const DIRTY: u32 = 1 << 30;
/// Owner word of an object.
pub(crate) const OBJECT: u32 = u32::MAX - 2;

/// Number of slot sizes that a host can serve at once.
pub(crate) const CLASSES: usize = 64;

/// Words of a cache line. Words that change often have lines of their own.
const LINE_WORDS: usize = 8;

/// Single 64-bit words.
#[derive(Clone, Copy)]
enum Single {
    /// Number of lookups: the recency clock.
    AccessClock,
    /// 1 once this memory agrees with the region. New memory is all zeros, and its creator may have
    /// died before it filled it.
    Rebuilt = LINE_WORDS as isize,
    /// The life of the host that this memory belongs to.
    Incarnation,
    /// 1: a reservation found neither a chunk nor a block to evict.
    Wants,
    /// 1: adopted chunks may hold readable blocks that are not in the index.
    Adopting,
    /// Number of this host's next record; 0: unknown.
    NextRecord,
    /// Rows of the namespace table with limits that this host enforces.
    Namespaces,
    /// Name of this memory, in the line of its host; 0: it has none.
    MemoryName,
    /// Number of this host's next event; 0: unknown.
    NextEvent = 2 * LINE_WORDS as isize,
    /// Hits that this host has written to its ring.
    NextHit = 3 * LINE_WORDS as isize,
    /// A block's hits are reported once in this many lookups.
    ReportPace,
    /// Instant plus one of the oldest chunk that another host offers, when this host last looked;
    /// 0: none.
    BestOffer,
    /// Slots that this host has reserved.
    Reserved,
    /// [`Single::Reserved`] at the last tick.
    ReservedBefore,
    /// Ticks since this host has last reserved a slot.
    QuietTicks,
    /// Lookups of other hosts that the recency clock has counted.
    Heard,
    /// 1: this host offers all of its chunks, because it was idle.
    OffersAll,
    /// Number of this host's next removal; 0: unknown.
    NextRemoval = 4 * LINE_WORDS as isize,
    /// Number of the next line of this host's record of requests; 0: unknown.
    NextRequest = 5 * LINE_WORDS as isize,
    /// The record has the blocks with so many zeros in their hash.
    SampleShift,
    /// Blocks that this host's requests have asked for.
    BlocksAsked,
    /// Requests of this host.
    RequestsCounted,
    /// Until this second since 1970 the record has all blocks; 0: it has a sample.
    AllUntil,
    /// Number of the current quarter of an hour since 1970, plus one; 0: unknown.
    Quarter,
    /// Blocks that were asked for in this quarter.
    QuarterBlocks,
    /// Requests in this quarter.
    QuarterRequests,
}

const WORDS: usize = 6 * LINE_WORDS;

/// Number of sets of counters. Workers of different sets do not contend.
const COUNTER_SETS: usize = 16;
const COUNTER_SET_WORDS: usize = SET_WORDS.next_multiple_of(LINE_WORDS);

/// Offsets of the arrays.
#[derive(Clone, Debug)]
pub(crate) struct HostLayout {
    descriptors: usize,
    chunks: usize,
    hosts: usize,
    policy: usize,
}

impl HostLayout {
    pub fn new(layout: &Layout, eviction: Eviction) -> Self {
        let size = |count: u64| usize::try_from(count).expect("the layout fits this machine's address space");
        Self {
            descriptors: size(layout.num_descriptors()),
            chunks: size(layout.num_chunks),
            hosts: size(layout.max_hosts),
            policy: eviction.policy().state_words(layout.num_descriptors()),
        }
    }

    pub fn spec(&self, layout: &Layout) -> HostSpec {
        HostSpec {
            mutexes: MUTEXES,
            words32: (self.slot_namespaces() + self.descriptors) as u64,
            words64: (self.single() + WORDS + self.policy) as u64,
            slots: u32::try_from(layout.workers_per_host).expect("validated"),
        }
    }

    // 32-bit: slot owners, free-list links, chunk classes, class heads, the chunk hint, slots'
    // namespaces.
    const fn links(&self) -> usize {
        self.descriptors
    }
    const fn chunk_classes(&self) -> usize {
        self.links() + self.descriptors
    }
    const fn class_heads(&self) -> usize {
        self.chunk_classes() + self.chunks
    }
    const fn chunk_hint(&self) -> usize {
        self.class_heads() + CLASSES
    }

    const fn slot_namespaces(&self) -> usize {
        self.chunk_hint() + 1
    }

    // 64-bit: policy words, seen generations, class sizes, counters, heartbeats, repairs, locks
    // heeded, namespaces' usage, quotas and kept bytes, what other hosts told, single words, the
    // policy's state.
    const fn seen(&self) -> usize {
        self.descriptors
    }
    const fn class_sizes(&self) -> usize {
        self.seen() + self.descriptors
    }
    const fn counters(&self) -> usize {
        (self.class_sizes() + CLASSES).next_multiple_of(LINE_WORDS)
    }
    const fn beats(&self) -> usize {
        self.counters() + COUNTER_SETS * COUNTER_SET_WORDS
    }
    const fn repairs(&self) -> usize {
        self.beats() + 3 * self.hosts
    }
    const fn heeded(&self) -> usize {
        self.repairs() + LOCKS as usize * self.hosts
    }
    const fn usage(&self) -> usize {
        (self.heeded() + USER_LOCKS as usize * self.hosts).next_multiple_of(LINE_WORDS)
    }
    const fn quotas(&self) -> usize {
        self.usage() + NAMESPACES as usize
    }
    const fn kept(&self) -> usize {
        self.quotas() + NAMESPACES as usize
    }
    const fn peers(&self) -> usize {
        self.kept() + NAMESPACES as usize
    }
    const fn single(&self) -> usize {
        (self.peers() + PEER_WORDS * self.hosts).next_multiple_of(LINE_WORDS)
    }
}

/// What this host has heard of another host's use of space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Its lookups that this host's recency clock has counted.
    pub lookups: u64,
    /// Blocks that it had evicted.
    pub evicted: u64,
    /// Entries of its ring of hits that this host has read or skipped.
    pub hits: u64,
    /// Ticks of this host since the other one has last evicted.
    pub calm_ticks: u64,
    /// Its last life of which no chunk is left.
    pub emptied: u64,
}

const PEER_WORDS: usize = 5;

/// Last heartbeat that this host saw of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beat {
    pub incarnation: u64,
    pub heartbeat: u64,
    /// Nanoseconds of this host's clock when the heartbeat was first seen at this value;
    /// [`LONG_AGO`]: before any timeout.
    pub since: u64,
}

/// A time that is past every timeout, however young the clock is.
pub(crate) const LONG_AGO: u64 = 0;

impl<F: Fabric, H: HostLocal> Region<F, H> {
    fn word(&self, word: Single) -> &H::Word64 {
        &self.area.words64()[self.host_layout.single() + word as usize]
    }

    /// State and owner of a block slot.
    pub fn slot_owner(&self, block: BlockIndex) -> &H::Word32 {
        &self.area.words32()[block.0 as usize]
    }

    pub fn slot_owners(&self) -> &[H::Word32] {
        &self.area.words32()[..self.host_layout.descriptors]
    }

    pub fn free_link(&self, block: BlockIndex) -> &H::Word32 {
        &self.area.words32()[self.host_layout.links() + block.0 as usize]
    }

    /// Class plus one of a chunk in this host's lists, with [`OFFERED`] and [`DIRTY`]; 0: another
    /// host's. Changed under the heap lock.
    fn class_word(&self, chunk: u64) -> &H::Word32 {
        &self.area.words32()[self.host_layout.chunk_classes() + chunk as usize]
    }

    /// The class of a chunk in this host's lists. `None`: another host's, or offered to others.
    #[inline]
    pub fn class_of_chunk(&self, chunk: u64) -> Option<usize> {
        let word = self.class_word(chunk).load(Relaxed);
        let class = (word & !DIRTY).checked_sub(1).filter(|_| word & OFFERED == 0);
        class.map(|class| class as usize)
    }

    /// Whether a block's chunk is in this host's lists.
    #[inline]
    pub fn lists(&self, block: BlockIndex) -> bool {
        self.class_of_chunk(self.layout.chunk_of(block)).is_some()
    }

    /// The class of a chunk that this host offers, or offered until another took it.
    pub fn class_of_offered(&self, chunk: u64) -> Option<usize> {
        let word = self.class_word(chunk).load(Relaxed);
        let class = (word & !(DIRTY | OFFERED)).checked_sub(1).filter(|_| word & OFFERED != 0);
        class.map(|class| class as usize)
    }

    /// Enters a chunk in this host's lists. `dirty`: its payload may be dirty in this host's caches.
    pub fn list_chunk(&self, chunk: u64, class: usize, dirty: bool) {
        self.class_word(chunk).store((class as u32 + 1) | if dirty { DIRTY } else { 0 }, Relaxed);
    }

    /// Removes a chunk from this host's lists. Returns its class if it was there, offered or not.
    pub fn unlist_chunk(&self, chunk: u64) -> Option<usize> {
        let word = self.class_word(chunk).swap(0, Relaxed);
        (word & !(DIRTY | OFFERED)).checked_sub(1).map(|class| class as usize)
    }

    /// Records whether a listed chunk is offered to other hosts.
    pub fn set_offered(&self, chunk: u64, offered: bool) {
        let word = self.class_word(chunk);
        let known = word.load(Relaxed);
        word.store(if offered { known | OFFERED } else { known & !OFFERED }, Relaxed);
    }

    /// Whether payload of a listed chunk may be dirty in this host's caches.
    pub fn is_dirty(&self, chunk: u64) -> bool {
        self.class_word(chunk).load(Relaxed) & DIRTY != 0
    }

    /// Records whether payload of a listed chunk may be dirty in this host's caches.
    pub fn set_dirty(&self, chunk: u64, dirty: bool) {
        let word = self.class_word(chunk);
        let known = word.load(Relaxed);
        word.store(if dirty { known | DIRTY } else { known & !DIRTY }, Relaxed);
    }

    /// What this host has heard of another one. Changed under the heap lock.
    pub fn peer(&self, host: u64) -> Peer {
        let words = self.peer_words(host);
        Peer {
            lookups: words[0].load(Relaxed),
            evicted: words[1].load(Relaxed),
            hits: words[2].load(Relaxed),
            calm_ticks: words[3].load(Relaxed),
            emptied: words[4].load(Relaxed),
        }
    }

    pub fn set_peer(&self, host: u64, peer: Peer) {
        let words = self.peer_words(host);
        words[0].store(peer.lookups, Relaxed);
        words[1].store(peer.evicted, Relaxed);
        words[2].store(peer.hits, Relaxed);
        words[3].store(peer.calm_ticks, Relaxed);
        words[4].store(peer.emptied, Relaxed);
    }

    fn peer_words(&self, host: u64) -> &[H::Word64] {
        let start = self.host_layout.peers() + PEER_WORDS * host as usize;
        &self.area.words64()[start..start + PEER_WORDS]
    }

    /// First free block plus one of a class.
    pub fn class_head(&self, class: usize) -> &H::Word32 {
        &self.area.words32()[self.host_layout.class_heads() + class]
    }

    /// All chunks before this one were taken when this host last looked.
    pub fn chunk_hint(&self) -> &H::Word32 {
        &self.area.words32()[self.host_layout.chunk_hint()]
    }

    /// Namespace plus one that a slot is charged to; 0: none. Changed under the heap lock.
    pub fn slot_namespace(&self, block: BlockIndex) -> &H::Word32 {
        &self.area.words32()[self.host_layout.slot_namespaces() + block.0 as usize]
    }

    /// Bytes of this host's slots that are charged to a namespace. Changed under the heap lock.
    pub fn usage(&self, namespace: u64) -> &H::Word64 {
        &self.area.words64()[self.host_layout.usage() + namespace as usize]
    }

    /// A namespace's limit in bytes, as this host last read it; 0: none.
    pub fn quota(&self, namespace: u64) -> &H::Word64 {
        &self.area.words64()[self.host_layout.quotas() + namespace as usize]
    }

    /// Bytes that stay with a namespace while others need room, as this host last read them.
    pub fn kept(&self, namespace: u64) -> &H::Word64 {
        &self.area.words64()[self.host_layout.kept() + namespace as usize]
    }

    /// Rows of the namespace table with limits that this host enforces.
    pub fn namespaces_known(&self) -> &H::Word64 {
        self.word(Single::Namespaces)
    }

    /// The eviction policy's word of a block.
    pub fn policy_word(&self, block: BlockIndex) -> &H::Word64 {
        &self.area.words64()[block.0 as usize]
    }

    /// The eviction policy's shared words.
    pub fn policy_state(&self) -> &[AtomicU64] {
        self.area.bare_words64(self.host_layout.single() + WORDS)
    }

    /// Slot bytes of a class; 0: unused.
    pub fn class_bytes(&self, class: usize) -> &H::Word64 {
        &self.area.words64()[self.host_layout.class_sizes() + class]
    }

    pub fn counters(&self) -> Counters<'_, H::Word64> {
        let start = self.host_layout.counters();
        let words = &self.area.words64()[start..start + COUNTER_SETS * COUNTER_SET_WORDS];
        Counters { words, set_words: COUNTER_SET_WORDS, own_set: self.slot() as usize % COUNTER_SETS }
    }

    pub fn access_clock(&self) -> &H::Word64 {
        self.word(Single::AccessClock)
    }

    pub fn rebuilt(&self) -> &H::Word64 {
        self.word(Single::Rebuilt)
    }

    /// Name of this memory, which the processes of its host share; 0: it has none, or none yet.
    pub fn memory_name(&self) -> &H::Word64 {
        self.word(Single::MemoryName)
    }

    /// Number of this host's current life.
    pub fn incarnation(&self) -> u64 {
        self.word(Single::Incarnation).load(Relaxed)
    }

    /// Whether a reservation of this host failed because it found no chunk.
    pub fn wants_chunk(&self) -> &H::Word64 {
        self.word(Single::Wants)
    }

    /// Whether blocks of adopted chunks are not in the index yet.
    pub fn adopting(&self) -> &H::Word64 {
        self.word(Single::Adopting)
    }

    /// The number of this host's next record: see [`crate::history`].
    pub fn next_record(&self) -> &H::Word64 {
        self.word(Single::NextRecord)
    }

    /// The number of this host's next event: see `crate::log::events`.
    pub fn next_event(&self) -> &H::Word64 {
        self.word(Single::NextEvent)
    }

    /// The number of this host's next removal: see [`crate::removals`].
    pub fn next_removal(&self) -> &H::Word64 {
        self.word(Single::NextRemoval)
    }

    /// The number of the next line of this host's record of requests: see [`crate::requests`].
    pub fn next_request(&self) -> &H::Word64 {
        self.word(Single::NextRequest)
    }

    /// The record of requests has the blocks with so many zeros in their hash.
    pub fn sample_shift(&self) -> &H::Word64 {
        self.word(Single::SampleShift)
    }

    /// Blocks that this host's requests have asked for.
    pub fn blocks_asked(&self) -> &H::Word64 {
        self.word(Single::BlocksAsked)
    }

    /// Requests of this host.
    pub fn requests_counted(&self) -> &H::Word64 {
        self.word(Single::RequestsCounted)
    }

    /// Until this second since 1970 the record of requests has all blocks; 0: it has a sample.
    pub fn all_until(&self) -> &H::Word64 {
        self.word(Single::AllUntil)
    }

    /// Number of the current quarter of an hour since 1970, plus one; 0: unknown.
    pub fn quarter(&self) -> &H::Word64 {
        self.word(Single::Quarter)
    }

    /// Blocks and requests in this quarter of an hour.
    pub fn of_quarter(&self) -> [&H::Word64; 2] {
        [self.word(Single::QuarterBlocks), self.word(Single::QuarterRequests)]
    }

    /// Hits that this host has written to its ring.
    pub fn next_hit(&self) -> &H::Word64 {
        self.word(Single::NextHit)
    }

    /// A block's hits are reported to other hosts once in this many lookups.
    pub fn report_pace(&self) -> &H::Word64 {
        self.word(Single::ReportPace)
    }

    /// Instant plus one of the oldest chunk that another host offers, when this host last looked;
    /// 0: none.
    pub fn best_offer(&self) -> &H::Word64 {
        self.word(Single::BestOffer)
    }

    /// Slots that this host has reserved.
    pub fn reserved(&self) -> &H::Word64 {
        self.word(Single::Reserved)
    }

    /// [`Region::reserved`] at the last tick.
    pub fn reserved_before(&self) -> &H::Word64 {
        self.word(Single::ReservedBefore)
    }

    /// Ticks since this host has last reserved a slot.
    pub fn quiet_ticks(&self) -> &H::Word64 {
        self.word(Single::QuietTicks)
    }

    /// Lookups of other hosts that the recency clock has counted.
    pub fn heard(&self) -> &H::Word64 {
        self.word(Single::Heard)
    }

    /// Whether this host offers all of its chunks, because it was idle.
    pub fn offers_all(&self) -> &H::Word64 {
        self.word(Single::OffersAll)
    }

    pub fn set_incarnation(&self, incarnation: u64) {
        self.word(Single::Incarnation).store(incarnation, Relaxed);
    }

    /// Whether this host's caches hold nothing older than this generation of the block's payload.
    /// `true` orders later loads of the payload after the drop of the lines, whichever process
    /// dropped them.
    pub fn has_seen(&self, block: BlockIndex, generation: Generation) -> bool {
        self.area.words64()[self.host_layout.seen() + block.0 as usize].load(Acquire) == generation.0 + 1
    }

    /// Records that stale payload lines of the block were dropped after this generation was
    /// published. Recording it before the drop was fenced would return bytes of an older use.
    pub fn set_seen(&self, block: BlockIndex, generation: Generation) {
        self.area.words64()[self.host_layout.seen() + block.0 as usize].store(generation.0 + 1, Release);
    }

    pub fn forget_seen(&self, block: BlockIndex) {
        self.area.words64()[self.host_layout.seen() + block.0 as usize].store(0, Relaxed);
    }

    fn beat_words(&self, host: u64) -> &[H::Word64] {
        let start = self.host_layout.beats() + 3 * host as usize;
        &self.area.words64()[start..start + 3]
    }

    /// Recorded under the membership lock.
    pub fn beat(&self, host: u64) -> Beat {
        let words = self.beat_words(host);
        Beat { incarnation: words[0].load(Relaxed), heartbeat: words[1].load(Relaxed), since: words[2].load(Relaxed) }
    }

    pub fn set_beat(&self, host: u64, beat: Beat) {
        let words = self.beat_words(host);
        words[0].store(beat.incarnation, Relaxed);
        words[1].store(beat.heartbeat, Relaxed);
        words[2].store(beat.since, Relaxed);
    }

    /// The last dead life of `host` that this host repaired under lock `lock`.
    pub fn repaired(&self, lock: u64, host: u64) -> &H::Word64 {
        &self.area.words64()[self.host_layout.repairs() + lock as usize * self.host_layout.hosts + host as usize]
    }

    /// How often `host` had left user lock `number` when this host last held it.
    pub fn heeded(&self, number: u64, host: u64) -> &H::Word64 {
        &self.area.words64()[self.host_layout.heeded() + number as usize * self.host_layout.hosts + host as usize]
    }

    /// Clears all words that describe the region before a new life of this host.
    pub fn forget_region(&self) {
        let stale: [Range<usize>; 2] = [
            self.host_layout.seen()..self.host_layout.class_sizes(),
            self.host_layout.beats()..self.host_layout.usage(),
        ];
        stale.into_iter().flatten().for_each(|word| self.area.words64()[word].store(0, Relaxed));
    }
}
