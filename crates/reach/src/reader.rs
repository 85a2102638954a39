//! Finds blocks in a peer's region and verifies them.
//!
//! The steps are those of a local read (docs/internals/protocol.md#read), each for many blocks at a
//! time: buckets → descriptors → payloads, seals, names and namespaces → descriptors again. A block
//! counts only if both descriptors are equal and its checksum or seal, under a key that has its name
//! and generation, matches. A later read sees later bytes, so the second descriptor is of a time after
//! the payload.
//!
//! All that the peer says is input: an offset comes from an entry or descriptor that was bounded by the
//! layout, and a length from the namespace of this process.

use crate::remote::{Batch, Landing, Pace, ReadError, Remote, Room};
use cenote_base::fault::{self, Mistake};
use cenote_base::seal::SealKeys;
use cenote_base::{BlockHash, BlockIndex, Deadline, HashSeed};
use cenote_mem::LINE;
use cenote_pool::{Hit, Names, Namespace, Outline, PoolError, Words};
use cenote_store::{Readable, suits};
use std::ops::Range;
use zerocopy::FromBytes;

const LINE_BYTES: usize = LINE as usize;
/// Most buckets of a hash that are looked at. At most half of the index's entries are in use, so a
/// longer probe is as rare as it is slow.
const BUCKETS_MAX: usize = 8;
/// Most hashes of one step: their buckets are one read.
const HASHES_MAX: usize = 256;
/// Bytes of a block's names, and of its seal.
const PAIR_BYTES: usize = 16;
/// Most pieces of a block: payload, seal, names, namespace.
const BLOCK_PIECES: usize = 4;

/// A block that a fetch has read.
#[derive(Debug)]
pub enum Fetched<'a> {
    /// It is as its publisher wrote it.
    Whole {
        /// Names by which other programs know it.
        names: Names,
        /// Its payload, decrypted.
        payload: &'a mut [u8],
    },
    /// It was evicted or reused meanwhile.
    Stale,
    /// It is damaged, forged, or not of this namespace.
    Wrong,
    /// It is of an encoding, codec or profile that this process does not read.
    Unreadable,
}

/// A reader of one peer's region, for one life of that region.
pub struct Reader<R> {
    remote: R,
    outline: Outline,
    superblock: [Words; 3],
}

/// A block on its way, and where its pieces are in the batch.
struct Fetching {
    hit: Hit,
    payload: Range<usize>,
    seal: Option<Range<usize>>,
    names: Option<Range<usize>>,
    namespace: Range<usize>,
}

fn line(bytes: &[u8]) -> Words {
    Words::read_from_bytes(bytes).expect("a line is 64 bytes")
}

fn pair(bytes: &[u8]) -> [u64; 2] {
    <[u64; 2]>::read_from_bytes(bytes).expect("a pair is 16 bytes")
}

fn superblock_of(bytes: &[u8]) -> [Words; 3] {
    [0, 1, 2].map(|at| line(&bytes[at * LINE_BYTES..(at + 1) * LINE_BYTES]))
}

impl<R: Remote> Reader<R> {
    /// Reads the region's superblock. `seed` and `keys` are those of the local region: blocks have equal
    /// names under equal seeds only.
    ///
    /// # Errors
    /// As of [`Remote::read`]. The region is no region of this version, has another seed, or is sealed
    /// with other keys.
    pub fn open(
        mut remote: R,
        seed: &HashSeed,
        keys: Option<&SealKeys>,
        deadline: Deadline,
    ) -> Result<Self, ReadError> {
        let mut batch = Batch::default();
        batch.add(0, Outline::SUPERBLOCK_BYTES);
        let region_bytes = remote.region_bytes();
        if region_bytes < Outline::SUPERBLOCK_BYTES as u64 {
            return Err(ReadError::Gone(format!("its region has {region_bytes} bytes, fewer than a superblock")));
        }
        remote.read(&batch.pieces, Landing::Lines, deadline)?;
        let superblock = superblock_of(remote.landed(Landing::Lines));
        let refused = |error: PoolError| ReadError::Gone(format!("its region cannot be read: {error}"));
        let outline = Outline::new(superblock, region_bytes, keys).map_err(refused)?;
        if outline.superblock().config.seed != *seed {
            let fact = "its region has another hash seed, so no block has the same name; make both with --hash-seed";
            return Err(ReadError::Gone(fact.to_owned()));
        }
        Ok(Self { remote, outline, superblock })
    }

    /// What the region's superblock says.
    #[must_use]
    pub const fn outline(&self) -> &Outline {
        &self.outline
    }

