//! A region whose bytes a peer changes on their way to the reader.

use crate::edit::{in_place, number};
use crate::input::Input;
use crate::regions::format::{Area, LINE, Map, check_word, superblock_check};
use cenote_base::prng::Prng;
use cenote_base::seal::{Seal, SealKeys};
use cenote_base::{BlockHash, Clock, Deadline, HashSeed};
use cenote_mem::{Coherent, Fabric, MapOptions, Mapping, Offset, RegionSource};
use cenote_pool::{AttachOptions, Namespace, NamespaceRecord, NewBlock, Pool, PoolConfig, Publish, Superblock};
use cenote_reach::{Fetched, Landing, Pace, Piece, ReadError, Reader, Remote};
use cenote_store::Readable;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

const REGION_BYTES: u64 = 1 << 20;
/// Payload bytes of the namespaces' blocks. Two are equal, so that lengths tell no namespace.
const BLOCK_BYTES: [u64; 3] = [2 << 10, 1 << 10, 2 << 10];
/// Blocks of each namespace, and blocks that no process published.
const BLOCKS: usize = 12;
const UNPUBLISHED: usize = 3;
/// The block of each namespace that is encoded, and its encoding and length. This reader has no codec.
const ENCODED: (usize, u8, u64) = (8, 1, 512);
const CALLS_MAX: u8 = 6;
const EDITS_MAX: u64 = 4;
/// Most batches of one lookup: eight buckets of a hash, each with its descriptors.
const BATCHES_MAX: u64 = 16;
const SUPERBLOCK_BYTES: u64 = 192;
const SEED: HashSeed = HashSeed([3; 32]);

fn keys() -> SealKeys {
    SealKeys::parse(&"0123456789abcdef".repeat(4)).expect("it is a key")
}

fn payload(hash: BlockHash, bytes: u64) -> Vec<u8> {
    let mut prng = Prng::new(hash.words()[0] ^ hash.words()[1]);
    (0..bytes / 8).flat_map(|_| prng.next_u64().to_le_bytes()).collect()
}

/// A sound region.
struct Owner {
    fabric: Arc<Coherent>,
    keys: Option<SealKeys>,
    map: Map,
    /// Each namespace and its chain of hashes; the last ones are not published.
    namespaces: Vec<(Namespace, Vec<BlockHash>)>,
    _pool: Pool<Arc<Coherent>>,
}

impl Owner {
    fn new(seal: Seal) -> Self {
        let keys = (seal != Seal::None).then(keys);
        let config = PoolConfig {
            chunk_bytes: 64 << 10,
            min_block_bytes: 1 << 10,
            max_hosts: 1,
            workers_per_host: 4,
            hazard_lines_per_worker: 2,
            records_per_host: 16,
            events_per_host: 16,
            ..PoolConfig::new(SEED, [4; 16])
        };
        let config = keys.as_ref().map_or_else(|| config.clone(), |keys| config.clone().sealed(seal, keys));
        let mapping = Mapping::create(&RegionSource::Anon, REGION_BYTES, 0o600, &MapOptions::default());
        let fabric = Arc::new(Coherent::new(mapping.expect("memory has room for a region")));
        Superblock::format(&fabric, &config).expect("the configuration fits");
        let options = AttachOptions { private: true, keys: keys.clone(), ..AttachOptions::named("owner") };
        let pool = Pool::attach(Arc::clone(&fabric), &options).expect("a fresh region attaches");
        let namespaces = (0..BLOCK_BYTES.len()).map(|number| filled(&pool, number)).collect();
        let map = Map::of(&std::array::from_fn(|word| fabric.load(Offset::new(word as u64 * 8))));
        Self { fabric, keys, map, namespaces, _pool: pool }
    }
}

/// A namespace with its blocks.
fn filled(pool: &Pool<Arc<Coherent>>, number: usize) -> (Namespace, Vec<BlockHash>) {
    let record = NamespaceRecord {
        fingerprint: [number as u8 + 1; 32],
        label: format!("model {number}"),
        block_bytes: BLOCK_BYTES[number],
        block_tokens: 16,
        num_layers: 2,
    };
    let namespace = pool.namespace(&record).expect("a fresh region has rows");
    let tokens: Vec<u32> = (0..(BLOCKS + UNPUBLISHED) as u32 * 16).collect();
    let hashes = namespace.hasher.chain(&tokens, 16);
    for (depth, &hash) in hashes[..BLOCKS].iter().enumerate() {
        let (encoding, bytes) = if depth == ENCODED.0 { (ENCODED.1, ENCODED.2) } else { (0, BLOCK_BYTES[number]) };
        let new = NewBlock { encoding, ..NewBlock::new(&namespace, hash, depth as u32) };
        assert_eq!(pool.publish(&new, &[&payload(hash, bytes)]), Publish::Published);
    }
    (namespace, hashes)
}

/// What an input has left, and what the peer did.
struct Doings<'a> {
    input: Input<'a>,
    /// Whether an answer was changed, or there was none.
    is_hostile: bool,
    reads: u64,
    bytes: u64,
    /// The hashes that the reader looks for.
    wanted: Vec<BlockHash>,
}

