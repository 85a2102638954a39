//! A snapshot with changed, cut, doubled and swapped parts is restored into a fresh region.
//!
//! Whatever the file is, `open` and `restore` return, the region stays sound, and each block and object in
//! it has the bytes that the saved region had under that name. Edits that only change some bytes cost
//! the parts that have these bytes, and no other. Parts are edited with checksums that hold, too; a
//! record's payload is not, and its checksum covers its header, so that a header of another block is
//! detected.
//!
//! Not covered: a record or an object that is made whole under another name. The sums of snapshots have
//! no key, so a program that can write the file can make one.

mod format;

use super::edit::{Touched, edit, number, put};
use super::input::Input;
use super::memory::within;
use super::scratch::Scratch;
use cenote_base::prng::Prng;
use cenote_base::{BlockHash, HashSeed};
use cenote_mem::{Coherent, Flush, MapOptions, Mapping, RegionSource};
use cenote_pool::{
    AttachOptions, Listed, Names, NamespaceRecord, NewBlock, Pool, PoolConfig, Publish, ReadOutcome, Superblock,
};
use cenote_store::snapshot::{Restored, SnapshotError, open, restore, save};
use format::{Kind, SECTOR, parts};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Most memory that opening or restoring a file may take beside the file, in the fuzz target. Its parts are read
/// into one buffer.
pub const MEMORY_MAX: u64 = 48 << 20;
/// Largest region that an input's settings make.
const REGION_BYTES_MAX: u64 = 4 << 20;
const REGION_BYTES: u64 = 1 << 20;
const EDITS_MAX: u8 = 7;
/// Longest payload that an edit makes.
const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// Payload bytes of the namespaces' blocks.
const BLOCK_BYTES: [u64; 2] = [4096, 1024];
/// Blocks of each namespace that are as the engine wrote them, and encoded ones.
const BLOCKS: [[u64; 2]; 2] = [[12, 5], [8, 2]];
/// Objects and their lengths.
const OBJECTS: [(&str, u64); 3] = [("one", 5), ("weights/index", 5000), ("none", 0)];

type TestPool = Pool<Arc<Coherent>>;

/// What names a block.
type Key = ([u8; 32], [u8; 16]);

/// A saved block.
#[derive(Clone, Debug)]
struct Saved {
    length: u64,
    depth: u32,
    encoding: u8,
    names: Names,
}

/// A snapshot of a region with a little of everything.
pub struct Snapshots {
    file: Vec<u8>,
    blocks: BTreeMap<Key, Saved>,
    whole: Restored,
}

fn fingerprint(namespace: usize) -> [u8; 32] {
    // Equal in the first half.
    let mut fingerprint = [7; 32];
    fingerprint[31] = namespace as u8;
    fingerprint
}

fn record(namespace: usize) -> NamespaceRecord {
    NamespaceRecord {
        fingerprint: fingerprint(namespace),
        label: format!("model {namespace}"),
        block_bytes: BLOCK_BYTES[namespace],
        block_tokens: 16,
        num_layers: 2,
    }
}

/// The bytes of a name.
fn bytes_of(name: &[u8], length: u64) -> Vec<u8> {
    let seed = name.iter().fold(length, |seed, &byte| seed.wrapping_mul(0x100_0000_01b3) ^ u64::from(byte));
    let mut prng = Prng::new(seed);
    let mut bytes = vec![0; length as usize];
    bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&prng.next_u64().to_le_bytes()[..part.len()]));
    bytes
}

fn payload(key: &Key, length: u64) -> Vec<u8> {
    bytes_of(&[&key.0[..], &key.1].concat(), length)
}

fn config() -> PoolConfig {
    PoolConfig {
        chunk_bytes: 64 << 10,
        min_block_bytes: 1 << 10,
        max_hosts: 1,
        workers_per_host: 4,
        hazard_lines_per_worker: 2,
        records_per_host: 16,
        events_per_host: 16,
        ..PoolConfig::new(HashSeed([3; 32]), [4; 16])
    }
}

/// A fresh region of these settings; `None`: they make none.
fn pool_of(config: &PoolConfig, bytes: u64) -> Option<TestPool> {
    let mapping = Mapping::create(&RegionSource::Anon, bytes, 0o600, &MapOptions::default()).ok()?;
    let fabric = Arc::new(Coherent::new(mapping));
    Superblock::format(&fabric, config).inspect_err(|error| drop(error.to_string())).ok()?;
    let options = AttachOptions { private: true, ..AttachOptions::named("restored") };
    Pool::attach(fabric, &options).inspect_err(|error| drop(error.to_string())).ok()
}

fn empty() -> TestPool {
    pool_of(&config(), REGION_BYTES).expect("the configuration fits")
}

impl Default for Snapshots {
    fn default() -> Self {
        Self::new()
    }
}

