//! The cold tier (L4) below a shared pool.
//!
//! The product's [`MeasuredLadder`] decides how the pool makes room: compress a cold block, demote the
//! policy's victim to L4, or evict it. It also decides how many blocks of a request return from L4.
//! Writing is bounded write-behind: with too many writes waiting, L4 counts as out of order. A lookup
//! that misses the pool consults L4's index, which costs no time. [`Ahead`] fetches blocks before a step
//! needs them.

mod ahead;
mod extents;

pub(super) use ahead::Ahead;
pub use ahead::Prefetch;

use super::{Pool, Setup};
use crate::cache::{MakeRoom, Victim, WHOLE};
use crate::hardware::hbm::SPECKV_FPGA;
use crate::kernel::Time;
use crate::model::cache_engine::{self, CodecCycles};
use crate::model::{Link, TierLink};
use crate::tiers::{Job, Mover};
use crate::workload::{BlockNumber, Workload};
use cenote_policy::prefetch::{PrefetchAction, SOURCES};
use cenote_policy::temperature::{ColdBlock, Encoding, MeasuredLadder, Rung};
use cenote_policy::transfer::{Cancelled, Class, Ticket};
use extents::Extents;
use serde::Serialize;
use std::collections::BTreeMap;

/// Work that may wait for the encoder of cold blocks: a second.
const ENCODER_BACKLOG_NS: Time = 1_000_000_000;

/// Longest time that a request waits for blocks of L4: the product's default.
const DEADLINE_NS: Time = 2_000_000_000;

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

    /// As [`Self::by_engine`], with one to four engines that share the channels of one memory: what the RTL's
    /// arbiter leaves of their sum (SpecKV §3.5.5, eq. 6).
    ///
    /// # Panics
    /// Panics with another number of engines.
    #[must_use]
    pub fn by_engines(cycles: &CodecCycles, percent: u32, clock_hz: u64, engines: u32) -> Self {
        let one = Self::by_engine(cycles, percent, clock_hz);
        let lost = cache_engine::contention(engines as usize);
        let memory = SPECKV_FPGA.bytes_per_s;
        let all = |single: u64| cache_engine::aggregate_bytes_per_s(engines, single, lost, memory);
        Self { encode_bytes_per_s: all(one.encode_bytes_per_s), decode_bytes_per_s: all(one.decode_bytes_per_s), ..one }
    }

    fn units(&self) -> u32 {
        (WHOLE * self.percent).div_ceil(100).clamp(1, WHOLE - 1)
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
    block_tokens: u64,
    ladder: MeasuredLadder,
    /// Nanoseconds to encode and to decode a block.
    encode_ns: u64,
    decode_ns: u64,
    /// Nanoseconds to write a byte, over those to read it.
    write_scale: f64,
    listed: Extents,
    mover: Mover<Copied>,
    ahead: Ahead,
    /// Blocks on their way up.
    rising: BTreeMap<BlockNumber, Ticket>,
    /// Position of each block in its prompts.
    depths: Vec<u32>,
    /// Units of each block that left the pool compressed.
    units: BTreeMap<BlockNumber, u32>,
    writes_waiting: usize,
    /// The time of the last call, and the end of the encoder's work.
    now: Time,
    encoded_at: Time,
    counts: ColdOutcome,
}

impl ColdTier {
    pub(super) fn new(setup: &Cold, engine: &Setup, pool: Pool, workload: &Workload) -> Self {
        let block_bytes = engine.block_bytes(workload);
        let block_tokens = u64::from(workload.block_tokens());
        let mut ladder = MeasuredLadder::default();
        ladder.has_computed(block_tokens, engine.cost.recompute_token_ns() * block_tokens);
        let coding = |rate: fn(&Compression) -> u64| {
            setup.compression.map_or(0, |codec| Link { bytes_per_s: rate(&codec), latency_ns: 0 }.time(block_bytes))
        };
        // Prefetched blocks lie in the pool: they may fill an eighth of it.
        let buffer = (pool.bytes.unwrap_or(u64::MAX) / 8).max(block_bytes);
        Self {
            setup: *setup,
            block_bytes,
            block_tokens,
            ladder,
            encode_ns: coding(|codec| codec.encode_bytes_per_s),
            decode_ns: coding(|codec| codec.decode_bytes_per_s),
            write_scale: setup.tier.link.bytes_per_s as f64 / setup.write_bytes_per_s.max(1) as f64,
            listed: Extents::new(setup.bytes, block_bytes),
            mover: Mover::new(setup.tier, 1),
            ahead: Ahead::new(setup.prefetch, buffer, block_bytes, workload),
            rising: BTreeMap::new(),
            depths: workload.depths(),
            units: BTreeMap::new(),
            writes_waiting: 0,
            now: 0,
            encoded_at: 0,
            counts: ColdOutcome::default(),
        }
    }

    pub(super) fn contains(&self, block: BlockNumber) -> bool {
        self.listed.contains(block)
    }

