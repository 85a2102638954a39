//! Offsets of all areas of a region (docs/internals/format.md#areas). One function computes them
//! from the configuration, so that two processes cannot disagree.

use crate::error::PoolError;
use crate::region::config::{Design, HostsLock, PoolConfig};
use cenote_base::BlockIndex;
use cenote_base::seal::Seal;
use cenote_base::units::ByteSize;
use cenote_mem::offset::LINE;

/// Index shards. Locks between hosts have numbers: those of the shards, then the chunk lock and the
/// table lock, then those of users.
pub const SHARDS: u64 = 64;
/// Locks that the pool itself uses between hosts.
pub const POOL_LOCKS: u64 = SHARDS + 2;
/// The first locks of users. They need no allocation: programs agree on their numbers.
pub const FIXED_LOCKS: u64 = 8;
/// Locks that users allocate and free.
pub const GIVEN_LOCKS: u64 = 1024;
/// Locks for users of the region.
pub const USER_LOCKS: u64 = FIXED_LOCKS + GIVEN_LOCKS;
/// Locks between hosts.
pub const LOCKS: u64 = POOL_LOCKS + USER_LOCKS;
/// Mutexes of a host: membership, heap, tables, chunks, and one for each shard and user lock.
pub const MUTEXES: u32 = 4 + (SHARDS + USER_LOCKS) as u32;
/// Pins in a hazard line; its last word is the worker's epoch.
pub const PINS_PER_LINE: u32 = 7;
/// Most rows of the namespace table. Words and bits by namespace exist for so many.
pub const NAMESPACES: u64 = 256;
/// Rows of the object table.
pub const OBJECTS: u64 = 1024;
/// Words of a line.
pub const LINE_WORDS: u64 = LINE / 8;
/// Bounds of the lines in a host's ring of hits. Between them one line for 64 descriptors: eight
/// hits.
const HIT_LINES_MIN: u64 = 16;
const HIT_LINES_MAX: u64 = 8192;
/// Most chunks that a host offers at once.
pub const OFFERS_MAX: u64 = 1024;
/// Sketches of a host: of each window the current one and the one before it, by turns.
pub const SKETCHES: u64 = 6;
/// Lines of a sketch: a head, then a byte for each register.
pub const SKETCH_LINES: u64 = 1 + cenote_policy::distinct::REGISTERS as u64 / LINE;
/// Longest region: descriptors have 40 bits for a payload's line. Up to it no sum of the layout
/// overflows.
pub const REGION_BYTES_MAX: u64 = 1 << 46;
/// Bytes of the superblock.
pub const SUPERBLOCK_BYTES: u64 = 4096;

/// The error text for a region of so many bytes.
pub fn too_long(region_bytes: u64) -> String {
    format!("a region of {region_bytes} bytes; the format has room for {}", ByteSize(REGION_BYTES_MAX))
}

/// Byte offsets of the areas and the counts that follow from the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub region_bytes: u64,
    pub chunk_bytes: u64,
    pub descriptors_per_chunk: u64,
    pub num_chunks: u64,
    pub num_buckets: u64,
    pub max_hosts: u64,
    pub workers_per_host: u64,
    pub hazard_lines_per_worker: u64,
    pub records_per_host: u64,
    pub events_per_host: u64,
    pub removals_per_host: u64,
    pub requests_per_host: u64,
    /// Rows of the namespace table.
    pub num_namespaces: u64,
    /// Lines of each host's ring of hits; 0: the region's hosts share nothing to evict.
    pub hit_lines_per_host: u64,
    /// Lines of each host's offer board.
    pub offer_lines_per_host: u64,
    /// Bytes of a host's lines for one lock.
    lock_bytes: u64,
    hosts: u64,
    marks: u64,
    workers: u64,
    hazards: u64,
    locks: u64,
    records: u64,
    events: u64,
    removals: u64,
    requests: u64,
    sketches: u64,
    namespaces: u64,
    usage: u64,
    objects: u64,
    given_locks: u64,
    opened: u64,
    demands: u64,
    hits: u64,
    offers: u64,
    chunks: u64,
    descriptors: u64,
    pieces: u64,
    recency: u64,
    names: u64,
    keys: u64,
    seals: u64,
    buckets: u64,
    plain: u64,
    data: u64,
}

