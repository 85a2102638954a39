//! What the cold tier fetches before a step needs it, by [`Planner`] and from all of its sources:
//!
//! - [`Source::NextStep`]: the next step admits the request, if there are blocks for it.
//! - [`Source::Waiting`]: the request waits.
//! - [`Source::Hint`]: a client announces the next prompt of its conversation some time before it comes.
//!   The trace tells which conversations continue.
//! - [`Source::Speculative`]: no client announced it. A conversation is expected to continue after the mean
//!   pause of those that found their blocks in L4, and the first blocks of its last prompt are fetched:
//!   *k* sixteenths of them, by eq. 9 and eq. 7. If no prompt comes within another pause, it was waste.

use super::{ColdOutcome, Copied};
use crate::kernel::Time;
use crate::tiers::Mover;
use crate::workload::{BlockNumber, Workload};
use cenote_base::RequestId;
use cenote_policy::prefetch::{
    DEPTHS, Offer, Planner, PlannerConfig, PrefetchAction, PrefetchEvent, Source, StepResult,
};
use std::collections::BTreeMap;

/// Pause before a conversation's next prompt, before any was observed: ten minutes.
const PAUSE_NS: f64 = 600e9;
/// Weight of a new pause in the mean.
const PAUSE_WEIGHT: f64 = 0.05;
/// Time between two observations of the device's utilization.
const PERIOD_NS: Time = 1_000_000_000;

/// What is fetched ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefetch {
    /// Blocks of waiting requests, those of the next step first.
    pub waiting: bool,
    /// Blocks of a conversation's next prompt, so many nanoseconds before it comes. `None`: without
    /// hints.
    pub hint_ns: Option<Time>,
    /// Blocks of conversations that may continue.
    pub speculate: bool,
}

impl Prefetch {
    /// No prefetch.
    pub const NONE: Self = Self { waiting: false, hint_ns: None, speculate: false };
    /// Blocks of waiting requests.
    pub const WAITING: Self = Self { waiting: true, ..Self::NONE };
}

pub(in super::super) struct Ahead {
    config: Prefetch,
    planner: Planner<BlockNumber>,
    block_bytes: u64,
    /// The request that each request continues.
    previous: Vec<Option<u32>>,
    /// Number of times that each block left the pool.
    generations: Vec<u32>,
    /// Index of the source that fetched a block.
    sources: BTreeMap<BlockNumber, usize>,
    /// Ends of requests.
    ends: Vec<Time>,
    /// Speculation about the request after this one.
    speculated: BTreeMap<usize, Vec<BlockNumber>>,
    pause_ns: f64,
    /// Beginning of the current period, and the device's busy time then.
    period: (Time, u64),
    announced: [u64; 2],
}

impl Ahead {
    pub fn new(config: Prefetch, buffer: u64, block_bytes: u64, workload: &Workload) -> Self {
        Self {
            config,
            planner: Planner::new(PlannerConfig::with_buffer(buffer)),
            block_bytes,
            previous: workload.previous_prompts(),
            generations: vec![0; workload.num_blocks()],
            sources: BTreeMap::new(),
            ends: vec![0; workload.requests().len()],
            speculated: BTreeMap::new(),
            pause_ns: PAUSE_NS,
            period: (0, 0),
            announced: [0; 2],
        }
    }

    pub const fn config(&self) -> &Prefetch {
        &self.config
    }

    pub const fn announced(&self) -> [u64; 2] {
        self.announced
    }

    /// The request that this one continues.
    pub fn previous(&self, request: usize) -> Option<usize> {
        self.previous[request].map(|previous| previous as usize)
    }

    fn offer(&mut self, request: usize, source: Source, block: BlockNumber) {
        let _ = self.planner.offer(Offer {
            key: block,
            request: RequestId(request as u64),
            source,
            bytes: self.block_bytes,
            generation: u64::from(self.generations[block as usize]),
            needed_at_ns: None,
        });
    }

    /// A request waits, or the next step admits it; `absent` are its blocks that only L4 has, and
    /// `present` those before the first unknown one that the pool has.
    pub fn wait(&mut self, request: usize, source: Source, absent: &[BlockNumber], present: &[BlockNumber]) {
        if !self.config.waiting {
            return;
        }
        // Blocks that were fetched for a hint or on speculation belong to this request now.
        let fetched: Vec<BlockNumber> = present.iter().copied().filter(|block| self.planner.is_ready(block)).collect();
        absent.iter().chain(&fetched).for_each(|block| self.offer(request, source, *block));
    }