    /// Whether the region is still the one that was opened. The peer answers, so it lives.
    ///
    /// # Errors
    /// As of [`Remote::read`], and [`ReadError::Remade`].
    pub fn check(&mut self, deadline: Deadline) -> Result<(), ReadError> {
        self.read_lines(&[], Pace::by(deadline)).map(drop)
    }

    /// Reads lines, and the superblock with them.
    fn read_lines(&mut self, at: &[u64], pace: Pace) -> Result<Vec<Words>, ReadError> {
        let mut batch = Batch::default();
        let first = batch.add(0, Outline::SUPERBLOCK_BYTES);
        // By address: pieces that follow each other are one to the network.
        let mut order: Vec<usize> = (0..at.len()).collect();
        order.sort_unstable_by_key(|&number| at[number]);
        let mut places = vec![0..0; at.len()];
        order.into_iter().for_each(|number| places[number] = batch.add(at[number], LINE_BYTES));
        self.remote.read(&batch.pieces, Landing::Lines, pace.of_read())?;
        let bytes = self.remote.landed(Landing::Lines);
        if superblock_of(&bytes[first]) != self.superblock {
            return Err(ReadError::Remade);
        }
        Ok(places.into_iter().map(|place| line(&bytes[place])).collect())
    }

    /// Finds the leading blocks of these that the region has, as far as time allows.
    ///
    /// # Errors
    /// As of [`Reader::check`], of each read.
    pub fn find(&mut self, hashes: &[BlockHash], pace: Pace) -> Result<Vec<Hit>, ReadError> {
        let mut hits = Vec::new();
        for hashes in hashes.chunks(HASHES_MAX) {
            let found = self.find_some(hashes, pace)?;
            let count = found.iter().take_while(|hit| hit.is_some()).count();
            hits.extend(found.into_iter().map_while(|hit| hit));
            if count < hashes.len() {
                break;
            }
        }
        Ok(hits)
    }

    /// Finds those of the blocks that the region has, as far as time allows.
    ///
    /// # Errors
    /// As of [`Reader::find`].
    pub fn find_all(&mut self, hashes: &[BlockHash], pace: Pace) -> Result<Vec<Hit>, ReadError> {
        let mut hits = Vec::new();
        for hashes in hashes.chunks(HASHES_MAX) {
            hits.extend(self.find_some(hashes, pace)?.into_iter().flatten());
        }
        Ok(hits)
    }

    fn find_some(&mut self, hashes: &[BlockHash], pace: Pace) -> Result<Vec<Option<Hit>>, ReadError> {
        let mut found = vec![None; hashes.len()];
        // Hashes that are neither found nor known to be absent.
        let mut open: Vec<usize> = (0..hashes.len()).collect();
        for step in 0..BUCKETS_MAX {
            open.retain(|&at| self.outline.buckets(hashes[at]).nth(step).is_some());
            if open.is_empty() || pace.until.passed() {
                break;
            }
            let places: Vec<u64> = open.iter().filter_map(|&at| self.outline.buckets(hashes[at]).nth(step)).collect();
            let buckets = self.read_lines(&places, pace)?;
            let mut named: Vec<(usize, BlockIndex)> = Vec::new();
            for (&at, bucket) in open.iter().zip(&buckets) {
                named.extend(self.outline.named(bucket, hashes[at]).map(|block| (at, block)));
            }
            self.follow(hashes, &named, &mut found, pace)?;
            let mut goes_on = buckets.iter().map(Outline::goes_on);
            open.retain(|&at| goes_on.next().unwrap_or(false) && found[at].is_none());
        }
        Ok(found)
    }

    /// Reads the descriptors that entries name. A forged bucket names seven blocks for a hash, so they
    /// are read in several steps.
    fn follow(
        &mut self,
        hashes: &[BlockHash],
        named: &[(usize, BlockIndex)],
        found: &mut [Option<Hit>],
        pace: Pace,
    ) -> Result<(), ReadError> {
        for named in named.chunks(HASHES_MAX) {
            if pace.until.passed() {
                break;
            }
            let places: Vec<u64> = named.iter().map(|(_, block)| self.outline.descriptor(*block)).collect();
            let lines = self.read_lines(&places, pace)?;
            for ((at, block), words) in named.iter().zip(lines) {
                if found[*at].is_none() {
                    found[*at] = self.outline.open(words, *block, hashes[*at]);
                }
            }
        }
        Ok(())
    }