/// A peer that changes what it reads.
struct Liar<'r, 'i> {
    owner: &'r Owner,
    doings: &'r Mutex<Doings<'i>>,
    region_bytes: u64,
    landed: [Vec<u8>; 2],
}

fn lock<'r, 'i>(doings: &'r Mutex<Doings<'i>>) -> MutexGuard<'r, Doings<'i>> {
    doings.lock().expect("one thread has it")
}

impl Remote for Liar<'_, '_> {
    fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    fn read(&mut self, pieces: &[Piece], landing: Landing, _: Deadline) -> Result<(), ReadError> {
        let doings = &mut *lock(self.doings);
        doings.reads += 1;
        let landed = &mut self.landed[landing as usize];
        landed.clear();
        for piece in pieces {
            let end = piece.at.checked_add(piece.length as u64);
            assert!(end.is_some_and(|end| end <= self.region_bytes), "{piece:?} is outside of the region");
            for at in (piece.at..piece.at + piece.length as u64).step_by(8) {
                // A peer that claims a longer region has nothing behind its own.
                let word = if at + 8 <= self.owner.fabric.len() { self.owner.fabric.load(Offset::new(at)) } else { 0 };
                landed.extend(word.to_le_bytes());
            }
        }
        doings.bytes += landed.len() as u64;
        if doings.input.chance(8) {
            doings.is_hostile = true;
            return Err(if doings.input.chance(128) { ReadError::Late } else { ReadError::Gone("lost".to_owned()) });
        }
        if doings.input.chance(96) {
            let before = landed.clone();
            for _ in 0..1 + doings.input.below(EDITS_MAX) {
                change(&mut doings.input, &self.owner.map, &doings.wanted, pieces, landed);
            }
            doings.is_hostile |= *landed != before;
        }
        Ok(())
    }

    fn landed(&mut self, landing: Landing) -> &mut [u8] {
        &mut self.landed[landing as usize]
    }
}

