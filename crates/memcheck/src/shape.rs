//! The parameters of a run: its hosts, its region, and how often its processes do what.

use crate::scenario::LOCK_TIMEOUT;
use cenote_base::fault::Point;
use cenote_base::prng::Prng;
use cenote_base::seal::{Seal, SealKeys};
use cenote_base::{BlockHash, HashSeed};
use cenote_pool::{Design, Eviction, HostsLock, NamespaceRecord, PoolConfig};
use std::time::Duration;

/// Seed of all hashes.
pub const SEED: HashSeed = HashSeed([7; 32]);

/// The parameters of a run, drawn from its seed.
#[derive(Clone, Debug)]
pub struct Shape {
    pub hosts: usize,
    pub processes_per_host: usize,
    /// Number of different blocks that the processes publish and read.
    pub universe: usize,
    pub block_bytes: u64,
    pub min_block_bytes: u64,
    pub chunks: u64,
    /// Whether all hashes share a home bucket, so that probes overflow.
    pub crowded: bool,
    pub hosts_lock: HostsLock,
    pub eviction: Eviction,
    /// Quota of the namespace in blocks; 0: none.
    pub quota_blocks: u64,
    pub design: Design,
    /// Whether payloads have a MAC in place of a checksum.
    pub sealed: bool,
    /// A host that stays idle after recovery. The leftovers of its crashed workers must be
    /// recovered although it requests nothing.
    pub idle_host: Option<usize>,
    /// A host that attaches again only long after its crashed workers were declared dead.
    pub late_host: Option<usize>,
    /// Lines of each host's event ring. Few lines are soon overwritten.
    pub events_per_host: u32,
    /// Rows of the namespace table. Few rows are reclaimed for the processes' namespaces.
    pub namespaces: u16,
    /// Number of operations of each process.
    pub rounds: u64,
    /// Weight of each kind of operation; 0 leaves it out (swarm testing).
    pub weights: [u64; 12],
}

/// Code that most shapes run rarely. A run about it has a shape that runs it often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Making a region.
    Formatting,
    /// Shards of the index that several hosts change at once.
    Index,
    /// Chunks that change hands between living hosts.
    Sharing,
    /// Chunks that several hosts want, and blocks in them that are used in place.
    Chunks,
    /// Chunks of dead hosts.
    Adoption,
    /// Memory of users, and the locks that they allocate.
    Memory,
    /// Namespaces whose rows are reclaimed.
    Namespaces,
}

impl Subject {
    pub const fn of_point(point: Point) -> Option<Self> {
        match point {
            Point::FormatCleared | Point::FormatWritten => Some(Self::Formatting),
            Point::ChunkMoved | Point::ChunkOffered => Some(Self::Sharing),
            Point::ChunkFound | Point::ChunkNamed => Some(Self::Chunks),
            Point::ChunkAdopted | Point::HostMarked => Some(Self::Adoption),
            Point::MemoryAllocated
            | Point::MemoryCounted
            | Point::MemoryDescribed
            | Point::MemoryFreed
            | Point::MemoryNamed
            | Point::TableFound
            | Point::TableNamed => Some(Self::Memory),
            Point::NamespaceReclaimed => Some(Self::Namespaces),
            _ => None,
        }
    }

    /// The subject of a source file of the pool.
    pub fn of_file(file: &str) -> Option<Self> {
        const FILES: &[(&str, Subject)] = &[
            ("region/superblock.rs", Subject::Formatting),
            ("index/table.rs", Subject::Index),
            ("sync/bakery.rs", Subject::Index),
            ("blocks/offers.rs", Subject::Sharing),
            ("hosts/demand.rs", Subject::Sharing),
            ("pool/memory.rs", Subject::Memory),
            ("region/piece.rs", Subject::Memory),
            ("tables/locks.rs", Subject::Memory),
            ("tables/memory.rs", Subject::Memory),
            ("tables/namespaces.rs", Subject::Namespaces),
            ("tables/opened.rs", Subject::Namespaces),
        ];
        FILES.iter().find(|(end, _)| file.ends_with(end)).map(|&(_, subject)| subject)
    }
}