    /// How many of a request's next `listed` blocks return from here.
    pub(super) fn worth_promoting(&mut self, listed: usize) -> usize {
        let waiting = self.rising.len() as u64;
        let block = self.block_of(WHOLE, true);
        self.ladder.worth_promoting(&block, listed as u64, waiting, DEADLINE_NS) as usize
    }

    /// A whole block, or as many smaller ones as take its bytes: prices are per byte.
    fn block_of(&self, units: u32, is_in_l4: bool) -> ColdBlock {
        let tokens = self.block_tokens * u64::from(WHOLE) / u64::from(units);
        ColdBlock { bytes: self.block_bytes, tokens, is_in_l4 }
    }

    pub(super) const fn ahead(&mut self) -> &mut Ahead {
        &mut self.ahead
    }

    /// Units with which a block enters the pool from here.
    pub(super) fn units(&self, block: BlockNumber) -> u32 {
        self.units.get(&block).copied().unwrap_or(WHOLE)
    }

    /// Nanoseconds to decode a block of so many units.
    pub(super) const fn decode_ns(&self, units: u32) -> Time {
        if units < WHOLE { self.decode_ns } else { 0 }
    }

    fn bytes(&self, units: u32) -> u64 {
        self.block_bytes * u64::from(units) / u64::from(WHOLE)
    }

    /// The pool needs room.
    pub(super) fn make_room(&mut self, victim: Victim) -> MakeRoom {
        let Victim { block, units, may_compress } = victim;
        let is_in_l4 = self.contains(block);
        // The pool may compress another cold block instead, if the victim is compressed.
        let codec = self.setup.compression.filter(|_| may_compress);
        // No step waits for an encoding. It costs what it delays: nothing while the encoder is idle, and
        // all of its time if its queue is full.
        let backlog = self.encoded_at.saturating_sub(self.now).min(ENCODER_BACKLOG_NS);
        let encoding = codec.map(|codec| Encoding {
            bytes: self.bytes(codec.units()),
            encode_ns: self.encode_ns * backlog / ENCODER_BACKLOG_NS,
            decode_ns: self.decode_ns,
        });
        let most = if self.setup.bytes == Some(0) { 0 } else { self.setup.writes_max.max(1) };
        let cold = self.block_of(units, is_in_l4);
        match (self.ladder.rung_of(&cold, encoding, self.writes_waiting as u64, most as u64), codec) {
            (Rung::Compress, Some(codec)) => {
                self.counts.compressed += 1;
                self.encoded_at = self.encoded_at.max(self.now) + self.encode_ns;
                return MakeRoom::Compress(codec.units());
            }
            (Rung::Demote, _) if is_in_l4 => {}
            (Rung::Demote, _) => self.write(block, units),
            (Rung::Compress | Rung::Evict, _) => self.counts.evicted += 1,
        }
        self.ahead.left(block);
        MakeRoom::Evict
    }

    fn write(&mut self, block: BlockNumber, units: u32) {
        self.writes_waiting += 1;
        self.counts.writes_waiting_max = self.counts.writes_waiting_max.max(self.writes_waiting as u64);
        if units < WHOLE {
            self.units.insert(block, units);
        } else {
            self.units.remove(&block);
        }
        // A write occupies the device for longer than a read of as many bytes.
        let bytes = (self.bytes(units) as f64 * self.write_scale) as u64;
        let job = Job { channel: 0, bytes, item: Copied::Down(block) };
        self.mover.submit(Class::WriteBack, job, None);
    }

    /// A request was admitted. It read `found`.
    pub(super) fn admitted(&mut self, request: usize, found: &[BlockNumber]) {
        self.ahead.admitted(request, found, &mut self.counts);
    }

    /// Blocks of so many bytes were read.
    fn has_read(&mut self, blocks: u64, bytes: u64) {
        self.ladder.has_read(blocks, bytes, self.setup.tier.link.time(bytes));
    }

    /// A step waits for blocks that only this tier has. Returns the end of the reads.
    pub(super) fn read_now(&mut self, now: Time, blocks: &[BlockNumber]) -> Time {
        self.counts.read_on_demand += blocks.len() as u64;
        let bytes = blocks.iter().map(|block| self.bytes(self.units(*block))).sum();
        self.counts.read_bytes += bytes;
        self.has_read(blocks.len() as u64, bytes);
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
    pub(super) fn completed(&mut self, ticket: Ticket) -> Option<(u32, BlockNumber)> {
        match self.mover.completed(ticket)?.0 {
            Copied::Down(block) => {
                self.writes_waiting -= 1;
                self.counts.demoted += 1;
                let bytes = self.bytes(self.units(block));
                let ns = (self.setup.tier.link.time(bytes) as f64 * self.write_scale) as u64;
                self.ladder.has_written(1, bytes, ns);
                self.listed.insert(block, bytes);
                None
            }
            Copied::Up(block) => {
                self.rising.remove(&block);
                self.has_read(1, self.bytes(self.units(block)));
                self.ahead.arrived(block);
                Some((self.depths[block as usize], block))
            }
        }
    }

    pub(super) fn outcome(&self) -> ColdOutcome {
        ColdOutcome { announced: self.ahead.announced(), ..self.counts }
    }
}
