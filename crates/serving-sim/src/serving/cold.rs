//! The cold tier (L4) below a shared pool.
//!
//! [`cheapest_rung`] decides how the pool makes room: compress a cold block, demote the policy's victim
//! to L4, or evict it. Writing is bounded write-behind: with too many writes waiting, L4 counts as out
//! of order. A lookup that misses the pool consults L4's index, which costs no time. [`Ahead`] fetches
//! blocks before a step needs them.

mod ahead;

pub(super) use ahead::Ahead;
pub use ahead::Prefetch;

use super::{Pool, Setup};
use crate::cache::{BlockCache, MakeRoom, Victim, WHOLE};
use crate::kernel::Time;
use crate::model::cache_engine::CodecCycles;
use crate::model::{Link, TierLink};
use crate::tiers::{Job, Mover};
use crate::workload::{BlockNumber, Workload};
use cenote_policy::Eviction;
use cenote_policy::prefetch::{PrefetchAction, SOURCES};
use cenote_policy::temperature::{LadderCosts, PageFacts, Rung, cheapest_rung};
use cenote_policy::transfer::{Cancelled, Class, Ticket};
use serde::Serialize;
use std::collections::BTreeMap;

/// Work that may wait for the encoder of cold blocks: a second.
const ENCODER_BACKLOG_NS: Time = 1_000_000_000;

/// A cold tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cold {
    /// Capacity in bytes. `None`: unlimited. 0: no L4; the pool may still compress.
    pub bytes: Option<u64>,
    /// The device, with its read bandwidth.
    pub tier: TierLink,
    /// Write bandwidth in bytes per second.
    pub write_bytes_per_s: u64,
    /// Blocks that may wait to be written.
    pub writes_max: usize,
    /// The codec of cold blocks, if any.
    pub compression: Option<Compression>,
    /// What is fetched ahead.
    pub prefetch: Prefetch,
}

/// A codec of cold blocks. Its bandwidths are in bytes of whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// Bytes of a compressed block per 100 of a whole one.
    pub percent: u32,
    /// Encoding.
    pub encode_bytes_per_s: u64,
    /// Decoding, on each load.
    pub decode_bytes_per_s: u64,
}

impl Compression {
    /// `qpack` on one processor with AVX2, from and to memory (docs/evidence/codecs.md): 3.98 of 16
    /// bits.
    pub const QPACK: Self = Self { percent: 25, encode_bytes_per_s: 5_700_000_000, decode_bytes_per_s: 9_300_000_000 };

    /// A codec in hardware at a clock, with the measured cycles of its RTL. A load waits for pages in a
    /// row, so latencies do not count.
    #[must_use]
    pub const fn by_engine(cycles: &CodecCycles, percent: u32, clock_hz: u64) -> Self {
        let (encode, decode) = (cycles.encode.at(clock_hz), cycles.decode.at(clock_hz));
        Self { percent, encode_bytes_per_s: encode.bytes_per_s, decode_bytes_per_s: decode.bytes_per_s }
    }

    fn units(&self) -> u8 {
        (u32::from(WHOLE) * self.percent).div_ceil(100).clamp(1, u32::from(WHOLE) - 1) as u8
    }
}

/// What the cold tier did. Counts are of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ColdOutcome {
    /// Blocks written to L4.
    pub demoted: u64,
    /// Blocks that the ladder compressed in the pool.
    pub compressed: u64,
    /// Blocks that the ladder evicted, although L4 existed.
    pub evicted: u64,
    /// Most blocks that waited to be written.
    pub writes_waiting_max: u64,
    /// Blocks read while a step waited.
    pub read_on_demand: u64,
    /// Blocks fetched ahead, by [`cenote_policy::prefetch::Source::index`] of their first source.
    pub prefetched: [u64; SOURCES],
    /// Of them, blocks that a request read.
    pub prefetch_hits: [u64; SOURCES],
    /// Hints and speculations about a next prompt.
    pub announced: [u64; 2],
    /// Bytes read from L4, ahead and on demand.
    pub read_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Copied {
    Up(BlockNumber),
    Down(BlockNumber),
}

