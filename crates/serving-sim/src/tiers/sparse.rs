//! Decode whose queries choose pages (sparse attention), with a predictor and a planner.
//!
//! Per step and layer: the query's scores choose pages; those that neither L1 nor the buffer (L2) holds
//! are read from the lower tier while the layer waits; then the layer computes, and predicted pages
//! arrive meanwhile. Hot pages move to L1 by [`Thresholds`].

mod scores;

pub use scores::{DrawnScores, ScoreModel};

use super::{Job, Mover};
use crate::kernel::{Calendar, Time};
use crate::model::TierLink;
use cenote_base::RequestId;
use cenote_policy::choice::{ChoiceKind, ChoiceShape, ChoiceTally, Chooser, PageChoice, top_pages};
use cenote_policy::prefetch::{
    Offer, Planner, PlannerConfig, PrefetchAction, PrefetchCounts, PrefetchEvent, Source, StepResult, ThrottleConfig,
    ThrottleLearner,
};
use cenote_policy::temperature::{HotSet, ThresholdConfig, Thresholds};
use cenote_policy::transfer::{Cancelled, Class, Ticket};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Where scores come from.
pub trait ScoreSource {
    /// The score of each page of a request. Steps count from 1; layers of a step are asked in order.
    fn scores(&mut self, step: u64, request: u32, of: Chooser) -> Vec<f32>;
}

/// How many pages a request prefetches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Depth {
    /// Nothing.
    None,
    /// *k* quarters of a choice.
    Fixed(u32),
    /// *k* by eq. 9, times *β* of eq. 7.
    Learned(ThrottleConfig),
    /// The same, and *κ* and *θ* are learned from the throughput of periods of [`PERIOD_STEPS`] steps,
    /// in directions by this seed.
    Learning(ThrottleConfig, u64),
}

/// Steps of a learner's trial.
pub const PERIOD_STEPS: u64 = 5;

/// Learns the throttle while the batch decodes.
struct Learning {
    learner: ThrottleLearner,
    begin: Time,
    steps: u64,
    /// Nanoseconds of the first period, as in the engine.
    usual_ns: Option<f64>,
}

/// A batch in steady decode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparseSetup {
    /// Layers and head groups.
    pub shape: ChoiceShape,
    /// Requests of the batch.
    pub requests: u32,
    /// Pages that a group of heads chooses in a step.
    pub chosen: u32,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Nanoseconds that a layer computes.
    pub layer_ns: u64,
    /// Nanoseconds of a step beside its layers.
    pub step_ns: u64,
    /// Pages that L1 holds for each request, layer and group.
    pub l1_pages: usize,
    /// Pages of the buffer.
    pub buffer_pages: u64,
    /// The predictor.
    pub kind: ChoiceKind,
    /// How much is prefetched.
    pub depth: Depth,
    /// When pages move to L1.
    pub thresholds: ThresholdConfig,
    /// The tier that holds all pages.
    pub tier: TierLink,
    /// Most copies of a batch.
    pub batch: u32,
    /// Steps to simulate.
    pub steps: u64,
    /// Of them, the first ones that are not counted.
    pub warm_steps: u64,
}

/// The results of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SparseOutcome {
    /// Mean nanoseconds of a step.
    pub step_ns: u64,
    /// Of them, nanoseconds in which layers waited for pages.
    pub stall_ns: u64,
    /// Tokens per second of the batch.
    pub tokens_per_s: f64,
    /// Share of the chosen pages that L1 or the buffer held.
    pub hit_rate: f64,
    /// Share of the chosen pages that L1 held.
    pub l1_rate: f64,
    /// Share of the chosen pages that were there or on their way.
    pub coverage: f64,
    /// Share of the prefetched pages that were read before they left the buffer.
    pub precision: f64,
    /// Share of the chosen pages that the predictor named.
    pub predictor_hit_rate: f64,
    /// Share of the pages that the predictor named for a step and that the step chose.
    pub predictor_precision: f64,
    /// Mean nanoseconds from the decision to prefetch a page to its arrival.
    pub prefetch_ns: u64,
    /// Mean nanoseconds of a read that a layer waits for.
    pub demand_ns: u64,
    /// Bytes copied per step.
    pub bytes_per_step: u64,
    /// Share of the tier's bandwidth in use.
    pub utilization: f64,
    /// Mean depth.
    pub mean_depth: f64,
}

