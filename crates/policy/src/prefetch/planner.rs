//! The buffer of prefetched pages, and the order in which it fills.

use super::depth::{DepthBandit, SharedDepth, StepResult};
use super::offer::{Offer, Offered, PlannerConfig, PrefetchAction, PrefetchCounts, PrefetchEvent, Source};
use super::throttle::{Throttle, ThrottleConfig};
use cenote_base::RequestId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Queued,
    InFlight { is_cancelled: bool },
    Ready,
}

#[derive(Clone, Debug)]
struct Entry {
    request: RequestId,
    source: Source,
    bytes: u64,
    generation: u64,
    needed_at_ns: Option<u64>,
    state: State,
    is_valid: bool,
    /// Read since it was offered last, and ever.
    was_used: bool,
    was_ever_used: bool,
    /// Whether its copy counts against the budget.
    is_charged: bool,
    /// Number of the offer: the tie-break in the queue, and the age in the buffer.
    order: u64,
}

impl Entry {
    const fn occupies(&self) -> bool {
        !matches!(self.state, State::Queued)
    }

    /// Rank among the pages that may leave: invalid, used, speculative, and then the less urgent of the
    /// exact ones. `None`: it must stay.
    const fn rank_to_leave(&self) -> Option<u8> {
        match (self.state, self.is_valid, self.was_used, self.source) {
            (State::Ready, false, _, _) => Some(0),
            (State::Ready, true, true, _) => Some(1),
            (State::Ready, true, false, Source::Speculative(_)) => Some(2),
            (State::Ready, true, false, Source::Hint) => Some(3),
            (State::Ready, true, false, Source::Waiting(_)) => Some(4),
            _ => None,
        }
    }
}

/// The highest rank of pages that leave for one from this source: less urgent ones, and not other
/// speculation that was not tried yet.
const fn replaces(source: Source) -> u8 {
    4 - source.index() as u8
}

#[derive(Clone, Copy, Debug)]
struct Speculator {
    bandit: DepthBandit,
    /// Depth given for the current step.
    depth: Option<u32>,
}

/// The planner of one L1. `K` names a page.
#[derive(Clone, Debug)]
pub struct Planner<K> {
    config: PlannerConfig,
    throttle: Throttle,
    utilization: f64,
    shared: SharedDepth,
    speculators: BTreeMap<RequestId, Speculator>,
    entries: BTreeMap<K, Entry>,
    queue: BTreeMap<(Source, u64), K>,
    /// Pages that may leave, by rank and age.
    leaving: BTreeMap<(u8, u64), K>,
    by_request: BTreeMap<RequestId, BTreeSet<K>>,
    actions: VecDeque<PrefetchAction<K>>,
    next_order: u64,
    used_bytes: u64,
    speculative_bytes: u64,
    counts: PrefetchCounts,
}

impl<K: Clone + Ord> Planner<K> {
    /// A planner with an empty buffer.
    #[must_use]
    pub fn new(config: PlannerConfig) -> Self {
        Self {
            config,
            throttle: Throttle::new(config.throttle),
            utilization: 0.0,
            shared: SharedDepth::new(config.depth),
            speculators: BTreeMap::new(),
            entries: BTreeMap::new(),
            queue: BTreeMap::new(),
            leaving: BTreeMap::new(),
            by_request: BTreeMap::new(),
            actions: VecDeque::new(),
            next_order: 0,
            used_bytes: 0,
            speculative_bytes: 0,
            counts: PrefetchCounts::default(),
        }
    }

    /// Number of pages that a request may offer speculatively for its next step, in units of its
    /// predictor: at least 1, at most the largest of [`super::DEPTHS`].
    pub fn depth(&mut self, request: RequestId) -> u32 {
        let shared = &self.shared;
        let new = || Speculator { bandit: shared.request(), depth: None };
        let speculator = self.speculators.entry(request).or_insert_with(new);
        let depth = (f64::from(speculator.bandit.depth()) * self.throttle.beta()).ceil().max(1.0) as u32;
        speculator.depth = Some(depth);
        depth
    }

