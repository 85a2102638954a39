//! The cold tier (L4) below a shared pool.
//!
//! [`cheapest_rung`] decides for each block that the pool evicts whether L4 keeps it. Writing is bounded
//! write-behind: with too many writes waiting, L4 counts as out of order and blocks are evicted. A
//! lookup that misses the pool consults L4's index, which costs no time. [`Planner`] fetches blocks of
//! waiting requests ahead.

use super::{Pool, Setup};
use crate::cache::BlockCache;
use crate::kernel::Time;
use crate::model::{Link, TierLink};
use crate::tiers::{Job, Mover};
use crate::workload::{BlockNumber, Workload};
use cenote_base::RequestId;
use cenote_policy::Eviction;
use cenote_policy::prefetch::{Offer, Planner, PlannerConfig, PrefetchAction, PrefetchEvent, Source};
use cenote_policy::temperature::{LadderCosts, PageFacts, Rung, cheapest_rung};
use cenote_policy::transfer::{Cancelled, Class, Ticket};
use serde::Serialize;
use std::collections::BTreeMap;

/// A cold tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cold {
    /// Capacity in bytes. `None`: unlimited.
    pub bytes: Option<u64>,
    /// The device, with its read bandwidth.
    pub tier: TierLink,
    /// Write bandwidth in bytes per second.
    pub write_bytes_per_s: u64,
    /// Blocks that may wait to be written.
    pub writes_max: usize,
    /// Whether blocks of waiting requests are fetched ahead.
    pub prefetch: bool,
}

/// What the cold tier did. Counts are of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ColdOutcome {
    /// Blocks written to L4.
    pub demoted: u64,
    /// Blocks that the ladder evicted, although L4 existed.
    pub evicted: u64,
    /// Blocks read while a step waited.
    pub read_on_demand: u64,
    /// Blocks fetched ahead.
    pub prefetched: u64,
    /// Of them, blocks that their request read.
    pub prefetch_hits: u64,
    /// Bytes read from L4, ahead and on demand.
    pub read_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
enum Copied {
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
    planner: Option<Planner<BlockNumber>>,
    /// Blocks on their way up, with their depth in the prompt.
    rising: BTreeMap<BlockNumber, Ticket>,
    depths: BTreeMap<BlockNumber, u32>,
    writes_waiting: usize,
    reused: u64,
    counts: ColdOutcome,
}

impl ColdTier {
    pub(super) fn new(setup: &Cold, engine: &Setup, pool: Pool, workload: &Workload) -> Self {
        let block_bytes = engine.block_bytes(workload);
        let blocks = setup.bytes.map(|bytes| (bytes / block_bytes.max(1)) as usize);
        let write = Link { bytes_per_s: setup.write_bytes_per_s, ..setup.tier.link };
        let costs = LadderCosts {
            encode_ns: 0,
            decode_ns: 0,
            l4_write_ns: Some(write.time(block_bytes)),
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
            planner: setup.prefetch.then(|| Planner::new(PlannerConfig::with_buffer(buffer))),
            rising: BTreeMap::new(),
            depths: BTreeMap::new(),
            writes_waiting: 0,
            reused: 0,
            counts: ColdOutcome::default(),
        }
    }

    pub(super) fn contains(&self, block: BlockNumber) -> bool {
        self.cache.contains(block)
    }

