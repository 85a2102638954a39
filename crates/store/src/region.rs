//! [`PrefixStore`] over a pool in a region.

use crate::pending::{Desk, PendingFrames};
use crate::{BlockCodec, Loaded, NamespaceSpec, PrefixMatch, PrefixStore, SwappedBlock};
use cenote_base::{BlockHash, CacheSalt, Deadline, Health, TokenId};
use cenote_mem::Fabric;
use cenote_pool::{
    ColdBlock, Counter, Hit, Kept, Namespace, NamespaceRecord, NewBlock, Pin, Pool, PoolError, Publish, ReadOutcome,
    Shorter,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An engine's blocks in a region: one namespace of one pool.
pub struct RegionStore<F: Fabric> {
    pool: Pool<F>,
    namespace: Namespace,
    block_tokens: usize,
    /// Blocks are saved as this makes them; none: as the engine has them.
    codec: Option<Arc<BlockCodec>>,
    /// A block's frames, on their way into the region.
    frames: Vec<u8>,
    encoded: Encoded,
    /// Blocks to save before cold ones are looked at again.
    squeeze_pause: u32,
    desk: Arc<Desk>,
    /// What the last lookups found, so that loading does not look up again.
    found: HashMap<BlockHash, Hit>,
    holds: Holds<F>,
    next_ticket: u64,
}

/// What codecs came to.
#[derive(Default)]
struct Encoded {
    /// Bytes of frames that were saved.
    bytes: u64,
    /// Bytes of the blocks that they were made of.
    from_bytes: u64,
}

/// Holds by ticket; shared with whoever lets the expired ones go while the engine sleeps.
type Holds<F> = Arc<Mutex<BTreeMap<u64, Hold<F>>>>;

struct Hold<F: Fabric> {
    until: Deadline,
    /// Dropping a pin lets its block go.
    _pins: Vec<Pin<F>>,
}

/// What descriptors say of a payload of frames.
pub const FRAMES: u8 = 1;
/// Frames of a block that became cold: as short as it gets.
const COLD_FRAMES: u8 = 2;

/// Chunks whose blocks are made shorter together, at most, for one chunk to become free.
const SQUEEZED_CHUNKS_MAX: usize = 8;
/// Blocks that tell how much shorter all become.
const SAMPLED_BLOCKS: usize = 4;
/// What slots take beyond what is in them.
const SQUEEZE_SLACK: f64 = 0.04;
/// Blocks saved without room until it is tried again after there was nothing to gain.
const SQUEEZE_PAUSE: u32 = 64;

/// Lookups remembered at most; then the memory starts anew, which costs a second lookup and nothing else.
const FOUND_MAX: usize = 1 << 16;

impl<F: Fabric> RegionStore<F> {
    /// Opens (or enters) the namespace of `spec`.
    ///
    /// # Errors
    /// Its blocks do not fit into the region's chunks, or the namespace table is full.
    pub fn new(pool: Pool<F>, spec: &NamespaceSpec) -> Result<Self, PoolError> {
        let namespace = pool.namespace(&NamespaceRecord {
            fingerprint: spec.fingerprint(),
            label: spec.label.clone(),
            block_bytes: spec.block_bytes(),
            block_tokens: spec.block_tokens,
            num_layers: spec.num_layers,
        })?;
        Ok(Self {
            pool,
            namespace,
            block_tokens: spec.block_tokens as usize,
            codec: None,
            frames: Vec::new(),
            encoded: Encoded::default(),
            squeeze_pause: 0,
            desk: Arc::default(),
            found: HashMap::new(),
            holds: Holds::default(),
            next_ticket: 1,
        })
    }

    /// Saves blocks as a codec makes them from now on, and reads such blocks of others.
    ///
    /// # Panics
    /// The codec is for other pages than the namespace's: a bug of the caller.
    #[must_use]
    pub fn with_codec(mut self, codec: BlockCodec, spec: &NamespaceSpec) -> Self {
        assert!(codec.fits(2 * spec.num_layers as usize, spec.page_bytes as usize), "a codec for other pages");
        self.codec = Some(Arc::new(codec));
        self
    }

    /// Copies a block into pages, or its frames into memory of their own.
    fn read(&self, hit: &Hit, pages: &mut [&mut [u8]]) -> Loaded {
        if hit.encoding == 0 {
            return if self.pool.read(hit, pages) == ReadOutcome::Whole { Loaded::Whole } else { Loaded::Miss };
        }
        // What is longer than a block nobody published so, and is given no memory.
        let known = matches!(hit.encoding, FRAMES | COLD_FRAMES) && hit.length <= self.namespace.block_bytes;
        let known = known && !self.desk.is_bad(hit);
        let Some(codec) = self.codec.as_ref().filter(|_| known) else {
            self.desk.count_unreadable();
            return Loaded::Miss;
        };
        let mut frames = self.desk.buffer(usize::try_from(hit.length).unwrap_or(0));
        if self.pool.read(hit, &mut [&mut frames]) != ReadOutcome::Whole {
            self.desk.give_back(frames);
            return Loaded::Miss;
        }
        match codec.split(&frames) {
            Ok(pages) => {
                let (codec, desk) = (Arc::clone(codec), Arc::clone(&self.desk));
                Loaded::Pending(Box::new(PendingFrames { hit: *hit, frames, pages, codec, desk }))
            }
            Err(_) => {
                self.desk.count_unreadable();
                self.desk.give_back(frames);
                Loaded::Miss
            }
        }
    }

    /// Where there is no room for a payload, makes cold blocks shorter, so that none has to leave.
    fn squeeze(&mut self, length: u64) {
        let Some(codec) = self.codec.clone().filter(|codec| codec.has_cold()) else { return };
        if self.pool.has_room(&self.namespace, length) {
            return;
        }
        if self.squeeze_pause > 0 {
            self.squeeze_pause -= 1;
            return;
        }
        let mut chunks = self.pool.coldest(&self.namespace, SQUEEZED_CHUNKS_MAX, &|hit| hit.encoding != COLD_FRAMES);
        let mut pages = Vec::new();
        // How much shorter blocks become, by some of them; and so of how many chunks all fit into one chunk less.
        let sample: Vec<ColdBlock> = chunks.iter().flatten().take(SAMPLED_BLOCKS).copied().collect();
        let bytes = |blocks: &[ColdBlock]| blocks.iter().map(|block| block.hit.length).sum::<u64>() as f64;
        let mut payloads: Vec<Vec<u8>> = sample.iter().map(|block| self.shortened(&codec, block, &mut pages)).collect();
        let become_bytes: usize = payloads.iter().map(Vec::len).sum();
        let share = become_bytes as f64 / bytes(&sample).max(1.0) + SQUEEZE_SLACK;
        let chunk_bytes = self.pool.chunk_bytes() as f64;
        let mut sum = 0.0;
        let enough = chunks.iter().zip(0..).position(|(blocks, others)| {
            sum += share * bytes(blocks);
            sum <= f64::from(others) * chunk_bytes
        });
        let Some(last) = enough else {
            // Making them shorter would make no room, and blocks would leave nevertheless.
            self.squeeze_pause = SQUEEZE_PAUSE;
            return;
        };
        chunks.truncate(last + 1);
        let cold = chunks.concat();
        // The sample is of the first of them, so its blocks are not encoded again.
        payloads.extend(cold.iter().skip(sample.len()).map(|block| self.shortened(&codec, block, &mut pages)));
        let shorter = cold.iter().zip(&payloads);
        let shorter = shorter.map(|(of, payload)| Shorter { of, encoding: COLD_FRAMES, payload });
        self.pool.repack(&self.namespace, &shorter.collect::<Vec<_>>());
    }

    /// A cold block's payload from now on; empty: it leaves.
    fn shortened(&self, codec: &BlockCodec, block: &ColdBlock, pages: &mut Vec<u8>) -> Vec<u8> {
        let are_frames = block.hit.encoding != 0;
        // What is longer than a block nobody published so, and is given no memory.
        let bytes = if block.hit.length <= self.namespace.block_bytes { block.hit.length as usize } else { 0 };
        let (mut payload, mut frames) = (vec![0; bytes], Vec::new());
        if self.pool.read(&block.hit, &mut [&mut payload]) != ReadOutcome::Whole {
            return Vec::new();
        }
        match codec.encode_cold(&payload, are_frames, pages, &mut frames) {
            Ok(()) if frames.len() <= payload.len() => frames,
            // What others can read, or what would not become shorter, stays as it is if it says itself what it is.
            _ if are_frames => payload,
            _ => Vec::new(),
        }
    }

    /// Lets expired holds go when called, from any thread: call it about once a second.
    pub fn expirer(&self) -> impl Fn() + Send + use<F> {
        let holds = Arc::clone(&self.holds);
        move || lock(&holds).retain(|_, hold| !hold.until.passed())
    }
}

struct KeptBlock<F: Fabric>(Kept<F>);

impl<F: Fabric> SwappedBlock for KeptBlock<F> {
    fn swap_in(&self, pages: &mut [&mut [u8]]) -> bool {
        self.0.read(pages) == ReadOutcome::Whole
    }
}

/// A panic elsewhere leaves the map as it is, which is good enough: every entry stands alone.
fn lock<F: Fabric>(holds: &Holds<F>) -> MutexGuard<'_, BTreeMap<u64, Hold<F>>> {
    holds.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: Fabric> PrefixStore for RegionStore<F> {
    fn health(&self) -> Health {
        self.pool.health()
    }

    fn root(&self, salt: &CacheSalt) -> BlockHash {
        self.namespace.hasher.root(salt)
    }

    fn match_prefix(&mut self, root: Option<BlockHash>, tokens: &[TokenId]) -> PrefixMatch {
        let hashes = self.namespace.hasher.chain_from(root, tokens, self.block_tokens);
        let hits = self.pool.lookup(&hashes);
        if self.found.len() + hits.len() > FOUND_MAX {
            self.found.clear();
        }
        let num_matched = hits.len();
        self.found.extend(hits.into_iter().map(|hit| (hit.hash, hit)));
        PrefixMatch { hashes, num_matched }
    }

    fn load(&mut self, hash: BlockHash, pages: &mut [&mut [u8]]) -> Loaded {
        let remembered = self.found.remove(&hash);
        if let Some(hit) = remembered {
            let loaded = self.read(&hit, pages);
            if !matches!(loaded, Loaded::Miss) {
                return loaded;
            }
        }
        // What was remembered may have been evicted and published anew elsewhere: ask once more. The prompt's own lookup
        // was its use.
        let hits = self.pool.peek(&[hash]);
        hits.first().filter(|hit| Some(**hit) != remembered).map_or(Loaded::Miss, |hit| self.read(hit, pages))
    }

    fn save(&mut self, hash: BlockHash, depth: u32, pages: &[&[u8]]) -> bool {
        let mut outcome = None;
        // What is there already is not encoded again to find that out, and nothing is made shorter for it.
        let is_new = self.codec.is_some() && self.pool.peek(&[hash]).is_empty();
        if let Some(codec) = self.codec.clone().filter(|codec| is_new && !codec.saves_raw()) {
            codec.encode(pages, &mut self.frames);
            // What would not become smaller stays as it is.
            if (self.frames.len() as u64) < self.namespace.block_bytes {
                self.squeeze(self.frames.len() as u64);
                let published = self.pool.publish(
                    &NewBlock { encoding: FRAMES, ..NewBlock::new(&self.namespace, hash, depth) },
                    &[&self.frames],
                );
                if published == Publish::Published {
                    self.encoded.bytes += self.frames.len() as u64;
                    self.encoded.from_bytes += self.namespace.block_bytes;
                }
                outcome = Some(published);
            }
        }
        let outcome = outcome.unwrap_or_else(|| {
            if is_new {
                self.squeeze(self.namespace.block_bytes);
            }
            self.pool.publish(&NewBlock::new(&self.namespace, hash, depth), pages)
        });
        matches!(outcome, Publish::Published | Publish::Duplicate)
    }

    fn swap_out(&mut self, pages: &[&[u8]]) -> Option<Box<dyn SwappedBlock>> {
        // Never encoded: a request goes on with just the numbers that it had.
        let kept = self.pool.keep(&self.namespace, pages).ok()?;
        Some(Box::new(KeptBlock(kept)))
    }

    fn block_hash(&self, parent: Option<BlockHash>, tokens: &[TokenId]) -> BlockHash {
        self.namespace.hasher.block(parent, tokens)
    }

    fn hold(&mut self, hashes: &[BlockHash], ttl_ms: u64) -> u64 {
        let pins = self.pool.peek(hashes).iter().map_while(|hit| self.pool.pin(hit)).collect();
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        lock(&self.holds).insert(ticket, Hold { until: Deadline::after(Duration::from_millis(ttl_ms)), _pins: pins });
        ticket
    }

    fn release(&mut self, ticket: u64) {
        lock(&self.holds).remove(&ticket);
    }

    fn stats(&self) -> BTreeMap<String, f64> {
        let mut stats: BTreeMap<String, f64> =
            Counter::ALL.iter().map(|&c| (c.name().to_owned(), self.pool.counter(c) as f64)).collect();
        for (name, value) in [
            ("store_holds", lock(&self.holds).len() as u64),
            ("store_encoded_bytes_total", self.encoded.bytes),
            ("store_encoded_from_bytes_total", self.encoded.from_bytes),
            ("store_unreadable_total", self.desk.unreadable()),
        ] {
            stats.insert(name.to_owned(), value as f64);
        }
        stats
    }
}