pub(super) struct ColdTier {
    setup: Cold,
    block_bytes: u64,
    costs: LadderCosts,
    recompute_ns: u64,
    cache: BlockCache,
    mover: Mover<Copied>,
    ahead: Ahead,
    /// Blocks on their way up.
    rising: BTreeMap<BlockNumber, Ticket>,
    /// Position of each block in its prompts.
    depths: Vec<u32>,
    /// Units of each block that left the pool compressed.
    units: BTreeMap<BlockNumber, u8>,
    writes_waiting: usize,
    /// Blocks that left the pool, and those of them that a request wanted again.
    left: u64,
    returned: u64,
    /// The time of the last call, and the end of the encoder's work.
    now: Time,
    encoded_at: Time,
    counts: ColdOutcome,
}

impl ColdTier {
    pub(super) fn new(setup: &Cold, engine: &Setup, pool: Pool, workload: &Workload) -> Self {
        let block_bytes = engine.block_bytes(workload);
        let blocks = setup.bytes.map(|bytes| (bytes / block_bytes.max(1)) as usize);
        let write = Link { bytes_per_s: setup.write_bytes_per_s, ..setup.tier.link };
        let coding = |rate: fn(&Compression) -> u64| {
            setup.compression.map_or(0, |codec| Link { bytes_per_s: rate(&codec), latency_ns: 0 }.time(block_bytes))
        };
        let costs = LadderCosts {
            encode_ns: coding(|codec| codec.encode_bytes_per_s),
            decode_ns: coding(|codec| codec.decode_bytes_per_s),
            l4_write_ns: (blocks != Some(0)).then(|| write.time(block_bytes)),
            l4_read_ns: setup.tier.link.time(block_bytes),
        };
        // Prefetched blocks lie in the pool: they may fill an eighth of it.
        let buffer = (pool.bytes.unwrap_or(u64::MAX) / 8).max(block_bytes);
        Self {
            setup: *setup,
            block_bytes,
            costs,
            recompute_ns: engine.cost.recompute_token_ns() * u64::from(workload.block_tokens()),
            cache: BlockCache::new(Eviction::Lru, blocks, workload.num_blocks()),
            mover: Mover::new(setup.tier, 1),
            ahead: Ahead::new(setup.prefetch, buffer, block_bytes, workload),
            rising: BTreeMap::new(),
            depths: workload.depths(),
            units: BTreeMap::new(),
            writes_waiting: 0,
            left: 0,
            returned: 0,
            now: 0,
            encoded_at: 0,
            counts: ColdOutcome::default(),
        }
    }

    pub(super) fn contains(&self, block: BlockNumber) -> bool {
        self.cache.contains(block)
    }

    pub(super) const fn ahead(&mut self) -> &mut Ahead {
        &mut self.ahead
    }

    /// Units with which a block enters the pool from here.
    pub(super) fn units(&self, block: BlockNumber) -> u8 {
        self.units.get(&block).copied().unwrap_or(WHOLE)
    }

    /// Nanoseconds to decode a block of so many units.
    pub(super) const fn decode_ns(&self, units: u8) -> Time {
        if units < WHOLE { self.costs.decode_ns } else { 0 }
    }

    fn bytes(&self, units: u8) -> u64 {
        self.block_bytes * u64::from(units) / u64::from(WHOLE)
    }

    /// The pool needs room.
    pub(super) fn make_room(&mut self, victim: Victim, instant: u64) -> MakeRoom {
        let Victim { block, units, may_compress } = victim;
        let is_in_l4 = self.contains(block);
        // The share of the blocks that left the pool and were wanted again, with a prior of a half.
        let reuse = (self.returned as f64 + 1.0) / (self.left as f64 + 2.0);
        let codec = self.setup.compression.filter(|_| may_compress);
        // Prices are per byte, so the facts are those of a whole block's bytes of such victims.
        let page = PageFacts {
            bytes: self.block_bytes,
            reuse: reuse.min(1.0),
            compressed_bytes: codec.map(|codec| self.bytes(codec.units())),
            is_in_l4,
            recompute_ns: self.recompute_ns * u64::from(WHOLE) / u64::from(units),
        };
        // No step waits for a write or an encoding. They cost what they delay: nothing on an idle device,
        // and all of their time if its queue is full.
        let (waiting, most) = (self.writes_waiting as u64, self.setup.writes_max.max(1) as u64);
        let write_ns = |whole: u64| (waiting < most).then(|| whole * waiting / most);
        let backlog = self.encoded_at.saturating_sub(self.now).min(ENCODER_BACKLOG_NS);
        let costs = LadderCosts {
            encode_ns: self.costs.encode_ns * backlog / ENCODER_BACKLOG_NS,
            l4_write_ns: self.costs.l4_write_ns.and_then(write_ns),
            ..self.costs
        };
        match (cheapest_rung(&page, &costs), codec) {
            (Rung::Compress, Some(codec)) => {
                self.counts.compressed += 1;
                self.encoded_at = self.encoded_at.max(self.now) + self.costs.encode_ns;
                return MakeRoom::Compress(codec.units());
            }
            (Rung::Demote, _) if is_in_l4 => {
                self.cache.touch(block, 0, instant);
            }
            (Rung::Demote, _) => self.write(block, units),
            (Rung::Compress | Rung::Evict, _) => self.counts.evicted += 1,
        }
        self.left += 1;
        self.ahead.left(block);
        MakeRoom::Evict
    }