impl Shape {
    pub fn of_seed(seed: u64) -> Self {
        let mut prng = Prng::at(seed, 11);
        let hosts = 2 + prng.below(2) as usize;
        let processes_per_host = 1 + prng.below(2) as usize;
        let block_bytes = [128, 192, 320][prng.below(3) as usize];
        let late_host = (seed / 5).is_multiple_of(3).then_some((seed / 15) as usize % hosts);
        // A late host may find that others have taken over all its chunks, so it may be idle too.
        let idle_host = match seed / 8 % 4 {
            0 => late_host.or(Some((seed / 16) as usize % hosts)),
            2 => Some((seed / 16) as usize % hosts),
            _ => None,
        };
        let common = Self {
            hosts,
            processes_per_host,
            universe: 4 + prng.below(10) as usize,
            block_bytes,
            min_block_bytes: 32 << 10,
            chunks: hosts as u64 + prng.below(3),
            crowded: false,
            hosts_lock: if prng.below(6) == 0 { HostsLock::Manager } else { HostsLock::Bakery },
            eviction: Eviction::ALL[prng.below(3) as usize],
            quota_blocks: [0, 0, 2 + seed % 5][(seed / 7 % 3) as usize],
            design: Design::Cenote,
            // Of two in five, so that seals meet every other part.
            sealed: matches!(seed % 5, 1 | 3),
            idle_host,
            late_host,
            events_per_host: [16, 32, 128][(seed / 3 % 3) as usize],
            namespaces: 256,
            rounds: 8 + prng.below(24),
            weights: [12, 12, 6, 4, 2, 3, 2, 1, 1, 1, 2, 3],
        };
        match prng.below(9) {
            // Few blocks and slots, so that pins and reads race with reuse.
            0 | 1 => Self {
                universe: 2 + prng.below(2) as usize,
                chunks: hosts as u64,
                rounds: 30 + prng.below(40),
                weights: [12, 6, 10, 12, 1, 0, 0, 0, 0, 0, 4, 0],
                ..common
            },
            // Contention on few locks.
            2 => Self { rounds: 20 + prng.below(30), weights: [2, 1, 0, 1, 1, 20, 0, 0, 0, 0, 0, 3], ..common },
            // One home bucket for all hashes, so that probes overflow.
            3 => Self {
                universe: 20,
                min_block_bytes: 1 << 10,
                chunks: 8,
                crowded: true,
                rounds: 20 + prng.below(30),
                weights: [16, 8, 2, 6, 1, 0, 1, 1, 0, 0, 2, 4],
                ..common
            },
            // Few chunks that change hosts often: they are emptied and released early.
            4 => Self {
                universe: 4 + prng.below(6) as usize,
                min_block_bytes: 1 << 10,
                chunks: hosts as u64,
                rounds: 20 + prng.below(20),
                weights: [10, 6, 2, 6, 3, 0, 2, 6, 1, 1, 4, 2],
                ..common
            },
            // Mostly table operations, and workers that attach and detach.
            5 => {
                let shape =
                    Self { rounds: 16 + prng.below(20), weights: [3, 2, 0, 1, 1, 0, 12, 1, 3, 8, 1, 12], ..common };
                if prng.below(2) == 0 { shape.about(Subject::Namespaces) } else { shape }
            }
            6 => common.about(Subject::Sharing),
            // A swarm: random kinds of operations are left out or more frequent.
            _ => {
                let mut weights = common.weights;
                for weight in &mut weights[2..] {
                    *weight *= [0, 1, 1, 4][prng.below(4) as usize];
                }
                Self { weights, ..common }
            }
        }
    }

    /// This shape for a run about `subject`.
    pub fn about(self, subject: Subject) -> Self {
        let Self { hosts, rounds, mut weights, .. } = self;
        match subject {
            Subject::Formatting => self,
            // One home bucket for all hashes, and mostly publishing.
            Subject::Index => Self {
                universe: 20,
                min_block_bytes: 1 << 10,
                chunks: 8,
                crowded: true,
                quota_blocks: 0,
                rounds: 20 + rounds,
                weights: [40, 8, 1, 12, 1, 8, 0, 0, 0, 0, 1, 1],
                ..self
            },
            // Hosts are busy and idle by turns, so that chunks move with their blocks.
            Subject::Sharing => Self {
                universe: 16,
                chunks: hosts as u64 + rounds % 2,
                rounds: 40 + rounds,
                crowded: false,
                weights: [16, 8, 2, 1, 6, 0, 1, 1, 0, 1, 1, 1],
                ..self
            },
            // Few chunks that are taken and given back, and many pins.
            Subject::Chunks => Self {
                universe: 4 + rounds as usize % 6,
                min_block_bytes: 1 << 10,
                chunks: hosts as u64 + rounds % 2,
                rounds: 40 + rounds,
                weights: [12, 4, 10, 4, 4, 0, 1, 4, 0, 1, 1, 1],
                ..self
            },
            // Workers rest often, so that hosts are declared dead.
            Subject::Adoption => {
                weights[4] = 12;
                Self { rounds: 40 + rounds, weights, ..self }
            }
            // Processes mostly allocate, name and free memory.
            Subject::Memory => Self { rounds: 40 + rounds, weights: [4, 2, 0, 1, 1, 0, 4, 1, 1, 2, 1, 40], ..self },
            // More namespaces than rows.
            Subject::Namespaces => {
                weights[8] = 16;
                Self { namespaces: 7, rounds: rounds + 24, weights, ..self }
            }
        }
    }

