//! Spilled blocks of running requests: KV beyond an engine's own memory, streamed in each step.
//!
//! The scheduler selects the blocks. [`Staging`] orders their arrival in three buffers, two layers
//! ahead, and [`Mover`] starts the copies by [`cenote_policy::transfer`], as the engine's streamer
//! does. While a layer computes, the next ones arrive. The next step's first layers arrive while this
//! one ends, if it reads the same blocks.
//!
//! Simplifications: a copy stands for a quarter of a layer's pages. A page takes the longest of its
//! bytes over the bandwidth, its part of a doorbell, and its latency over the window. `tests.rs`
//! compares the step with [`crate::tiers::dense`], where each page is an event. Spilled blocks are
//! copied out even if the pool has them, and the pool never evicts them.

use super::ConfigError;
use crate::kernel::Time;
use crate::model::TierLink;
use crate::tiers::{Job, Mover};
use cenote_base::RequestId;
use cenote_policy::scheduler::SchedulerConfig;
use cenote_policy::staging::{Fetched, Place, Staging, StagingAction, StagingConfig, StagingEvent};
use cenote_policy::transfer::{Cancelled, Class, Ticket, TransferConfig};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Buffers of the staging area, as in the engine.
const BUFFERS: u32 = 3;
/// Copies of a layer.
const PARTS: u32 = 4;

/// Space for blocks of running requests outside an engine's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spill {
    /// L1 blocks that it holds, per engine.
    pub blocks: u32,
    /// Layers of the model: each has a tile in a step.
    pub layers: u32,
    /// The tier that holds them, and its link to an engine.
    pub tier: TierLink,
    /// Whether layers arrive ahead. Otherwise each is fetched when it is next.
    pub is_ahead: bool,
    /// Tokens of each request, the newest, that an engine's own memory has as well, where all KV is
    /// allocated in the tier (SpecKV §3.2, §3.3.1). `None`: blocks leave the engine's memory when it is
    /// full, as in the product.
    pub near_tokens: Option<u32>,
    /// Whether requests are admitted while the tier has room. Otherwise only while steps hide the copies, as
    /// in the product.
    pub fills: bool,
}

impl Spill {
    /// Checks that the scheduler can spill: a block of each request and those of a step are in L1.
    pub(super) fn check(&self, config: &SchedulerConfig) -> Result<(), ConfigError> {
        if self.blocks == 0 || self.layers == 0 || self.tier.channels == 0 || self.tier.outstanding_max == 0 {
            return Err(ConfigError::Nothing("the spill space"));
        }
        if self.tier.link.bytes_per_s == 0 {
            return Err(ConfigError::NoBandwidth("the link to the spill space"));
        }
        if self.near_tokens.is_some() {
            return Ok(());
        }
        let least = config.max_num_seqs as u64 + u64::from(config.max_num_batched_tokens.div_ceil(config.block_size));
        let held = config.num_blocks;
        if u64::from(held) < least {
            return Err(ConfigError::NoRoomToSpill { held, least });
        }
        Ok(())
    }

    /// Nanoseconds of a page of `bytes` bytes among many.
    fn page_ns(&self, bytes: u64) -> f64 {
        let Spill { tier, .. } = self;
        let config = TransferConfig::window(tier.outstanding_max);
        let carried = bytes as f64 * 1e9 / tier.link.bytes_per_s as f64;
        let started = tier.doorbell_ns as f64 / f64::from(config.batch_copies_max);
        let answered = tier.link.latency_ns as f64 / f64::from(config.limits[Class::Exact as usize]);
        carried.max(started).max(answered)
    }
}

/// What spilling did. Counts are of L1 blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SpillCounts {
    pub spilled: u64,
    pub promoted: u64,
    /// Blocks read by steps from outside L1.
    pub streamed: u64,
    /// Nanoseconds in which steps waited for layers.
    pub stall_ns: Time,
}

/// Requests of a step with spilled blocks, and the number of them. They are the first of a request's
/// table, so equal numbers mean equal blocks.
pub(super) type Spilled = Vec<(RequestId, u32)>;

/// The pages of a copy.
#[derive(Clone, Copy, Debug)]
struct Pages(u32);

impl Fetched for Pages {
    fn num_pages(&self) -> u64 {
        self.0.into()
    }
}

/// The staging area of an engine.
pub(super) struct Streamer {
    spill: Spill,
    block_bytes: u64,
    staging: Staging<Pages>,
    mover: Mover<Place>,
    tickets: BTreeMap<Place, Ticket>,
    /// Ends of the copies under way.
    ends: BTreeSet<(Time, Ticket)>,
    /// Steps whose tiles are pushed, the current or next one first.
    steps: VecDeque<(u64, Spilled)>,
    is_ready: bool,
    counts: SpillCounts,
}

impl Streamer {
    pub fn new(spill: Spill, block_bytes: u64) -> Self {
        // One copy of many pages at a time keeps the link as busy as a window of pages.
        let tier = TierLink { outstanding_max: 1, doorbell_ns: 0, channels: 1, ..spill.tier };
        let link = crate::model::Link { latency_ns: 0, ..tier.link };
        Self {
            spill,
            block_bytes,
            staging: Staging::new(StagingConfig { buffers: BUFFERS, buffer_pages: PARTS, tiles: false }),
            mover: Mover::new(TierLink { link, ..tier }, 1),
            tickets: BTreeMap::new(),
            ends: BTreeSet::new(),
            steps: VecDeque::new(),
            is_ready: false,
            counts: SpillCounts::default(),
        }
    }

    pub const fn near_tokens(&self) -> Option<u32> {
        self.spill.near_tokens
    }