    fn write(&mut self, block: BlockNumber, units: u8) {
        self.writes_waiting += 1;
        self.counts.writes_waiting_max = self.counts.writes_waiting_max.max(self.writes_waiting as u64);
        if units < WHOLE {
            self.units.insert(block, units);
        } else {
            self.units.remove(&block);
        }
        // A write occupies the device for longer than a read of as many bytes.
        let scale = u128::from(self.setup.tier.link.bytes_per_s);
        let bytes = u128::from(self.bytes(units)) * scale / u128::from(self.setup.write_bytes_per_s.max(1));
        let job = Job { channel: 0, bytes: bytes as u64, item: Copied::Down(block) };
        self.mover.submit(Class::WriteBack, job, None);
    }

    /// A request was admitted. It read `found`, and no tier has `lost`.
    pub(super) fn admitted(&mut self, request: usize, found: &[BlockNumber], lost: &[BlockNumber]) {
        self.returned += lost.iter().filter(|block| self.ahead.has_left(**block)).count() as u64;
        self.returned += self.ahead.admitted(request, found, &mut self.counts);
    }

    /// A step waits for blocks that only this tier has. Returns the end of the reads.
    pub(super) fn read_now(&mut self, now: Time, blocks: &[BlockNumber], instant: u64) -> Time {
        for &block in blocks {
            self.cache.touch(block, 0, instant);
        }
        self.counts.read_on_demand += blocks.len() as u64;
        self.returned += blocks.len() as u64;
        let bytes = blocks.iter().map(|block| self.bytes(self.units(*block))).sum();
        self.counts.read_bytes += bytes;
        self.mover.read_now(now, bytes)
    }

    /// Starts copies. Calls `schedule` with the end of each.
    pub(super) fn pump(&mut self, now: Time, schedule: impl FnMut(Time, Ticket)) {
        self.now = now;
        self.ahead.observe_link(now, &self.mover);
        while let Some(action) = self.ahead.poll_action(now) {
            match action {
                PrefetchAction::Fetch { key, class, .. } => {
                    let bytes = self.bytes(self.units(key));
                    let job = Job { channel: 0, bytes, item: Copied::Up(key) };
                    self.rising.insert(key, self.mover.submit(class, job, None));
                    self.counts.prefetched[self.ahead.source(key)] += 1;
                    self.counts.read_bytes += bytes;
                }
                PrefetchAction::Promote(key, class) => {
                    if let Some(ticket) = self.rising.get(&key) {
                        self.mover.transfers().promote(*ticket, class);
                    }
                }
                PrefetchAction::Cancel(key) => {
                    let Some(&ticket) = self.rising.get(&key) else { continue };
                    if matches!(self.mover.transfers().cancel(ticket), Cancelled::Queued(_)) {
                        self.rising.remove(&key);
                        self.counts.prefetched[self.ahead.source(key)] -= 1;
                        self.counts.read_bytes -= self.bytes(self.units(key));
                        self.ahead.failed(key);
                    }
                }
                PrefetchAction::Discard(_) => {}
            }
        }
        self.mover.pump(now, schedule, |_| ());
    }

    /// Ends a copy. Returns a block that enters the pool, behind its depth.
    pub(super) fn completed(&mut self, ticket: Ticket, instant: u64) -> Option<(u32, BlockNumber)> {
        match self.mover.completed(ticket)?.0 {
            Copied::Down(block) => {
                self.writes_waiting -= 1;
                self.counts.demoted += 1;
                self.cache.touch(block, 0, instant);
                None
            }
            Copied::Up(block) => {
                self.rising.remove(&block);
                self.cache.touch(block, 0, instant);
                self.ahead.arrived(block);
                Some((self.depths[block as usize], block))
            }
        }
    }

    pub(super) fn outcome(&self) -> ColdOutcome {
        ColdOutcome { announced: self.ahead.announced(), ..self.counts }
    }
}