    /// Records what a step's speculation was worth, for the depth of the next steps.
    pub fn end_step(&mut self, request: RequestId, result: &StepResult) {
        let Some(speculator) = self.speculators.get_mut(&request) else { return };
        if let Some(depth) = speculator.depth.take() {
            speculator.bandit.observe(depth, result, self.utilization, &mut self.shared);
        }
    }

    /// Records the utilization of the link since the last call, 0 to 1.
    pub fn observe_link(&mut self, utilization: f64) {
        if utilization.is_finite() {
            self.utilization = utilization.clamp(0.0, 1.0);
            self.throttle.observe(self.utilization);
        }
    }

    /// *β* of eq. 7.
    #[must_use]
    pub const fn beta(&self) -> f64 {
        self.throttle.beta()
    }

    /// Replaces *κ* and *θ*, for [`super::ThrottleLearner`].
    pub fn configure_throttle(&mut self, config: ThrottleConfig) {
        self.throttle.configure(config);
    }

    /// Offers a page. The same page from a more urgent source takes that source.
    pub fn offer(&mut self, offer: Offer<K>) -> Offered {
        let Some(entry) = self.entries.get(&offer.key) else {
            self.queue_new(offer);
            return Offered::Queued;
        };
        if entry.generation != offer.generation {
            return self.replace_stale(offer);
        }
        if entry.state == (State::InFlight { is_cancelled: true }) {
            return Offered::Busy;
        }
        let mut entry = self.detach(&offer.key);
        let was_valid = std::mem::replace(&mut entry.is_valid, true);
        let is_more_urgent = offer.source < entry.source;
        let in_flight = matches!(entry.state, State::InFlight { .. });
        if in_flight && offer.source.class() < entry.source.class() {
            self.actions.push_back(PrefetchAction::Promote(offer.key.clone(), offer.source.class()));
        }
        if !was_valid || is_more_urgent || entry.was_used {
            if entry.request != offer.request {
                self.disown(entry.request, &offer.key);
                self.by_request.entry(offer.request).or_default().insert(offer.key.clone());
            }
            (entry.source, entry.request, entry.needed_at_ns) = (offer.source, offer.request, offer.needed_at_ns);
            entry.is_charged &= entry.source.is_speculative();
            entry.was_used = false;
        }
        let result = match entry.state {
            State::Queued => Offered::Queued,
            _ if was_valid => Offered::Present,
            _ => {
                self.counts.revived += 1;
                Offered::Revived
            }
        };
        self.attach(offer.key, entry);
        result
    }

    fn queue_new(&mut self, offer: Offer<K>) {
        let entry = Entry {
            request: offer.request,
            source: offer.source,
            bytes: offer.bytes,
            generation: offer.generation,
            needed_at_ns: offer.needed_at_ns,
            state: State::Queued,
            is_valid: true,
            was_used: false,
            was_ever_used: false,
            is_charged: false,
            order: self.next_order,
        };
        self.next_order += 1;
        self.by_request.entry(offer.request).or_default().insert(offer.key.clone());
        self.attach(offer.key, entry);
    }

    /// Another generation is queued, in the buffer or on its way.
    fn replace_stale(&mut self, offer: Offer<K>) -> Offered {
        self.stale(&offer.key);
        // A stale page that was only queued is gone.
        match self.entries.get(&offer.key).map(|entry| entry.state) {
            Some(State::InFlight { .. }) => return Offered::Busy,
            Some(_) => self.discard(&offer.key),
            None => {}
        }
        self.queue_new(offer);
        Offered::Queued
    }