    /// Reads blocks that [`Reader::find`] returned, as far as time allows. Calls `each` once for each block
    /// that was read or refused, in any order.
    ///
    /// # Errors
    /// As of [`Reader::check`], of each read. `each` was called for earlier blocks.
    pub fn fetch(
        &mut self,
        (namespace, readable): (&Namespace, &Readable),
        hits: &[Hit],
        pace: Pace,
        mut each: impl FnMut(&Hit, Fetched<'_>),
    ) -> Result<(), ReadError> {
        let mut hits = hits.iter().peekable();
        while hits.peek().is_some() && !pace.until.passed() {
            let (mut room, mut chosen) = (Room::default(), Vec::new());
            while let Some(hit) = hits.peek() {
                if !readable.may_read(hit.encoding) {
                    each(hit, Fetched::Unreadable);
                    hits.next();
                    continue;
                }
                let (at, length) = self.outline.payload(hit);
                let Some(row) = self.outline.namespace(hit).filter(|_| suits(namespace, hit.encoding, hit.length))
                else {
                    each(hit, Fetched::Wrong);
                    hits.next();
                    continue;
                };
                // At most a block of this namespace, as `suits` has checked.
                let length = usize::try_from(length).expect("64-bit");
                if !room.take(BLOCK_PIECES, length + LINE_BYTES + 2 * PAIR_BYTES) {
                    break;
                }
                chosen.push((**hit, at, length, row));
                hits.next();
                if length > crate::remote::BYTES_MAX / 2 {
                    break;
                }
            }
            let (batch, fetching) = self.plan(chosen);
            self.fetch_batch((namespace, readable), &batch, &fetching, pace, &mut each)?;
        }
        Ok(())
    }

    /// The pieces of blocks, given with address, length and namespace row. By address: pieces that follow each
    /// other are one to the network.
    fn plan(&self, mut chosen: Vec<(Hit, u64, usize, u64)>) -> (Batch, Vec<Fetching>) {
        chosen.sort_unstable_by_key(|(_, at, ..)| *at);
        let mut batch = Batch::default();
        let payloads: Vec<_> = chosen.iter().map(|(_, at, length, _)| batch.add(*at, *length)).collect();
        let mut pairs = |place: &dyn Fn(BlockIndex) -> Option<u64>| -> Vec<_> {
            chosen.iter().map(|(hit, ..)| place(hit.block).map(|at| batch.add(at, PAIR_BYTES))).collect()
        };
        let seals = pairs(&|block| self.outline.seal(block));
        let names = pairs(&|block| self.outline.names(block));
        // Blocks of one batch have few namespaces, mostly one.
        let mut rows: Vec<(u64, Range<usize>)> = Vec::new();
        let mut fetching = Vec::with_capacity(chosen.len());
        for ((((hit, _, _, row), payload), seal), names) in chosen.into_iter().zip(payloads).zip(seals).zip(names) {
            let known = rows.iter().find(|(at, _)| *at == row).map(|(_, place)| place.clone());
            let namespace = known.unwrap_or_else(|| {
                let place = batch.add(row, LINE_BYTES);
                rows.push((row, place.clone()));
                place
            });
            fetching.push(Fetching { hit, payload, seal, names, namespace });
        }
        (batch, fetching)
    }

    fn fetch_batch(
        &mut self,
        (namespace, readable): (&Namespace, &Readable),
        batch: &Batch,
        fetching: &[Fetching],
        pace: Pace,
        each: &mut impl FnMut(&Hit, Fetched<'_>),
    ) -> Result<(), ReadError> {
        if fetching.is_empty() {
            return Ok(());
        }
        self.remote.read(&batch.pieces, Landing::Payloads, pace.of_read())?;
        let places: Vec<u64> = fetching.iter().map(|one| self.outline.descriptor(one.hit.block)).collect();
        let again = self.read_lines(&places, pace)?;
        let bytes = self.remote.landed(Landing::Payloads);
        for (one, words) in fetching.iter().zip(again) {
            let hit = &one.hit;
            let is_there = self.outline.open(words, hit.block, hit.hash) == Some(*hit);
            if !is_there && !fault::makes(Mistake::RemoteRecheckSkipped) {
                each(hit, Fetched::Stale);
                continue;
            }
            let seal = one.seal.clone().map_or([0; 2], |place| pair(&bytes[place]));
            let names = one.names.clone().map_or([0; 2], |place| pair(&bytes[place]));
            let is_ours = self.outline.is_of(line(&bytes[one.namespace.clone()]), hit, namespace)
                || fault::makes(Mistake::RemoteNamespaceSkipped);
            let payload = &mut bytes[one.payload.clone()];
            let is_whole = self.outline.accept(hit, seal, payload) || fault::makes(Mistake::RemoteChecksumSkipped);
            let fetched = if !is_ours || !is_whole {
                Fetched::Wrong
            } else if readable.reads(hit.encoding, payload) {
                Fetched::Whole { names: Outline::names_of(names), payload }
            } else {
                Fetched::Unreadable
            };
            each(hit, fetched);
        }
        Ok(())
    }
}
