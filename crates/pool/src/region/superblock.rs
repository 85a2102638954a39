//! The superblock: identity, configuration and version of a region
//! (docs/internals/format.md#superblock). It is read before everything else.

use crate::error::PoolError;
use crate::region::config::{Design, HostsLock, PoolConfig};
use crate::region::layout::{LOCKS, Layout, OBJECTS, SUPERBLOCK_BYTES};
use crate::region::lines::{KeyLine, Line};
use cenote_base::HashSeed;
use cenote_base::fault::{self, Point};
use cenote_base::seal::Seal;
use cenote_mem::{Fabric, Flush, LINE, Offset, assert_layout};
use cenote_policy::Eviction;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of the format; another one is refused.
pub const FORMAT_VERSION: u64 = 1;

/// `CENOTE` in ASCII, then a byte that breaks text tools and a zero.
const MAGIC: u64 = u64::from_le_bytes(*b"CENOTE\x1a\0");

/// Every structure of the format as text. A change of a structure changes this text, and its hash
/// keeps programs with different structures apart.
const STRUCTURES: &str = "line64 le; host:inc,boot,memory,beat,high,wants,0,check; worker:epoch,pid,joined,name4,check; \
    chunk:owner,inc,slot,gen32.offered32,strays3,check; demand:lookups,evicted,oldest,offered,hits,0x2,check; hits:8x(block40.lap24); offers:8x(chunk32.instant32); recency:64; desc:state8.flags8.gen48,hash2,len24.off40,sum,ns16.codec8.0.worker16.depth16,\
    time32.inc32,check; bucket:7x(block40.tag24),overflow; hazard:7x(block40.gen24),epoch; ns:fp4,bytes,shape,created,check+\
    name7,check+quota,kept,0x5,check; usage:256; opened:rows4,life,0x2,check; object:key2,block,len,gen,memory,0,check+name7,check, open addressing; given:64; piece:size12.named1.host7.slot12.epoch24.check8; arena:pieces,lines; lock:ticket40(1 choosing or alone, 2 alone).left24,inc,intent+state8.life56; record:seq,micros,host16.slot16.pid32,kind8.life56,a,b,times,check; names:2x64; keys:ids6,changes,check; seals:random48.key16,tag; event:seq,hash2,name,parent,kind8.ns16.block40,gen48.depth16,check; removal:seq,hash2,micros,cause8.ns16.block40,stored32.slot16.depth16,pid,check; request:seq,kind1.names8.shift8.ns16,micros52.more12,tokens32.blocks32,asked40.before24,requests32.above32,2xname32,check+\
    seq,kind2.names8.0.name32,10xname32,check+seq,kind3,micros52.0,tokens,head,0x2,check; windows:6x(period,blocks,requests,0x5+4096x8); mark:64; flush8.lock8.evict8.design8.seal8; seal key; \
    plain:count,newer,older; chunks:most that fit; checksum v1; hash v1";