impl Layout {
    /// The layout of a region of `region_bytes`.
    pub fn new(config: &PoolConfig, region_bytes: u64) -> Result<Self, PoolError> {
        config.validate()?;
        if region_bytes > REGION_BYTES_MAX {
            return Err(PoolError::Config(too_long(region_bytes)));
        }
        let layout = |num_chunks| Self::with_chunks(config, region_bytes, num_chunks);
        // No area shrinks when a chunk is added, so the counts that fit are those up to the
        // largest.
        let (mut fits, mut exceeds) = (0, region_bytes / config.chunk_bytes + 1);
        while fits + 1 < exceeds {
            let middle = fits.midpoint(exceeds);
            let there = layout(middle).end() <= region_bytes;
            *(if there { &mut fits } else { &mut exceeds }) = middle;
        }
        if fits == 0 {
            return Err(PoolError::Config(format!(
                "{} is too small for a region with {} chunks; give it at least {}",
                ByteSize(region_bytes),
                ByteSize(config.chunk_bytes),
                ByteSize(layout(1).end())
            )));
        }
        let layout = layout(fits);
        // Host-local memory links blocks by 32-bit words; the format itself has room for 2^40.
        if layout.num_descriptors() >= u64::from(u32::MAX) - 8 {
            return Err(PoolError::Config(
                "the region would have over four billion blocks; raise the smallest block".to_owned(),
            ));
        }
        Ok(layout)
    }

    /// First byte behind the last chunk.
    const fn end(&self) -> u64 {
        self.data + self.data_bytes()
    }

    fn with_chunks(config: &PoolConfig, region_bytes: u64, num_chunks: u64) -> Self {
        let max_hosts = u64::from(config.max_hosts);
        let workers_per_host = u64::from(config.workers_per_host);
        let hazard_lines_per_worker = u64::from(config.hazard_lines_per_worker);
        let records_per_host = u64::from(config.records_per_host);
        let events_per_host = u64::from(config.events_per_host);
        let removals_per_host = u64::from(config.removals_per_host);
        let requests_per_host = u64::from(config.requests_per_host);
        let sketches_per_host = if requests_per_host > 0 { SKETCHES } else { 0 };
        let num_namespaces = u64::from(config.namespaces);
        let descriptors_per_chunk = config.chunk_bytes / config.min_block_bytes;
        let num_descriptors = num_chunks * descriptors_per_chunk;
        // At most half of the entries are used, so a lookup rarely leaves its home bucket.
        let num_buckets = (num_descriptors * 2).div_ceil(7).next_power_of_two().max(SHARDS);
        let shares = max_hosts > 1 && config.design == Design::Cenote;
        let hit_lines_per_host = if shares { (num_descriptors / 64).clamp(HIT_LINES_MIN, HIT_LINES_MAX) } else { 0 };
        let offer_lines_per_host = if shares { num_chunks.min(OFFERS_MAX).div_ceil(LINE_WORDS) } else { 0 };
        let recency_bytes = if shares { num_chunks * Self::recency_bytes(descriptors_per_chunk) } else { 0 };
        // The bakery's line, and the grant line of TraCT's manager.
        let lock_bytes = if config.hosts_lock == HostsLock::Manager { 2 * LINE } else { LINE };
        let plain_lines = if config.design == Design::Plain { num_descriptors + 1 } else { 0 };
        let is_sealed = config.seal != Seal::None;
        let mut end = SUPERBLOCK_BYTES;
        let mut area = |bytes: u64| {
            let start = end.next_multiple_of(4096);
            end = start + bytes;
            start
        };
        Self {
            region_bytes,
            chunk_bytes: config.chunk_bytes,
            descriptors_per_chunk,
            num_chunks,
            num_buckets,
            max_hosts,
            workers_per_host,
            hazard_lines_per_worker,
            records_per_host,
            events_per_host,
            removals_per_host,
            requests_per_host,
            num_namespaces,
            hit_lines_per_host,
            offer_lines_per_host,
            lock_bytes,
            hosts: area(max_hosts * LINE),
            marks: area(max_hosts * 8 * LINE),
            workers: area(max_hosts * workers_per_host * LINE),
            hazards: area(max_hosts * workers_per_host * hazard_lines_per_worker * LINE),
            locks: area(max_hosts * LOCKS * lock_bytes),
            records: area(max_hosts * records_per_host * LINE),
            events: area(max_hosts * events_per_host * LINE),
            removals: area(max_hosts * removals_per_host * LINE),
            requests: area(max_hosts * requests_per_host * LINE),
            sketches: area(max_hosts * sketches_per_host * SKETCH_LINES * LINE),
            namespaces: area(num_namespaces * 3 * LINE),
            usage: area(max_hosts * NAMESPACES * 8),
            objects: area(OBJECTS * 2 * LINE),
            given_locks: area(GIVEN_LOCKS / 8),
            opened: area(max_hosts * workers_per_host * LINE),
            demands: area(max_hosts * LINE),
            hits: area(max_hosts * hit_lines_per_host * LINE),
            offers: area(max_hosts * offer_lines_per_host * LINE),
            chunks: area(num_chunks * LINE),
            descriptors: area(num_descriptors * LINE),
            pieces: area((num_descriptors * 8).next_multiple_of(LINE)),
            recency: area(recency_bytes),
            names: area(if events_per_host > 0 { num_chunks * Self::names_bytes(descriptors_per_chunk) } else { 0 }),
            keys: area(if is_sealed { LINE } else { 0 }),
            seals: area(if is_sealed { num_chunks * Self::names_bytes(descriptors_per_chunk) } else { 0 }),
            buckets: area(num_buckets * LINE),
            plain: area(plain_lines * LINE),
            data: end.next_multiple_of(config.chunk_bytes.min(2 << 20)),
        }
    }