    /// The next action at `now` (nanoseconds). Call it until it returns `None`.
    #[must_use]
    pub fn poll_action(&mut self, now: u64) -> Option<PrefetchAction<K>> {
        loop {
            if let Some(action) = self.actions.pop_front() {
                // The copy may have ended since.
                let is_due = match &action {
                    PrefetchAction::Promote(key, _) | PrefetchAction::Cancel(key) => self.is_copied(key),
                    PrefetchAction::Fetch { .. } | PrefetchAction::Discard(_) => true,
                };
                if is_due {
                    return Some(action);
                }
                continue;
            }
            let (_, key) = self.queue.first_key_value()?;
            let key = key.clone();
            let entry = &self.entries[&key];
            if entry.needed_at_ns.is_some_and(|needed| needed < now) {
                self.forget(&key);
                self.counts.expired += 1;
                continue;
            }
            if !self.make_room(entry.bytes, entry.source) {
                return None;
            }
            if self.actions.is_empty() {
                return Some(self.fetch(key));
            }
        }
    }

    /// Discards pages until `bytes` fit. Returns whether they fit.
    fn make_room(&mut self, bytes: u64, source: Source) -> bool {
        let budget = (self.config.speculative_bytes_max as f64 * self.throttle.beta()) as u64;
        if source.is_speculative() && self.speculative_bytes + bytes > budget {
            return false;
        }
        while self.used_bytes + bytes > self.config.buffer_bytes {
            let most = replaces(source);
            let Some((_, key)) = self.leaving.first_key_value().filter(|((rank, _), _)| *rank <= most) else {
                return false;
            };
            let key = key.clone();
            self.discard(&key);
        }
        true
    }

    fn fetch(&mut self, key: K) -> PrefetchAction<K> {
        let mut entry = self.detach(&key);
        entry.state = State::InFlight { is_cancelled: false };
        entry.is_charged = entry.source.is_speculative();
        let index = entry.source.index();
        self.counts.fetched[index] += 1;
        self.counts.bytes[index] += entry.bytes;
        let action = PrefetchAction::Fetch {
            key: key.clone(),
            class: entry.source.class(),
            bytes: entry.bytes,
            generation: entry.generation,
            deadline_ns: entry.needed_at_ns,
        };
        self.attach(key, entry);
        action
    }

    /// Records an event. Events of unknown pages are ignored, except reads, which are misses.
    pub fn handle(&mut self, event: PrefetchEvent<K>) {
        match event {
            PrefetchEvent::Arrived(key, generation) => self.arrived(key, generation),
            PrefetchEvent::Failed(key) => {
                if self.is_copied(&key) {
                    let entry = self.forget(&key);
                    self.counts.failed += u64::from(entry.state == State::InFlight { is_cancelled: false });
                }
            }
            PrefetchEvent::Used(key) => self.used(&key),
            PrefetchEvent::Mispredicted(key) => {
                let is_unused = |entry: &Entry| entry.source.is_speculative() && entry.is_valid && !entry.was_used;
                if self.entries.get(&key).is_some_and(is_unused) {
                    self.invalidate_one(key);
                }
            }
            PrefetchEvent::Written(key, generation) => {
                if self.entries.get(&key).is_some_and(|entry| entry.generation != generation) {
                    self.stale(&key);
                }
            }
            PrefetchEvent::Ended(request) => {
                self.invalidate(request);
                self.speculators.remove(&request);
            }
        }
    }

    fn arrived(&mut self, key: K, generation: u64) {
        if !self.is_copied(&key) {
            return;
        }
        let mut entry = self.detach(&key);
        if entry.generation != generation && entry.is_valid {
            (entry.is_valid, entry.is_charged) = (false, false);
            self.counts.stale += 1;
        }
        entry.generation = generation;
        entry.state = State::Ready;
        self.attach(key, entry);
    }

    fn used(&mut self, key: &K) {
        let Some(state) = self.entries.get(key).filter(|entry| entry.is_valid).map(|entry| entry.state) else {
            self.counts.misses += 1;
            return;
        };
        let mut entry = self.detach(key);
        let index = entry.source.index();
        match state {
            State::Ready if !entry.was_used => self.counts.hits[index] += 1,
            State::Ready => {}
            State::InFlight { .. } if !entry.was_used => self.counts.late[index] += 1,
            State::InFlight { .. } => {}
            State::Queued => {
                // The caller reads it itself.
                self.counts.misses += 1;
                self.disown(entry.request, key);
                return;
            }
        }
        (entry.was_used, entry.was_ever_used, entry.is_charged) = (true, true, false);
        self.attach(key.clone(), entry);
    }

