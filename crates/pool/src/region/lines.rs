//! The shared structures, each one cache line of eight little-endian words
//! (docs/internals/format.md#lines).
//!
//! A line whose reader must detect tearing, damage or a wrong place carries a check word over its
//! other words, its own offset and the region's identity. An all-zero line was never written.

use crate::region::layout::Layout;
use cenote_base::{BlockHash, BlockIndex, Generation};
use cenote_mem::assert_layout;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The check word of a line at `offset` (docs/internals/format.md#check-word).
#[inline]
fn check_word(words: &[u64; 8], offset: u64, salt: u64) -> u64 {
    let mut sum = salt ^ offset.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for word in &words[..7] {
        sum = (sum ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
        sum ^= sum >> 32;
    }
    sum = sum.wrapping_mul(0xd6e8_feb8_6659_fd93);
    (sum ^ (sum >> 29)) | 1
}

/// One cache line of the format.
pub trait Line: Copy + FromBytes + IntoBytes + Immutable + KnownLayout {
    /// The words with their check word for `offset`.
    fn seal(self, offset: u64, salt: u64) -> [u64; 8] {
        let mut words = [0; 8];
        words.as_mut_bytes().copy_from_slice(self.as_bytes());
        words[7] = check_word(&words, offset, salt);
        words
    }

    /// The line, if its check word holds at `offset`.
    #[inline]
    fn open(words: [u64; 8], offset: u64, salt: u64) -> Option<Self> {
        let holds = words[7] == check_word(&words, offset, salt);
        holds.then(|| Self::read_from_bytes(words.as_bytes()).expect("a line is 64 bytes"))
    }
}

macro_rules! line {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident : $ty:ty = $at:expr),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C, align(64))]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }

        assert_layout!($name, 64, 64, $($field @ $at),*);

        impl Line for $name {}
    };
}

line!(
    /// A host. Only that host writes it.
    HostLine {
        /// Number of the host's current life, from 1; 0: it never attached.
        incarnation: u64 = 0,
        /// Half of the kernel's boot id: distinguishes boots.
        boot_id: u64 = 8,
        /// Name of the host memory of this life; 0: memory of one process.
        memory: u64 = 16,
        /// Advances while any worker of the host lives.
        heartbeat: u64 = 24,
        /// Worker slots ever used; hazard lines of higher slots need no scan.
        workers_high: u64 = 32,
        /// 1: this host found no free chunk; hosts with many release one.
        wants: u64 = 40,
        /// The life that wrote back lines that earlier lives had left dirty in this host's caches;
        /// 0: none.
        swept: u64 = 48,
        check: u64 = 56,
    }
);

line!(
    /// A worker process. Only its host writes it.
    WorkerLine {
        /// Number of times that the slot was taken, shifted left by one; bit 0: taken now.
        epoch: u64 = 0,
        pid: u64 = 8,
        /// Seconds since 1970.
        joined: u64 = 16,
        /// UTF-8, padded with zeros.
        name: [u64; 4] = 24,
        check: u64 = 56,
    }
);

line!(
    /// A chunk. The holder of the chunk lock writes it.
    ChunkLine {
        /// Owner host plus one; 0: free.
        owner: u64 = 0,
        /// The owner's incarnation when it took the chunk.
        incarnation: u64 = 8,
        /// Bytes of each block slot.
        slot_bytes: u64 = 16,
        /// Number of owners so far.
        generation: u32 = 24,
        /// 1: any host may take the chunk with its blocks; the owner leaves it alone meanwhile.
        offered: u32 = 28,
        /// Hosts that lost the chunk by death and may still write to it: host plus one:8 | life:56.
        strays: [u64; 3] = 32,
        check: u64 = 56,
    }
);

impl HostLine {
    /// Offset of the memory's name in the line.
    pub const MEMORY: u64 = 16;
}

impl ChunkLine {
    /// The list in a line that may be torn. Each of its words is whole, and a change of owner does
    /// not change it.
    pub const fn strays_of([.., first, second, third, _]: [u64; 8]) -> [u64; 3] {
        [first, second, third]
    }
}

line!(
    /// The keys of a sealed region. Written under the table lock.
    KeyLine {
        /// Names of the keys that payloads may have, the newest first; 0: none.
        ids: [u64; 6] = 0,
        /// Number of changes so far.
        changes: u64 = 48,
        check: u64 = 56,
    }
);