    #[inline]
    pub const fn num_descriptors(&self) -> u64 {
        self.num_chunks * self.descriptors_per_chunk
    }

    pub const fn host(&self, host: u64) -> u64 {
        self.hosts + host * LINE
    }

    /// The word in which `observer` records the last life of `host` that it declared dead.
    pub const fn mark(&self, observer: u64, host: u64) -> u64 {
        self.marks + observer * 8 * LINE + host * 8
    }

    /// The line that `host` writes for a lock between hosts; if there is a manager, its slot is in
    /// the next line.
    pub const fn lock(&self, lock: u64, host: u64) -> u64 {
        self.locks + (host * LOCKS + lock) * self.lock_bytes
    }

    /// Words with a bit for each lock that users allocate.
    pub fn given_locks(&self) -> impl Iterator<Item = u64> + use<> {
        let start = self.given_locks;
        (0..GIVEN_LOCKS / 64).map(move |word| start + word * 8)
    }

    /// Areas that only `host` writes, as (start, end). Refreshes of other hosts' lines skip them.
    pub const fn written_by(&self, host: u64) -> [(u64, u64); 15] {
        [
            (self.host(host), self.host(host + 1)),
            (self.mark(host, 0), self.mark(host + 1, 0)),
            (self.worker(host, 0), self.worker(host + 1, 0)),
            (self.hazard(host, 0, 0), self.hazard(host + 1, 0, 0)),
            (self.lock(0, host), self.lock(0, host + 1)),
            (self.record(host, 0), self.record(host + 1, 0)),
            (self.event(host, 0), self.event(host + 1, 0)),
            (self.removal(host, 0), self.removal(host + 1, 0)),
            (self.request(host, 0), self.request(host + 1, 0)),
            if self.has_requests() { (self.sketch(host, 0), self.sketch(host + 1, 0)) } else { (0, 0) },
            (self.usage(host, 0), self.usage(host + 1, 0)),
            (self.opened(host, 0), self.opened(host + 1, 0)),
            (self.demand(host), self.demand(host + 1)),
            (self.hit_line(host, 0), self.hit_line(host + 1, 0)),
            (self.offer_line(host, 0), self.offer_line(host + 1, 0)),
        ]
    }

    pub const fn worker(&self, host: u64, slot: u64) -> u64 {
        self.workers + (host * self.workers_per_host + slot) * LINE
    }