    /// Writes the KV of new tokens.
    pub fn write(&mut self, now: Time, tokens: u64, block_tokens: u32) {
        self.mover.read_now(now, tokens * self.block_bytes / u64::from(block_tokens));
    }

    pub const fn counts(&self) -> &SpillCounts {
        &self.counts
    }

    /// Copies blocks out of L1 and back into it. Returns the end of both.
    pub fn exchange(&mut self, now: Time, spilled: u64, promoted: u64) -> Time {
        self.counts.spilled += spilled;
        self.counts.promoted += promoted;
        let blocks = spilled + promoted;
        if blocks == 0 {
            return now;
        }
        self.mover.read_now(now, blocks * self.block_bytes) + self.spill.tier.link.latency_ns
    }

    /// A step that reads `spilled`: it prepares for `first` nanoseconds and then computes for
    /// `compute` over all layers. Returns its end.
    pub fn step(&mut self, now: Time, spilled: &[(RequestId, u32)], first: Time, compute: Time) -> Time {
        let blocks: u64 = spilled.iter().map(|(_, count)| u64::from(*count)).sum();
        self.run_until(now);
        self.staging.handle(now, StagingEvent::Computed);
        if let Some((step, _)) = self.steps.front().filter(|(_, expected)| expected != spilled) {
            self.staging.abandon_from(*step);
            self.steps.clear();
        }
        if blocks == 0 {
            self.act(now);
            return now + first + compute;
        }
        self.counts.streamed += blocks;
        if !self.spill.is_ahead {
            return self.step_on_demand(now + first, blocks as u32, compute);
        }
        // The next step probably reads the same blocks.
        while self.steps.len() < 2 {
            let layers = vec![parts(blocks as u32); self.spill.layers as usize];
            let step = self.staging.push_step(layers).expect("a buffer has room for the parts of a layer");
            self.steps.push_back((step, spilled.to_vec()));
        }
        let layer = compute / Time::from(self.spill.layers);
        self.act(now);
        let mut time = now + first + compute % Time::from(self.spill.layers);
        self.run_until(time);
        for at in 0..self.spill.layers {
            if at > 0 {
                self.staging.handle(time, StagingEvent::Computed);
            }
            time = self.arrive(time);
            if at + 1 == self.spill.layers {
                self.steps.pop_front();
            }
            time += layer;
            self.run_until(time);
        }
        time
    }

    /// The same step with each layer fetched when it is next: no prefetch (SpecKV's CXL-NoSpec).
    fn step_on_demand(&mut self, begin: Time, blocks: u32, compute: Time) -> Time {
        let layers = Time::from(self.spill.layers);
        let mut time = begin + compute % layers;
        for at in 0..layers {
            if at > 0 {
                self.staging.handle(time, StagingEvent::Computed);
            }
            self.run_until(time);
            self.staging.push_step(vec![parts(blocks)]).expect("a buffer has room for the parts of a layer");
            time = self.arrive(time) + compute / layers;
        }
        time
    }

    /// Waits until the next layer is staged. Returns the time.
    fn arrive(&mut self, begin: Time) -> Time {
        let mut time = begin;
        loop {
            self.act(time);
            if std::mem::take(&mut self.is_ready) {
                self.counts.stall_ns += time - begin;
                return time;
            }
            time = self.ends.first().expect("an absent layer is on its way").0;
            self.run_until(time);
        }
    }

    /// Does what the policy wants.
    fn act(&mut self, now: Time) {
        let page_ns = self.spill.page_ns(self.block_bytes / u64::from(self.spill.layers));
        while let Some(action) = self.staging.poll_action(now) {
            match action {
                StagingAction::Fetch { place, page: Pages(pages), is_urgent, .. } => {
                    let class = if is_urgent { Class::Demand } else { Class::Exact };
                    let rate = self.spill.tier.link.bytes_per_s as f64 / 1e9;
                    let bytes = (f64::from(pages) * page_ns * rate) as u64;
                    let ticket = self.mover.submit(class, Job { channel: 0, bytes, item: place }, None);
                    self.tickets.insert(place, ticket);
                }
                StagingAction::Urge(place) => {
                    if let Some(ticket) = self.tickets.get(&place) {
                        self.mover.transfers().promote(*ticket, Class::Demand);
                    }
                }
                StagingAction::Cancel(place) => {
                    let ticket = self.tickets.remove(&place);
                    let started = |ticket| matches!(self.mover.transfers().cancel(ticket), Cancelled::Started);
                    // The end of a started copy frees its place.
                    if !ticket.is_some_and(started) {
                        self.staging.handle(now, StagingEvent::Cancelled(place));
                    }
                }
                StagingAction::Compute { .. } => self.is_ready = true,
                StagingAction::ReadNow(..) | StagingAction::Recompute(..) => unreachable!("no copy fails"),
            }
        }
        self.pump(now);
    }

    fn pump(&mut self, now: Time) {
        let ends = &mut self.ends;
        self.mover.pump(now, |end, ticket| ends.extend([(end, ticket)]), |_| ());
    }

    /// Ends the copies until `until`. Waiting ones start in their places.
    fn run_until(&mut self, until: Time) {
        while let Some(&(end, ticket)) = self.ends.first().filter(|(end, _)| *end <= until) {
            self.ends.pop_first();
            if let Some((place, is_used)) = self.mover.completed(ticket) {
                let event = if is_used { StagingEvent::Arrived(place) } else { StagingEvent::Cancelled(place) };
                self.tickets.remove(&place);
                self.staging.handle(end, event);
            }
            self.pump(end);
        }
    }
}

/// The pages of a layer's copies.
fn parts(pages: u32) -> Vec<Pages> {
    (0..PARTS).map(|part| (pages + part) / PARTS).filter(|pages| *pages > 0).map(Pages).collect()
}

#[cfg(test)]
mod tests;