line!(
    /// What a host tells the others about its use of space. Only that host writes it.
    DemandLine {
        /// Lookups of this host so far: its part of the rack's recency clock.
        lookups: u64 = 0,
        /// Blocks that this host has evicted so far, and reservations that found no room.
        evicted: u64 = 8,
        /// Instant plus one of the oldest blocks of this host's own chunks; 0: it has none.
        oldest: u64 = 16,
        /// Instant plus one of the first chunk on this host's offer board; 0: it offers none.
        offered: u64 = 24,
        /// Hits in this host's ring so far.
        hits: u64 = 32,
        reserved: [u64; 2] = 40,
        check: u64 = 56,
    }
);

line!(
    /// A block descriptor, which decides the state of a block. Only the owner of its chunk writes
    /// it.
    Descriptor {
        /// state:8 | flags:8 | generation:48, lowest bits first. Stored last.
        state: u64 = 0,
        hash: [u64; 2] = 8,
        /// length in lines:24 | offset in lines:40.
        place: u64 = 24,
        /// Payload checksum, keyed by hash and generation.
        checksum: u64 = 32,
        /// namespace:16 | codec:8 | 0:8 | worker slot:16 | depth:16.
        kind: u64 = 40,
        /// seconds since 1970:32 | owner incarnation:32.
        stamp: u64 = 48,
        check: u64 = 56,
    }
);

line!(
    /// A line of a host's flight recorder. Only that host writes it.
    RecordLine {
        /// Number of the record among the host's, from 1. Its position is this number less one,
        /// modulo the records per host.
        sequence: u64 = 0,
        /// Microseconds since 1970.
        time: u64 = 8,
        /// host:16 | worker slot:16 (all ones: none) | process id:32.
        writer: u64 = 16,
        /// kind:8 | life of the host:56.
        kind: u64 = 24,
        first: u64 = 32,
        second: u64 = 40,
        /// Number of consecutive occurrences.
        times: u64 = 48,
        check: u64 = 56,
    }
);

line!(
    /// A line of a host's event log. Only that host writes it.
    EventLine {
        /// Number of the event among the host's, from 1. Its position is this number less one,
        /// modulo the events per host.
        sequence: u64 = 0,
        hash: [u64; 2] = 8,
        /// Names of the block and of its predecessor in an engine; 0: none.
        names: [u64; 2] = 24,
        /// kind:8 | namespace:16 | block:40, lowest bits first.
        what: u64 = 40,
        /// generation:48 | depth:16.
        which: u64 = 48,
        check: u64 = 56,
    }
);

line!(
    /// A line of a host's ring of removed blocks. Only that host writes it.
    RemovalLine {
        /// Number of the removal among the host's, from 1. Its position is this number less one,
        /// modulo the removals per host.
        sequence: u64 = 0,
        hash: [u64; 2] = 8,
        /// Microseconds since 1970.
        time: u64 = 24,
        /// cause:8 | namespace:16 | block:40, lowest bits first.
        what: u64 = 32,
        /// Seconds since 1970 of the block's publication:32 | worker slot:16 | depth:16.
        which: u64 = 40,
        /// Process id.
        pid: u64 = 48,
        check: u64 = 56,
    }
);

line!(
    /// A line of a host's record of requests. Only that host writes it. Its kind says what the words are
    /// (docs/internals/format.md#request).
    RequestLine {
        /// Number of the line among the host's, from 1. Its position is this number less one, modulo the
        /// lines per host.
        sequence: u64 = 0,
        /// kind:8 | names in this line:8 | by kind.
        what: u64 = 8,
        words: [u64; 5] = 16,
        check: u64 = 56,
    }
);

line!(
    /// Row of the namespace table, first line. Written under the table lock.
    NamespaceLine {
        fingerprint: [u64; 4] = 0,
        /// Payload bytes of each block.
        block_bytes: u64 = 32,
        /// tokens per block:32 | layers:32.
        shape: u64 = 40,
        /// Seconds since 1970.
        created: u64 = 48,
        check: u64 = 56,
    }
);