    /// A client announces that the next prompt of its conversation, `request`, will come.
    pub fn hint(&mut self, request: usize, absent: &[BlockNumber]) {
        self.announced[0] += u64::from(!absent.is_empty());
        absent.iter().for_each(|block| self.offer(request, Source::Hint, *block));
    }

    /// A request ended. Returns the instant at which its conversation is expected to continue.
    pub fn ended(&mut self, request: usize, now: Time) -> Option<Time> {
        self.ends[request] = now;
        self.config.speculate.then(|| now + self.pause_ns as Time)
    }

    /// The instant has come, and no next prompt; `absent` are the blocks of the last one that only L4
    /// has. Returns the instant at which the speculation has failed.
    pub fn speculate(&mut self, request: usize, absent: &[BlockNumber], now: Time) -> Option<Time> {
        if absent.is_empty() {
            return None;
        }
        let most = DEPTHS[DEPTHS.len() - 1] as usize;
        let depth = self.planner.depth(RequestId(request as u64)) as usize;
        let named = &absent[..(absent.len() * depth).div_ceil(most).min(absent.len())];
        for (rank, block) in (0..).zip(named) {
            self.offer(request, Source::Speculative(rank), *block);
        }
        self.announced[1] += 1;
        self.speculated.insert(request, named.to_vec());
        Some(now + self.pause_ns as Time)
    }

    /// A request arrived; only L4 has `absent` of its blocks. Ends the speculation about it.
    pub fn arrived_request(&mut self, request: usize, absent: usize, now: Time) {
        let Some(previous) = self.previous(request) else { return };
        if absent > 0 {
            let pause = now.saturating_sub(self.ends[previous]) as f64;
            self.pause_ns += PAUSE_WEIGHT * (pause - self.pause_ns);
        }
        let Some(named) = self.speculated.remove(&previous) else { return };
        let hits = named.iter().filter(|block| self.planner.is_ready(block)).count() as u32;
        let result = StepResult { needed: hits + absent as u32, hits, wasted: named.len() as u32 - hits };
        self.planner.end_step(RequestId(previous as u64), &result);
    }

    /// No prompt came.
    pub fn failed_speculation(&mut self, request: usize) {
        let Some(named) = self.speculated.remove(&request) else { return };
        let result = StepResult { needed: 0, hits: 0, wasted: named.len() as u32 };
        self.planner.end_step(RequestId(request as u64), &result);
        self.planner.handle(PrefetchEvent::Ended(RequestId(request as u64)));
    }

    /// A request was admitted and read these blocks.
    pub fn admitted(&mut self, request: usize, found: &[BlockNumber], counts: &mut ColdOutcome) {
        for block in found {
            let fetched = self.planner.is_ready(block).then(|| self.sources.remove(block));
            if let Some(source) = fetched.flatten() {
                counts.prefetch_hits[source] += 1;
            }
            if self.planner.is_ready(block) || self.planner.is_in_flight(block) {
                self.planner.handle(PrefetchEvent::Used(*block));
            }
        }
        self.planner.handle(PrefetchEvent::Ended(RequestId(request as u64)));
    }

    /// A block left the pool: a prefetched copy of it is gone.
    pub fn left(&mut self, block: BlockNumber) {
        let generation = &mut self.generations[block as usize];
        *generation += 1;
        self.planner.handle(PrefetchEvent::Written(block, u64::from(*generation)));
    }

    pub fn arrived(&mut self, block: BlockNumber) {
        self.planner.handle(PrefetchEvent::Arrived(block, u64::from(self.generations[block as usize])));
    }

    pub fn failed(&mut self, block: BlockNumber) {
        self.planner.handle(PrefetchEvent::Failed(block));
    }

    /// Index of the source that fetched a block.
    pub fn source(&self, block: BlockNumber) -> usize {
        self.sources.get(&block).copied().unwrap_or(0)
    }

    pub fn poll_action(&mut self, now: Time) -> Option<PrefetchAction<BlockNumber>> {
        let before = self.planner.counts().fetched;
        let action = self.planner.poll_action(now)?;
        if let PrefetchAction::Fetch { key, .. } = &action {
            let after = self.planner.counts().fetched;
            let source = before.iter().zip(&after).position(|(before, after)| before != after);
            self.sources.insert(*key, source.expect("a fetch has a source"));
        }
        Some(action)
    }

    /// Reports the utilization of the device about once a second (eq. 7).
    pub fn observe_link(&mut self, now: Time, mover: &Mover<Copied>) {
        let (begin, busy) = self.period;
        if now >= begin + PERIOD_NS {
            self.planner.observe_link(mover.utilization(busy, now - begin));
            self.period = (now, mover.busy_ns());
        }
    }
}