    /// The pool evicted a block: keep it, or not.
    pub(super) fn evicted(&mut self, block: BlockNumber, instant: u64) {
        let is_in_l4 = self.contains(block);
        // The share of demoted blocks that were read again, with a prior of a half.
        let reuse = (self.reused as f64 + 1.0) / (self.counts.demoted as f64 + 2.0);
        let page = PageFacts {
            bytes: self.block_bytes,
            reuse: reuse.min(1.0),
            compressed_bytes: None,
            is_in_l4,
            recompute_ns: self.recompute_ns,
        };
        // No step waits for a write. It costs what it delays: nothing on an idle disk, and all of its
        // time if the queue is full.
        let (waiting, most) = (self.writes_waiting as u64, self.setup.writes_max.max(1) as u64);
        let write_ns = |whole: u64| (waiting < most).then(|| whole * waiting / most);
        let costs = LadderCosts { l4_write_ns: self.costs.l4_write_ns.and_then(write_ns), ..self.costs };
        match cheapest_rung(&page, &costs) {
            Rung::Demote if is_in_l4 => {
                self.cache.touch(block, 0, instant);
            }
            Rung::Demote => {
                self.writes_waiting += 1;
                // A write occupies the device for longer than a read of as many bytes.
                let scale = u128::from(self.setup.tier.link.bytes_per_s);
                let bytes = u128::from(self.block_bytes) * scale / u128::from(self.setup.write_bytes_per_s.max(1));
                let job = Job { channel: 0, bytes: bytes as u64, item: Copied::Down(block) };
                self.mover.submit(Class::WriteBack, job, None);
            }
            Rung::Compress | Rung::Evict => self.counts.evicted += 1,
        }
    }

    /// A request waits for admission; `absent` are its blocks that only this tier has, by rising depth.
    pub(super) fn wait(&mut self, request: usize, absent: &[(u32, BlockNumber)], position: u32) {
        let Some(planner) = &mut self.planner else { return };
        for &(depth, block) in absent {
            self.depths.insert(block, depth);
            planner.offer(Offer {
                key: block,
                request: RequestId(request as u64),
                source: Source::Waiting(position),
                bytes: self.block_bytes,
                generation: 0,
                needed_at_ns: None,
            });
        }
    }

    /// A request was admitted and read these blocks.
    pub(super) fn admitted(&mut self, request: usize, found: &[BlockNumber]) {
        let Some(planner) = &mut self.planner else { return };
        let before: u64 = planner.counts().hits.iter().sum();
        for &block in found {
            if planner.is_ready(&block) {
                planner.handle(PrefetchEvent::Used(block));
            }
        }
        let hits = planner.counts().hits.iter().sum::<u64>() - before;
        self.counts.prefetch_hits += hits;
        self.reused += hits;
        planner.handle(PrefetchEvent::Ended(RequestId(request as u64)));
    }

    /// A step waits for blocks that only this tier has. Returns the end of the reads.
    pub(super) fn read_now(&mut self, now: Time, blocks: &[BlockNumber], instant: u64) -> Time {
        for &block in blocks {
            self.cache.touch(block, 0, instant);
        }
        self.counts.read_on_demand += blocks.len() as u64;
        self.reused += blocks.len() as u64;
        let bytes = blocks.len() as u64 * self.block_bytes;
        self.counts.read_bytes += bytes;
        self.mover.read_now(now, bytes)
    }

    /// Starts copies. Calls `schedule` with the end of each.
    pub(super) fn pump(&mut self, now: Time, schedule: impl FnMut(Time, Ticket)) {
        while let Some(action) = self.planner.as_mut().and_then(|planner| planner.poll_action(now)) {
            match action {
                PrefetchAction::Fetch { key, class, bytes, .. } => {
                    let job = Job { channel: 0, bytes, item: Copied::Up(key) };
                    self.rising.insert(key, self.mover.submit(class, job, None));
                    self.counts.prefetched += 1;
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
                        self.counts.prefetched -= 1;
                        self.counts.read_bytes -= self.block_bytes;
                        if let Some(planner) = &mut self.planner {
                            planner.handle(PrefetchEvent::Failed(key));
                        }
                    }
                }
                PrefetchAction::Discard(_) => {}
            }
        }
        self.mover.pump(now, schedule, |_| ());
    }

    /// Ends a copy. Returns a block that enters the pool, and its depth.
    pub(super) fn completed(&mut self, ticket: Ticket, instant: u64) -> Option<(BlockNumber, u32)> {
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
                self.planner.as_mut()?.handle(PrefetchEvent::Arrived(block, 0));
                Some((block, self.depths.get(&block).copied().unwrap_or(0)))
            }
        }
    }

    pub(super) const fn outcome(&self) -> ColdOutcome {
        self.counts
    }
}