    pub const fn hazard(&self, host: u64, slot: u64, line: u64) -> u64 {
        self.hazards + ((host * self.workers_per_host + slot) * self.hazard_lines_per_worker + line) * LINE
    }

    /// A line of a host's flight recorder.
    pub const fn record(&self, host: u64, position: u64) -> u64 {
        self.records + (host * self.records_per_host + position) * LINE
    }

    /// A line of a host's event log.
    pub const fn event(&self, host: u64, position: u64) -> u64 {
        self.events + (host * self.events_per_host + position) * LINE
    }

    /// A line of a host's ring of removed blocks.
    pub const fn removal(&self, host: u64, position: u64) -> u64 {
        self.removals + (host * self.removals_per_host + position) * LINE
    }

    /// A line of a host's record of requests.
    pub const fn request(&self, host: u64, position: u64) -> u64 {
        self.requests + (host * self.requests_per_host + position) * LINE
    }

    /// Whether the region keeps a record of requests.
    #[inline]
    pub const fn has_requests(&self) -> bool {
        self.requests_per_host > 0
    }

    /// The head of one of a host's sketches of distinct blocks, if the region keeps a record of requests.
    pub const fn sketch(&self, host: u64, number: u64) -> u64 {
        self.sketches + (host * SKETCHES + number) * SKETCH_LINES * LINE
    }

    pub const fn namespace(&self, row: u64) -> u64 {
        self.namespaces + row * 3 * LINE
    }

    /// The third line of a namespace's row.
    pub const fn quota(&self, row: u64) -> u64 {
        self.namespace(row) + 2 * LINE
    }

    /// The word in which a host publishes the bytes that a namespace takes on it.
    pub const fn usage(&self, host: u64, namespace: u64) -> u64 {
        self.usage + (host * NAMESPACES + namespace) * 8
    }

    pub const fn object(&self, row: u64) -> u64 {
        self.objects + row * 2 * LINE
    }

    /// The line with the namespaces that a worker has open.
    pub const fn opened(&self, host: u64, slot: u64) -> u64 {
        self.opened + (host * self.workers_per_host + slot) * LINE
    }

    /// The line in which a host tells the others about its use of space.
    pub const fn demand(&self, host: u64) -> u64 {
        self.demands + host * LINE
    }

    /// A line of a host's ring of hits.
    pub const fn hit_line(&self, host: u64, line: u64) -> u64 {
        self.hits + (host * self.hit_lines_per_host + line) * LINE
    }

    /// A line of a host's offer board.
    pub const fn offer_line(&self, host: u64, line: u64) -> u64 {
        self.offers + (host * self.offer_lines_per_host + line) * LINE
    }

    /// Most chunks that a host offers at once.
    pub const fn offers_max(&self) -> u64 {
        self.offer_lines_per_host * LINE_WORDS
    }

    /// Whether the region's hosts share space and recency.
    #[inline]
    pub const fn is_shared(&self) -> bool {
        self.hit_lines_per_host > 0
    }

    /// Bytes of the recency words of a chunk's blocks: whole lines, because hosts own whole chunks.
    const fn recency_bytes(descriptors_per_chunk: u64) -> u64 {
        (descriptors_per_chunk * 8).next_multiple_of(LINE)
    }

    /// The lines with the eviction policy's words of a chunk's blocks, as (start, end). The owner
    /// writes them when it offers the chunk.
    pub const fn recency(&self, chunk: u64) -> (u64, u64) {
        let bytes = Self::recency_bytes(self.descriptors_per_chunk);
        (self.recency + chunk * bytes, self.recency + (chunk + 1) * bytes)
    }

    pub const fn chunk(&self, chunk: u64) -> u64 {
        self.chunks + chunk * LINE
    }

    #[inline]
    pub const fn descriptor(&self, block: BlockIndex) -> u64 {
        self.descriptors + block.0 * LINE
    }

    /// The word that says whether a slot holds memory of users, and of which maker.
    pub const fn piece(&self, block: BlockIndex) -> u64 {
        self.pieces + block.0 * 8
    }

    /// Bytes of two words for each block of a chunk: whole lines, because hosts own whole chunks.
    const fn names_bytes(descriptors_per_chunk: u64) -> u64 {
        (descriptors_per_chunk * 16).next_multiple_of(LINE)
    }