/// Request, chooser (layer and group) and page.
type Key = (u32, Chooser, u32);

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    chosen: u64,
    l1: u64,
    ready: u64,
    late: u64,
    stall_ns: u64,
    prefetch_ns: u128,
    arrived: u64,
    demands: u64,
    demand_ns: u128,
    depths: u64,
    depth_sum: u64,
    predicted: ChoiceTally,
}

struct World<'a> {
    setup: SparseSetup,
    source: &'a mut dyn ScoreSource,
    choices: Vec<PageChoice>,
    planner: Planner<Key>,
    mover: Mover<Key>,
    calendar: Calendar<Option<Ticket>>,
    /// Copies under way: ticket, time of submission, and whether the planner wants it.
    flying: BTreeMap<Key, (Ticket, Time, bool)>,
    /// L1, per request and chooser.
    hot: BTreeMap<(u32, Chooser), HotSet>,
    thresholds: Thresholds,
    learning: Option<Learning>,
    /// Pages that the current layer waits for.
    awaited: BTreeSet<Key>,
    depth: Vec<u32>,
    step_results: Vec<StepResult>,
    tally: Tally,
}

/// Simulates a batch.
///
/// # Panics
/// Panics if all steps are warm-up, or the setup has no requests.
#[must_use]
pub fn simulate(setup: &SparseSetup, source: &mut dyn ScoreSource) -> SparseOutcome {
    assert!(setup.steps > setup.warm_steps && setup.requests > 0, "some steps count, and some request decodes");
    let config = PlannerConfig::with_buffer(setup.buffer_pages * setup.page_bytes);
    let throttle = match setup.depth {
        Depth::Learned(throttle) | Depth::Learning(throttle, _) => throttle,
        Depth::None | Depth::Fixed(_) => config.throttle,
    };
    let learning = match setup.depth {
        Depth::Learning(from, seed) => {
            Some(Learning { learner: ThrottleLearner::new(from, seed), begin: 0, steps: 0, usual_ns: None })
        }
        _ => None,
    };
    let config = PlannerConfig { speculative_bytes_max: config.buffer_bytes, throttle, ..config };
    let mut world = World {
        setup: *setup,
        source,
        choices: (0..setup.requests).map(|_| PageChoice::new(setup.kind, setup.shape)).collect(),
        planner: Planner::new(config),
        mover: Mover::new(setup.tier, setup.batch),
        calendar: Calendar::default(),
        flying: BTreeMap::new(),
        hot: BTreeMap::new(),
        thresholds: Thresholds::new(setup.thresholds),
        learning,
        awaited: BTreeSet::new(),
        depth: vec![0; setup.requests as usize],
        step_results: vec![StepResult::default(); setup.requests as usize],
        tally: Tally::default(),
    };
    world.run()
}