line!(
    /// Row of the namespace table, third line. Written under the table lock.
    QuotaLine {
        /// Bytes that the namespace's blocks may take; 0: no limit.
        bytes: u64 = 0,
        /// Bytes that stay with the namespace while others need room.
        kept: u64 = 8,
        reserved: [u64; 5] = 16,
        check: u64 = 56,
    }
);

line!(
    /// Namespaces that a worker has open. Its worker writes it, under the table lock; recovery
    /// clears it.
    OpenedLine {
        /// Bit `n`: row `n` of the namespace table.
        rows: [u64; 4] = 0,
        /// Life of the host in which the worker found its rows.
        life: u64 = 32,
        reserved: [u64; 2] = 40,
        check: u64 = 56,
    }
);

line!(
    /// Row of the object table, first line. Written under the table lock.
    ObjectLine {
        key_hash: [u64; 2] = 0,
        /// Descriptor plus one; 0: the row was used and is free.
        block: u64 = 16,
        /// Payload bytes.
        length: u64 = 24,
        /// The descriptor's generation.
        generation: u64 = 32,
        /// Offset of the piece of memory that the key names; 0: the block's payload.
        memory: u64 = 40,
        reserved: u64 = 48,
        check: u64 = 56,
    }
);

line!(
    /// Second line of a namespace or object row: its name in UTF-8, padded with zeros.
    NameLine {
        name: [u64; 7] = 0,
        check: u64 = 56,
    }
);

impl NameLine {
    /// `text`, cut at 56 bytes.
    pub fn new(text: &str) -> Self {
        let mut words = [0; 7];
        pack_text(text, &mut words);
        Self { name: words, check: 0 }
    }

    pub fn text(&self) -> String {
        unpack_text(&self.name)
    }
}

/// Packs UTF-8 into words, cut at a character's border.
pub fn pack_text(text: &str, words: &mut [u64]) {
    let mut end = text.len().min(words.len() * 8);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (word, bytes) in words.iter_mut().zip(text.as_bytes()[..end].chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(padded);
    }
}

/// The inverse of [`pack_text`]; damaged bytes show as replacement characters.
pub fn unpack_text(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).take_while(|&b| b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// State of a block: the low byte of its descriptor's first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockState {
    /// No block. Also the state of a line that was never written.
    Free = 0,
    /// Complete and readable.
    Ready = 1,
    /// Being evicted: readers must not start, and pins decide whether the slot may be reused.
    Evicting = 2,
    /// An object of the object table.
    Object = 3,
}

impl BlockState {
    #[inline]
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Free, Self::Ready, Self::Evicting, Self::Object].into_iter().find(|state| *state as u8 == byte)
    }
}

impl Descriptor {
    /// State and generation as the first word.
    #[inline]
    pub const fn state_word(state: BlockState, generation: Generation) -> u64 {
        (state as u64) | (generation.0 << 16)
    }

    #[inline]
    pub fn block_state(&self) -> Option<BlockState> {
        BlockState::from_byte(self.state as u8)
    }

    /// Whether the block may be read.
    #[inline]
    pub const fn is_ready(&self) -> bool {
        self.state as u8 == BlockState::Ready as u8
    }

    #[inline]
    pub const fn generation(&self) -> Generation {
        Generation(self.state >> 16)
    }

    #[inline]
    pub fn block_hash(&self) -> BlockHash {
        BlockHash::from_words(self.hash)
    }

    /// Whether the payload is inside the data area.
    #[inline(always)]
    pub fn lies_in(&self, layout: &Layout) -> bool {
        let (length, offset) = self.extent();
        // 24 and 40 bits of lines: the sum does not overflow.
        offset >= layout.data() && offset + length <= layout.data() + layout.data_bytes()
    }

    /// Offset and length of the payload in bytes.
    #[inline]
    pub const fn extent(&self) -> (u64, u64) {
        ((self.place & 0xff_ffff) * 64, (self.place >> 24) * 64)
    }

    pub const fn pack_place(length_bytes: u64, offset: u64) -> u64 {
        length_bytes.div_ceil(64) | ((offset / 64) << 24)
    }

    pub const fn pack_kind(namespace: u16, encoding: u8, worker: u16, depth: u32) -> u64 {
        let depth = if depth > 0xffff { 0xffff } else { depth as u64 };
        (namespace as u64) | ((encoding as u64) << 16) | ((worker as u64) << 32) | (depth << 48)
    }