    /// The two words with a block's names in an engine, if the region keeps events.
    #[inline]
    pub const fn names(&self, block: BlockIndex) -> u64 {
        let chunk = self.names + self.chunk_of(block) * Self::names_bytes(self.descriptors_per_chunk);
        chunk + block.0 % self.descriptors_per_chunk * 16
    }

    /// The line with the names of the keys that seal payloads, if the region is sealed.
    pub const fn keys(&self) -> u64 {
        self.keys
    }

    /// The two words with a block's seal, if the region is sealed.
    #[inline]
    pub const fn seal(&self, block: BlockIndex) -> u64 {
        let chunk = self.seals + self.chunk_of(block) * Self::names_bytes(self.descriptors_per_chunk);
        chunk + block.0 % self.descriptors_per_chunk * 16
    }

    #[inline]
    pub const fn bucket(&self, bucket: u64) -> u64 {
        self.buckets + bucket * LINE
    }

    /// The line of a member of the plain design's list: member 0 is the list itself, block `b` is
    /// member `b + 1`.
    pub const fn plain(&self, member: u64) -> u64 {
        self.plain + member * LINE
    }

    #[inline]
    pub const fn data(&self) -> u64 {
        self.data
    }

    /// First byte of a chunk's space.
    pub const fn chunk_data(&self, chunk: u64) -> u64 {
        self.data + chunk * self.chunk_bytes
    }

    /// Bytes of the data area.
    #[inline]
    pub const fn data_bytes(&self) -> u64 {
        self.num_chunks * self.chunk_bytes
    }

    pub const fn chunk_of(&self, block: BlockIndex) -> u64 {
        block.0 / self.descriptors_per_chunk
    }

    /// Offset of a block's payload, for the slot size of its chunk.
    pub const fn payload(&self, block: BlockIndex, slot_bytes: u64) -> u64 {
        self.chunk_data(self.chunk_of(block)) + (block.0 % self.descriptors_per_chunk) * slot_bytes
    }

    /// Whether a chunk can have slots of this size.
    pub const fn is_slot(&self, slot_bytes: u64) -> bool {
        slot_bytes >= LINE && slot_bytes <= self.chunk_bytes && slot_bytes.is_multiple_of(LINE)
    }

    /// Number of slots of a chunk with this slot size.
    pub fn slots(&self, slot_bytes: u64) -> u64 {
        (self.chunk_bytes / slot_bytes.max(1)).min(self.descriptors_per_chunk)
    }

    /// The blocks of a chunk with this slot size, as numbers.
    pub fn blocks_of(&self, chunk: u64, slot_bytes: u64) -> std::ops::Range<u64> {
        let first = chunk * self.descriptors_per_chunk;
        first..first + self.slots(slot_bytes)
    }

    /// Buckets of one shard. A probe never leaves its shard, so one lock covers it.
    #[inline]
    pub const fn buckets_per_shard(&self) -> u64 {
        self.num_buckets / SHARDS
    }
}

