//! Blocks on their way from a slower tier into the store, before they are needed (CXL-SpecKV §3.4).
//!
//! A waiting request whose prefix lies there gets to the scheduler when its blocks have arrived, or a
//! deadline has passed; running requests continue meanwhile. A conversation whose client announced its
//! next turn is fetched shortly before that. Both are exact, so nothing is predicted here. The planner
//! ([`cenote_policy::prefetch`]) begins those that wait first, and bounds the bytes on their way.
//!
//! A promotion whose last block has arrived wakes the engine's thread. All else that happens here has an
//! instant ([`Promoting::poll_timeout`]), so the thread sleeps until then.

use super::request::{Admission, Running};
use cenote_base::RequestId;
use cenote_base::time::nanoseconds;
use cenote_policy::prefetch::{Offer, Planner, PlannerConfig, PrefetchAction, PrefetchEvent, Source};
use cenote_store::{Names, PrefixStore, Promotion};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longest time for which a request waits until its promotion begins.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Time before the announced turn at which its blocks are fetched. As long as the cold tier lets a request
/// wait (docs/guides/cold.md), so that the turn itself waits for none. Blocks that are fetched earlier
/// are more likely to be evicted before the turn.
const LEAD_NS: u64 = 2_000_000_000;
/// Most announced turns; then the oldest is forgotten.
const HINTS_MAX: usize = 256;
/// Most bytes on their way for waiting requests and announced turns.
const BYTES_MAX: u64 = 1 << 30;

/// What a promotion is for: a waiting request or an announced turn, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Waiting(u64),
    Hint(u64),
}

/// A request that waits for blocks.
struct Waiting {
    admission: Box<Admission>,
    /// `None`: it has not begun.
    promotion: Option<Promotion>,
    /// Nothing is left to wait for, or the deadline for the begin has passed.
    is_over: bool,
    until_ns: u64,
}

impl Waiting {
    /// When it waits no longer, at the latest.
    fn poll_timeout(&self, now_ns: u64) -> u64 {
        let until_ns = match &self.promotion {
            _ if self.is_over => u64::MAX,
            Some(promotion) => ends_at(promotion, now_ns),
            None => self.until_ns,
        };
        until_ns.min(self.admission.deadline_ns)
    }
}

/// A conversation whose next turn was announced.
struct Hint {
    names: Names,
    due_ns: u64,
    is_offered: bool,
    promotion: Option<Promotion>,
}

impl Hint {
    fn poll_timeout(&self, now_ns: u64) -> Option<u64> {
        match &self.promotion {
            Some(promotion) => Some(ends_at(promotion, now_ns)),
            // One that was offered waits for the planner, which waits for other promotions.
            None => (!self.is_offered).then_some(self.due_ns),
        }
    }
}

/// The promotion's deadline by the engine's clock.
fn ends_at(promotion: &Promotion, now_ns: u64) -> u64 {
    now_ns.saturating_add(nanoseconds(promotion.until().remaining()))
}

/// Counters by Prometheus name.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    hints: u64,
    hints_dropped: u64,
    hints_promoted: u64,
}

/// The promotions of an engine.
pub(super) struct Promoting {
    /// By number, which is their order of arrival.
    waiting: BTreeMap<u64, Waiting>,
    numbers: BTreeMap<RequestId, u64>,
    hints: BTreeMap<u64, Hint>,
    planner: Planner<Key>,
    block_bytes: u64,
    next: u64,
    /// Wakes the engine's thread.
    wake: Arc<dyn Fn() + Send + Sync>,
    totals: Totals,
}