impl Snapshots {
    /// Fills a region and saves it.
    ///
    /// # Panics
    /// It does not work, or the snapshot does not come back whole.
    #[must_use]
    pub fn new() -> Self {
        let (pool, mut blocks) = (empty(), BTreeMap::new());
        for namespace in 0..BLOCK_BYTES.len() {
            let opened = pool.namespace(&record(namespace)).expect("a fresh region has rows");
            let [plain, encoded] = BLOCKS[namespace];
            for block in 0..plain + encoded {
                let encoding = if block < plain { 0 } else { 200 };
                let length = if encoding == 0 { BLOCK_BYTES[namespace] } else { 64 * (1 + block % 9) };
                // Blocks of both namespaces with one number have hashes of their own, as their chains have.
                let hash = BlockHash::from_words([block + 1, 0x1000 + namespace as u64]);
                let names = Names { name: block * 11, parent: block * 13 };
                let key = (fingerprint(namespace), hash.0);
                let new = NewBlock { encoding, names, ..NewBlock::new(&opened, hash, block as u32) };
                assert_eq!(pool.publish(&new, &[&payload(&key, length)]), Publish::Published);
                blocks.insert(key, Saved { length, depth: block as u32, encoding, names });
            }
            if namespace == 1 {
                pool.set_quota(opened.id, 256 << 10).expect("it is open");
            }
        }
        for (key, length) in OBJECTS {
            pool.put_object(key, &bytes_of(key.as_bytes(), length)).expect("a fresh region has room");
        }
        let scratch = Scratch::new("snapshots");
        let path = scratch.file("snapshot");
        let saved = save(&pool, &path).expect("it is written");
        assert_eq!((saved.blocks, saved.objects, saved.missed), (blocks.len() as u64, OBJECTS.len() as u64, 0));
        let file = std::fs::read(&path).expect("it was written");
        let whole = Restored {
            namespaces: saved.namespaces,
            objects: saved.objects,
            blocks: saved.blocks,
            expected: Some(saved.namespaces + saved.objects + saved.blocks),
            ..Restored::default()
        };
        let snapshots = Self { file, blocks, whole };
        snapshots.run(&[]);
        snapshots
    }

    /// Runs an input. Memory is not bounded, since other threads of the process may take some.
    ///
    /// # Panics
    /// The product broke a rule.
    pub fn run(&self, input: &[u8]) {
        self.run_within(u64::MAX, input);
    }

    /// Runs an input; the product takes no more than this memory. What the edits take does not count.
    ///
    /// # Panics
    /// The product broke a rule.
    pub fn run_within(&self, most: u64, input: &[u8]) {
        let mut input = Input::new(input);
        let choices = input.byte();
        let scratch = Scratch::new("snapshots");
        let mut changed = Changed { bytes: self.file.clone(), touched: Some(Vec::new()), forges: false };
        (0..choices & EDITS_MAX).for_each(|_| changed.change(&mut input, &self.file));
        let path = scratch.file("snapshot");
        scratch.write("snapshot", &changed.bytes);
        let settings = within(most, || open(&path)).inspect_err(show).ok();
        let settings = settings.filter(|settings| settings.region_bytes <= REGION_BYTES_MAX);
        // As the command does: a region of the snapshot's settings, if they make one.
        let made = settings.filter(|settings| choices & 8 == 0 && settings.flush == Flush::None);
        let made = made.and_then(|settings| pool_of(&settings.config, settings.region_bytes));
        let pool = made.unwrap_or_else(empty);
        let restored = self.restore(most, &pool, &path, &changed);
        if changed.touched.as_ref().is_some_and(Vec::is_empty) {
            assert_eq!(restored, Some(self.whole), "an intact snapshot does not come back");
        }
        if choices & 16 != 0 {
            // Into a region with content.
            (0..2).for_each(|_| changed.change(&mut input, &self.file));
            scratch.write("snapshot", &changed.bytes);
            changed.touched = None;
            self.restore(most, &pool, &path, &changed);
        }
    }

    fn restore(&self, most: u64, pool: &TestPool, path: &Path, changed: &Changed) -> Option<Restored> {
        let restored = within(most, || restore(pool, path)).inspect_err(show).ok();
        let found = self.found(pool);
        if !changed.forges {
            for key in pool.object_keys() {
                let Ok(Some(bytes)) = pool.get_object(&key) else { continue };
                assert!(bytes == bytes_of(key.as_bytes(), bytes.len() as u64), "object `{key}` has other bytes");
            }
        }
        if let (Some(touched), true) = (&changed.touched, restored.is_some()) {
            for (key, part) in self.parts_of_blocks() {
                let namespace = self.part_of_namespace(&key.0);
                let is_clean =
                    |part: &Range<usize>| touched.iter().all(|at| at.end <= part.start || part.end <= at.start);
                if is_clean(&part) && is_clean(&namespace) {
                    assert!(found.contains_key(&key), "damage elsewhere cost block {key:?}");
                }
            }
        }
        if let Ok(report) = pool.check(true) {
            assert!(report.is_clean(), "the region is damaged: {report:?}");
        }
        restored
    }