/// Changes bytes of an answer, mostly so that check words hold.
fn change(input: &mut Input<'_>, map: &Map, wanted: &[BlockHash], pieces: &[Piece], bytes: &mut [u8]) {
    let chosen = input.below(pieces.len() as u64) as usize;
    let piece = pieces[chosen];
    let start: usize = pieces[..chosen].iter().map(|piece| piece.length).sum();
    let place = start..start + piece.length;
    let area = map.area_at(piece.at / LINE * LINE);
    match input.byte() % 8 {
        0 => drop(in_place(input, bytes, LINE as usize)),
        1 => drop(in_place(input, &mut bytes[place], LINE as usize)),
        2 => {
            // Another piece's bytes.
            let other = input.below(pieces.len() as u64) as usize;
            let from: usize = pieces[..other].iter().map(|piece| piece.length).sum();
            let length = piece.length.min(pieces[other].length);
            bytes.copy_within(from..from + length, start);
            reseal(map, area, piece, &mut bytes[place]);
        }
        3 if area == Some(Area::Buckets) && !wanted.is_empty() => {
            // Entries for a wanted hash, of any blocks, and a probe that goes on.
            let tag = wanted[input.below(wanted.len() as u64) as usize].words()[1] >> 40 << 40;
            for at in (0..piece.length).step_by(8) {
                put(bytes, start + at, tag | (1 + input.below(map.descriptors)));
            }
        }
        4 => bytes[place].fill(if input.chance(128) { 0 } else { 0xff }),
        _ => {
            for _ in 0..1 + input.below(2) {
                let at = input.below((piece.length as u64).div_ceil(8)) as usize * 8;
                let old = word(bytes, start + at);
                let value = match input.byte() % 4 {
                    0 => old ^ (1 << (input.byte() % 64)),
                    // A field of 8 to 24 bits, as lines have them.
                    1 => {
                        let (low, bits) = (input.byte() % 48, [8, 16, 24][usize::from(input.byte() % 3)]);
                        let mask = ((1_u64 << bits) - 1) << low;
                        old & !mask | number(input) << low & mask
                    }
                    _ => number(input),
                };
                put(bytes, start + at, value);
            }
            reseal(map, area, piece, &mut bytes[place]);
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a piece is words"))
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Makes the check word of a line or of the superblock right.
fn reseal(map: &Map, area: Option<Area>, piece: Piece, bytes: &mut [u8]) {
    if area == Some(Area::Superblock) && piece.length as u64 == SUPERBLOCK_BYTES {
        let words: [u64; 24] = std::array::from_fn(|at| word(bytes, at * 8));
        put(bytes, 23 * 8, superblock_check(&words));
    } else if area.is_some_and(Area::is_checked) && piece.length as u64 == LINE {
        let words: [u64; 8] = std::array::from_fn(|at| word(bytes, at * 8));
        put(bytes, 56, check_word(&words, piece.at, map.salt));
    }
}

/// Regions with each kind of seal, and a reader of them.
pub struct Answers(Vec<Owner>);

impl Default for Answers {
    fn default() -> Self {
        Self::new()
    }
}

impl Answers {
    /// Fills the regions.
    ///
    /// # Panics
    /// It does not work, or a reader does not find all blocks.
    #[must_use]
    pub fn new() -> Self {
        let answers = Self([Seal::None, Seal::Mac, Seal::Encrypt].map(Owner::new).into());
        // Without edits: every namespace from its first block.
        (0..3).for_each(|seal| answers.run(&[seal]));
        answers
    }

    /// Reads with an input's answers.
    ///
    /// # Panics
    /// A block was taken that was not published so, too much was asked for, or a sound answer is a miss.
    pub fn run(&self, input: &[u8]) {
        let mut input = Input::new(input);
        let owner = &self.0[input.below(self.0.len() as u64) as usize];
        let lie = if input.chance(16) { Some(number(&mut input)) } else { None };
        let calls = 1 + input.byte() % CALLS_MAX;
        let (is_hostile, wanted) = (lie.is_some(), Vec::new());
        let doings = Mutex::new(Doings { input, is_hostile, reads: 0, bytes: 0, wanted });
        let region_bytes = lie.unwrap_or(owner.fabric.len());
        let liar = Liar { owner, doings: &doings, region_bytes, landed: Default::default() };
        let opened = Reader::open(liar, &SEED, owner.keys.as_ref(), pace().until);
        assert!(opened.is_ok() || lock(&doings).is_hostile, "a sound region is refused: {:?}", opened.map(drop));
        let Ok(mut reader) = opened else { return };
        for _ in 0..calls {
            if call(owner, &mut reader, &doings).is_err() {
                assert!(lock(&doings).is_hostile, "sound answers end a reader");
                return;
            }
        }
    }
}

/// Looks for a part of a chain and fetches what is there.
fn call(owner: &Owner, reader: &mut Reader<Liar<'_, '_>>, doings: &Mutex<Doings<'_>>) -> Result<(), ReadError> {
    let (of, by, range) = {
        let mut doings = lock(doings);
        let of = doings.input.below(owner.namespaces.len() as u64) as usize;
        // Mostly a reader asks for names of its own namespace: a name is of one.
        let by = if doings.input.chance(32) { (of + 2) % owner.namespaces.len() } else { of };
        let from = doings.input.below((BLOCKS + UNPUBLISHED) as u64) as usize;
        (of, by, from..BLOCKS + UNPUBLISHED)
    };
    let (_, hashes) = &owner.namespaces[of];
    let (namespace, _) = &owner.namespaces[by];
    let hashes = &hashes[range.clone()];
    let before = {
        let mut doings = lock(doings);
        doings.wanted = hashes.to_vec();
        (doings.reads, doings.bytes)
    };
    let spent = || {
        let doings = lock(doings);
        (doings.reads - before.0, doings.bytes - before.1)
    };
    let hits = reader.find(hashes, pace())?;
    let (reads, bytes) = spent();
    let lines_max = 8 * hashes.len() as u64 * LINE;
    assert!(reads <= BATCHES_MAX && bytes <= reads * (SUPERBLOCK_BYTES + lines_max), "{reads} reads of {bytes} bytes");
    assert!(hits.len() <= hashes.len() && hits.iter().zip(hashes).all(|(hit, hash)| hit.hash == *hash));
    let mut whole = BTreeMap::new();
    reader.fetch((namespace, &Readable::default()), &hits, pace(), |hit, fetched| {
        let is_whole = match fetched {
            Fetched::Whole { payload: bytes, .. } => {
                assert_eq!(*bytes, payload(hit.hash, namespace.block_bytes), "another block's bytes, or changed ones");
                true
            }
            Fetched::Unreadable => {
                assert!(hit.encoding != 0, "a raw block is readable");
                // Its payload and namespace are not looked at.
                by == of
            }
            Fetched::Stale | Fetched::Wrong => false,
        };
        let is_first = whole.insert(hit.hash.words(), is_whole).is_none();
        assert!(is_first, "a block came twice");
    })?;
    let (fetch_reads, fetch_bytes) = (spent().0 - reads, spent().1 - bytes);
    let most = hits.len() as u64;
    let block_max = namespace.block_bytes + 2 * LINE + 32;
    assert!(
        fetch_reads <= 2 * most && fetch_bytes <= most * block_max + fetch_reads * SUPERBLOCK_BYTES,
        "{fetch_reads} reads of {fetch_bytes} bytes for {most} blocks"
    );
    if !lock(doings).is_hostile {
        let published = BLOCKS.saturating_sub(range.start);
        assert_eq!(hits.len(), published, "blocks of a sound region are missing");
        assert!(whole.len() == published && whole.values().all(|&is_whole| is_whole == (by == of)), "{whole:?}");
    }
    Ok(())
}

/// No time passes.
fn pace() -> Pace {
    Pace::by(Clock::stopped().after(Duration::from_secs(1)))
}