impl Promoting {
    /// `wake` is called when a promotion has ended before its deadline, from any thread.
    pub fn new(block_bytes: usize, wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            waiting: BTreeMap::new(),
            numbers: BTreeMap::new(),
            hints: BTreeMap::new(),
            planner: Planner::new(PlannerConfig::with_buffer(BYTES_MAX)),
            block_bytes: block_bytes as u64,
            next: 0,
            wake: Arc::new(wake),
            totals: Totals::default(),
        }
    }

    fn offer(&mut self, key: Key, request: RequestId, source: Source, blocks: usize, until_ns: Option<u64>) {
        // One request alone may exceed the bound.
        let bytes = (blocks as u64 * self.block_bytes).min(BYTES_MAX);
        let _ = self.planner.offer(Offer { key, request, source, bytes, generation: 0, needed_at_ns: until_ns });
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Keeps a request if there are blocks to wait for, and fewer than `most` requests wait;
    /// otherwise returns it.
    pub fn keep(
        &mut self,
        store: Option<&mut (dyn PrefixStore + 'static)>,
        admission: Box<Admission>,
        most: usize,
        now_ns: u64,
    ) -> Option<Box<Admission>> {
        let has_room = self.waiting.len() < most;
        let Some(store) = store.filter(|_| has_room) else { return Some(admission) };
        let blocks = admission.names.as_ref().map_or(0, |names| store.promotable(names.tenant(), names));
        if blocks == 0 {
            return Some(admission);
        }
        let (id, until_ns) = (admission.id, now_ns.saturating_add(PATIENCE_NS));
        let number = self.number();
        let position = u32::try_from(number).unwrap_or(u32::MAX);
        self.waiting.insert(number, Waiting { admission, promotion: None, is_over: false, until_ns });
        self.numbers.insert(id, number);
        self.offer(Key::Waiting(number), id, Source::Waiting(position), blocks, Some(until_ns));
        self.pump(store, now_ns);
        None
    }

    /// A request has ended whose client announced the conversation's next turn, in so many
    /// milliseconds.
    pub fn expect(&mut self, request: &mut Running, ms: u64, now_ns: u64) {
        // One that shares no KV leaves nothing to fetch.
        let Some(mut names) = request.names.take() else { return };
        names.extend(&request.tokens);
        if self.hints.len() >= HINTS_MAX {
            self.hints.pop_first();
            self.totals.hints_dropped += 1;
        }
        self.totals.hints += 1;
        let due_ns = now_ns.saturating_add(ms.saturating_mul(1_000_000)).saturating_sub(LEAD_NS);
        let number = self.number();
        self.hints.insert(number, Hint { names, due_ns, is_offered: false, promotion: None });
    }

    /// Fetches for announced turns that are near, and takes notice of what has arrived.
    pub fn advance(&mut self, store: Option<&mut (dyn PrefixStore + 'static)>, now_ns: u64) {
        let Some(store) = store else { return };
        let mut offers = Vec::new();
        for (number, hint) in self.hints.iter_mut().filter(|(_, hint)| hint.due_ns <= now_ns && !hint.is_offered) {
            // The lookup keeps what the store has from eviction for a while.
            let _ = store.match_prefix(&hint.names);
            hint.is_offered = true;
            offers.push((*number, store.promotable(hint.names.tenant(), &hint.names)));
        }
        for (number, blocks) in offers {
            if blocks == 0 {
                self.hints.remove(&number);
            } else {
                self.offer(Key::Hint(number), RequestId(number), Source::Hint, blocks, None);
            }
        }
        for (number, waiting) in self.waiting.iter_mut().filter(|(_, waiting)| !waiting.is_over) {
            match &waiting.promotion {
                Some(promotion) if promotion.is_over() => {
                    self.planner.handle(PrefetchEvent::Arrived(Key::Waiting(*number), 0));
                }
                None if waiting.until_ns <= now_ns => {}
                _ => continue,
            }
            waiting.is_over = true;
        }
        let (planner, totals) = (&mut self.planner, &mut self.totals);
        self.hints.retain(|number, hint| {
            let has_arrived = hint.promotion.as_ref().is_some_and(Promotion::is_over);
            if has_arrived {
                totals.hints_promoted += 1;
                planner.handle(PrefetchEvent::Arrived(Key::Hint(*number), 0));
                // The blocks are in the store now, where only the store decides on them.
                planner.handle(PrefetchEvent::Used(Key::Hint(*number)));
            }
            !has_arrived
        });
        self.pump(store, now_ns);
    }

    /// Begins what the planner wants.
    fn pump(&mut self, store: &mut (dyn PrefixStore + 'static), now_ns: u64) {
        while let Some(action) = self.planner.poll_action(now_ns) {
            // Promotions are neither urged nor cancelled: what was read is shared.
            let PrefetchAction::Fetch { key, .. } = action else { continue };
            let promotion = match key {
                Key::Waiting(number) => self.waiting.get_mut(&number).and_then(|waiting| {
                    let admission = &mut *waiting.admission;
                    if let Some(names) = &admission.names {
                        admission.fetched_from = Some(store.match_prefix(names));
                        waiting.promotion = store.promote(names.tenant(), names);
                    }
                    waiting.is_over = waiting.promotion.is_none();
                    waiting.promotion.as_ref()
                }),
                Key::Hint(number) => self.hints.get_mut(&number).and_then(|hint| {
                    hint.promotion = store.promote(hint.names.tenant(), &hint.names);
                    hint.promotion.as_ref()
                }),
            };
            if let Some(promotion) = promotion {
                let wake = Arc::clone(&self.wake);
                promotion.on_over(move || wake());
                continue;
            }
            self.planner.handle(PrefetchEvent::Failed(key));
            if let Key::Hint(number) = key {
                self.hints.remove(&number);
            }
        }
    }

    /// The instant of the next deadline or announced turn, at which [`Self::advance`] matters without a
    /// promotion that wakes.
    pub fn poll_timeout(&self, now_ns: u64) -> Option<u64> {
        let waiting = self.waiting.values().map(|waiting| waiting.poll_timeout(now_ns));
        waiting.chain(self.hints.values().filter_map(|hint| hint.poll_timeout(now_ns))).min()
    }

    /// Takes up to `most` requests that wait no longer.
    pub fn take_over(&mut self, most: usize) -> impl Iterator<Item = Box<Admission>> {
        let over = self.waiting.iter().filter(|(_, waiting)| waiting.is_over).take(most);
        let over: Vec<u64> = over.map(|(number, _)| *number).collect();
        over.into_iter().filter_map(|number| self.leave(number))
    }

    /// Whether a request waits only for room in the scheduler.
    pub fn has_over(&self) -> bool {
        self.waiting.values().any(|waiting| waiting.is_over)
    }

    /// A request waits no longer: its promotion has no more bytes on their way.
    fn leave(&mut self, number: u64) -> Option<Box<Admission>> {
        let waiting = self.waiting.remove(&number)?;
        let (id, key) = (waiting.admission.id, Key::Waiting(number));
        self.numbers.remove(&id);
        if waiting.promotion.is_some_and(|promotion| promotion.is_over()) {
            self.planner.handle(PrefetchEvent::Used(key));
        } else {
            self.planner.handle(PrefetchEvent::Failed(key));
        }
        self.planner.handle(PrefetchEvent::Ended(id));
        Some(waiting.admission)
    }

    /// Requests whose timeout has passed.
    pub fn expired(&self, now_ns: u64) -> Vec<RequestId> {
        let late = self.waiting.values().filter(|waiting| waiting.admission.deadline_ns <= now_ns);
        late.map(|waiting| waiting.admission.id).collect()
    }

    pub fn has(&self, id: RequestId) -> bool {
        self.numbers.contains_key(&id)
    }

    /// Takes a request out.
    pub fn take(&mut self, id: RequestId) -> Option<Box<Admission>> {
        self.leave(*self.numbers.get(&id)?)
    }

    /// Takes all requests out.
    pub fn take_all(&mut self) -> impl Iterator<Item = Box<Admission>> {
        self.numbers.clear();
        std::mem::take(&mut self.waiting).into_values().map(|waiting| waiting.admission)
    }

    /// Number of waiting requests.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Counters by Prometheus name.
    pub fn stats(&self) -> [(String, f64); 4] {
        let waiting = Source::Waiting(0).index();
        [
            ("prefetch_waiting_total", self.planner.counts().fetched[waiting]),
            ("prefetch_hints_total", self.totals.hints),
            ("prefetch_hints_dropped_total", self.totals.hints_dropped),
            ("prefetch_hints_promoted_total", self.totals.hints_promoted),
        ]
        .map(|(name, value)| (name.to_owned(), value as f64))
    }
}