    /// Invalidates the pages of a request.
    fn invalidate(&mut self, request: RequestId) {
        let keys: Vec<K> = self.by_request.get(&request).into_iter().flatten().cloned().collect();
        keys.into_iter().for_each(|key| self.invalidate_one(key));
    }

    /// Lazily: a copied page stays until its bytes are needed.
    fn invalidate_one(&mut self, key: K) {
        let mut entry = self.detach(&key);
        match &mut entry.state {
            State::Queued => {
                self.disown(entry.request, &key);
                return;
            }
            State::InFlight { is_cancelled } if !*is_cancelled => {
                *is_cancelled = true;
                self.actions.push_back(PrefetchAction::Cancel(key.clone()));
            }
            _ => {}
        }
        (entry.is_valid, entry.is_charged) = (false, false);
        self.attach(key, entry);
    }

    fn stale(&mut self, key: &K) {
        if self.entries.get(key).is_some_and(|entry| entry.is_valid) {
            self.counts.stale += 1;
            self.invalidate_one(key.clone());
        }
    }

    fn discard(&mut self, key: &K) {
        let entry = self.forget(key);
        self.counts.wasted[entry.source.index()] += u64::from(!entry.was_ever_used);
        self.actions.push_back(PrefetchAction::Discard(key.clone()));
    }

    /// Takes an entry out of the indexes that its state decides.
    fn detach(&mut self, key: &K) -> Entry {
        let entry = self.entries.remove(key).expect("callers name a known page");
        if entry.state == State::Queued {
            self.queue.remove(&(entry.source, entry.order));
        } else if let Some(rank) = entry.rank_to_leave() {
            self.leaving.remove(&(rank, entry.order));
        }
        self.used_bytes -= if entry.occupies() { entry.bytes } else { 0 };
        self.speculative_bytes -= if entry.is_charged { entry.bytes } else { 0 };
        entry
    }

    /// Puts an entry into these indexes.
    fn attach(&mut self, key: K, entry: Entry) {
        if entry.state == State::Queued {
            self.queue.insert((entry.source, entry.order), key.clone());
        } else if let Some(rank) = entry.rank_to_leave() {
            self.leaving.insert((rank, entry.order), key.clone());
        }
        self.used_bytes += if entry.occupies() { entry.bytes } else { 0 };
        self.speculative_bytes += if entry.is_charged { entry.bytes } else { 0 };
        self.entries.insert(key, entry);
    }

    /// Takes an entry out for good.
    fn forget(&mut self, key: &K) -> Entry {
        let entry = self.detach(key);
        self.disown(entry.request, key);
        entry
    }

    /// A request's page is no longer its own.
    fn disown(&mut self, request: RequestId, key: &K) {
        if let Some(keys) = self.by_request.get_mut(&request) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_request.remove(&request);
            }
        }
    }

    /// Whether a copy is under way, also an invalid one.
    fn is_copied(&self, key: &K) -> bool {
        self.entries.get(key).is_some_and(|entry| matches!(entry.state, State::InFlight { .. }))
    }

    /// Whether a valid copy is in the buffer.
    #[must_use]
    pub fn is_ready(&self, key: &K) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.is_valid && entry.state == State::Ready)
    }

    /// Whether a copy is in the buffer, valid or not.
    #[must_use]
    pub fn is_buffered(&self, key: &K) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.state == State::Ready)
    }

    /// Whether a valid copy is on its way.
    #[must_use]
    pub fn is_in_flight(&self, key: &K) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.is_valid && matches!(entry.state, State::InFlight { .. }))
    }

    /// Bytes in the buffer and on their way, at most [`PlannerConfig::buffer_bytes`].
    #[must_use]
    pub const fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Of them, bytes that count against the budget of speculation.
    #[must_use]
    pub const fn speculative_bytes(&self) -> u64 {
        self.speculative_bytes
    }

    /// The counters.
    #[must_use]
    pub const fn counts(&self) -> &PrefetchCounts {
        &self.counts
    }
}
