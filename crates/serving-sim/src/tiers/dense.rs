//! Decode with a working set beyond L1, and dense attention (CXL-SpecKV §3.4.4, eq. 2).
//!
//! All layers are alike. A layer computes for a fixed time once its absent pages are staged. Every
//! step reads the same pages, as far as it matters here: a few tokens do not change their number.

mod placement;

pub use placement::{FetchOrder, Placement};

use super::{Job, Mover};
use crate::kernel::{Calendar, Time};
use crate::model::TierLink;
use cenote_policy::staging::{Fetched, Place, Staging, StagingAction, StagingConfig, StagingCounts, StagingEvent};
use cenote_policy::transfer::{Class, Ticket};
use serde::Serialize;
use std::collections::BTreeMap;

/// How pages beyond L1 arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// When their layer is next: no prefetch (the paper's CXL-NoSpec).
    OnDemand,
    /// Ahead, into this many buffers.
    Staged(u32),
}

/// A batch in steady decode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DenseSetup {
    /// Layers.
    pub layers: u32,
    /// Requests of the batch.
    pub requests: u32,
    /// Pages of each request in each layer.
    pub pages: u32,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Nanoseconds that a layer computes with everything in L1.
    pub layer_ns: u64,
    /// Nanoseconds of a step beside its layers.
    pub step_ns: u64,
    /// Pages that L1 holds, over all layers and requests, beside the buffers.
    pub l1_pages: usize,
    /// How the others arrive.
    pub arrival: Arrival,
    /// The tier that holds them.
    pub tier: TierLink,
    /// Most copies of a batch.
    pub batch: u32,
    /// Layout in that tier.
    pub placement: Placement,
    /// Order of the fetches of a layer.
    pub order: FetchOrder,
    /// Steps to simulate; the first is not counted.
    pub steps: u32,
}

impl DenseSetup {
    /// Pages of the working set, all layers and requests together.
    #[must_use]
    pub const fn working_set(&self) -> usize {
        self.layers as usize * self.requests as usize * self.pages as usize
    }
}

/// The results of a run. Times are per step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DenseOutcome {
    /// Mean nanoseconds of a step.
    pub step_ns: u64,
    /// Of them, nanoseconds in which the computation waited for pages.
    pub stall_ns: u64,
    /// Tokens per second of the batch.
    pub tokens_per_s: f64,
    /// Share of the pages that were in L1 or arrived before their layer was next.
    pub hit_rate: f64,
    /// Share of the copied pages that a layer read.
    pub precision: f64,
    /// Share of the time between a layer's first fetch and last arrival that computation hid.
    pub hidden: f64,
    /// Share of the tier's bandwidth in use.
    pub utilization: f64,
    /// Steps per second that the copies alone allow, over steps per second.
    pub copy_bound: f64,
}

/// Name of a page.
#[derive(Clone, Copy, Debug)]
struct Page {
    request: u32,
    index: u32,
    layer: u32,
}

impl Fetched for Page {}

enum Event {
    Copied(Ticket),
    Computed,
}

struct World {
    setup: DenseSetup,
    /// Pages that are not in L1, by layer.
    absent: Vec<Vec<Page>>,
    staging: Staging<Page>,
    mover: Mover<(Place, Page)>,
    tickets: BTreeMap<Place, Ticket>,
    calendar: Calendar<Event>,
    /// Layers computed so far, and their pages.
    computed: u64,
    /// Layers pushed so far.
    pushed: u64,
}

/// Simulates a batch.
///
/// # Panics
/// Panics if the setup has no layer, request, page or step.
#[must_use]
pub fn simulate(setup: &DenseSetup) -> DenseOutcome {
    assert!(setup.working_set() > 0 && setup.steps > 1, "a batch has pages, and the first step is not counted");
    World::new(setup).run()
}

impl World {
    fn new(setup: &DenseSetup) -> Self {
        // Each layer has an equal part of L1, so that it leaves the mover an equal share of its time.
        let layers = setup.layers as usize;
        let resident = |at: usize| setup.l1_pages / layers + usize::from(at < setup.l1_pages % layers);
        let absent: Vec<Vec<Page>> = (0..setup.layers)
            .map(|layer| {
                let mut pages: Vec<(u32, u32, Page)> = (0..setup.requests)
                    .flat_map(|request| {
                        (0..setup.pages).map(move |index| (request, index, Page { request, index, layer }))
                    })
                    .collect();
                setup.order.arrange(&mut pages);
                pages.into_iter().skip(resident(layer as usize)).map(|(.., page)| page).collect()
            })
            .collect();
        let buffers = match setup.arrival {
            Arrival::OnDemand => 2,
            Arrival::Staged(buffers) => buffers,
        };
        let config = StagingConfig { buffers, buffer_pages: setup.requests * setup.pages, tiles: false };
        Self {
            setup: *setup,
            absent,
            staging: Staging::new(config),
            mover: Mover::new(setup.tier, setup.batch),
            tickets: BTreeMap::new(),
            calendar: Calendar::default(),
            computed: 0,
            pushed: 0,
        }
    }