impl World<'_> {
    fn run(&mut self) -> SparseOutcome {
        let (mut begin, mut busy, mut bytes, mut counted) = (0, 0, 0, PrefetchCounts::default());
        for step in 1..=self.setup.steps {
            if step == self.setup.warm_steps + 1 {
                self.tally = Tally::default();
                (begin, busy, bytes) = (self.calendar.now(), self.mover.busy_ns(), self.mover.bytes());
                counted = *self.planner.counts();
                self.choices.iter_mut().for_each(PageChoice::forget_tallies);
            }
            self.begin_step();
            let before = (self.calendar.now(), self.mover.busy_ns());
            for layer in 0..self.setup.shape.layers {
                self.layer(step, layer);
            }
            self.wait_until(self.calendar.now() + self.setup.step_ns);
            self.end_step(before);
        }
        self.outcome(begin, busy, bytes, &counted)
    }

    fn begin_step(&mut self) {
        for request in 0..self.setup.requests {
            let depth = match self.setup.depth {
                Depth::None => 0,
                Depth::Fixed(depth) => depth,
                Depth::Learned(_) | Depth::Learning(..) => self.planner.depth(RequestId(u64::from(request))),
            };
            self.depth[request as usize] = depth;
            self.tally.depths += 1;
            self.tally.depth_sum += u64::from(depth);
        }
    }

    fn end_step(&mut self, (begin, busy): (Time, u64)) {
        let results = self.step_results.iter_mut().map(std::mem::take);
        let needed: u32 = (0..)
            .zip(results)
            .map(|(request, result)| {
                self.planner.end_step(RequestId(request), &result);
                result.needed - result.hits
            })
            .sum();
        let chosen = self.setup.requests * self.setup.shape.layers * self.setup.shape.groups * self.setup.chosen;
        let resident: usize = self.hot.values().map(HotSet::len).sum();
        let room = self.setup.l1_pages * self.hot.len();
        self.thresholds.observe(resident as f64 / room.max(1) as f64, f64::from(needed) / f64::from(chosen.max(1)));
        if matches!(self.setup.depth, Depth::Learned(_) | Depth::Learning(..)) {
            self.planner.observe_link(self.mover.utilization(busy, self.calendar.now() - begin));
        }
        self.learn();
    }

    /// Ends a trial of the throttle's parameters after some steps, and begins the next.
    fn learn(&mut self) {
        let (Some(learning), now) = (&mut self.learning, self.calendar.now()) else { return };
        learning.steps += 1;
        if !learning.steps.is_multiple_of(PERIOD_STEPS) {
            return;
        }
        let took = (now - learning.begin) as f64;
        learning.begin = now;
        let usual = *learning.usual_ns.get_or_insert(took);
        learning.learner.observe(usual / took);
        self.planner.configure_throttle(learning.learner.trial());
    }

    fn layer(&mut self, step: u64, layer: u32) {
        let choosers: Vec<Chooser> = (0..self.setup.shape.groups).map(|group| Chooser { layer, group }).collect();
        let mut chosen = Vec::new();
        for request in 0..self.setup.requests {
            for &of in &choosers {
                let scores = self.source.scores(step, request, of);
                let pages = top_pages(&scores, self.setup.chosen as usize);
                pages.iter().for_each(|page| self.need((request, of, *page)));
                for page in self.choices[request as usize].observe(of, &scores, &pages) {
                    let key = (request, of, page);
                    let was_copied = self.planner.is_ready(&key) || self.planner.is_in_flight(&key);
                    self.step_results[request as usize].wasted += u32::from(was_copied);
                    self.planner.handle(PrefetchEvent::Mispredicted(key));
                }
                chosen.push((request, of, scores.len() as u32, pages));
            }
        }
        self.pump();
        let waits_from = self.calendar.now();
        while !self.awaited.is_empty() {
            assert!(self.advance(), "an awaited page is under way");
        }
        self.tally.stall_ns += self.calendar.now() - waits_from;
        for (request, of, num_pages, pages) in chosen {
            pages.iter().for_each(|page| self.warm(step, (request, of, *page)));
            self.predict(request, of, num_pages);
        }
        self.wait_until(self.calendar.now() + self.setup.layer_ns);
    }

    /// A query chose the page.
    fn need(&mut self, key: Key) {
        let (request, of, page) = key;
        self.tally.chosen += 1;
        if self.hot.get(&(request, of)).is_some_and(|pages| pages.contains(page)) {
            self.tally.l1 += 1;
            return;
        }
        let result = &mut self.step_results[request as usize];
        result.needed += 1;
        if self.planner.is_ready(&key) {
            result.hits += 1;
            self.tally.ready += 1;
            self.planner.handle(PrefetchEvent::Used(key));
        } else if let Some((ticket, ..)) = self.flying.get(&key) {
            self.tally.late += 1;
            self.mover.transfers().promote(*ticket, Class::Demand);
            self.planner.handle(PrefetchEvent::Used(key));
            self.awaited.insert(key);
        } else {
            self.submit(key, Class::Demand, false);
            self.awaited.insert(key);
        }
    }

    fn submit(&mut self, key: Key, class: Class, is_planned: bool) {
        let (request, of, page) = key;
        let channel = (request + of.layer + page) % self.setup.tier.channels;
        let ticket = self.mover.submit(class, Job { channel, bytes: self.setup.page_bytes, item: key }, None);
        self.flying.insert(key, (ticket, self.calendar.now(), is_planned));
    }

    /// A page was read: it may move to L1, in the place of a colder one.
    fn warm(&mut self, step: u64, key: Key) {
        let (request, of, page) = key;
        let hot = self.hot.entry((request, of)).or_default();
        let _ = hot.read(page, step, self.setup.l1_pages, &self.thresholds);
    }

    /// Offers what the predictor expects, as early as it can know.
    fn predict(&mut self, request: u32, of: Chooser, num_pages: u32) {
        let depth = self.depth[request as usize];
        let target = self.setup.kind.target(of, self.setup.shape);
        if depth == 0 {
            return;
        }
        let count = (depth * self.setup.chosen).div_ceil(4) as usize;
        for (rank, page) in (0..).zip(self.choices[request as usize].predict(target, num_pages, count)) {
            let key = (request, target, page);
            if self.hot.get(&(request, target)).is_some_and(|pages| pages.contains(page)) {
                continue;
            }
            self.planner.offer(Offer {
                key,
                request: RequestId(u64::from(request)),
                source: Source::Speculative(rank),
                bytes: self.setup.page_bytes,
                generation: 0,
                needed_at_ns: None,
            });
        }
    }

    /// Gives the planner's actions to the mover, and starts copies.
    fn pump(&mut self) {
        let now = self.calendar.now();
        while let Some(action) = self.planner.poll_action(now) {
            match action {
                PrefetchAction::Fetch { key, class, .. } => {
                    if let Some((.., is_planned)) = self.flying.get_mut(&key) {
                        // A layer reads it already.
                        *is_planned = true;
                    } else {
                        self.submit(key, class, true);
                    }
                }
                PrefetchAction::Promote(key, class) => {
                    if let Some((ticket, ..)) = self.flying.get(&key) {
                        self.mover.transfers().promote(*ticket, class);
                    }
                }
                PrefetchAction::Cancel(key) => {
                    let Some((ticket, ..)) = self.flying.get(&key).copied() else { continue };
                    if matches!(self.mover.transfers().cancel(ticket), Cancelled::Queued(_)) {
                        self.flying.remove(&key);
                        self.planner.handle(PrefetchEvent::Failed(key));
                    }
                }
                PrefetchAction::Discard(_) => {}
            }
        }
        let calendar = &mut self.calendar;
        self.mover.pump(now, |end, ticket| calendar.schedule(end, Some(ticket)), |_| ());
    }

    /// Handles the next event. Returns whether there was one.
    fn advance(&mut self) -> bool {
        let Some(event) = self.calendar.next_event() else { return false };
        let Some((key, _)) = event.and_then(|ticket| self.mover.completed(ticket)) else { return true };
        let (_, since, is_planned) = self.flying.remove(&key).expect("a copy under way is known");
        let took = u128::from(self.calendar.now() - since);
        if is_planned {
            self.tally.prefetch_ns += took;
            self.tally.arrived += 1;
            self.planner.handle(PrefetchEvent::Arrived(key, 0));
        } else {
            self.tally.demand_ns += took;
            self.tally.demands += 1;
        }
        self.awaited.remove(&key);
        self.pump();
        true
    }

    fn wait_until(&mut self, until: Time) {
        self.pump();
        self.calendar.schedule(until, None);
        while self.calendar.now() < until {
            self.advance();
        }
    }

    fn outcome(&mut self, begin: Time, busy: u64, bytes: u64, counted: &PrefetchCounts) -> SparseOutcome {
        let steps = self.setup.steps - self.setup.warm_steps;
        let span = self.calendar.now() - begin;
        for choice in &self.choices {
            self.tally.predicted.add(&choice.total());
        }
        let tally = &self.tally;
        let speculative = Source::Speculative(0).index();
        let fetched = self.planner.counts().fetched[speculative] - counted.fetched[speculative];
        let wasted = self.planner.counts().wasted[speculative] - counted.wasted[speculative];
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let mean = |sum: u128, count: u64| if count == 0 { 0 } else { (sum / u128::from(count)) as u64 };
        SparseOutcome {
            step_ns: span / steps,
            stall_ns: tally.stall_ns / steps,
            tokens_per_s: f64::from(self.setup.requests) * steps as f64 * 1e9 / span as f64,
            hit_rate: share(tally.l1 + tally.ready, tally.chosen),
            l1_rate: share(tally.l1, tally.chosen),
            coverage: share(tally.l1 + tally.ready + tally.late, tally.chosen),
            precision: if fetched == 0 { 0.0 } else { 1.0 - share(wasted, fetched).min(1.0) },
            predictor_hit_rate: tally.predicted.hit_rate(),
            predictor_precision: tally.predicted.precision(),
            prefetch_ns: mean(tally.prefetch_ns, tally.arrived),
            demand_ns: mean(tally.demand_ns, tally.demands),
            bytes_per_step: (self.mover.bytes() - bytes) / steps,
            utilization: self.mover.utilization(busy, span),
            mean_depth: share(tally.depth_sum, tally.depths),
        }
    }
}

#[cfg(test)]
mod tests;
