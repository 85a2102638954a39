//! [`PrefixStore`] over a pool in a region.

use crate::cold::ColdTier;
use crate::far::{FarFrames, FarPages, Swapped};
use crate::misses::{Miss, MissLog};
use crate::pending::{DecodeState, PendingFrames};
use crate::promoting::promote;
use crate::retained::Retained;
use crate::tenants::{RegionTenants, Tenants};
use crate::{
    BlockCodec, Computed, Computing, FarBlock, Loaded, NamespaceSpec, Naming, Peers, PrefixStore, Promotion, Readable,
    Wanted,
};
use cenote_base::engine::Retain;
use cenote_base::{BlockHash, Clock, Deadline, Health, TenantKey};
use cenote_mem::Fabric;
use cenote_policy::fetch::Prefill;
use cenote_pool::{
    ColdBlock, Counter, Hit, Namespace, NamespaceRecord, NewBlock, Pin, Pool, PoolError, Publish, ReadOutcome, Request,
    Shorter,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An engine's blocks in a region: one namespace of one pool, and one for each tenant.
pub struct RegionStore<F: Fabric> {
    pool: Pool<F>,
    namespace: Namespace,
    tenants: RegionTenants<F>,
    block_tokens: usize,
    page_bytes: usize,
    /// Codec for saved blocks; `None`: blocks are saved raw.
    codec: Option<Arc<BlockCodec>>,
    /// Buffer for the frames of a block to save.
    frames: Vec<u8>,
    encoded: Encoded,
    /// Saves to skip before the next attempt to squeeze cold blocks.
    squeeze_pause: u32,
    decoding: Arc<DecodeState>,
    /// Hits of the last lookups, so that `load` needs no second lookup.
    found: HashMap<BlockHash, Hit>,
    /// Clock of the holds.
    clock: Clock,
    holds: Holds<F>,
    next_ticket: u64,
    retained: Arc<Retained<F>>,
    /// L4: gets what is saved, and has blocks that the region lacks.
    cold: Option<Arc<ColdTier>>,
    /// Regions of other hosts, for blocks that neither the region nor L4 has.
    peers: Option<Arc<dyn Peers>>,
    /// Measured times of computing: what peers must beat.
    prefill: Prefill,
    misses: Option<MissLog>,
}

/// Totals of published encoded blocks.
#[derive(Default)]
struct Encoded {
    /// Bytes of their frames.
    bytes: u64,
    /// Bytes of the same blocks before encoding.
    from_bytes: u64,
}

/// Holds by ticket. Shared with the upkeep, which drops expired holds while the engine is idle.
type Holds<F> = Arc<Mutex<BTreeMap<u64, Hold<F>>>>;

struct Hold<F: Fabric> {
    until: Deadline,
    /// Dropping a pin makes its block evictable.
    _pins: Vec<Pin<F>>,
}

/// Encoding in the descriptor of a block saved as frames.
pub const FRAMES: u8 = 1;
/// Encoding in the descriptor of a cold block, re-encoded as short as possible.
pub(crate) const COLD_FRAMES: u8 = 2;

/// Most chunks with blocks that are shortened together to free one chunk.
const SQUEEZED_CHUNKS_MAX: usize = 8;
/// Blocks in the sample that predicts the shortened size.
const SAMPLED_BLOCKS: usize = 4;
/// Overhead of slots, as a share of the blocks' bytes before shortening.
const SQUEEZE_SLACK: f64 = 0.04;
/// Saves to skip after an attempt at squeezing that could free no chunk.
const SQUEEZE_PAUSE: u32 = 64;

/// Most remembered lookups. Beyond this all are forgotten, which costs second lookups only.
const FOUND_MAX: usize = 1 << 16;

impl<F: Fabric> RegionStore<F> {
    /// Opens the namespace of `spec`, or registers it. Holds expire by `clock`.
    ///
    /// # Errors
    /// The namespace's blocks do not fit into the region's chunks, or the namespace table is full.
    pub fn new(pool: Pool<F>, spec: &NamespaceSpec, clock: Clock) -> Result<Self, PoolError> {
        let namespace = pool.namespace(&record_of(spec))?;
        Ok(Self {
            tenants: RegionTenants::new(pool.clone(), spec.clone(), clock),
            retained: Arc::new(Retained::new(pool.clone())),
            pool,
            namespace,
            block_tokens: spec.block_tokens as usize,
            page_bytes: spec.page_bytes as usize,
            codec: None,
            frames: Vec::new(),
            encoded: Encoded::default(),
            squeeze_pause: 0,
            decoding: Arc::default(),
            found: HashMap::new(),
            clock,
            holds: Holds::default(),
            next_ticket: 1,
            cold: None,
            peers: None,
            prefill: Prefill::default(),
            misses: None,
        })
    }

    /// Sets the codec that saves blocks from now on and reads encoded blocks.
    ///
    /// # Panics
    /// The codec is for other pages than the namespace's (a bug in the caller).
    #[must_use]
    pub fn with_codec(mut self, codec: BlockCodec, spec: &NamespaceSpec) -> Self {
        assert!(codec.fits(2 * spec.num_layers as usize, spec.page_bytes as usize), "a codec for other pages");
        self.codec = Some(Arc::new(codec));
        self.open_cold();
        self
    }

    /// Sets the tier below the region.
    #[must_use]
    pub fn with_cold(mut self, cold: Arc<ColdTier>) -> Self {
        self.cold = Some(cold);
        self.open_cold();
        self
    }

    fn open_cold(&self) {
        if let Some(cold) = &self.cold {
            cold.open_for(&self.namespace, self.readable());
            self.tenants.open_in(Arc::clone(cold), self.readable());
        }
    }

    /// Sets the regions of other hosts.
    #[must_use]
    pub fn with_peers(mut self, peers: Arc<dyn Peers>) -> Self {
        self.peers = Some(peers);
        self
    }

    fn readable(&self) -> Readable {
        Readable::of(self.codec.clone())
    }

    /// Logs and counts from now on why the region lacks blocks of requests.
    ///
    /// # Errors
    /// The operating system cannot create a thread.
    pub fn with_miss_log(mut self) -> std::io::Result<Self>
    where
        F: 'static,
    {
        self.misses = Some(MissLog::start(self.pool.clone(), self.clock)?);
        Ok(self)
    }

    /// Calls `opened` with each namespace that is opened for a tenant from now on.
    #[must_use]
    pub fn on_tenant(self, opened: impl Fn(&NamespaceSpec) + Send + Sync + 'static) -> Self {
        self.tenants.tell(Arc::new(opened));
        self
    }

    /// The namespace of a tenant's blocks, or the engine's own; `None`: the tenant has none.
    fn namespace_of(&self, of: Option<TenantKey>) -> Option<Namespace> {
        of.map_or_else(|| Some(self.namespace.clone()), |key| self.tenants.get(&key))
    }

    /// Copies a raw block into `pages`, or the frames of an encoded one into a buffer.
    fn read(&self, hit: &Hit, pages: &mut [&mut [u8]]) -> Loaded {
        if hit.encoding == 0 {
            let begin_ns = self.clock.now_ns();
            if self.pool.read(hit, pages) != ReadOutcome::Whole {
                return Loaded::Miss;
            }
            self.pool.count(Counter::LoadedBytes, hit.length);
            self.pool.count(Counter::LoadedNs, self.clock.now_ns().saturating_sub(begin_ns));
            return Loaded::Whole;
        }
        self.read_frames(hit).map_or(Loaded::Miss, |frames| Loaded::Pending(Box::new(frames)))
    }

    /// Copies the frames of an encoded block out and splits them.
    fn read_frames(&self, hit: &Hit) -> Option<PendingFrames> {
        // A length above the block size is corrupt; do not allocate for it.
        let known = self.readable().may_read(hit.encoding) && hit.length <= self.namespace.block_bytes;
        let known = known && !self.decoding.is_bad(hit);
        let Some(codec) = self.codec.as_ref().filter(|_| known) else {
            self.decoding.count_unreadable();
            return None;
        };
        let mut frames = self.decoding.buffer(usize::try_from(hit.length).unwrap_or(0));
        if self.pool.read(hit, &mut [&mut frames]) != ReadOutcome::Whole {
            self.decoding.give_back(frames);
            return None;
        }
        let Ok(pages) = codec.split(&frames) else {
            self.decoding.count_unreadable();
            self.decoding.give_back(frames);
            return None;
        };
        let (codec, decoding) = (Arc::clone(codec), Arc::clone(&self.decoding));
        Some(PendingFrames { hit: *hit, frames, pages, codec, decoding })
    }

    /// Reads a block once, to check it, and prepares to read its pages again.
    fn open_hit(&self, hit: &Hit, parts: usize) -> Option<Box<dyn FarBlock>> {
        if hit.encoding != 0 {
            let frames = self.read_frames(hit)?;
            return Some(Box::new(FarFrames::new(&self.pool, frames, parts)?));
        }
        if hit.length != self.namespace.block_bytes {
            return None;
        }
        let mut payload = self.decoding.buffer(usize::try_from(hit.length).unwrap_or(0));
        let whole = self.pool.read(hit, &mut [&mut payload]) == ReadOutcome::Whole;
        let far = whole.then(|| FarPages::new(&self.pool, hit, &payload, self.page_bytes / parts)).flatten();
        self.decoding.give_back(payload);
        Some(Box::new(far?))
    }

    /// Saves a block with the codec. Encoding takes far longer than the fences that blocks could
    /// share, and squeezing needs the length of each block.
    fn encode_and_save(&mut self, namespace: &Namespace, block: &Computed<'_>) -> Publish {
        let Computed { hash, depth, pages } = *block;
        // A block that is in the pool is neither encoded nor worth squeezing others for.
        let is_new = !self.pool.has(hash);
        if let Some(codec) = self.codec.clone().filter(|codec| is_new && !codec.saves_raw()) {
            codec.encode(depth, pages, &mut self.frames);
            // A block that encoding does not shorten is saved raw.
            if (self.frames.len() as u64) < self.namespace.block_bytes {
                self.squeeze(namespace, self.frames.len() as u64);
                let published = self
                    .pool
                    .publish(&NewBlock { encoding: FRAMES, ..NewBlock::new(namespace, hash, depth) }, &[&self.frames]);
                if published == Publish::Published {
                    self.encoded.bytes += self.frames.len() as u64;
                    self.encoded.from_bytes += self.namespace.block_bytes;
                }
                return published;
            }
        }
        if is_new {
            self.squeeze(namespace, namespace.block_bytes);
        }
        self.pool.publish(&NewBlock::new(namespace, hash, depth), pages)
    }

    /// If a payload of `length` bytes has no space, shortens cold blocks of its namespace, so that none
    /// must be evicted.
    fn squeeze(&mut self, namespace: &Namespace, length: u64) {
        let Some(codec) = self.codec.clone().filter(|codec| codec.has_cold()) else { return };
        if self.pool.has_room(namespace, length) {
            return;
        }
        if self.squeeze_pause > 0 {
            self.squeeze_pause -= 1;
            return;
        }
        let mut chunks = self.pool.coldest(namespace, SQUEEZED_CHUNKS_MAX, &|hit| hit.encoding != COLD_FRAMES);
        let mut pages = Vec::new();
        // A sample predicts the shortened size. The prediction gives the number of chunks with
        // blocks that fit into one chunk less.
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
            // Shortening would free no chunk, so blocks would be evicted anyway.
            self.squeeze_pause = SQUEEZE_PAUSE;
            return;
        };
        chunks.truncate(last + 1);
        let cold = chunks.concat();
        // The sample is the first of these blocks, so do not encode it again.
        payloads.extend(cold.iter().skip(sample.len()).map(|block| self.shortened(&codec, block, &mut pages)));
        let shorter = cold.iter().zip(&payloads);
        let shorter = shorter.map(|(of, payload)| Shorter { of, encoding: COLD_FRAMES, payload });
        self.pool.repack(namespace, &shorter.collect::<Vec<_>>());
    }

    /// The new payload of a cold block; empty: the block is evicted.
    fn shortened(&self, codec: &BlockCodec, block: &ColdBlock, pages: &mut Vec<u8>) -> Vec<u8> {
        let are_frames = block.hit.encoding != 0;
        // A length above the block size is corrupt; do not allocate for it.
        let bytes = if block.hit.length <= self.namespace.block_bytes { block.hit.length as usize } else { 0 };
        let (mut payload, mut frames) = (vec![0; bytes], Vec::new());
        if self.pool.read(&block.hit, &mut [&mut payload]) != ReadOutcome::Whole {
            return Vec::new();
        }
        match codec.encode_cold(block.depth, &payload, are_frames, pages, &mut frames) {
            Ok(()) if frames.len() <= payload.len() => frames,
            // Frames that this codec cannot decode or shorten stay as they are: they describe
            // themselves. Raw pages do not, so they are evicted.
            _ if are_frames => payload,
            _ => Vec::new(),
        }
    }

    /// The blocks that the region lacks, behind those that it has.
    fn missing<'a>(&self, names: &'a [BlockHash]) -> &'a [BlockHash] {
        &names[self.pool.peek(names).len()..]
    }

    /// Returns a function that drops expired holds and marks retained blocks as used, callable from any
    /// thread. Call it about once a second.
    pub fn upkeep(&self) -> impl Fn() + Send + use<F> {
        let holds = Arc::clone(&self.holds);
        let (retained, clock) = (Arc::clone(&self.retained), self.clock);
        move || {
            lock(&holds).retain(|_, hold| !hold.until.passed());
            retained.keep_up(clock.now_ns());
        }
    }
}