const fn text_hash(text: &str) -> u64 {
    let bytes = text.as_bytes();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

const LAYOUT_WORD: u64 = text_hash(STRUCTURES);

/// The superblock's words as they lie in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
struct Words {
    /// Stored last, after all other areas were published.
    magic: u64,
    version: u64,
    layout: u64,
    region_bytes: u64,
    chunk_bytes: u64,
    min_block_bytes: u64,
    /// hosts:8 | workers per host:16 | hazard lines per worker:16 | records per host:16, lowest
    /// bits first.
    limits: u64,
    /// locks:16 | namespaces:16 | objects:16.
    tables: u64,
    uuid: [u64; 2],
    created: u64,
    /// flush instruction:8 (0: none is needed, one host) | lock between hosts:8 | eviction policy:8
    /// | design:8 | seal:8.
    flush: u64,
    seed: [u64; 4],
    /// Events per host.
    events: u64,
    /// Name of the creator's key, if the region is sealed.
    seal_key: u64,
    /// Removals per host.
    removals: u64,
    /// Lines per host of the record of requests.
    requests: u64,
    reserved: [u64; 3],
    /// Check word over all words before it, the magic number included.
    check: u64,
}

assert_layout!(Words, 192, 64, magic @ 0, region_bytes @ 24, uuid @ 64, seed @ 96, check @ 184);

impl Words {
    fn sum(&self) -> u64 {
        let words: [u64; 24] = zerocopy::transmute!(*self);
        words[..23].iter().fold(0x243f_6a88_85a3_08d3, |sum, word| {
            let mixed = (sum ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
            mixed ^ (mixed >> 32)
        })
    }
}

/// Most words that a repair corrects. Superblocks of two regions differ in more: identity, seed and
/// check are seven.
const MENDED_WORDS_MAX: usize = 4;

/// Content of a valid superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The creator's settings.
    pub config: PoolConfig,
    /// Bytes of the region.
    pub region_bytes: u64,
    /// How lines reach other hosts. Every process that opens the region must use the same.
    pub flush: Flush,
}

impl Superblock {
    /// Writes an empty pool over the whole of `fabric`.
    ///
    /// # Errors
    /// The configuration is invalid or does not fit.
    pub fn format<F: Fabric>(fabric: &F, config: &PoolConfig) -> Result<Self, PoolError> {
        let region_bytes = fabric.len() / LINE * LINE;
        let layout = Layout::new(config, region_bytes)?;
        // The device may hold an older region. Without its magic number no process attaches while
        // the control areas are cleared.
        fabric.store(Offset::new(0), 0);
        // Stale cached lines may hide what another host wrote, and so may zeros of a creator of
        // this host that died. Dropping all lines also writes the first one back, before anything
        // else changes.
        fabric.refresh_payload(0, layout.data());
        for line in (0..layout.data()).step_by(usize::try_from(LINE).expect("64")) {
            if fabric.load_line(line) != [0; 8] {
                fabric.store_line(line, &[0; 8]);
                fabric.publish_unfenced(line);
            }
        }
        fault::point(Point::FormatCleared);
        fabric.fence();
        let superblock = Self { config: config.clone(), region_bytes, flush: fabric.flush() };
        if config.seal != Seal::None {
            let line = KeyLine { ids: [config.seal_key, 0, 0, 0, 0, 0], ..KeyLine::default() };
            fabric.publish_line(layout.keys(), &line.seal(layout.keys(), superblock.salt()));
        }
        superblock.store(fabric);
        fault::point(Point::FormatWritten);
        Ok(superblock)
    }

    /// Part of every check word: the region's identity.
    pub(crate) fn salt(&self) -> u64 {
        let uuid: [u64; 2] = zerocopy::transmute!(self.config.uuid);
        uuid[0] ^ uuid[1].rotate_left(17)
    }

    fn lines(&self) -> [[u64; 8]; 3] {
        let config = &self.config;
        let seed: [u64; 4] = zerocopy::transmute!(config.seed.0);
        let mut words = Words {
            magic: MAGIC,
            version: FORMAT_VERSION,
            layout: LAYOUT_WORD,
            region_bytes: self.region_bytes,
            chunk_bytes: config.chunk_bytes,
            min_block_bytes: config.min_block_bytes,
            limits: u64::from(config.max_hosts)
                | u64::from(config.workers_per_host) << 8
                | u64::from(config.hazard_lines_per_worker) << 24
                | u64::from(config.records_per_host) << 40,
            tables: tables_word(config.namespaces),
            uuid: zerocopy::transmute!(config.uuid),
            created: config.created,
            flush: self.flush as u64
                | (config.hosts_lock as u64) << 8
                | (config.eviction as u64) << 16
                | (config.design as u64) << 24
                | (config.seal as u64) << 32,
            seed,
            events: u64::from(config.events_per_host),
            seal_key: config.seal_key,
            removals: u64::from(config.removals_per_host),
            requests: u64::from(config.requests_per_host),
            reserved: [0; 3],
            check: 0,
        };
        words.check = words.sum();
        zerocopy::transmute!(words)
    }

    /// Stores the superblock; the caller fences. A reader that sees only a part finds a wrong check
    /// word.
    fn store<F: Fabric>(&self, fabric: &F) {
        for (at, line) in [0, 64, 128].into_iter().zip(&self.lines()) {
            fabric.store_line(at, line);
            fabric.publish_unfenced(at);
        }
    }

    /// Rewrites the superblock if a few words of it are wrong. Leaves another superblock alone,
    /// complete or not.
    pub(crate) fn mend<F: Fabric>(&self, fabric: &F) {
        fabric.refresh(&[0, 64, 128]);
        let ours = self.lines();
        let words = [0, 64, 128].map(|at| fabric.load_line(at));
        let differ = ours.as_flattened().iter().zip(words.as_flattened()).filter(|(ours, word)| ours != word).count();
        if (1..=MENDED_WORDS_MAX).contains(&differ) {
            self.store(fabric);
            fabric.fence();
        }
    }

    /// Reads and validates the superblock.
    ///
    /// # Errors
    /// Not a region, unfinished, of another version or layout, shorter than recorded, or corrupt.
    pub fn read<F: Fabric>(fabric: &F) -> Result<Self, PoolError> {
        if fabric.len() < SUPERBLOCK_BYTES {
            return Err(PoolError::Truncated { mapped: fabric.len(), recorded: SUPERBLOCK_BYTES });
        }
        fabric.refresh(&[0, 64, 128]);
        Self::open([0, 64, 128].map(|at| fabric.load_line(at)), fabric.len())
    }

    /// As [`Superblock::read`], of the first three lines of a region with `mapped` bytes.
    pub(crate) fn open(lines: [[u64; 8]; 3], mapped: u64) -> Result<Self, PoolError> {
        let words: Words = zerocopy::transmute!(lines);
        match words.magic {
            MAGIC => {}
            0 => return Err(PoolError::Unfinished),
            found => return Err(PoolError::NotARegion { found }),
        }
        if words.version != FORMAT_VERSION {
            return Err(PoolError::Version { found: words.version, expected: FORMAT_VERSION });
        }
        if words.layout != LAYOUT_WORD {
            return Err(PoolError::Layout { found: words.layout, expected: LAYOUT_WORD });
        }
        if words.check != words.sum() {
            return Err(PoolError::Damaged("the superblock's check word is wrong".to_owned()));
        }
        if words.region_bytes > mapped {
            return Err(PoolError::Truncated { mapped, recorded: words.region_bytes });
        }
        let namespaces = (words.tables >> 16) as u16;
        let flush = Flush::from_number(words.flush & 0xff);
        let hosts_lock = HostsLock::from_number(words.flush >> 8 & 0xff);
        let eviction = Eviction::from_number(words.flush >> 16 & 0xff);
        let design = Design::ALL.into_iter().find(|design| *design as u64 == words.flush >> 24 & 0xff);
        let seal = Seal::from_number(words.flush >> 32);
        let (Some(flush), Some(hosts_lock), Some(eviction), Some(design), Some(seal), true) =
            (flush, hosts_lock, eviction, design, seal, words.tables == tables_word(namespaces))
        else {
            return Err(PoolError::Damaged(
                "the superblock names tables, a flush instruction, a lock, a policy, a design or a seal of another program"
                    .to_owned(),
            ));
        };
        let config = PoolConfig {
            chunk_bytes: words.chunk_bytes,
            min_block_bytes: words.min_block_bytes,
            max_hosts: words.limits as u8,
            workers_per_host: (words.limits >> 8) as u16,
            hazard_lines_per_worker: (words.limits >> 24) as u16,
            records_per_host: (words.limits >> 40) as u16,
            events_per_host: u32::try_from(words.events).unwrap_or(u32::MAX),
            removals_per_host: u32::try_from(words.removals).unwrap_or(u32::MAX),
            requests_per_host: u32::try_from(words.requests).unwrap_or(u32::MAX),
            namespaces,
            hosts_lock,
            design,
            eviction,
            seal,
            seal_key: words.seal_key,
            seed: HashSeed(zerocopy::transmute!(words.seed)),
            uuid: zerocopy::transmute!(words.uuid),
            created: words.created,
        };
        config.validate()?;
        Ok(Self { config, region_bytes: words.region_bytes, flush })
    }
}

/// The superblock's word with the sizes of tables.
fn tables_word(namespaces: u16) -> u64 {
    LOCKS | u64::from(namespaces) << 16 | OBJECTS << 32
}