impl PoolConfig {
    /// Bytes of the shortest region that has so many chunks.
    ///
    /// # Errors
    /// The configuration is invalid, or a region has no room for so many.
    pub fn region_bytes(&self, num_chunks: u64) -> Result<u64, PoolError> {
        self.validate()?;
        let most = REGION_BYTES_MAX / self.chunk_bytes;
        let bytes = Layout::with_chunks(self, 0, num_chunks.min(most)).end();
        if num_chunks > most || bytes > REGION_BYTES_MAX {
            return Err(PoolError::Config(too_long(num_chunks.saturating_mul(self.chunk_bytes).max(bytes))));
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::HashSeed;

    #[test]
    fn areas_follow_each_other_and_fill_the_region() {
        let config = PoolConfig::new(HashSeed([1; 32]), [2; 16]);
        for mib in [16_u64, 64, 256, 4096, 65536] {
            let layout = Layout::new(&config, mib << 20).unwrap();
            let areas = [
                layout.hosts,
                layout.marks,
                layout.workers,
                layout.hazards,
                layout.locks,
                layout.records,
                layout.events,
                layout.removals,
                layout.requests,
                layout.sketches,
                layout.namespaces,
                layout.usage,
                layout.objects,
                layout.given_locks,
                layout.opened,
                layout.demands,
                layout.hits,
                layout.offers,
                layout.chunks,
                layout.descriptors,
                layout.pieces,
                layout.recency,
                layout.names,
                layout.keys,
                layout.seals,
                layout.buckets,
                layout.plain,
                layout.data,
            ];
            assert!(areas.is_sorted() && areas.iter().all(|at| at % 4096 == 0));
            assert!(layout.hazard(15, 63, 63) + LINE <= layout.locks);
            assert!(layout.bucket(layout.num_buckets) <= layout.data);
        }
    }

    /// Small blocks make control areas that grow by a large part of a chunk with each chunk.
    #[test]
    fn one_more_chunk_never_fits() {
        let common = PoolConfig::new(HashSeed([1; 32]), [2; 16]);
        for chunk_exponent in [16, 18, 21, 25] {
            for block_exponent in (6..=chunk_exponent).filter(|block| chunk_exponent - block <= 16) {
                for (max_hosts, events_per_host, design) in
                    [(1, 0, Design::Cenote), (2, 64, Design::Cenote), (1, 16, Design::Plain)]
                {
                    let (chunk_bytes, min_block_bytes) = (1 << chunk_exponent, 1 << block_exponent);
                    let config = PoolConfig {
                        chunk_bytes,
                        min_block_bytes,
                        max_hosts,
                        events_per_host,
                        requests_per_host: events_per_host,
                        design,
                        ..common.clone()
                    };
                    for region_bytes in
                        (20..33).flat_map(|exponent| [1 << exponent, 3 << exponent, (5 << exponent) + 4032])
                    {
                        let Ok(layout) = Layout::new(&config, region_bytes) else {
                            assert!(Layout::with_chunks(&config, region_bytes, 1).end() > region_bytes, "{config:?}");
                            continue;
                        };
                        let more = Layout::with_chunks(&config, region_bytes, layout.num_chunks + 1);
                        assert!(layout.end() <= region_bytes, "{region_bytes} bytes: {config:?}");
                        assert!(more.end() > region_bytes, "{region_bytes} bytes hold one more chunk: {config:?}");
                        let shortest = config.region_bytes(layout.num_chunks).expect("it exists");
                        assert_eq!(Layout::new(&config, shortest).expect("it fits").num_chunks, layout.num_chunks);
                        assert!(shortest <= region_bytes);
                    }
                }
            }
        }
    }

    #[test]
    fn a_region_too_small_says_how_large_it_must_be() {
        let config = PoolConfig::new(HashSeed([1; 32]), [2; 16]);
        let message = Layout::new(&config, 1 << 20).unwrap_err().to_string();
        assert!(message.contains("at least"), "{message}");
    }
    #[test]
    fn no_configuration_and_no_length_overflows() {
        let hosts =
            |config: PoolConfig| [PoolConfig { max_hosts: 64, workers_per_host: 1024, ..config.clone() }, config];
        let sizes = (6..=63).map(|exponent| 1_u64 << exponent).chain([0, u64::MAX, u64::MAX - 1, (1 << 16) + 1]);
        let lengths: Vec<u64> =
            (0..64).flat_map(|exponent| [(1 << exponent) - 1, 1 << exponent, u64::MAX >> exponent]).collect();
        for (chunk_bytes, min_block_bytes) in
            sizes.clone().flat_map(|chunk| sizes.clone().map(move |block| (chunk, block)))
        {
            let config = PoolConfig { chunk_bytes, min_block_bytes, ..PoolConfig::new(HashSeed([1; 32]), [2; 16]) };
            for config in hosts(config) {
                for &length in &lengths {
                    let Ok(layout) = Layout::new(&config, length) else { continue };
                    assert!(layout.data() + layout.data_bytes() <= length && length <= REGION_BYTES_MAX);
                }
            }
        }
        let message = Layout::new(&PoolConfig::new(HashSeed([1; 32]), [2; 16]), u64::MAX).unwrap_err().to_string();
        assert!(message.contains("64 TiB"), "{message}");
    }
}