    /// The region's blocks, each of which must have the bytes that were saved.
    fn found(&self, pool: &TestPool) -> BTreeMap<Key, Listed> {
        let fingerprints: BTreeMap<u16, String> =
            pool.namespaces().into_iter().map(|info| (info.id.0.into(), info.fingerprint)).collect();
        let mut found = BTreeMap::new();
        for listed in pool.blocks() {
            let mut bytes = vec![0; listed.hit.length as usize];
            if pool.read(&listed.hit, &mut [&mut bytes]) != ReadOutcome::Whole {
                continue;
            }
            let of = &fingerprints[&u16::from(listed.namespace.0)];
            let is_it = |key: &&Key| key.1 == listed.hit.hash.0 && *of == format::hex(&key.0);
            let Some(key) = self.blocks.keys().find(is_it) else {
                panic!("block {:?} of namespace {of} was never saved", listed.hit.hash);
            };
            let saved = &self.blocks[key];
            assert!(bytes == payload(key, saved.length), "block {key:?} has other bytes than were saved");
            let (hit, names) = (&listed.hit, listed.names);
            let has = (hit.length, listed.depth, hit.encoding, names.name, names.parent);
            let had = (saved.length, saved.depth, saved.encoding, saved.names.name, saved.names.parent);
            assert_eq!(has, had, "block {key:?} is described otherwise");
            found.insert(*key, listed);
        }
        found
    }

    fn parts_of_blocks(&self) -> Vec<(Key, Range<usize>)> {
        let of = |(kind, at): (Kind, Range<usize>)| match kind {
            Kind::Block => Some((format::record_key(&self.file[at.clone()]), at)),
            _ => None,
        };
        parts(&self.file).into_iter().filter_map(of).collect()
    }

    fn part_of_namespace(&self, fingerprint: &[u8; 32]) -> Range<usize> {
        let text = format::hex(fingerprint);
        let has = |at: &Range<usize>| self.file[at.clone()].windows(64).any(|part| part == text.as_bytes());
        let of = |(kind, at)| (kind == Kind::Namespace && has(&at)).then_some(at);
        parts(&self.file).into_iter().find_map(of).expect("it was saved")
    }
}

/// An error must have a text.
fn show(error: &SnapshotError) {
    let _ = error.to_string();
}

/// A changed file.
struct Changed {
    bytes: Vec<u8>,
    /// Bytes that were changed in their places; `None`: others as well.
    touched: Option<Vec<Range<usize>>>,
    /// An object was made whole with other bytes.
    forges: bool,
}

impl Changed {
    fn change(&mut self, input: &mut Input<'_>, original: &[u8]) {
        if input.is_spent() {
            return;
        }
        if !input.chance(128) {
            match (edit(input, &mut self.bytes, original, SECTOR), &mut self.touched) {
                (Touched::Within(at), Some(touched)) => touched.push(at),
                (_, touched) => *touched = None,
            }
            return;
        }
        self.touched = None;
        let parts = parts(&self.bytes);
        let Some((kind, at)) = parts.get(input.below(parts.len().max(1) as u64) as usize).cloned() else { return };
        match kind {
            Kind::Block => {
                if input.chance(100) {
                    // The name of another block over this one's payload.
                    let (other, from) = parts[input.below(parts.len() as u64) as usize].clone();
                    if other == Kind::Block {
                        self.bytes.copy_within(from.start + 16..from.start + 64, at.start + 16);
                    }
                } else {
                    const FIELDS: [(usize, usize); 9] =
                        [(8, 4), (12, 4), (16, 8), (47, 1), (48, 8), (64, 8), (72, 8), (80, 8), (112, 8)];
                    let (place, width) = FIELDS[input.below(FIELDS.len() as u64) as usize];
                    put(&mut self.bytes[at.clone()], place, number(input), width);
                }
                format::seal_head(&mut self.bytes[at]);
            }
            Kind::Object if input.chance(128) => {
                self.forges = true;
                self.replace(at, kind, |payload| {
                    edit(input, payload, original, 8);
                });
            }
            Kind::Settings | Kind::Namespace | Kind::End if input.chance(200) => {
                self.replace(at, kind, |payload| format::change_line(input, payload));
            }
            _ => {
                let part = &mut self.bytes[at];
                let (place, width) = [(8, 4), (12, 4), (16, 8), (24, 8), (32, 8)][input.below(5) as usize];
                put(part, place, number(input), width);
                format::seal_part(part);
            }
        }
    }

    /// Replaces a part by one with another payload.
    fn replace(&mut self, at: Range<usize>, kind: Kind, change: impl FnOnce(&mut Vec<u8>)) {
        let mut payload = format::payload(&self.bytes[at.clone()]).to_vec();
        change(&mut payload);
        // Repeated values would grow without bound.
        payload.truncate(PAYLOAD_BYTES_MAX);
        self.bytes.splice(at, format::encode(kind, &payload));
    }
}