    pub fn has_few_rows(&self) -> bool {
        self.namespaces < 256
    }

    /// This shape for runs in which hosts stall until they are declared dead. Workers rest more
    /// often, so that the declaration happens.
    pub fn with_sleepers(mut self) -> Self {
        self.weights[4] *= 4;
        self
    }

    /// Whether a host attaches late. Not with TraCT's manager, where the host timeout is too long.
    pub fn has_late_host(&self) -> bool {
        self.late_host.is_some() && !self.has_manager()
    }

    /// This shape on one host, which is neither idle nor late after recovery. Half of the shapes have so few
    /// slots that a reader often meets one that is filled anew.
    pub fn on_one_host(self) -> Self {
        let alone = Self { hosts: 1, idle_host: None, late_host: None, ..self };
        if !alone.universe.is_multiple_of(2) {
            return alone;
        }
        let weights = [12, 2, 1, 12, 1, 0, 0, 0, 1, 1, 1, 0];
        Self { chunks: 1, min_block_bytes: 16 << 10, quota_blocks: 0, crowded: false, rounds: 60, weights, ..alone }
    }

    /// This shape for another design. The plain design always evicts by LRU.
    pub fn of_design(self, design: Design) -> Self {
        let eviction = if design == Design::Plain { Eviction::Lru } else { self.eviction };
        Self { design, eviction, ..self }
    }

    /// The keys of a sealed region.
    pub fn keys(&self) -> Option<SealKeys> {
        let key = "0123456789abcdef".repeat(4);
        self.sealed.then(|| SealKeys::parse(&key).expect("it is a key"))
    }

    pub fn config(&self) -> PoolConfig {
        let config = self.unsealed_config();
        self.keys().map_or_else(|| config.clone(), |keys| config.clone().sealed(Seal::Mac, &keys))
    }

    fn unsealed_config(&self) -> PoolConfig {
        PoolConfig {
            chunk_bytes: 64 << 10,
            min_block_bytes: self.min_block_bytes,
            max_hosts: 3,
            workers_per_host: 4,
            hazard_lines_per_worker: 1,
            records_per_host: 32,
            events_per_host: self.events_per_host,
            namespaces: self.namespaces,
            hosts_lock: self.hosts_lock,
            eviction: self.eviction,
            design: self.design,
            ..PoolConfig::new(SEED, [9; 16])
        }
    }

    /// Bytes of a region with exactly this many chunks.
    pub fn region_bytes(&self) -> u64 {
        self.config().region_bytes(self.chunks).expect("the shape fits")
    }

    pub fn has_manager(&self) -> bool {
        self.hosts_lock == HostsLock::Manager
    }

    /// The timeout of locks. Long with TraCT's manager: a waiter that times out just when the
    /// manager grants the lock leaves it taken until it retries.
    pub fn lock_timeout(&self) -> Duration {
        if self.has_manager() { 100 * LOCK_TIMEOUT } else { LOCK_TIMEOUT }
    }

    /// The namespace with this label. The label's length decides the fingerprint.
    pub fn record(&self, label: &str) -> NamespaceRecord {
        NamespaceRecord {
            fingerprint: [label.len() as u8; 32],
            label: label.to_owned(),
            block_bytes: self.block_bytes,
            block_tokens: 16,
            num_layers: 1,
        }
    }

    /// The hash of block `number`. It is no chain hash: the pool does not check that, and the test
    /// must choose home buckets.
    pub fn hash(&self, number: usize) -> BlockHash {
        let mut prng = Prng::new(number as u64 + 1);
        let low = if self.crowded { 64 * 5 + 3 } else { prng.next_u64() % 128 };
        BlockHash::from_words([low | (number as u64 + 1) << 32, prng.next_u64()])
    }

    /// The payload of block `number`, which is the same in every run.
    pub fn payload(&self, number: usize) -> Vec<u8> {
        let mut prng = Prng::new(1000 + number as u64);
        let mut bytes = vec![0; self.block_bytes as usize];
        bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&prng.next_u64().to_le_bytes()[..part.len()]));
        bytes
    }
}