/// The row of a namespace.
pub(crate) fn record_of(spec: &NamespaceSpec) -> NamespaceRecord {
    NamespaceRecord {
        fingerprint: spec.fingerprint(),
        label: spec.label.clone(),
        block_bytes: spec.block_bytes(),
        block_tokens: spec.block_tokens,
        num_layers: spec.num_layers,
    }
}

/// A panic elsewhere leaves the map consistent, because its entries are independent.
fn lock<F: Fabric>(holds: &Holds<F>) -> MutexGuard<'_, BTreeMap<u64, Hold<F>>> {
    holds.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: Fabric> PrefixStore for RegionStore<F> {
    fn health(&self) -> Health {
        let mut reasons = self.pool.health().reasons().to_vec();
        reasons.extend(self.pool.troubles());
        reasons.extend(self.cold.as_ref().and_then(|cold| cold.trouble()));
        reasons.extend(self.peers.as_ref().and_then(|peers| peers.trouble()));
        if reasons.is_empty() { Health::Ok } else { Health::Degraded { reasons } }
    }

    fn naming(&self) -> Naming {
        let seed = self.pool.superblock().config.seed;
        Naming::new(self.namespace.hasher.clone(), self.block_tokens).with_tenants(seed, self.tenants.spec().clone())
    }

    fn tenants(&self) -> Option<Box<dyn Tenants>> {
        Some(Box::new(self.tenants.clone()))
    }

    fn match_prefix(&mut self, names: &[BlockHash]) -> usize {
        let hits = self.pool.find(names);
        if self.found.len() + hits.len() > FOUND_MAX {
            self.found.clear();
        }
        let num_matched = hits.len();
        self.found.extend(hits.into_iter().map(|hit| (hit.hash, hit)));
        num_matched
    }

    fn count_lookup(&mut self, blocks: usize, found: usize) {
        self.pool.count_lookup(blocks, found);
    }

    fn record_request(&mut self, of: Option<TenantKey>, names: &[BlockHash], tokens: u32) -> Option<u64> {
        self.pool.record_request(&self.namespace_of(of)?, &Request { names, above: 0, tokens })
    }

    fn record_answer(&mut self, number: u64, tokens: u32) {
        self.pool.record_answer(number, tokens);
    }

    fn missed(&mut self, miss: Miss) {
        if let Some(log) = &self.misses {
            // A tenant without a part has no row of its own, and its names are in no part.
            let row = self.namespace_of(miss.tenant).unwrap_or_else(|| self.namespace.clone()).id;
            log.ask(miss, row);
        }
    }

    fn promotable(&self, of: Option<TenantKey>, names: &[BlockHash]) -> usize {
        let Some(namespace) = self.namespace_of(of) else { return 0 };
        let missing = self.missing(names);
        let listed = self.cold.as_ref().map_or(0, |cold| cold.count(&namespace, missing));
        let asked = self.cold.as_ref().map_or(0, |cold| cold.may_have(&namespace, missing));
        let asks_peers = listed < missing.len() && self.peers.as_ref().is_some_and(|peers| peers.may_have());
        listed + usize::from(asks_peers || asked > listed)
    }

    fn promote(&mut self, of: Option<TenantKey>, names: &[BlockHash]) -> Option<Promotion> {
        let namespace = self.namespace_of(of)?;
        let missing = self.missing(names);
        let block_tokens = self.block_tokens as u64;
        let before_tokens = (names.len() - missing.len()) as u64 * block_tokens;
        let computing = Computing { prefill: self.prefill, block_tokens, before_tokens };
        let tiers = (self.cold.as_deref(), self.peers.as_deref());
        promote(tiers, &namespace, missing, &self.readable(), Wanted::Leading, &computing)
    }

    fn has_computed(&mut self, tokens: u64, pairs: u64, ns: u64) {
        self.prefill.has_computed(tokens, pairs, ns);
        self.pool.count(Counter::ComputedTokens, tokens);
        self.pool.count(Counter::ComputedNs, ns);
        if let Some(cold) = &self.cold {
            cold.has_computed(tokens, ns);
        }
    }

    fn load(&mut self, hash: BlockHash, pages: &mut [&mut [u8]]) -> Loaded {
        let remembered = self.found.remove(&hash);
        if let Some(hit) = remembered {
            let loaded = self.read(&hit, pages);
            if !matches!(loaded, Loaded::Miss) {
                return loaded;
            }
        }
        // The block may have been evicted and published again elsewhere: look it up once more.
        // `peek` does not count as a use; the prompt's lookup did.
        let hits = self.pool.peek(&[hash]);
        hits.first().filter(|hit| Some(**hit) != remembered).map_or(Loaded::Miss, |hit| self.read(hit, pages))
    }

    fn save_all(&mut self, of: Option<TenantKey>, blocks: &[Computed<'_>]) -> usize {
        let Some(namespace) = self.namespace_of(of) else { return 0 };
        let is_saved = |outcome: &Publish| matches!(outcome, Publish::Published | Publish::Duplicate);
        let saved = if self.codec.is_some() {
            blocks.iter().take_while(|block| is_saved(&self.encode_and_save(&namespace, block))).count()
        } else {
            let new = |block: &Computed<'_>| NewBlock::new(&namespace, block.hash, block.depth);
            let new: Vec<_> = blocks.iter().map(|block| (new(block), block.pages)).collect();
            let outcomes = self.pool.publish_all(&new);
            outcomes.iter().take_while(|outcome| is_saved(outcome)).count()
        };
        if let Some(cold) = &self.cold {
            cold.offer(&namespace, blocks[..saved].iter().map(|block| block.hash));
        }
        saved
    }

    fn swap_out(&mut self, of: Option<TenantKey>, parts: &[&[u8]]) -> Option<Box<dyn FarBlock>> {
        // Never encoded: the request must continue with exactly the same values.
        // It has no name, so the engine's own part takes what a tenant that is gone still computes.
        let namespace = self.namespace_of(of).unwrap_or_else(|| self.namespace.clone());
        let kept = self.pool.swap_out(&namespace, parts).ok()?;
        Some(Box::new(Swapped(kept)))
    }

    fn open(&mut self, hash: BlockHash, parts: usize) -> Option<Box<dyn FarBlock>> {
        let remembered = self.found.remove(&hash);
        let opened = remembered.and_then(|hit| self.open_hit(&hit, parts));
        opened.or_else(|| {
            let hits = self.pool.peek(&[hash]);
            hits.first().filter(|hit| Some(**hit) != remembered).and_then(|hit| self.open_hit(hit, parts))
        })
    }

    fn is_exact(&self) -> bool {
        self.codec.as_ref().is_none_or(|codec| codec.saves_raw())
    }

    fn hold(&mut self, hashes: &[BlockHash], ttl_ms: u64) -> u64 {
        let pins = self.pool.peek(hashes).iter().map_while(|hit| self.pool.pin(hit)).collect();
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let until = self.clock.after(Duration::from_millis(ttl_ms));
        lock(&self.holds).insert(ticket, Hold { until, _pins: pins });
        ticket
    }

    fn release(&mut self, ticket: u64) {
        lock(&self.holds).remove(&ticket);
    }

    fn retain(&mut self, of: Option<TenantKey>, names: &[BlockHash], retain: &Retain) {
        self.retained.ask(of, names, self.namespace.block_bytes, retain, self.clock.now_ns());
    }

    fn stats(&self) -> BTreeMap<String, f64> {
        let mut stats: BTreeMap<String, f64> =
            Counter::ALL.iter().map(|&c| (c.name().to_owned(), self.pool.counter(c) as f64)).collect();
        for (name, value) in [
            ("store_holds", lock(&self.holds).len() as u64),
            ("store_encoded_bytes_total", self.encoded.bytes),
            ("store_encoded_from_bytes_total", self.encoded.from_bytes),
            ("store_unreadable_total", self.decoding.unreadable()),
        ] {
            stats.insert(name.to_owned(), value as f64);
        }
        stats.extend(self.retained.stats().map(|(name, value)| (name.to_owned(), value as f64)));
        stats.extend(self.misses.iter().flat_map(MissLog::stats));
        stats.extend(self.cold.iter().flat_map(|cold| cold.stats()));
        stats.extend(self.peers.iter().flat_map(|peers| peers.stats()));
        stats
    }
}