    fn run(&mut self) -> DenseOutcome {
        let warm = u64::from(self.setup.layers);
        let last = warm * u64::from(self.setup.steps);
        let mut before = (0, StagingCounts::default(), 0);
        self.push();
        self.advance();
        while self.computed < last {
            let event = self.calendar.next_event().expect("the next layer computes or waits for a copy");
            let now = self.calendar.now();
            match event {
                Event::Copied(ticket) => {
                    if let Some(((place, _), true)) = self.mover.completed(ticket) {
                        self.tickets.remove(&place);
                        self.staging.handle(now, StagingEvent::Arrived(place));
                    }
                }
                Event::Computed => {
                    self.computed += 1;
                    self.staging.handle(now, StagingEvent::Computed);
                    self.push();
                    if self.computed == warm {
                        before = (now, *self.staging.counts(), self.mover.busy_ns());
                    }
                }
            }
            self.advance();
        }
        self.outcome(before)
    }

    /// Pushes what the schedule knows: the next step, or with [`Arrival::OnDemand`] the next layer.
    fn push(&mut self) {
        match self.setup.arrival {
            Arrival::OnDemand => {
                let layer = (self.computed % u64::from(self.setup.layers)) as usize;
                let pages = self.absent[layer].clone();
                self.staging.push_step(vec![pages]).expect("a buffer holds a layer");
            }
            Arrival::Staged(_) => {
                // One step ahead of the one that computes.
                while self.pushed < self.computed + 2 * u64::from(self.setup.layers) {
                    self.pushed += u64::from(self.setup.layers);
                    self.staging.push_step(self.absent.clone()).expect("a buffer holds a layer");
                }
            }
        }
    }

    fn advance(&mut self) {
        let now = self.calendar.now();
        while let Some(action) = self.staging.poll_action(now) {
            match action {
                StagingAction::Fetch { place, page, is_urgent, .. } => {
                    let class = if is_urgent { Class::Demand } else { Class::Exact };
                    let Page { request, index, layer } = page;
                    let DenseSetup { placement, tier, layers, page_bytes, .. } = self.setup;
                    let channel = placement.channel(tier.channels, layers, layer, request, index);
                    let job = Job { channel, bytes: page_bytes, item: (place, page) };
                    self.tickets.insert(place, self.mover.submit(class, job, None));
                }
                StagingAction::Urge(place) => {
                    self.mover.transfers().promote(self.tickets[&place], Class::Demand);
                }
                StagingAction::Compute { .. } => {
                    let is_first = self.computed.is_multiple_of(u64::from(self.setup.layers));
                    let time = self.setup.layer_ns + if is_first { self.setup.step_ns } else { 0 };
                    self.calendar.schedule(now + time, Event::Computed);
                }
                StagingAction::Cancel(_) | StagingAction::ReadNow(..) | StagingAction::Recompute(..) => {
                    unreachable!("no step is abandoned and no copy fails")
                }
            }
        }
        let calendar = &mut self.calendar;
        self.mover.pump(now, |end, ticket| calendar.schedule(end, Event::Copied(ticket)), |_| ());
    }

    fn outcome(&self, before: (Time, StagingCounts, u64)) -> DenseOutcome {
        let (begin, counted, busy) = before;
        let (setup, counts) = (&self.setup, self.staging.counts());
        let steps = u64::from(setup.steps - 1);
        let span = self.calendar.now() - begin;
        let step_ns = span / steps;
        let missed = (counts.late + counts.cold) - (counted.late + counted.cold);
        let reads = steps * setup.working_set() as u64;
        let arrival = counts.arrival_ns - counted.arrival_ns;
        let share = |part: u64, whole: u64| if whole == 0 { 1.0 } else { part as f64 / whole as f64 };
        let absent = setup.working_set().saturating_sub(setup.l1_pages) as u64;
        let copies = absent as f64 * setup.page_bytes as f64 / setup.tier.link.bytes_per_s as f64 * 1e9;
        DenseOutcome {
            step_ns,
            stall_ns: (counts.stall_ns - counted.stall_ns) / steps,
            tokens_per_s: f64::from(setup.requests) * 1e9 / step_ns as f64,
            hit_rate: 1.0 - share(missed, reads).min(1.0),
            precision: 1.0 - share(counts.wasted, counts.fetched.max(1)),
            hidden: share(counts.hidden_ns - counted.hidden_ns, arrival),
            utilization: self.mover.utilization(busy, span),
            copy_bound: copies / step_ns as f64,
        }
    }
}

/// Pages that a token predictor of depth `depth` names (Algorithm 1: position + 1 to position + k of
/// each request, in each layer), and of them those that the next step reads from beyond L1.
///
/// `tokens` is the length of each request, of which the last page is in L1, because the step wrote to
/// it. `absent` tells whether L1 lacks the page of this index.
#[must_use]
pub fn token_addresses(tokens: u32, page_tokens: u32, depth: u32, absent: impl Fn(u32) -> bool) -> (u32, u32) {
    let written = tokens.saturating_sub(1) / page_tokens;
    let named = (1..=depth).map(|ahead| (tokens - 1 + ahead) / page_tokens);
    let useful = named.clone().filter(|page| *page < written && absent(*page)).count() as u32;
    (named.count() as u32, useful)
}

#[cfg(test)]
mod tests;