    /// Encoding of the payload: 0 is the engine's own layout; publishers assign the rest.
    pub const fn encoding(&self) -> u8 {
        (self.kind >> 16) as u8
    }

    pub const fn namespace(&self) -> u16 {
        self.kind as u16
    }

    /// Whether its slot is charged to its namespace.
    pub fn is_charged(&self) -> bool {
        matches!(self.block_state(), Some(BlockState::Ready | BlockState::Evicting))
    }

    pub const fn depth(&self) -> u32 {
        (self.kind >> 48) as u32
    }

    /// The same block in another state.
    pub const fn with_state(mut self, state: BlockState) -> Self {
        self.state = Self::state_word(state, self.generation());
        self
    }
}

/// Key of a block's payload checksum: other generations and other blocks give other sums.
pub fn checksum_key(hash: BlockHash, generation: Generation) -> u64 {
    let [low, high] = hash.words();
    let mixed = (low ^ high.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ generation.0).wrapping_mul(0xd6e8_feb8_6659_fd93) ^ (mixed >> 31)
}

/// One entry of an index bucket, a single word: block plus one:40 | tag:24. 0 is an empty entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry(pub u64);

impl Entry {
    pub const fn new(block: BlockIndex, tag: u32) -> Self {
        Self((block.0 + 1) | ((tag as u64) << 40))
    }

    #[inline]
    pub fn block(self) -> Option<BlockIndex> {
        (self.0 & ((1 << 40) - 1)).checked_sub(1).map(BlockIndex)
    }

    #[inline]
    pub const fn tag(self) -> u32 {
        (self.0 >> 40) as u32
    }
}

/// The tag of a hash: 24 bits that do not choose its bucket.
#[inline]
pub fn tag_of(hash: BlockHash) -> u32 {
    (hash.words()[1] >> 40) as u32
}

/// One hazard slot: block plus one:40 | low bits of the generation:24. 0: an empty slot.
pub const fn hazard_word(block: BlockIndex, generation: Generation) -> u64 {
    (block.0 + 1) | ((generation.0 & 0xff_ffff) << 40)
}

/// The block that a hazard word pins.
pub const fn hazard_block(word: u64) -> Option<BlockIndex> {
    match word & ((1 << 40) - 1) {
        0 => None,
        block => Some(BlockIndex(block - 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_believed_only_whole_and_in_its_place() {
        let line = Descriptor {
            state: Descriptor::state_word(BlockState::Ready, Generation(7)),
            place: Descriptor::pack_place(1 << 20, 3 << 21),
            kind: Descriptor::pack_kind(9, 2, 3, 70_000),
            ..Descriptor::default()
        };
        let words = line.seal(4096, 77);
        let read = Descriptor::open(words, 4096, 77).expect("sealed here");
        assert_eq!((read.block_state(), read.generation()), (Some(BlockState::Ready), Generation(7)));
        assert_eq!(read.extent(), (1 << 20, 3 << 21));
        assert_eq!((read.namespace(), read.encoding(), read.depth()), (9, 2, 0xffff));
        assert!(Descriptor::open(words, 4160, 77).is_none(), "another place");
        assert!(Descriptor::open(words, 4096, 78).is_none(), "another region");
        for word in 0..8 {
            for bit in 0..64 {
                let mut damaged = words;
                damaged[word] ^= 1 << bit;
                assert!(Descriptor::open(damaged, 4096, 77).is_none(), "word {word} bit {bit}");
            }
        }
        assert!(Descriptor::open([0; 8], 4096, 77).is_none(), "never written");
    }

    #[test]
    fn names_are_cut_between_characters() {
        let long = "é".repeat(40);
        assert_eq!(NameLine::new(&long).text(), "é".repeat(28));
        assert_eq!(NameLine::new("weights").text(), "weights");
    }

    #[test]
    fn entries_keep_block_and_tag() {
        let entry = Entry::new(BlockIndex((1 << 40) - 2), 0xab_cdef);
        assert_eq!((entry.block(), entry.tag()), (Some(BlockIndex((1 << 40) - 2)), 0xab_cdef));
        assert_eq!(Entry(0).block(), None);
        assert_eq!(hazard_block(hazard_word(BlockIndex(5), Generation(1 << 30))), Some(BlockIndex(5)));
    }
}
